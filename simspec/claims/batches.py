"""The claim about batches: EAGLE's Table 7."""

import numpy as np

from simspec.claims.claim import EAGLE, Claim, Inputs
from simspec.claims.evidence import POSITIVE, Array, Evidence, difference, observe
from simspec.claims.recorded import PRICES, Price, Recorded
from simspec.policies.fixed import fixed
from simspec.replay.lock_step import plain_steps, policy_steps

LARGER = (4, 16)
"""EAGLE's largest batch, and one beyond."""
LENGTHS = range(1, 7)
ROWS = tuple(price for price in PRICES if not price.flat)
"""Where verification is flat a batch costs what one sequence costs, so the claim has no content."""


def shrinking_gains(inputs: Inputs, price: Price) -> list[Evidence]:
    """Claim 17: the speedup at batch 1 less that at a larger one, each at its best fixed length."""
    found = []
    for recorded in inputs.recordings.of("eagle"):
        single, k = _at(recorded, 1, price)
        for batch in LARGER:
            larger, longer = _at(recorded, batch, price)
            shown = {"speedup at 1": _speedup(single), "K at 1": k}
            shown |= {f"speedup at {batch}": _speedup(larger), f"K at {batch}": longer}
            part = f"speedup at batch 1 less that at batch {batch}"
            columns = np.concatenate((single, larger), axis=1)
            found.append(
                observe(
                    part, recorded.source, price.name, columns, difference, POSITIVE, shown,
                    inputs.seed,
                )
            )  # fmt: skip
    return found


def _at(recorded: Recorded, batch: int, price: Price) -> tuple[Array, float]:
    """(seconds [S, 2] of plain decoding and of the best fixed length, that length)."""
    cost, trace = price.of(recorded.cost), recorded.trace
    plain = plain_steps(trace, cost, batch).share
    shares = [
        policy_steps(trace, recorded.rounds(fixed(k)), cost, batch).share
        for k in LENGTHS
        if k <= trace.K
    ]
    best = int(np.argmin([share.sum() for share in shares]))
    return np.stack((plain, shares[best]), -1), best + 1.0


def _speedup(columns: Array) -> float:
    plain, seconds = columns.sum(axis=0)
    return float(plain / seconds)


CLAIMS = (
    Claim(
        17, "Gains shrink as the batch grows.", EAGLE, "Table 7", shrinking_gains,
        ROWS,
        detail="Batches 4, the paper's largest, and 16, extrapolated from rows of one sequence. "
        "With flat verification a batch costs nothing, so that price is left out.",
        regime="batches of 1 to 4, measured.",
        construction="a batch is priced as so many more rows of one pass, so where rows have a "
        "price the gain shrinks by arithmetic.",
    ),
)  # fmt: skip
