"""Stop at a high entropy of the drafter (SVIP)."""

from simspec.policy.arguments import changed_settings, check_flag, check_number, threshold_name
from simspec.policy.policy import Array, Go, Policy, observe_nothing
from simspec.policy_kind import FLAG, PolicyKind, Real


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    if slot == 0:
        return True, True
    return features[slot - 1, 0] <= params[0], params[1] > 0.0


def entropy(threshold: float = 0.6, inclusive: bool = True, K: int | None = None) -> Policy:
    """SVIP: stop after a token at which q's entropy H, in nats, is above the threshold.

    Published as sqrt(0.15 H) > 0.3, that is H > 0.6, with a cap of 40; the token is submitted
    (inclusive). Reads 'entropy'. PolicyError for a threshold outside [0, 100].
    """
    check_number("entropy", "threshold", threshold, 0, 100)
    check_flag("entropy", "inclusive", inclusive)
    changed = changed_settings({"inclusive": inclusive, "K": K}, entropy)
    name = threshold_name("entropy", threshold, changed)
    params = (threshold, inclusive)
    return Policy(name, _draft_more, observe_nothing, params, K=K, reads=("entropy",))


POLICIES = (
    PolicyKind(
        entropy, "features", "SVIP", "entropy of q", "stop above 0.6 nats", "0.6", "as released",
        examples=("entropy", "entropy:2,inclusive=false"),
        space={"threshold": Real(0.02, 6, log=True), "inclusive": FLAG},
    ),
)  # fmt: skip
