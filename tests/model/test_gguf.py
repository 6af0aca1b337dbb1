"""GGUF files become checkpoints with the same values; all else is refused and nothing is left."""

import json
import re
import struct

import numpy as np
import pytest
import torch
from chat_models import CHAT, END, TURN, chat_tokenizer
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from toy_gguf import write_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer

import real.model.gguf
from real.model.checkpoint import end_tokens, load_decoder, load_tokenizer, plain_byte_level
from real.model.gguf import import_gguf
from real.prompts import PromptFormat, load_chat_template

NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm",
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip


def checkpoint_name(name):
    parts = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", name)
    layer = f"model.layers.{parts[1]}." if parts[1] else ""
    return f"{layer}{NAMES[parts[2]]}.weight"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a GGUF file, its import, and the values that the file holds."""
    folder = tmp_path_factory.mktemp("gguf")
    held = write_gguf(folder / "toy.gguf")
    card = import_gguf(folder / "toy.gguf", folder / "m" / "target")
    return folder, held, card


def test_values_are_those_of_the_file(place):
    folder, held, card = place
    state = load_file(folder / "m" / "target" / "model.safetensors")
    assert set(state) == {checkpoint_name(name) for name in held}
    for name, values in held.items():
        mine = state[checkpoint_name(name)]
        assert mine.dtype == torch.float32
        assert np.array_equal(mine.numpy(), values), name
    assert card["parameters"] == sum(v.size for v in held.values())


def test_the_import_computes_what_transformers_computes_on_the_file(place):
    folder, _, _ = place
    theirs = AutoModelForCausalLM.from_pretrained(folder, gguf_file="toy.gguf", dtype=torch.float32)
    token = torch.arange(30)[None]
    decoder = load_decoder(folder / "m" / "target")
    with torch.inference_mode():
        assert (theirs(token).logits - decoder(token)).abs().max() < 1e-5
    assert decoder.config.tied
    assert decoder.context == 128
    assert decoder.config.rope_theta == 5000.0


def test_tokenizer_and_template_come_along(place):
    folder, _, _ = place
    path, tokenizer = folder / "m" / "target", chat_tokenizer(begin=False)
    form = PromptFormat(load_tokenizer(path), load_chat_template(path))
    assert form.template.text == CHAT
    reference = AutoTokenizer.from_pretrained(folder, gguf_file="toy.gguf")
    chat = [{"role": "user", "content": "what is 42?"}]
    expected = reference.apply_chat_template(
        chat, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert form.turns("t", ["what is 42?"]) == expected
    assert form.text("what is 42?") == tokenizer.encode("what is 42?").ids
    ends = tuple(tokenizer.token_to_id(text) for text in (END, TURN))
    assert end_tokens(path, tokenizer.get_vocab_size()) == ends


def test_a_byte_level_tokenizer_is_written_alike_by_every_transformers():
    """Release 5.17 adds an unknown token, a fallback and a decoder of several steps, 5.23 none."""
    known = sorted(set(ByteLevel.alphabet()) - {"\u0106"})  # a control character has no token
    tokenizer = Tokenizer(BPE(vocab={c: i for i, c in enumerate(known)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), ByteDecoder()
    plain = json.loads(tokenizer.to_str())
    other = json.loads(tokenizer.to_str())
    other["normalizer"] = {"type": "Sequence", "normalizers": []}
    other["pre_tokenizer"]["trim_offsets"] = False
    other["decoder"] = {"type": "Sequence", "decoders": [{"type": "Fuse"}, plain["decoder"]]}
    other["model"] |= {"unk_token": "!", "fuse_unk": True, "byte_fallback": True}
    forms = [plain_byte_level(json.dumps(form)) for form in (plain, other)]
    assert forms[0] == forms[1]
    text = " naïve\tcafé \u2581 42!"
    for written in (json.dumps(plain), json.dumps(other), forms[0]):
        assert Tokenizer.from_str(written).encode(text).ids == tokenizer.encode(text).ids
    assert Tokenizer.from_str(json.dumps(other)).encode("\x06").ids != []
    assert Tokenizer.from_str(forms[1]).encode("\x06").ids == []
    for kept in (
        other | {"normalizer": {"type": "NFC"}},
        other | {"pre_tokenizer": {"type": "Whitespace"}},
        other | {"model": other["model"] | {"vocab": {"<0x00>": 0}}},
    ):
        assert plain_byte_level(json.dumps(kept)) == json.dumps(kept)


def refused_import(folder, words):
    with pytest.raises(ValueError) as error:
        import_gguf(folder / "toy.gguf", folder / "m")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in folder.iterdir()) == ["toy.gguf"]


@pytest.mark.parametrize("share", [0.001, 0.2, 0.6, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path, share):
    write_gguf(tmp_path / "toy.gguf")
    content = (tmp_path / "toy.gguf").read_bytes()
    (tmp_path / "toy.gguf").write_bytes(content[: int(len(content) * share)])
    refused_import(tmp_path, "damaged or truncated")


HEADER = struct.Struct("<4sIQQ")


def array(kind, count):
    """A GGUF file of 49 bytes, whose only key counts an array's values."""
    return HEADER.pack(b"GGUF", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"a", 9, kind, count)


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "is no GGUF file"),
        (b"PK\3\4 a zip", "is no GGUF file"),
        (HEADER.pack(b"GGUF", 99, 1, 1), "is no GGUF file of version 2 or 3"),
        (HEADER.pack(b"GGUF", 3, 1 << 60, 1), "damaged or truncated"),
        (HEADER.pack(b"GGUF", 3, 0, 0) + bytes(64), "is None; expected a dense one"),
        (array(4, 1 << 60), "1152921504606846976 values in arrays, expected at most 2097152"),
        (array(4, 1 << 20), "1048576 parts of 4 bytes in the 0 that are left"),
        (array(8, 1 << 20), "1 parts of 8 bytes in the 0 that are left"),
        (array(0, 3 << 20) + bytes(3 << 20), "3145728 values in arrays"),
        (array(9, 1), "damaged or truncated"),
    ],
)
def test_what_is_no_gguf_is_refused(tmp_path, content, words):
    (tmp_path / "toy.gguf").write_bytes(content)
    refused_import(tmp_path, words)


