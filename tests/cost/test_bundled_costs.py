"""Bundled costs: one target, one rule, one price of verification."""

from itertools import combinations
from math import hypot

import pytest

from simspec.cost.table import load_cost
from simspec.trace.recordings import cost_beside, recordings

RULES = "greedy", "coupled"
RESUMES = "early_exit"
"""Its verification skips layers that its drafts have run: it has passes of its own."""


def costs_of_rule(rule):
    files = {name: cost_beside(path) for name, path in recordings().items()}
    return {
        name: load_cost(file)
        for name, file in files.items()
        if file is not None and name.endswith(f"-{rule}") and RESUMES not in name
    }


def in_plain_steps(cost, j):
    """(verify[j] / plain, half-width); 2% of each where the file states no interval."""
    widths = []
    for part, index, seconds in (("verify", j, cost.verify[j]), ("baseline", None, cost.baseline)):
        width = cost.precision and cost.precision.half_width[part]
        width = width[index] if width and index is not None else width
        widths.append((width or 0.02 * seconds) / seconds)
    ratio = cost.verify[j] / cost.baseline
    return ratio, ratio * hypot(*widths)


@pytest.mark.parametrize("rule", RULES)
def test_verification_in_plain_steps_agrees_between_drafters(rule):
    for (name, a), (other, b) in combinations(costs_of_rule(rule).items(), 2):
        for j in range(min(a.K, b.K) + 1):
            (ours, wide), (theirs, also_wide) = in_plain_steps(a, j), in_plain_steps(b, j)
            noise = hypot(wide, also_wide)
            assert abs(ours - theirs) <= noise, (name, other, j, ours, theirs, noise)


def test_bundled_costs_share_one_origin():
    origins = [load_cost(cost_beside(path)).origin for path in recordings().values()]
    assert all(origin is not None and origin.known for origin in origins)
    assert len({(o.device, o.threads, o.dtype, o.sitting) for o in origins}) == 1
