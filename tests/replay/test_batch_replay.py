"""Batch policies: the loop and vLLM's rule against slow twins, budgets by hand, and laws."""

from dataclasses import replace

import naive_batch
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import traces
from token_cost import TokenCost

from simspec import CostModel, PolicyError, TraceError, replay, synthetic
from simspec.policies import BATCH_KINDS, parse, parse_batch
from simspec.policy.batch import BatchPolicy, BatchRule
from simspec.replay import batches as loop
from simspec.replay import metrics
from simspec.replay.batches import StepPrices, batch_replay, policy_steps, step_seconds
from simspec.trace.quantization import LOG_ODDS

COST = TokenCost(8.0, 0.25, kv=0.01, draft=0.5, draft_row=0.01, overhead=1.0).cost(6, 3.0)
EXAMPLES = [text for kind in BATCH_KINDS.values() for text in kind.examples]


def as_texts(trace):
    """What the twin reads: [(budget, [(depth, run, [confidence])])]."""
    column = trace.features(("confidence",))[0]
    shown = LOG_ODDS[trace.feature[:, :, column]].tolist()
    rows = list(zip(trace.depth.tolist(), trace.run.tolist(), shown))
    return [
        (int(budget), rows[first:last])
        for budget, first, last in zip(trace.budget, trace.offset, trace.offset[1:])
    ]


def listed(run):
    """[plays][(row within the sequence, computed, drafted, accepted)]."""
    offset = np.concatenate(([0], np.cumsum(np.diff(run.start))))
    columns = run.rounds.row, run.rounds.computed, run.rounds.drafted, run.rounds.accepted
    rounds = list(zip(*(column.tolist() for column in columns)))
    ends = run.rounds.offset
    return [
        [(row - int(start), *rest) for row, *rest in rounds[first:last]]
        for start, first, last in zip(offset, ends, ends[1:])
    ]


class Started:
    """A run with the first rows of its plays."""

    def __init__(self, trace, run):
        self.rounds, self.sequence, self.steps = run.rounds, run.sequence, run.steps
        self.start = np.concatenate(([0], np.cumsum(np.diff(trace.offset)[run.sequence])))


def both(trace, batch, text, **options):
    """(our run, the twin's rounds, plays and steps, the twin) of vLLM's rule."""
    policy = parse_batch(text)
    run = batch_replay(trace, policy, COST, batch)
    K = policy.longest(min(trace.K, COST.K))
    table = step_seconds(trace, StepPrices(COST, batch, None, policy.reads), K)
    twin = naive_batch.Adaptive(
        K, lambda R, x: table.draft[K, R] + max(table.verify[R + x], 1e-9), **options
    )
    return run, *naive_batch.batch_rounds(as_texts(trace), K, batch, twin.choose), twin


RULE = st.fixed_dictionaries(
    {
        "lag": st.integers(0, 3), "interval": st.sampled_from((1, 2, 5, 100)),
        "damping": st.sampled_from((0.01, 50.0)), "ridge": st.sampled_from((0.001, 0.5)),
    }
)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(traces(max_rows=14), st.integers(1, 5), RULE)
def test_rounds_and_steps_equal_the_slow_twin(trace, batch, options):
    text = "adaptive_verification:" + ",".join(f"{key}={value}" for key, value in options.items())
    run, rounds, sequence, steps, _ = both(trace, batch, text, **options)
    assert run.sequence.tolist() == sequence[: len(run.sequence)]
    assert listed(Started(trace, run)) == [play for play in rounds if play][: len(run.sequence)]
    prompts = np.diff(trace.prompt_offset)
    assert run.steps.load.active.tolist() == [len(step) for step in steps]
    assert run.steps.load.computed.tolist() == [sum(c for *_, c, _ in step) for step in steps]
    assert run.steps.load.drafted.tolist() == [sum(d for *_, d in step) for step in steps]
    cached = [sum(prompts[s] + row for s, row, *_ in step) for step in steps]
    assert run.steps.load.cached.tolist() == cached
    chosen = trace.select(run.sequence)
    figures = metrics.summary(run.rounds, chosen, COST)  # refuses rounds of another trace
    assert figures.tokens == chosen.rows


def many(seed=3, K=4, sequences=9):
    return synthetic.iid(0.7, sequences, 40, K, seed=seed, confidence=True)


