"""Files of an import: recordings where it is exact, a summary elsewhere."""

import re
from dataclasses import replace
from pathlib import Path

from simspec.imports.conclusions import ELSEWHERE, NO_ACCEPTANCE
from simspec.imports.kinds import EngineSettings, ExactImport, Import
from simspec.imports.summary_file import write_summary
from simspec.output.files import check_output


def chosen_drafter(result: Import, drafter: str | None) -> Import:
    """The import with this drafter only, with all for None; ValueError where it is not there."""
    if drafter is None:
        return result
    if not isinstance(result, ExactImport) or drafter not in result.traces:
        names = ", ".join(result.traces) if isinstance(result, ExactImport) else "no names"
        raise ValueError(f"drafter {drafter!r} is not in the file, which has {names}")
    notes = tuple(note for note in result.notes if note.startswith(f"{drafter}: "))
    return replace(result, traces={drafter: result.traces[drafter]}, notes=notes)


def write_import(result: Import, path: Path, *inputs: Path) -> list[Path]:
    """The files written: of several drafters, NAME-DRAFTER.parquet each.

    ValueError where the path's ending is not of the kind: rounds and sums are no recording.
    """
    if not isinstance(result, ExactImport):
        if path.suffix == ".parquet":
            why = NO_ACCEPTANCE if isinstance(result, EngineSettings) else ELSEWHERE
            raise ValueError(f"{path} would be a recording, expected a .json: {why}")
        write_summary(result, path)
        return [path]
    if path.suffix != ".parquet":
        raise ValueError(f"{path} would hold a recording, expected a name that ends in .parquet")
    paths = {name: path for name in result.traces}
    if len(paths) > 1:
        if odd := [name for name in paths if not re.fullmatch(r"[\w-]{1,80}", name)]:
            raise ValueError(
                f"drafter {odd[0][:80]!r} is no part of a file's name, expected letters, digits, _ "
                "and -: choose one with --drafter"
            )
        paths = {name: path.with_name(f"{path.stem}-{name}.parquet") for name in paths}
    for part in paths.values():
        check_output(part, *inputs)
    for name, trace in result.traces.items():
        trace.save(paths[name])
    return list(paths.values())
