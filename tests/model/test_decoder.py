"""Our block computes what transformers computes, and a pass gives the same numbers however its
rows are cut or branched."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from toy_lm import VOCAB, toy_decoder
from transformers import AutoConfig, AutoModelForCausalLM

from real.drafters.glide import TargetCrossAttention
from real.model.checkpoint import from_transformers
from real.model.decoder import Decoder, DecoderConfig, Linear, RMSNorm, frequencies
from real.model.passes import BranchCache, ancestor_mask, chain, depths
from real.model.target import Resume, Target

HELD = settings(deadline=None, max_examples=40, derandomize=True)
BOUND = 1e-5
SIZES = dict(
    vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
    num_attention_heads=4, max_position_embeddings=256
)  # fmt: skip
STRETCH = dict(
    rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=32,
)  # fmt: skip
LINEAR = dict(rope_type="linear", rope_theta=10000.0, factor=4.0)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=32)
WINDOW = dict(use_sliding_window=True, sliding_window=40)
FAMILIES = {
    "llama": ("llama", dict(num_key_value_heads=4, tie_word_embeddings=False)),
    "llama, tied": ("llama", dict(num_key_value_heads=4, tie_word_embeddings=True)),
    "llama, grouped": ("llama", dict(num_key_value_heads=2, head_dim=20)),
    "llama, stretched": ("llama", dict(num_key_value_heads=2, rope_parameters=STRETCH)),
    "llama, yarn": ("llama", dict(num_key_value_heads=2, rope_parameters=YARN)),
    "llama, linear": ("llama", dict(num_key_value_heads=2, rope_parameters=LINEAR)),
    "llama, biased": ("llama", dict(num_key_value_heads=2, attention_bias=True)),
    "mistral": ("mistral", dict(num_key_value_heads=2, sliding_window=None)),
    "mistral, window": ("mistral", dict(num_key_value_heads=2, sliding_window=40)),
    "qwen2, window": ("qwen2", dict(num_key_value_heads=2, max_window_layers=1, **WINDOW)),
    "qwen3, window": (
        "qwen3",
        dict(num_key_value_heads=1, head_dim=16, max_window_layers=0, **WINDOW),
    ),
    "qwen2, tied": ("qwen2", dict(num_key_value_heads=2, tie_word_embeddings=True)),
    "qwen3, biased and tied": (
        "qwen3",
        dict(head_dim=16, num_key_value_heads=1, attention_bias=True, tie_word_embeddings=True),
    ),
    "qwen2": ("qwen2", dict(num_key_value_heads=2)),
    "qwen3": ("qwen3", dict(num_key_value_heads=1, head_dim=16)),
}


def random_reference(name):
    """A transformers model of that family, norms and biases far from their defaults, logits up
    to 3.

    Larger weights would test float32 and not the block: at a spread of 0.3, with logits up to
    9, transformers' own float32 logits are already 2e-5 away from its float64 ones.
    """
    family, options = FAMILIES[name]
    config = AutoConfig.for_model(family, **SIZES, **options)
    reference = AutoModelForCausalLM.from_config(config).float().eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(7)
    for key, p in reference.named_parameters():
        spread = 0.12 if p.ndim == 2 else 0.3
        p.copy_(
            torch.randn(p.shape, generator=generator) * spread + (1.0 if "norm" in key else 0.0)
        )
    return reference


def gap(reference, decoder):
    token = torch.randint(
        0, SIZES["vocab_size"], (2, 40), generator=torch.Generator().manual_seed(1)
    )
    with torch.inference_mode():
        return (reference(token).logits - decoder(token)).abs().max().item()


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_transformers(name):
    reference = random_reference(name)
    decoder = from_transformers(reference)
    assert gap(reference, decoder) < BOUND
    # controls: other rotary frequencies, and norms left at one, would be seen
    right = decoder.frequency
    decoder.frequency = frequencies(replace(decoder.config, rope_theta=9000.0))
    assert gap(reference, decoder) > 10 * BOUND
    decoder.frequency = right
    decoder.layers[0].attention_norm.weight.fill_(1.0)
    assert gap(reference, decoder) > 10 * BOUND


SPOILT = {
    "frequency": lambda decoder: frequencies(decoder.config),
    "scaling": lambda decoder: 1.0,
    "output": lambda decoder: decoder.layers[1].output.bias.zero_(),
}


@pytest.mark.parametrize(
    "name, part",
    [(f"llama, {how}", "frequency") for how in ("stretched", "yarn", "linear")]
    + [
        ("llama, yarn", "scaling"),
        ("llama, biased", "output"),
        ("qwen3, biased and tied", "output"),
    ],
)
def test_control_every_part_of_a_family_is_needed(name, part):
    reference = random_reference(name)
    decoder = from_transformers(reference)
    setattr(decoder, part, SPOILT[part](decoder))
    assert gap(reference, decoder) > 10 * BOUND


@pytest.mark.parametrize("name", ["mistral, window", "qwen2, window", "qwen3, window"])
def test_a_window_of_the_whole_text_is_full_attention(name):
    """`gap` passes 40 tokens; one more would leave the window, in transformers too."""
    reference = random_reference(name)
    decoder = from_transformers(reference)
    assert (decoder.context, decoder.window) == (40, 40)
    token = torch.randint(0, 97, (1, 41), generator=torch.Generator().manual_seed(1))
    decoder.window = None
    with torch.inference_mode():
        differences = (reference(token).logits - decoder(token)).abs().amax((0, 2))
    assert differences[:40].max() < BOUND
    assert differences[40] > 10 * BOUND


# Every option of the block at once, in float64, where cutting a pass in pieces may change nothing.
SIZED = dict(heads=4, kv_heads=2, head_dim=6, hidden=20, tied=False)
RICH = DecoderConfig(VOCAB, 16, 4, **SIZED, qkv_bias=True, output_bias=True, qk_norm=True)


def rich_decoder():
    decoder = Decoder(RICH).double().requires_grad_(False)
    generator = torch.Generator().manual_seed(3)
    for name, p in decoder.named_parameters():
        p.copy_(
            torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.3
            + (1.0 if "norm" in name else 0.0)
        )
    return decoder


DECODER = rich_decoder()
TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=14)


def close(a, b):
    return torch.allclose(a, b, rtol=0, atol=1e-10)


def in_pieces(decoder, tokens, cuts):
    """Logits of `tokens` passed piece by piece over a cache that has to grow."""
    cache, outputs = decoder.cache(capacity=1), []
    for start, stop in zip([0, *cuts], [*cuts, len(tokens)]):
        x = decoder.embed(torch.tensor([tokens[start:stop]]))
        mask = ancestor_mask(start, chain(stop - start))
        x = decoder.run(
            x, range(RICH.layers), decoder.rotation(torch.arange(start, stop)), mask, cache, start
        )
        outputs.append(decoder.logits(x[0]))
    return torch.cat(outputs)


@HELD
@given(TOKENS, st.data())
def test_cached_pieces_equal_the_whole(tokens, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, len(tokens) - 1)))) if len(tokens) > 1 else []
    assert close(in_pieces(DECODER, tokens, cuts), DECODER(torch.tensor([tokens]))[0])


@st.composite
def trees(draw):
    """A prefix, the rows of a pass behind it, and their parents, near enough for deep paths to
    be common."""
    prefix, tokens = draw(TOKENS), draw(TOKENS)
    return prefix, tokens, [draw(st.integers(max(-1, i - 3), i - 1)) for i in range(len(tokens))]


def ancestry(parent, row):
    """The rows from the prefix down to `row`."""
    return [*(ancestry(parent, parent[row]) if parent[row] >= 0 else []), row]


def as_a_line(prefix, tokens, path):
    """What the rows of `path` give when they are a text of their own."""
    target = Target(DECODER, (2,), capacity=4)
    target.prefill(prefix)
    return target.verify([tokens[i] for i in path], chain(len(path)))


@HELD
@given(trees())
def test_tree_paths_equal_chains(tree):
    prefix, tokens, parent = tree
    target = Target(DECODER, (2,), capacity=4)
    target.prefill(prefix)
    output = target.verify(tokens, parent)
    for leaf in set(range(len(tokens))) - set(parent):
        path = ancestry(parent, leaf)
        line = as_a_line(prefix, tokens, path)
        assert depths(parent)[leaf] == len(path) - 1
        assert close(output.logits[path], line.logits)
        assert close(output.hidden[path], line.hidden)
        assert close(output.taps[2][path], line.taps[2])


@HELD
@given(trees(), st.integers(0, VOCAB - 1), st.data())
def test_committed_path_equals_a_fresh_prefill(tree, following, data):
    prefix, tokens, parent = tree
    path = max(
        (ancestry(parent, data.draw(st.integers(0, len(tokens) - 1))) for _ in range(2)), key=len
    )
    kept, fresh = Target(DECODER, capacity=4), Target(DECODER)
    kept.prefill(prefix)
    kept.verify(tokens, parent)
    kept.commit(path)
    fresh.prefill([*prefix, *(tokens[i] for i in path)])
    assert kept.length == fresh.length
    assert close(kept.verify([following], [-1]).logits, fresh.verify([following], [-1]).logits)


def test_control_another_committed_path_is_detected():
    logits = []
    for path in ([0, 1], [0, 2]):
        target = Target(DECODER)
        target.prefill([5, 6])
        target.verify([7, 8, 9], [-1, 0, 0])
        target.commit(path)
        logits.append(target.verify([4], [-1]).logits)
    assert not close(*logits)


@HELD
@given(TOKENS, TOKENS, st.integers(1, RICH.layers - 1), st.data())
def test_verify_resumes_where_the_drafter_stopped(prefix, tokens, layer, data):
    done = data.draw(st.integers(0, len(tokens)))
    whole, resumed = (
        Target(DECODER, (layer, 4), capacity=4),
        Target(DECODER, (layer, 4), capacity=4),
    )
    hidden = []
    for target in (whole, resumed):
        target.prefill(prefix)
    for i in range(done):
        hidden.append(resumed.draft_rows([tokens[i]], i, layer))
    plain = whole.verify(tokens, chain(len(tokens)))
    short = resumed.verify(
        tokens, chain(len(tokens)), Resume(layer, torch.cat(hidden)) if hidden else None
    )
    assert close(plain.logits, short.logits)
    assert all(close(plain.taps[t], short.taps[t]) for t in (layer, 4))
    kept = data.draw(st.integers(1, len(tokens)))
    resumed.commit(list(range(kept)))
    whole.prefill([*prefix, *tokens[:kept]])
    assert close(whole.verify([2], [-1]).logits, resumed.verify([2], [-1]).logits)


def test_resuming_uses_the_given_rows():
    target = Target(DECODER)
    target.prefill([5, 6])
    hidden = target.draft_rows([7, 8], 0, 2)
    right = target.verify([7, 8], [-1, 0], Resume(2, hidden)).logits
    assert not close(right, target.verify([7, 8], [-1, 0], Resume(2, hidden + 0.1)).logits)


@pytest.mark.parametrize("parent", [[0], [-2], [-1, 1], [-1, 2, 0], [-1, 0, -3]])
def test_invalid_parents_are_refused(parent):
    target = Target(DECODER)
    target.prefill([1, 2])
    with pytest.raises(ValueError, match="parent"):
        target.verify([3] * len(parent), parent)


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


WIDTH = 8


def toy(heads, kv_heads):
    """A decoder of one layer in float64."""
    config = DecoderConfig(
        vocab=11, width=heads * WIDTH, layers=1, heads=heads, kv_heads=kv_heads, head_dim=WIDTH,
        hidden=16
    )  # fmt: skip
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
