"""The comparison of trees as a data frame, as Markdown and as cells of a table."""

from collections.abc import Sequence
from typing import Any

from simspec.output.names import markdown_text
from simspec.output.terminal import markdown_table
from simspec.reports.intervals import interval_columns, interval_text
from simspec.reports.tree_rows import TreeRow

HEADINGS = (
    "policy",
    "chosen",
    "tokens/round",
    "over a chain as deep",
    "nodes/round",
    "passes/round",
    "speedup",
    "over the best chain",
)


def table(rows: Sequence[TreeRow]) -> Any:
    """The rows as a pandas DataFrame: intervals with _low and _high, alpha_1 .. alpha_K."""
    import pandas

    keys = ("recording", "rule", "policy", "chosen", "budget", "clairvoyant", "passes")
    flat = []
    for row in rows:
        columns = {key: getattr(row, key) for key in keys}
        for key in ("tau", "nodes", "depth_gain", "speedup", "gain"):
            columns |= interval_columns(key, getattr(row, key))
        flat.append(columns | {f"alpha_{j}": alpha for j, alpha in enumerate(row.alpha, 1)})
    return pandas.DataFrame(flat)


def by_recording(rows: Sequence[TreeRow]) -> dict[str, list[tuple[str, ...]]]:
    """{recording: the cells of its rows}."""
    parts: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        parts.setdefault(row.recording, []).append(cells(row))
    return parts


def markdown(rows: Sequence[TreeRow]) -> str:
    """A Markdown table for each recording."""
    return "\n\n".join(
        f"**{markdown_text(name)}**\n\n{markdown_table(HEADINGS, part)}"
        for name, part in by_recording(rows).items()
    )


def cells(row: TreeRow) -> tuple[str, ...]:
    """The row's cells under HEADINGS."""
    return (
        row.policy + (" (knows the text)" if row.clairvoyant else ""),
        row.chosen or "-",
        interval_text(row.tau),
        interval_text(row.depth_gain, "+.2f"),
        interval_text(row.nodes, ".1f"),
        f"{row.passes:.2f}",
        interval_text(row.speedup, ".3f"),
        "-" if row.policy == "best chain" else interval_text(row.gain, "+.3f"),
    )
