"""Rows of a scorecard in a file, from which an interrupted scorecard continues."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from real.bench.scorecard import ScorecardRow
from real.files import replace_json
from simspec.names import one_note


def save_rows(path: Path, settings: Mapping, rows: Mapping[str, Sequence[ScorecardRow]]) -> None:
    """Writes rows by recording to `path`, atomically, with the settings that they belong to."""
    by_recording = {name: [asdict(row) for row in group] for name, group in rows.items()}
    replace_json(path, {"settings": settings, "rows": by_recording})


def load_rows(path: Path, settings: Mapping) -> dict[str, tuple[ScorecardRow, ...]]:
    """Rows by recording that `save_rows` wrote, {} without a file.

    ValueError, one line, for a damaged file or one of other settings.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        rows = {
            name: tuple(_row(values) for values in group) for name, group in data["rows"].items()
        }
        saved = dict(data["settings"])
    except FileNotFoundError:
        return {}
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{path} holds no rows of a scorecard: {reason}; name another file"
        ) from error
    for name in sorted(saved.keys() | settings.keys()):
        if saved.get(name) != settings.get(name):
            was, now = (one_note(of.get(name)) for of in (saved, settings))
            raise ValueError(
                f"{path} was made with {one_note(name):.60} {was:.60}, this is {now:.60}; "
                "name another file to save to"
            )
    return rows


def _row(values: Mapping) -> ScorecardRow:
    fields: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in values.items()
    }
    row = ScorecardRow(**fields)
    for name, kind in ScorecardRow.__annotations__.items():
        value = getattr(row, name)
        if kind is str or kind is int:
            valid = type(value) is kind
        elif kind is tuple:
            valid = type(value) is tuple and len(value) == 4 and all(map(_is_number, value))
        else:
            valid = _is_number(value) or name == "noise" and value is None
        if not valid:
            expected = {tuple: "four numbers", str: "text"}.get(kind, "a number")
            raise ValueError(f"{name} is {value!r}, expected {expected}")
    return row


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
