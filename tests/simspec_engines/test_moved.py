"""Has acceptance fallen? False alarms at the stated rate, power on planted falls, and refusals."""

import json
import re
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from import_files import FIXTURES
from scipy.stats import binom, norm
from shell import refused, simspec

from simspec.engines import moved
from simspec.engines.import_report import DepthCounts, Series
from simspec.engines.moved import ALARMS, fallen, self_normalized

ROUNDS = 100


@pytest.fixture(autouse=True)
def few_permutations(monkeypatch):
    monkeypatch.setattr(moved, "PERMUTATIONS", 99)


def served(rng, periods, lasts=1, fall=(1.0, 1.0), at=0, tasks=1):
    """Periods of 6 requests whose acceptance differs; each goes on for `lasts` periods on average.

    fall: factors of the acceptance of both positions from period `at` on, in the last task.
    """
    left, easy = np.zeros(6), np.zeros(6)
    counts = []
    for i in range(periods):
        new = left <= 0
        left[new], easy[new] = rng.geometric(1 / lasts, new.sum()), rng.beta(6, 3, new.sum())
        left -= 1
        falls = i >= at and i % tasks == tasks - 1
        first, both = (easy * factor if falls else easy for factor in fall)
        one = rng.binomial(ROUNDS, first)
        counts.append((one.sum(), rng.binomial(one, both).sum()))
    accepted = np.array(counts)
    tried = np.column_stack((np.full(periods, 6 * ROUNDS), accepted[:, :1]))
    names = tuple(f"task {i % tasks}" for i in range(periods))
    labels = tuple(f"period {i}" for i in range(periods))
    sums = tried[:, 0].astype(float), accepted.sum(axis=1).astype(float)
    return Series(labels, names, *sums, DepthCounts(tried, accepted))


def alarmed(series):
    return "fell, since" in fallen(series)["verdict"]


def naive_alarm(series):
    """A test of two binomials, as if all rounds were independent."""
    half = len(series.at) // 2
    tried, right = (part[:, 0] for part in series.depths)
    p, a, b = right.sum() / tried.sum(), tried[:half].sum(), tried[half:].sum()
    gap = right[:half].sum() / a - right[half:].sum() / b
    return gap / np.sqrt(p * (1 - p) * (1 / a + 1 / b)) > norm.ppf(1 - ALARMS)


@pytest.mark.parametrize("periods, lasts", [(20, 1), (40, 2)])
def test_false_alarms_come_at_the_stated_rate(periods, lasts):
    rng = np.random.default_rng(periods)
    series = [served(rng, periods, lasts) for _ in range(60)]
    assert sum(map(alarmed, series)) <= binom.ppf(0.995, len(series), ALARMS)
    # control: prompts differ, so rounds of one period are alike
    assert sum(map(naive_alarm, series)) > 3 * ALARMS * len(series)


def test_a_planted_fall_is_found_with_its_position_and_its_time():
    rng = np.random.default_rng(1)
    found = [fallen(served(rng, 90, fall=(1.0, 0.8), at=50)) for _ in range(10)]
    named = [{row["stream"] for row in each["streams"] if row["since"]} for each in found]
    assert sum("position 2" in each for each in named) >= 9
    assert sum("position 1" in each for each in named) <= 1
    since = [row["since"] for each in found for row in each["streams"] if row["since"]]
    assert np.median([int(label.split()[1]) for label in since]) == pytest.approx(50, abs=4)


def test_the_task_that_fell_is_named():
    rng = np.random.default_rng(2)
    report = fallen(served(rng, 120, fall=(0.7, 0.7), at=60, tasks=2))
    fell = {row["stream"] for row in report["streams"] if row["since"]}
    assert "task task 1" in fell
    assert "task task 0" not in fell


def test_a_slow_wave_of_long_requests_is_undecided():
    wave = 600 + 200 * np.cos(np.arange(60) / 10) + np.random.default_rng(3).normal(0, 9, 60)
    labels = tuple(map(str, range(60)))
    report = fallen(Series(labels, ("",) * 60, np.full(60, 600.0), wave))
    assert report["verdict"].startswith("undecided: 60 periods are as sure as")
    assert not any(row["since"] for row in report["streams"])


@given(st.lists(st.floats(-9, 9), min_size=6, max_size=12))
def test_self_normalized_is_its_definition(values):
    r = np.array(values)
    n, centered = len(r), r - r.mean()
    for k, statistic in zip(range(2, n - 1), self_normalized(r, 2)):
        spread = 0.0
        for part in (centered[:k], centered[k:][::-1]):
            sums = np.cumsum(part)
            line = np.arange(1, len(part) + 1) / len(part)
            spread += ((sums - line * sums[-1]) ** 2).sum()
        expected = centered[:k].sum() / np.sqrt(max(spread, 1e-12) / n)
        assert statistic == pytest.approx(expected, rel=1e-3, abs=1e-3 * max(1, abs(expected)))


LINE = (
    "INFO {time:%m-%d %H:%M:%S} [metrics.py:100] SpecDecoding metrics: Mean acceptance length: "
    "{mean:.2f}, Accepted throughput: 1.00 tokens/s, Drafted throughput: 1.00 tokens/s, Accepted: "
    "{sum} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: {rates}, Avg Draft "
    "acceptance rate: 1.0%\n"
)


def test_a_log_prints_the_verdict(tmp_path):
    series, lines = served(np.random.default_rng(4), 60, fall=(0.8, 0.8), at=30), []
    for i, (tried, right) in enumerate(zip(*series.depths)):
        rates = ", ".join(f"{n / tried[0]:.3f}" for n in right)
        lines.append(LINE.format(
            time=datetime.fromtimestamp(10 * i, UTC), mean=1 + right.sum() / tried[0],
            sum=right.sum(), drafted=2 * tried[0], rates=rates,
        ))  # fmt: skip
    (tmp_path / "log").write_text("".join(lines))
    out, _ = simspec("import", "vllm-log", "log", cwd=tmp_path)
    assert "accepted length, position 1" in out
    assert "fell, since about 01-01 00:0" in out
    (tmp_path / "a").write_text("".join(lines[:20]))
    (tmp_path / "b").write_text("".join(lines[20:]))
    out, _ = simspec("import", "vllm-log", "a", "b", "--json", cwd=tmp_path)
    assert json.loads(out)["moved"]["periods"] == 60
    refused(tmp_path, "import", "vllm-log", "a", "b", "--at", 2, words="2 files were given")


def test_scrapes_in_order_are_periods(tmp_path):
    names = []
    text = (FIXTURES / "vllm-prometheus.txt").read_text()
    for i in range(1, 19):
        names.append(str(i))
        lines = [re.split(r"(?<=\} )", line) for line in text.splitlines()]
        scaled = ["".join(map(str, (*x[:-1], i * float(x[-1])))) for x in lines if len(x) > 1]
        (tmp_path / names[-1]).write_text("\n".join(scaled) + "\n")
    out, _ = simspec("import", "vllm-prometheus", *names, "--json", cwd=tmp_path)
    report = json.loads(out)["moved"]
    assert (report["periods"], report["verdict"][:16]) == (17, "no fall is shown")
    refused(tmp_path, "import", "vllm-prometheus", "2", "1", "3", words="counts more than")
    refused(tmp_path, "import", "vllm-prometheus", "1", "2", words="expected at least 16")
    timings = ("llamacpp-timings", *[FIXTURES / "llamacpp-timings.jsonl"] * 2)
    refused(tmp_path, "import", *timings, words="rounds without a draft")
