"""The router's table: each task has the lengths that its own prompts choose."""

import json
from dataclasses import replace

import numpy as np
import pytest
from export_requests import SETTINGS

from simspec import CostModel, replay, synthetic
from simspec.engines import router
from simspec.engines.choice import Evidence, best_length, choose
from simspec.engines.formats import read_import
from simspec.engines.request import Request
from simspec.engines.source import ImportOptions
from simspec.policies.fixed import fixed

PRICES = {1: CostModel.from_ratio(0.1, 6), 32: CostModel.from_ratio(0.9, 6)}
ALPHA = {"code": (0.9, 9), "chat": (0.3, 8), "rare": (0.7, 3)}
"""{task: (acceptance, prompts)}"""


def recordings():
    """One recording a task, of one target and drafter."""
    made = {}
    for seed, (task, (alpha, prompts)) in enumerate(ALPHA.items()):
        trace = synthetic.iid(alpha, prompts, 60, 6, seed=seed)
        meta = replace(trace.meta, tasks=(task,) * prompts, drafter="model", target="t")
        made[task] = replace(trace, meta=meta)
    return made


def asked(traces, prices=PRICES, policy=None):
    costs = dict.fromkeys(traces, tuple(prices.values()))
    held = Evidence(traces, tuple(prices), costs)
    return Request(held, choose(held, policy), SETTINGS)


def best(trace, cost):
    """The best length by replays alone."""
    return best_length([cost.seconds(replay(trace, fixed(k))).sum() for k in range(7)])


def test_each_task_has_the_lengths_of_its_own_prompts():
    traces = recordings()
    lengths = router.read(router.export(asked(traces)))
    assert set(lengths) == {"", "code", "chat"}  # three prompts take the default
    for task in ("code", "chat"):
        twin = {batch: best(traces[task], cost) for batch, cost in PRICES.items()}
        assert lengths[task] == twin
    assert lengths["code"][1] > lengths["chat"][1]
    assert lengths["chat"][32] == 0  # plain decoding is a row like others


def test_tasks_of_one_recording_are_told_apart():
    """One file of two tasks gives what two files give."""
    trace = synthetic.iid(0.5, 16, 60, 6, seed=5)
    tasks = ("code", "chat") * 8
    mixed = replace(trace, meta=replace(trace.meta, tasks=tasks))
    alone = {
        task: mixed.select(np.flatnonzero(np.array(tasks) == task)) for task in ("code", "chat")
    }
    assert router.read(router.export(asked({"m": mixed}))) == router.read(
        router.export(asked(alone))
    )


def test_figures_are_those_of_the_choice():
    traces = recordings()
    document = json.loads(router.export(asked(traces)))
    held = Evidence({"code": traces["code"]}, tuple(PRICES), {"code": tuple(PRICES.values())})
    gains = choose(held).gains
    steps = document["tasks"]["code"]["steps"]
    assert [step["speedup"] for step in steps] == [round(gain.value, 4) for gain in gains]
    assert [step["low"] for step in steps] == [round(gain.low, 4) for gain in gains]
    assert document["tasks"]["code"]["prompts"] == 9


def test_given_length_is_every_tasks():
    lengths = router.read(router.export(asked(recordings(), policy="fixed:2")))
    assert set(map(tuple, (of.values() for of in lengths.values()))) == {(2, 2)}


def test_nothing_to_export_is_refused():
    with pytest.raises(ValueError, match="no fixed draft length"):
        router.export(asked(recordings(), policy="beta_ts"))
    dear = {1: CostModel.from_ratio(5.0, 6)}
    with pytest.raises(ValueError, match="plain decoding is the fastest"):
        router.export(asked(recordings(), dear))


def test_import_reads_one_task_or_the_default(tmp_path):
    path = tmp_path / "router.json"
    path.write_text(router.export(asked(recordings())))
    lengths = router.read(path.read_text())
    for task, wanted in (("code", "code"), ("", ""), ("unknown", "")):
        found = read_import("router", path, ImportOptions(task=task))
        assert [tier.lengths for tier in found.tiers] == [(k,) for k in lengths[wanted].values()]
        assert [(tier.first, tier.last) for tier in found.tiers] == [(1, 1), (2, None)]
    assert "also holds chat, code" in found.notes[0]
