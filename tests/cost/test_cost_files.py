"""Files of costs: they are read as written, bundled ones are fit to publish, others are refused."""

import json
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from math import hypot, nan

import numpy as np
import pytest
from cost_replicates import replicated
from documents import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from shell import run
from strategies import costs

from real.engines.measure import DRAWS
from real.measure.estimate import KEPT, faster_wider, faster_wider_warning
from simspec import CostModel, synthetic
from simspec.cost.provenance import IDENTITY, CostOrigin
from simspec.cost.table import CostTable, check_comparable, load_cost
from simspec.trace.file import RULES
from simspec.trace.recordings import cost_beside, recordings

TRACES = ROOT / "traces"
RELEASED = sorted(TRACES.glob("*/engines/*.cost.json"))
"""Costs of released engines: their plain pass is what their users get, fair or not."""
FILES = sorted({*TRACES.glob("tiny-*.cost.json"), *TRACES.glob("*/*/*.cost.json")} - {*RELEASED})
TIMED = TRACES / "smollm2" / "h200" / "smollm2-prompt_lookup-greedy.cost.json"
"""Costs whose recording is greedy/prompt_lookup: the GPU's time was over before its own."""
HERE = CostOrigin("cpu A", 1, "float32", {"target": "eager"}, {"torch": "2"}, "2026-01-01", "s")
UNIT = CostModel.from_ratio(0.2, 2)


def identify(path):
    return str(path.relative_to(TRACES)).removesuffix(".cost.json")


# Files that simspec wrote.


@settings(deadline=None)
@given(costs())
def test_a_cost_survives_a_file(tmp_path_factory, cost):
    path = tmp_path_factory.mktemp("cost") / "c.json"
    cost.to_json(path)
    assert CostModel.from_json(path) == load_cost(path) == cost
    table = CostTable.from_json(path)
    assert (table.batch, table.context, table.at()) == ((1,), (0,), cost)


