"""Rows of a scorecard in a file, from which an interrupted scorecard continues."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args, get_type_hints

from real.bench.saved import load_saved
from real.bench.scorecard import ScorecardRow
from real.files import replace_json


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
