"""The command `simspec export-gguf`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.commands.options import Json
from simspec.output.terminal import print_text

PANEL = "Exchange with engines"


def export_gguf(
    folder: Annotated[Path, typer.Argument(help="A Llama checkpoint: a target or a drafter.")],
    tokenizer_of: Annotated[
        Path, typer.Option(help="The target's GGUF file, whose tokenizer is copied.")
    ],
    out: Annotated[Path, typer.Option(help="The new GGUF file.")],
    dtype: Annotated[str, typer.Option(help="float32 or float16.")] = "float32",
    as_json: Json = False,
) -> None:
    """Write a target or a model drafter as a GGUF file for llama.cpp.

    The tokenizer is copied from the target's GGUF file, because engines compare the tokenizers of
    both. A draft vocabulary becomes a head of all tokens with the same best token.

    Example: simspec export-gguf models/mine/model --tokenizer-of target.gguf --out draft.gguf
    """
    from real.jobs import export_gguf as export

    card = export(folder, tokenizer_of, out, dtype)
    if as_json:
        print(json.dumps(card))
    else:
        cut = f", draft vocabulary {card['draft_vocab']:,}" if card["draft_vocab"] else ""
        made = f"{card['weights']:,} weights in {dtype}{cut}"
        print_text(f"wrote {out}: {made}; sha256 {card['sha256'][:12]}")
