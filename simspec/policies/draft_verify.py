"""The adaptive exit of Draft & Verify."""

from dataclasses import replace

from simspec.cost.model import CostModel
from simspec.policy.arguments import check_option, policy_name
from simspec.policy.policy import Policy
from simspec.policy.threshold import adaptive_policy
from simspec.policy_kind import SCOPE, SHARE, DeferredPolicy, PolicyKind, Real
from simspec.trace.trace import Trace

VARIANTS = ("paper", "released")
SIGNALS = ("confidence", "probability")
RELEASED_K = 8


def draft_verify(
    threshold: float = 0.8,
    target: float = 0.9,
    step: float = 0.01,
    scope: str = "sequence",
    K: int | None = None,
    variant: str = "paper",
    signal: str = "confidence",
) -> Policy | DeferredPolicy:
    """Draft & Verify: stop after a token with max q below a threshold that follows recent
    acceptance.

    The threshold follows `adaptive_threshold.adaptive_policy`, and falls only after drafts shorter
    than K. Threshold 0.8 greedy (0.5 sampling), anew for each sequence; the token is submitted.

    | variant | K where none is given |
    | --- | --- |
    | paper | the recording's |
    | released | 8, or the recording's where that is less |

    Reads 'confidence', max q: the drafted token's where drafts are greedy. As released it is q of
    the drafted token, the signal 'probability', which differs where drafts are drawn. PolicyError
    for a threshold, target or step outside [0, 1], or an unknown variant or signal.
    """
    check_option("draft_verify", "variant", variant, VARIANTS)
    check_option("draft_verify", "signal", signal, SIGNALS)
    settings = {
        "threshold": threshold, "target": target, "step": step, "scope": scope, "K": K,
        "variant": variant, "signal": signal,
    }  # fmt: skip

    def capped(longest: int | None) -> Policy:
        values = settings | {"K": longest}
        policy = adaptive_policy("draft_verify", 0.0, signal, draft_verify, values)
        return replace(policy, name=policy_name("draft_verify", settings, draft_verify))

    if variant == "paper" or K is not None:
        return capped(K)

    def resolved(trace: Trace, cost: CostModel) -> Policy:
        return capped(min(RELEASED_K, trace.K))

    name = policy_name("draft_verify", settings, draft_verify)
    return DeferredPolicy(name, resolved, (signal,))


POLICIES = (
    PolicyKind(
        draft_verify, "features", "Draft & Verify", "max q, acceptance",
        "stop below a threshold that follows acceptance", "0.8, target 0.9, step 0.01",
        "`variant=released` drafts up to 8 tokens; `paper` (default) as many as the recording "
        "holds; `signal=probability` where drafts are drawn",
        examples=("draft_verify", "draft_verify:0.5"),
        space={
            "threshold": SHARE, "target": SHARE, "step": Real(0.001, 0.3, log=True),
            "scope": SCOPE,
        },
    ),
)  # fmt: skip
