"""`simspec trees`: the comparison of chains, sets and trees, and its errors."""

import json
from dataclasses import replace

import numpy as np
import pytest
from shell import command, refused
from tree_strategies import ordered, ranked, tree_seconds

from simspec import CostModel, DeferredPolicy, load_trace, policies, synthetic
from simspec.policies import fixed
from simspec.policies.trees import cape, optimal_tree
from simspec.replay.evaluation import halves
from simspec.replay.replay import replay
from simspec.reports.trees import compare_trees, fit_length, fit_tree
from simspec.trace.recordings import recordings
from simspec.tree.replay import replay_tree
from simspec.tree.search import draft_room
from simspec.tree.tree import MAX_NODES

COST = CostModel(
    [0, 0.1, 0.2, 0.3, 0.4], 1 + 0.02 * np.arange(MAX_NODES + 1), [0, 0.05], 0.01, 1.0, node=0.001
)


def recording(prompts=12, order=True):
    trace = ranked(synthetic.iid(0.6, prompts, 20, 4, seed=3, confidence=True), 1)
    if not order:
        return trace
    trace = ordered(trace, 2, 3)
    # beams of one node beside those that hold
    beam_levels = np.minimum((trace.order < 5).sum(1), draft_room(trace)[1])
    return replace(
        trace, beam=np.stack((beam_levels, np.minimum(beam_levels + 1, 6)), 1).astype(np.uint8)
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trees")
    recording().save(folder / "a.parquet")
    recording(order=False).save(folder / "b.parquet")
    synthetic.iid(0.5, 9, 20, 4).save(folder / "plain.parquet")
    COST.to_json(folder / "cost.json")
    for name, tree in (
        ("good", {"paths": [[0], [1], [0, 0]]}),
        ("cycle", {"parent": [2, 1], "rank": [0, 0]}),
        ("deep", {"parent": [0, 1, 2, 3, 4], "rank": [0] * 5}),
        ("wide", {"parent": [0], "rank": [32]}),
        ("many", {"parent": [0] * 32 + [1] * 32, "rank": [*range(32)] * 2}),
    ):
        (folder / f"{name}.json").write_text(json.dumps(tree))
    return folder


def rows_of(trace, **options):
    lines, notes = compare_trees({"x": trace}, COST, (4, 8), resamples=100, **options)
    return {line.policy: line for line in lines}, notes


def test_row_follows_from_definitions():
    trace = recording()
    rows, notes = rows_of(trace, k=2)
    assert notes == []
    times = [COST.seconds(replay(trace, fixed(k), cost=COST)).sum() for k in range(5)]
    best = rows["best chain"]
    assert best.chosen == f"k={int(np.argmin(times))}, in hindsight"
    assert best.speedup.value == pytest.approx(trace.rows / min(times))
    assert best.gain.value == 0
    rounds = replay_tree(trace, cape(3, 2))
    seconds = tree_seconds(rounds, trace, cape(3, 2), COST)
    line = rows["cape:3"]
    assert line.chosen == "k=2"
    assert line.tau.value == pytest.approx(trace.rows / len(rounds))
    assert line.nodes.value == pytest.approx(rounds.drafted.mean())
    assert line.passes == pytest.approx(rounds.computed.mean())
    assert line.speedup.value == pytest.approx(trace.rows / seconds.sum())
    assert line.gain.value == pytest.approx(line.speedup.value - best.speedup.value)
    for estimate in (line.tau, line.speedup, line.gain):
        assert estimate.low < estimate.value < estimate.high
    assert rows["none"].tau.value == pytest.approx(trace.rows / len(replay(trace, fixed(2))))
    shorter, longer = (trace.rows / len(replay(trace, fixed(k))) for k in (2, 3))
    assert line.depth_gain.value == pytest.approx(line.tau.value - shorter)
    assert line.depth_gain.low > 0
    assert rows["none"].depth_gain.value == 0
    assert line.depth_gain.value != pytest.approx(line.tau.value - longer)  # control
    for policy in ("plain", "best chain", "oracle", "tree_oracle"):
        assert np.isnan(rows[policy].depth_gain.value)
    assert rows["tree_oracle"].clairvoyant
    assert rows["tree_oracle"].speedup.value >= rows["dynamic_tree:8"].speedup.value
    assert {f"{family}:{n}" for family in ("optimal_tree", "dynamic_tree") for n in (4, 8)} <= set(
        rows
    )


def test_settings_are_cross_fitted():
    trace = recording()
    line = rows_of(trace)[0]["optimal_tree:8"]
    even, odd = np.arange(0, 12, 2), np.arange(1, 12, 2)
    rounds = tokens = chains = 0
    for fit, rest in ((even, odd), (odd, even)):
        policy = optimal_tree(8, fit=fit)(trace, COST)
        part = trace.select(rest)
        chains += len(replay(part, fixed(policy.tree.levels)))
        rounds, tokens = rounds + len(replay_tree(part, policy)), tokens + part.rows
    assert tokens == trace.rows
    assert line.tau.value == pytest.approx(tokens / rounds)
    assert line.depth_gain.value == pytest.approx(tokens / rounds - tokens / chains)
    lengths = np.stack([
        [len(replay_tree(trace, cape(1, k)).select([s])) for s in range(12)] for k in range(1, 5)
    ])  # fmt: skip
    seconds = np.empty((4, 12))
    for k in range(1, 5):
        rounds_of_k = replay_tree(trace, cape(1, k))
        seconds[k - 1] = np.add.reduceat(
            tree_seconds(rounds_of_k, trace, cape(1, k), COST), rounds_of_k.offset[:-1]
        )
    chosen = [int(seconds[:, half].sum(axis=1).argmin()) for half in (even, odd)]
    line = rows_of(trace)[0]["cape:1"]
    assert line.tau.value == pytest.approx(
        trace.rows / (lengths[chosen[0], odd].sum() + lengths[chosen[1], even].sum())
    )
    assert line.chosen == " / ".join(dict.fromkeys(f"k={k + 1}" for k in chosen))


def test_unservable_policies_are_left_out_with_a_note():
    rows, notes = rows_of(recording(order=False))
    dynamic = (
        "x: without dynamic_tree:4, dynamic_tree:8: "
        "this trace records no order of dynamic trees: record it with one"
    )
    assert "dynamic_tree:4" not in rows
    assert notes == [
        "x: without dynamic_tree:beams: this trace records no beam search: record it with one",
        dynamic,
    ]
    rows, notes = rows_of(synthetic.iid(0.5, 9, 20, 4))
    assert set(rows) == {"plain", "best chain", "oracle"}
    assert "without none, cape:1" in notes[0]
    lines, notes = compare_trees(
        {"x": recording(4)},
        CostModel([0, 0.1, 0.2, 0.3, 0.4], [1, 1.1, 1.2, 1.3, 1.4], [0], 0, 1),
        (8,),
        resamples=100,
    )
    assert "prices 4 submitted tokens, more are extrapolated" in notes[0]
    assert all(np.isnan(line.tau.low) and line.tau.value > 0 for line in lines)
    assert len(compare_trees({"x": recording(1)}, COST, (4,))[0]) > 10


def test_further_policies_are_compared():
    late = DeferredPolicy("late", lambda trace, cost: policies.parse("static:2x1"))
    rows, _ = rows_of(recording(), policies=["static:2x1", "fixed:2", late])
    assert rows["late"].tau == rows["static:2x1"].tau
    assert rows["fixed:2"].nodes.value <= 2


def test_sweep_refuses_the_same_trees(files):
    for name, words in (
        ("cycle", "expected an earlier row"),
        ("deep", "too deep"),
        ("wide", "too wide"),
        ("many", "over budget"),
    ):
        refused(
            files, "sweep", files / "a.parquet", "--policy", f"static:{files / name}.json",
            words=words
        )  # fmt: skip
    refused(
        files, "sweep", files / "a.parquet", "--policy", "static:4x4", "--cost", _short(files),
        words="measure with more rows"
    )  # fmt: skip
    code, out, _ = command(
        files, "sweep", files / "a.parquet", "--policy", "tree_oracle", "--policy",
        "static:good.json", "--json", "--cost", 0.1
    )  # fmt: skip
    assert code == 0
    assert len(json.loads(out)["rows"]) == 2


def _short(files):
    replace(COST, verify=COST.verify[:9]).to_json(files / "short.json")
    return files / "short.json"


def test_tree_beyond_the_priced_nodes_is_left_out_with_a_note():
    path = recordings()["tiny-early_exit-greedy"]
    trace = load_trace(path).select(range(16))
    cost = CostModel.from_json(path.with_suffix(".cost.json"))
    cost = replace(cost, verify=cost.verify[:33], precision=None)
    rows, notes = compare_trees({"x": trace}, cost, (8,), resamples=100)
    assert "dynamic_tree:beams" not in {row.policy for row in rows}
    assert "dynamic_tree:8" in {row.policy for row in rows}
    assert "x: without dynamic_tree:beams: cost 'early_exit-greedy' prices 32 nodes" in notes[-1]


FLAT = CostModel.from_ratio(0.3, 4, 8)


def alternating():
    """Prompts 0, 2, ... accept every draft, prompts 1, 3, ... none."""
    trace = synthetic.iid(1.0, 8, 20, 4)
    sequence = np.repeat(np.arange(8), 20)
    meta = replace(trace.meta, ids=tuple(map(str, range(8))))
    return replace(trace, run=np.where(sequence % 2, 0, trace.run).astype(np.uint8), meta=meta)


def test_lengths_and_policies_are_fitted_on_the_half_that_does_not_judge_them():
    """The policy drafts four tokens where it is fitted on prompt 0, else one."""
    trace = alternating()

    def policy_of(sequences):
        k = 4 if 0 in sequences else 1
        return DeferredPolicy(f"fitted:{k}", lambda trace, cost: fixed(k))

    of_length, chosen, _ = fit_length(trace, FLAT, None, fixed)
    assert chosen == "k=4 / k=1"
    shortest, longest = (fit_length(trace, FLAT, k, fixed)[0] for k in (1, 4))
    assert shortest.tolist() != longest.tolist()
    for figures in (of_length, fit_tree(trace, FLAT, policy_of)[0]):
        assert figures[1::2].tolist() == longest[1::2].tolist()
        assert figures[::2].tolist() == shortest[::2].tolist()


@pytest.mark.parametrize("sequences", [2, 5])
def test_halves_are_disjoint_and_cover_all(sequences):
    for fit, rest in halves(synthetic.iid(0.5, sequences, 4, 2)):
        assert sorted([*fit, *rest]) == list(range(sequences))
