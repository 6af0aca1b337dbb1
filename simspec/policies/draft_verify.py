"""The adaptive exit of Draft & Verify."""

from simspec.adaptive_threshold import adaptive_policy
from simspec.policy import Policy


def draft_verify(
    threshold: float = 0.8,
    target: float = 0.9,
    step: float = 0.01,
    scope: str = "sequence",
    K: int | None = None,
) -> Policy:
    """Draft & Verify: stop after a token with max q below a threshold that follows recent
    acceptance.

    The threshold follows `adaptive_threshold.adaptive_policy`. As released: K 8, threshold 0.8
    greedy (0.5 sampling), anew for each sequence; the token is submitted. K is here the longest
    draft of policy and recording. Reads 'confidence'. PolicyError for a threshold, target or step
    outside [0, 1].
    """
    settings = {"threshold": threshold, "target": target, "step": step, "scope": scope, "K": K}
    return adaptive_policy("draft_verify", 0.0, "confidence", draft_verify, settings)
