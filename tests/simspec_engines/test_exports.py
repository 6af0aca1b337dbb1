"""simspec export: the lengths that replay chooses, each engine's document, its origin, refusals."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from shell import contents, refused, simspec
from strategies import traces

from simspec import CostModel, load_trace, policies, replay, synthetic
from simspec.cost.provenance import CostOrigin
from simspec.cost.table import CostTable
from simspec.engines import EXPORT_FORMATS, Export
from simspec.engines.choice import (
    TIE,
    Choice,
    Evidence,
    Schedule,
    acceptance_by_depth,
    best_length,
    cap,
    choose,
)
from simspec.engines.exports import EXPORTS, SIDECAR, Request, lengths_by_batch, read_vllm
from simspec.numerics.stats import Estimate
from simspec.replay.evaluation import evaluate
from simspec.trace.recordings import recordings

SETTINGS = Export("vllm", (), Path("out"), draft_model="a draft's path")
TRACE = synthetic.iid(0.6, 2, 20, 12, seed=1)
GAIN = Estimate(1.0, 1.0, 1.0, 0.95, 9)


@st.composite
def schedules(draw, most=12):
    batch = tuple(sorted(draw(st.sets(st.integers(1, 600), min_size=1, max_size=6))))
    lengths = st.lists(st.integers(0, most), min_size=len(batch), max_size=len(batch))
    return Schedule(batch, tuple(draw(lengths)))


def evidence(trace, batch=(1,), cost=None, drafter="model"):
    trace = replace(trace, meta=replace(trace.meta, drafter=drafter))
    cost = cost or CostModel.from_ratio(0.1, trace.K)
    return Evidence({"t": trace}, tuple(batch), {"t": (cost,) * len(batch)})


def at(schedule, batch):
    """The draft length at that batch size."""
    return next(k for size, k in zip(*schedule) if batch <= size)


def document(format, schedule, drafter="model", policy=None, trace=TRACE, **options):
    """The text of a format for these draft lengths, or for a policy."""
    batch = schedule.batch if schedule else (1,)
    names = tuple(f"fixed:{k}" for k in schedule.length) if schedule else (policy,)
    choice = Choice(names, schedule, (GAIN,) * len(batch))
    given = replace(SETTINGS, **options)
    return EXPORTS[format].write(Request(evidence(trace, batch, drafter=drafter), choice, given))


def flags(text):
    """{flag: value} of a line without quotes."""
    words = text.split()
    return dict(zip(words[::2], words[1::2]))


@given(schedules(), st.integers(1, 600))
def test_steps_are_the_schedule(schedule, batch):
    found = [k for low, high, k in schedule.steps if low <= batch <= high]
    assert found == ([at(schedule, batch)] if batch <= schedule.batch[-1] else [])
    assert all(a[2] != b[2] for a, b in zip(schedule.steps, schedule.steps[1:]))


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=9), st.integers(0, 9), st.integers(0, 2))
def test_best_length_is_the_smallest_of_the_best(seconds, longest, shortest):
    assume(shortest < len(seconds) and shortest <= longest)
    allowed = range(shortest, min(longest, len(seconds) - 1) + 1)
    best = max(1 / seconds[k] for k in allowed)
    chosen = best_length(seconds, longest, shortest)
    assert chosen in allowed
    assert 1 / seconds[chosen] >= (1 - TIE) * best * (1 - 1e-12)
    assert all(1 / seconds[k] < (1 - TIE) * best * (1 + 1e-12) for k in allowed if k < chosen)


@given(schedules(), st.integers(1, 600))
def test_vllm_drafts_what_was_chosen(schedule, batch):
    assume(schedule.longest)
    config = read_vllm(document("vllm", schedule))
    longest = config["num_speculative_tokens"]
    ranges = config.get("num_speculative_tokens_per_batch_size", [[1, 1, longest]])
    drafted = lengths_by_batch(ranges, longest, batch)[batch]
    assert drafted == at(schedule, min(batch, schedule.batch[-1]))


@given(st.integers(1, 254), st.integers(1, 16))
def test_one_length_in_every_engines_words(k, ngram):
    one, name = Schedule((1,), (k,)), {"draft_model": "D"}
    text = document("sglang", one, **name)
    assert flags(text) == {
        "--speculative-algorithm": "STANDALONE", "--speculative-draft-model-path": "D",
        "--speculative-num-steps": str(k), "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": str(k + 1),
    }  # fmt: skip
    block = flags(document("sglang", one, method="DFLASH", **name))
    assert (block["--speculative-num-draft-tokens"], len(block)) == (str(k + 1), 3)
    text = document("sglang", one, "prompt_lookup")
    assert flags(text)["--speculative-ngram-max-bfs-breadth"] == "1"
    assert flags(document("llamacpp", one, **name)) == {
        "--spec-type": "draft-simple", "--model-draft": "D", "--spec-draft-n-max": str(k),
        "--spec-draft-n-min": "0", "--spec-draft-p-min": "0.0",
    }  # fmt: skip
    text = document("llamacpp", one, f"ngram llamacpp:{ngram}")
    assert flags(text) == {
        "--spec-type": "ngram-simple", "--spec-ngram-simple-size-n": str(ngram),
        "--spec-ngram-simple-size-m": str(k),
    }  # fmt: skip
    config = json.loads(document("vllm", one, f"ngram vllm:1,{ngram}"))
    assert (config["prompt_lookup_max"], config["num_speculative_tokens"]) == (ngram, k)
    assert json.loads(document("vllm", one, "prompt_lookup"))["prompt_lookup_max"] == 3
    assert "model" not in json.loads(document("vllm", one, method="mtp", draft_model=None))


@given(st.floats(0, 1), st.booleans())
def test_thresholds_survive(threshold, inclusive):
    name = policies.confidence(threshold, inclusive=inclusive).name
    if inclusive:
        config = json.loads(document("transformers", None, policy=name))
        assert config["assistant_confidence_threshold"] == threshold
        with pytest.raises(ValueError, match="which drops the token"):
            document("llamacpp", None, policy=name)
    else:
        given = flags(document("llamacpp", None, policy=name, draft_model="D"))
        assert (float(given["--spec-draft-p-min"]), given["--spec-draft-n-max"]) == (
            threshold,
            "12",
        )
        with pytest.raises(ValueError, match="which submits the token"):
            document("transformers", None, policy=name)


def test_planners_are_told_accepted_drafts_by_length(tmp_path):
    lengths = [replay(TRACE, policies.fixed(k)).accepted.mean() for k in range(1, TRACE.K + 1)]
    TRACE.save(tmp_path / "t.parquet")
    for format in ("aiconfigurator", "blis"):
        arguments = ("export", format, "t.parquet", "--cost", 0.1, "--out", "f", "--method", "mtp")
        simspec(*arguments[: -2 if format == "aiconfigurator" else None], cwd=tmp_path)
        lines = [flags(line) for line in (tmp_path / "f").read_text().splitlines()]
        if format == "blis":
            rates = [float(line["--speculative-acceptance-rate"]) for line in lines]
            assert [k * r for k, r in enumerate(rates, 1)] == pytest.approx(lengths, abs=1e-4)
            assert {line["--speculative-method"] for line in lines} == {"mtp"}
        else:
            accepted = [float(line["--nextn-accepted"]) for line in lines]
            assert accepted == pytest.approx(lengths, abs=1e-6)
            assert [line["--nextn"] for line in lines] == [str(k) for k in range(1, TRACE.K + 1)]
        card = json.loads((tmp_path / f"f{SIDECAR}").read_text())["accepted_drafts_by_length"]
        assert card["3"]["value"] == pytest.approx(lengths[2])
    one = ("export", "aiconfigurator", "t.parquet", "--cost", 0.1, "--out", "f")
    simspec(*one, "--policy", "fixed:2", cwd=tmp_path)
    assert flags((tmp_path / "f").read_text())["--nextn"] == "2"


@settings(max_examples=40)
@given(traces(max_K=5, max_sequences=3), st.data())
def test_acceptance_is_counted_in_rounds_with_a_draft(trace, data):
    k = data.draw(st.integers(1, trace.K))
    rounds = replay(trace, policies.fixed(k))
    accepted = rounds.accepted[rounds.drafted > 0]
    if not len(accepted):
        with pytest.raises(ValueError, match="no round"):
            acceptance_by_depth([trace], k)
        return
    expected = [np.mean(accepted > i) for i in range(k)]
    assert acceptance_by_depth([trace], k) == pytest.approx(expected)
    text = document("vllm-synthetic", Schedule((1,), (k,)), "prompt_lookup", trace=trace)
    assert json.loads(text)["synthetic_acceptance_rates"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("batch, most", [(1, 63), (8, 7), (64, 0), (100, 0)])
def test_captured_rows_limit_a_length(batch, most):
    """A batch verifies (length + 1) rows for each sequence."""
    assert cap(batch, 64) == most
    assert cap(batch, 0) == 255


def test_length_falls_where_a_batch_makes_verification_dear():
    trace = synthetic.iid(0.8, 12, 60, 6, seed=2)
    cheap = CostModel.from_ratio(0.02, 6)
    dear = replace(cheap, verify=1.0 + 0.45 * np.arange(7))
    sample = Evidence({"t": trace}, (1, 64), {"t": (cheap, dear)})
    chosen = choose(sample)
    assert chosen.schedule.length[0] > chosen.schedule.length[1] > 0
    assert choose(sample, captured=128).schedule.length[1] == 1
    for size, k in zip((0, 1), chosen.schedule.length):
        speed = [choose(sample, f"fixed:{j}").gains[size].value for j in range(7)]
        assert speed[k] >= (1 - TIE) * max(speed)
        assert chosen.gains[size].value == pytest.approx(speed[k])


@pytest.mark.parametrize("format", EXPORT_FORMATS)
def test_plain_decoding_is_not_exported(format):
    with pytest.raises(ValueError, match="plain decoding is the fastest"):
        document(format, Schedule((1,), (0,)))


@pytest.mark.parametrize("format", ["vllm-synthetic", "sglang", "llamacpp", "transformers"])
def test_one_length_is_not_made_of_several(format):
    with pytest.raises(ValueError, match="this format holds one length"):
        document(format, Schedule((1, 8), (3, 1)))


@pytest.mark.parametrize(
    "config, words",
    [
        ("[1]", "not JSON of a speculative_config"),
        ("{", "not JSON of a speculative_config"),
        ({"num_speculative_tokens": "3"}, "Expected `int`"),
        ({"num_speculative_tokens": 0}, "Expected `int` >= 1"),
        ([], "expected [first batch size"),
        ([[1, 8]], "expected [first batch size"),
        ([[1, 8, 2.5]], "expected [first batch size"),
        ([[2, 8, 3]], "expected a range from 1 on"),
        ([[1, 8, 3], [16, 64, 1]], "expected a range from 9 on"),
        ([[9, 64, 1], [1, 8, 3]], "expected a range from 1 on"),
        ([[1, 8, 5]], "at most 3 tokens"),
    ],
)
def test_vllms_schedules_that_it_would_alter_are_refused(config, words):
    if isinstance(config, list):
        config = {"num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": config}
    with pytest.raises(ValueError) as caught:
        read_vllm(config if isinstance(config, str) else json.dumps(config))
    assert words in str(caught.value)


MODEL = ("--draft-model", "DRAFT")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Recordings of a cheap drafter, and costs of two batch sizes."""
    folder = tmp_path_factory.mktemp("export")
    for name, drafter, seed in (("a", "model", 1), ("b", "model", 2), ("hydra", "hydra", 3)):
        trace = synthetic.iid(0.7, 9, 40, 6, seed=seed, confidence=True)
        replace(trace, meta=replace(trace.meta, drafter=drafter)).save(folder / f"{name}.parquet")
    cheap, dear = CostModel.from_ratio(0.05, 6), CostModel.from_ratio(0.4, 6)
    CostTable((1, 64), (0,), ((cheap,), (dear,)), "two").to_json(folder / "table.json")
    cheap.to_json(folder / "one.json")
    return folder


