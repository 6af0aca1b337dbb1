"""The command `simspec import-model`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.commands.options import Json, show_progress
from simspec.output.terminal import print_text

PANEL = "Record"


def import_model(
    file: Annotated[Path, typer.Argument(help="A GGUF file of Llama, Mistral, Qwen2 or Qwen3.")],
    out: Annotated[Path, typer.Option(help="The checkpoint's folder, such as models/mine/target.")],
    dtype: Annotated[
        str, typer.Option(help="float32 keeps the file's values exactly; bfloat16, float64.")
    ] = "float32",
    as_json: Json = False,
) -> None:
    """Make a checkpoint of a GGUF file: dequantized safetensors, tokenizer, chat template, configs.

    A second call finds a finished import and changes nothing.

    Example: simspec import-model SmolLM2-135M-Instruct.Q4_1.gguf --out models/smollm2/target
    """
    from real.jobs import import_gguf

    with show_progress() as progress:
        card = import_gguf(file, out, dtype, progress)
    if as_json:
        print(json.dumps(card))
    else:
        types = ", ".join(f"{kind} ({count})" for kind, count in card["types"].items())
        print_text(
            f"{out}: {card['name'] or card['source']}, {card['parameters']:,} parameters in "
            f"{card['dtype']} from {types}; source {card['source_sha256'][:12]}, "
            f"weights {card['weights_sha256'][:12]}"
        )