@pytest.mark.parametrize("path", sorted(TRACES.rglob("*.cost.json")), ids=identify)
def test_bundled_files_are_written_as_they_were_read(path, tmp_path):
    load_cost(path).to_json(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_files_keep_the_origin(tmp_path):
    model, path = replace(UNIT, origin=HERE), tmp_path / "c.json"
    assert model.truncate(1).reading(["confidence"]).origin == HERE
    table = CostTable((1, 4), (8, 16), ((model, model), (None, model)))
    table.to_json(path)
    held = json.loads(path.read_text())
    assert load_cost(path) == table
    assert held["origin"] == HERE.to_dict()
    assert "origin" not in held["cells"][0][0]
    assert table.at(1, 12).origin == HERE
    mixed = CostTable((1,), (8, 16), ((model, UNIT),))
    mixed.to_json(path)
    assert load_cost(path) == mixed
    assert mixed.origin is mixed.at(1, 12).origin is None


# Bundled costs are fit to publish.


UNPRICED = ("engines", "beams")
"""Recordings of engines, and beams, which the greedy recording's costs price."""


def test_every_recording_has_its_costs():
    held = [
        *TRACES.glob("tiny-*.parquet"),
        *(p for p in TRACES.glob("*/*/*.parquet") if p.parent.name not in UNPRICED),
    ]
    assert sorted([TIMED, *(path.with_suffix(".cost.json") for path in held)]) == FILES


@pytest.mark.parametrize("path", FILES, ids=identify)
def test_no_bundled_cost_warns_or_has_a_handicapped_pass(path):
    cost = load_cost(path)
    assert cost.precision.warnings == ()
    assert len(cost.replicates) == KEPT
    assert 0 <= cost.precision.disturbed <= cost.precision.blocks / 2 > 0
    rounds = cost.draft + cost.verify[: cost.K + 1] + cost.overhead
    assert (rounds >= 0.98 * cost.baseline).all()  # no speedup exceeds its tokens a round
    assert faster_wider_warning(cost) == []
    rows = np.array(cost.precision.replicates["verify"])
    rows[:, 0] *= 1.5 * rows.mean() / rows[:, 0].mean()
    handicapped = {**cost.precision.replicates, "verify": rows.tolist()}
    control = replace(cost, precision=replace(cost.precision, replicates=handicapped))
    coder = TRACES / "coder"  # 4 to 6 blocks of the 8 that it needs
    few = path.parent == coder / "greedy" or path == coder / "coupled" / "eagle.cost.json"
    assert len(faster_wider_warning(control)) == (not few)


def test_costs_of_released_engines_warn_where_a_wider_pass_is_faster():
    page = " ".join((ROOT / "docs" / "engines.md").read_text(encoding="utf-8").split())
    found = set()
    for path in RELEASED:
        for cell in CostTable.from_json(path).known:
            warned = [text for text in cell.warnings if "speedups may exceed tokens a pass" in text]
            assert list(cell.warnings) == warned
            assert cell.precision.disturbed <= cell.precision.blocks / 2
            assert len(warned) == (faster_wider(cell) is not None)
            assert len(cell.replicates) == DRAWS
            if path.name == "vllm-ngram.cost.json":
                assert warned[0].partition(" in this")[0] in page
            found.add(len(warned))
    assert found == {0, 1}


def in_plain_steps(cost, j):
    """(verify[j] / plain, half-width); 2% of each where the file states no interval."""
    widths = []
    for part, index, seconds in (("verify", j, cost.verify[j]), ("baseline", None, cost.baseline)):
        width = cost.precision.half_width[part]
        width = width[index] if width and index is not None else width
        widths.append((width or 0.02 * seconds) / seconds)
    ratio = cost.verify[j] / cost.baseline
    return ratio, ratio * hypot(*widths)


SITTINGS = *("tiny-*-greedy", "tiny-*-coupled"), *(f"smollm2/{rule}/*" for rule in RULES[:3])


@pytest.mark.parametrize("names", SITTINGS)
def test_verification_in_plain_steps_agrees_between_drafters(names):
    """But for early exits, whose verification skips layers that their drafts have run."""
    files = [path for path in FILES if path.match(f"{names}.cost.json")]
    held = [load_cost(path) for path in files if "early_exit" not in path.name]
    assert len(held) >= 5
    for a, b in combinations(held, 2):
        for j in range(min(a.K, b.K) + 1):
            (ours, wide), (theirs, also_wide) = in_plain_steps(a, j), in_plain_steps(b, j)
            assert abs(ours - theirs) <= hypot(wide, also_wide), (a.name, b.name, j)


def test_bundled_costs_share_one_origin():
    origins = [load_cost(cost_beside(path)).origin for path in recordings().values()]
    assert all(origin is not None and origin.known for origin in origins)
    assert len({(o.device, o.threads, o.dtype, o.sitting) for o in origins}) == 1


# Files of strangers.


def put(*path_and_value):
    """A change of the JSON at a path; "drop" as the value removes it."""
    *path, last, value = path_and_value

    def change(data):
        for key in path:
            data = data[key]
        if value == "drop":
            data.pop(last)
        else:
            data[last] = value

    return change


WITH_ORIGIN = replace(UNIT, origin=HERE)
TABLE = CostTable((1, 4), (64, 128), ((UNIT, UNIT), (UNIT, UNIT)))
PRICED = replicated(replace(UNIT, predictor=0.001), R=3)
RATIOS = "precision", "replicates"
REFUSED = [
    *((UNIT, *case) for case in [
        (put("verify", "drop"), r"missing keys \['verify'\]"),
        (put("gpu", "x"), r"unknown keys \['gpu'\]"),
        (put("draft", [0, "a", 2]), "draft is .* expected float, got str"),
        (put("draft", [0.5, 1, 2]), r"draft\[0\] is 0.5"),
        (put("verify", [1, 1]), "draft has 3 entries and verify 2"),
        (put("draft", 7), "draft is 7"),
        (put("verify", [1, -1, 1]), "verify is not"),
        (put("verify", [1, 10**400, 1]), "out of range"),
        *((put(part, [0, 1.1e9, 1]), "at most 1e") for part in ("draft", "verify")),
        *((put(part, 1.1e9), "<= 1000000000.0") for part in ("overhead", "baseline", "feature")),
        (put("baseline", 1e-300), "expected float >= 1e-15"),
        (put("baseline", float("inf")), "baseline is inf"),
        (put("verify", [[1], 1, 1]), "verify is"),
        (put("catch_up", []), "catch_up is not"),
        (put("baseline", 0), "baseline is 0"),
        (put("baseline", True), "baseline is True"),
        (put("overhead", nan), "overhead is nan"),
        (put("name", 3), "name is 3"),
        (put("kv_verify", -1), "kv_verify is -1"),
        (put("kv_verify", "x"), "kv_verify is 'x', expected float"),
        (put("kv_draft", float("inf")), "kv_draft is inf"),
        (put("context", -5), "context is -5"),
        (lambda d: d.update(kv_verify=0.01, context=200), "200 cached tokens"),
        (lambda d: d.update(kv_draft=0.01, context=50), "state smaller terms"),
        *((put(key, value), "expected one object")
          for key, value in product(("precision", "origin"), (5, None, "x", [1]))),
    ]),
    *((WITH_ORIGIN, put("origin", *case), words) for *case, words in [
        ({"device": "cpu"}, "missing keys"),
        ("more", 1, "unknown keys .'more'"),
        ("threads", -1, "threads is -1, expected int >= 0"),
        ("threads", True, "threads is True, expected int"),
        ("dtype", 32, "dtype is 32, expected str"),
        ("engines", {"target": 1}, "engines is .* expected str"),
    ]),
    *((PRICED, put(*case), words) for *case, words in [
        ("precision", "half_width", "draft", [None], "precision of draft has other than 3 entries"),
        ("precision", "samples", "verify", 1, "other lists than"),
        ("precision", "level", "x", "level is 'x'"),
        ("precision", "blocks", -1, "blocks is -1"),
        ("precision", "blocks", 2.0, "blocks is 2.0"),
        ("precision", "disturbed", 10**6, "blocks are disturbed"),
        (*RATIOS, [], "replicates is"),
        (*RATIOS, {"draft": []}, "other parts"),
        (*RATIOS, "more", [1, 1, 1], "other parts"),
        (*RATIOS, "node", [1, 1], "expected one number, 2 to 1000"),
        (*RATIOS, "draft", 1, [0.0], "inhomogeneous"),
        (*RATIOS, "draft", [[], [], []], "precision of draft"),
        (*RATIOS, "draft", [[0.0, 1.0]] * 3, "precision of draft has other than 3 entries"),
        (*RATIOS, "draft", [0, 0, 0], "precision of draft"),
        (*RATIOS, "catch_up", 2, 0, 0.5, "expected 0: no work"),
        (*RATIOS, "verify", 0, 0, nan, "replicates is .* expected float"),
        (*RATIOS, "feature", 0, -1, "expected float >= 0"),
        (*RATIOS, "feature", 0, True, "expected float"),
        (*RATIOS, "feature", [[1.0]] * 3, "feature is"),
        (*RATIOS, "overhead", 1, 1e300, "expected float <= 1"),
        (*RATIOS, "draft", 1, 1, 1e308, "draft is not a non-empty list"),
        (*RATIOS, "predictor", "drop", "replicates of predictor"),
    ]),
    *((TABLE, *case) for case in [
        (put("batch", "drop"), r"missing keys \['batch'\]"),
        (put("gpu", "x"), r"unknown keys \['gpu'\]"),
        (put("batch", [4, 1]), "batch is .* growing integers"),
        (put("batch", [0, 4]), "batch is .* expected int >= 1"),
        (put("batch", [True, 4]), "batch is"),
        (put("batch", [1, 4.0]), "batch is"),
        (put("context", []), "context is"),
        (put("context", "64"), "context is '64', expected array"),
        (put("context", [-1, 64]), "context is .* >= 0"),
        (put("cells", [[None]]), "2 batch sizes x 2 contexts"),
        (put("cells", {}), "cells is {}, expected array"),
        (put("cells", [1, 2]), "cells is .* expected array"),
        (put("cells", 0, [None, None]), "batch 1 has no cell at all"),
        (put("cells", [[None, UNIT.to_dict()]] * 2), "context 64 has no cell at all"),
        (put("cells", 0, 0, 3), "holds a int"),
        (put("cells", 0, 0, "baseline", -1), "baseline is -1"),
        (put("cells", 0, 0, CostModel.from_ratio(0.1, 3).to_dict()), "cells differ in"),
        (put("cells", 0, 0, "catch_up", [0, 1]), "cells differ in"),
        (put("name", 3), "name is 3"),
    ]),
]  # fmt: skip


@pytest.mark.parametrize("cost, change, words", REFUSED)
def test_damaged_files_are_one_line_with_the_path(cost, change, words, tmp_path):
    path, data = tmp_path / "c.json", json.loads(json.dumps(cost.to_dict()))
    change(data)
    path.write_text(json.dumps(data))
    for read in (load_cost, CostTable.from_json):
        with pytest.raises(ValueError, match=words) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: not a cost model: ")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "3", "[" * 200_000, "1" * 5000, "\ud800", None])
def test_files_without_costs_are_refused(tmp_path, text):
    path = tmp_path / "t.json"
    if text is not None:
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    for read in (load_cost, CostModel.from_json, CostTable.from_json):
        with pytest.raises(ValueError, match="not a cost model") as caught:
            read(path)
        assert "\n" not in str(caught.value)


# Origins of costs that are compared.

texts = st.sampled_from(["", "a", "b"])
origins = st.builds(CostOrigin, texts, st.integers(0, 2), texts, st.dictionaries(texts, texts))


@given(origins, origins)
def test_differences_are_symmetric_and_need_two_known_values(ours, theirs):
    assert CostOrigin.from_dict(json.loads(json.dumps(ours.to_dict()))) == ours
    differences = ours.differences(theirs)
    assert differences == theirs.differences(ours)
    assert not ours.differences(ours)
    pairs = {name: {getattr(ours, name), getattr(theirs, name)} - {"", 0} for name in IDENTITY}
    assert set(differences) == {name for name, known in pairs.items() if len(known) == 2}


@given(st.lists(origins | st.none(), min_size=1, max_size=4))
def test_refusal_equals_the_definition(origins):
    held = {f"f{i}": replace(UNIT, origin=origin) for i, origin in enumerate(origins)}
    known = [origin or CostOrigin() for origin in origins]
    refused = any(a.differences(b) for a, b in product(known, known))
    unknown = len(origins) > 1 and not all(origin.known for origin in known)
    assert len(check_comparable(held | {"ratio": 0.1}, mixed=True)) == refused + unknown
    if refused:
        with pytest.raises(ValueError, match="^costs of f. and f. differ in .*--mixed-costs$"):
            check_comparable(held)
    else:
        assert len(check_comparable(held)) == unknown


def test_commands_refuse_mixed_costs_in_one_line(tmp_path, capsys):
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for file, threads in zip(files, (1, 2)):
        synthetic.iid(0.5, 8, 30, 2, seed=1).save(file)
        origin = replace(HERE, threads=threads)
        replace(UNIT, origin=origin).to_json(file.with_suffix(".cost.json"))
    sweep = partial(run, capsys, "sweep", "--policy", "fixed:1", *files)
    code, _, error = sweep()
    assert (code, error.count("\n")) == (2, 1)
    assert "a.cost.json and b.cost.json differ in threads (1 and 2)" in error
    code, out, error = sweep("--mixed-costs")
    assert code == 0 < len(out)
    assert "their speedups do not compare" in error
    # one price for all has no two origins
    assert sweep("--cost", tmp_path / "a.cost.json")[::2] == (0, "")
