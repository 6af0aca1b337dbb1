"""speculators: the CSV of its evaluation, one row a subset."""

import csv
from collections import Counter
from io import StringIO

import numpy as np

from simspec.engines.counts import (
    PER_ROUND,
    at_constant_length,
    check_figure,
    mean_of,
    origin_of,
    rounding_slack,
)
from simspec.engines.documents import Fields
from simspec.engines.import_kinds import DEEPEST, PooledCounts
from simspec.engines.source import ImportFormat, ImportOptions, Source

COUNTS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
POSITION = "acceptance_at_pos_"


def read_csv(source: Source, options: ImportOptions) -> PooledCounts:
    """Sums over the subsets; a row that is the sum of all others is left out."""
    try:
        rows = list(csv.DictReader(StringIO(source.text), strict=True))
    except csv.Error as error:
        raise ValueError(f"{source.file} is no CSV: {error}") from None
    if not rows or not {*COUNTS, "subset", f"{POSITION}0"} <= set(rows[0]):
        raise ValueError(
            f"{source.file} lacks columns subset, {', '.join(COUNTS)} and {POSITION}0: expected "
            "the CSV of speculators' evaluation"
        )
    _check_repeats(rows)
    K = sum(name.startswith(POSITION) for name in rows[0] if name)
    if K > DEEPEST:
        raise ValueError(f"{source.file} has {K} positions, expected at most {DEEPEST}")
    counts = np.array([[_count(row, i, name) for name in COUNTS] for i, row in enumerate(rows)])
    rates = np.array(
        [[_rate(row, i, f"{POSITION}{j}") for j in range(K)] for i, row in enumerate(rows)]
    )
    for i, (row, (n, _, right)) in enumerate(zip(rows, counts)):
        if n and "acceptance_length" in row:
            value = _number(row, i, "acceptance_length")
            length = Fields({"acceptance_length": value}, f"row {i + 1}")
            check_figure(length, "acceptance_length", 1 + right / n)
    keep = np.ones(len(rows), bool)
    for i in range(len(rows)) if len(rows) > 2 else ():
        keep[i] = (2 * counts[i] != counts.sum(axis=0)).any()
    notes = ["the row that sums the others is left out"] if not keep.all() else []
    rounds, drafted, accepted = map(int, counts[keep].sum(axis=0))
    if rounds == 0:
        raise ValueError(f"{source.file} counts no drafts: nothing can be concluded")
    at_least = np.rint(rates[keep] * counts[keep, :1]).astype(np.int64).sum(axis=0)
    slack = sum(rounding_slack(int(n), K) for n in counts[keep, 0])
    by_depth, withheld, more = at_constant_length(rounds, drafted, accepted, at_least, slack)
    return PooledCounts(
        origin_of(source), None, rounds, drafted, accepted, mean_of(rounds, accepted), PER_ROUND,
        None, by_depth, K if by_depth else None, withheld,
        notes=(f"{keep.sum()} subsets together", *notes, *more),
    )  # fmt: skip


def _check_repeats(rows: list[dict[str, str]]) -> None:
    """ValueError for a sweep, which writes one run's counts into the row of each request rate."""
    counted = Counter((row["subset"], *(row[name] for name in COUNTS)) for row in rows)
    (subset, *_), times = counted.most_common(1)[0]
    if times > 1:
        raise ValueError(
            f"subset {str(subset)[:40]!r} comes {times} times with the same counts, as in a "
            "sweep's perf_results.csv: give acceptance.csv, or one row of each subset"
        )


def _number(row: dict[str, str], number: int, name: str) -> float:
    try:
        value = float(row[name])
    except (TypeError, ValueError, KeyError):
        value = float("nan")
    return Fields({name: value}, f"row {number + 1}").number(name)


def _count(row: dict[str, str], number: int, name: str) -> int:
    value = _number(row, number, name)
    if value % 1:
        raise ValueError(f"row {number + 1}: {name} is {value}, expected a whole number")
    return int(value)


def _rate(row: dict[str, str], number: int, name: str) -> float:
    value = _number(row, number, name)
    if value > 1:
        raise ValueError(f"row {number + 1}: {name} is {value}, expected a share in [0, 1]")
    return value


IMPORTS = (ImportFormat("speculators", read_csv),)
