"""What `score`, `trees` and `drafters` print with --regimes."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simspec.reports.regimes import Cells


def print_regimes(
    first: str,
    results: Mapping[str, Any],
    cells_of: "Callable[[Any], Cells]",
    as_json: Callable[[Any], Any] | None,
    as_markdown: bool = False,
) -> None:
    """Prints {label: figures} as tables, as Markdown, or as JSON by `as_json`."""
    from simspec.output.terminal import print_table, print_text
    from simspec.reports.regimes import markdown, regime_tables

    if as_json:
        print(json.dumps({"regimes": {label: as_json(of) for label, of in results.items()}}))
        return
    tables = regime_tables(first, {label: cells_of(of) for label, of in results.items()})
    if as_markdown:
        print(markdown(tables))
        return
    for title, headings, rows in tables:
        print_table(headings, rows, title=title)
    print_text(
        "Speedups over plain decoding. measured: the recording's costs. c: a draft step over a "
        "plain step, all else free, verification flat or as measured."
    )


def recordings_of(paths: Mapping[str, Path], names: Sequence[str]) -> dict[str, Path]:
    """The files of these recordings."""
    return {name: paths[name] for name in names}
