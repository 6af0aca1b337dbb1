"""The commands that need models, one a file; `register` is simspec's entry point."""

from importlib.util import find_spec

import typer

from simspec.cli.registry import add_commands


def register(app: typer.Typer) -> None:
    """Adds the commands to simspec's application; ImportError where an extra is missing."""
    for package in ("torch", "transformers", "safetensors"):
        if find_spec(package) is None:
            raise ImportError(f"{package} is not installed")
    add_commands(app, __name__)
