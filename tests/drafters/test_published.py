"""Random checkpoints in the published formats load as their reference code does, or are refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_checkpoint import decoder_of, refused
from transformers import LlamaConfig, LlamaModel

from real.drafters.eagle import KIND

TEXT = torch.arange(12)[None] % 20


def llama_config(decoder, layers, **changes):
    """config.json as released: a Llama's, of so many layers."""
    s = decoder.config
    sizes = {
        "vocab_size": s.vocab,
        "hidden_size": s.width,
        "intermediate_size": s.hidden,
        "num_attention_heads": s.heads,
    }
    plain = {
        "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_scaling": None,
        "tie_word_embeddings": False,
    }  # fmt: skip
    return (
        sizes | plain | {"num_key_value_heads": s.kv_heads, "num_hidden_layers": layers} | changes
    )


def eagle_release(folder, decoder, layers=1, bias=True, first_norm=False, **changes):
    """Write a release; return its (features, tokens) -> estimates in transformers layers."""
    torch.manual_seed(7)
    config = llama_config(decoder, layers, **changes)
    model = LlamaModel(LlamaConfig(**config)).eval().requires_grad_(False)
    for p in model.parameters():
        p.copy_(torch.randn(p.shape) * 0.2 + (p.ndim == 1))
    model.embed_tokens.weight.copy_(decoder.embed.weight)
    if not first_norm:
        model.layers[0].input_layernorm = torch.nn.Identity()
    model.norm = torch.nn.Identity()
    fc = torch.nn.Linear(2 * decoder.config.width, decoder.config.width, bias=bias).requires_grad_(
        False
    )
    state = {k: v.clone() for k, v in model.state_dict().items()} | {
        f"fc.{k}": v.clone() for k, v in fc.state_dict().items()
    }
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    if not bias:
        config["bias"] = False
    (folder / "config.json").write_text(json.dumps(config))
    return lambda feature, token: (
        model(inputs_embeds=fc(torch.cat((decoder.embed(token), feature), -1))).last_hidden_state
    )


def squared():
    """A target whose head_dim is hidden size / heads, as released EAGLE files assume."""
    return decoder_of(heads=2, head_dim=8)


def load(folder, decoder):
    return KIND.load(folder, decoder, {})


def edit(folder, change):
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors")


def configure(folder, **changes):
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("form", [{}, {"bias": False}, {"layers": 2}, {"first_norm": True}])
def test_released_eagle_equals_its_definition(tmp_path, form):
    decoder = squared()
    released = eagle_release(tmp_path, decoder, **form)
    names = set(load_file(tmp_path / "model.safetensors"))
    assert {
        "fc.weight",
        "embed_tokens.weight",
        "layers.0.self_attn.q_proj.weight",
        "layers.0.post_attention_layernorm.weight",
    } <= names
    assert ("fc.bias" in names) == form.get("bias", True)
    drafter = load(tmp_path, decoder)
    assert drafter.head.settings["norm_eps"] == 1e-6
    assert not any(p.requires_grad for p in drafter.head.parameters())
    feature = torch.randn(1, 11, decoder.config.width)
    mine = drafter.head.teacher_forced(decoder, feature, TEXT)
    torch.testing.assert_close(mine, released(feature, TEXT[:, 1:]), rtol=1e-4, atol=1e-5)
    assert (mine - released(feature, TEXT[:, :-1])).abs().max() > 1e-2  # control: the token before


def swap(name, make):
    return lambda state: state.update({name: make(state[name])})


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda state: state.pop("fc.weight"),
            "no EAGLE checkpoint: .* lacks the tensor fc.weight",
        ),
        (lambda state: state.pop("layers.0.mlp.up_proj.weight"), "lacks the tensor layers.0.up"),
        (lambda state: state.update(d2t=torch.zeros(4)), "has a tensor d2t"),
        (swap("fc.weight", lambda w: w / 0), "fc.weight that is not of finite numbers"),
        *(
            (swap("embed_tokens.weight", change), "embed_tokens.weight .* is not its embedding")
            for change in (
                torch.zeros_like,
                lambda w: w[:-1].contiguous(),
                lambda w: w * float("nan"),
            )
        ),
        ({"hidden_size": 32}, "hidden_size 32, expected 16"),
        ({"num_attention_heads": 4}, "num_attention_heads 4, expected 2"),
        ({"num_key_value_heads": None}, "num_key_value_heads None, expected 1"),
        ({"num_hidden_layers": 3}, "config.json says 3 layers, the tensors 1"),
        ({"num_hidden_layers": 10**12}, "config.json says 1000000000000 layers"),
        ({"num_hidden_layers": float("inf")}, "config.json says inf layers"),
        ({"bias": False}, "has a tensor fc.bias"),
        ({"rope_theta": 5e5}, "rotary positions"),
        ({"rope_theta": "x"}, "cannot be read"),
        ({"rope_theta": 1e44}, "rotary positions"),
        ({"rope_theta": float("inf")}, "rotary positions"),
        ({"rope_theta": float("nan")}, "rotary positions"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rotary positions"),
        ({"rms_norm_eps": -1}, "cannot have"),
    ],
)
def test_mismatched_tensors_and_configs_are_refused(tmp_path, change, words):
    """A change of the tensors, or entries of config.json."""
    decoder = squared()
    eagle_release(tmp_path, decoder)
    edit(tmp_path, change) if callable(change) else configure(tmp_path, **change)
    refused(words, load, tmp_path, decoder)


def test_a_config_that_is_no_object_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("[")
    refused("cannot be read", load, tmp_path, squared())
