"""Measured costs on a simulated clock that only layers advance; and once on the real clock."""

import json
from collections import Counter
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from toy_lm import DRAFTERS, PREFIX, RULES, toy_pair

from real.draft import Silent
from real.drafters.prompt_lookup import PromptLookupDrafter
from real.measure import MeasureSettings, batched, cost_table, loop, measure, measure_table
from real.measure.job import FEATURES, MAX_BACKLOG, VERIFY, Job
from real.model.layer import DecoderLayer
from simspec import CostModel, cli, sweep, synthetic
from simspec.cost_table import CostTable, load_cost

K = 2
LAUNCH, ROW = 1.0, 1 / 64  # seconds of a layer and of a row in it; exact in binary
TARGET, SHARED = 4, 2  # layers of the toy target, and those before its exit


class Machine:
    """A clock that stands still but while a layer passes rows."""

    def __init__(self, monkeypatch):
        self.time = 0.0
        for name in ("attend", "mlp"):
            monkeypatch.setattr(DecoderLayer, name, self._counted(getattr(DecoderLayer, name)))
        monkeypatch.setattr("real.decode.phase_timer.perf_counter", self.now)

    def _counted(self, half):
        def counted(layer, x, *rest, **more):
            self.time += (LAUNCH + ROW * x.shape[0] * x.shape[1]) / 2
            return half(layer, x, *rest, **more)

        return counted

    def now(self) -> float:
        return self.time


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def layers(count, rows, batch):
    return count * (LAUNCH + ROW * rows * batch)


def expected(name, batch):
    """(draft, verify, catch_up, baseline) of a batch, from what the decode loop passes through how many layers."""
    own = 1 if name == "early_exit" else 3
    draft = [j * layers(3, 1, batch) for j in range(K + 1)]
    verify = [layers(TARGET, j + 1, batch) for j in range(K + 1)]
    if name == "early_exit":
        verify[1:] = [
            layers(SHARED, 1, batch) + layers(TARGET - SHARED, j + 1, batch)
            for j in range(1, K + 1)
        ]
    catch_up = [own * ROW * b * batch for b in range(MAX_BACKLOG + 1)]
    return draft, verify, catch_up, layers(TARGET, 1, batch)


def figures(cost):
    return cost.draft.tolist(), cost.verify.tolist(), cost.catch_up.tolist(), cost.baseline


def table_of(name, machine, batch=(1, 2, 5), context=(6, 12), seed=0, rule="greedy", **more):
    target, drafter = toy_pair(name)
    settings = MeasureSettings(batch, context, 12, 1, seed)
    return measure_table(target, drafter, RULES[rule], K, settings, timer=machine.now, **more)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", PREFIX)
def test_every_cell_is_what_the_work_costs_in_any_order(name, rule, machine):
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
def test_bare_passes_of_one_text_are_the_loops_own(name, machine):
    """At batch 1 bare passes and the decode loop give the same seconds."""
    target, drafter = toy_pair(name)
    shared = batched.shared_layers(target, drafter)
    assert shared == (SHARED if name == "early_exit" else 0)
    bare = batched.BatchedPasses(target.decoder, drafter.lm, shared, K, 1, 9, timer=machine.now)
    for job in bare.jobs():
        bare.run(job, 2)
    settings = MeasureSettings(context=(9,), rounds=8, repeats=1)
    draft, verify, catch_up, _ = figures(measure(target, drafter, RULES["greedy"], K, settings))
    assert [found.tolist() for found in bare.seconds()] == [verify, draft, catch_up]
    assert sum(catch_up) > 0


def test_control_a_verification_that_forgets_what_the_drafter_ran_is_seen(machine, monkeypatch):
    monkeypatch.setattr(cost_table, "shared_layers", lambda target, drafter: 0)
    assert figures(table_of("early_exit", machine).at(5, 6)) != expected("early_exit", 5)


def test_measure_is_the_table_of_one_text(machine):
    target, drafter = toy_pair("model")
    settings = MeasureSettings(context=(6,), rounds=8, repeats=1)
    cost = measure(target, drafter, RULES["greedy"], K, settings)
    assert isinstance(cost, CostModel)
    assert cost.name == "model-greedy"
    assert figures(cost) == expected("model", 1)


SHORT = MeasureSettings(context=(24,), rounds=8, repeats=1)


