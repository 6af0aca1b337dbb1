"""Cuts 60 prompts of six tasks, on which released engines are compared with the replay.

Usage: python tools/cut_six_tasks.py DATA/eval/qmsum_test.jsonl traces/smollm2/prompts.jsonl OUT

Ten of each task of the exhibit, evenly spaced, and ten questions about meetings. No drafter of
these comparisons is trained, so that leakage needs no check.
"""

import json
import sys
from itertools import groupby
from pathlib import Path

EACH = 10
CHARACTERS = 80, 2400
"""Of a prompt: about 600 tokens at most, as in the exhibit."""


def rows_of(path: Path) -> list[dict]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def spaced(rows: list[dict]) -> list[dict]:
    """Evenly spaced over the file, whose rows are in order of subject."""
    return [rows[j * len(rows) // EACH] for j in range(EACH)]


def main(meetings: Path, exhibit: Path, out: Path) -> None:
    least, most = CHARACTERS
    fit = [row for row in rows_of(meetings) if least <= len(row["turns"][0]) <= most]
    asked = [{key: row[key] for key in ("id", "source", "turns")} for row in fit]
    tasks = [list(rows) for _, rows in groupby(rows_of(exhibit), lambda row: row["task"])]
    tasks.append([row | {"task": "meeting"} for row in asked])
    chosen = [row for rows in tasks for row in spaced(rows)]
    out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen), "utf-8")
    print(f"{out}: {len(chosen)} prompts of {len(tasks)} tasks")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
