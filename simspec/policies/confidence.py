"""Stop where the drafter is unsure: early exits on what it shows of its distribution q after each token.

All of them look at q alone, never at which token was drawn, so dropping a token stays lossless. Some keep numbers in the state from
slot to slot: a policy is asked once for each slot, the cap included, so they are updated where they are asked for.
"""

import math

from simspec.policy import Policy, PolicyError


def _draft_more(params, state, slot, features, u):
    if slot == 0:
        return True, True
    return features[slot - 1, 0] >= params[0], params[1] > 0.0


def _draft_more_by_entropy(params, state, slot, features, u):
    if slot == 0:
        return True, True
    return features[slot - 1, 0] <= params[0], params[1] > 0.0


def _draft_more_by_product(params, state, slot, features, u):
    # Read before any branch: numba then need not count references to the arrays on each side of it, half of the time otherwise.
    threshold, keep, shortest, before, shown = (
        params[0],
        params[1],
        params[2],
        state[0],
        features[max(slot - 1, 0), 0],
    )
    whole = 1.0 if slot == 0 else before * min(max(shown, 0.0), 1.0)
    state[0] = whole
    return slot < max(shortest, 1.0) or 1.0 - whole <= threshold, keep > 0.0 or slot == 0


# state: the threshold, the average of accepted / drafted. params: g, target, step, weight of the old average, of the old threshold.


def _draft_more_adaptively(params, state, slot, features, u):
    if slot == 0:
        return True, True
    shown = features[slot - 1, 0]
    sure = shown if params[0] == 0.0 else 1.0 - math.sqrt(params[0] * shown)
    return sure >= state[0], True


def _observe(params, state, computed, drafted, accepted, features, cost):
    pass


def _adapt(params, state, computed, drafted, accepted, features, cost):
    if drafted == 0:
        return
    state[1] = params[3] * state[1] + (1.0 - params[3]) * accepted / drafted
    wanted = state[0]
    if state[1] < params[1]:
        wanted += params[2]
    elif drafted < len(features):
        wanted -= params[2]
    state[0] = params[4] * state[0] + (1.0 - params[4]) * wanted


def confidence(threshold: float, inclusive: bool = True, K: int | None = None) -> Policy:
    """Stop after a token whose drafter's top probability is under the threshold.

    inclusive submits that token too (the assistant threshold of HuggingFace transformers, S2D's last exit);
    otherwise it is dropped, paid for in vain (llama.cpp's p_min). Reads 'confidence', max q, so dropping it looks at q
    alone and stays lossless. PolicyError for a threshold outside [0, 1].
    """
    _check("confidence", "threshold", threshold, 0, 1)
    name = f"confidence:{_short(threshold)}" + _options("confidence", inclusive=inclusive, K=K)
    return Policy(
        name, _draft_more, _observe, params=(threshold, inclusive), K=K, reads=("confidence",)
    )


def entropy(threshold: float = 0.6, inclusive: bool = True, K: int | None = None) -> Policy:
    """SVIP: stop after a token at which q's entropy H, in nats, is above the threshold.

    Published as sqrt(0.15 H) > 0.3, that is H > 0.6, with a cap of 40; the token is submitted (inclusive). Reads 'entropy'.
    PolicyError for a threshold outside [0, 100].
    """
    _check("entropy", "threshold", threshold, 0, 100)
    name = f"entropy:{_short(threshold)}" + _options("entropy", inclusive=inclusive, K=K)
    return Policy(
        name,
        _draft_more_by_entropy,
        _observe,
        params=(threshold, inclusive),
        K=K,
        reads=("entropy",),
    )


