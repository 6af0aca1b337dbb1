"""Files of measurements that a killed command continues from."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from real.bench.hf_generate import Tuning
from real.bench.race import Kept, Runs
from real.bench.scorecard import ScorecardRow
from real.files import replace_json
from simspec.output.names import one_note

T = TypeVar("T")


def load_saved(path: Path, settings: Mapping, kind: str, parse: Callable[[Any], T]) -> T | None:
    """parse(the JSON object in the file), whose "settings" must be these; None without a file.

    ValueError, one line, for a damaged file, which names the `kind` expected, or other settings.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        value = parse(data)
        saved = dict(data["settings"])
    except FileNotFoundError:
        return None
    except (
        OSError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        AttributeError,
        RecursionError,
    ) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} holds no {kind}: {reason}; name another file") from error
    for name in sorted(saved.keys() | settings.keys()):
        if saved.get(name) != settings.get(name):
            was, now = (one_note(of.get(name)) for of in (saved, settings))
            raise ValueError(
                f"{path} was made with {one_note(name):.60} {was:.60}, this is {now:.60}; "
                "name another file to save to"
            )
    return value


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


def save_rows(path: Path, settings: Mapping, rows: Mapping[str, Sequence[ScorecardRow]]) -> None:
    """Writes rows by recording to `path`, atomically, with the settings that they belong to."""
    by_recording = {name: [asdict(row) for row in group] for name, group in rows.items()}
    replace_json(path, {"settings": settings, "rows": by_recording})


def load_rows(path: Path, settings: Mapping) -> dict[str, tuple[ScorecardRow, ...]]:
    """Rows by recording that `save_rows` wrote, {} without a file.

    ValueError, one line, for a damaged file or one of other settings.
    """
    return load_saved(path, settings, "rows of a scorecard", _rows) or {}


def _rows(data: Any) -> dict[str, tuple[ScorecardRow, ...]]:
    return {name: tuple(_row(values) for values in group) for name, group in data["rows"].items()}


def _row(values: Mapping) -> ScorecardRow:
    parsed: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in values.items()
    }
    row = ScorecardRow(**parsed)
    for name, kind in get_type_hints(ScorecardRow).items():
        value = getattr(row, name)
        if kind is str or kind is int:
            valid = type(value) is kind
        elif kind is tuple:
            valid = type(value) is tuple and len(value) == 4 and all(map(_is_number, value))
        else:
            valid = _is_number(value) or value is None and type(None) in get_args(kind)
        if not valid:
            expected = {tuple: "four numbers", str: "text"}.get(kind, "a number")
            raise ValueError(f"{name} is {value!r}, expected {expected}")
    return row


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
