"""Several drafters of one target, priced in one sitting."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from simulated_machine import SHARED, TARGET, Machine, layers
from toy_lm import RULES, toy_pair

from real.measure import MeasureSettings
from real.measure.price import Entry, LoopPrices, measure, measure_several
from real.measure.timing import FIXED, NODES
from simspec import cli
from simspec.cost.table import load_cost

pytestmark = pytest.mark.usefixtures("few_replicates")
K = 6
NAMES = "model", "early_exit", "eagle", "prompt_lookup"
SHORT = MeasureSettings(context=(24,), repeats=1, seconds=0)


def entries(names=NAMES, rules=("greedy",), K=K):
    return [Entry(*toy_pair(name), RULES[rule], K) for name in names for rule in rules]


def several(tmp_path, *given, settings=SHORT, **options):
    tables = measure_several(entries(*given, **options), settings, tmp_path / "u.json")
    return [table.at() for table in tables]


def test_each_entry_equals_a_measurement_of_its_own(tmp_path, monkeypatch):
    Machine(monkeypatch, computes=False)
    costs = several(tmp_path, NAMES, ("greedy", "coupled"))
    assert [cost.name for cost in costs] == [
        f"{name}-{rule}" for name in NAMES for rule in ("greedy", "coupled")
    ]
    for cost in costs:
        name, rule = cost.name.rsplit("-", 1)
        own = measure(*toy_pair(name), RULES[rule], K, SHORT)
        if name != "eagle":  # its first step also takes the rows that were accepted
            assert cost.draft.tolist() == own.draft.tolist()
            assert cost.catch_up.tolist() == own.catch_up.tolist()
        assert cost.verify.tolist() == own.verify.tolist()
        assert cost.baseline == own.baseline
    assert costs[0].verify.tolist() == [layers(4, j + 1, 1) for j in range(K + 1)]
    assert costs[2].verify[K] < costs[0].verify[K]  # early_exit resumes behind its own layers


def test_trees_are_priced_behind_the_layers_that_their_drafts_have_run(tmp_path, monkeypatch):
    Machine(monkeypatch, computes=False)
    model, exit = several(tmp_path, ("model", "early_exit"), settings=replace(SHORT, tree_nodes=9))
    assert model.verify[7:].tolist() == [layers(TARGET, nodes + 1, 1) for nodes in (7, 8, 9)]
    # in a binary tree, rows with a child are passed while it is drafted
    leaves = {nodes: nodes + 1 - (nodes + 1) // 2 for nodes in (7, 8, 9)}
    assert exit.verify[7:].tolist() == [
        layers(SHARED, rows, 1) + layers(TARGET - SHARED, nodes + 1, 1)
        for nodes, rows in leaves.items()
    ]


def test_drafts_of_trees_are_no_backlog_of_drafts_of_chains():
    """Behind an accepted tree a draft first passes its rows: they have sequences of their own."""
    settings = replace(SHORT, tree_nodes=9)
    prices = LoopPrices(entries(("early_exit",)), settings, np.random.default_rng(0))
    kinds = [{job.kind for job in getattr(block, "jobs", ())} for block in prices.blocks.values()]
    assert [of for of in kinds if FIXED in of and NODES in of] == []
    assert len([of for of in kinds if of == {NODES}]) == 1


def test_verification_is_the_targets_own_on_the_real_clock(tmp_path):
    model, exit, eagle, lookup = several(tmp_path)
    for cost in (eagle, lookup):
        assert cost.verify.tolist() == model.verify.tolist()
    assert len({cost.baseline for cost in (model, exit, eagle, lookup)}) == 1
    assert len({cost.origin.sitting for cost in (model, exit, eagle, lookup)}) == 1
    assert model.origin.sitting
    assert lookup.precision.after_draft == 0
    samples, half_width = model.precision.samples, model.precision.half_width
    assert samples["draft"][5] == 0  # filled between 4 and 6
    assert half_width["draft"][5] is None
    assert model.draft[5] == pytest.approx((model.draft[4] + model.draft[6]) / 2)
    assert min(samples["verify"]) >= 1  # timing blocks
    assert exit.precision.samples["verify"][5] == 0
    assert samples["baseline"] >= 1


def test_slower_passes_behind_a_draft_are_charged_to_it(tmp_path, monkeypatch):
    machine = Machine(monkeypatch, computes=False)
    target, drafter = toy_pair("model")
    drafted = []
    draft_next, verify = drafter.next, target.verify

    def noted():
        drafted.append(True)
        return draft_next()

    def slowed(*rows):
        machine.time += 1.0 if drafted else 0.0
        drafted.clear()
        return verify(*rows)

    monkeypatch.setattr(drafter, "next", noted)
    monkeypatch.setattr(target, "verify", slowed)
    settings = replace(SHORT, repeats=6)
    cost = measure(target, drafter, RULES["greedy"], 2, settings)
    assert cost.precision.after_draft == 1
    assert cost.draft.tolist() == [0, 1 + layers(3, 1, 1), 1 + 2 * layers(3, 1, 1)]
    assert cost.verify.tolist() == [layers(4, j + 1, 1) for j in range(3)]


def test_resumed_passes_follow_the_targets_jumps(tmp_path, monkeypatch):
    """The machine needs a second more for each pass over six rows, of five drafted tokens."""
    machine = Machine(monkeypatch, computes=False)
    target, drafter = toy_pair("early_exit")
    verify = target.verify

    def jumping(tokens, *rest):
        machine.time += 1.0 if len(tokens) == 6 else 0.0
        return verify(tokens, *rest)

    monkeypatch.setattr(target, "verify", jumping)
    cost = measure(target, drafter, RULES["greedy"], K, SHORT)
    smooth = measure(*toy_pair("early_exit"), RULES["greedy"], K, SHORT)
    assert (cost.verify - smooth.verify).tolist() == [0, 0, 0, 0, 0, 1, 0]


class Killed(BaseException):
    pass


def test_killed_measurement_continues(tmp_path, monkeypatch):
    Machine(monkeypatch, computes=False)
    monkeypatch.setattr("real.measure.sitting.SAVE_SECONDS", 0.0)
    unfinished, settings = tmp_path / "u.json", replace(SHORT, repeats=2)
    two = entries(("early_exit", "prompt_lookup"))

    def stop(label, done, total, note=""):
        if done == total - 2:
            raise Killed

    with pytest.raises(Killed):
        measure_several(two, settings, unfinished, stop)
    held = json.loads(unfinished.read_text())
    assert held["repeats"] == 1
    before = {name: len(rows) for name, rows in held["samples"].items()}
    costs = measure_several(two, settings, unfinished)
    after = json.loads(unfinished.read_text())
    assert after["repeats"] == 2
    assert all(len(after["samples"][name]) > count for name, count in before.items())
    assert [c.at().verify.tolist() for c in costs] == [
        c.at().verify.tolist() for c in measure_several(two, settings, tmp_path / "v.json")
    ]
    measure_several(entries(K=2), settings, unfinished)  # another measurement starts anew
    assert json.loads(unfinished.read_text())["key"]["entries"][0][1] == 2
    unfinished.write_text('{"key": 5}')
    measure_several(entries(NAMES[:1]), SHORT, unfinished)
    unfinished.write_text("[")
    with pytest.raises(ValueError, match="holds no unfinished measurement .*: delete it"):
        measure_several(entries(NAMES[:1]), SHORT, unfinished)


@pytest.mark.parametrize(
    "names, change, words",
    [
        (("model", "model"), {}, "costs of model-greedy are asked for twice"),
        (("model", "eagle"), {"batch": (1, 2)}, "at batch 1 and one context"),
        (("model", "eagle"), {"context": (8, 16)}, "at batch 1 and one context"),
        (("model",), {"tree_nodes": 4}, "tree nodes are 4; expected 0, or 6"),
    ],
)
def test_invalid_requests_are_one_line(names, change, words, tmp_path):
    with pytest.raises(ValueError, match=words) as caught:
        several(tmp_path, names, settings=replace(SHORT, **change))
    assert "\n" not in str(caught.value)


def toys(folder, drafters, *rest, **options):
    """Toy models in place of a folder's."""
    from types import SimpleNamespace

    pairs = (toy_pair(name) for name in drafters)
    return [SimpleNamespace(target=target, drafter=drafter) for target, drafter in pairs]


