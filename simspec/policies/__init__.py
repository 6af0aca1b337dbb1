"""The built-in policies, one family a file, and their text form.

A new policy is one file here, which declares it in `POLICIES`, see `simspec.policy_kind`.
"""

from collections.abc import Callable
from typing import Any

from simspec.cost.model import CostModel
from simspec.output.names import expected_one
from simspec.plugins import plugins
from simspec.policies.adaptive_verification import adaptive_verification
from simspec.policies.bandits import exp3, ucb
from simspec.policies.calibrated import cali_ts
from simspec.policies.engines import ema_tiers, goodput, hf_heuristic, two_thresholds
from simspec.policies.fixed import fixed
from simspec.policies.oracles import greedy_oracle, oracle
from simspec.policies.thompson import beta_ts, cost_ts
from simspec.policies.thresholds import adaedl, confidence, entropy, product, specdec_pp
from simspec.policies.trees import cape, dynamic_tree, optimal_tree, static, tree_oracle
from simspec.policy.batch import BatchPolicy
from simspec.policy.policy import Policy, PolicyError
from simspec.policy_kind import GROUPS, DeferredPolicy, PolicyKind
from simspec.trace.trace import Trace
from simspec.tree.tree import TreePolicy

__all__ = [
    "BUILTIN", "CLAIRVOYANT", "PolicyError", "TREES",
    "adaedl", "adaptive_verification", "beta_ts", "cali_ts", "cape", "confidence", "cost_ts",
    "dynamic_tree", "ema_tiers", "entropy", "exp3", "fixed", "goodput", "greedy_oracle",
    "hf_heuristic", "make", "optimal_tree", "oracle", "parse", "product", "read_arguments",
    "specdec_pp", "static", "tree_oracle", "two_thresholds", "ucb",
]  # fmt: skip


def _declared(under: str) -> dict[str, PolicyKind]:
    """{name: kind} of all files of this folder, in the order of GROUPS and of their names."""
    files = plugins(__name__, under).values()
    found = sorted(
        (kind for file in files for kind in getattr(file, under)),
        key=lambda kind: ([*GROUPS].index(kind.group), kind.name),
    )
    return {kind.name: kind for kind in found}


KINDS = _declared("POLICIES")
"""Every built-in policy of a request."""

BATCH_KINDS = _declared("BATCH_POLICIES")
"""Every built-in policy that decides for all requests of a batch, see `simspec.policy.batch`."""

BUILTIN: dict[str, Callable[..., Any]] = {
    name: kind.make for name, kind in KINDS.items() if kind.group != "trees"
}
TREES: dict[str, Callable[..., Any]] = {
    name: kind.make for name, kind in KINDS.items() if kind.group == "trees"
}

CLAIRVOYANT = tuple(name for name, kind in KINDS.items() if kind.clairvoyant)
"""Names of the policies that know the recorded tokens: they are replayed and never run."""


def parse(text: str) -> Policy | TreePolicy | DeferredPolicy:
    """The policy written as name[:arg,...], each arg a value or key=value.

    Examples: fixed:3, beta_ts:censored,alpha0=2, static:4x2x1, cape:3,k=5. A built-in policy's own
    name reads back as itself. Policies that need the trace and the costs (the oracles, cost_ts,
    trees fitted to ranks) are a DeferredPolicy, see `make`. PolicyError, one line, for an unknown
    name, with the nearest known one, or for arguments that the policy does not take; TreeError for
    an invalid tree.
    """
    name, _, rest = text.partition(":")
    known = BUILTIN | TREES
    if name in BATCH_KINDS:
        raise PolicyError(
            f"policy {text!r} decides for all requests of a batch, expected one of a request: "
            "replay it with `simspec sweep --report batch --policy`"
        )
    if name not in known:
        hint = expected_one(name, known, BATCH_KINDS)
        raise PolicyError(f"policy {text!r}: no policy is named {name!r}: {hint}")
    entry = known[name]
    if isinstance(entry, DeferredPolicy):
        if rest:
            raise PolicyError(
                f"policy {text!r}: {name} takes no arguments, it reads the trace and the cost"
            )
        return entry
    policy: Policy | TreePolicy | DeferredPolicy = _called(entry, text, rest)
    return policy


def parse_batch(text: str) -> BatchPolicy | None:
    """The policy of a whole batch written as `parse` takes them; None where the name is no such."""
    name, _, rest = text.partition(":")
    if name not in BATCH_KINDS:
        return None
    policy: BatchPolicy = _called(BATCH_KINDS[name].make, text, rest)
    return policy


def _called(entry: Callable[..., Any], text: str, rest: str) -> Any:
    positional, named = read_arguments(rest)
    try:
        return entry(*positional, **named)
    except TypeError as error:
        raise PolicyError(
            f"policy {text!r}: {str(error).replace('()', '')}: expected name:arg,key=value"
        ) from None


def make(policy: Any, trace: Trace, cost: CostModel) -> Policy | TreePolicy:
    """The Policy or TreePolicy for this trace at these costs; PolicyError for what is no policy.

    policy: a policy, its text, or a function of (trace, cost) that returns one.
    """
    parsed = parse(policy) if isinstance(policy, str) else policy
    resolved = parsed(trace, cost) if callable(parsed) else parsed
    if not isinstance(resolved, Policy | TreePolicy):
        raise PolicyError(
            f"{policy!r} is no policy: expected a Policy, text such as 'fixed:3', "
            "or a function of (trace, cost)"
        )
    return resolved


def read_arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """(values, {key: value}) of 'arg,key=value'."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for part in text.split(",") if text else []:
        key, equals, value = part.partition("=")
        if equals:
            named[key.strip()] = _value(value)
        else:
            positional.append(_value(part))
    return positional, named


def _value(text: str) -> bool | int | float | str | None:
    text = text.strip()
    words = {"true": True, "false": False, "none": None}
    if text in words:
        return words[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
