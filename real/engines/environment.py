"""An engine's environment: where it is, its Python, and whether its version was tested."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from real.engines.adapter import Engine

FOLDERS = "SIMSPEC_ENGINES"
"""Environment variable with the folder of the engines' environments; default `.engines`."""
ANSWER = 60
"""Seconds that an environment's Python may take to name a version."""
VERSION = """
import sys
from importlib.metadata import PackageNotFoundError, version
for name in sys.argv[1:]:
    try:
        print(name, version(name))
        break
    except PackageNotFoundError:
        pass
"""


@dataclass(frozen=True)
class Environment:
    """An engine's environment that is there: its Python, its distribution and the version."""

    python: Path
    package: str
    version: str


def folder_of(engine: Engine) -> Path:
    """Folder of the engine's environment, whether it exists or not."""
    return Path(os.environ.get(FOLDERS) or ".engines") / engine.name


def find_environment(engine: Engine, untested: bool = False) -> Environment:
    """The engine's environment; `untested` accepts versions out of the tested range.

    ValueError, one line, where it is missing, broken, or its version was not tested.
    """
    folder = folder_of(engine)
    python = folder / "bin" / "python"
    remedy = f"`make .engines/{engine.name}/.installed` builds it, `make engines` all; or set " + (
        f"{FOLDERS} to the folder that has {engine.name}/bin/python"
    )
    if not python.is_file():
        raise ValueError(f"{engine.name} has no environment at {folder}: {remedy}")
    # not resolved: a virtual environment's python is a link, and its folder is what counts
    python = Path(os.path.abspath(python))
    package, version = _package_version(engine, python, remedy)
    if not untested and not engine.was_tested(version):
        raise ValueError(
            f"{engine.name} at {folder} is {package} {version}; expected at least "
            f"{engine.tested[0]} and below {engine.tested[1]}: {remedy}"
        )
    return Environment(python, package, version)


def is_installed(engine: Engine) -> bool:
    """Whether the engine's environment is there and in the tested range."""
    try:
        find_environment(engine)
    except ValueError:
        return False
    return True


def _package_version(engine: Engine, python: Path, remedy: str) -> tuple[str, str]:
    try:
        answer = subprocess.run(
            [python, "-I", "-c", VERSION, *engine.packages],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{engine.name}: {python} does not run ({reason}): {remedy}") from None
    found = answer.split()
    if len(found) != 2 or len(answer) > 200:
        raise ValueError(
            f"{engine.name}: {python} has no package {' or '.join(engine.packages)}: {remedy}"
        )
    return found[0], found[1]
