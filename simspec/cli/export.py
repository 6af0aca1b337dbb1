"""simspec export: settings for serving engines, chosen by replay."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from simspec.cli.options import (
    MOST_BATCH,
    MOST_CONTEXT,
    Context,
    Json,
    Level,
    MixedCosts,
    at_most,
    print_notes,
)

PANEL = "Exchange with engines"


def export(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT", help="Of the setting, such as vllm or sglang; a wrong one lists all."
        ),
    ],
    traces: Annotated[
        list[str],
        typer.Argument(help="Recordings of one target and drafter: files, or bundled names."),
    ],
    out: Annotated[
        Path, typer.Option(help="File to write; FILE.provenance.json says where it comes from.")
    ],
    cost: Annotated[
        str | None,
        typer.Option(
            help="A cost file, or the ratio draft step / target step; "
            "default: NAME.cost.json next to each recording, else 0.1."
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="name[:arg,...]; default: the best fixed length at each batch size."),
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(help="Of a cost table, such as 1,8,64; default: all that it holds."),
    ] = None,
    context: Context = None,
    captured: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_CONTEXT),
            help="Rows of the largest captured graph: batch (K + 1) at most; 0: any.",
        ),
    ] = 512,
    method: Annotated[
        str | None,
        typer.Option(help="The engine's name of the mechanism; default: by the drafter."),
    ] = None,
    draft_model: Annotated[
        str | None, typer.Option(help="Path or name of the draft model, for the engine.")
    ] = None,
    engine_version: Annotated[
        str | None, typer.Option(help="Of TensorRT-LLM, whose schedules changed their meaning.")
    ] = None,
    ngram: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_BATCH), help="Longest suffix that a prompt lookup matches."
        ),
    ] = 3,
    thinking: Annotated[
        bool, typer.Option("--thinking/--no-thinking", help="Of golden-al: the target's mode.")
    ] = False,
    mixed: MixedCosts = False,
    level: Level = 0.95,
    as_json: Json = False,
) -> None:
    """Write settings for a serving engine: lengths chosen by replay, checked by its own rules.

    Example: simspec export vllm tiny-eagle-greedy --draft-model DRAFT --out vllm.json

    By batch size: simspec export tensorrt-llm MINE.parquet --cost TABLE.json --engine-version 1.3.0
    --draft-model DRAFT --out trt.yaml
    """
    from simspec.engines.formats import Sources, write_export
    from simspec.engines.request import Settings
    from simspec.trace.recordings import locate

    mode = "thinking_on" if thinking else "thinking_off"
    settings = Settings(method, draft_model, engine_version, captured, ngram, mode)
    sources = Sources(locate(traces), cost, _integers(batch_sizes), context, mixed)
    options = {
        "--cost": cost, "--policy": policy, "--batch-sizes": batch_sizes, "--context": context,
        "--captured": captured if captured != 512 else None, "--method": method,
        "--draft-model": draft_model, "--engine-version": engine_version,
        "--ngram": ngram if ngram != 3 else None, "--level": level if level != 0.95 else None,
    }  # fmt: skip
    words = ["simspec", "export", name, *traces]
    words += [w for flag, value in options.items() if value is not None for w in (flag, str(value))]
    words += ["--thinking"] * thinking + ["--mixed-costs"] * mixed + ["--out", str(out)]
    origin, notes = write_export(name, sources, out, policy, settings, level, shlex.join(words))
    print_notes(notes)
    if as_json:
        print(json.dumps(origin))
    else:
        _print(origin, out)


def _integers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    words = text.split(",")
    valid = all(word.isascii() and word.isdecimal() and len(word) < 10 for word in words)
    if len(words) > 1000 or not valid:
        raise ValueError(f"--batch-sizes is {text[:60]!r}, expected integers such as 1,8,64")
    return [int(word) for word in words]


def _print(origin: dict[str, Any], out: Path) -> None:
    from simspec.output.table import print_table
    from simspec.output.terminal import print_text

    rows = [
        (str(row["batch"]), row["policy"], *_cells(row["speedup"])) for row in origin["predicted"]
    ]
    print_table(("batch", "policy", "speedup", "interval"), rows, names=2)
    if "flags" in origin:
        print_text(f"with: {origin['flags']}")
    print_text(
        f"{out} passes the rules of {origin['format']}; {out}.provenance.json has its origin"
    )


def _cells(speedup: dict[str, float | None]) -> tuple[str, str]:
    value, low, high = (speedup[key] for key in ("value", "low", "high"))
    limits = "-" if low is None else f"[{low:.3f}, {high:.3f}]"
    return f"{value:.3f}", limits