@pytest.mark.parametrize("change", ["lag=2", "lag=0", "ridge=50.0", "interval=7", "damping=5.0"])
def test_control_another_rule_makes_other_rounds(change):
    trace, name = many(), "adaptive_verification:interval=5"
    told = {"interval": 5}
    run, rounds, *_ = both(trace, 4, name, **told)
    assert listed(Started(trace, run)) == rounds[: len(run.sequence)]
    key, value = change.split("=")
    other, twin, *_ = both(trace, 4, f"adaptive_verification:{change}", **told)
    assert listed(Started(trace, other)) != twin[: len(other.sequence)]


@settings(deadline=None, max_examples=25)
@given(traces(), st.integers(1, 5), st.integers(0, 4))
def test_one_length_for_all_is_the_lock_step_of_that_length(trace, batch, K):
    K = min(K, trace.K)
    rounds = replay(trace, parse(f"fixed:{K}"))
    steps = policy_steps(trace, rounds, COST, batch)
    run = batch_replay(trace, BatchPolicy("all", BatchRule, K), COST, batch)
    assert run.steps.seconds.tolist() == steps.seconds.tolist()
    np.testing.assert_allclose(run.steps.share, steps.share)
    assert run.rounds == rounds.select(run.sequence, trace)


@pytest.mark.parametrize("text", EXAMPLES)
def test_names_read_back_and_every_policy_runs_compiled_or_not(text):
    policy = parse_batch(text)
    again = parse_batch(policy.name)
    assert (again.name, again.K, again.reads) == (policy.name, policy.K, policy.reads)
    trace = many()
    run = batch_replay(trace, policy, COST, 3)
    assert (np.bincount(run.sequence) == 3).all()
    assert (run.rounds.accepted <= run.rounds.drafted).all()
    with pytest.raises(PolicyError, match="simspec sweep --report batch --policy"):
        parse(text)


def test_shares_sum_to_the_steps_that_count():
    trace = many(sequences=6)
    run = batch_replay(trace, parse_batch("adaptive_verification"), COST, 3)
    assert run.steps.share.sum() <= run.steps.seconds.sum()
    assert run.steps.share.sum() > 0.9 * run.steps.seconds.sum()
    run = batch_replay(trace, parse_batch("adaptive_verification"), COST, 1)
    assert run.steps.share.sum() == pytest.approx(run.steps.seconds.sum())


@pytest.mark.parametrize(
    "text, words",
    [
        ("adaptive_verification:lag=-1", "lag is -1"),
        ("adaptive_verification:ridge=0", "ridge is 0"),
        ("adaptive_verification:overhead=2", "overhead is 2"),
        ("adaptive_verification:depth=2", "unexpected keyword"),
        ("adaptive_verification:k=9", "here recording and costs reach 4"),
    ],
)
def test_wrong_policies_are_one_line(text, words):
    with pytest.raises(PolicyError, match=words):
        batch_replay(many(), parse_batch(text), COST, 2)


class _Greedy(BatchRule):
    def submit(self, step):
        return step.computed + 1


def test_what_cannot_run_is_one_line(monkeypatch):
    trace, adaptive = many(), parse_batch("adaptive_verification")
    with pytest.raises(PolicyError, match="submits other tokens than it drafted"):
        batch_replay(trace, BatchPolicy("greedy", _Greedy), COST, 2)
    with pytest.raises(ValueError, match="batch is 0"):
        batch_replay(trace, adaptive, COST, 0)
    with pytest.raises(TraceError, match="'confidence' is not in this trace"):
        batch_replay(synthetic.iid(0.5, 2, 9, 2), adaptive, COST, 2)
    with pytest.raises(PolicyError, match="reach 3"):
        batch_replay(trace, BatchPolicy("four", BatchRule, 4), CostModel.from_ratio(0.1, 3), 2)
    monkeypatch.setattr(loop, "MOST_ROUNDS", 100)
    with pytest.raises(ValueError, match="take a smaller batch"):
        batch_replay(trace, adaptive, COST, 2)
    monkeypatch.undo()
    ratio = np.full((trace.rows, trace.K), 0.5, np.float32)
    drawn = replace(
        trace, run=np.zeros_like(trace.run), rank=None, ratio=ratio,
        meta=replace(trace.meta, rule="rejection", temperature=1.0),
    )  # fmt: skip
    with pytest.raises(PolicyError, match="in distribution only"):
        batch_replay(drawn, adaptive, COST, 2)
    three = BatchPolicy("three", BatchRule, 3)
    runs = [batch_replay(drawn, three, COST, 2, seed=s) for s in (1, 2)]
    assert runs[0].rounds != runs[1].rounds
