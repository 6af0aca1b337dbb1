"""simspec paper: figures of the tables against their definitions, and the command."""

import json

import numpy as np
import pytest
from documents import ROOT, stale_tables
from numba.core import config
from shell import simspec

from simspec import CostModel, replay
from simspec.output.table import json_data
from simspec.papers.card import Card, find_cards
from simspec.papers.catalogue import TABLES
from simspec.papers.claim import Inputs
from simspec.papers.eesd import phases
from simspec.papers.recorded import (
    MEASURED,
    PRICES,
    ExitForm,
    Recordings,
    exit_cost,
    layer_and_head,
)
from simspec.papers.s2d import SortedRecording, alone, cascades
from simspec.papers.table import Figure, at, hm, learned, speedup, tasks_of
from simspec.policies.calibrated import cali_ts
from simspec.policies.fixed import fixed
from simspec.policies.thompson import beta_ts
from simspec.policies.trees import dynamic_tree
from simspec.replay.lock_step import BatchRules
from simspec.reports.batches import BatchPlan, batch_rows
from simspec.reports.cascades import compare_thresholds
from simspec.tree.replay import replay_tree

EARLY_EXIT = "tiny-early_exit-coupled"
TRACES = ROOT / "traces"
MEASURED_LISTS = {"draft": np.array([0, 0.3, 0.6, 0.9]), "verify": np.array([1.0, 1.2, 1.4, 1.6])}


@pytest.fixture(scope="module")
def few():
    """Twelve prompts of each bundled recording, one draw."""
    return Inputs(Recordings(TRACES, 12), find_cards(ROOT), 0, 1)


def exit_costs():
    return CostModel(
        MEASURED_LISTS["draft"], MEASURED_LISTS["verify"], np.zeros(1), 0.01, 1.0, "exit"
    )


def test_an_exit_of_all_layers_costs_a_plain_step():
    cost = exit_costs()
    layer, head = layer_and_head(cost, ExitForm(1, 1), 10)
    assert 10 * layer + head == pytest.approx(cost.baseline)
    assert 2 * layer + head == pytest.approx(0.3)
    whole = exit_cost(cost, ExitForm(1, 1), ExitForm(10, 0), 10)
    assert whole.draft == pytest.approx(np.arange(4.0))
    assert whole.verify == pytest.approx(np.ones(4))  # all rows have been passed


def test_the_measured_exit_keeps_its_costs():
    cost = exit_costs()
    same = exit_cost(cost, ExitForm(2, 1), ExitForm(2, 1), 10)
    assert same.draft == pytest.approx(cost.draft)
    assert same.verify == pytest.approx(cost.verify)


def test_steps_without_a_head_are_shared_out_to_layers():
    layer, head = layer_and_head(CostModel.from_ratio(0.1, 5), ExitForm(1, 1), 10)
    assert (layer, head) == (pytest.approx(0.05), pytest.approx(0.0))


def toy_sorted_recording(cost, layer, head):
    """A sorted drafter's recording and exits from the toy models."""
    torch = pytest.importorskip("torch")
    from toy_lm import toy_recording

    from real.record.exits import record_exits
    from real.rerun import rule_of

    assert torch
    trace, target, drafter = toy_recording("sorted", "coupled")
    drafts = record_exits(drafter, target.decoder, trace, rule_of(trace))
    return SortedRecording(trace, drafts, cost, layer, head)


@pytest.mark.parametrize("ratio", [0.05, 0.15])
def test_a_cascade_costs_what_the_command_says(ratio):
    """At a ratio layers cost c / L and heads nothing: `simspec cascade`."""
    own = toy_sorted_recording(CostModel.from_ratio(0.0, 6), ratio / 3, 0.0)
    thresholds = [*(alone(3, e) for e in range(3)), *cascades(3)]
    rows = compare_thresholds(own.trace, own.drafts, thresholds, "fixed:4", (ratio,))
    for values, row in zip(thresholds, rows):
        seconds, rounds = own.run(values, 4)
        assert own.trace.rows / seconds.sum() == pytest.approx(row.speedups[f"{ratio:g}"])
        assert own.trace.rows / rounds.sum() == pytest.approx(row.committed)