def cost_of(name, K, rule="greedy"):
    target, drafter = toy_pair(name)
    return measure(target, drafter, RULES[rule], K, SHORT)


def test_drafters_without_a_model_of_their_own_are_measured_as_what_they_run(machine):
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
        own = [
            layers(1, 1, 1) * j for j in range(5)
        ]  # and the rows that enter anew, as many as were accepted
        assert all(a <= b <= a + ROW * 5 for a, b in zip(own, cost.draft.tolist()))


OWN = [
    ("model", 3),
    ("early_exit", 3),
    ("eagle", 1),
    ("self_skip", 3.5),
    ("medusa", 0),
    ("prompt_lookup", 0),
]


@pytest.mark.parametrize("name, own", OWN)
def test_trees_are_priced_by_rows_of_the_target_and_of_a_pass_of_the_drafter(name, own, machine):
    target, drafter = toy_pair(name)
    plain = measure(target, drafter, RULES["greedy"], K, SHORT)
    cost = measure(target, drafter, RULES["greedy"], K, replace(SHORT, tree_nodes=9))
    assert cost.nodes == 9
    assert plain.nodes == K
    assert plain.node == 0
    assert figures(cost)[0] == figures(plain)[0]
    assert cost.verify[: K + 1].tolist() == plain.verify.tolist()
    assert cost.verify[K + 1 :].tolist() == [
        layers(TARGET, j + 1, 1) for j in range(K + 1, 10)
    ]  # none is done beforehand
    assert cost.node == pytest.approx(own * ROW, abs=1e-9)


def test_more_rows_than_a_tree_has_or_fewer_than_the_depth_or_a_batch_of_trees_are_refused():
    target, drafter = toy_pair("model")
    for nodes, batch in ((1, (1,)), (64, (1,)), (8, (1, 2))):
        settings = MeasureSettings(batch, (8,), 8, 1, tree_nodes=nodes)
        with pytest.raises(ValueError, match="tree nodes are|one sequence at a time") as refused:
            measure_table(target, drafter, RULES["greedy"], K, settings)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name, K", [("medusa", 5), ("hydra", 5), ("prompt_lookup", 60)])
def test_a_depth_that_is_never_offered_is_refused(name, K, machine):
    with pytest.raises(
        ValueError, match="never drafted .* tokens in a round; measure with a smaller depth"
    ) as caught:
        cost_of(name, K)
    assert "\n" not in str(caught.value)


def test_first_rounds_count_only_where_no_later_one_drafted_as_much(machine):
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
    settings = replace(SHORT, rounds=12)
    cost = measure(target, Once(ngram_max=1), RULES["greedy"], 4, settings)
    assert cost.draft.tolist()[2:] == [2, 3, 4]
    assert cost.draft[1] < 1
    assert cost.verify.tolist() == [layers(TARGET, j + 1, 1) for j in range(5)]


def test_silent_drafters_are_asked_for_no_features_and_others_are():
    for name in DRAFTERS:
        target, drafter = toy_pair(name)
        timing = loop.LoopTiming(target, drafter, RULES["greedy"], 4, [5, 6, 7], SHORT)
        assert (Job(FEATURES, 4) in timing.jobs) != (name == "prompt_lookup")
    repeats, plain = (
        cost_table.random_prompt(np.random.default_rng(0), 24, 7, toy_pair(name)[1])
        for name in ("prompt_lookup", "model")
    )
    assert len(repeats) == len(plain) == 7
    assert repeats[4:] == repeats[:3] == plain[:3] != plain[4:]


def test_overhead_and_reading_are_those_of_the_questions(monkeypatch):
    """A clock that ticks when it is read: a question, a step, a pass and the bookkeeping each take one tick, reading two more: fetched, then coded."""
    ticks = iter(range(10**9))
    monkeypatch.setattr("real.decode.phase_timer.perf_counter", lambda: float(next(ticks)))
    target, drafter = toy_pair("model")
    settings = MeasureSettings(context=(6,), rounds=8, repeats=1)
    cost = measure(target, drafter, RULES["greedy"], K, settings)
    # a round of j: j + 1 questions of which one is overhead, j steps; the pass and the rest
    assert cost.overhead == 1
    assert cost.draft.tolist() == [0, 2, 4]
    assert cost.verify.tolist() == [2] * (K + 1)
    assert cost.feature == pytest.approx(2)
    assert cost.baseline == 3
    assert cost.catch_up.tolist() == [0] * (MAX_BACKLOG + 1)


