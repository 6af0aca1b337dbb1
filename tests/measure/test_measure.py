"""Measured costs on a simulated clock that only layers advance; and on the real clock."""

from dataclasses import replace
from time import perf_counter

import numpy as np
import pytest
import torch
from simulated_machine import LAUNCH, ROW, SHARED, TARGET, Machine, layers
from toy_lm import DRAFTERS, PREFIX, RULES, toy_pair

from real.decode.features import AcceptancePredictor
from real.drafters.prompt_lookup import PromptLookupDrafter
from real.measure import MeasureSettings, blocks, price
from real.measure.price import Entry, measure, measure_several
from real.measure.timing import MAX_BACKLOG
from real.progress import quiet
from simspec import CostModel, sweep, synthetic
from simspec.cost.table import load_cost

K, pytestmark = 2, pytest.mark.usefixtures("few_replicates")


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch, computes=False)


def expected(name, batch):
    """(draft, verify, catch_up, baseline) of a batch, from the layers that the loop runs."""
    sublayers = 1 if name == "early_exit" else 3
    draft = [j * layers(3, 1, batch) for j in range(K + 1)]
    verify = [layers(TARGET, j + 1, batch) for j in range(K + 1)]
    if name == "early_exit":
        verify[1:] = [
            layers(SHARED, 1, batch) + layers(TARGET - SHARED, j + 1, batch)
            for j in range(1, K + 1)
        ]
    catch_up = [sublayers * ROW * b * batch for b in range(MAX_BACKLOG + 1)]
    return draft, verify, catch_up, layers(TARGET, 1, batch)


def measure_table(*entry, settings, progress=quiet, timer):
    return measure_several([Entry(*entry)], settings, None, progress, timer)[0]


def figures(cost):
    return cost.draft.tolist(), cost.verify.tolist(), cost.catch_up.tolist(), cost.baseline


def table_of(name, machine, rule="greedy", progress=quiet, **sizes):
    target, drafter = toy_pair(name)
    sizes = {"batch": (1, 2, 5), "context": (6, 12), "repeats": 1, "seconds": 0.0} | sizes
    settings = MeasureSettings(**sizes)
    entry = target, drafter, RULES[rule], K
    return measure_table(*entry, settings=settings, progress=progress, timer=machine.now)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", PREFIX)
def test_every_cell_equals_the_simulated_work(name, rule, machine):
    for seed in (0, 1) if rule == "greedy" else (0,):
        table = table_of(name, machine, seed=seed, rule=rule)
        assert table.batch == (1, 2, 5)
        assert table.context == (6, 12)
        assert table.name == f"{name}-{rule}"
        for b in table.batch:
            for c in table.context:
                cost = table.at(b, c)
                assert figures(cost) == expected(name, b), (b, c)
                assert (cost.overhead, cost.feature) == (0, 0)
                assert cost.device.startswith("cpu")
                assert cost.name.endswith(f"-b{b}-c{c}")
        assert table.at(3, 6) is table.at(5, 6)
        assert figures(table.at(2, 10)) == expected(name, 2)


@pytest.mark.parametrize("name", PREFIX)
def test_bare_passes_of_one_sequence_equal_the_loop(name, machine):
    """At batch 1 bare passes and the decode loop give the same seconds."""
    target, drafter = toy_pair(name)
    shared = blocks.shared_layers(target, drafter)
    assert shared == (SHARED if name == "early_exit" else 0)
    bare = blocks.BatchedPasses(target.decoder, drafter.lm, shared, K, 1, 9, timer=machine.now)
    for job in bare.jobs():
        bare.run(job, 2)
    settings = MeasureSettings(context=(9,), repeats=2, seconds=0)
    draft, verify, catch_up, _ = figures(measure(target, drafter, RULES["greedy"], K, settings))
    assert [column.tolist() for column in bare.seconds()] == [verify, draft, catch_up]
    assert sum(catch_up) > 0


def test_control_unshared_layers_are_detected(machine, monkeypatch):
    monkeypatch.setattr(price, "shared_layers", lambda target, drafter: 0)
    assert figures(table_of("early_exit", machine).at(5, 6)) != expected("early_exit", 5)


SHORT = MeasureSettings(context=(24,), repeats=2, seconds=0)
EXACT = replace(SHORT, repeats=1)  # on the simulated clock, where all rounds are alike


def cost_of(name, K, rule="greedy"):
    target, drafter = toy_pair(name)
    return measure(target, drafter, RULES[rule], K, EXACT)


