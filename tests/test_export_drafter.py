"""Drafters written for engines: read back they draft the same, and the rest is refused by name."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from served_drafters import CONTEXT, DRAFT_TOKENS, END, SHAPE, VOCAB, make_world, random_prompts
from shell import command, refused
from test_engine_workers import vllm_worker
from toy_checkpoint import qwen2_checkpoint
from toy_lm import NEW
from transformers import AutoModelForCausalLM

from real.drafters import BUILTIN
from real.engines import RELEASED, EngineSettings, ModelDraft
from real.engines.adapter import served_form
from real.engines.export_drafter import SERVED, UNSERVED, drafter_of, export_drafter
from real.model.draft_head import DraftVocabularyHead

CASES = {
    "model": ("model", {"layers": 2}),
    "model of some tokens": ("model", {"layers": 2, "vocabulary": DRAFT_TOKENS}),
    "eagle": ("eagle", {"bias": False}),
    "eagle of two layers": ("eagle", {"bias": False, "layers": 2, "norm_eps": 1e-3}),
    "eagle of all tokens": ("eagle", {"bias": False, "vocabulary": torch.arange(VOCAB)}),
    "medusa": ("medusa", {"heads": 3, "blocks": 2}),
    "medusa with heads": ("medusa", {"heads": 2, "own_head": True}),
    "medusa of some tokens": ("medusa", {"heads": 3, "vocabulary": DRAFT_TOKENS}),
    "medusa with heads of some": (
        "medusa",
        {"heads": 2, "own_head": True, "vocabulary": DRAFT_TOKENS},
    ),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def written(world):
    """{case: (name, the drafter's folder, its export)}, made when first asked for."""

    class Written(dict):
        def __missing__(self, case):
            name, settings = CASES[case]
            place = case.replace(" ", "_")
            folder = world.write(name, place=place, **settings)
            out = world.folder / f"served_{place}"
            export_drafter(folder, world.target, "vllm", out)
            return self.setdefault(case, (name, folder, out))

    return Written()


@pytest.mark.parametrize("case", CASES)
def test_an_export_drafts_what_the_drafter_drafts(world, written, case):
    name, folder, out = written[case]
    prompts = random_prompts(12)
    drafted = world.drafts(name, folder, prompts)
    assert world.drafts(name, out, prompts) == drafted
    assert len({tuple(draft) for draft in drafted}) >= 6
    assert {len(draft) for draft in drafted} == {min(3, CASES[case][1].get("heads", 3))}
    before, after = (world.record(name, place, prompts[:2], 2, 12) for place in (folder, out))
    assert np.array_equal(before.token, after.token)
    assert np.array_equal(before.run, after.run)


@pytest.mark.parametrize("case", CASES)
def test_tensors_and_config_are_those_that_vllm_reads(world, written, case):
    """vllm 0.32, model_executor/models/{llama_eagle,medusa,llama}.py, in names and sizes."""
    name, _, out = written[case]
    assert served_form(out) == {"model": "draft_model"}.get(name, name)
    config, state = (
        json.loads((out / "config.json").read_text()),
        load_file(out / "model.safetensors"),
    )
    settings = CASES[case][1]
    assert config["vocab_size"] == VOCAB
    assert config["hidden_size"] == SHAPE.width
    assert {value.dtype for value in state.values()} == {torch.float32}
    if name == "medusa":
        heads, blocks = settings["heads"], settings.get("blocks", 1)
        own = settings.get("own_head", False)
        assert config["model_type"] == "medusa"
        assert config["num_heads"] == heads
        assert config["num_hidden_layers"] == blocks
        assert config["medusa_fc_bias"] is True
        assert config["original_lm_head"] is not own
        names = {f"blocks.{i}.layers.{j}" for i in range(heads) for j in range(blocks)}
        wanted = {f"{n}.{kind}" for n in names for kind in ("weight", "bias")}
        assert set(state) == wanted | {f"lm_heads.{i}.weight" for i in range(heads if own else 1)}
        assert state["lm_heads.0.weight"].shape == (VOCAB, SHAPE.width)
        return
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["model_type"] == "llama"
    assert config["max_position_embeddings"] == CONTEXT
    assert config["num_attention_heads"] * config["head_dim"] == SHAPE.width
    assert config["rope_theta"] == SHAPE.rope_theta
    if name == "eagle":
        layers = settings.get("layers", 1)
        assert config["num_hidden_layers"] == layers
        assert config["rms_norm_eps"] == settings.get("norm_eps", SHAPE.norm_eps)
        assert state["fc.weight"].shape == (SHAPE.width, 2 * SHAPE.width)
        assert not any(key.endswith(".bias") for key in state)
        assert "layers.0.input_layernorm.weight" not in state
        assert ("layers.1.input_layernorm.weight" in state) == (layers == 2)
        assert not {"lm_head.weight", "embed_tokens.weight"} & set(state)
        assert config["bias"] is False
    else:
        assert config["tie_word_embeddings"] is False
        assert config["eos_token_id"] == END


def test_transformers_loads_the_model_with_the_same_best_tokens(world, written):
    _, folder, out = written["model of some tokens"]
    model = AutoModelForCausalLM.from_pretrained(out)
    text = torch.tensor(random_prompts(6, 1))
    with torch.inference_mode():
        logits = model(text).logits
        whole = AutoModelForCausalLM.from_pretrained(folder)(text).logits
    inside = logits[..., DRAFT_TOKENS]
    assert torch.equal(logits.argmax(-1), DRAFT_TOKENS[inside.argmax(-1)])
    assert not torch.equal(logits.argmax(-1), whole.argmax(-1))  # control: the cut matters


@given(st.integers(0, 2**31), st.integers(2, 11), st.floats(0.1, 10))
def test_the_whole_head_has_the_best_token_of_the_draft_vocabulary(seed, size, scale):
    draw = torch.Generator().manual_seed(seed)
    head = torch.nn.Linear(4, 12, bias=False)
    head.weight.data = torch.randn(12, 4, generator=draw) * scale
    token = torch.randperm(12, generator=draw)[:size].sort().values
    cut = DraftVocabularyHead(head, token)
    x = torch.randn(32, 4, generator=draw)
    assert torch.equal(cut.whole()(x).argmax(-1), cut(x).argmax(-1))


def test_control_rows_of_zeros_draft_outside_where_every_logit_is_negative():
    head = torch.nn.Linear(1, 3, bias=False)
    head.weight.data = torch.tensor([[2.0], [9.0], [3.0]])
    cut, x = DraftVocabularyHead(head, torch.tensor([0, 2])), torch.tensor([[-1.0]])
    zeros = head.weight.data * torch.tensor([[1.0], [0.0], [1.0]])
    assert cut(x).argmax() == cut.whole()(x).argmax() == 0
    assert (x @ zeros.T).argmax() == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "takes no head with a bias of FC: train with --set bias=false"),
        ({"bias": False, "first_norm": True}, "takes no head with a first norm"),
        ({"bias": False, "inputs": "token"}, "takes no head with inputs=token"),
        ({"bias": False, "inputs": "feature"}, "takes no head with inputs=feature: train"),
        (
            {"bias": False, "vocabulary": DRAFT_TOKENS},
            "a draft vocabulary: simspec train eagle --from FOLDER --steps 0 --draft-vocab 48",
        ),
    ],
)
def test_eagle_that_vllm_would_load_wrongly_is_refused_by_name(world, tmp_path, settings, words):
    folder = world.write("eagle", place="other", **settings)
    asked = ("export", "drafter", folder, "--target", world.target, "--engine", "vllm")
    refused(tmp_path, *asked, "--out", "x", words=words)


