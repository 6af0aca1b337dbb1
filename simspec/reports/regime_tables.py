"""Speedups at every regime side by side, as rows of tables."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from simspec.output.names import markdown_text
from simspec.output.terminal import markdown_table
from simspec.reports.drafters import ALL, DrafterRow
from simspec.reports.regimes import by_regime, regime_columns
from simspec.reports.tree_rows import TreeRow
from simspec.trace.trace import load_trace

Cells = Mapping[str, Mapping[str, str]]
"""{table: {row: cell}}"""
Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""(title, headings, rows)"""


def at_regimes(
    paths: Mapping[str, Path],
    costs: Any,
    figures: Callable[[Sequence[str], Mapping[str, Any]], Any],
) -> dict[str, Any]:
    """{label: figures(recordings, their costs)} at each of `regimes`."""
    traces = {name: load_trace(path) for name, path in paths.items()}
    return {
        label: figures(list(priced), priced) for label, priced in by_regime(traces, costs).items()
    }


def score_cells(scores: Sequence[Mapping[str, Any]]) -> Cells:
    """Speedups of the best fixed K, of the oracle and of policies, from `oracle_gap.score`."""
    return {
        of["recording"]: {
            "best fixed K": f"{of['speedup_fixed']:.2f} {of['best_fixed']}",
            "oracle": f"{of['speedup_oracle']:.2f}",
        }
        | {row["policy"]: f"{row['speedup']:.2f}" for row in of["policies"]}
        for of in scores
    }


def tree_cells(rows: Sequence[TreeRow]) -> Cells:
    """Speedups of chains and trees, and what was chosen for them."""
    tables: dict[str, dict[str, str]] = {}
    for row in rows:
        chosen = row.chosen.removesuffix(", in hindsight").replace(" nodes, depth ", "n d")
        cell = f"{row.speedup.value:.2f} {chosen}".rstrip()
        tables.setdefault(row.recording, {})[row.policy] = cell
    return tables


def drafter_cells(rows: Sequence[DrafterRow]) -> Cells:
    """Speedups at the best fixed K of each drafter, on all tasks, in one table."""
    cells = {
        row.recording: f"{row.speedup.value:.2f} k={row.best_k}" for row in rows if row.task == ALL
    }
    return {"": cells}


def regime_tables(first: str, cells: Mapping[str, Cells]) -> list[Table]:
    """A table per recording and verification: names down, the prices of `cells` across.

    cells: {label of `regimes`: the cells at it}; first: heading of the names.
    """
    tables = []
    for name in dict.fromkeys(name for of in cells.values() for name in of):
        for verification, labels in regime_columns(cells).items():
            columns = [cells[label].get(name, {}) for label in labels]
            rows = [
                (row, *(column.get(row, "-") for column in columns))
                for row in dict.fromkeys(row for column in columns for row in column)
            ]
            headings = (first, *(label.partition(",")[0] for label in labels))
            title = (
                f"{name}: verification {verification}" if name else f"verification {verification}"
            )
            tables.append((title.replace("measured verification", "as measured"), headings, rows))
    return tables


def markdown(tables: Sequence[Table]) -> str:
    """Each table as Markdown under its title."""
    return "\n\n".join(
        f"**{markdown_text(title)}**\n\n{markdown_table(headings, rows)}"
        for title, headings, rows in tables
    )
