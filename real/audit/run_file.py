"""The JSON lines file of an emitted run."""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

from real.audit.emitted_run import (
    EmittedRun,
    EmittedSequence,
    RunError,
    RunHeader,
    check_end_tokens,
)
from real.files import replacing

FILE_KIND = "run"
LONGEST_LINE = 1 << 26
"""Characters of a line, which is one sequence."""


def save_run(path: Path, header: RunHeader, sequences: Sequence[EmittedSequence]) -> None:
    """Writes a run atomically: one line for the header, then one for each sequence."""
    run = EmittedRun(header, tuple(sequences))
    lines = {"simspec": FILE_KIND, **asdict(run.header)}, *map(asdict, run.sequences)
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line) + "\n")


def load_run(path: Path) -> EmittedRun:
    """Reads a run that `save_run` or another engine wrote.

    | line | required keys | optional keys |
    | --- | --- | --- |
    | first | "simspec": "run", "rule" | the other fields of `RunHeader` |
    | others | "prompt", "token" | "sequence" (default: 0, 1, ...), "rounds" |

    RunError, one line that names path and line, for any fault. Two sequences with one address are
    refused, because they would share their draws.
    """
    sequences: list[EmittedSequence] = []
    addresses: set[int] = set()
    number = 0
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), ""), 1):
                if len(line) == LONGEST_LINE:
                    raise RunError(f"it has over {LONGEST_LINE:,} characters; expected a sequence")
                if number == 1:
                    header = _header(_object(line))
                elif line.strip():
                    values = {"sequence": len(sequences)} | _object(line)
                    _check_keys(values, EmittedSequence, ("prompt", "token"))
                    sequence = EmittedSequence(**values)
                    check_end_tokens(sequence, header.end_tokens)
                    if sequence.sequence in addresses:
                        raise RunError(
                            f"sequence {sequence.sequence} occurs twice; "
                            "expected a different address for every sequence"
                        )
                    addresses.add(sequence.sequence)
                    sequences.append(sequence)
        if not number:
            raise RunError("the file is empty; expected a header and one line per sequence")
        return EmittedRun(header, tuple(sequences))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, OverflowError, RecursionError) as error:
        where = f"line {number}: " if number else ""
        raise RunError(f"{path}: {where}{' '.join(str(error).split())[:300]}") from None


def _header(values: dict) -> RunHeader:
    if values.pop("simspec", None) != FILE_KIND:
        raise RunError(
            'not an emitted run: expected a header with "simspec": "run", '
            "as `simspec run --save` writes it"
        )
    _check_keys(values, RunHeader, ("rule",))
    return RunHeader(**values)


def _object(line: str) -> dict:
    value = json.loads(line)
    if type(value) is not dict:
        raise RunError(f"holds a {type(value).__name__}; expected one JSON object per line")
    return value


def _check_keys(values: dict, kind: type, required: Sequence[str]) -> None:
    missing = [name for name in required if name not in values]
    unknown = sorted(set(values) - {f.name for f in fields(kind)})
    if missing or unknown:
        raise RunError(f"missing keys {missing}, unknown keys {unknown}")
