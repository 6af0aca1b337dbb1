"""Commands of a package: every file with a `PANEL` and a function, or group, of the file's name."""

import typer

from simspec.plugins import plugins

PANELS = ("Decide", "Record and train", "Run and verify", "Engines")
"""Groups of `simspec --help`, in their order."""


def add_commands(app: typer.Typer, package: str) -> tuple[str, ...]:
    """Adds the commands of a package to the application; their names.

    The command of import_.py is named import, that of teacher_force.py teacher-force.
    """
    names = []
    for name, file in plugins(package, "PANEL").items():
        names.append(name.rstrip("_").replace("_", "-"))
        command = getattr(file, name)
        if isinstance(command, typer.Typer):  # a group: simspec NAME COMMAND
            app.add_typer(command, name=names[-1], rich_help_panel=file.PANEL)
        else:
            app.command(names[-1], rich_help_panel=file.PANEL)(command)
    return tuple(names)


def sort_by_panel(app: typer.Typer) -> None:
    """Orders the commands by PANELS, then by name; commands of other panels come last."""
    order = {panel: place for place, panel in enumerate(PANELS)}
    app.registered_commands.sort(
        key=lambda command: (
            order.get(str(command.rich_help_panel), len(PANELS)),
            command.name or "",
        )
    )