def steps_of(monkeypatch, paced):
    """{batch: costs in plain steps}, on a machine that becomes slow and fast again."""
    with monkeypatch.context() as patched:
        if not paced:
            patched.setattr("real.measure.timing.Pace.typical", 0.0)
            patched.setattr("real.measure.price.LoopPrices.settle", lambda self: None)
        changing = Machine(patched, lambda: 2.0 + np.sin(changing.time / 3000), False)
        settings = MeasureSettings((1, 4), (24,), 0.0, repeats=6)
        table = measure_table(
            *toy_pair("model"), RULES["greedy"], K, settings=settings, timer=changing.now
        )
    costs = {batch: table.at(batch, 24) for batch in table.batch}
    return {b: np.concatenate((c.draft, c.verify)) / c.baseline for b, c in costs.items()}


def test_a_machine_that_changes_its_speed_keeps_the_ratios(monkeypatch):
    def worst(found):
        """The largest relative error of both batches."""
        errors = []
        for batch in (1, 4):
            draft, verify, _, baseline = expected("model", batch)
            wanted = np.array([*draft[1:], *verify]) / baseline
            errors.append(np.abs(found[batch][1:] / wanted - 1).max())
        return max(errors)

    assert worst(steps_of(monkeypatch, True)) < 0.03
    assert worst(steps_of(monkeypatch, False)) > 0.08


def test_drafters_without_lm_are_measured(machine):
    sublayers = 7  # of the toy target's 8
    skipping = cost_of("self_skip", K)
    assert skipping.draft.tolist() == [j * sublayers * (LAUNCH + ROW) / 2 for j in range(K + 1)]
    assert not skipping.catch_up.any()
    for name, most in (("prompt_lookup", 6), ("medusa", 4), ("hydra", 4)):
        cost = cost_of(name, most)
        assert cost.draft.tolist() == [0] * (most + 1)
        assert cost.verify.tolist() == [layers(TARGET, j + 1, 1) for j in range(most + 1)]
        assert cost.baseline == layers(TARGET, 1, 1)
    for name in ("eagle", "glide"):
        cost = cost_of(name, 4)
        # and the rows that enter anew, as many as were accepted
        steps = [layers(1, 1, 1) * j for j in range(5)]
        assert all(a <= b <= a + ROW * 5 for a, b in zip(steps, cost.draft.tolist()))


OWN = [
    ("model", 3), ("early_exit", 3), ("eagle", 1), ("self_skip", 3.5), ("medusa", 0),
    ("prompt_lookup", 0),
]  # fmt: skip


