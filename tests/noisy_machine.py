"""A simulated timer with known costs: drift, noise, bursts and stolen time of a shared machine."""

import numpy as np

from real.measure.timing import (
    ALONE,
    BLOCK_SECONDS,
    FIXED,
    PLAIN,
    Job,
    Pace,
    Samples,
    TimedRound,
    _beside,
)

PASS = 0.03
"""Seconds of a one-row pass while the machine is fast."""


class NoisyMachine:
    """Passes take their cost times a drifting pace; some are hit by bursts, some by a steal."""

    def __init__(self, rng, noise=0.03, drift=0.3, burst=0.05, steal=0.02):
        self.rng, self.noise, self.burst, self.steal = rng, noise, burst, steal
        self.time = self.stolen = 0.0
        self.phase, self.period, self.drift = rng.uniform(0, 6.28), rng.uniform(3, 30), drift
        self.slow_until = 0.0

    def take(self, cost: float) -> float:
        """Seconds of work that costs so many one-row passes."""
        rng = self.rng
        pace = 1 + self.drift * np.sin(self.phase + 6.28 * self.time / self.period)
        if rng.random() < self.burst * cost * PASS / 0.1:
            self.slow_until = self.time + rng.exponential(0.3)
        pace *= 1.5 if self.time < self.slow_until else 1.0
        seconds = PASS * cost * pace * np.exp(self.noise * rng.standard_normal())
        if rng.random() < self.steal:
            taken = rng.uniform(0.005, 0.03)
            self.stolen += taken
            seconds += taken
        self.time += seconds
        return seconds


def timed_rounds(machine: NoisyMachine, verify, draft, blocks: int) -> tuple[Samples, Samples]:
    """(target's rounds, a drafter's) of so many timing blocks; costs in one-row passes.

    verify[0] is the plain step's; draft[j - 1] that of j tokens.
    """
    pace = Pace(timer=lambda: machine.time, stolen=lambda: machine.stolen)
    target, own = Samples(pace), Samples(pace)
    target_jobs = [Job(PLAIN), *(Job(ALONE, j) for j in range(1, len(verify)))]
    own_jobs = [Job(FIXED, j + 1) for j in range(len(draft))]
    for i in range(blocks):
        samples, jobs = (own, own_jobs) if i % 2 else (target, target_jobs)
        pace.begin()
        passes, made = [_one_row(machine, pace)], []
        begun = machine.time
        while machine.time - begun < 0.9 * BLOCK_SECONDS:
            job = jobs[machine.rng.integers(len(jobs))]
            drafted = machine.take(draft[job.size - 1]) if job.kind == FIXED else 0.0
            passed = machine.take(verify[job.size])
            passes.append(_one_row(machine, pace))
            made.append((job, np.array([drafted, passed, 0.0, 0.0])))
        for place, (job, seconds) in enumerate(made):
            computed = job.size if job.kind == FIXED else 0
            beside = _beside(passes, place)
            timed = TimedRound(False, computed, job.size, 0, seconds, *beside)
            samples.rounds[job].append(timed)
    return target, own


def _one_row(machine: NoisyMachine, pace: Pace) -> tuple[int, float]:
    """As `Pace.pass_one`, on the simulated clock."""
    return pace.note(machine.take(1.0))
