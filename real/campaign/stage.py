"""One stage of a campaign."""

from collections.abc import Callable
from dataclasses import dataclass

from real.campaign.workspace import Workspace

RANKS = ("required", "recommended", "optional")


@dataclass(frozen=True)
class Stage:
    """One stage.

    | field | meaning |
    | --- | --- |
    | name, rank | required, recommended or optional |
    | seconds | estimate on a GPU |
    | run | (workspace) -> result, for the report |
    | needs | stages that must be done before |
    | resumes | continues where it was stopped, so that it may start with less time than it needs |
    """

    name: str
    rank: str
    seconds: float
    run: Callable[[Workspace], dict]
    needs: tuple[str, ...] = ()
    resumes: bool = False
