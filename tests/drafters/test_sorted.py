"""Sorted drafters (S2D): exits, cascades, training, and thresholds as a replay."""

import json
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import (
    END,
    RULES,
    policy_from,
    run_all,
    toy_cost,
    toy_prompts,
    toy_recording,
    toy_sorted,
    toy_target,
)

from real.drafters.sorted import SortedDrafter, sorted_model
from real.model.checkpoint import WeightsError, save_decoder
from real.model.target import Target
from real.record import RecordError, Settings
from real.record.exits import record_exits
from real.record.recorder import record_sequence
from real.rerun import compare, prompts_of, rule_of
from real.sampling import Rule
from simspec import replay
from simspec.trace.exits import ExitDrafts, cascade, read_exits, write_exits
from simspec.trace.quantization import LOG_ODDS

CODES = st.integers(0, 255)
THRESHOLDS = st.tuples(*[st.one_of(st.floats(0, 1), CODES.map(lambda c: LOG_ODDS[c]))] * 2)


@cache
def exits_of(rule):
    trace, target, drafter = toy_recording("sorted", rule)
    return record_exits(drafter, target.decoder, trace, rule_of(trace))


def recorded_at(threshold, rule, part):
    """Those sequences of the toy recording, recorded anew by a drafter with these thresholds."""
    trace, target, _ = toy_recording("sorted", rule)
    kept = Settings(trace.K, 24, RULES[rule], END, tuple(name for name, _ in trace.meta.features))
    drafter, rows, prompts = toy_sorted(0, threshold), [], prompts_of(trace)
    for s in part:
        rows.append(record_sequence(target, drafter, kept, prompts[s], s, stepwise=True))
    return rows


COLUMNS = ("token", "depth", "run", "feature", "rank", "draft_margin", "feature_margin")


def differing(derived, rows, part):
    """Columns of a derived recording that differ from rows recorded anew."""
    cut = derived.select(list(part))
    return [
        name
        for name in COLUMNS
        if not np.array_equal(
            getattr(cut, name), np.concatenate([getattr(row, name) for row in rows])
        )
    ]


@settings(deadline=None, max_examples=8)
@given(THRESHOLDS, st.sampled_from(list(RULES)), st.integers(0, 9))
def test_derived_recording_equals_a_recorded_one(threshold, rule, sequence):
    derived, _ = cascade(toy_recording("sorted", rule)[0], exits_of(rule), threshold)
    assert differing(derived, recorded_at(threshold, rule, [sequence]), [sequence]) == []


def test_its_own_thresholds_give_the_recording_back():
    for rule in RULES:
        trace, _, drafter = toy_recording("sorted", rule)
        derived, exits = cascade(trace, exits_of(rule), drafter.cascade.threshold)
        for f in COLUMNS:
            np.testing.assert_array_equal(getattr(derived, f), getattr(trace, f), f)
        assert set(np.unique(exits)) == {0, 1, 2, 255}


def test_control_other_thresholds_are_another_recording():
    part = range(2)
    derived, _ = cascade(toy_recording("sorted", "greedy")[0], exits_of("greedy"), (0.0, 0.0))
    assert "depth" in COLUMNS
    assert "feature" in differing(derived, recorded_at((1.0, 1.0), "greedy", part), part)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("threshold", [(0.95, 0.5), (1.0, 1.0), (0.0, 0.3)])
def test_runs_equal_replays_at_derived_thresholds(threshold, rule):
    trace, target, drafter = toy_recording("sorted", rule)
    derived, _ = cascade(trace, exits_of(rule), threshold)
    derived = derived.select(range(4))
    for text in ("fixed:4", "confidence:0.6,inclusive=false"):
        policy = policy_from(text, derived, toy_cost())
        results = run_all(target, drafter.with_thresholds(threshold), derived, policy, toy_cost())
        replayed = replay(derived, policy, seed=0, cost=toy_cost())
        assert compare(derived, policy, replayed, results).exact


def test_control_run_at_other_thresholds_differs():
    trace, target, drafter = toy_recording("sorted", "greedy")
    derived, _ = cascade(trace, exits_of("greedy"), (0.0, 0.0))
    policy = policy_from("fixed:4", derived, toy_cost())
    results = run_all(target, drafter.with_thresholds((1.0, 1.0)), derived, policy, toy_cost())
    assert not compare(derived, policy, replay(derived, policy, cost=toy_cost()), results).exact


def test_exits_grow_few_drafts():
    """The nodes behind a miss are those that some thresholds reach, not E^K."""
    trace, drafts = toy_recording("sorted", "greedy")[0], exits_of("greedy")
    assert trace.rows < len(drafts.token) < 30 * trace.rows


