"""Acceptance along the target's text, by enumeration of the algorithms in fractions."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simspec.numerics.formulas import block_verified, token_verified

ONE = Fraction(1)


class World:
    """Distributions p and q over V tokens after each prefix; q may miss tokens, and p too."""

    def __init__(self, seed, V, K):
        rng = np.random.default_rng(seed)
        self.V, self.K, self.p, self.q = V, K, {}, {}
        for n in range(K + 1):
            for prefix in product(range(V), repeat=n):
                for table in (self.p, self.q):
                    weights = rng.integers(0, 5, V) * (rng.random(V) < 0.8)
                    weights[rng.integers(V)] += 1
                    table[prefix] = [Fraction(int(w), int(weights.sum())) for w in weights]
                if rng.random() < 0.15:
                    self.q[prefix] = self.p[prefix]

    def texts(self, n, table):
        """(text of n tokens, its probability), those of probability 0 left out."""
        for text in product(range(self.V), repeat=n):
            chance = ONE
            for i, token in enumerate(text):
                chance *= table[text[:i]][token]
            if chance:
                yield text, chance


def token_rule(world, draft):
    """(chances of each accepted length, residual weights there): speculative sampling."""
    left, chances, residuals = ONE, [], []
    for i in range(world.K + 1):
        p, q = world.p[draft[:i]], world.q[draft[:i]]
        if i == world.K:
            accept, residual = Fraction(0), p
        else:
            accept = min(ONE, p[draft[i]] / q[draft[i]])
            residual = [max(a - b, 0) for a, b in zip(p, q)]
        chances.append(left * (1 - accept))
        residuals.append(residual)
        left *= accept
    return chances, residuals


def block_rule(world, draft, greedy=False):
    """The same by block verification: the longest i with u_i <= h_i. greedy: h_i = p_i, wrong."""
    kept, h, residuals = ONE, [], []
    for i in range(world.K + 1):
        p, q = world.p[draft[:i]], world.q[draft[:i]]
        if i:
            last = draft[: i - 1]
            kept = min(ONE, kept * world.p[last][draft[i - 1]] / world.q[last][draft[i - 1]])
        if i == world.K:
            h.append(kept)
            residuals.append(p)
            continue
        residual = [max(kept * a - b, 0) for a, b in zip(p, q)]
        total = sum(residual)
        h.append(kept if greedy else total / (total + 1 - kept) if total + 1 - kept else ONE)
        residuals.append(residual)
    h[0] = ONE
    chances, above = [], ONE
    for i in range(world.K, -1, -1):
        chances.append(above * h[i])
        above *= 1 - h[i]
    return chances[::-1], residuals


def outcomes(world, rule):
    """{(accepted length, text of K + 1 tokens): chance}: a round, then the target goes on."""
    found = {}
    for draft, drawn in world.texts(world.K, world.q):
        chances, residuals = rule(world, draft)
        for n, chance in enumerate(chances):
            total = sum(residuals[n])
            if not chance:
                continue
            for token in range(world.V):
                weight = residuals[n][token] / total if total else world.p[draft[:n]][token]
                start = (*draft[:n], token)
                for rest in product(range(world.V), repeat=world.K - n):
                    text, mass = (*start, *rest), drawn * chance * weight
                    for i in range(n + 1, world.K + 1):
                        mass *= world.p[text[:i]][text[i]]
                    if mass:
                        found[n, text] = found.get((n, text), 0) + mass
    return found


def ratios(world, text):
    return [float(world.q[text[:i]][text[i]] / world.p[text[:i]][text[i]]) for i in range(world.K)]


SIZES = st.sampled_from([(2, 1), (3, 2), (2, 3), (2, 4)])


@settings(max_examples=40)
@given(st.integers(0, 2**32), SIZES)
def test_laws_are_those_of_the_algorithms_along_the_targets_text(seed, size):
    """In both the text follows p, and the accepted length, given the text, follows the law."""
    world = World(seed, *size)
    for rule, law in ((token_rule, token_verified), (block_rule, block_verified)):
        found = outcomes(world, rule)
        for text, chance in world.texts(world.K + 1, world.p):
            masses = [found.get((n, text), Fraction(0)) for n in range(world.K + 1)]
            assert sum(masses) == chance
            reached = [float(sum(masses[j:]) / chance) for j in range(1, world.K + 1)]
            np.testing.assert_allclose(law(ratios(world, text)), reached, atol=1e-12)
        assert sum(found.values()) == 1


def test_control_a_wrong_block_rule_is_not_the_target():
    """With h_i = p_i tokens are accepted more often than the text's distribution allows."""
    world = World(3, 2, 3)
    found = outcomes(world, lambda *a: block_rule(*a, greedy=True))
    off = [
        abs(sum(found.get((n, text), 0) for n in range(4)) - chance)
        for text, chance in world.texts(4, world.p)
    ]
    assert max(off) > 0.001


@given(st.lists(st.floats(0, 40), min_size=1, max_size=8))
def test_block_verification_accepts_at_least_as_many(values):
    block, token = block_verified(values), token_verified(values)
    assert (block >= token - 1e-12).all()
    assert block[0] == pytest.approx(token[0])
    slow = [
        min([1.0, *(np.prod(values[: i + 1]) for i in range(j + 1))]) for j in range(len(values))
    ]
    np.testing.assert_allclose(block, slow, rtol=1e-9, atol=1e-300)


def test_verified_by_hand():
    """A sure second token pays for the doubtful first one, and not the other way round."""
    assert token_verified([0.5, 2.0, 0.5]) == pytest.approx([0.5, 0.5, 0.25])
    assert block_verified([0.5, 2.0, 0.5]) == pytest.approx([0.5, 0.5, 0.5])
    assert block_verified([2.0, 0.5, 0.5]) == pytest.approx([1.0, 1.0, 0.5])
    assert block_verified([0.0, 9.0]).tolist() == [0.0, 0.0]
    assert block_verified(np.full((2, 255), 1e200)).min() == 1.0
    # A drafter without logits: both laws are one.
    assert (block_verified([7.0, 3.0, 0.0]) == token_verified([7.0, 3.0, 0.0])).all()
    for wrong in ([-0.1], [np.inf], [np.nan]):
        for law in (token_verified, block_verified):
            with pytest.raises(ValueError, match="ratios is .*, expected finite numbers >= 0"):
                law(wrong)