def product(
    threshold: float = 0.3,
    predictor: str = "confidence",
    shortest: int = 2,
    inclusive: bool = True,
    K: int | None = None,
) -> Policy:
    """SpecDec++: stop once 1 - P_1 P_2 ... P_i, the predicted chance that some token so far is rejected, is above the threshold.

    P_i is a recorded probability of acceptance: the drafter's confidence in place of the paper's trained head, or another feature by
    name, such as 'theta'. Published: threshold 0.3 (0.7 elsewhere), 2 to 20 tokens; fewer than `shortest` are never drafted of its own
    accord. The running product is set to 1 at slot 0. PolicyError for a threshold outside [0, 1] or shortest or K outside 1..255.
    """
    _check("product", "threshold", threshold, 0, 1)
    _check("product", "shortest", shortest, 1, 255, int)
    if K is not None:
        _check("product", "K", K, 1, 255, int)
    if not (isinstance(predictor, str) and predictor.isidentifier()) or predictor == "entropy":
        raise PolicyError(
            f"product: predictor is {predictor!r}, expected the name of a recorded probability such as theta"
        )
    more = (f",predictor={predictor}" if predictor != "confidence" else "") + (
        f",shortest={shortest}" if shortest != 2 else ""
    )
    name = f"product:{_short(threshold)}{more}" + _options("product", inclusive=inclusive, K=K)
    return Policy(
        name,
        _draft_more_by_product,
        _observe,
        (threshold, inclusive, shortest),
        (1.0,),
        K,
        (predictor,),
    )


def draft_verify(
    threshold: float = 0.8,
    target: float = 0.9,
    step: float = 0.01,
    scope: str = "sequence",
    K: int | None = None,
) -> Policy:
    """The adaptive exit of Draft & Verify: stop after a token with max q < th, th following the acceptance m of late rounds.

    After a round m = 0.5 m + 0.5 accepted / drafted, from 0; th' = th + step if m < target, else th - step, else th where the draft was K
    long; th = 0.9 th + 0.1 th'. As released: K 8, th 0.8 greedy (0.5 sampling), anew for each text; the token is submitted. K is here
    the longest draft of policy and recording; a round without a draft changes nothing. Reads 'confidence'. PolicyError for a threshold,
    target or step outside [0, 1].
    """
    return _adaptive(
        "draft_verify", 0.0, "confidence", draft_verify, threshold, target, step, scope, K
    )


def adaedl(
    threshold: float = 0.8,
    target: float = 0.9,
    step: float = 0.01,
    g: float = 0.2,
    scope: str = "sequence",
    K: int | None = None,
) -> Policy:
    """AdaEDL: stop after a token at which 1 - sqrt(g H), a bound on its acceptance from q's entropy H in nats, is below lambda.

    lambda follows the acceptance of late rounds exactly as th of `draft_verify`. g = 0.2 is reported for the paper; its first lambda and
    its target were not at hand, those of Draft & Verify stand in, unverified. Reads 'entropy'. PolicyError for a
    threshold, target or step outside [0, 1] or g outside [1e-6, 10].
    """
    _check("adaedl", "g", g, 1e-6, 10)
    return _adaptive("adaedl", g, "entropy", adaedl, threshold, target, step, scope, K)


def _adaptive(policy, g, feature, factory, threshold, target, step, scope, K):
    for name, value in (("threshold", threshold), ("target", target), ("step", step)):
        _check(policy, name, value, 0, 1)
    given = {"threshold": threshold, "target": target, "step": step, "scope": scope, "K": K} | (
        {"g": g} if g else {}
    )
    usual = dict(zip(factory.__code__.co_varnames, factory.__defaults__))
    told = ",".join(f"{key}={value}" for key, value in given.items() if value != usual[key])
    params = (g, target, step, 0.5, 0.9)
    return Policy(
        f"{policy}:{told}" if told else policy,
        _draft_more_adaptively,
        _adapt,
        params,
        (threshold, 0.0),
        K,
        (feature,),
        scope,
    )


def _check(policy, name, value, low, high, kind=(int, float)):
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
        raise PolicyError(
            f"{policy}: {name} is {value!r}, expected {'an integer' if kind is int else 'a number'} in [{low}, {high}]"
        )


def _short(value):
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _options(policy, inclusive, K):
    if not isinstance(inclusive, bool):
        raise PolicyError(f"{policy}: inclusive is {inclusive!r}, expected true or false")
    return ("" if inclusive else ",inclusive=false") + (f",K={K}" if K is not None else "")
