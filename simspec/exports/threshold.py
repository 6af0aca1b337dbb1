"""The confidence threshold of a request's policy, where an engine has one."""

from simspec.exports.request import Request
from simspec.policies import parse
from simspec.policy.policy import Policy


def confidence_threshold(
    request: Request, inclusive: bool, engine: str
) -> tuple[float, int] | None:
    """(threshold, longest draft) of a confidence policy, None of a fixed length.

    inclusive: whether the engine submits the token below the threshold. ValueError for the other
    kind, since its drafts differ by a token, and for any other policy.
    """
    if request.choice.schedule is not None:
        return None
    name = request.choice.policies[0]
    policy = parse(name)
    if not isinstance(policy, Policy) or not name.startswith("confidence:"):
        raise ValueError(
            f"{engine} has no setting that drafts as policy {name!r} does: give fixed:K or "
            f"confidence:P,inclusive={str(inclusive).lower()}"
        )
    threshold, submits = policy.params
    if bool(submits) != inclusive:
        does = "submits" if inclusive else "drops"
        raise ValueError(
            f"policy {name!r} does not draft as {engine} does, which {does} the token below the "
            f"threshold: give confidence:{threshold:g},inclusive={str(inclusive).lower()}"
        )
    return threshold, policy.longest(request.evidence.K)
