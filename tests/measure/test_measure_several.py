"""Several drafters of one target, priced in one sitting."""

import json
from dataclasses import replace
from math import nan

import numpy as np
import pytest
from simulated_machine import Machine, layers
from toy_lm import RULES, toy_pair

from real.measure import MeasureSettings
from real.measure.price import Entry, LoopPrices, measure, measure_several
from real.measure.sitting import Sitting, UnfinishedSitting
from real.measure.timing import FIXED, NODES, Pace, Samples

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
    assert costs[0].verify.tolist() == [layers(4, j + 1) for j in range(K + 1)]
    assert costs[2].verify[K] < costs[0].verify[K]  # early_exit resumes behind its own layers


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
    assert cost.draft.tolist() == [0, 1 + layers(3, 1), 1 + 2 * layers(3, 1)]
    assert cost.verify.tolist() == [layers(4, j + 1) for j in range(3)]


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


ROW = ["plain", 0, False, 0, 0, 0, 1.0, 1, 0.1, 0.1, 0.1, 0.1]


def changed(place, value):
    return {"samples": {"a": [ROW[:place] + [value] + ROW[place + 1 :]]}}


@pytest.mark.parametrize(
    "change",
    [
        *(changed(place, value) for place in (6, 9) for value in (10**400, 1e301, nan, "1", None)),
        changed(7, 2),  # of a block that is not there
        *({"blocks": [wrong]} for wrong in ([], None, [0.0, "x"])),
        {"samples": {}},
        {"wall": "x"},
    ],
)  # fmt: skip
def test_damaged_unfinished_measurements_are_refused(change, tmp_path):
    def load(data):
        path, samples = tmp_path / "u.json", Samples(Pace())
        path.write_text(json.dumps(data))
        held = UnfinishedSitting(path, {"entries": ["a"]}, {"a": samples}, samples.pace)
        return held.load(), samples.pace.to_list(), samples.to_list()

    blocks = [[0.0, 1.0], [0.25]]
    whole = {"key": {"entries": ["a"]}, "repeats": 1, "wall": 2.0, "blocks": blocks}
    whole |= {"samples": {"a": [ROW]}}
    assert load(whole) == (Sitting(1, 2.0), blocks, [tuple(ROW)])
    assert load(whole | {"key": 5})[0] == Sitting()
    with pytest.raises(
        ValueError, match="holds no unfinished measurement: .*; delete it"
    ) as caught:
        load(whole | change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "names, change, words",
    [
        (("model", "model"), {}, "costs of model-greedy are asked for twice"),
        (("model", "eagle"), {"context": (8, 16)}, "are measured at one context"),
        (("model",), {"tree_nodes": 4}, "tree nodes are 4; expected 0, or 6"),
    ],
)
def test_invalid_requests_are_one_line(names, change, words, tmp_path):
    with pytest.raises(ValueError, match=words) as caught:
        several(tmp_path, names, settings=replace(SHORT, **change))
    assert "\n" not in str(caught.value)
