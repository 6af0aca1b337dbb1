"""Numbers that no table can hold are refused where they are read, in a line that names them."""

import json
import lzma
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_engine import FakeRunner, do_run, prompts
from shell import refused, simspec

from real.audit.runs import load_run
from real.engines import rows
from real.model.checkpoint import WeightsError
from real.model.decoder import MOST, DecoderConfig
from real.model.draft_head import block_count, check_settings
from real.model.stored_weights import MAX_RATIO as WEIGHTS_RATIO
from real.model.stored_weights import read_bytes
from real.prompts import read_rows
from real.sampling import Rule
from real.train.text import MAX_RATIO, CorpusError, documents
from simspec import CostModel, TraceError, synthetic
from simspec.cost.model import LEAST_SECONDS, MOST_SECONDS
from simspec.cost.table import load_cost
from simspec.engines.documents import read_source


@pytest.mark.parametrize("seconds", [1e308, 1e10, 1.1e9])
@pytest.mark.parametrize("field", ["verify", "draft", "overhead", "baseline", "feature"])
def test_cost_beyond_all_times_is_refused(field, seconds):
    cost = CostModel.from_ratio(0.1, 3).to_dict()
    cost[field] = [0.0, *[seconds] * 3] if field in ("verify", "draft") else seconds
    with pytest.raises(ValueError, match="expected at most 1e"):
        CostModel.from_dict(cost)


def test_baseline_of_no_time_is_refused():
    with pytest.raises(ValueError, match="expected at least 1e-15 seconds"):
        replace(CostModel.from_ratio(0.1, 3), baseline=1e-300)


def test_control_costs_at_the_limits_give_finite_tables(tmp_path):
    """Control: the largest and smallest times give finite speedups."""
    synthetic.iid(0.5, 8, 40, 3).save(tmp_path / "t.parquet")
    for baseline, rest in ((MOST_SECONDS, 1.0), (LEAST_SECONDS, MOST_SECONDS)):
        cost = replace(CostModel.from_ratio(0.1, 3), baseline=baseline, overhead=rest)
        cost.to_json(tmp_path / "c.json")
        out, _ = simspec(
            "sweep", "t.parquet", "--cost", "c.json", "--policy", "fixed:1", "--json", cwd=tmp_path
        )
        for row in json.loads(out)["rows"]:
            assert 0 < row["speedup"] < float("inf")


def test_huge_ratio_is_refused_by_the_command(tmp_path):
    synthetic.iid(0.5, 8, 40, 3).save(tmp_path / "t.parquet")
    refused(tmp_path, "sweep", "t.parquet", "--cost", "1e308", words="expected 0 to 1e+09")


@pytest.mark.parametrize("temperature", [1e-320, 1e-300, 1e-7, 0.0, float("nan")])
def test_temperature_too_small_for_logits_is_refused(temperature):
    with pytest.raises(ValueError, match="expected at least 1e-06"):
        Rule("coupled", temperature)
    assert Rule("coupled", 1e-6).temperature == 1e-6


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.5, 1.5])
def test_ratio_outside_names_its_place_and_value(value):
    trace = synthetic.iid(0.5, 2, 5, 3)
    ratio = np.full((10, 3), 0.5, np.float32)
    ratio[4, 1] = value
    meta = replace(trace.meta, rule="rejection", temperature=1.0)
    with pytest.raises(TraceError, match=r"ratio, row 4, slot 1: \S+, expected a number in"):
        replace(trace, meta=meta, run=np.zeros(10, np.uint8), rank=None, ratio=ratio)


def test_text_that_unpacks_to_gigabytes_is_refused(tmp_path):
    line = json.dumps({"text": "a" * (1 << 16)}).encode() + b"\n"
    (tmp_path / "bomb.jsonl.xz").write_bytes(lzma.compress(line * 200))
    size = (tmp_path / "bomb.jsonl.xz").stat().st_size
    read = 0
    with pytest.raises(CorpusError, match=f"more than {MAX_RATIO} times its size"):
        for row in documents([tmp_path / "bomb.jsonl.xz"]):
            read += len(row["text"])
    assert read <= MAX_RATIO * size


