"""The core's tests with the lowest and the newest dependencies: nox -s lowest newest.

Torch is not installed: `simspec/` never needs it. Versions of Python that are missing are skipped.
"""

import tomllib
from pathlib import Path

import nox

PROJECT = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
TESTS = [
    str(path)
    for name in (
        "trace", "schema_goldens", "policies", "policy_names", "simulate", "metrics", "sweep",
        "cost", "cost_table", "stats", "oracle", "beta_draw", "specialize", "command_line",
    )
    for path in Path("tests").rglob(f"test_{name}.py")
]  # fmt: skip
TOOLS = ("pytest>=8", "hypothesis>=6.100")


def lowest_versions() -> list[str]:
    """name==version of every dependency's lower bound, and of what draws charts."""
    wanted = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["plots"]
    return [requirement.replace(">=", "==") for requirement in wanted]


@nox.session(python="3.11")
def lowest(session: nox.Session) -> None:
    """The lower bound of every direct dependency."""
    session.install(*lowest_versions(), *TOOLS)
    session.install("--no-deps", "-e", ".")
    session.run("python", "-m", "pytest", "-p", "no:cacheprovider", *TESTS, *session.posargs)


@nox.session(python=["3.11", "3.12", "3.13"])
def newest(session: nox.Session) -> None:
    """What the package registry offers today."""
    session.install("--upgrade", "-e", ".[plots]", *TOOLS)
    session.run("python", "-m", "pytest", "-p", "no:cacheprovider", *TESTS, *session.posargs)
