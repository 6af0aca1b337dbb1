"""Fixed draft length."""

from simspec.policy import Policy, PolicyError


def _draft_more(params, state, slot, features, u):
    return slot < params[0], True


def _observe(params, state, computed, drafted, accepted, features, cost):
    pass


def fixed(k: int) -> Policy:
    """Draft k tokens in every round; fixed(0) is plain decoding."""
    if not isinstance(k, int) or not 0 <= k <= 255:
        raise PolicyError(f"fixed: k is {k!r}, expected an integer in 0..255")
    return Policy(f"fixed:{k}", _draft_more, _observe, params=(k,), K=k)
