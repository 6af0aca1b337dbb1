"""The embedded models for commands in the tests' process: loaded once, copied for each command."""

from copy import deepcopy
from functools import lru_cache

import real.pair
from real.model.passes import EAGER
from real.pair import TINY, load_pairs
from real.rerun import Comparison


@lru_cache(maxsize=8)
def _embedded(drafter, device, dtype):
    return load_pairs(TINY, {drafter: TINY / drafter}, device, dtype)[0]


def share_embedded():
    """From now on commands of this process copy the embedded models, a tenth of a load's time."""
    real.pair.load_pairs = _load


def embedded(drafter, device="cpu", dtype="float32"):
    """The pair of an embedded drafter, as a command loads it: its own copy."""
    pair = _embedded(drafter, device, dtype)
    return deepcopy(pair, {id(one): one for one in (pair.tokenizer, EAGER)})


def _load(folder, drafters, device="cpu", dtype="float32", target=None, make_passes=lambda: EAGER):
    ((drafter, weights), *others) = drafters.items()
    own = folder == TINY and weights == TINY / drafter and not target
    if others or not own or make_passes() is not EAGER:
        return load_pairs(folder, drafters, device, dtype, target, make_passes)
    return [embedded(drafter, device, dtype)]


def together(comparisons):
    """Several comparisons of a run with its replay as one."""
    exceptions, failures = (
        tuple(flip for each in comparisons for flip in getattr(each, kind))
        for kind in ("exceptions", "failures")
    )
    return Comparison(sum(each.rounds for each in comparisons), exceptions, failures)