def test_medians_are_of_the_laps_and_the_first_pass_is_not_counted(machine):
    seconds = iter([100, 1, 5, 2, 3, 100, 7, 9, 8, 7])
    now = [0.0]

    def timer():
        timer.calls += 1
        if timer.calls % 2 == 0:
            now[0] += next(seconds)
        return now[0]

    timer.calls = 0
    target, drafter = toy_pair("model")
    bare = batched.BatchedPasses(target.decoder, drafter.lm, 0, 1, 2, 4, timer=timer)
    bare.run(Job(VERIFY, 0), 4)
    bare.run(Job(VERIFY, 1), 4, counted=False)
    assert bare.times == {Job(VERIFY, 0): [[1], [5], [2], [3]]}
    assert float(np.median(bare.times[Job(VERIFY, 0)])) == 2.5


def test_noise_cannot_make_a_batch_cheaper_than_its_own_pass():
    one = CostModel([0, 1], [4, 5], [0, 1, 1, 1, 1], 0.5, 4, feature=0.25)

    class Bare:
        def __init__(self, verify, draft, catch_up):
            self.found = np.array(verify), np.array(draft), np.array(catch_up)

        def seconds(self):
            return self.found

    def cell(alone, many):
        return cost_table.add_batch(one, Bare(*alone), Bare(*many), "n")

    fair = cell(([3, 4], [0, 0.5], [0.0, 0, 0, 0, 0]), ([6, 9], [0, 2], [0.0, 1, 2, 3, 4]))
    assert figures(fair) == ([0, 2.5], [7, 10], [0, 2, 3, 4, 5], 7)
    assert (fair.overhead, fair.feature, fair.name) == (0.5, 0.25, "n")
    slow_minute = cell(([30, 40], [0, 5], [0.0, 9, 9, 9, 9]), ([6, 9], [0, 2], [0.0, 1, 2, 3, 4]))
    assert figures(slow_minute) == ([0, 2], [6, 9], [0, 0, 0, 0, 0], 6)


def test_all_jobs_of_all_cells_share_one_random_order(machine, monkeypatch):
    seen = []
    in_loop, bare = loop.LoopTiming.run, batched.BatchedPasses.run

    def noted(self, job, counted):
        seen.append((1, len(self.prompt), ("loop", job), counted))
        in_loop(self, job, counted)

    def noted_bare(self, job, times, counted):
        seen.append((self.batch, self.context, job, counted))
        bare(self, job, times, counted)

    monkeypatch.setattr(loop.LoopTiming, "run", noted)
    monkeypatch.setattr(batched.BatchedPasses, "run", noted_bare)
    heard = []
    table_of("model", machine, progress=lambda _, done, total: heard.append((done, total)))
    jobs = len(seen) // 2
    loops, bares = 2 * (K + 1 + 1 + MAX_BACKLOG + 1), 6 * (K + 1 + 1 + MAX_BACKLOG + 1)
    assert jobs == loops + bares
    assert heard == [(i + 1, 2 * jobs) for i in range(2 * jobs)]
    repeats = [[job[:3] for job in seen[i * jobs : (i + 1) * jobs]] for i in range(2)]
    assert all(Counter(each) == Counter(repeats[0]) and len(set(each)) == jobs for each in repeats)
    assert repeats[0] != repeats[1]
    assert [job[3] for job in seen] == [False] * jobs + [True] * jobs
    for (
        each
    ) in repeats:  # in blocks, cells would change 8 times; no shuffle of this size comes near
        assert sum(a[:2] != b[:2] for a, b in zip(each, each[1:])) > jobs / 2


def test_a_cell_that_does_not_fit_is_missing(machine, monkeypatch):
    run = batched.BatchedPasses.run

    def short(self, job, times, counted):
        if self.batch * self.context > 50:
            raise torch.OutOfMemoryError("CUDA out of memory")
        run(self, job, times, counted)

    monkeypatch.setattr(batched.BatchedPasses, "run", short)
    table = table_of("model", machine)
    assert table.cells[2][1] is None
    assert sum(cell is None for row in table.cells for cell in row) == 1
    assert figures(table.at(5, 6)) == expected("model", 5)
    with pytest.raises(ValueError, match="one sequence of context 60 does not fit"):
        table_of("model", machine, context=(6, 60))


