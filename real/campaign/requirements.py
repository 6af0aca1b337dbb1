"""Requirements of a campaign and their thresholds: completeness, recordings, equality."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from real.audit.forced_decoding import MIN_EQUAL_SHARE
from real.campaign.config import REQUIRED
from real.campaign.workspace import Workspace
from real.jobs import RULES

DRAFTERS = (*REQUIRED, "prompt_lookup")
TASKS = 6
"""Least number of tasks."""
STEPS = {"8b": 1.6, "lab": 5.0}
"""Largest ratio of a captured plain step's latency to its floor, at batch 1 and any context."""
ASSISTED, EMULATED, ON_ONE = 1.3, 1.8, 2.5
"""Least speedups: over assisted generation; emulated, over all prompts and on one task."""
EXCEPTIONS = 0.002
"""Largest share of float32 rounds that may differ from their replays."""


@dataclass(frozen=True)
class Requirement:
    """A line that a campaign must show.

    | field | meaning |
    | --- | --- |
    | name, wanted | the requirement, and its threshold |
    | passed | None where nothing was measured |
    | figure | what was measured, in words |
    | parts | the same by drafter, rule or policy: where a shortfall comes from |
    """

    name: str
    wanted: str
    passed: bool | None
    figure: str
    parts: dict = field(default_factory=dict)


def not_measured(name: str, wanted: str) -> Requirement:
    return Requirement(name, wanted, None, "not measured")


def results_of(
    workspace: Workspace, what: str, drafters: Sequence[str] = DRAFTERS
) -> dict[str, dict]:
    found = {drafter: workspace.result(f"{what}-{drafter}") for drafter in drafters}
    return {drafter: each for drafter, each in found.items() if each is not None}


def all_required(states) -> Requirement:
    required = [each for each in states if each[1] == "required"]
    missing = {name: f"{state}: {why}" for name, _, state, why in required if state != "done"}
    return Requirement(
        "complete",
        "every required stage done",
        not missing,
        f"{len(required) - len(missing)} of {len(required)} required stages done",
        missing,
    )


def recorded(workspace: Workspace) -> Requirement:
    config, name = workspace.config, "recordings"
    tasks = TASKS if config.name == "full" else 1
    wanted = (
        f"{len(DRAFTERS)} drafters x {len(RULES)} rules, "
        f"{config.recording.per_task} prompts of each task, {tasks} tasks or more"
    )
    cards = {f"{d} {r}": workspace.result(f"record-{d}-{r}") for d in DRAFTERS for r in RULES}
    found = {key: card for key, card in cards.items() if card}
    if not found:
        return not_measured(name, wanted)
    parts = {}
    for key, card in found.items():
        fewest = min(task["texts"] for task in card["by_task"].values())
        parts[key] = {
            n: card[n] for n in ("texts", "rows", "mean_accepted_length", "repeated_8grams")
        }
        parts[key] |= {"tasks": len(card["by_task"]), "fewest": fewest}
    enough = [
        p
        for p in parts.values()
        if p["fewest"] >= config.recording.per_task and p["tasks"] >= tasks
    ]
    rows = sum(p["rows"] for p in parts.values())
    passed = len(enough) == len(DRAFTERS) * len(RULES)
    return Requirement(
        name, wanted, passed, f"{len(enough)} recordings with as many, {rows:,} rows", parts
    )


def equal(workspace: Workspace) -> Requirement:
    name = "float32 runs equal their replays"
    least = workspace.config.checks.min_tokens
    wanted = (
        f"without TF32, at least {least:,} tokens, at most {EXCEPTIONS:.1%} of rounds different"
    )
    found = results_of(workspace, "equal")
    if not found:
        return not_measured(name, wanted)
    parts = {
        d: {n: each[n] for n in ("tokens", "rounds", "exceptions", "failures")}
        for d, each in found.items()
    }
    tokens, rounds, exceptions, failures = (
        sum(p[n] for p in parts.values()) for n in ("tokens", "rounds", "exceptions", "failures")
    )
    apart = exceptions + failures
    passed = (
        tokens >= workspace.config.checks.min_tokens
        and apart <= EXCEPTIONS * rounds
        and not any(each["tf32"] for each in found.values())
    )
    figure = (
        f"{apart} of {rounds:,} rounds different ({apart / max(rounds, 1):.3%}; "
        f"{failures} without a recorded near-tie), {tokens:,} tokens"
    )
    return Requirement(name, wanted, passed, figure, parts)


def forced(workspace: Workspace) -> Requirement:
    name, wanted = (
        "bf16 on the recordings' texts",
        f"accepted lengths equal in at least {MIN_EQUAL_SHARE:.0%} of rounds, "
        "for all drafters and rules",
    )
    parts = {
        f"{d} {r}": one
        for d, each in results_of(workspace, "forced").items()
        for r, one in each["rules"].items()
    }
    if not parts:
        return not_measured(name, wanted)
    parts = {
        key: {n: one[n] for n in ("rounds", "equal", "draft_flips", "divergences", "failures")}
        for key, one in parts.items()
    }
    worst = min(parts, key=lambda key: parts[key]["equal"] / parts[key]["rounds"])
    share = parts[worst]["equal"] / parts[worst]["rounds"]
    equal, rounds = (sum(p[n] for p in parts.values()) for n in ("equal", "rounds"))
    return Requirement(
        name,
        wanted,
        share >= MIN_EQUAL_SHARE,
        f"{equal / rounds:.2%} of {rounds:,} rounds, least {share:.2%} ({worst})",
        parts,
    )


def audited(workspace: Workspace) -> Requirement:
    name, wanted = "bf16 free runs audited", "every divergence classified, none beyond rounding"
    parts = {
        f"{d} {r}": one
        for d, each in results_of(workspace, "audit").items()
        for r, one in each["rules"].items()
    }
    if not parts:
        return not_measured(name, wanted)
    shown = "tokens", "divergences", "largest_gap_nats", "alarms"
    cut = {
        key: {n: one[n] for n in shown} | {"failures": len(one["failures"])}
        for key, one in parts.items()
    }
    tokens, apart, beyond = (
        sum(p[n] for p in cut.values()) for n in ("tokens", "divergences", "failures")
    )
    figure = f"{apart} of {tokens:,} tokens are not the target's pick, {beyond} beyond rounding"
    return Requirement(name, wanted, all(one["clean"] for one in parts.values()), figure, cut)
