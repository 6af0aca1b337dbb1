"""Timings on a device that works behind the host's back until it is waited for."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from toy_lm import toy_cost, toy_recording

from real.bench import contestants
from real.bench.contestants import loop_contestant
from real.bench.race import Contestant, Request, race
from real.decode import verify as phase_timer
from real.decode.verify import DRAFTING, VERIFICATION, PhaseTimer
from simspec import policies

CUDA = torch.device("cuda")


class Device:
    """Work waits in a queue; the clock advances when somebody waits for it."""

    def __init__(self):
        self.now = self.queue = 0.0

    def work(self, seconds=1.0):
        self.queue += seconds

    def synchronize(self, *_):
        self.now, self.queue = self.now + self.queue, 0.0

    def clock(self):
        return self.now


@pytest.fixture
def device(monkeypatch):
    simulated = Device()
    monkeypatch.setattr(torch.cuda, "synchronize", simulated.synchronize)
    monkeypatch.setattr(phase_timer, "perf_counter", simulated.clock)
    return simulated


def test_a_call_of_a_race_is_timed_to_its_end_and_from_an_idle_device(device):
    def begin():
        device.work(7)

        def generate(request):
            device.work(request.budget)
            return [0] * request.budget, request.budget

        return generate

    requests = [Request([1], 3), Request([1], 4)]
    (runs,) = race([Contestant("plain", begin, False)], requests, 2, 0, "cuda", timer=device.clock)
    assert runs.seconds == [[3, 4]] * 2
    assert runs.first == [1, 1]


def test_phases_are_timed_to_their_end_where_that_is_asked_for(device):
    for exact, seconds in ((True, [3, 2]), (False, [0, 0])):
        clock = PhaseTimer(CUDA, exact)
        clock.begin()
        device.work(3)
        clock.lap(DRAFTING)
        device.work(2)
        clock.lap(VERIFICATION)
        assert clock.rows[0][:2] == seconds


def test_our_loop_races_without_waits_between_phases(monkeypatch):
    trace, target, drafter = toy_recording("model", "greedy", 2)
    asked = []

    def decoded(*_, **options):
        asked.append(options)
        return SimpleNamespace(token=np.zeros(3, np.int32), position=np.zeros(1))

    monkeypatch.setattr(contestants, "decode", decoded)
    pair = SimpleNamespace(target=target)
    policy = policies.parse("fixed:2")
    ours = loop_contestant("model=fixed:2", pair, drafter, policy, trace, toy_cost(), 0)
    assert ours.begin()(Request([5], 3)) == ([0, 0, 0], 1)
    assert asked == [{"exact": False}]
