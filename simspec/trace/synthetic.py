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
    acceptance: Any = np.broadcast_to(alphas, (N, K))
    feature: Any = None
    if confidence:
        inside = np.clip(alphas, 1e-6, 1 - 1e-6)
        codes, _ = encode(random.beta(4 * inside, 4 * (1 - inside), (N, K)), LOG_ODDS)
        acceptance, feature = LOG_ODDS[codes], codes[:, :, None]
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
            drafter=f"acceptance {','.join(f'{alpha:g}' for alpha in alphas)}",
            K=K,
            seed=seed,
            features=(("confidence", "confidence"),) if feature is not None else (),
            tasks=("synthetic",) * sequences,
            ids=tuple(f"synthetic-{s}" for s in range(sequences)),
        ),
    )
