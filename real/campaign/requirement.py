"""A requirement on a campaign, and the stage results that it is read from."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from real.campaign.thresholds import DRAFTERS
from real.campaign.workspace import Workspace


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