@pytest.mark.parametrize("name", EXPORTS)
def test_the_origin_of_a_document_is_beside_it(folder, tmp_path, name):
    out = tmp_path / "out"
    options = ("--cost", 0.1, *MODEL, "--out", out, "--json")
    printed, _ = simspec("export", name, "a.parquet", *options, cwd=folder)
    text = out.read_text()
    origin = json.loads((tmp_path / f"out{SIDECAR}").read_text())
    assert origin == json.loads(printed)
    assert text
    assert origin["document_sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    recorded = hashlib.sha256((folder / "a.parquet").read_bytes()).hexdigest()
    assert origin["recordings"][0]["sha256"] == recorded
    assert origin["costs"] == [{"ratio": 0.1}]
    assert origin["command"].startswith(f"simspec export {name} a.parquet --out ")
    assert origin["not_covered"]
    speedup = origin["predicted"][0]["speedup"]
    assert speedup["low"] < speedup["value"] < speedup["high"]
    assert {p.name for p in tmp_path.iterdir()} == {"out", f"out{SIDECAR}"}


def test_predicted_gain_is_that_of_an_evaluation(folder, tmp_path):
    out = tmp_path / "out"
    simspec("export", "vllm", "a.parquet", "--cost", "one.json", *MODEL, "--out", out, cwd=folder)
    origin = json.loads((tmp_path / f"out{SIDECAR}").read_text())
    trace, cost = load_trace(folder / "a.parquet"), CostModel.from_json(folder / "one.json")
    length = json.loads(out.read_text())["num_speculative_tokens"]
    assert origin["predicted"][0]["policy"] == f"fixed:{length}"
    expected = evaluate(trace, [f"fixed:{length}"], cost).speedup(f"fixed:{length}").to_dict()
    assert origin["predicted"][0]["speedup"] == pytest.approx(expected)
    assert origin["costs"][0]["name"] == "one.json"


def test_command_in_the_origin_writes_the_same_again(folder, tmp_path):
    simspec(
        "export", "llamacpp", "a.parquet", "b.parquet", "--cost", 0.2, "--policy", "fixed:4",
        *MODEL, "--captured", 9, "--out", tmp_path / "out", cwd=folder,
    )  # fmt: skip
    before = contents(tmp_path)
    origin = json.loads((tmp_path / f"out{SIDECAR}").read_text())
    assert [recording["name"] for recording in origin["recordings"]] == ["a.parquet", "b.parquet"]
    simspec(*origin["command"].split()[1:], cwd=folder)
    assert contents(tmp_path) == before


def test_lengths_by_batch_size_come_from_the_table(folder, tmp_path):
    options = ("a.parquet", "--cost", "table.json", *MODEL, "--out", tmp_path / "out")
    printed, _ = simspec("export", "vllm", *options, cwd=folder)
    config = json.loads((tmp_path / "out").read_text())
    (one, many) = config["num_speculative_tokens_per_batch_size"]
    assert one[:2] == [1, 1]
    assert many[:2] == [2, 64]
    assert one[2] == config["num_speculative_tokens"] > many[2]
    assert "64" in printed
    simspec("export", "vllm", *options, "--batch-sizes", 64, cwd=folder)
    assert json.loads((tmp_path / "out").read_text())["num_speculative_tokens"] == many[2]


def test_given_length_is_cut_to_the_captured_rows_with_a_note(folder, tmp_path):
    options = ("--cost", "table.json", *MODEL, "--captured", 192, "--out", tmp_path / "out")
    _, note = simspec("export", "vllm", "a.parquet", *options, "--policy", "fixed:4", cwd=folder)
    config = json.loads((tmp_path / "out").read_text())
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 1, 4], [2, 64, 2]]
    assert note.startswith("simspec: fixed:4 is cut where batch (K + 1) exceeds 192 rows\n")


