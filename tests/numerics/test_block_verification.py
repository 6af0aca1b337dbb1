"""Block verification by enumeration: lossless, and accepted as `formulas.block_accepted` says."""

from collections import defaultdict
from itertools import product

import numpy as np
import pytest

from simspec.numerics.formulas import block_accepted, depthwise_committed

V, K = 3, 3


def models(seed):
    """{prefix: next token's distribution} of a target and a drafter."""
    rng = np.random.default_rng(seed)
    prefixes = [prefix for n in range(K + 1) for prefix in product(range(V), repeat=n)]
    return [{prefix: rng.dirichlet(np.full(V, 0.7)) for prefix in prefixes} for _ in range(2)]


def of_path(model, path):
    return np.array([model[path[:i]][token] for i, token in enumerate(path)])


def verified(p, q, chained=True):
    """{(accepted, output of K + 1 tokens): probability} of Algorithm 2 of Sun et al., by every
    draft and draw; not chained: with the residual of token verification, a planted fault.
    """
    joint = defaultdict(float)
    for x in product(range(V), repeat=K):
        weights, accepts, residuals = [1.0], [], []
        for i in range(K + 1):
            w = weights[-1]
            left = np.maximum(w * p[x[:i]] - q[x[:i]], 0)
            residuals.append(left if chained else np.maximum(p[x[:i]] - q[x[:i]], 0))
            accepts.append(left.sum() / (left.sum() + 1 - w) if i < K and w < 1 else 1.0)
            if i < K:
                weights.append(min(w * p[x[:i]][x[i]] / q[x[:i]][x[i]], 1.0))
        accepts[0], accepts[K], residuals[K] = 1.0, weights[K], p[x]
        chance = of_path(q, x).prod()
        for i in range(K, -1, -1):  # the longest block that is accepted
            if residuals[i].sum() > 0:
                for token, share in enumerate(residuals[i] / residuals[i].sum()):
                    for rest in product(range(V), repeat=K - i):
                        y = (*x[:i], token, *rest)
                        after = of_path(p, y)[i + 1 :].prod()
                        joint[i, y] += chance * accepts[i] * share * after
            chance *= 1 - accepts[i]
    return joint


def outputs(joint):
    total = defaultdict(float)
    for (_, y), chance in joint.items():
        total[y] += chance
    return np.array([total[y] for y in product(range(V), repeat=K + 1)])


@pytest.mark.parametrize("seed", range(3))
def test_it_is_lossless_and_accepts_given_the_output_as_the_formula_says(seed):
    p, q = models(seed)
    joint, texts = verified(p, q), list(product(range(V), repeat=K + 1))
    expected = [of_path(p, y).prod() for y in texts]
    np.testing.assert_allclose(outputs(joint), expected, atol=1e-12)
    means = np.zeros(2)
    for y, chance in zip(texts, expected):
        ratio = of_path(q, y[:K]) / of_path(p, y[:K])
        accepted = np.array([joint[i, y] for i in range(K + 1)])
        at_least = accepted[::-1].cumsum()[::-1][1:] / chance
        np.testing.assert_allclose(block_accepted(ratio), at_least, atol=1e-12)
        capped = np.minimum(ratio, 1)  # as a recording holds it: token verification comes out
        np.testing.assert_allclose(block_accepted(capped), capped.cumprod(), atol=1e-15)
        means += chance * block_accepted(ratio).sum(), chance * (depthwise_committed(capped) - 1)
    assert means[0] > means[1] + 1e-3


def test_control_the_residual_of_token_verification_is_found():
    p, q = models(0)
    assert np.abs(outputs(verified(p, q)) - outputs(verified(p, q, chained=False))).sum() > 1e-3


def test_the_law_is_that_of_one_draw_against_a_running_minimum():
    ratio = np.array([[2.0, 0.3, 3.0], [0.5, 3.0, 0.1], [0.0, 9.0, 1.0]])
    expected = [[1.0, 0.6, 0.6], [0.5, 0.5, 0.15], [0.0, 0.0, 0.0]]
    np.testing.assert_allclose(block_accepted(ratio), expected)
    with pytest.raises(ValueError, match="ratio is"):
        block_accepted([-1.0])
