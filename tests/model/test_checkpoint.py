"""Checkpoints round-trip, with transformers too; unusable ones are refused in one line."""

import json
import pickle
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from toy_lm import toy_decoder
from transformers import AutoModelForCausalLM

from real.drafters.model import ModelDrafter
from real.files import replace_json
from real.model.checkpoint import WeightsError, from_hf_name, load_decoder, save_decoder, to_hf_name
from real.model.decoder import Decoder, frequencies
from real.model.stored_weights import weights_id
from real.model.target import Target

TEXT = torch.arange(20)[None]


def decoder_of(seed=0, **changes):
    """A random float32 decoder whose norms are not all ones."""
    decoder = toy_decoder(seed, layers=3)
    decoder = (
        decoder
        if not changes
        else Decoder(replace(decoder.config, **changes)).double().requires_grad_(False)
    )
    generator = torch.Generator().manual_seed(seed)
    for p in decoder.parameters():
        p.copy_(torch.randn(p.shape, generator=generator) * 0.3 + (p.ndim == 1))
    return decoder.float()


@pytest.fixture
def folder(tmp_path):
    save_decoder(decoder_of(), tmp_path, end_token=3, context=64)
    return tmp_path


def refused(words, load, *args):
    """Checks that loading raises a WeightsError of one line that says so."""
    with pytest.raises(WeightsError, match=words) as caught:
        load(*args)
    assert "\n" not in str(caught.value)


def configure(folder, **changes):
    replace_json(folder / "config.json", json.loads((folder / "config.json").read_text()) | changes)


@pytest.mark.parametrize("tied", [True, False])
def test_saved_decoder_loads(tmp_path, tied):
    decoder = decoder_of(tied=tied, rope_theta=5e5, norm_eps=1e-4)
    save_decoder(decoder, tmp_path, end_token=3, context=64)
    loaded = load_decoder(tmp_path)
    assert loaded.config == decoder.config
    assert loaded.dtype == torch.float32
    assert not any(p.requires_grad for p in loaded.parameters())
    rounded = {k: v.bfloat16().float() for k, v in decoder.state_dict().items()}
    assert all(torch.equal(rounded[k], v) for k, v in loaded.state_dict().items())
    # bf16 does round
    assert any(not torch.equal(rounded[k], v) for k, v in decoder.state_dict().items())
    assert {v.dtype for v in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_loads_saved_decoders(tmp_path, tied):
    save_decoder(decoder_of(tied=tied), tmp_path, end_token=3, context=64)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.inference_mode():
        theirs_, ours_ = model(TEXT).logits, load_decoder(tmp_path)(TEXT)
    assert torch.allclose(theirs_, ours_, rtol=0, atol=1e-5)
    assert not torch.allclose(theirs_, decoder_of(1, tied=tied)(TEXT), atol=1e-1)
    assert model.generation_config.eos_token_id == 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_decoder_loads_in_any_dtype(folder, dtype):
    loaded, plain = load_decoder(folder, dtype), load_decoder(folder)
    assert loaded.dtype == dtype
    assert all(torch.equal(a.float(), b) for a, b in zip(loaded.parameters(), plain.parameters()))


def test_names_are_translated_in_both_directions():
    rich = decoder_of(qkv_bias=True, output_bias=True, qk_norm=True, tied=False)
    for name in rich.state_dict():
        assert from_hf_name(to_hf_name(name)) == name
    assert to_hf_name("layers.2.key_norm.weight") == "model.layers.2.self_attn.k_norm.weight"


@pytest.mark.parametrize(
    "changes, words",
    [
        (
            dict(model_type="gpt2"),
            "'gpt2' is not supported; expected one of llama, mistral, qwen2, qwen3",
        ),
        (dict(model_type="nonesuch"), "nonesuch"),
        (dict(model_type=None), "model.type"),
        (dict(model_type="mistral", sliding_window=0), "sliding_window is 0"),
        (
            dict(model_type="qwen3", layer_types=["chunked_attention"] * 3),
            "'chunked_attention' are not supported",
        ),
        (dict(hidden_act="gelu"), "SwiGLU"),
        (dict(mlp_bias=True), "SwiGLU"),
        (dict(attention_bias=True), "bias"),
        (dict(model_type="mistral", attention_bias=True), "attention_bias is unknown in family"),
        (dict(quantization_config=dict(quant_method="gptq", bits=4)), "quantized weights"),
        (dict(max_position_embeddings=0), "max_position_embeddings is 0"),
        (dict(rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=2.0)), "'dynamic'"),
        (
            dict(
                rope_parameters=dict(
                    rope_type="longrope", rope_theta=1e4, short_factor=[1.0] * 4,
                    long_factor=[2.0] * 4, original_max_position_embeddings=32
                )
            ),
            "'longrope' changes with the length",
        ),
        (dict(rope_parameters=dict(rope_type="spiral", rope_theta=1e4)), "'spiral'"),
        (
            dict(rope_parameters=dict(rope_type="default", partial_rotary_factor=0.5)),
            "partial_rotary_factor 0.5",
        ),
        (dict(hidden_size="wide"), "hidden_size"),
        (dict(hidden_size=24), "shape|mismatch|do not fit"),
        (dict(num_hidden_layers=4), "layers.3"),
        (dict(num_hidden_layers=2), "layers.2"),
    ],
)  # fmt: skip
def test_unsupported_config_is_refused(folder, changes, words):
    load_decoder(folder)  # it is the change that is refused
    configure(folder, **changes)
    refused(words, load_decoder, folder)