@pytest.mark.parametrize("name, sublayers", OWN)
def test_trees_are_priced_by_rows(name, sublayers, machine):
    machine.computes = name == "eagle"  # its first step takes the rows that were accepted
    # of which too few blocks have other numbers with trees than without
    settings = replace(SHORT, repeats=4) if machine.computes else SHORT
    target, drafter = toy_pair(name)
    plain = measure(target, drafter, RULES["greedy"], K, settings)
    cost = measure(target, drafter, RULES["greedy"], K, replace(settings, tree_nodes=9))
    assert cost.nodes == 9
    assert plain.nodes == K
    assert plain.node == 0
    assert figures(cost)[0] == figures(plain)[0]
    assert cost.verify[: K + 1].tolist() == plain.verify.tolist()
    # in a binary tree the early exit has passed the rows that have a child
    passed = SHARED if name == "early_exit" else 0
    assert cost.verify[K + 1 :].tolist() == [
        layers(TARGET - passed, j + 1, 1) + layers(passed, j + 1 - (j + 1) // 2, 1)
        for j in range(K + 1, 10)
    ]
    assert cost.node == pytest.approx(sublayers * ROW, abs=1e-9)


@pytest.mark.parametrize("name, K", [("medusa", 5), ("prompt_lookup", 30)])
def test_depth_never_drafted_is_refused(name, K, machine):
    with pytest.raises(
        ValueError,
        match="never drafted .* tokens in a round; measure with a smaller depth"
        if name == "prompt_lookup"
        else f"{name!r} drafts at most 4 tokens a round, asked for 5: measure it with --depth 4",
    ) as caught:
        cost_of(name, K)
    assert "\n" not in str(caught.value)


def test_first_rounds_count_only_without_later_ones(machine):
    """A drafter that offers four tokens once, behind its prompt, and one in every other round."""

    class Once(PromptLookupDrafter):
        def begin(self, *rest):
            super().begin(*rest)
            self.left = 4

        def next(self):
            step = super().next() if self.drafted < self.left else None
            machine.time += 1 if self.left == 4 else 0.25
            return step

        def catch_up(self, *rest):
            super().catch_up(*rest)
            self.left = 1

    target, _ = toy_pair("model")
    cost = measure(target, Once(ngram_max=1), RULES["greedy"], 4, SHORT)
    assert cost.draft.tolist()[2:] == [2, 3, 4]
    assert cost.draft[1] < 1
    assert cost.verify.tolist() == [layers(TARGET, j + 1, 1) for j in range(5)]


def test_overhead_features_and_predictors_count_readings(monkeypatch):
    """On a clock that advances by one at every reading."""
    ticks = iter(range(10**9))
    monkeypatch.setattr("real.decode.verify.perf_counter", lambda: float(next(ticks)))
    target, drafter = toy_pair("model")
    settings = MeasureSettings(context=(6,), repeats=2, seconds=0)
    cost = measure(target, drafter, RULES["greedy"], K, settings)
    # a round of j: j + 1 policy calls of which one is overhead, j steps; the pass and the rest
    assert cost.overhead == 1
    assert cost.draft.tolist() == [0, 2, 4]
    assert cost.verify.tolist() == [2] * (K + 1)
    assert cost.feature == pytest.approx(2)
    assert cost.predictor is None
    head = AcceptancePredictor(target.decoder.config.width, drafter.lm.config.width)
    drafter.predictors = {"theta": head.requires_grad_(False)}
    cost = measure(target, drafter, RULES["greedy"], K, settings)
    assert 1 <= cost.predictor <= 2
    assert cost.feature == pytest.approx(2)
    assert cost.baseline == 3
    assert cost.catch_up.tolist() == [0] * (MAX_BACKLOG + 1)


def test_batch_costs_at_least_its_bare_passes():
    one = CostModel([0, 1], [4, 5], [0, 1, 1, 1, 1], 0.5, 4, feature=0.25)

    class Bare:
        def __init__(self, verify, draft, catch_up):
            self.times = np.array(verify), np.array(draft), np.array(catch_up)

        def seconds(self):
            return self.times

    def cell(alone, many):
        return price.add_batch(one, Bare(*alone), Bare(*many), "n")

    fair = cell(([3, 4], [0, 0.5], [0.0, 0, 0, 0, 0]), ([6, 9], [0, 2], [0.0, 1, 2, 3, 4]))
    assert figures(fair) == ([0, 2.5], [7, 10], [0, 2, 3, 4, 5], 7)
    assert (fair.overhead, fair.feature, fair.name) == (0.5, 0.25, "n")
    slow_minute = cell(([30, 40], [0, 5], [0.0, 9, 9, 9, 9]), ([6, 9], [0, 2], [0.0, 1, 2, 3, 4]))
    assert figures(slow_minute) == ([0, 2], [6, 9], [0, 0, 0, 0, 0], 6)


def test_cell_beyond_memory_is_none(machine, monkeypatch):
    run = blocks.BatchedPasses.run

    def short(self, job, times, counted):
        if self.batch * self.context > 50:
            raise torch.OutOfMemoryError("CUDA out of memory")
        run(self, job, times, counted)

    monkeypatch.setattr(blocks.BatchedPasses, "run", short)
    table = table_of("model", machine)
    assert [(b, c) for b in range(3) for c in range(2) if table.cells[b][c] is None] == [(2, 1)]
    assert figures(table.at(5, 6)) == expected("model", 5)
    for contexts in ((6, 60), (60,)):  # with a cell that fits, and none
        with pytest.raises(ValueError, match="one sequence of context 60 does not fit"):
            table_of("model", machine, batch=(1, 2), context=contexts)


def test_backlog_is_limited_by_the_context(machine):
    table = table_of("model", machine, batch=(2,), context=(2,))
    # what the loop finds, and of the batch's own part two rows at most
    rows = np.arange(MAX_BACKLOG + 1)
    assert table.at().catch_up.tolist() == (3 * ROW * (rows + np.minimum(rows, 2))).tolist()


@pytest.mark.parametrize("name", PREFIX)
def test_real_clock_table_is_positive_and_prices_a_sweep(name, tmp_path):
    target, drafter = toy_pair(name)
    sizes = MeasureSettings((1, 3), (4, 8), 0.0)
    table = measure_table(target, drafter, RULES["greedy"], 2, settings=sizes, timer=perf_counter)
    for row in table.cells:
        for cell in row:
            assert (cell.verify > 0).all()
            assert cell.baseline > 0
            assert (cell.catch_up >= 0).all()
            assert (cell.K, len(cell.catch_up)) == (2, 5)
    assert all((cell.draft[1:] > 0).all() for cell in table.cells[1])
    table.to_json(tmp_path / "t.json")
    assert load_cost(tmp_path / "t.json") == table
    trace = synthetic.iid(0.5, 2, 20, 2)
    rows = sweep(trace, ["fixed:1", "oracle"], table.at(2, 6), 1, progress=False)
    assert (rows.speedup > 0).all()


@pytest.mark.parametrize("name", DRAFTERS)
def test_real_clock_prices_every_drafter(name):
    target, drafter = toy_pair(name)
    settings = replace(SHORT, context=(16,))
    cost = measure(target, drafter, RULES["coupled"], 4, settings)
    assert cost.K == 4
    assert (cost.verify > 0).all()
    assert (cost.draft >= 0).all()
    assert cost.draft[4] > 0 or name == "prompt_lookup"  # microseconds, less a policy's call
    assert name != "prompt_lookup" or cost.feature == 0
