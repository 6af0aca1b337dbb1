"""simspec policies: the built-in policies, where they come from and what they do."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from simspec.cli.options import Json, Markdown

if TYPE_CHECKING:
    from simspec.policy_kind import PolicyKind

PANEL = "Simulate"

HEADINGS = ("policy", "source", "signal", "rule", "defaults", "as released or corrected")


def policies(
    group: Annotated[
        str, typer.Option(help="outcomes, costs, features, batches, bounds or trees; default: all.")
    ] = "",
    as_json: Json = False,
    as_markdown: Markdown = False,
) -> None:
    """List the built-in policies: source, what they read, what they do, defaults.

    Example: simspec policies --group features
    """
    from simspec.output.table import print_table
    from simspec.policies import BATCH_KINDS, KINDS
    from simspec.policy_kind import GROUPS

    if group and group not in GROUPS:
        raise ValueError(f"group {group!r} is unknown: expected one of {', '.join(GROUPS)}")
    every = (KINDS | BATCH_KINDS).values()
    kinds = [kind for heading in GROUPS for kind in every if kind.group == heading]
    kinds = [kind for kind in kinds if group in ("", kind.group)]
    if as_json:
        print(json.dumps({kind.name: _data(kind) for kind in kinds}))
    elif as_markdown:
        # declarations are written in Markdown, so nothing is escaped
        lines = (HEADINGS, ["---"] * len(HEADINGS), *map(_row, kinds))
        print("\n".join(f"| {' | '.join(line)} |" for line in lines))
    else:
        for name in dict.fromkeys(kind.group for kind in kinds):
            rows = [_row(kind) for kind in kinds if kind.group == name]
            plain = [[cell.replace("`", "") for cell in row] for row in rows]
            print_table(HEADINGS, plain, title=GROUPS[name], optional=HEADINGS[:2:-1])


def _row(kind: "PolicyKind") -> tuple[str, ...]:
    return f"`{kind.name}`", kind.source, kind.signal, kind.rule, kind.defaults, kind.released


def _data(kind: "PolicyKind") -> dict[str, object]:
    names = "group", "source", "signal", "rule", "defaults", "released", "examples"
    return {name: getattr(kind, name) for name in names}
