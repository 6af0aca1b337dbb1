"""Parameter names: ours and those of transformers."""

import re

_LAYER = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "query",
    "self_attn.k_proj": "key",
    "self_attn.v_proj": "value",
    "self_attn.o_proj": "output",
    "self_attn.q_norm": "query_norm",
    "self_attn.k_norm": "key_norm",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}
_OUTER = {"model.embed_tokens": "embed", "model.norm": "norm", "lm_head": "head"}
_BACK = {v: k for k, v in (_LAYER | _OUTER).items()}


def from_hf_name(name: str) -> str:
    """Our name of a parameter: `model.layers.3.mlp.up_proj.weight` -> `layers.3.up.weight`."""
    stem, kind = name.rsplit(".", 1)
    if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem):
        return f"layers.{match[1]}.{_LAYER[match[2]]}.{kind}"
    return f"{_OUTER[stem]}.{kind}"


def to_hf_name(name: str) -> str:
    """The inverse of `from_hf_name`."""
    stem, kind = name.rsplit(".", 1)
    if match := re.fullmatch(r"layers\.(\d+)\.(.+)", stem):
        return f"model.layers.{match[1]}.{_BACK[match[2]]}.{kind}"
    return f"{_BACK[stem]}.{kind}"
