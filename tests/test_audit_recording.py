"""Audits of runs against a recording: equality, excused flips, and recordings that do not fit."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from emitter import SAMPLED, decoded, tampered
from toy_lm import POLICIES, VOCAB, policy_from, run_all, toy_cost, toy_recording

from real.audit.auditor import audit
from real.audit.result import compare_with_recording
from real.audit.runs import RunError, emitted_sequences, recorded_run
from simspec.trace.quantization import decode_margin, encode_margin

SEQUENCES, FEW = 4, 2  # a comparison is of each alone; tests/test_equality.py runs policies on more


@lru_cache
def recorded(rule="greedy", policy="beta_ts", sequences=SEQUENCES):
    trace, target, drafter = toy_recording("model", rule, sequences)
    cost = toy_cost()
    sequences = emitted_sequences(
        trace, run_all(target, drafter, trace, policy_from(policy, trace, cost), cost)
    )
    return trace, target, replace(recorded_run(trace), sequences=sequences)


@pytest.mark.parametrize(
    "rule, policy",
    [*(("greedy", p) for p in POLICIES), ("coupled", "fixed:3"), ("coupled", "confidence:0.5")],
)
def test_runs_of_every_policy_equal_the_recording(rule, policy):
    trace, target, run = recorded(rule, policy, FEW)
    result = compare_with_recording(run, trace, 1e-9)
    assert (result.sequences, result.equal, result.missing, result.failures) == (
        trace.sequences,
        trace.sequences,
        0,
        (),
    )
    assert result.rounds == sum(len(t.rounds) for t in run.sequences)


@pytest.mark.parametrize("margin, kind", [(1e-6, "target_flips"), (1.0, "failures")])
def test_target_flip_is_excused_by_its_recorded_margin(margin, kind):
    trace, target, run = recorded()
    codes = trace.margin.copy()
    codes[trace.offset[1] + 2] = encode_margin(np.array([margin]))[0]
    trace = replace(trace, margin=codes)
    token = run.sequences[1].token
    other = tampered(run, 1, 2, next(v for v in range(4, VOCAB) if v != token[2]))
    result = compare_with_recording(other, trace, 1e-4)
    (mismatch,) = getattr(result, kind)
    assert (mismatch.index, mismatch.position, mismatch.round) == (1, 2, None)
    assert mismatch.margin == pytest.approx(margin, rel=0.1)
    assert len(result.target_flips) + len(result.failures) == 1
    assert result.equal == result.sequences - 1
    assert not audit(target, other, trace).clean


@pytest.mark.parametrize("margin, kind", [(1e-6, "draft_flips"), (1.0, "failures")])
def test_draft_flip_is_excused_by_its_recorded_margin(margin, kind):
    trace, target, run = recorded(policy="fixed:3")
    s, n, (position, _, drafted, accepted) = next(
        (s, n, r)
        for s, t in enumerate(run.sequences)
        for n, r in enumerate(t.rounds)
        if r[3] == r[2] > 1
    )
    row = int(trace.offset[s]) + position
    codes, runs = np.full_like(trace.draft_margin, 255), trace.run.copy()
    codes[row, 1], runs[row] = encode_margin(np.array([margin]))[0], 1
    trace = replace(
        trace, rank=None, run=runs, draft_margin=codes, meta=replace(trace.meta, prefix_only=False)
    )
    result = compare_with_recording(run, trace, 1e-4)
    (mismatch,) = getattr(result, kind)
    assert (mismatch.index, mismatch.position, mismatch.round) == (s, position, n)
    assert len(result.draft_flips) + len(result.failures) == 1
    assert not result.target_flips
    assert not audit(target, run, trace).clean  # float64 excuses no margin this large
    single = replace(run, header=replace(run.header, dtype="float32"))
    assert audit(target, single, trace).clean == (kind == "draft_flips")


def test_incomparable_recording_is_refused():
    trace, target, run = recorded()
    other = toy_recording("model", "coupled", SEQUENCES)[0]
    for recording, words in (
        (other, "expected the same rule"),
        (replace(trace, margin=None), "holds no margins"),
        (replace(trace, meta=replace(trace.meta, target="else")), "made with target else"),
        (replace(trace, prompt=(trace.prompt + 1) % VOCAB), "holds none of the run's prompts"),
    ):
        with pytest.raises(RunError, match=words):
            audit(target, run, recording)
    with pytest.raises(RunError, match="cannot equal a recording"):
        audit(target, decoded(SAMPLED), trace)
    part = compare_with_recording(run, trace.select([0, 3]), 1e-9)
    assert (part.sequences, part.missing) == (2, trace.sequences - 2)
    assert (
        compare_with_recording(
            replace(run, header=replace(run.header, drafter="other")), trace, 1e-9
        ).rounds
        == 0
    )


def test_a_round_deeper_than_the_recorded_depth_is_a_difference():
    """Both accept the same tokens; the recording says that the drafter had one token to offer."""
    trace, _, run = recorded(policy="fixed:3")
    s, n, (position, computed, _, accepted) = next(
        (s, n, r)
        for s, t in enumerate(run.sequences)
        for n, r in enumerate(t.rounds)
        if r[3] <= 1 < r[1]
    )
    depth = trace.depth.copy()
    depth[int(trace.offset[s]) + position] = max(accepted, 1)
    shallow = replace(trace, depth=depth, meta=replace(trace.meta, prefix_only=False))
    result = compare_with_recording(run, shallow, 1e-9)
    assert [(m.index, m.round) for m in result.failures] == [(s, n)]


def test_a_margin_of_the_tolerance_itself_is_not_excused():
    """Codes are rounded up, so a margin that reads as 1e-4 may have been smaller, or not."""
    trace, _, run = recorded()
    edge = float(decode_margin(encode_margin(np.array([1e-4])))[0])
    margin = np.full_like(trace.margin, encode_margin(np.array([edge]))[0])
    token = run.sequences[1].token
    other = tampered(run, 1, 2, next(v for v in range(4, VOCAB) if v != token[2]))
    for nats, excused in ((edge, False), (np.nextafter(edge, 1), True)):
        result = compare_with_recording(other, replace(trace, margin=margin), nats)
        assert [m.excused for m in (*result.target_flips, *result.failures)] == [excused]
    s, n, (position, *_) = next(
        (s, n, r)
        for s, t in enumerate(run.sequences)
        for n, r in enumerate(t.rounds)
        if r[3] == r[2] > 0
    )
    row = int(trace.offset[s]) + position
    runs, codes = trace.run.copy(), np.full_like(trace.draft_margin, margin[0])
    runs[row] = 0
    wrong = replace(
        trace, rank=None, run=runs, draft_margin=codes, meta=replace(trace.meta, prefix_only=False)
    )
    for nats, excused in ((edge, False), (np.nextafter(edge, 1), True)):
        result = compare_with_recording(run, wrong, nats)
        found = [m for m in (*result.draft_flips, *result.failures) if m.round == n]
        assert [m.excused for m in found if m.index == s] == [excused]
