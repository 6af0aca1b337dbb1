"""Writes docs/public_api.txt: what users may rely on, one line each.

`python docs/public_api.py` compares, `python docs/public_api.py --write` writes. Listed are the
names that `simspec` exports with their parameters and members, the built-in policies, and the
options of every command. A line that goes or changes breaks somebody's code: CHANGELOG.md says so.
"""

import inspect
import sys
from enum import Enum
from pathlib import Path
from types import ModuleType

LISTED = Path(__file__).parent / "public_api.txt"


def parameters(function) -> str:
    """(name, name=default, ...) of a function or class, without types."""
    plain = getattr(function, "py_func", function)
    signature = inspect.signature(plain)
    untyped = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    empty = inspect.Signature.empty
    return str(signature.replace(parameters=untyped, return_annotation=empty)).replace(
        "<factory>", "..."
    )


def members(kind: type) -> list[str]:
    """Public methods and properties that a class, or one of its bases here, defines."""
    lines = []
    for name in sorted(set(dir(kind)) - set(dir(Exception)) - set(dir(object))):
        value = inspect.getattr_static(kind, name)
        if name.startswith("_"):
            continue
        if isinstance(value, staticmethod | classmethod):
            lines.append(f"{name}{parameters(getattr(kind, name))}")
        elif inspect.isfunction(value):
            lines.append(f"{name}{parameters(value)}")
        elif isinstance(value, property):
            lines.append(name)
    return lines


def described(name: str, value) -> list[str]:
    """The lines of one exported name."""
    if isinstance(value, ModuleType):
        listed = getattr(value, "__all__", None) or [
            key
            for key, item in vars(value).items()
            if not key.startswith("_") and getattr(item, "__module__", None) == value.__name__
        ]
        return [
            line
            for key in sorted(listed)
            for line in described(f"{name}.{key}", getattr(value, key))
        ]
    if inspect.isclass(value):
        own = [] if issubclass(value, Exception | Enum) else [f"{name}{parameters(value)}"]
        return (own or [name]) + [f"{name}.{line}" for line in members(value)]
    if callable(value):
        return [f"{name}{parameters(value)}"]
    return [name]


def commands() -> list[str]:
    """`simspec COMMAND argument --option ...` of every command, extras included."""
    import typer

    from simspec import cli

    cli._load_extras()
    group = typer.main.get_command(cli.app)
    lines = []
    found = dict(group.commands)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):  # a group
            found |= {f"{name} {inner}": held for inner, held in command.commands.items()}
            del found[name]
    for name, command in sorted(found.items()):
        words = [
            min(parameter.opts, key=lambda word: (not word.startswith("--"), word))
            if parameter.param_type_name == "option"
            else str(parameter.name).upper()
            for parameter in command.params
        ]
        lines.append(" ".join([f"simspec {name}", *words]))
    return lines


def listing() -> str:
    """The whole list."""
    import simspec

    names = [
        line
        for name in sorted(simspec.__all__)
        for line in described(f"simspec.{name}", getattr(simspec, name))
    ]
    known = {**simspec.policies.BUILTIN, **simspec.policies.TREES}
    return "\n".join([*names, *(f"policy {name}" for name in known), *commands()]) + "\n"


def main() -> None:
    """Compares, or writes."""
    now = listing()
    if "--write" in sys.argv[1:]:
        LISTED.write_text(now, encoding="utf-8")
    elif LISTED.read_text(encoding="utf-8") != now:
        raise SystemExit(f"{LISTED.name} differs: python docs/public_api.py --write, and say why")


if __name__ == "__main__":
    main()