def test_command_writes_a_file_for_each(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("real.pair.load_pairs", toys)
    threads = torch.get_num_threads()
    given = ["--drafter", "model", "--drafter", "medusa", "--rule", "greedy", "--rule", "coupled"]
    sizes = ["-k", "6", "--seconds", "0", "--context", "24", "--threads", "1"]
    try:
        for asked in (given[:6], [*given, "--json"]):
            with pytest.raises(SystemExit) as stop:
                cli.main(["measure", *asked, *sizes, "--out", str(tmp_path)])
            assert stop.value.code == 0
            out = capsys.readouterr().out
    finally:
        torch.set_num_threads(threads)
    files = sorted(path.name for path in tmp_path.iterdir())
    names = ["medusa-coupled", "medusa-greedy", "model-coupled", "model-greedy"]
    assert files == [f"{name}.cost.json" for name in names]
    costs = {name: load_cost(tmp_path / f"{name}.cost.json") for name in names}
    shown = json.loads(out)
    assert shown[str(tmp_path / files[0])] == costs[names[0]].to_dict()
    assert costs["medusa-greedy"].K == 4  # its heads; not the six that were asked for
    assert costs["model-greedy"].K == 6
    assert np.array_equal(costs["medusa-greedy"].verify, costs["model-greedy"].verify[:5])
    assert costs["medusa-greedy"].origin.threads == 1


@pytest.mark.parametrize(
    "given, words",
    [
        (["--for", "tiny-model-greedy", "--drafter", "model"], "--for names recordings"),
        ([], "--out is missing"),
        (["--threads", "-1", "--out", "c.json"], "--threads is -1"),
        (["--drafter", "model", "--drafter", "eagle", "--out", "nowhere"], "no folder nowhere"),
        (
            ["--drafter", "model", "--drafter", "eagle", "--out", ".", "--weights", "w"],
            "names one drafter's folder",
        ),
    ],
)
def test_command_errors_are_one_line(given, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        cli.main(["measure", *given])
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert error.count("\n") == 1
    assert words in error
    assert not list(tmp_path.iterdir())
