"""The greedy pick is the largest logit; the coupled pick is a draw from softmax(logits / T),
addressed by its position."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from real import sampling
from real.sampling import Rule, margin
from simspec.numerics import rng

HELD = settings(deadline=None, max_examples=80, derandomize=True)
FALSE_ALARM = 1e-6  # of every statistical test here, were its seed not fixed
SEQUENCES, POSITIONS = 40, 400
LOGITS = torch.tensor([1.5, 0.0, -0.7, 2.0, 0.4, -2.0])
OTHER = torch.tensor([0.0, 1.5, 0.5, 0.0, 1.2, 1.0])


def picks(rule, logits):
    """The rule's picks at all addresses, int `[SEQUENCES, POSITIONS]`, where the model always
    says `logits`."""
    rows = logits.expand(POSITIONS, -1)
    return np.array(
        [rule.scores(rows, s, list(range(POSITIONS))).argmax(-1).numpy() for s in range(SEQUENCES)]
    )


def softmax(logits, temperature=1.0):
    return torch.softmax(logits.double() / temperature, -1).numpy()


def fits(observed, p):
    """Whether counts are a sample of `p`, by chi-square at the stated false-alarm rate."""
    expected = p.ravel() * observed.sum()
    assert expected.min() > 5
    statistic = ((observed.ravel() - expected) ** 2 / expected).sum()
    return statistic < stats.chi2.isf(FALSE_ALARM, len(expected) - 1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_coupled_pick_samples_at_its_temperature(temperature):
    logits = (
        LOGITS * temperature if temperature < 1 else LOGITS
    )  # every token frequent enough to count
    counts = np.bincount(picks(Rule("coupled", temperature, 11), logits).ravel(), minlength=6)
    assert fits(counts, softmax(logits, temperature))
    assert not fits(counts, softmax(logits, temperature * 1.15))  # control: a wrong temperature
    assert not fits(counts, softmax(OTHER, temperature))  # control: another model


def test_picks_at_different_addresses_are_independent():
    picked = picks(Rule("coupled", 1.0, 5), LOGITS[:3])
    p = np.outer(softmax(LOGITS[:3]), softmax(LOGITS[:3]))

    def pairs(a, b):
        return np.histogram2d(a.ravel(), b.ravel(), (3, 3))[0]

    assert fits(pairs(picked[:, 0::2], picked[:, 1::2]), p)
    assert fits(pairs(picked[0::2], picked[1::2]), p)
    assert fits(pairs(picked, picks(Rule("coupled", 1.0, 6), LOGITS[:3])), p)
    assert not fits(pairs(picked, picked), p)  # control: one draw used twice


@HELD
@given(
    st.lists(st.floats(-6, 6), min_size=2, max_size=9), st.floats(0.2, 3),
    st.integers(0, 2**64 - 1), st.integers(0, 50), st.integers(0, 50)
)  # fmt: skip
def test_coupled_pick_wins_an_exponential_race(values, temperature, seed, sequence, position):
    """The smallest -log(u) / p is a token's with its probability p: the pick's distribution."""
    logits = torch.tensor(values, dtype=torch.float64)
    u = [rng.uniform(seed, sequence, position, v, rng.GUMBEL) for v in range(len(values))]
    clocks = [-math.log(a) / p for a, p in zip(u, softmax(logits, temperature))]
    scores = Rule("coupled", temperature, seed).scores(logits[None], sequence, [position])[0]
    assert clocks[scores.argmax()] <= min(clocks) * (1 + 1e-9)
    assert np.allclose(
        -np.log(clocks) - scores.numpy(), -np.log(clocks[0]) - scores[0].item(), atol=1e-9
    )


def slow_probs(values, temperature, top_k, top_p):
    """By definition: of the tokens, best first (ties go to the smaller index), the first `top_k`;
    of these the fewest that hold `top_p`.

    Also whether an edge of `top_p` is so near that rounding decides.
    """
    order = sorted(range(len(values)), key=lambda v: (-values[v], v))
    weight = [math.exp((values[v] - max(values)) / temperature) for v in range(len(values))]
    kept = order[:top_k] if top_k else order
    whole, held, stay = math.fsum(weight[v] for v in kept), 0.0, []
    for v in kept:
        if stay and held >= top_p * whole:
            break
        stay.append(v)
        held += weight[v]
    near = top_p < 1 and any(
        abs(math.fsum(weight[v] for v in kept[:i]) / whole - top_p) < 1e-9
        for i in range(len(kept) + 1)
    )
    return [
        weight[v] / math.fsum(weight[w] for w in stay) if v in stay else 0.0
        for v in range(len(values))
    ], near


CUTS = st.tuples(st.integers(0, 9), st.one_of(st.just(1.0), st.floats(0.01, 1)))


@HELD
@given(st.lists(st.floats(-6, 6), min_size=1, max_size=9), st.floats(0.2, 3), CUTS)
def test_truncation_equals_its_definition(values, temperature, cut):
    wanted, near = slow_probs(values, temperature, *cut)
    for name in ("coupled", "rejection"):
        probabilities = (
            Rule(name, temperature, 0, *cut).probs(torch.tensor([values]).double())[0].numpy()
        )
        assert near or np.allclose(probabilities, wanted, atol=1e-12), (probabilities, wanted)
        assert abs(probabilities.sum() - 1) < 1e-12


@HELD
@given(
    st.lists(st.floats(-6, 6), min_size=2, max_size=9), st.floats(0.2, 3), CUTS,
    st.integers(0, 2**64 - 1), st.integers(0, 50)
)  # fmt: skip
def test_coupled_pick_is_among_the_kept_tokens(values, temperature, cut, seed, position):
    """The coupled pick under top-k and top-p: first of the clocks -log(u) / p of the processed
    p, so it is drawn from that p, exactly."""
    rule, logits = (
        Rule("coupled", temperature, seed, *cut),
        torch.tensor(values, dtype=torch.float64)[None],
    )
    p, scores = rule.probs(logits)[0].tolist(), rule.scores(logits, 3, [position])[0]
    u = [rng.uniform(seed, 3, position, v, rng.GUMBEL) for v in range(len(values))]
    clocks = [-math.log(a) / b if b else math.inf for a, b in zip(u, p)]
    assert clocks[scores.argmax()] <= min(clocks) * (1 + 1e-9)
    assert [s == -math.inf for s in scores.tolist()] == [b == 0 for b in p]


@pytest.mark.parametrize("cut", [(3, 1.0), (0, 0.8), (4, 0.9)])
def test_coupled_pick_samples_the_truncated_distribution(cut):
    counts = np.bincount(picks(Rule("coupled", 1.0, 11, *cut), LOGITS).ravel(), minlength=6)
    p = np.array(slow_probs(LOGITS.tolist(), 1.0, *cut)[0])
    assert fits(counts[p > 0], p[p > 0])
    assert not counts[p == 0].any()
    assert not fits(counts[p > 0], softmax(LOGITS)[p > 0])  # control: the untruncated distribution


def agreement(p, q):
    """Share of equal picks of p and q under shared noise: the sum over v of 1 / sum over w of
    max(p_w/p_v, q_w/q_v)."""
    return sum(1 / np.maximum(p / p[v], q / q[v]).sum() for v in range(len(p)))


def test_coupled_agreement_equals_its_formula():
    rule = Rule("coupled", 1.0, 3)
    p, q = softmax(LOGITS), softmax(OTHER)
    equal = (picks(rule, LOGITS) == picks(rule, OTHER)).sum()
    two = np.array([equal, SEQUENCES * POSITIONS - equal])
    share = agreement(p, q)
    assert fits(two, np.array([share, 1 - share]))
    assert (p * q).sum() < share < np.minimum(p, q).sum()
    assert not fits(two, np.array([(p * q).sum(), 1 - (p * q).sum()]))  # control: independent draws
    assert not fits(
        two, np.array([np.minimum(p, q).sum(), 1 - np.minimum(p, q).sum()])
    )  # control: the rejection rule


@HELD
@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 9))
def test_noise_depends_on_the_position_only(position, sequence):
    rule = Rule("coupled", 0.8, 2)
    rows = torch.randn(31, 7, generator=torch.Generator().manual_seed(0))
    together = rule.scores(rows[position], sequence, position)
    for i, p in enumerate(position):
        assert torch.equal(together[i], rule.scores(rows[p : p + 1], sequence, [p])[0])
    elsewhere = rule.scores(rows[position], sequence, [p + 1 for p in position])
    assert not torch.equal(together, elsewhere)
    assert not torch.equal(together, rule.scores(rows[position], sequence + 1, position))
    assert not torch.equal(
        together, Rule("coupled", 0.8, 3).scores(rows[position], sequence, position)
    )


def test_scores_leave_their_inputs_unchanged():
    rule, rows = Rule("coupled", 2.0, 1), torch.ones(1, 5)
    first = rule.scores(rows, 0, [4])
    wanted = first.clone()
    first.add_(1.0)  # a caller may write into what it got
    assert torch.equal(rule.scores(rows, 0, [4]), wanted)
    assert torch.equal(rows, torch.ones(1, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_greedy_uses_no_noise(dtype):
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(1)).to(dtype)
    scores = Rule().scores(logits, 3, [7, 8, 9, 9])
    assert scores.dtype == torch.float64
    assert torch.equal(scores, logits.double())


@HELD
@given(st.lists(st.lists(st.floats(-50, 50), min_size=2, max_size=6), min_size=1, max_size=4))
def test_margin_is_best_minus_second(rows):
    for row in rows:
        best, second = sorted(row, reverse=True)[:2]
        assert margin(torch.tensor([row], dtype=torch.float64)).tolist() == [best - second]


@pytest.mark.parametrize(
    "arguments",
    [
        ("nucleus",), ("greedy", 0.7), ("coupled", 0.0), ("coupled", -1.0), ("coupled", math.nan),
        ("greedy", math.nan), ("rejection", 0.0), ("rejection", -0.5), ("rejection", math.inf),
        ("rejection", 1.0, 0, -1), ("rejection", 1.0, 0, 2.0), ("rejection", 1.0, 0, 0, 0.0),
        ("rejection", 1.0, 0, 0, 1.01), ("coupled", 1.0, 0, 0, math.nan), ("greedy", 1.0, 0, 5),
        ("greedy", 1.0, 0, 0, 0.9),
    ],
)  # fmt: skip
def test_invalid_rules_are_refused(arguments):
    with pytest.raises(ValueError, match="expected") as caught:
        Rule(*arguments)
    assert "\n" not in str(caught.value)


def test_rejection_rule_has_no_scores():
    with pytest.raises(ValueError, match="draws tokens and has no scores"):
        Rule("rejection").scores(LOGITS[None], 0, [0])


def test_forgotten_noise_is_drawn_again():
    """On the CPU, and where blocks of a GPU are kept; the values are the same."""
    rule = Rule("coupled", 0.7, 3)
    sampling.clear_noise_cache()
    first = rule.scores(LOGITS[None], 0, [4])
    assert sampling._noise.cache_info().currsize == 1
    sampling._noise_block(3, 0, 0, 6, "cpu")
    assert sampling._noise_block.cache_info().currsize == 1
    sampling.clear_noise_cache()
    assert sampling._noise.cache_info().currsize == 0
    assert sampling._noise_block.cache_info().currsize == 0
    assert torch.equal(rule.scores(LOGITS[None], 0, [4]), first)
