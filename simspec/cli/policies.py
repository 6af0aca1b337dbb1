"""simspec policies: the built-in policies, where they come from and what they do."""

from dataclasses import dataclass

from simspec.cli.replayed import Json, Markdown
from simspec.output.frames import frame, show
from simspec.settings import Settings, command

PANEL = "Decide"


@dataclass(frozen=True)
class Policies(Settings):
    """Which policies are listed."""

    as_json: Json = False
    as_markdown: Markdown = False


@command
def policies(settings: Policies) -> None:
    """List the built-in policies: source, what they read, what they do, defaults.

    Example: simspec policies --markdown
    """
    from simspec.policies import BATCH_KINDS, KINDS
    from simspec.policy_kind import GROUPS

    names = ("source", "signal", "rule", "defaults", "released")
    every = sorted((KINDS | BATCH_KINDS).values(), key=lambda kind: list(GROUPS).index(kind.group))
    rows = [
        {"policy": kind.name, "group": kind.group} | {name: getattr(kind, name) for name in names}
        for kind in every
    ]
    if settings.as_markdown:  # declarations are written in Markdown, so nothing is escaped
        lines = [("policy", *names), ["---"] * (1 + len(names))]
        lines += [[f"`{row['policy']}`", *(row[name] for name in names)] for row in rows]
        print("\n".join(f"| {' | '.join(line)} |" for line in lines))
        return
    if not settings.as_json:
        rows = [{name: cell.replace("`", "") for name, cell in row.items()} for row in rows]
    show(frame(rows, names=2, optional=names[::-1]), settings.as_json)
