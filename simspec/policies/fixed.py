"""Fixed draft length."""

from simspec.policy.policy import Array, Draft, Go, Policy, checked, observe_nothing
from simspec.policy_kind import Option, PolicyKind


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    return slot < params[0], True


@checked
def fixed(k: Draft) -> Policy:
    """Draft k tokens in every round; fixed(0) is plain decoding."""
    return Policy(f"fixed:{k}", _draft_more, observe_nothing, params=(k,), K=k)


POLICIES = (
    PolicyKind(
        fixed, "outcomes", "all", "none", "K tokens", "K is required",
        examples=("fixed:0", "fixed:1", "fixed:3", "fixed:6"),
        space={"k": Option(tuple(range(17)))},
        required={"k": 3},
    ),
)  # fmt: skip
