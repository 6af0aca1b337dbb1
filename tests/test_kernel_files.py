"""Files of kernel times: a checkout of AIConfigurator, damage, sizes, and the command."""

import json
from pathlib import Path

import pandas as pd
import pytest
import shell

from simspec.cost.kernel_files import COLUMNS, checkout_times, kernel_times
from simspec.cost.table import load_cost


def test_tables_stay_small():
    folder = Path(shell.__file__).parents[1] / "simspec" / "published"
    files = sorted((folder / "kernels").iterdir())
    assert [path.stem for path in files] == sorted(COLUMNS)
    assert sum(path.stat().st_size for path in files) <= 700_000
    assert "ai-dynamo/aiconfigurator" in (folder / "SOURCES.md").read_text(encoding="utf-8")


def write_checkout(folder, gemm=None, attention=None):
    """A checkout of one device with two weights and a few cells of attention."""
    data = folder / "aic-core/src/aiconfigurator_core/systems/data/x1_sxm"
    gemm = gemm if gemm is not None else pd.DataFrame(
        [("bfloat16", m, n, 64, 1e-3 * m * n) for n in (64, 128) for m in (1, 8)],
        columns=["gemm_dtype", "m", "n", "k", "latency"],
    )  # fmt: skip
    attention = attention if attention is not None else pd.DataFrame(
        [(b, h, 1, 64, c, 0.5 + b * c) for h in (1, 2) for b in (1, 4) for c in (1, 7)],
        columns=["batch_size", "num_heads", "num_key_value_heads", "head_dim", "step", "latency"],
    ).assign(kv_cache_dtype="bfloat16")  # fmt: skip
    for table, name, frame in (
        ("gemm", "gemm_perf", gemm), ("attention", "generation_attention_perf", attention),
    ):  # fmt: skip
        place = data / table / "vllm" / "0.9.1"
        place.mkdir(parents=True)
        frame.to_parquet(place / f"{name}.parquet")
    return folder


def test_a_checkout_is_read_as_it_is(tmp_path):
    held = checkout_times(write_checkout(tmp_path), "x1", "vllm")
    assert held.version == "0.9.1"
    assert held.product(8, 128, 64, "bf16") == (pytest.approx(1e-6 * 8 * 128), "measured")
    assert held.attend((64, 2, 1), 4, 7) == (pytest.approx(0.0285), "measured")
    assert checkout_times(tmp_path, "x1_sxm", "vllm", "0.9.1").version == "0.9.1"
    # a version may name another's tables
    later = tmp_path / "aic-core/src/aiconfigurator_core/systems/data/x1_sxm"
    for table, name in (("gemm", "gemm_perf"), ("attention", "generation_attention_perf")):
        folder = later / table / "vllm" / "0.10.0"
        folder.mkdir()
        text = f"reuse:\n- table: {name}\n  from_version: 0.9.1\n"
        (folder / "reuse.yaml").write_text(text)
    reused = checkout_times(tmp_path, "x1", "vllm", "0.10.0")
    assert reused.product(8, 128, 64, "bf16") == held.product(8, 128, 64, "bf16")
    with pytest.raises(ValueError, match="no all-reduce of 2 GPUs"):
        held.reduce(2, 100)
    with pytest.raises(ValueError, match="no experts"):
        held.route((1, 1, 1, 1), 1, "bf16", 1)
    with pytest.raises(ValueError, match="in fp8, expected bf16"):
        held.product(1, 64, 64, "fp8")
    with pytest.raises(ValueError, match="heads of 96"):
        held.attend((96, 1, 1), 1, 1)


BAD_GEMM = pd.DataFrame({"gemm_dtype": ["bfloat16"], "m": [1], "n": [64], "k": [64]})


@pytest.mark.parametrize(
    "frame,words",
    [
        (BAD_GEMM, "no column 'latency'"),
        (BAD_GEMM.assign(latency=[float("nan")]), "finite times > 0"),
        (BAD_GEMM.assign(latency=[-1.0]), "finite times > 0"),
        (BAD_GEMM.assign(latency=[1.0], n=[-3]), "expected sizes >= 0"),
        (BAD_GEMM.assign(latency=[1.0], n=[1 << 50]), "expected sizes >= 0"),
        (BAD_GEMM.assign(latency=[1.0], m=["one"]), "other values than numbers"),
        (BAD_GEMM.assign(latency=[1.0], gemm_dtype=["int4"]), "no 16-bit products"),
    ],
)
def test_damaged_tables_are_one_line(tmp_path, frame, words):
    write_checkout(tmp_path, gemm=frame)
    with pytest.raises(ValueError, match=words) as error:
        checkout_times(tmp_path, "x1", "vllm")
    assert "\n" not in str(error.value)