def test_line_that_unpacks_to_gigabytes_is_not_read_whole(tmp_path):
    (tmp_path / "bomb.jsonl.xz").write_bytes(lzma.compress(b"a" * (1 << 25)))
    tracemalloc.start()
    try:
        with pytest.raises(CorpusError, match=f"more than {MAX_RATIO} times its size"):
            list(documents([tmp_path / "bomb.jsonl.xz"]))
        assert tracemalloc.get_traced_memory()[1] < 1 << 24  # half of them for the dictionary
    finally:
        tracemalloc.stop()


def test_one_endless_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("real.train.text.LONGEST_LINE", 1 << 10)
    (tmp_path / "bomb.jsonl").write_text("x" * (1 << 12))
    with pytest.raises(CorpusError, match="line 1 has over 1,024 bytes"):
        list(documents([tmp_path / "bomb.jsonl"]))


def test_control_compressed_text_is_read(tmp_path):
    rows = [{"text": f"text {i} é"} for i in range(300)]
    text = "\n".join(json.dumps(row) for row in rows).encode()
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(text))
    assert [row["text"] for row in documents([tmp_path / "a.jsonl.xz"])] == [
        row["text"] for row in rows
    ]


ENDLESS = {
    "import": lambda path: read_source("vllm-requests", path),
    "costs": load_cost,
    "prompts": read_rows,
    "run": load_run,
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_file_without_an_end_is_refused(monkeypatch, kind):
    monkeypatch.setattr("simspec.engines.documents.LARGEST", 1 << 20)
    monkeypatch.setattr("simspec.output.files.MOST_JSON", 1 << 20)
    monkeypatch.setattr("real.prompts.MOST_BYTES", 1 << 20)
    monkeypatch.setattr("real.audit.runs.LONGEST_LINE", 1 << 20)
    with pytest.raises(ValueError, match="^/dev/zero.*it has over 1,048,576"):
        ENDLESS[kind](Path("/dev/zero"))


def test_weights_that_unpack_to_gigabytes_are_refused(tmp_path):
    packed = lzma.compress(bytes(1 << 26))
    (tmp_path / "w.safetensors.xz").write_bytes(packed)
    tracemalloc.start()
    with pytest.raises(ValueError, match=f"more than {WEIGHTS_RATIO} times its size"):
        read_bytes(tmp_path / "w.safetensors")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 25  # the decoder has a dictionary of its own


@pytest.mark.parametrize("name", MOST)
def test_size_beyond_all_decoders_is_refused(name):
    sizes = dict.fromkeys(MOST, 8)
    DecoderConfig(**sizes | {name: MOST[name]})
    with pytest.raises(ValueError, match=f"{name} is .*, expected an integer of 1 to"):
        DecoderConfig(**sizes | {name: MOST[name] + 1})


@pytest.mark.parametrize("value", [float("inf"), 1e400, 1.5, -1, True, "2", None, 10**9])
def test_number_of_blocks_is_a_small_integer(value):
    with pytest.raises(WeightsError, match="as the number of blocks, expected an integer of 0 to"):
        block_count(value, "config.json")
    assert block_count(5, "config.json") == 5


@pytest.mark.parametrize(
    "settings",
    [{"depth": 1.5}, {"depth": 10**6}, {"layers": 65}, {"heads": 10**9}, {"attention": [0, 1.5]},
     {"norm_eps": float("nan")}, {"norm_eps": 1e44}, {"blocks": {}}],
)  # fmt: skip
def test_settings_of_no_head_are_refused(settings):
    with pytest.raises(ValueError, match="expected an integer of at most"):
        check_settings(settings)


def test_control_settings_of_heads_are_accepted():
    check_settings(
        {"depth": 3, "own_head": True, "layers": 1, "reads": [0, 5], "norm_eps": 1e-6, "kind": "a",
         "shared": -1, "none": None}
    )  # fmt: skip


def test_budget_of_an_engine_row_that_no_recording_holds_is_refused(tmp_path):
    world, path = prompts(3), tmp_path / "r.jsonl"
    do_run(path, FakeRunner(world), world)
    head, line, *_ = path.read_text().splitlines()
    row = json.loads(line)
    row["request"]["max_tokens"] = 1 << 63
    path.write_text(f"{head}\n{json.dumps(row)}\n")
    with pytest.raises(ValueError, match="line 2 is no row.* <= 2147483647"):
        rows.read_rows(path)