def test_the_last_exit_alone_is_that_of_the_cascade():
    own = toy_sorted_recording(exit_costs().extend(6), 0.05, 0.2)
    from simspec.trace.exits import cascade

    derived, _ = cascade(own.trace, own.drafts, alone(3, 2))
    single, cascaded = own.last_exit(derived), own.all_lengths([alone(3, 2)])
    for ours, theirs in zip(single, cascaded):
        assert ours == pytest.approx(theirs)
    # the control: an exit that is tried on the way costs a head
    assert own.run((0.5, 0.5), 3)[0].sum() != own.run(alone(3, 0), 3)[0].sum()


@pytest.mark.parametrize("policy", [fixed(4), cali_ts(predictor="theta", K=10)])
def test_phases_sum_to_the_replayed_seconds(few, policy):
    (recorded,) = (r for r in few.recordings.of("early_exit") if r.name == EARLY_EXIT)
    parts = phases(recorded, policy, few)
    assert sum(parts) == pytest.approx(recorded.seconds(policy, MEASURED, 0, 1).sum())
    assert (parts[2] > 0) == bool(policy.reads)
    assert min(parts) >= 0


def test_hm_and_speedup_are_their_definitions(few):
    (recorded,) = (r for r in few.recordings.of("model") if r.name == "tiny-model-coupled")
    flat = at(recorded, PRICES[2])
    rounds = replay(recorded.trace, fixed(3))
    accepted, drafted = rounds.accepted.sum(), rounds.computed.sum()
    v, r = accepted / drafted, accepted / recorded.trace.rows
    everyone = tasks_of(recorded)
    assert hm(recorded, fixed(3), few, everyone) == pytest.approx(100 * 2 * v * r / (v + r))
    found = speedup(flat, flat.seconds(fixed(3), MEASURED), few, everyone)
    expected = recorded.trace.rows / (len(rounds) + 0.1 * drafted)
    assert found.estimate.value == pytest.approx(expected)


def test_tasks_are_the_prompts_of_these_names(few):
    recorded = few.recordings.of("model")[-1]
    math = tasks_of(recorded, ("math",))
    assert 0 < math.sum() < recorded.trace.sequences
    assert tasks_of(recorded).all()
    assert not tasks_of(recorded, ("none",)).any()


def figures(table):
    """{(cells of the name columns, heading): Figure}."""
    return {
        (*(str(cell) for cell in row[: table.names]), heading): cell
        for row in table.rows
        for heading, cell in zip(table.headings, row)
        if isinstance(cell, Figure)
    }


def test_a_batch_of_one_decodes_at_the_measured_speed(few):
    found = figures(TABLES["glide-4"](few))
    for recorded in few.recordings.of("glide"):
        only = found[recorded.name, "1", "only"].estimate.value
        assert only == pytest.approx(1 / recorded.cost.baseline, rel=1e-6)
        best = found[recorded.name, "1", "+GLIDE, best length"].estimate.value
        assert best >= found[recorded.name, "1", "+GLIDE, 5 tokens"].estimate.value


def test_larger_batches_decode_at_the_speed_of_the_batch_command(few):
    recorded = few.recordings.of("glide")[-1]
    plan = BatchPlan((4,), (), (), BatchRules())
    (row,) = batch_rows(recorded.trace, recorded.cost, plan)
    found = figures(TABLES["glide-4"](few))
    only, drafted = (found[recorded.name, "4", h] for h in ("only", "+GLIDE, 5 tokens"))
    assert 4 * only.estimate.value == pytest.approx(row.plain_tokens_per_second)
    speedup = row.fixed(5).value
    assert drafted.estimate.value / only.estimate.value == pytest.approx(speedup)


def test_trees_add_the_difference_of_both_columns(few):
    found = figures(TABLES["eagle-5"](few))
    names = {key[:2] for key in found}
    assert len(names) == 4
    for name in names:
        chain, tree, added = (found[*name, h].estimate for h in ("chain", "tree", "added"))
        assert added.value == pytest.approx(tree.value - chain.value)
        assert chain.low <= chain.value <= chain.high


def test_beta_ts_is_in_the_table_what_it_is_in_a_replay(few):
    found = figures(TABLES["eesd-5"](few))
    name = "papers/self_skip-k10-coupled"
    (recorded,) = (r for r in few.recordings.deep("self_skip", 10) if r.name == name)
    seconds = recorded.seconds(beta_ts(K=10), MEASURED, 0, 1).sum()
    value = found[name, "+ Beta-TS", "all"].estimate.value
    assert value == pytest.approx(recorded.trace.rows * recorded.cost.baseline / seconds)