SCALED = {"tensors": {"rope_freqs.weight": np.ones(16, np.float32)}}
NAN = {"tensors": {"token_embd.weight": np.full((288, 64), np.nan, np.float32)}}


@pytest.mark.parametrize(
    "architecture, extra, words",
    [
        ("gemma3", {}, "is 'gemma3'; expected a dense one of llama"),
        ("llama", {"strings": {"llama.rope.scaling.type": "yarn"}}, "scales its rotary positions"),
        ("llama", SCALED, "scales its rotary positions"),
        ("llama", NAN, "weights are not finite"),
    ],
)
def test_a_model_that_would_come_out_wrong_is_refused(tmp_path, architecture, extra, words):
    write_gguf(tmp_path / "toy.gguf", architecture, extra)
    refused_import(tmp_path, words)


def test_other_folders_are_not_replaced_and_a_killed_import_starts_anew(tmp_path, monkeypatch):
    write_gguf(tmp_path / "toy.gguf")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="mine holds something else"):
        import_gguf(tmp_path / "toy.gguf", tmp_path / "mine")
    with pytest.raises(ValueError, match="nowhere.gguf is no file"):
        import_gguf(tmp_path / "nowhere.gguf", tmp_path / "x")

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(real.model.gguf, "load_decoder", killed)
        with pytest.raises(KeyboardInterrupt):
            import_gguf(tmp_path / "toy.gguf", tmp_path / "m")
    assert not (tmp_path / "m").exists()
    (tmp_path / ".m.part").mkdir()  # of a process that could not clear up
    (tmp_path / ".m.part" / "model.safetensors").write_bytes(b"half")
    import_gguf(tmp_path / "toy.gguf", tmp_path / "m")
    assert not (tmp_path / ".m.part").exists()
    load_decoder(tmp_path / "m")
