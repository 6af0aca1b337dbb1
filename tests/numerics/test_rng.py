import warnings

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simspec.numerics import rng

# Random123's kat_vectors for philox4x32, 10 rounds: counter, key, result.
VECTORS = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
WORD = st.integers(0, 2**32 - 1)
SEED = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("counter, key, expected", VECTORS)
@pytest.mark.parametrize("interpreted", [False, True])
def test_published_vectors_compiled_interpreted_and_naive(counter, key, expected, interpreted):
    function = getattr(rng.philox, "py_func", rng.philox) if interpreted else rng.philox
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        words = function(*(np.uint64(word) for word in counter + key))
    assert tuple(int(word) for word in words) == expected
    assert tuple(naive.philox(counter, key)) == expected


@settings(deadline=None)
@given(SEED, WORD, WORD, st.integers(0, 2**34 - 1), st.integers(0, 4))
def test_uniform_is_the_addressed_word(seed, sequence, round_, slot, role):
    u = rng.uniform(seed, sequence, round_, slot, role)
    assert u == naive.uniform(seed, sequence, round_, slot, role)
    assert 0 < u < 1


def test_every_part_of_the_address_matters():
    base = (5, 1, 2, 3, rng.POLICY)
    changed = [
        (6, 1, 2, 3, 0), (5 + 2**32, 1, 2, 3, 0), (5, 2, 2, 3, 0), (5, 1, 3, 3, 0),
        (5, 1, 2, 7, 0), (5, 1, 2, 3, 1),
    ]  # fmt: skip
    draws = [rng.uniform(*address) for address in [base, *changed]]
    assert len(set(draws)) == len(draws)


@pytest.mark.parametrize(
    "address, name",
    [
        ((-1, 0, 0, 0, 0), "seed"), ((2**64, 0, 0, 0, 0), "seed"),
        ((0, 2**32, 0, 0, 0), "sequence"), ((0, 0, -1, 0, 0), "round"),
        ((0, 0, 0, 2**34, 0), "slot"), ((0, 0, 0, 0, 2**32), "role"),
    ],
)  # fmt: skip
def test_addresses_outside_the_range_are_refused(address, name):
    with pytest.raises(ValueError, match=f"^{name}.*expected") as caught:
        rng.uniform(*address)
    assert "\n" not in str(caught.value)


@settings(deadline=None, max_examples=40)
@given(SEED, WORD, st.lists(WORD, min_size=0, max_size=3), st.integers(1, 13))
def test_gumbel_rows_transform_the_addressed_uniforms(seed, sequence, positions, vocab):
    rows = rng.gumbel_rows(seed, sequence, np.array(positions, dtype=np.int64), vocab)
    assert rows.shape == (len(positions), vocab)
    assert rows.dtype == np.float64
    for row, position in zip(rows, positions):
        u = np.array([naive.uniform(seed, sequence, position, v, rng.GUMBEL) for v in range(vocab)])
        np.testing.assert_allclose(row, -np.log(-np.log(u)), rtol=1e-13, atol=1e-13)
        np.testing.assert_array_equal(row, rng.gumbel(seed, sequence, position, vocab))


def test_gumbel_argmax_samples_the_softmax():
    """Chi-square of 4,000 argmaxes against softmax: a right generator fails at the fixed seed
    with probability 1e-4.
    """
    p = np.array([0.5, 0.3, 0.15, 0.05])
    noise = rng.gumbel_rows(3, 0, np.arange(4000), 4)
    counts = np.bincount((np.log(p) + noise).argmax(axis=1), minlength=4)

    def statistic(distribution):
        return ((counts - 4000 * distribution) ** 2 / (4000 * distribution)).sum()

    assert statistic(p) < 21.1  # 1 - 1e-4 quantile, 3 degrees of freedom
    assert statistic(np.array([0.45, 0.35, 0.15, 0.05])) > 21.1


def test_gumbel_refuses_invalid_shapes():
    with pytest.raises(ValueError, match="vocab is 0"):
        rng.gumbel(0, 0, 0, 0)
    with pytest.raises(ValueError, match="axes"):
        rng.gumbel_rows(0, 0, np.zeros((2, 2), np.int64), 4)


def test_uniform_rows_are_those_of_each_address():
    rows = rng.uniform_rows(9, np.array([4, 0, 70_000]), 5, rng.RESIDUAL)
    wanted = [[rng.uniform(9, s, t, 0, rng.RESIDUAL) for t in range(5)] for s in (4, 0, 70_000)]
    assert rows.tolist() == wanted
    assert rng.uniform_rows(9, np.zeros(0, np.int64), 5, 0).shape == (0, 5)
    with pytest.raises(ValueError, match="sequence is -1"):
        rng.uniform_rows(9, np.array([3, -1]), 5, 0)