@pytest.mark.parametrize(
    "changes, context, window",
    [
        (dict(), 64, None),
        (dict(sliding_window=16), 64, None),  # Llama knows no windows
        (dict(model_type="mistral", sliding_window=None), 64, None),
        (dict(model_type="mistral", sliding_window=64), 64, 64),
        (dict(model_type="mistral", sliding_window=20), 20, 20),
        (dict(model_type="mistral", sliding_window=4096), 64, 4096),
    ],
)
def test_context_is_limited_by_the_window(folder, changes, context, window):
    configure(folder, **changes)
    decoder = load_decoder(folder)
    assert (decoder.context, decoder.window) == (context, window)
    assert torch.isfinite(decoder(TEXT)).all()  # 20 tokens


def test_sequence_beyond_the_window_is_refused(folder):
    configure(folder, model_type="mistral", sliding_window=19)
    decoder = load_decoder(folder)
    words = "20 tokens is longer than the model's attention window of 19"
    with pytest.raises(ValueError, match=words):
        decoder(TEXT)
    target, tokens = Target(decoder), TEXT[0].tolist()
    with pytest.raises(ValueError, match=words):
        target.prefill(tokens)
    target.prefill(tokens[:18])
    target.verify(tokens[18:19], [-1])
    target.commit([0])
    with pytest.raises(ValueError, match=words):
        target.verify(tokens[19:], [-1])


@pytest.mark.parametrize("file, left, words", [
    ("config.json", 20, "JSON"),
    *(("model.safetensors", left, "cannot be loaded") for left in (0, 5, 300, -1)),
])  # fmt: skip
def test_truncated_files_are_refused(folder, file, left, words):
    (folder / file).write_bytes((folder / file).read_bytes()[:left])
    refused(words, load_decoder, folder)


class Bomb:
    """Leaves a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_pickle_is_refused_unopened(folder):
    (folder / "model.safetensors").unlink()
    file, mark = folder / "pytorch_model.bin", folder / "exploded"
    file.write_bytes(pickle.dumps(Bomb(mark)))
    refused("model.safetensors", load_decoder, folder)
    assert not mark.exists()
    pickle.loads(file.read_bytes()).close()  # control: the bomb is live
    assert mark.exists()


@pytest.mark.parametrize("changes", [{"qkv_bias": True}, {"qk_norm": True}, {"output_bias": True}])
def test_save_refuses_configs_beyond_llama_and_stretched_rotations(tmp_path, changes):
    plain = decoder_of()
    stretched = Decoder(plain.config, frequencies(plain.config) / 2)
    for decoder in (decoder_of(**changes), stretched):
        with pytest.raises(WeightsError):
            save_decoder(decoder, tmp_path, end_token=3, context=64)
        assert not (tmp_path / "model.safetensors").exists()


def test_drafter_with_another_vocabulary_is_refused(folder):
    drafter = ModelDrafter.load(folder, decoder_of(), "any")
    assert torch.equal(drafter.lm(TEXT), load_decoder(folder)(TEXT))
    refused("24 tokens, the target 30", ModelDrafter.load, folder, decoder_of(vocab=30), "any")


def test_identity_depends_on_the_weights(folder, tmp_path_factory):
    same, other = tmp_path_factory.mktemp("same"), tmp_path_factory.mktemp("other")
    save_decoder(decoder_of(), same, end_token=3, context=64)
    save_decoder(decoder_of(1), other, end_token=3, context=64)
    assert weights_id(folder) == weights_id(same) != weights_id(other)
    assert weights_id("owner/name") == "owner/name"
