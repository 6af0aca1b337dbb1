"""Beams: replays of recorded trees equal the beam search of the decode loop."""

from dataclasses import replace

import numpy as np
import pytest
from toy_lm import END, RULES, recorded, toy_pair

from real.decode.loop import decode
from real.decode.plans import BeamSearch
from real.record import Settings
from real.rerun import compare, prompts_of, rounds_of, rule_of
from simspec import TraceError, load_trace
from simspec.policies import BUILTIN
from simspec.policies.trees import dynamic_tree
from simspec.tree.replay import outcomes, replay_tree


def recording(name, rule, tree=(3, 4), K=5, budget=16):
    target, drafter = toy_pair(name)
    trace = recorded(target, drafter, Settings(K, budget, RULES[rule], END, (), tree), 6)
    return trace.select([s for s, p in enumerate(prompts_of(trace)) if len(p) > 1]), target, drafter


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
@pytest.mark.parametrize("name", ["model", "early_exit", "eagle", "medusa"])
def test_replayed_beams_equal_the_engine(name, rule, tmp_path):
    trace, target, drafter = recording(name, rule, (3, 4))
    rule_, prompts = rule_of(trace), prompts_of(trace)
    ran = [
        decode(
            target, drafter, BeamSearch(3, 4), rule_, p, int(trace.budget[s]), END,
            int(trace.sequence[s])
        )
        for s, p in enumerate(prompts)
    ]  # fmt: skip
    replayed = replay_tree(trace, dynamic_tree("beams"))
    assert rounds_of(trace, ran) == replayed
    assert compare(trace, dynamic_tree("beams"), replayed, ran).exact
    assert (replayed.drafted <= 12).all()
    assert replayed.accepted.max() >= 2
    assert (replayed.computed <= 4).all()
    trace.save(tmp_path / "t.parquet")
    whole, cuts = outcomes(trace, dynamic_tree("beams")).accepted, trace.offset
    part = np.concatenate([whole[cuts[s] : cuts[s + 1]] for s in (2, 0)])
    assert load_trace(tmp_path / "t.parquet") == trace
    assert np.array_equal(outcomes(trace.select([2, 0]), dynamic_tree("beams")).accepted, part)
    fewer = np.where(np.arange(2) == 0, np.maximum(trace.beam, 1) - 1, trace.beam)
    wrong = replace(trace, beam=fewer.astype(np.uint8))  # the control: one node fewer
    assert rounds_of(trace, ran) != replay_tree(wrong, dynamic_tree("beams"))


def test_beam_is_no_deeper_than_its_recorded_tree():
    trace, _, _ = recording("model", "greedy")
    places = (trace.order != 255).sum(1)
    assert (trace.beam[:, 0] <= places).all()
    assert (trace.beam[:, 1] <= 12).all()


def test_missing_columns_are_named():
    trace, _, _ = recording("model", "greedy")
    with pytest.raises(TraceError, match="records no beam search"):
        replay_tree(replace(trace, beam=None), dynamic_tree("beams"))
    for column, words in (
        (np.array([5, 6]), "beam, row 0"),
        (np.array([2, 13]), "beam, row 0"),
        (np.array([2, 1]), "beam, row 0"),
    ):
        beam = trace.beam.copy()
        beam[0] = column
        with pytest.raises(TraceError, match=words):
            replace(trace, beam=beam)
    with pytest.raises(TraceError, match="without order"):
        replace(trace, order=None, meta=replace(trace.meta, tree=()))
    assert "dynamic_tree" not in BUILTIN
