"""Rotations of a chain's rows, and layers called without nn.Module's hooks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import toy_decoder

from real.model.decoder import Linear, RMSNorm


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 700), st.integers(1, 9)), min_size=1, max_size=6))
def test_rotations_of_a_chain_are_those_of_its_positions(places):
    """In any order of chains, after a change of dtype, of frequencies and of their scaling."""
    decoder = toy_decoder(0)
    stretched = decoder.frequency / 3
    for change in (
        lambda: None,
        decoder.float,
        lambda: setattr(decoder, "frequency", stretched),
        lambda: setattr(decoder, "scaling", 1.5),
    ):
        change()
        for start, rows in places:
            ours = decoder.chain_rotation(start, rows)
            right = decoder.rotation(torch.arange(start, start + rows))
            for mine, its in zip(ours, right):
                torch.testing.assert_close(mine, its, rtol=0, atol=1e-6)


def test_a_table_made_under_inference_serves_passes_with_gradients():
    decoder = toy_decoder(0)
    with torch.inference_mode():
        decoder.chain_rotation(0, 4)
    x = torch.ones(4, decoder.config.head_dim, dtype=torch.float64, requires_grad=True)
    (x * decoder.chain_rotation(0, 4)[0]).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("bias", [False, True])
def test_linear_layers_and_norms_equal_torchs_and_run_forward_hooks(bias):
    ours, norm = Linear(5, 3, bias), RMSNorm(5, 1e-5)
    x, seen = torch.randn(2, 5, generator=torch.Generator().manual_seed(0)), []
    plain = {layer: layer(x) for layer in (ours, norm)}
    assert torch.equal(plain[ours], torch.nn.functional.linear(x, ours.weight, ours.bias))
    for layer in (ours, norm):
        for register in (layer.register_forward_pre_hook, layer.register_forward_hook):
            hook = register(lambda layer, *_: seen.append(layer))
            assert torch.equal(layer(x), plain[layer])
            hook.remove()
    assert seen == [ours, ours, norm, norm]
