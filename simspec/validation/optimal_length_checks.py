"""Checks that `formulas.optimal_k` names a draft length whose replayed speedup is the best."""

from collections.abc import Sequence

import numpy as np

from simspec import formulas
from simspec.validation import settings
from simspec.validation.checks import Check


def optimal_length_checks(checks: Sequence[Check]) -> list[Check]:
    """Whether the replayed speedups at `optimal_k` are within the error of the best.

    At cost ratio c the speedup of fixed K is its tokens per round over 1 + c K. With each K's
    tokens per round inside its interval, none of these can fail: they share the false-alarm rate
    of `CheckPlan.evaluate` and add nothing to it.
    """
    by_name = {check.name: check for check in checks}
    results = []
    for alpha in settings.ALPHAS:
        tokens = [
            by_name[f"iid: alpha={alpha:g} fixed:{K}, tokens per round, formula 1"]
            for K in range(1, settings.DEEP + 1)
        ]
        got = np.array([1.0, *(check.got for check in tokens)])
        up = np.array([0.0, *(check.high - check.expected for check in tokens)])
        down = np.array([0.0, *(check.expected - check.low for check in tokens)])
        for c in settings.RATIOS:
            cost = 1 + c * np.arange(settings.DEEP + 1)
            best = int(formulas.optimal_k(alpha, c, settings.DEEP))
            low = ((got - up) / cost).max() - down[best] / cost[best]
            top = (got / cost).max()
            name = f"optimal_k: alpha={alpha:g} c={c:g}, speedup at {best}"
            results.append(Check(name, top, (got / cost)[best], low, top))
    return results
