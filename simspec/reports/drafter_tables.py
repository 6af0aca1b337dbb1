"""The comparison of drafters as a data frame, as Markdown and as cells of a table."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from simspec.output.terminal import markdown_table
from simspec.reports.drafters import DrafterRow
from simspec.reports.intervals import interval_columns, interval_text


def table(rows: Sequence[DrafterRow]) -> Any:
    """The rows as a pandas DataFrame: alpha_1 .. alpha_K, speedup, expected, with _low and _high.

    Depths past a row's K are NaN. `learned` is there where a card tells it.
    """
    import pandas

    flat = []
    for row in rows:
        columns = {
            key: value
            for key, value in asdict(row).items()
            if key not in ("alpha", "speedup", "expected", "note", "learned")
        }
        columns |= interval_columns("speedup", row.speedup)
        columns |= interval_columns("expected", row.expected)
        for depth, alpha in enumerate(row.alpha, 1):
            columns |= interval_columns(f"alpha_{depth}", alpha)
        learned = {"learned": row.learned} if tells_training(rows) else {}
        flat.append(columns | learned | {"note": row.note})
    frame = pandas.DataFrame(flat)
    return frame[[*(name for name in frame if name != "note"), "note"]]


def markdown(rows: Sequence[DrafterRow], depth: int = 4) -> str:
    """The rows as a Markdown table, alpha to `depth`."""
    learned = tells_training(rows)
    return markdown_table(
        headings(depth, learned), [cells(row, depth, learned=learned) for row in rows]
    )


def tells_training(rows: Sequence[DrafterRow]) -> bool:
    """Whether a card says how many tokens some drafter learned."""
    return any(row.learned is not None for row in rows)


def check_depth(depth: int) -> None:
    """ValueError unless there is a depth to show."""
    if depth < 1:
        raise ValueError(f"--depth is {depth}, expected at least 1")


def headings(depth: int, learned: bool = False) -> list[str]:
    """The table's headings, alpha to `depth`; the first three name a row.

    `learned` adds the tokens that the drafter learned.
    """
    check_depth(depth)
    alphas = [f"a{j}" for j in range(1, depth + 1)]
    return [
        *("drafter", "rule", "domain"),
        *alphas,
        *("c", "then", "best K", "speedup", "expected"),
        *(("tokens learned",) if learned else ()),
    ]


def cells(
    row: DrafterRow, depth: int, alpha_limits: bool = True, learned: bool = False
) -> list[str]:
    """The row's cells, alpha to `depth`, with or without alpha's intervals."""
    alphas = [interval_text(alpha, limits=alpha_limits) for alpha in row.alpha]
    return [
        *(row.drafter, row.rule, row.task),
        *[*alphas, *["-"] * depth][:depth],
        f"{row.c:.2f}",
        "-" if np.isnan(row.marginal) else f"{row.marginal:.2f}",
        str(row.best_k),
        interval_text(row.speedup),
        interval_text(row.expected),
        *(("-" if row.learned is None else f"{row.learned:,}",) if learned else ()),
    ]
