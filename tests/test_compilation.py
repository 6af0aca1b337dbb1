"""Compilation of layers for training."""

import pytest
import torch
from toy_lm import toy_decoder

from real.train.pipeline import compile_layers


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_layers_fall_back_to_eager_where_compilation_fails():
    decoder = toy_decoder(0)
    token = torch.tensor([[1, 2, 3, 4]])
    plain = decoder(token)
    decoder.requires_grad_(True)
    assert compile_layers(decoder.layers, lambda: decoder(token).sum(), "eager") == ""
    assert all(layer._compiled_call_impl is not None for layer in decoder.layers)
    assert torch.allclose(decoder(token), plain)
    assert all(p.grad is None for p in decoder.layers.parameters())
    assert "not compiled: " in compile_layers(decoder.layers, lambda: 1 / 0)
    assert all(layer._compiled_call_impl is None for layer in decoder.layers)
    assert torch.equal(decoder(token), plain)
