"""Elapsed seconds, quantiles and device limits, on simulated clocks."""

from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from real.measure import device_limits
from real.measure.device_limits import (
    WARMUP,
    copy_bandwidth,
    device_speeds,
    elapsed,
    host_wait,
    matrix_rate,
    quantiles,
)


class Stopwatch:
    """A clock that advances by the next of `seconds` at every second reading."""

    def __init__(self, seconds):
        self.seconds, self.time, self.looks = list(seconds), 100.0, 0

    def __call__(self):
        self.looks += 1
        if self.looks % 2 == 0:
            self.time += self.seconds.pop(0)
        return self.time


def percentile(values, share):
    """Linear interpolation between the two nearest ranks."""
    ranked = sorted(values)
    position = share * (len(ranked) - 1)
    low = int(position)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (position - low)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30))
def test_quantiles_are_median_and_percentiles(values):
    result = quantiles(values)
    for share, value in ((0.5, result.median), (0.1, result.p10), (0.9, result.p90)):
        assert value == pytest.approx(percentile(values, share), rel=1e-12)
    assert result.p10 <= result.median <= result.p90


def test_quantiles_of_nothing_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        quantiles([])


def test_elapsed_returns_timer_seconds_in_order():
    done = []
    works = [lambda i=i: done.append(i) for i in (2, 0, 1)]
    assert elapsed(works, "cpu", Stopwatch([0.5, 0.25, 4.0])) == [0.5, 0.25, 4.0]
    assert done == [2, 0, 1]


def test_control_extra_clock_reading_is_detected():
    watch = Stopwatch([0.5, 0.25])
    watch()
    assert elapsed([lambda: None], "cpu", watch) != [0.5]


def test_elapsed_without_timer_is_positive():
    (seconds,) = elapsed([lambda: sum(range(1000))], "cpu")
    assert seconds > 0


def test_cuda_events_are_read_after_all_work(monkeypatch):
    device = {"ms": 0.0, "done": False}
    calls = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            calls.append("mark")
            self.at = device["ms"]

        def elapsed_time(self, other):
            assert device["done"]
            return other.at - self.at

    @contextmanager
    def here(_):
        yield

    def work(ms):
        calls.append("work")
        device["ms"] += ms

    def waited():
        calls.append("wait")
        device["done"] = True

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", here)
    monkeypatch.setattr(torch.cuda, "synchronize", waited)
    assert elapsed([lambda: work(2.0), lambda: work(8.0)], "cuda") == [0.002, 0.008]
    assert calls == ["mark", "work", "mark"] * 2 + ["wait"]


def test_copy_bandwidth_counts_reads_and_writes():
    bandwidth = copy_bandwidth("cpu", size=1024, repeats=3, timer=Stopwatch([1.0, 2.0, 4.0]))
    assert bandwidth.median == 2 * 1024 / 2.0
    assert (bandwidth.p10, bandwidth.p90) == pytest.approx(
        [percentile([2048.0, 1024.0, 512.0], share) for share in (0.1, 0.9)]
    )


def test_matrix_rate_counts_two_flop_per_multiply_add():
    rate = matrix_rate(torch.float64, "cpu", side=8, repeats=3, timer=Stopwatch([1.0, 2.0, 4.0]))
    assert rate.median == 2 * 8 * 8 * 8 / 2.0


def test_warmup_repeats_are_not_counted(monkeypatch):
    dtypes = []
    monkeypatch.setattr(torch, "mm", lambda a, b, out: dtypes.append(a.dtype))
    matrix_rate(torch.bfloat16, "cpu", side=8, repeats=5, timer=Stopwatch([1.0] * 5))
    assert dtypes == [torch.bfloat16] * (WARMUP + 5)


def test_device_speeds_in_every_dtype(monkeypatch):
    monkeypatch.setitem(device_limits.COPY_BYTES, "cpu", 1 << 12)
    monkeypatch.setitem(device_limits.MATRIX_SIDE, "cpu", 16)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        speeds = device_speeds(dtype, "cpu", repeats=2)
        assert min(speeds.bandwidth.p10, speeds.rate.p10) > 0


def test_copy_size_is_limited_by_free_memory(monkeypatch):
    monkeypatch.setattr(device_limits, "free", lambda device: 8 * 512.0)
    assert copy_bandwidth("cpu", repeats=1, timer=Stopwatch([1.0])).median == 2 * 512


@pytest.mark.parametrize(
    "measure",
    [lambda: copy_bandwidth("cpu", 64, 0), lambda: matrix_rate(torch.float32, "cpu", 4, 0)],
)
def test_zero_repeats_are_refused(measure):
    with pytest.raises(ValueError, match="repeats is 0"):
        measure()


def test_host_wait_uses_the_host_clock(monkeypatch):
    picked = []
    monkeypatch.setattr(torch.Tensor, "__int__", lambda self: picked.append(self.shape) or 0)
    wait = host_wait(50, torch.bfloat16, "cpu", 3, Stopwatch([0.25, 1.0, 0.5]))
    assert (wait.median, len(picked)) == (0.5, 3 + WARMUP)
    assert set(picked) == {(1,)}
    with pytest.raises(ValueError, match="repeats is 0"):
        host_wait(50, torch.float32, "cpu", 0)