def test_every_drafter_is_there_at_ten_tokens_or_as_many_as_it_can(few):
    """Medusa and Hydra have 4 heads; sampled recordings of the real model are 8 deep."""
    rows = TABLES["eesd-5"](few).rows
    fixed = [row for row in rows if " = " in str(row[1])]
    lengths = {str(row[0]): int(str(row[1]).rpartition(" ")[2]) for row in fixed}
    assert {K for name, K in lengths.items() if "smollm2/coupled" not in name} == {10, 4}
    assert all(("medusa" in n or "hydra" in n) == (K == 4) for n, K in lengths.items())
    assert all(K == 8 for n, K in lengths.items() if "smollm2/coupled" in n and "medusa" not in n)
    assert len(lengths) == 28


def test_speculation_of_beams_is_timed_and_replayed(few):
    table = TABLES["glide-3"](few)
    rows = {row[0]: dict(zip(table.headings, row)) for row in table.rows}
    (searched,) = (r for r in few.recordings.further("glide", "beam8") if r.rule == "coupled")
    row = rows["tiny-glide-coupled"]
    rounds = replay_tree(searched.trace, dynamic_tree("beams"))
    tokens = searched.trace.rows / len(rounds)
    assert row["tokens: Beam 8"].estimate.value == pytest.approx(tokens)
    assert float(row["GLIDE"]) < float(row["Beam 4"]) < float(row["Beam 8"])
    further = float(row["Beam 8"]) - float(row["GLIDE"])
    assert further == pytest.approx(1000 * 7 * 4 * searched.cost.node, abs=0.011)
    assert rows["smollm2/greedy/glide"]["tokens: Beam 8"] == "-"


def test_tokens_learned_are_said_once_where_they_are_equal(few):
    def inputs(**tokens):
        cards = [card_with(name, {"tokens": count}) for name, count in tokens.items()]
        return Inputs(few.recordings, cards)

    assert learned(inputs(a=9000, b=9000), "a", "b") == ("Each ablation learned 9,000 tokens.",)
    assert learned(inputs(a=9000, b=10), "a", "b") == ("Tokens learned: a 9,000, b 10.",)
    assert learned(inputs(a=9000), "b") == ()


def card_with(name, data):
    path = ROOT / "traces" / "ablations" / f"{name}.json"
    return Card(f"traces/ablations/{name}.json", path, "eagle", {}, 5, (), "cpu", data)


def test_a_folder_without_cards_says_so(tmp_path):
    (tmp_path / "traces").mkdir()
    names = (
        "eesd-4", "eesd-6", "eesd-figure-4", "eagle-6", "eagle-figure-10", "glide-2",
        "glide-figure-4", "s2d-4",
    )  # fmt: skip
    out, _ = simspec("paper", *names, "--folder", tmp_path / "traces", "--json", cwd=tmp_path)
    tables = json.loads(out)["tables"]
    assert set(tables) == set(names)
    for table in tables.values():
        assert "no card" in table["rows"][-1].values()


def test_every_table_names_its_figure_and_prints(few):
    for name, make in TABLES.items():
        table = make(few)
        paper, *_, number = name.split("-")
        assert table.title.lower().startswith(paper)
        assert number in table.title
        assert all(len(row) == len(table.headings) for row in table.rows)
        assert table.markdown().count("\n| ") == len(table.rows) + 2  # headings and rule
        assert json.loads(json.dumps(json_data(table)))["title"] == table.title


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("eesd-9",), "there is no table 'eesd-9': expected eesd-4"),
        (("eesd-4", "--folder", "nowhere"), "nowhere is no folder"),
        (("eesd-4", "--replicates", "0"), "replicates is 0, expected at least 1"),
    ],
)
def test_wrong_options_are_one_line(tmp_path, words, reason):
    _, error = simspec("paper", *words, cwd=tmp_path, code=2)
    assert reason in error
    assert error.count("\n") == 1


@pytest.mark.skipif(config.DISABLE_JIT, reason="seconds compiled, an hour interpreted")
@pytest.mark.docs
def test_the_page_is_what_is_printed_today():
    assert stale_tables(ROOT / "docs" / "lookahead_and_sorted.md", "paper s2d-2") == []
