"""The embedded models for commands in the tests' process: loaded once, copied for each command."""

from copy import deepcopy
from functools import lru_cache

import real.pair
from real.model.passes import EAGER
from real.pair import TINY, load_pair
from real.rerun import Comparison

_embedded = lru_cache(maxsize=8)(load_pair)


def share_embedded():
    """From now on commands of this process copy the embedded models, a tenth of a load's time."""
    real.pair.load_pair = _load


def embedded(drafter):
    """The pair of an embedded drafter, as a command loads it: its own copy."""
    return _load(TINY, drafter, "cpu", "float32", None, None, EAGER)


def _load(folder, drafter, device, dtype, target, weights, passes):
    if folder != TINY or target or weights or passes is not EAGER:
        return load_pair(folder, drafter, device, dtype, target, weights, passes)
    pair = _embedded(folder, drafter, device, dtype)
    return deepcopy(pair, {id(one): one for one in (pair.tokenizer, EAGER)})


def together(comparisons):
    """Several comparisons of a run with its replay as one."""
    exceptions, failures = (
        tuple(flip for each in comparisons for flip in getattr(each, kind))
        for kind in ("exceptions", "failures")
    )
    return Comparison(sum(each.rounds for each in comparisons), exceptions, failures)
