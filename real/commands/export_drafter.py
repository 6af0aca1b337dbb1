"""The command `simspec export-drafter`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.commands.options import Json
from simspec.output.terminal import print_text

PANEL = "Exchange with engines"


def export_drafter(
    folder: Annotated[Path, typer.Argument(help="The folder of a trained drafter.")],
    target: Annotated[Path, typer.Option(help="The target's checkpoint.")],
    engine: Annotated[str, typer.Option(help="vllm or transformers.")],
    out: Annotated[Path, typer.Option(help="The new folder.")],
    as_json: Json = False,
) -> None:
    """Write a trained drafter in the form that a released engine loads, or say why none does.

    vLLM loads model, eagle and medusa; transformers loads model. A draft vocabulary
    becomes a head of all tokens with the same best token, where the drafter has its own head.

    vLLM's EAGLE has no bias and no draft vocabulary: train it with --set bias=false. A draft
    vocabulary goes by --from FOLDER --steps 0 --draft-vocab N, for N tokens of the target.

    Example: simspec export-drafter models/mine/eagle --target models/mine/target --engine vllm
    --out served/eagle; simspec engine run vllm --model models/mine/target --drafter served/eagle
    """
    from real.jobs import export_drafter as export

    card = export(folder, target, engine, out)
    if as_json:
        print(json.dumps(card))
    else:
        cut = f", draft vocabulary {card['draft_vocab']:,}" if card["draft_vocab"] else ""
        made = f"{card['drafter']} for {engine}{cut}"
        print_text(f"wrote {out}: {made}; sha256 {card['sha256'][:12]}")
