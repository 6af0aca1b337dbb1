"""Test files near what changed: python tools/changed_tests.py [--since REVISION]

Near is a test that imports a changed module, or is changed itself. Where no test imports a changed
module, those count that import one of its importers, or the list that its package makes of its
files. A command's file has the tests that give its command. Prints one file a line: the changed
ones first, then those that give the command most often and import least else.
"""

import argparse
import ast
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALWAYS = ("tests/test_style.py", "tests/test_layers.py")
"""Seconds; what every change can break."""
MOST = 20
"""Files beyond these are far from any change, and take a minute to collect."""

LISTS = {
    "simspec.policies": {"simspec.policies.KINDS", "strategies.EXAM"},
    "simspec.papers": {"simspec.papers.catalogue"},
    "real.drafters": {"real.drafters.BUILTIN"},
    "simspec.cli": {"simspec.cli.app"},
    "real.commands": {"simspec.cli.app"},
}
"""What the tests of a package import whose files nothing imports by name."""


@cache
def imported(path: Path) -> set[str]:
    """Dotted names that a file imports, modules and what is taken from them alike."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def dotted(path: Path) -> str:
    """The module of a file, such as simspec.cost.model."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def program() -> dict[str, set[str]]:
    """What each module of the two packages imports."""
    paths = [path for top in ("simspec", "real") for path in (ROOT / top).rglob("*.py")]
    return {dotted(path): imported(path) for path in paths}


def times_given(word: str, path: Path) -> int:
    """How often a string of the file is this word, such as the name of a command."""
    text = path.read_text(encoding="utf-8")
    if word not in text:
        return 0
    nodes = ast.walk(ast.parse(text))
    return sum(isinstance(node, ast.Constant) and node.value == word for node in nodes)


def near(changed: list[str]) -> list[str]:
    """The test files near these changed files, both relative to the checkout."""
    tests = {path: imported(path) for path in sorted((ROOT / "tests").glob("*.py"))}
    files = [ROOT / name for name in changed if name.endswith(".py") and (ROOT / name).exists()]
    found = {path for path in files if path.name.startswith("test_")}
    modules = {dotted(path) for path in files if path.is_relative_to(ROOT / "simspec")}
    modules |= {dotted(path) for path in files if path.is_relative_to(ROOT / "real")}
    helpers = {path.stem for path in files if path.parent == ROOT / "tests"}
    often: Counter[Path] = Counter()
    for name in modules | helpers:
        direct = {path for path, names in tests.items() if name in names}
        room, _, command = name.rpartition(".")
        if room.endswith(".cli"):
            given = {path: times_given(command.replace("_", "-"), path) for path in tests}
            direct |= {path for path, times in given.items() if times}
            direct |= {path for path, names in tests.items() if names & LISTS.get(room, set())}
            often.update(given)
        if not direct:
            users = {user for user, names in program().items() if name in names}
            direct = {path for path, names in tests.items() if names & users}
        if not direct:
            direct = {path for path, names in tests.items() if names & LISTS.get(room, set())}
        found |= {path for path in direct if path.name.startswith("test_")}
    ordered = sorted(found, key=lambda p: (p not in files, -often[p], len(tests[p]), p))
    names = [str(path.relative_to(ROOT)) for path in ordered[:MOST]]
    return [*ALWAYS, *(name for name in names if name not in ALWAYS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--since", default="HEAD", help="a revision; default: what is uncommitted")
    options = parser.parse_args()
    run = {"cwd": ROOT, "check": True, "capture_output": True, "text": True}
    tracked = subprocess.run(["git", "diff", "--name-only", options.since], **run).stdout
    new = subprocess.run(["git", "ls-files", "--others", "--exclude-standard"], **run).stdout
    print("\n".join(near([*tracked.split(), *new.split()])))


if __name__ == "__main__":
    main()
