"""Finished repeats of a race in a file, from which a killed race continues."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from real.bench.contestant import Runs
from real.bench.race import Kept
from real.bench.saved import load_saved
from real.bench.tuning import Tuning
from real.files import replace_json


class RaceFile(Kept):
    """Keeps the tuning and every finished repeat, atomically; a path of None keeps nothing.

    `revisions` are the git revisions that ran a part of the race. ValueError, one line, for a
    damaged file or one of other settings.
    """

    def __init__(self, path: Path | None, settings: Mapping, revision: str = ""):
        self.path, self.settings = path, settings
        self.runs: list[Runs] = []
        self.tuning: dict[str, Tuning] | None = None
        self.revisions = [revision]
        found = path and load_saved(path, settings, "finished repeats of a race", _parse)
        if found:
            self.tuning, self.runs, before = found
            self.revisions = list(dict.fromkeys([*before, revision]))

    def load(self) -> list[Runs]:
        return self.runs

    def save(self, runs: Sequence[Runs]) -> None:
        self.runs = list(runs)
        self._write()

    def save_tuning(self, tuning: Mapping[str, Tuning]) -> None:
        """Keeps what tuning chose, so that a killed race continues with it."""
        self.tuning = dict(tuning)
        self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        value = {
            "settings": self.settings,
            "revisions": self.revisions,
            "tuning": {method: asdict(found) for method, found in (self.tuning or {}).items()},
            "runs": [asdict(runs) for runs in self.runs],
        }
        replace_json(self.path, value)


def _parse(data: Any) -> tuple[dict[str, Tuning], list[Runs], list[str]]:
    tuning = {
        str(method): Tuning(found["chosen"], dict(found["rates"]), tuple(found["prompts"]))
        for method, found in data["tuning"].items()
    }
    runs = [Runs(**each) for each in data["runs"]]
    for each in runs:
        _check(each)
    return tuning, runs, [str(revision) for revision in data["revisions"]]


def _check(runs: Runs) -> None:
    for field in fields(Runs):
        if field.type in (str, bool) and type(getattr(runs, field.name)) is not field.type:
            raise ValueError(f"{field.name} is {getattr(runs, field.name)!r}")
    if runs.error:
        return
    sizes = {
        tuple(len(repeat) for repeat in column)
        for column in (runs.token, runs.passes, runs.seconds)
    }
    if len(sizes) != 1 or not all(
        type(x) in (int, float) and math.isfinite(x) and x > 0
        for column in (runs.passes, runs.seconds)
        for repeat in column
        for x in repeat
    ):
        raise ValueError(f"calls of {runs.name} are not complete repeats of positive seconds")