@pytest.mark.parametrize("name", sorted(set(BUILTIN) - set(SERVED)))
def test_drafters_that_no_engine_loads_are_refused_by_name(world, tmp_path, name):
    """Those of a file that a newcomer adds by their name alone."""
    assert set(BUILTIN) - set(NEW) == set(SERVED) | set(UNSERVED)
    folder = tmp_path / "trained"
    if name in UNSERVED:
        folder.mkdir()
        (folder / UNSERVED[name][0]).write_text("{}")
        (folder / "config.json").write_text("{}")
        assert drafter_of(folder) == name
    assert drafter_of(type(folder)(name)) == name
    for given_as in (folder, name) if name in UNSERVED else (name,):
        asked = ("export", "drafter", given_as, "--target", world.target, "--engine", "vllm")
        refused(tmp_path, *asked, "--out", "x", words=name)


def test_the_bundled_drafters_are_recognized(tmp_path, monkeypatch):
    from real.pair import TINY

    names = {path.name for path in TINY.iterdir() if path.is_dir()} - {"target"}
    assert {name: drafter_of(TINY / name) for name in names} == {name: name for name in names}
    with pytest.raises(ValueError, match="a bias of FC"):
        export_drafter(TINY / "eagle", TINY / "target", "vllm", tmp_path / "x")
    card = export_drafter(TINY / "medusa", TINY / "target", "vllm", tmp_path / "medusa")
    assert card["bytes"] == (tmp_path / "medusa" / "model.safetensors").stat().st_size
    assert card["versions"] == "below 0.33"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["medusa"]
    newer = SimpleNamespace(version="0.33.0")
    monkeypatch.setattr("real.engines.export_drafter.find_environment", lambda engine: newer)
    with pytest.raises(ValueError, match="vLLM 0.33.0 has no method 'medusa'"):
        export_drafter(TINY / "medusa", TINY / "target", "vllm", tmp_path / "none")


