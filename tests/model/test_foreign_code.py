"""No code beside a model runs: kernels, remote classes, adapters, custom generation."""

import json
import os
import subprocess
import sys

import pytest
from toy_checkpoint import qwen2_checkpoint

from real.hf_generate import load_hf_model
from real.model.checkpoint import WeightsError, load_config, load_decoder

RAN = "raise SystemExit(open({marker!r}, 'a').write(__name__ + chr(10)) and 77)\n"
KERNELS = """
MARKER = {marker!r}
class Thing:
    def __init__(self, *_, **__): pass
    def __call__(self, *given, **__): return given[0] if given and callable(given[0]) else self
    def __getattr__(self, name): return Thing()
def get_kernel(name, *_, **__):
    open(MARKER, "a").write("kernel " + str(name) + chr(10))
    raise SystemExit(77)
load_kernel = get_local_kernel = get_kernel
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    return Thing
"""
PROBE = """
import sys
from pathlib import Path
from real.hf_generate import load_hf_model
from real.model.checkpoint import load_decoder, load_tokenizer
from real.model.checkpoint import end_tokens
from real.prompts import load_chat_template
from transformers.utils import is_kernels_available
print("kernels", is_kernels_available())
marker, *folders = map(Path, sys.argv[1:])
for folder in folders:
    for load in (
        load_decoder, load_tokenizer, load_chat_template, 
        lambda f: end_tokens(f, 48), lambda f: load_hf_model(f, "float32", "cpu"),
    ):
        try:
            load(folder)
        except ValueError as error:
            print(folder.name, "refused:", error)
print("ran", marker.read_text() if marker.exists() else "nothing", flush=True)
from transformers import AutoModelForCausalLM
AutoModelForCausalLM.from_pretrained(folders[-1])
"""


def hostile_folder(place, name, marker, config=None, **files):
    """A checkpoint with other keys in config.json, and code beside it that leaves a mark."""
    folder = place / name
    folder.mkdir()
    qwen2_checkpoint(folder)
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stored | (config or {})))
    for code in ("modeling_mine.py", "configuration_mine.py", "custom_generate/generate.py"):
        (folder / code).parent.mkdir(exist_ok=True)
        (folder / code).write_text(RAN.format(marker=str(marker)))
    for file, value in files.items():
        (folder / f"{file}.json").write_text(json.dumps(value))
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("foreign")
    marker = place / "ran"
    (place / "path" / "kernels" / "layer").mkdir(parents=True)
    (place / "path" / "kernels" / "__init__.py").write_text(KERNELS.format(marker=str(marker)))
    for module in ("layer/__init__.py", "layer/mode.py"):
        (place / "path" / "kernels" / module).write_text("class Mode: pass\n")
    (place / "path" / "kernels-0.18.2.dist-info").mkdir()
    (place / "path" / "kernels-0.18.2.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n"
    )
    auto = {
        "AutoConfig": "configuration_mine.Mine", "AutoModelForCausalLM": "modeling_mine.Mine",
        "AutoTokenizer": ["modeling_mine.Mine", None],
    }  # fmt: skip
    adapter = {"base_model_name_or_path": "someone/else", "peft_type": "LORA", "auto_mapping": auto}
    hostile_folder(place, "attention", marker, {"attn_implementation": "someone/kernel"})
    hostile_folder(place, "inner", marker, {"_attn_implementation": "someone/kernel@main:run"})
    hostile_folder(place, "flash", marker, {"attn_implementation": "flash_attention_2"})
    hostile_folder(place, "experts", marker, {"_experts_implementation": "someone/kernel"})
    hostile_folder(
        place, "auto", marker, {"auto_map": auto}, tokenizer_config={"auto_map": auto},
        generation_config={"custom_generate": "someone/generate", "eos_token_id": 2},
    )  # fmt: skip
    hostile_folder(place, "unknown", marker, {"auto_map": auto, "model_type": "mine"})
    hostile_folder(place, "adapter", marker, adapter_config=adapter)
    hostile_folder(place, "control", marker, {"attn_implementation": "someone/kernel"})
    return place


FOLDERS = "attention", "inner", "flash", "experts", "auto", "unknown", "adapter", "control"


@pytest.fixture(scope="module")
def probed(place):
    """A process that loads FOLDERS in every way, and then the last by transformers alone."""
    environment = os.environ | {
        "PYTHONPATH": f"{place / 'path'}{os.pathsep}{os.pathsep.join(sys.path)}",
        "HF_HUB_OFFLINE": "1",
    }
    return subprocess.run(
        [sys.executable, "-c", PROBE, *(str(place / name) for name in ("ran", *FOLDERS))],
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        timeout=300,
    )


def test_nothing_beside_a_model_runs(probed):
    assert "kernels True" in probed.stdout
    assert "ran nothing\n" in probed.stdout, probed.stdout + probed.stderr[-2000:]
    refused = {line.split()[0] for line in probed.stdout.splitlines() if "refused" in line}
    assert refused == {"unknown", "adapter"}


def test_control_transformers_alone_asks_for_the_kernel(place, probed):
    assert probed.returncode == 77, probed.stderr[-2000:]
    assert (place / "ran").read_text().startswith("kernel someone/kernel")


@pytest.mark.parametrize("name", ["attention", "inner", "flash", "experts"])
def test_attention_is_ours_whatever_the_config_says(place, name):
    config = load_config(place / name)
    assert config._attn_implementation == "eager"
    assert config._experts_implementation is None
    assert load_decoder(place / name).config.layers == 3
    model = load_hf_model(place / name, "float32", "cpu")
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    "key, value",
    [
        ("num_hidden_layers", 1_000_000),
        ("num_hidden_layers", 3.5),
        ("hidden_size", 1 << 40),
        ("vocab_size", 10**30),
        ("intermediate_size", -1),
        ("num_attention_heads", True),
        ("rope_theta", 1e44),
        ("rope_theta", float("inf")),
        ("rms_norm_eps", float("nan")),
        ("intermediate_size", 1 << 20),  # within the limits, but not in the file
    ],
)
def test_absurd_sizes_are_refused_before_anything_is_allocated(tmp_path, monkeypatch, key, value):
    folder = hostile_folder(tmp_path, "m", tmp_path / "ran")
    stored = json.loads((folder / "config.json").read_text())
    stored = stored | {key: value}
    if key == "rope_theta":
        stored["rope_parameters"] = {"rope_theta": value, "rope_type": "default"}
    (folder / "config.json").write_text(json.dumps(stored))
    import transformers

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", None)
    with pytest.raises(WeightsError) as error:
        load_decoder(folder)
    assert "NoneType" not in str(error.value)
    assert len(str(error.value)) < 600