def test_what_cannot_be_measured_is_refused(machine):
    target, drafter = toy_pair("model")

    def go(drafter, *sizes):
        settings = MeasureSettings(*sizes, 4, 1)
        return measure_table(target, drafter, RULES["greedy"], K, settings, timer=machine.now)

    with pytest.raises(ValueError, match="'none' has no language model of its own"):
        go(Silent(), (1, 2), (6,))
    with pytest.raises(ValueError, match="batch .0, 2. given, expected sizes of at least 1"):
        go(drafter, (0, 2), (6,))
    with pytest.raises(ValueError, match="context .. given, expected sizes"):
        go(drafter, (1,), ())
    with pytest.raises(ValueError, match="never drafted 1 tokens"):
        go(Silent(), (1,), (6,))


def test_short_contexts_owe_no_more_rows_than_there_are(machine):
    table = table_of("model", machine, batch=(2,), context=(2,))
    # what the loop finds, and of the batch's own part two rows at most
    rows = np.arange(MAX_BACKLOG + 1)
    assert table.at().catch_up.tolist() == (3 * ROW * (rows + np.minimum(rows, 2))).tolist()


@pytest.mark.parametrize("name", PREFIX)
def test_on_the_real_clock_a_table_is_whole_positive_and_prices_a_sweep(name, tmp_path):
    target, drafter = toy_pair(name)
    settings = MeasureSettings((1, 3), (4, 8), 8, 1)
    table = measure_table(target, drafter, RULES["greedy"], 2, settings)
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
    assert (
        sweep(trace, ["fixed:1", "oracle"], table.at(2, 6), 1, progress=False).speedup > 0
    ).all()


@pytest.mark.parametrize("name", DRAFTERS)
def test_on_the_real_clock_every_drafter_has_a_cost(name):
    target, drafter = toy_pair(name)
    settings = replace(SHORT, context=(16,))
    cost = measure(target, drafter, RULES["coupled"], 4, settings)
    assert cost.K == 4
    assert (cost.verify > 0).all()
    assert (cost.draft >= 0).all()
    assert cost.draft[4] > 0
    assert name != "prompt_lookup" or cost.feature == 0
    if name not in PREFIX:
        with pytest.raises(
            ValueError, match=f"drafter '{drafter.name}' has no language model of its own to batch"
        ):
            measure_table(target, drafter, RULES["coupled"], 4, replace(settings, batch=(1, 2)))


def toy(bundle, drafter, *rest):
    """The toy models in place of a bundle."""
    return SimpleNamespace(**dict(zip(("target", "drafter"), toy_pair(drafter))))


def command(*arguments):
    """What `simspec measure` prints."""
    out = StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        cli.main(["measure", *map(str, arguments)])
    return out.getvalue()


def test_the_command_writes_a_model_for_one_text_and_a_table_for_more(tmp_path, monkeypatch):
    monkeypatch.setattr("real.jobs.models.load_pair", toy)
    out = tmp_path / "c.json"
    given = "-k", 1, "--repeats", 1, "--out", out
    shown = json.loads(command(*given, "--json", "--context", 8))
    cost = load_cost(out)
    assert isinstance(cost, CostModel)
    assert shown.pop("engines") == {"target": "eager", "drafter": "eager"}
    assert cost.to_dict() == shown
    assert cost.K == 1
    assert cost.name == "model-greedy"
    said = command(*given, "--batch", 2, "--context", 8, "--context", 12, "--drafter", "early_exit")
    table = load_cost(out)
    assert isinstance(table, CostTable)
    assert (table.batch, table.context) == ((2,), (8, 12))
    assert table.at(1, 10).K == 1
    assert "batch 2, context 12: draft of 1" in said
    assert "measured on cpu" in said
    shown = json.loads(command(*given, "--batch", 1, "--batch", 2, "--context", 8, "--json"))
    del shown["engines"]
    assert CostTable.from_dict(shown) == load_cost(out)


@pytest.mark.parametrize(
    "arguments", [["--batch", 0], ["--context", 0], ["--out", "nowhere/c.json"]]
)
def test_a_users_error_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("real.jobs.models.load_pair", toy)
    with pytest.raises(SystemExit) as stop:
        cli.main(["measure", *map(str, ["--out", "c.json", "-k", 1, *arguments])])
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert error.startswith("simspec: ")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
