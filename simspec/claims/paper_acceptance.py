"""Recordings raised to the papers' acceptance: synthetic, shown beside ours and never counted."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from simspec.claims.recorded import Recorded
from simspec.trace.trace import Trace

SYNTHETIC = "synthetic"
EESD_ACCEPTANCE = (0.7, 0.8)
"""Acceptance of a token that most rows of EESD's Tables 10 to 13 imply, for its early exit."""
VANILLA_ACCEPTANCE = (0.9,)
"""The same of vanilla drafting at K = 10, by the median row."""
SEED = 0


def with_raised(found: Iterable[Recorded], acceptances: Iterable[float]) -> list[Recorded]:
    """The recordings, then those that count and accept less, at each of the papers' acceptances."""
    ours, levels = list(found), list(acceptances)
    lower = [(r, level) for r in ours for level in levels if not r.excluded and own(r) <= level]
    return [*ours, *(raised(r, level) for r, level in lower)]


def own(recorded: Recorded) -> float:
    """The share of positions whose token, drafted first, is accepted."""
    return float((recorded.trace.run > 0).mean())


@lru_cache(maxsize=64)
def raised(recorded: Recorded, acceptance: float, seed: int = SEED) -> Recorded:
    """The recording with rejected tokens accepted at random, up to this acceptance.

    Of acceptance a, `own`, a rejected token is accepted with probability b, which solves
    a + (1 - a) b = acceptance, by one draw for each position; the draft goes on with that of the
    position after it. So easy and hard places of the recording stay. No feature and no sibling
    does: chains alone are replayed. ValueError where a is higher already.
    """
    trace = recorded.trace
    ends = np.repeat(trace.offset[1:], np.diff(trace.offset))
    cap = np.minimum(trace.depth, ends - np.arange(trace.rows)).tolist()
    run = trace.run.tolist()
    if (a := own(recorded)) > acceptance:
        raise ValueError(f"{recorded.name}: acceptance is {a:.2f}, expected at most {acceptance}")
    rescued = np.random.default_rng(seed).random(trace.rows) * (1 - a) < acceptance - a
    for row in range(trace.rows - 1, -1, -1):
        missed = row + run[row]
        if run[row] < cap[row] and rescued[missed]:
            rest = run[missed + 1] if missed + 1 < ends[row] else 0
            run[row] = min(cap[row], run[row] + 1 + rest)
    meta = replace(trace.meta, features=(), predictors={}, tree=())
    lengths = np.array(run, np.uint8)
    return replace(
        recorded,
        name=f"{recorded.name} raised to {acceptance:g}, seed {seed}",
        trace=Trace(trace.offset, trace.budget, trace.token, trace.depth, lengths, meta),
        excluded=SYNTHETIC,
        _kept={},
    )
