"""Random models of any size: shapes, decoders, drafters and their memory."""

import json
from dataclasses import replace

import pytest
import torch

from real.drafters import drafter_shapes, random_drafter
from real.model import random_models as shape
from real.model.random_models import check_room, needed, parameters, random_decoder, read_shape
from simspec.cost.roofline import SHAPES

TINY = read_shape("4x16x2x24")


def decoder(dtype=torch.float32):
    return random_decoder(TINY, dtype, "cpu")


def test_shapes_are_read_from_names_files_and_sizes(tmp_path):
    assert read_shape("llama-3-8b") is SHAPES["llama-3-8b"]
    small = read_shape("4x64x4")
    assert (
        small.layers,
        small.width,
        small.heads,
        small.kv_heads,
        small.head_dim,
        small.hidden,
    ) == (4, 64, 4, 4, 16, 176)
    assert small.vocab == 32000
    assert small.tied
    assert read_shape("4x64x4", 99).vocab == 99
    assert read_shape("4x64x4x50", 99).vocab == 50
    sizes = {
        "layers": 2,
        "width": 8,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 4,
        "hidden": 12,
        "vocab": 30,
    }
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(sizes))
    mine = read_shape(str(file))
    assert mine.name == "mine"
    assert mine.kv_heads == 1
    assert not mine.tied
    decoder = random_decoder(mine, torch.bfloat16, "cpu")
    assert decoder.dtype == torch.bfloat16
    assert sum(p.numel() for p in decoder.parameters()) == parameters(mine)
    for text, words in (
        ("4x64x3", "does not split into 3 heads"),
        ("llama-9", "expected one of llama-2-7b"),
        ("4x64", "is unknown"),
    ):
        with pytest.raises(ValueError, match=words):
            read_shape(text)
    bad = (
        {},
        sizes | {"layers": 0},
        sizes | {"more": 1},
        sizes | {"tied": 2},
        [],
        sizes | {"layers": "2"},
        sizes | {"name": 5},
    )
    for data in bad:
        file.write_text(json.dumps(data))
        with pytest.raises(ValueError, match="not a model shape") as caught:
            read_shape(str(file))
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="expected a multiple, and an even size"):
        random_decoder(replace(mine, heads=3, kv_heads=2), torch.float32, "cpu")


@pytest.mark.parametrize("tied", [True, False])
def test_random_decoders_are_seeded_finite_and_tied(tied):
    a, b, c = (
        random_decoder(replace(TINY, tied=tied), torch.float64, "cpu", seed) for seed in (0, 0, 1)
    )
    assert (a.head.weight is a.embed.weight) == tied
    assert a.frequency.device.type == "cpu"
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))
    assert not torch.equal(a.embed.weight, c.embed.weight)
    assert (a.norm.weight == 1).all()
    logits = a(torch.arange(10)[None])
    assert logits.isfinite().all()
    assert logits.std() > 0
    assert 0.015 < float(a.embed.weight.std()) < 0.025


def test_models_beyond_memory_are_refused_before_allocation(monkeypatch):
    big = SHAPES["llama-2-70b"]
    assert needed([big], torch.bfloat16, 0) == 2 * parameters(big)
    assert needed([TINY, TINY], torch.float32, 10) == 2 * needed([TINY], torch.float32, 10)
    monkeypatch.setattr(shape, "free", lambda device: 10e9)
    with pytest.raises(
        ValueError,
        match="llama-2-70b need 138.0 GB in bfloat16, cpu has 9.0 GB free: use a smaller",
    ):
        check_room([big], torch.bfloat16, 128, "cpu")
    check_room([TINY], torch.float32, 128, "cpu")
    assert drafter_shapes("prompt_lookup", TINY) == []
    target = decoder()
    whole = lambda d: sum(p.numel() for p in torch.nn.Module.parameters(d))  # noqa: E731
    for name, part in (
        ("early_exit:2", "head"),
        ("eagle", "head"),
        ("medusa", "head"),
        ("model:1x8x1", "lm"),
    ):
        model = getattr(random_drafter(name, target, TINY, 4), part)
        assert whole(model) <= sum(map(parameters, drafter_shapes(name, TINY))), name


@pytest.mark.parametrize(
    "name, words",
    [
        ("glide", "cannot be driven; expected eagle,"),
        ("model", "expected its shape: model:llama"),
        ("eagle:2", "eagle takes no argument"),
        ("early_exit:4", "an exit after 4 layers of 4; expected 1 to 3"),
        ("early_exit:x", "expected a number of layers"),
        ("model:1x8x1x9", "has 9 tokens, '4x16x2x24' 24"),
    ],
)
def test_invalid_drafter_names_are_refused(name, words):
    for make in (
        lambda: drafter_shapes(name, TINY),
        lambda: random_drafter(name, decoder(), TINY, 2),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            make()
        assert "\n" not in str(caught.value)