def test_costs_of_another_engine_are_named(folder, tmp_path):
    """The best length belongs to an engine's passes. Control: at its own costs nothing is said."""
    found = {}
    for engine in ("vllm 0.32.0", "prepacked"):
        cost = CostModel.from_ratio(0.05, 6)
        origin = CostOrigin("cpu", engines={"target": engine, "drafter": engine})
        cost = replace(cost, origin=origin)
        cost.to_json(tmp_path / "cost.json")
        options = ("--cost", tmp_path / "cost.json", *MODEL, "--out", tmp_path / "out")
        _, found[engine] = simspec("export", "vllm", "a.parquet", *options, cwd=folder)
        _, other = simspec("export", "sglang", "a.parquet", *options, cwd=folder)
        assert f"priced on {engine}, not on sglang" in other
    assert found["vllm 0.32.0"] == ""
    assert "priced on prepacked, not on vllm" in found["prepacked"]


V1, V2 = "vllm 0.32.0", "vllm 0.33.0, V2 runner"  # costs of `engine measure` before it named V1


@pytest.mark.parametrize(
    "device, engine, version, method, words",
    [
        ("cpu (2 threads)", V1, "0.32.0", "eagle", ""),
        ("NVIDIA H200", V1, "0.32.0", "eagle", "V1 runner, and vLLM serves eagle on V2, whose"),
        ("NVIDIA H200", f"{V1}, V1 runner", "0.32.0", "ngram", "vLLM serves ngram on V2, whose"),
        ("NVIDIA H200", V2, "0.33.0", "eagle", ""),
        ("NVIDIA H200", V2, "0.33.0", "ngram", ""),
        ("NVIDIA H200", V2, "0.26.0", "ngram", "V2 runner, and vLLM serves ngram on V1, whose"),
        ("NVIDIA H200", V2, "0.33.0", "suffix", "vLLM serves suffix on V1, whose"),
        ("cpu", V1, "0.32.0", "medusa", "vLLM 0.33 and later have no method 'medusa'"),
        ("cpu", V1, "", "mlp_speculator", "0.33 and later have no method 'mlp_speculator'"),
        ("cpu", V2, "0.33.0", "medusa", "vLLM 0.33.0 has no method 'medusa', which versions below"),
    ],
)
def test_the_runner_and_the_version_decide_a_vllm_method(
    folder, tmp_path, device, engine, version, method, words
):
    origin = CostOrigin(device, engines={"target": engine}, versions={"vllm": version})
    cell = replace(CostModel.from_ratio(0.05, 6), origin=origin)
    again = replace(cell, origin=replace(origin, sitting="later"))
    CostTable((1, 2), (0,), ((cell,), (again,))).to_json(tmp_path / "cost.json")
    out, refused = tmp_path / "out", version == "0.33.0" and method == "medusa"
    options = ("--cost", tmp_path / "cost.json", *MODEL, "--method", method, "--out", out)
    for format in ("vllm", "vllm-synthetic"):
        printed, error = simspec(
            "export", format, "a.parquet", *options, cwd=folder, code=2 if refused else 0
        )
        assert words in error
        assert error.count("\n") == bool(words)
        assert out.exists() != refused
        if not refused:
            card = json.loads((tmp_path / f"out{SIDECAR}").read_text())
            runner = "V2" if engine == V2 else "V1"
            assert card["costs"][0]["runner"] == runner
            assert f"{runner} runner" in " ".join(printed.split())


