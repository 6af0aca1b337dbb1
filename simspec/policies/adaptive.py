"""Draft lengths that follow the last round's outcome."""

from simspec.policy import Policy, PolicyError


def _draft_more(params, state, slot, features, u):
    return slot < state[0], True


def _observe(params, state, computed, drafted, accepted, features, cost):
    state[0] = state[0] + 2.0 if accepted == drafted else max(1.0, state[0] - 1.0)


def hf_heuristic(start: int = 5, transient: bool = False) -> Policy:
    """The rule of HuggingFace transformers: all candidates accepted, n += 2; else n = max(1, n - 1).

    As released, 'all' means all that were submitted, even where something else cut the draft short, an empty draft
    included; n has no upper bound of its own. `heuristic` carries n across prompts, `heuristic_transient` starts anew.
    start is 5 in older releases, 20 in newer ones. PolicyError unless start is an integer >= 1.
    """
    if not isinstance(start, int) or isinstance(start, bool) or start < 1:
        raise PolicyError(f"hf_heuristic: start is {start!r}, expected an integer >= 1")
    if not isinstance(transient, bool):
        raise PolicyError(f"hf_heuristic: transient is {transient!r}, expected true or false")
    name = f"hf_heuristic:{start}" + (",transient=true" if transient else "")
    return Policy(
        name, _draft_more, _observe, state0=(start,), scope="sequence" if transient else "stream"
    )
