"""Synthetic traces with known acceptance."""

from typing import Any

import numpy as np

from simspec.trace.file import TraceMeta
from simspec.trace.quantization import LOG_ODDS, encode
from simspec.trace.trace import Trace


def iid(
    alpha: float, sequences: int, rows: int, K: int, seed: int = 0, confidence: bool = False
) -> Trace:
    """Each draft token is accepted with probability alpha, given that those before it were."""
    return decaying([alpha] * K, sequences, rows, seed, confidence)


def decaying(
    alphas: Any, sequences: int, rows: int, seed: int = 0, confidence: bool = False
) -> Trace:
    """The draft token at depth j is accepted with probability alphas[j - 1], given that those
    before it were.

    K = len(alphas). Rows are independent, so the acceptance holds on whatever rows a policy
    reaches. The budget is the length, no sequence ends early, and an accepted length is cut at the
    end. confidence adds a calibrated feature of that name: the drafter's confidence at each slot is
    drawn from a Beta distribution of mean alphas[j - 1] and put on its grid. The token is accepted
    with exactly that probability (the mean is alphas[j - 1] to within the grid's rounding).
    ValueError outside [0, 1] or for empty sizes.
    """
    alphas = np.asarray(alphas, dtype=np.float64)
    if alphas.ndim != 1 or not 1 <= len(alphas) <= 255 or not ((alphas >= 0) & (alphas <= 1)).all():
        raise ValueError(f"acceptances are {alphas.tolist()}, expected 1 to 255 numbers in [0, 1]")
    if sequences < 1 or rows < 1:
        raise ValueError(
            f"asked for {sequences} sequences of {rows} rows, expected at least 1 of each"
        )
    random, K, N = np.random.default_rng(seed), len(alphas), sequences * rows
    acceptance, feature = np.broadcast_to(alphas, (N, K)), None
    if confidence:
        inside = np.clip(alphas, 1e-6, 1 - 1e-6)
        codes, _ = encode(random.beta(4 * inside, 4 * (1 - inside), (N, K)), LOG_ODDS)
        acceptance, feature = LOG_ODDS[codes], codes[:, :, None]
    label = ",".join(f"{alpha:g}" for alpha in alphas)
    return _trace(acceptance, f"acceptance {label}", sequences, rows, seed, random, feature)


def switching(alphas: Any, switch: Any, sequences: int, rows: int, K: int, seed: int = 0) -> Trace:
    """A hidden two-state Markov chain over positions sets the acceptance of each drafted token:
    alphas[state].

    From one position to the next, state z is left with probability switch[z] > 0; sequences start
    from the stationary distribution. Given the states, rows are independent, as in `decaying`; a
    good stretch is good at every depth of every row that reaches into it.
    `formulas.switching_committed` is its exact value at a fixed K. ValueError for invalid
    probabilities.
    """
    alphas, switch = np.asarray(alphas, dtype=np.float64), np.asarray(switch, dtype=np.float64)
    if (
        alphas.shape != (2,)
        or switch.shape != (2,)
        or not ((alphas >= 0) & (alphas <= 1) & (switch > 0) & (switch <= 1)).all()
    ):
        raise ValueError(
            f"alphas are {alphas}, switch {switch}, expected two acceptances in [0, 1] and two "
            "numbers in (0, 1]"
        )
    if sequences < 1 or rows < 1 or not 1 <= K <= 255:
        raise ValueError(
            f"asked for {sequences} sequences of {rows} rows, K = {K}, expected at least 1 of "
            "each, K up to 255"
        )
    random = np.random.default_rng(seed)
    state = np.empty((rows + K, sequences), np.int64)
    state[0] = random.random(sequences) < switch[0] / switch.sum()
    draws = random.random((rows + K, sequences))
    for position in range(1, rows + K):
        before = state[position - 1]
        state[position] = np.where(draws[position] < switch[before], 1 - before, before)
    acceptance = alphas[state[np.arange(rows)[:, None] + np.arange(K)].transpose(2, 0, 1)].reshape(
        -1, K
    )
    return _trace(
        acceptance, f"acceptance {alphas} switching {switch}", sequences, rows, seed, random
    )


def _trace(
    acceptance: Any, label: str, sequences: int, rows: int, seed: int, random: Any,
    feature: Any = None,
) -> Trace:  # fmt: skip
    N, K = acceptance.shape
    left = np.tile(np.arange(rows, 0, -1), sequences)
    # u < 1 always, so a certain token is always accepted and an impossible one never.
    run = np.logical_and.accumulate(random.random((N, K)) < acceptance, axis=1).sum(axis=1)
    return Trace(
        offset=np.arange(sequences + 1) * rows,
        budget=np.full(sequences, rows),
        token=np.zeros(N, np.int32),
        depth=np.full(N, K, np.uint8),
        run=np.minimum(run, left).astype(np.uint8),
        feature=feature,
        meta=TraceMeta(
            rule="synthetic",
            target="none",
            drafter=label,
            K=K,
            seed=seed,
            features=(("confidence", "confidence"),) if feature is not None else (),
            tasks=("synthetic",) * sequences,
            ids=tuple(f"synthetic-{s}" for s in range(sequences)),
        ),
    )
