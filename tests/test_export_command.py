"""simspec export: its documents, their provenance, and what it refuses."""

import hashlib
import json
from dataclasses import replace

import pytest
from shell import command, contents, refused, simspec

from simspec import CostModel, load_trace, synthetic
from simspec.cost.provenance import CostOrigin
from simspec.cost.table import CostTable
from simspec.engines.formats import EXPORTS, SIDECAR
from simspec.engines.request import Settings
from simspec.reports.speedup_curve import speedup_curve
from simspec.trace.recordings import recordings

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
def test_document_passes_and_its_origin_is_beside_it(folder, tmp_path, name):
    out = tmp_path / "out"
    method = ("--method", "EAGLE3") if name == "sglang-adaptive" else ()
    options = ("--cost", 0.1, *MODEL, *method, "--out", out, "--json")
    printed, _ = simspec("export", name, "a.parquet", *options, cwd=folder)
    text = out.read_text()
    EXPORTS[name].validate(text, Settings(captured=512))
    origin = json.loads((tmp_path / f"out{SIDECAR}").read_text())
    assert origin == json.loads(printed)
    assert origin["document_sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    recorded = hashlib.sha256((folder / "a.parquet").read_bytes()).hexdigest()
    assert origin["recordings"][0]["sha256"] == recorded
    assert origin["costs"] == [{"ratio": 0.1}]
    assert origin["command"].startswith(f"simspec export {name} a.parquet --cost 0.1")
    assert origin["not_covered"]
    speedup = origin["predicted"][0]["speedup"]
    assert speedup["low"] < speedup["value"] < speedup["high"]
    assert {p.name for p in tmp_path.iterdir()} == {"out", f"out{SIDECAR}"}


def test_predicted_gain_is_that_of_the_speedup_curve(folder, tmp_path):
    out = tmp_path / "out"
    simspec("export", "vllm", "a.parquet", "--cost", "one.json", *MODEL, "--out", out, cwd=folder)
    origin = json.loads((tmp_path / f"out{SIDECAR}").read_text())
    trace, cost = load_trace(folder / "a.parquet"), CostModel.from_json(folder / "one.json")
    length = json.loads(out.read_text())["num_speculative_tokens"]
    assert origin["predicted"][0]["policy"] == f"fixed:{length}"
    point = speedup_curve(trace, [], cost)[length]
    speedup = origin["predicted"][0]["speedup"]
    assert speedup["value"] == pytest.approx(point.speedup.value)
    assert speedup["low"] == pytest.approx(point.speedup.low)
    assert speedup["high"] == pytest.approx(point.speedup.high)
    assert origin["costs"][0]["name"] == "one.json"


def test_command_in_the_origin_writes_the_same_again(folder, tmp_path):
    simspec(
        "export", "dynamo", "a.parquet", "b.parquet", "--cost", 0.2, "--policy", "fixed:4",
        "--level", 0.9, "--out", tmp_path / "out", cwd=folder,
    )  # fmt: skip
    before = contents(tmp_path)
    origin = json.loads((tmp_path / f"out{SIDECAR}").read_text())
    assert origin["level"] == 0.9
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
    simspec("export", "tensorrt-llm", *options, "--engine-version", "1.2.0", cwd=folder)
    assert f"1: {one[2]}" in (tmp_path / "out").read_text()
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
        cost = replace(cost, origin=CostOrigin(engines={"target": engine, "drafter": engine}))
        cost.to_json(tmp_path / "cost.json")
        options = ("--cost", tmp_path / "cost.json", *MODEL, "--out", tmp_path / "out")
        _, found[engine] = simspec("export", "vllm", "a.parquet", *options, cwd=folder)
        _, other = simspec("export", "sglang", "a.parquet", *options, cwd=folder)
        assert f"priced on {engine}, not on sglang" in other
        assert "confirm the setting on sglang" in other
    assert found["vllm 0.32.0"] == ""
    assert "priced on prepacked, not on vllm" in found["prepacked"]
    assert "`simspec engine measure vllm` measures vllm's own" in found["prepacked"]
    _, none = simspec("export", "golden-al", "a.parquet", "--cost", 0.1, "--out", tmp_path / "g",
                      cwd=folder)  # fmt: skip
    assert none == ""


@pytest.mark.parametrize(
    "name, policy, flag",
    [
        ("llamacpp", "confidence:0.5,inclusive=false", "--spec-draft-p-min 0.5"),
        ("llamacpp", "confidence:0.5,inclusive=false,K=3", "--spec-draft-n-max 3"),
        ("llamacpp", "fixed:4", "--spec-draft-p-min 0.0"),
        ("transformers", "confidence:0.5", '"assistant_confidence_threshold": 0.5'),
        ("transformers", "hf_heuristic:5", '"num_assistant_tokens_schedule": "heuristic"'),
        ("transformers", "hf_heuristic:5,transient=true", '"heuristic_transient"'),
        ("sglang", "fixed:3", "--speculative-num-draft-tokens 4"),
        ("spec-bench", "confidence:0.5", '"model_id"'),
        ("spec-bench", "oracle", '"model_id"'),
    ],
)
def test_policy_becomes_the_engines_setting(folder, tmp_path, name, policy, flag):
    options = ("--cost", 0.1, *MODEL, "--policy", policy, "--out", tmp_path / "out")
    simspec("export", name, "a.parquet", *options, cwd=folder)
    assert flag in (tmp_path / "out").read_text()


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("vlm", (), "format 'vlm' is unknown, expected one of dynamo,"),
        ("vllm", ("--draft-model", ""), "give --draft-model"),
        ("vllm", ("--method", "eagle9"), "method is 'eagle9'"),
        ("vllm", ("--batch-sizes", "1,8"), "the cost 0.1 is a ratio: measure a cost table"),
        ("vllm", ("--batch-sizes", "1,8", "--cost", "one.json"), "prices one batch size"),
        ("vllm", ("--batch-sizes", "1,x"), "--batch-sizes is '1,x'"),
        ("vllm", ("--batch-sizes", "0", "--cost", "table.json"), "batch sizes are [0]"),
        ("vllm", ("--batch-sizes", "65", "--cost", "table.json"), "asked for 65"),
        ("vllm", ("--context", "7"), "--context is 7"),
        ("vllm", ("--context", "7", "--cost", "table.json"), "has context 0 only"),
        ("vllm", ("--policy", "confidence:0.5"), "has no fixed draft length"),
        ("vllm", ("--policy", "static:2x2"), "submits trees"),
        ("vllm", ("--policy", "tree_oracle"), "submits trees"),
        ("vllm", ("--policy", "fixed:9"), "drafts up to 9"),
        ("vllm", ("--policy", "fixed:0"), "plain decoding is the fastest"),
        ("vllm", ("--cost", "3"), "plain decoding is the fastest"),
        ("vllm", ("--cost", "gone.json"), "gone.json: not a cost model"),
        ("vllm", ("--captured", "-1"), "captured is -1"),
        ("vllm", ("--level", "1"), "level is 1"),
        ("vllm", ("--out", "nowhere/out"), "no folder nowhere"),
        ("vllm", ("--out", "a.parquet"), "would overwrite a.parquet"),
        ("vllm", ("--cost", "one.json", "--out", "one.json"), "would overwrite one.json"),
        ("sglang", ("--method", "NGRAMS"), "is 'NGRAMS'"),
        ("sglang-adaptive", ("--method", "STANDALONE"), "expected one of EAGLE, EAGLE3"),
        ("sglang", ("--cost", "table.json"), "this format holds one length"),
        ("tensorrt-llm", ("--cost", "table.json"), "give --engine-version"),
        ("llamacpp", ("--policy", "confidence:0.5"), "confidence:0.5,inclusive=false"),
        ("llamacpp", ("--policy", "hf_heuristic:5"), "no setting that drafts as policy"),
        ("transformers", ("--policy", "confidence:0.5,inclusive=false"), "inclusive=true"),
        ("transformers", ("--method", "mtp"), "--method is 'mtp'"),
        ("dynamo", ("--policy", "fixed:6"), "takes at most 5"),
        ("spec-bench", ("--cost", "table.json"), "give --batch-sizes 1"),
    ],
)
def test_what_cannot_be_exported_is_refused(folder, name, options, words):
    given = dict(zip(("--cost", "--out", "--draft-model"), (0.1, "out", "DRAFT")))
    given |= dict(zip(options[::2], options[1::2]))
    words_of = [word for pair in given.items() for word in pair]
    refused(folder, "export", name, "a.parquet", *words_of, words=words)


