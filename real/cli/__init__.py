"""The commands that need models; `register` is simspec's entry point."""

from importlib import import_module
from importlib.util import find_spec

import typer

COMMANDS = {
    "demo": "demo",
    "import-model": "import_model",
    "train": "train",
    "quantize": "quantize",
    "record": "record",
    "exits": "exits",
    "measure": "measure",
    "run": "run",
    "audit": "audit",
    "teacher-force": "teacher_force",
    "emulate": "emulate",
    "scorecard": "scorecard",
    "latency": "latency",
    "race": "race",
    "measured-table": "measured_table",
}
"""Command -> its module in this package, and the function of that name in it."""


def register(app: typer.Typer) -> None:
    """Adds the commands to simspec's application; ImportError where an extra is missing."""
    for package in ("torch", "transformers", "safetensors"):
        if find_spec(package) is None:
            raise ImportError(f"{package} is not installed")
    for command, module in COMMANDS.items():
        app.command(command)(getattr(import_module(f"{__name__}.{module}"), module))
