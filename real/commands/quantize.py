"""The command `simspec quantize`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.commands.options import Json
from simspec.output.terminal import print_text

PANEL = "Record"


def quantize(
    folder: Annotated[Path, typer.Argument(help="The folder of a trained drafter.")],
    out: Annotated[Path, typer.Option(help="The new folder.")],
    as_json: Json = False,
) -> None:
    """Store a drafter's matrices as int8 with a scale a row: half of bfloat16's size.

    They are read back in the target's number type. What it costs in acceptance shows when both
    folders are recorded, by --weights, and compared by simspec drafters.

    Example: simspec quantize models/mine/eagle --out models/mine/eagle-int8
    """
    from real.jobs import quantize_drafter

    card = quantize_drafter(folder, out)
    if as_json:
        print(json.dumps(card))
    else:
        worst = max(card["relative_error"].items(), key=lambda item: item[1], default=("", 0.0))
        print_text(
            f"wrote {out}: {card['bytes'] / 1e6:.2f} MB; "
            f"the largest change is {worst[1]:.2%} of {worst[0]}"
        )