@pytest.mark.parametrize(
    "name, words",
    [
        ("vllm", "vLLM has no counterpart of drafter 'hydra'"),
        ("sglang", "SGLang has no counterpart"),
        ("sglang-adaptive", "SGLang's adaptive mode has no counterpart"),
        ("tensorrt-llm", "TensorRT-LLM has no counterpart"),
        ("llamacpp", "llama.cpp has no counterpart"),
        ("transformers", "transformers has no counterpart"),
    ],
)
def test_engine_without_the_drafter_is_refused(folder, name, words):
    options = ("--cost", 0.1, *MODEL, "--out", "out")
    refused(folder, "export", name, "hydra.parquet", *options, words=words)


def test_recordings_of_two_drafters_are_refused(folder):
    options = ("--cost", 0.1, *MODEL, "--out", "out")
    words = "differ in drafter ('model' and 'hydra')"
    refused(folder, "export", "vllm", "a.parquet", "hydra.parquet", *options, words=words)


def test_a_recording_counts_once(folder):
    options = ("--cost", 0.1, *MODEL, "--out", "out")
    words = "a recording is given twice"
    refused(folder, "export", "vllm", "a.parquet", "./a.parquet", *options, words=words)


def test_costs_of_two_devices_need_a_word(folder, tmp_path):
    for name, device in (("a", "H100"), ("b", "H200")):
        trace = load_trace(folder / f"{name}.parquet")
        trace.save(tmp_path / f"{name}.parquet")
        cost = CostModel.from_ratio(0.1, 6)
        origin = CostOrigin(device=device, threads=1, dtype="float32")
        replace(cost, origin=origin).to_json(tmp_path / f"{name}.cost.json")
    options = ("export", "vllm", "a.parquet", "b.parquet", *MODEL)
    refused(tmp_path, *options, "--out", "out", words="differ in device (H100 and H200)")
    words = "would overwrite b.cost.json"
    refused(tmp_path, *options, "--mixed-costs", "--out", "b.cost.json", words=words)
    _, note = simspec(*options, "--mixed-costs", "--out", "out", cwd=tmp_path)
    assert "their speedups do not compare" in note
    origin = json.loads((tmp_path / f"out{SIDECAR}").read_text())
    assert [cost["origin"]["device"] for cost in origin["costs"]] == ["H100", "H200"]
    assert "--mixed-costs" in origin["command"]


def test_refused_export_leaves_the_old_file(folder, tmp_path):
    (tmp_path / "out").write_text("old")
    before = contents(tmp_path)
    options = ("--cost", 3, *MODEL, "--out", tmp_path / "out")
    code, _, _ = command(folder, "export", "vllm", "a.parquet", *options)
    assert code == 2
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "recording, options",
    [
        ("tiny-model-greedy", ()),
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