def test_vllms_newer_keys_are_read_and_a_lossy_verification_is_refused():
    held = {"num_speculative_tokens": 3, "draft_lm_head_quantization": "fp8", "xpress_topc": 8}
    held["disable_lookahead_block_hashes"] = True
    assert read_vllm(json.dumps(held)) == held
    with pytest.raises(ValueError, match="rejection_sample_method fly is lossy"):
        read_vllm(json.dumps(held | {"rejection_sample_method": "fly"}))


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("vlm", (), "format 'vlm' is unknown, expected one of vllm,"),
        ("vllm", ("--draft-model", ""), "give --draft-model"),
        ("vllm", ("--method", "eagle9"), "--method is 'eagle9'"),
        ("vllm", ("--batch-sizes", "1,8"), "the cost 0.1 prices one of each: measure a cost table"),
        (
            "vllm",
            ("--batch-sizes", "1,8", "--cost", "one.json"),
            "the cost one.json prices one of each",
        ),
        ("vllm", ("--batch-sizes", "1,x"), "--batch-sizes is "),
        ("vllm", ("--batch-sizes", "0", "--cost", "table.json"), "asked for 0"),
        ("vllm", ("--batch-sizes", "65", "--cost", "table.json"), "asked for 65"),
        ("vllm", ("--context", "7"), "context 7 were asked for"),
        ("vllm", ("--context", "7", "--cost", "table.json"), "asked for 7"),
        ("vllm", ("--policy", "confidence:0.5"), "has no fixed draft length"),
        ("vllm", ("--policy", "static:2x2"), "submits trees"),
        ("vllm", ("--policy", "tree_oracle"), "submits trees"),
        ("vllm", ("--policy", "fixed:9"), "drafts up to 9"),
        ("vllm", ("--policy", "fixed:0"), "plain decoding is the fastest"),
        ("vllm", ("--cost", "3"), "plain decoding is the fastest"),
        ("vllm", ("--cost", "gone.json"), "gone.json: not a cost model"),
        ("vllm", ("--captured", "-1"), "--captured is "),
        ("vllm", ("--out", "nowhere/out"), "no folder nowhere"),
        ("vllm", ("--out", "a.parquet"), "would overwrite a.parquet"),
        ("vllm", ("--cost", "one.json", "--out", "one.json"), "would overwrite one.json"),
        ("sglang", ("--method", "NGRAMS"), "is 'NGRAMS'"),
        ("sglang", ("--cost", "table.json"), "this format holds one length"),
        ("llamacpp", ("--policy", "confidence:0.5"), "confidence:0.5,inclusive=false"),
        ("llamacpp", ("--policy", "hf_heuristic:5"), "no setting that drafts as policy"),
        ("transformers", ("--policy", "confidence:0.5,inclusive=false"), "inclusive=true"),
        ("transformers", ("--method", "mtp"), "--method is 'mtp'"),
        ("vllm", ("--engine", "vllm"), "does not read --engine"),
        ("vllm hydra.parquet", (), "differ in drafter ('hydra' and 'model')"),
        ("vllm ./a.parquet", (), "a recording is given twice"),
    ],
)
def test_what_cannot_be_exported_is_refused(folder, name, options, words):
    given = dict(zip(("--cost", "--out", "--draft-model"), (0.1, "out", "DRAFT")))
    given |= dict(zip(options[::2], options[1::2]))
    words_of = [word for pair in given.items() for word in pair]
    refused(folder, "export", *name.split(), "a.parquet", *words_of, words=words)