def test_oversized_and_foreign_files_are_refused_before_they_are_read(tmp_path, monkeypatch):
    write_checkout(tmp_path)
    monkeypatch.setattr("simspec.cost.kernel_files.MOST_ROWS", 3)
    with pytest.raises(ValueError, match="expected at most 64000000 and 3"):
        checkout_times(tmp_path, "x1", "vllm")
    monkeypatch.undo()
    monkeypatch.setattr("simspec.cost.kernel_files.MOST_BYTES", 10)
    with pytest.raises(ValueError, match="expected at most 10"):
        checkout_times(tmp_path, "x1", "vllm")
    monkeypatch.undo()
    path = next(tmp_path.rglob("gemm_perf.parquet"))
    whole = path.read_bytes()
    for content in (b"", b"PAR1", whole[: len(whole) // 2], b"x" * 200):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="expected a parquet file") as error:
            checkout_times(tmp_path, "x1", "vllm")
        assert "\n" not in str(error.value)
    for device, engine in (("../x1", "vllm"), ("x1", "llama.cpp"), ("x" * 50, "vllm")):
        with pytest.raises(ValueError, match="expected a folder's name"):
            checkout_times(tmp_path, device, engine)
    for version, words in (("9", "expected one of \\['0.9.1'\\]"), (None, "parquet")):
        with pytest.raises(ValueError, match=words):
            checkout_times(tmp_path, "x1", "vllm", version)
    with pytest.raises(ValueError, match="expected a checkout"):
        checkout_times(tmp_path / "none", "x1", "vllm")
    empty = {name: pd.DataFrame(columns=[*columns, "seconds"]) for name, columns in COLUMNS.items()}
    with pytest.raises(ValueError, match="expected both"):
        kernel_times(empty, ("a", "b", "c", "d"))


def test_command_prices_an_engine(tmp_path):
    out, _ = shell.simspec(
        "roofline", "--engine", "vllm", "--target", "llama-3.1-8b", "--drafter", "eagle3", "-k", 3,
        "--batch", 1, "--batch", 8, "--constants", "step=0.5,row=0.01", "--out", "c.json",
        cwd=tmp_path,
    )  # fmt: skip
    for words in ("h100 with vllm 0.24.0", "AIConfigurator 095f58a", "0.5 ms a target pass",
                  "extrapolated of its seconds", "error to expect"):  # fmt: skip
        assert words in " ".join(out.split())
    table = load_cost(tmp_path / "c.json")
    assert table.batch == (1, 8)
    assert table.cells[0][0].overhead == 0.0005
    shell.simspec("batch", "tiny-eagle-greedy", "--cost", "c.json", "-b", 8, cwd=tmp_path)
    out, _ = shell.simspec(
        "roofline", "--engine", "sglang", "--device", "h200", "--target", "qwen3-30b-a3b",
        "--drafter", "ngram", "-k", 2, "--graphs", "--json", "--out", "m.json", cwd=tmp_path,
    )  # fmt: skip
    assert not any(json.loads(out)["draft"])


@pytest.mark.parametrize(
    "options,words",
    [
        (("--engine", "tgi"), "expected one of a100 vllm"),
        (("--engine", "vllm", "--device", "b300"), "AIConfigurator checkout"),
        (("--engine", "vllm", "--launch", "1e-6"), "drop it"),
        (("--engine", "vllm", "--constants", "host=1"), "no constant"),
        (("--engine", "vllm", "--constants", "row=x"), "expected milliseconds"),
        (("--engine", "vllm", "--kernels", "."), "expected a checkout"),
        (("--tp", "2"), "without --engine"),
        (("--engine", "vllm", "--drafter", "0.5"), "drafter '0.5' is unknown"),
        (("--drafter", "0.5", "--target", "qwen3-30b-a3b"), "--engine prices"),
    ],
)
def test_command_refuses_in_one_line(tmp_path, options, words):
    shell.refused(
        tmp_path, "roofline", "--target", "llama-3.1-8b", "--drafter", "eagle3", "--out", "c.json",
        *options, words=words,
    )  # fmt: skip
