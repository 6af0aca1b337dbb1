"""simspec import: what other tools recorded."""

import json
from typing import Any

from simspec.engines import EXTRA_IMPORTS, IMPORT_FORMATS, Import
from simspec.output.files import check_output
from simspec.output.frames import frame, show
from simspec.output.terminal import print_fields, print_text
from simspec.settings import command

PANEL = "Engines"


@command
def import_(settings: Import) -> None:
    """Read what another tool recorded, and say what may be concluded from it.

    Example: simspec import vllm-requests responses.jsonl

    Accepted lengths from every position become a recording:
    simspec import specdecode-bench gsm8k.jsonl --at 3 --out gsm8k.parquet
    """
    from simspec.cli import _load_extras

    if settings.format not in IMPORT_FORMATS:
        _load_extras()
    if settings.format in EXTRA_IMPORTS:
        card = EXTRA_IMPORTS[settings.format](settings)
        print(json.dumps(card)) if settings.as_json else print_fields(card)
        return
    from simspec.engines.import_report import import_report
    from simspec.engines.imports import read_import, read_imports, write_recordings
    from simspec.engines.moved import LEAST, fallen, series_of

    if len(settings.files) > 1 and settings.out is None and not settings.at:
        moved = fallen(series_of(read_imports(settings)))
        print(json.dumps({"moved": moved})) if settings.as_json else _print_moved(moved)
        return
    inputs = [path for path in (settings.file, settings.before) if path is not None]
    if settings.out is not None:
        check_output(settings.out, *inputs)
    result = read_import(settings)
    report = import_report(result, settings.at)
    if result.series is not None and len(result.series.at) >= LEAST:
        report["moved"] = fallen(result.series)
    written = write_recordings(result, settings.out, *inputs) if settings.out is not None else []
    if settings.as_json:
        print(json.dumps(report | {"written": [str(path) for path in written]}))
        return
    _print(report)
    if "moved" in report:
        _print_moved(report["moved"])
    for path in written:
        print_text(f"wrote {path}")


TABLES = {
    "totals": (
        "drafter", "K", "requests", "rounds", "drafted", "accepted", "acceptance_rate",
        "accepted_length",
    ),
    "accepted_length_at": ("drafter", "K", "accepted_length"),
    "by_batch": ("running_up_to", "periods", "accepted_length", "tokens_per_second", "step_ms"),
    "acceptance_by_depth": (
        "drafter", "K", "depth", "tried", "accepted", "conditional", "marginal", "low", "high",
    ),
}  # fmt: skip
"""{list of the report: its columns}; a column that no row has is left out."""


def _print(report: dict[str, Any]) -> None:
    fields = {key: report[key] for key in ("format", "file", "sha256", "kind")}
    means = dict.fromkeys(total["accepted_length_means"] for total in report["totals"])
    fields["accepted length"] = "; ".join(filter(None, means)) or "not in the file"
    fields |= {f"unknown: {key}": why for key, why in report["not_concluded"].items()}
    fields |= {f"note {i}": note for i, note in enumerate(report["notes"], 1)}
    print_fields(fields)
    for name, keys in TABLES.items():
        rows = report[name]
        kept = [key for key in keys if any(row.get(key) not in (None, "") for row in rows)]
        if kept:
            names = sum(key in ("drafter", "K", "depth") for key in kept) or 1
            columns = [key.replace("_", " ") for key in kept]
            cells = [[row[key] for key in kept] for row in rows]
            show(frame(cells, columns, names=names, optional=("tried", "accepted")))


def _print_moved(moved: dict[str, Any]) -> None:
    print_fields({
        "has acceptance fallen?": moved["verdict"],
        "false alarms": f"{moved['false_alarms']:.0%} of series without a fall, at one look and "
        f"over all rows of the table; {moved['periods']} periods",
    })  # fmt: skip
    keys = "stream", "before", "after", "since", "p"
    show(frame([[row[key] for key in keys] for row in moved["streams"]], list(keys), names=1))
