"""Attention of branches to one sequence: read once for all of them, equal to a copy for each."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from real.drafters.glide import TargetCrossAttention
from real.model.decoder import Decoder, DecoderConfig
from real.model.passes import BranchCache

WIDTH = 8


def toy(heads, kv_heads):
    """A decoder of one layer in float64."""
    config = DecoderConfig(
        vocab=11,
        width=heads * WIDTH,
        layers=1,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=WIDTH,
        hidden=16,
    )
    return Decoder(config).double()


def copied(q, keys, values, mask):
    """The definition: keys and values repeated for every branch and head."""
    group = q.shape[1] // keys.shape[1]
    keys, values = (t.repeat_interleave(group, 1) for t in (keys, values))
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)


@given(st.sampled_from([(2, 1), (4, 2), (3, 3)]), st.integers(1, 4), st.integers(1, 3), st.data())
def test_branches_attend_as_if_each_had_a_copy(heads, branches, steps, data):
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    decoder, rows = toy(*heads), 6
    sequence = decoder.cache(capacity=rows)
    sequence.key.normal_(), sequence.value.normal_()
    prefix = torch.randint(0, rows + 1, (branches,))
    cache, n = BranchCache(sequence, rows, prefix), data.draw(st.integers(1, 3))
    own_keys, own_values = [], []
    for step in range(steps):
        parent = torch.randint(0, n if step else 1, (branches, n))
        _, mask = cache.step(parent, decoder)
        q = torch.randn(branches, heads[0], n, WIDTH, dtype=torch.float64)
        k, v = torch.randn(2, branches, heads[1], n, WIDTH, dtype=torch.float64)
        own_keys.append(k), own_values.append(v)
        found = cache.attention(0, q, *cache.put(0, 0, k, v), mask)
        keys, values = (
            torch.cat((t[0].expand(branches, -1, -1, -1), *own), 2)
            for t, own in ((sequence.key, own_keys), (sequence.value, own_values))
        )
        torch.testing.assert_close(found, copied(q, keys, values, mask), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("broadcast", [True, False], ids=["a row's mask", "a mask for each"])
def test_cross_attention_reads_the_keys_of_one_sequence_for_all_branches(rows, broadcast):
    torch.manual_seed(rows)
    decoder, branches, length = toy(4, 2), 3, 5
    attention = TargetCrossAttention(32, decoder.config).double()
    key, value = torch.randn(2, 1, 2, length, WIDTH, dtype=torch.float64)
    x = torch.randn(branches, rows, 32, dtype=torch.float64)
    rotation = decoder.rotation(torch.arange(rows))
    mask = torch.rand(branches, 1, 1 if broadcast else rows, length) < 0.6
    mask[0] = False  # a branch that sees nothing
    one = attention(x, rotation, key, value, mask)
    each = attention(x, rotation, *(t.expand(branches, -1, -1, -1) for t in (key, value)), mask)
    torch.testing.assert_close(one, each, rtol=1e-12, atol=1e-12)
    assert torch.equal(one[0], x[0])
    assert not torch.allclose(one[1:], x[1:])
