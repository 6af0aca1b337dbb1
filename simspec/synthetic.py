"""Traces whose truth is known."""

import numpy as np

from simspec.grid import LOG_ODDS, encode
from simspec.meta import TraceMeta
from simspec.trace import Trace


def iid(alpha: float, sequences: int, rows: int, K: int, seed: int = 0, confidence: bool = False) -> Trace:
    """Each draft token is accepted with probability alpha, given that those before it were."""
    return decaying([alpha] * K, sequences, rows, seed, confidence)


def decaying(alphas, sequences: int, rows: int, seed: int = 0, confidence: bool = False) -> Trace:
    """The draft token at depth j is accepted with probability alphas[j - 1], given that those before it were; K = len(alphas).

    Rows are drawn independently, so the law holds on whatever rows a policy reaches; a run ends with the text, budget is
    the length, no sequence ends early. confidence adds a calibrated feature of that name: the drafter's confidence at
    each slot is drawn from a Beta law of mean alphas[j - 1], put on its grid, and the token is accepted with exactly the
    probability shown (the mean is then alphas[j - 1] to within the grid's rounding). ValueError outside [0, 1] or for
    empty sizes.
    """
    alphas = np.asarray(alphas, dtype=np.float64)
    if alphas.ndim != 1 or not 1 <= len(alphas) <= 255 or not ((alphas >= 0) & (alphas <= 1)).all():
        raise ValueError(f"acceptances are {alphas.tolist()}, expected 1 to 255 numbers in [0, 1]")
    if sequences < 1 or rows < 1:
        raise ValueError(f"asked for {sequences} sequences of {rows} rows, expected at least 1 of each")
    random, K, N = np.random.default_rng(seed), len(alphas), sequences * rows
    chance, feature = np.broadcast_to(alphas, (N, K)), None
    if confidence:
        inside = np.clip(alphas, 1e-6, 1 - 1e-6)
        codes, _ = encode(random.beta(4 * inside, 4 * (1 - inside), (N, K)), LOG_ODDS)
        chance, feature = LOG_ODDS[codes], codes[:, :, None]
    left = np.tile(np.arange(rows, 0, -1), sequences)
    # u < 1 always, so a certain token is always accepted and an impossible one never.
    run = np.logical_and.accumulate(random.random((N, K)) < chance, axis=1).sum(axis=1)
    law = ",".join(f"{alpha:g}" for alpha in alphas)
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
            drafter=f"acceptance {law}",
            K=K,
            seed=seed,
            features=(("confidence", "confidence"),) if confidence else (),
            tasks=("synthetic",) * sequences,
            ids=tuple(f"synthetic-{s}" for s in range(sequences)),
        ),
    )