def test_other_targets_engines_and_outputs_are_refused(world, written, tmp_path):
    _, folder, out = written["eagle"]
    asked = ("export", "drafter", folder, "--target", world.target, "--out", "x", "--engine")
    refused(tmp_path, *asked, "llamacpp", words="engine is 'llamacpp', expected one of")
    refused(tmp_path, *asked, "transformers", words="transformers loads no eagle heads")
    refused(tmp_path, *asked, "sglang", words="engine is 'sglang', expected one of")
    other = qwen2_checkpoint(tmp_path / "other")
    for place, target, words in (
        (folder, other, "was made for a target with"),
        (folder, tmp_path / "none", "is no folder"),
        (tmp_path / "none", world.target, "holds no drafter"),
    ):
        end = ("--engine", "vllm", "--out", "x")
        refused(tmp_path, "export", "drafter", place, "--target", target, *end, words=words)
    end = ("--engine", "vllm", "--out", out)
    refused(tmp_path, *asked[:5], *end, words="holds files already")


def test_qwen_layers_are_refused(tmp_path):
    target = qwen2_checkpoint(tmp_path / "target")
    end = ("--engine", "vllm", "--out", "x")
    asked = ("export", "drafter", target, "--target", target, *end)
    refused(tmp_path, *asked, words="is no plain Llama")


def test_the_command_says_what_it_wrote(world, written, tmp_path):
    _, folder, _ = written["medusa of some tokens"]
    asked = ("export", "drafter", folder, "--target", world.target, "--engine", "vllm", "--out")
    code, out, _ = command(tmp_path, *asked, "x")
    assert code == 0
    assert "drafter  medusa" in out
    assert f"draft_vocab  {len(DRAFT_TOKENS)}" in out
    card = json.loads(command(tmp_path, *asked, "y", "--json")[1])
    assert card["draft_vocab"] == len(DRAFT_TOKENS)
    assert (tmp_path / "x" / "config.json").read_text() == (
        tmp_path / "y" / "config.json"
    ).read_text()


def test_a_damaged_export_is_refused_when_it_is_read(world, written, tmp_path):
    _, _, out = written["medusa"]
    broken = shutil.copytree(out, tmp_path / "medusa")
    state = load_file(broken / "model.safetensors")
    del state["blocks.1.layers.0.bias"]
    save_file(state, broken / "model.safetensors")
    with pytest.raises(ValueError, match=r"lacks the tensor stacks\.1\.0\.linear\.bias"):
        world.record("medusa", broken, random_prompts(1))
    (broken / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="is no medusa checkpoint"):
        world.record("medusa", broken, random_prompts(1))


def test_the_engine_side_reads_the_method_from_the_folder(world, written):
    vllm, forms = RELEASED["vllm"], {}
    for case in ("model", "eagle", "medusa"):
        out = written[case][2]
        settings = EngineSettings(world.target, ModelDraft(3, out))
        forms[case] = vllm.start(settings)["draft"]["form"]
        for other in ("transformers", "llamacpp"):
            if case == "model":
                continue
            with pytest.raises(ValueError, match=f"{case} heads, which {other} does not load"):
                RELEASED[other].start(settings)
    assert forms == {"model": "draft_model", "eagle": "eagle", "medusa": "medusa"}


def test_what_vllm_would_load_wrongly_does_not_start(world, written, tmp_path):
    out = written["medusa"][2]
    settings = EngineSettings(world.target, ModelDraft(3, out), batch=2)
    start = RELEASED["vllm"].start
    with pytest.raises(ValueError, match="has 3 heads and 4 draft tokens"):
        start(replace(settings, draft=ModelDraft(4, out)))
    with pytest.raises(ValueError, match="medusa drafts one length"):
        start(replace(settings, schedule=((1, 1, 3), (2, 2, 1))))
    silent = shutil.copytree(out, tmp_path / "silent")
    config = json.loads((silent / "config.json").read_text())
    (silent / "config.json").write_text(json.dumps(config | {"medusa_fc_bias": False}))
    with pytest.raises(ValueError, match="without which vLLM drops the biases"):
        start(replace(settings, draft=ModelDraft(3, silent)))
    for case in ("model", "medusa", "eagle"):
        named = shutil.copytree(written[case][2], tmp_path / f"eagle-{case}")
        asked = replace(settings, draft=ModelDraft(3, named))
        if case == "eagle":
            assert start(asked)["draft"]["form"] == "eagle"
            continue
        with pytest.raises(ValueError, match="for another method, since its path holds 'eagle-'"):
            start(asked)


def test_the_worker_gives_vllm_that_method(world, written):
    with vllm_worker("vllm") as vllm:
        for case in ("model", "eagle", "medusa"):
            settings = EngineSettings(world.target, ModelDraft(3, written[case][2]), batch=2)
            options, engine = RELEASED["vllm"].start(settings), object.__new__(vllm.VllmEngine)
            engine.options, engine.draft = options, options["draft"]
            config = engine._speculation()
            assert config["method"] == {"model": "draft_model"}.get(case, case)
            assert config["model"] == str(written[case][2])
            assert config["num_speculative_tokens"] == 3
            scheduled = config.get("num_speculative_tokens_per_batch_size")
            assert scheduled == (None if case == "medusa" else [(1, 2, 3)])
