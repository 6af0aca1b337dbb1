"""Advice on machines whose clocks lie: no setting loses, what cannot be told is not settled."""

import os
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from fake_engine import FakeRunner, prompts

from real.engines import EngineSettings, NgramDraft, advise
from real.engines.adapter import RELEASED
from real.engines.run import run_on_engine
from simspec.cost.gate import PriceError
from simspec.cost.model import CostModel

WORLD, MEMO = prompts(40, budget=32), dict()
TASKS = {request.id: "task" for request, _ in WORLD}
DEPTH = 6
SLOW = os.environ.get("SIMSPEC_SLOW")  # 200 machines, else 8
KINDS = "idle", "noisy", "co-tenant", "one sample"


class Machine:
    """True seconds of passes, and a clock that scatters, drifts, and slows while others run."""

    def __init__(self, seed):
        rng = self.rng = np.random.default_rng(seed)
        self.kind = KINDS[seed % len(KINDS)]
        slope, step = rng.uniform(0.01, 0.45), rng.choice([0.0, 0.15])
        drafted = np.arange(DEPTH + 1)
        self.true = 1 + slope * drafted + step * (drafted > rng.integers(1, DEPTH))
        self.spread = rng.uniform(0.005, 0.03) if self.kind == "idle" else rng.uniform(0.03, 0.25)
        self.drift = 0.0 if self.kind == "idle" else rng.uniform(0.0, 0.006)
        self.burst = rng.uniform(1.2, 3.0), rng.uniform(0.0, 0.5)
        self.pace, self.busy, self.left = 1.0, False, 0

    def seconds(self, drafted, k):
        rng = self.rng
        self.pace = float(np.clip(self.pace + rng.normal(0, self.drift), 0.6, 1.6))
        self.left -= self.kind == "co-tenant"
        if self.left < 0:
            self.busy, self.left = not self.busy, rng.integers(20, 2000)
        slow = self.burst[0] * (1 + self.burst[1] * (drafted > 0)) if self.busy else 1.0
        return self.true[drafted] * self.pace * slow * rng.lognormal(0, self.spread)


def advised(folder, seed):
    """(the machine's kind, what the advice came to, the share that its setting loses)."""
    machine = Machine(seed)
    folder.mkdir()
    plan = advise.AdvicePlan(RELEASED["vllm"], EngineSettings(Path("m")), folder, depth=DEPTH)
    every = [request for request, _ in WORLD]

    def run(settings, requests, steps, path, force):
        options = {"follows": True, "memo": MEMO, "forces": machine.kind != "one sample"}
        runner = FakeRunner(WORLD, seconds=machine.seconds, **options)
        run_on_engine(lambda: runner, settings, requests, steps, path, force)

    chosen, held_out = advise.halves(every, seed)
    texts = advise.write_plain_texts(plan, chosen, run)
    drafts = [NgramDraft(DEPTH, *sizes) for sizes in plan.engine.ngrams[:1]]
    costs = partial(advise.measure_costs, plan, texts=texts, run=run)
    try:
        found, _ = advise.choose(plan, drafts, texts, TASKS, None, costs, lambda line: None)
        if not found.doubts:
            found = advise.confirm(found, texts, held_out, run, None, lambda line: None)
    except PriceError:
        return machine.kind, "refused", 0.0
    if advise.write_setting(found) is None:
        reasons = {
            "not settled": found.doubts, "not confirmed": not found.settled, "do not draft": True
        }  # fmt: skip
        return machine.kind, next(name for name, holds in reasons.items() if holds), 0.0
    cost = CostModel(np.zeros(DEPTH + 1), machine.true, np.zeros(1), 0.0, 1.0)
    (folder / "texts.rows.jsonl").unlink()
    true = advise.all_lengths(
        plan, replace(found.winner, cost=cost), advise.write_plain_texts(plan, every, run), 1, None
    )
    best = max(1.0, *(row.speedup for row in true))
    (own,) = (row.speedup for row in true if row.arm[0] == found.best[0].k)
    return machine.kind, "setting", 1 - own / best


def test_no_setting_loses(tmp_path):
    """And most of the idle machines get an answer."""
    came = [advised(tmp_path / str(seed), seed) for seed in range(200 if SLOW else 8)]
    assert max(loss for _, _, loss in came) <= advise.MOST_LOSS
    counts = Counter((kind, said) for kind, said, _ in came)
    assert {said for _, said in counts} >= {"setting", "not settled"}
    if SLOW:
        answers = counts["idle", "setting"] + counts["idle", "do not draft"]
        assert answers > 25 > counts["co-tenant", "setting"]


def test_control_without_doubts_settings_lose(tmp_path, monkeypatch):
    """Of 200 machines 14 then lose up to 9%; these are three of them."""
    monkeypatch.setattr(advise.Found, "doubts", [])
    monkeypatch.setattr(advise.Found, "settled", True)
    came = [advised(tmp_path / str(seed), seed) for seed in (30, 69, 75)]
    assert {said for _, said, _ in came} == {"setting"}
    assert min(loss for _, _, loss in came) > advise.MOST_LOSS
