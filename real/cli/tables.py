"""Tables that commands print."""

import sys


def _table(title: str, *heads: str):
    from rich.console import Console
    from rich.table import Table

    return Table(*heads, title=title), Console(width=None if sys.stdout.isatty() else 160)
