"""The commands that need models, one a file; `register` is simspec's entry point."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from simspec.cli.registry import add_commands
from simspec.engines import EXTRA_EXPORTS, EXTRA_IMPORTS, Export, Import


def register(app: typer.Typer) -> None:
    """Adds the commands to simspec's application; ImportError where an extra is missing."""
    for package in ("torch", "transformers", "safetensors"):
        if find_spec(package) is None:
            raise ImportError(f"{package} is not installed")
    add_commands(app, __name__)
    EXTRA_IMPORTS["gguf"], EXTRA_IMPORTS["vllm-forward"] = _gguf, _forward
    EXTRA_EXPORTS["drafter"] = _drafter


def _gguf(settings: Import) -> dict[str, Any]:
    """A GGUF file as a checkpoint in the new folder `out`."""
    from real.model.gguf import import_gguf

    if settings.out is None:
        raise ValueError("format gguf writes a checkpoint: give --out FOLDER")
    return import_gguf(settings.file, settings.out)


def _forward(settings: Import) -> dict[str, Any]:
    """The JSON of `vllm bench forward` as a cost table in `out`."""
    from real.engines.shapes import forward_steps, step_table
    from simspec.output.files import check_output

    if settings.out is None:
        raise ValueError("format vllm-forward writes a cost table: give --out FILE")
    check_output(settings.out, settings.file)
    table = step_table(forward_steps(settings.file, settings.step_ms, settings.target))
    table.to_json(settings.out)
    sizes = {"batch": list(table.batch), "context": list(table.context), "K": table.K}
    return {"path": str(settings.out), **sizes, "warnings": table.warnings}


def _drafter(settings: Export) -> dict[str, Any]:
    """A trained drafter in the form that `engine` loads, or the reason why it loads none."""
    from real.engines.export_drafter import export_drafter

    target, engine = settings.target, settings.engine
    if len(settings.recordings) != 1 or target is None or engine is None:
        raise ValueError("format drafter takes a drafter's folder, --target and --engine")
    return export_drafter(Path(settings.recordings[0]), target, engine, settings.out)