@pytest.mark.parametrize("name", ["vllm", "sglang", "llamacpp", "transformers"])
def test_engine_without_the_drafter_is_refused(folder, name):
    options = ("--cost", 0.1, *MODEL, "--out", "out")
    words = "has no counterpart of drafter 'hydra'"
    refused(folder, "export", name, "hydra.parquet", *options, words=words)


def test_costs_of_two_devices_are_refused(folder, tmp_path):
    for name, device in (("a", "H100"), ("b", "H200")):
        trace = load_trace(folder / f"{name}.parquet")
        trace.save(tmp_path / f"{name}.parquet")
        cost = CostModel.from_ratio(0.1, 6)
        origin = CostOrigin(device=device, threads=1, dtype="float32")
        replace(cost, origin=origin).to_json(tmp_path / f"{name}.cost.json")
    options = ("export", "vllm", "a.parquet", "b.parquet", *MODEL)
    words = "differ in device (H100 and H200)"
    refused(tmp_path, *options, "--out", "out", words=words)
    refused(tmp_path, *options, "--out", "b.cost.json", words="would overwrite b.cost.json")


@pytest.mark.parametrize(
    "recording, options",
    [
        ("tiny-model-greedy", ("--policy", "hf_heuristic:5,transient=true")),
        ("tiny-model-greedy", ("--policy", "confidence:0.6")),
        ("tiny-prompt_lookup-coupled", ()),
    ],
)
def test_transformers_reads_its_document(tmp_path, recording, options):
    transformers = pytest.importorskip("transformers")
    path = recordings()[recording]
    out = tmp_path / "generation_config.json"
    simspec("export", "transformers", path, *options, "--out", out, cwd=tmp_path)
    config = transformers.GenerationConfig.from_pretrained(tmp_path)
    config.validate(strict=True)
    written = json.loads(out.read_text())
    assert {name: getattr(config, name) for name in written} == written
    assert set(written) <= set(transformers.GenerationConfig().to_dict())