def test_drafts_equal_whole_forward_passes():
    """The definition: at each exit the model cut there, without a cache."""
    drafter, prompt = toy_sorted(), toy_prompts(1, 4)[0]
    lm, text = drafter.decoder, list(prompt)
    target = Target(toy_target())
    drafter.begin(target, prompt, target.prefill(prompt[:-1]), lambda logits, *_: logits.argmax())
    for _ in range(5):
        step = drafter.next()
        x, expected = lm.embed(torch.tensor([text])), None
        rotation = lm.rotation(torch.arange(len(text)))
        for exit, (first, last) in enumerate([(0, 1), (1, 2), (2, 3)]):
            x = lm.run(x, range(first, last), rotation)
            expected = lm.logits(x[0, -1])
            sure = LOG_ODDS[np.abs(LOG_ODDS - float(expected.softmax(-1).max())).argmin()]
            if exit == 2 or sure >= drafter.cascade.threshold[exit]:
                break
        torch.testing.assert_close(step.logits, expected, rtol=0, atol=1e-12)
        assert drafter.taken[-1] == exit
        text.append(int(expected.argmax()))


WRONG = [
    ((0.5,), "1 thresholds"),
    ((0.5, 1.5), r"in \[0, 1\]"),
    ((0.5, float("nan")), r"in \[0, 1\]"),
]


@pytest.mark.parametrize("threshold, message", WRONG)
def test_unfit_thresholds_are_refused(threshold, message):
    with pytest.raises(ValueError, match=message):
        toy_sorted().with_thresholds(threshold)
    with pytest.raises(ValueError, match=message):
        cascade(toy_recording("sorted", "greedy")[0], exits_of("greedy"), threshold)


@pytest.mark.parametrize("exits", [(2, 1), (0, 2), (1, 1), (1, 5), (True, 2), 3, (1.0, 2)])
def test_unfit_exits_are_refused(exits):
    with pytest.raises(ValueError, match="expected ascending layers of 1 to 4"):
        sorted_model(toy_target(), exits)


def test_rejection_rule_is_refused():
    trace, target, drafter = toy_recording("sorted", "greedy")
    with pytest.raises(RecordError, match="one recording for each tuple of thresholds") as refused:
        record_exits(drafter, target.decoder, trace, Rule("rejection"))
    assert "\n" not in str(refused.value)


def test_file_of_exits_is_read_back(tmp_path):
    trace, drafts = toy_recording("sorted", "greedy")[0], exits_of("greedy")
    path = tmp_path / "x.exits.parquet"
    write_exits(drafts, trace, path)
    back = read_exits(path, trace)
    assert back.layers == drafts.layers == (1, 2, 3)
    for f in fields(ExitDrafts)[1:]:
        np.testing.assert_array_equal(getattr(back, f.name), getattr(drafts, f.name))
    with pytest.raises(ValueError, match="it belongs to another recording"):
        read_exits(path, trace.select([0, 1]))


def test_damaged_files_of_exits_are_refused(tmp_path):
    trace, drafts = toy_recording("sorted", "greedy")[0], exits_of("greedy")
    path = tmp_path / "x.exits.parquet"
    for name, value in (("child", 0), ("child", len(drafts.token))):
        array = getattr(drafts, name).copy()
        array[-1, 0] = value
        with pytest.raises(ValueError, match="no later node"):
            replace(drafts, **{name: array})
    write_exits(drafts, trace, path)
    whole = path.read_bytes()
    for cut_at in (0, 10, len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:cut_at])
        with pytest.raises(ValueError, match="no exits of this recording") as refused:
            read_exits(path, trace)
        assert "\n" not in str(refused.value)


def test_assembled_rows_are_a_trace():
    """Derived recordings pass every check of a trace's table."""
    trace = toy_recording("sorted", "coupled")[0]
    derived, _ = cascade(trace, exits_of("coupled"), (0.5, 0.9))
    assert derived.validate() is derived


@settings(deadline=None, max_examples=10)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6))
def test_deeper_layers_catch_up_exactly(rounds):
    """Rows that waited for deeper layers are those of a model that passes every row at once."""
    prompt, target = toy_prompts(1, 6)[0], Target(toy_target())
    drafter, fresh, text = toy_sorted(), toy_sorted(), list(toy_prompts(1, 6)[0])
    drafter.begin(target, prompt, None, lambda logits, *_: int(logits.argmax()))
    for drafted, accepted in rounds:
        token = [drafter.next().token for _ in range(drafted)]
        kept = token[: min(accepted, drafted)]
        drafter.rollback(len(kept))
        drafter.catch_up([*kept, 5], None, [])
        text += [*kept, 5]
    fresh.begin(target, text, None, None)
    logits = [each.grow([text[-1]], [-1]) for each in (drafter, fresh)]
    torch.testing.assert_close(*logits, rtol=0, atol=1e-12)
    assert drafter.rows == fresh.rows == [len(text)] * 3
    for name in ("key", "value"):
        a, b = (getattr(each.cache, name)[:, :, :, : len(text)] for each in (drafter, fresh))
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "stored",
    [
        {},
        [],
        {"exits": [2, 3], "thresholds": [0.5]},
        {"exits": [2, 4], "thresholds": []},
        {"exits": [2, 4], "thresholds": [1.5]},
        {"exits": [2, 4], "thresholds": [10**400]},
    ],
)
def test_exits_that_cannot_be_are_refused_in_one_line(tmp_path, stored):
    target = toy_target()
    save_decoder(target, tmp_path, 3, 64)
    (tmp_path / "sorted.json").write_text(json.dumps(stored))
    with pytest.raises(WeightsError, match="holds no exits of a sorted drafter") as caught:
        SortedDrafter.load(tmp_path, target, {})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700
