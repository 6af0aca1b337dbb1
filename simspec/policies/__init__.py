"""The built-in policies, one mechanism a file, and their text form."""

from collections.abc import Callable

from simspec.policies.adaptive import hf_heuristic
from simspec.policies.confidence import confidence
from simspec.policies.fixed import fixed
from simspec.policies.oracle import oracle
from simspec.policies.thompson import beta_ts
from simspec.policy import Policy, PolicyError

BUILTIN = {
    "fixed": fixed,
    "beta_ts": beta_ts,
    "confidence": confidence,
    "hf_heuristic": hf_heuristic,
    "oracle": oracle,
}


def parse(text: str) -> Policy | Callable:
    """The policy written as name[:arg,...], each arg a value or key=value: fixed:3, beta_ts:censored,alpha0=2.

    A built-in policy's own name reads back as itself. 'oracle' gives the function of (trace, cost) that makes the
    policy. PolicyError, one line, for an unknown name or arguments the policy does not take.
    """
    name, _, rest = text.partition(":")
    if name not in BUILTIN:
        raise PolicyError(f"policy {text!r}: no policy is named {name!r}, expected one of {', '.join(BUILTIN)}")
    if name == "oracle":
        if rest:
            raise PolicyError(f"policy {text!r}: oracle takes no arguments, it reads the trace and the cost")
        return oracle
    positional, named = [], {}
    for part in rest.split(",") if rest else []:
        key, equals, value = part.rpartition("=")
        if equals:
            named[key.strip()] = _value(value)
        else:
            positional.append(_value(part))
    try:
        return BUILTIN[name](*positional, **named)
    except TypeError as error:
        raise PolicyError(f"policy {text!r}: {str(error).replace('()', '')}: expected name:arg,key=value") from None


def _value(text: str):
    text = text.strip()
    if text in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
