"""AdaEDL: an entropy bound on the acceptance, with an adaptive threshold."""

from simspec.policy.arguments import check_number
from simspec.policy.policy import Policy
from simspec.policy.threshold import adaptive_policy
from simspec.policy_kind import SCOPE, SHARE, PolicyKind, Real


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


POLICIES = (
    PolicyKind(
        adaedl, "features", "AdaEDL", "entropy of q, acceptance",
        "stop where 1 - sqrt(0.2 H) is below a threshold that follows acceptance",
        "those of `draft_verify`", "unverified",
        examples=("adaedl:0.5,step=0.3,scope=stream", "adaedl:0.4"),
        space={
            "threshold": SHARE, "target": SHARE, "step": Real(0.001, 0.3, log=True),
            "g": Real(0.02, 1, log=True), "scope": SCOPE,
        },
    ),
)  # fmt: skip
