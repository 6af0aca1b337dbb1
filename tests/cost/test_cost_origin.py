"""Origins of costs: their file form, and the refusal to compare different ones."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simspec import CostModel, cli, synthetic
from simspec.cost.provenance import IDENTITY, CostOrigin
from simspec.cost.table import CostTable, check_comparable, load_cost

HERE = CostOrigin("cpu A", 1, "float32", {"target": "eager"}, {"torch": "2"}, "2026-01-01", "s")
UNIT = CostModel.from_ratio(0.2, 4)
OTHERS = {"device": "cpu B", "threads": 2, "dtype": "bfloat16"}

texts = st.sampled_from(["", "a", "b"])
origins = st.builds(CostOrigin, texts, st.integers(0, 2), texts, st.dictionaries(texts, texts))


@given(origins)
def test_origin_survives_a_file(origin):
    assert CostOrigin.from_dict(json.loads(json.dumps(origin.to_dict()))) == origin


@given(origins, origins)
def test_differences_are_symmetric_and_need_two_known_values(ours, theirs):
    differences = ours.differences(theirs)
    assert differences == theirs.differences(ours)
    assert not ours.differences(ours)
    assert set(differences) == {
        name
        for name in IDENTITY
        if len({getattr(ours, name), getattr(theirs, name)} - {"", 0}) == 2
    }


@given(st.lists(origins | st.none(), min_size=1, max_size=4))
def test_refusal_equals_the_definition(origins):
    costs = {f"f{i}": replace(UNIT, origin=origin) for i, origin in enumerate(origins)}
    known = [origin or CostOrigin() for origin in origins]
    refused = any(a.differences(b) for a, b in product(known, known))
    unknown = len(origins) > 1 and not all(origin.known for origin in known)
    assert len(check_comparable(costs, mixed=True)) == refused + unknown
    if refused:
        with pytest.raises(ValueError, match="^costs of f. and f. differ in .*--mixed-costs$"):
            check_comparable(costs)
    else:
        assert len(check_comparable(costs)) == unknown


@pytest.mark.parametrize("name", IDENTITY)
def test_each_part_of_the_identity_is_named(name):
    other = replace(HERE, **{name: OTHERS[name]})
    costs = {"a": replace(UNIT, origin=HERE), "b": replace(UNIT, origin=other), "c": 0.1}
    message = f"costs of a and b differ in {name} \\({getattr(HERE, name)} and {OTHERS[name]}\\)"
    with pytest.raises(ValueError, match=message):
        check_comparable(costs)


def test_equal_origins_of_different_engines_compare():
    fast = replace(HERE, engines={"target": "fast"}, created="2027", sitting="t")
    costs = {"a": replace(UNIT, origin=HERE), "b": replace(UNIT, origin=fast)}
    assert check_comparable(costs) == []


def test_files_keep_the_origin(tmp_path):
    model, path = replace(UNIT, origin=HERE), tmp_path / "c.json"
    model.to_json(path)
    assert load_cost(path) == model
    assert load_cost(path).truncate(2).reading(["confidence"]).origin == HERE
    table = CostTable((1, 4), (8, 16), ((model, model), (None, model)))
    table.to_json(path)
    assert load_cost(path) == table
    assert json.loads(path.read_text())["origin"] == HERE.to_dict()
    assert "origin" not in json.loads(path.read_text())["cells"][0][0]
    assert table.at(1, 12).origin == HERE
    mixed = CostTable((1,), (8, 16), ((model, UNIT),))
    mixed.to_json(path)
    assert load_cost(path) == mixed
    assert mixed.origin is None
    assert mixed.at(1, 12).origin is None


def test_older_files_are_read():
    old = UNIT.to_dict()
    assert "origin" not in old
    assert CostModel.from_dict(old).origin is None
    engines = {"target": "fast", "drafter": "eager"}
    assert CostModel.from_dict(old | {"engines": engines}).origin == CostOrigin(engines=engines)


@pytest.mark.parametrize(
    "origin, reason",
    [
        (None, "holds a NoneType"),
        ({"device": "cpu"}, "missing keys"),
        (HERE.to_dict() | {"more": 1}, "unknown keys .'more'"),
        (HERE.to_dict() | {"threads": -1}, "threads is -1, expected a whole number"),
        (HERE.to_dict() | {"threads": True}, "threads is True, expected a whole number"),
        (HERE.to_dict() | {"dtype": 32}, "dtype is 32, expected text"),
        (HERE.to_dict() | {"engines": {"target": 1}}, "engines is .* expected an object of texts"),
    ],
)
def test_invalid_origins_are_one_line(origin, reason, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(UNIT.to_dict() | {"origin": origin}))
    with pytest.raises(ValueError, match=reason) as caught:
        load_cost(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="engines"):
        CostModel.from_dict(UNIT.to_dict() | {"engines": {"target": 3}})


@pytest.mark.parametrize(
    "command",
    [
        ("sweep", "--policy", "fixed:1"),
        ("sweep", "--report", "oracle", "--policy", "fixed:1"),
        ("sweep", "--report", "trees"),
    ],
)
def test_commands_refuse_mixed_costs_in_one_line(command, tmp_path, capsys):
    files = []
    for name, threads in (("a", 1), ("b", 2)):
        files.append(str(tmp_path / f"{name}.parquet"))
        synthetic.iid(0.5, 8, 30, 4, seed=1).save(files[-1])
        origin = replace(HERE, threads=threads)
        replace(UNIT, origin=origin, name=name).to_json(tmp_path / f"{name}.cost.json")
    with pytest.raises(SystemExit) as stop:
        cli.main([*command, *files])
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert error.count("\n") == 1
    assert "a.cost.json and b.cost.json differ in threads (1 and 2)" in error
    if command[-1] == "trees":  # needs ranks, which this recording lacks
        return
    with pytest.raises(SystemExit) as stop:
        cli.main([*command, *files, "--mixed-costs"])
    captured = capsys.readouterr()
    assert stop.value.code == 0
    assert captured.out
    assert "their speedups do not compare" in captured.err
    with pytest.raises(SystemExit) as stop:  # one price for all has no two origins
        cli.main([*command, *files, "--cost", str(tmp_path / "a.cost.json")])
    assert stop.value.code == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("part", ["draft", "verify", "catch_up"])
def test_precision_has_an_entry_for_each_cost(part):
    cost = load_cost("traces/tiny-eagle-greedy.cost.json")
    widths = {**cost.precision.half_width, part: cost.precision.half_width[part][:-1]}
    with pytest.raises(ValueError, match=f"precision of {part} has .* entries, expected .*drop it"):
        replace(cost, precision=replace(cost.precision, half_width=widths))


@pytest.mark.parametrize("key", ["precision", "origin"])
@pytest.mark.parametrize("value", [5, None, "x", [1]])
def test_parts_of_a_cost_file_that_are_no_objects_are_refused(tmp_path, key, value):
    data = json.loads(Path("traces/tiny-eagle-greedy.cost.json").read_text(encoding="utf-8"))
    (tmp_path / "a.cost.json").write_text(json.dumps(data | {key: value}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"a\.cost\.json.* expected one object"):
        load_cost(tmp_path / "a.cost.json")
