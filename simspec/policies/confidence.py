"""Stop where the drafter is unsure."""

from simspec.policy import Policy, PolicyError


def _draft_more(params, state, slot, features, u):
    if slot == 0:
        return True, True
    return features[slot - 1, 0] >= params[0], params[1] > 0.0


def _observe(params, state, computed, drafted, accepted, features, cost):
    pass


def confidence(threshold: float, inclusive: bool = True, K: int | None = None) -> Policy:
    """Stop after a token whose drafter's top probability is under the threshold.

    inclusive submits that token too (the assistant threshold of HuggingFace transformers, S2D's last exit);
    otherwise it is dropped, paid for in vain (llama.cpp's p_min). Reads 'confidence', max q, so dropping it looks at q
    alone and stays lossless. PolicyError for a threshold outside [0, 1].
    """
    if isinstance(threshold, str) or not 0 <= threshold <= 1:
        raise PolicyError(f"confidence: threshold is {threshold!r}, expected a number in [0, 1]")
    if not isinstance(inclusive, bool):
        raise PolicyError(f"confidence: inclusive is {inclusive!r}, expected true or false")
    name = f"confidence:{threshold:g}" + ("" if inclusive else ",inclusive=false") + (f",K={K}" if K is not None else "")
    return Policy(name, _draft_more, _observe, params=(threshold, inclusive), K=K, reads=("confidence",))
