"""AdaEDL: an entropy bound on the acceptance, with an adaptive threshold."""

from simspec.adaptive_threshold import adaptive_policy
from simspec.policy import Policy
from simspec.policy_arguments import check_number


def adaedl(
    threshold: float = 0.8,
    target: float = 0.9,
    step: float = 0.01,
    g: float = 0.2,
    scope: str = "sequence",
    K: int | None = None,
) -> Policy:
    """AdaEDL: stop after a token at which 1 - sqrt(g H), a bound on its acceptance, is below
    lambda.

    H is q's entropy in nats. lambda follows recent acceptance as the threshold of `draft_verify`
    does. The paper is reported to use g = 0.2; its first lambda and its target were unavailable, so
    those of Draft & Verify are used, unverified. Reads 'entropy'. PolicyError for a threshold,
    target or step outside [0, 1] or g outside [1e-6, 10].
    """
    check_number("adaedl", "g", g, 1e-6, 10)
    settings = {"threshold": threshold, "target": target, "step": step, "scope": scope, "K": K}
    return adaptive_policy("adaedl", g, "entropy", adaedl, settings | {"g": g})
