"""Sizes of the repository beside its limits: python tools/size.py; 1 where one is passed."""

import subprocess
import sys
import tomllib
from pathlib import Path

import typer

from simspec import cli

ROOT = Path(__file__).parents[1]


def tracked(*patterns: str) -> list[Path]:
    """Tracked files of these git patterns."""
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True)
    return [ROOT / name for name in listed.stdout.decode().split("\0") if (ROOT / name).is_file()]


def lines(paths: list[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def leaves(command: typer.core.TyperCommand) -> list[typer.core.TyperCommand]:
    """The commands below a group that do something."""
    inner = getattr(command, "commands", {}).values()
    return [leaf for each in inner for leaf in leaves(each)] if inner else [command]


cli._load_extras()
commands = leaves(typer.main.get_command(cli.app))
code, pages = tracked("simspec/*.py", "real/*.py"), tracked("*.md")
layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
rows = [
    ("modules of simspec and real", len(code), 230),
    ("lines of simspec and real", lines(code), 43_000),
    ("lines of tests with mutants", lines(tracked("tests/*.py", "tests/*.toml")), 45_000),
    ("lines of tools", lines(tracked("tools/*.py", "tools/*.sh")), 1_500),
    ("lines of the Makefile", lines([ROOT / "Makefile"]), 130),
    ("commands", len(commands), 18),
    ("option slots", sum(len(command.params) for command in commands), 220),
    ("pages", len(pages), 20),
    ("words of pages", sum(len(page.read_text("utf-8").split()) for page in pages), 24_000),
    ("tracked MB", round(sum(path.stat().st_size for path in tracked()) / 1e6, 1), 36),
    ("floors of a package", max(len(c.get("layers", ())) for c in layers), 6),
]
for name, size, limit in rows:
    print(f"{name:30} {size:>8} {'at most' if size <= limit else 'OVER'} {limit}")
sys.exit(any(size > limit for _, size, limit in rows))
