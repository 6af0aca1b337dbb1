"""simspec import: what other tools recorded."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from simspec.cli.options import LONGEST_DRAFT, Json, Level, at_most

PANEL = "Exchange with engines"


def import_(
    format: Annotated[str, typer.Argument(help="Format of the file; a wrong one lists all.")],
    file: Annotated[Path, typer.Argument(help="The file that the other tool wrote.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Write a recording (.parquet) where the file is exact, else a .json."),
    ] = None,
    at: Annotated[
        list[int] | None,
        typer.Option(
            callback=at_most(LONGEST_DRAFT),
            help="A draft length whose accepted length is asked for, repeatable.",
        ),
    ] = None,
    drafted: Annotated[
        int | None,
        typer.Option(
            callback=at_most(LONGEST_DRAFT),
            help="Tokens drafted in each round, where the file does not say.",
        ),
    ] = None,
    drafter: Annotated[
        str | None, typer.Option(help="Of several drafters in the file, this one.")
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "--depth", "-k", callback=at_most(LONGEST_DRAFT), help="Deepest draft of the recording."
        ),
    ] = None,
    rule: Annotated[str, typer.Option(help="greedy or coupled, of the recording.")] = "greedy",
    temperature: Annotated[float, typer.Option(help="Of the recording.")] = 0.0,
    target: Annotated[str, typer.Option(help="Name of the target.")] = "unknown",
    task: Annotated[str, typer.Option(help="Task of all prompts; default: the file's name.")] = "",
    end_token: Annotated[
        list[int] | None, typer.Option(help="A token that ends a sequence, repeatable.")
    ] = None,
    before: Annotated[
        Path | None, typer.Option(help="Counters scraped earlier, to subtract.")
    ] = None,
    engine_version: Annotated[
        str | None, typer.Option(help="Of TensorRT-LLM, whose schedules changed their meaning.")
    ] = None,
    thinking: Annotated[
        bool | None,
        typer.Option("--thinking/--no-thinking", help="Of golden-al: the mode, where it has both."),
    ] = None,
    level: Level = 0.95,
    as_json: Json = False,
) -> None:
    """Read what another tool recorded, and say what may be concluded from it.

    Example: simspec import vllm-requests responses.jsonl

    Accepted lengths from every position become a recording:
    simspec import specdecode-bench gsm8k.jsonl --drafter eagle --out gsm8k.parquet
    """
    from simspec.engines.formats import read_import
    from simspec.engines.import_file import chosen_drafter, write_import
    from simspec.engines.import_report import import_report
    from simspec.engines.source import ImportOptions, read_source
    from simspec.output.files import check_output
    from simspec.output.terminal import print_text

    if out is not None:
        check_output(out, file, *([before] if before else []))
    options = ImportOptions(
        drafted, k, rule, temperature, target, task, tuple(end_token or ()),
        read_source(format, before) if before else None, engine_version,
        None if thinking is None else "thinking_on" if thinking else "thinking_off",
    )  # fmt: skip
    result = chosen_drafter(read_import(format, file, options), drafter)
    report = import_report(result, tuple(at or ()), level)
    written = write_import(result, out, file) if out is not None else []
    if as_json:
        print(json.dumps(report | {"written": [str(path) for path in written]}))
        return
    _print(report)
    for path in written:
        print_text(f"wrote {path}")


def _print(report: dict[str, Any]) -> None:
    from simspec.output.terminal import print_fields

    fields = {key: report[key] for key in ("format", "file", "sha256", "kind")}
    means = dict.fromkeys(total["accepted_length_means"] for total in report["totals"])
    fields["accepted length"] = "; ".join(filter(None, means)) or "not in the file"
    fields |= {f"unknown: {key}": why for key, why in report["not_concluded"].items()}
    fields |= {f"note {i}": note for i, note in enumerate(report["notes"], 1)}
    print_fields(fields)
    totals = (
        "drafter", "K", "requests", "rounds", "drafted", "accepted", "acceptance_rate",
        "accepted_length", "accepted_length_per_request",
    )  # fmt: skip
    _print_rows(report["totals"], totals, 2, {})
    _print_rows(report["accepted_length_by_K"], ("K", "accepted_length"), 1, {})
    _print_rows(report["accepted_length_at"], ("drafter", "K", "accepted_length"), 2, {})
    tiers = ("method", "first", "last", "lengths", "policy")
    headings = {"first": "from batch", "last": "to", "lengths": "drafted"}
    _print_rows(report["draft_lengths"], tiers, 3, headings)
    keys = (
        "drafter", "K", "depth", "tried", "accepted", "conditional", "marginal", "low", "high",
        "interval",
    )  # fmt: skip
    headings = {"low": f"{100 * report['level']:g}% low", "interval": "interval over"}
    _print_rows(report["acceptance_by_depth"], keys, 3, headings)


def _print_rows(
    rows: list[dict[str, Any]], keys: tuple[str, ...], names: int, headings: dict[str, str]
) -> None:
    """A table of these keys, less those that no row has."""
    from simspec.output.table import print_table

    kept = [key for key in keys if any(row[key] not in (None, "") for row in rows)]
    if kept:
        print_table(
            [headings.get(key, key.replace("_", " ")) for key in kept],
            [[_cell(row[key]) for key in kept] for row in rows],
            names=sum(key in kept for key in keys[:names]) or 1,
            optional=("interval over", "tried", "accepted"),
        )


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return (
        "-" if value in (None, "") else f"{value:.4f}" if isinstance(value, float) else str(value)
    )
