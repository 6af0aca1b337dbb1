"""Measured costs on a simulated clock that only layers advance; and on the real clock."""

from dataclasses import replace

import numpy as np
import pytest
from simulated_machine import LAUNCH, ROW, SHARED, TARGET, Machine, layers
from toy_lm import DRAFTERS, PREFIX, RULES, toy_pair

from real.decode.features import AcceptancePredictor
from real.drafters.prompt_lookup import PromptLookupDrafter
from real.measure import MeasureSettings
from real.measure.price import Entry, measure, measure_several
from real.measure.timing import MAX_BACKLOG
from simspec import sweep, synthetic
from simspec.cost.table import load_cost

K, pytestmark = 2, pytest.mark.usefixtures("few_replicates")


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch, computes=False)


def expected(name):
    """(draft, verify, catch_up, baseline), from the layers that the loop runs."""
    sublayers = 1 if name == "early_exit" else 3
    draft = [j * layers(3, 1) for j in range(K + 1)]
    verify = [layers(TARGET, j + 1) for j in range(K + 1)]
    if name == "early_exit":
        verify[1:] = [layers(SHARED, 1) + layers(TARGET - SHARED, j + 1) for j in range(1, K + 1)]
    catch_up = [sublayers * ROW * b for b in range(MAX_BACKLOG + 1)]
    return draft, verify, catch_up, layers(TARGET, 1)


def measure_table(*entry, settings):
    return measure_several([Entry(*entry)], settings)[0]


def figures(cost):
    return cost.draft.tolist(), cost.verify.tolist(), cost.catch_up.tolist(), cost.baseline


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", PREFIX)
def test_every_cell_equals_the_simulated_work(name, rule, machine):
    for seed in (0, 1) if rule == "greedy" else (0,):
        settings = MeasureSettings((6, 12), 0.0, repeats=1, seed=seed)
        table = measure_table(*toy_pair(name), RULES[rule], K, settings=settings)
        assert (table.batch, table.context) == ((1,), (6, 12))
        assert table.name == f"{name}-{rule}"
        for c in table.context:
            cost = table.at(1, c)
            assert figures(cost) == expected(name), c
            assert (cost.overhead, cost.feature) == (0, 0)
            assert cost.device.startswith("cpu")
            assert cost.name.endswith(f"-b1-c{c}")
        assert figures(table.at(1, 10)) == expected(name)


SHORT = MeasureSettings(context=(24,), repeats=2, seconds=0)
EXACT = replace(SHORT, repeats=1)  # on the simulated clock, where all rounds are alike


def cost_of(name, K, rule="greedy"):
    target, drafter = toy_pair(name)
    return measure(target, drafter, RULES[rule], K, EXACT)


def steps_of(monkeypatch, paced):
    """Costs in plain steps, on a machine that becomes slow and fast again."""
    with monkeypatch.context() as patched:
        if not paced:
            patched.setattr("real.measure.timing.Pace.typical", 0.0)
        changing = Machine(patched, lambda: 2.0 + np.sin(changing.time / 3000), False)
        settings = replace(SHORT, repeats=6)
        cost = measure(*toy_pair("model"), RULES["greedy"], K, settings)
    return np.concatenate((cost.draft, cost.verify)) / cost.baseline


def test_a_machine_that_changes_its_speed_keeps_the_ratios(monkeypatch):
    def worst(found):
        """The largest relative error."""
        draft, verify, _, baseline = expected("model")
        return np.abs(found[1:] / (np.array([*draft[1:], *verify]) / baseline) - 1).max()

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
        assert cost.verify.tolist() == [layers(TARGET, j + 1) for j in range(most + 1)]
        assert cost.baseline == layers(TARGET, 1)
    for name in ("eagle", "glide"):
        cost = cost_of(name, 4)
        # and the rows that enter anew, as many as were accepted
        steps = [layers(1, 1) * j for j in range(5)]
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
        layers(TARGET - passed, j + 1) + layers(passed, j + 1 - (j + 1) // 2)
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
    assert cost.verify.tolist() == [layers(TARGET, j + 1) for j in range(5)]


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


@pytest.mark.parametrize("name", PREFIX)
def test_real_clock_table_is_positive_and_prices_a_sweep(name, tmp_path):
    target, drafter = toy_pair(name)
    table = measure_table(
        target, drafter, RULES["greedy"], 2, settings=MeasureSettings((4, 8), 0.0)
    )
    for row in table.cells:
        for cell in row:
            assert (cell.verify > 0).all()
            assert cell.baseline > 0
            assert (cell.catch_up >= 0).all()
            assert (cell.K, len(cell.catch_up)) == (2, 5)
    assert all((cell.draft[1:] > 0).all() for cell in table.known)
    table.to_json(tmp_path / "t.json")
    assert load_cost(tmp_path / "t.json") == table
    trace = synthetic.iid(0.5, 2, 20, 2)
    rows = sweep(trace, ["fixed:1", "oracle"], table.at(1, 6), 1, progress=False)
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
