"""Draft lengths that follow the last round's outcome."""

from simspec.policy.arguments import check_flag
from simspec.policy.policy import Array, Go, Policy, PolicyError
from simspec.policy_kind import FLAG, Option, PolicyKind


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    return slot < state[0], True


def _observe(
    params: Array,
    state: Array,
    computed: int,
    drafted: int,
    accepted: int,
    features: Array,
    cost: float,
) -> None:
    state[0] = state[0] + 2.0 if accepted == drafted else max(1.0, state[0] - 1.0)


def hf_heuristic(start: int = 5, transient: bool = False) -> Policy:
    """The rule of HuggingFace transformers: n += 2 if all were accepted, else n = max(1, n - 1).

    As released, 'all' means all submitted tokens, even where something else cut the draft short,
    and an empty draft counts. n has no upper bound. `heuristic` carries n across prompts,
    `heuristic_transient` starts anew. start is 5 in older releases, 20 in newer ones. PolicyError
    unless start is an integer >= 1.
    """
    if not isinstance(start, int) or isinstance(start, bool) or start < 1:
        raise PolicyError(f"hf_heuristic: start is {start!r}, expected an integer >= 1")
    check_flag("hf_heuristic", "transient", transient)
    name = f"hf_heuristic:{start}" + (",transient=true" if transient else "")
    scope = "sequence" if transient else "stream"
    return Policy(name, _draft_more, _observe, state0=(start,), scope=scope)


POLICIES = (
    PolicyKind(
        hf_heuristic, "outcomes", "transformers", "last round",
        "all accepted: n + 2, else n - 1, at least 1", "start 5",
        "as released; start 20 in newer versions",
        examples=("hf_heuristic:2", "hf_heuristic:3,transient=true"),
        space={"start": Option(tuple(range(1, 21))), "transient": FLAG},
    ),
)  # fmt: skip
