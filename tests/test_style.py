"""Sizes that a reader can hold: lines and modules."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COLUMNS, LINES = 100, 900


def sources(*folders):
    """Python files below these folders."""
    return [path for name in folders for path in sorted((ROOT / name).rglob("*.py"))]


def too_wide(paths):
    """file:line of every line over the limit."""
    return [
        f"{path.name}:{number}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS
    ]


def lengths(paths):
    """Lines of each file."""
    return {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}


def test_no_line_is_over_100_columns():
    assert too_wide(sources("simspec", "real", "tests", "tools", "notebooks", "docs")) == []


def test_no_module_is_over_900_lines():
    modules = lengths(sources("simspec", "real", "tests", "tools"))
    long = {path.name: n for path, n in modules.items() if n > LINES}
    assert long == {}


@pytest.mark.parametrize("package", ["simspec", "real"])
def test_packages_declare_their_types(package):
    assert (ROOT / package / "py.typed").exists()


def test_control_wide_lines_and_long_files_are_noticed(tmp_path):
    (tmp_path / "wide.py").write_text("x" * 101 + "\n" + "y" * 100 + "\n")
    assert too_wide([tmp_path / "wide.py"]) == ["wide.py:1"]
    assert lengths([tmp_path / "wide.py"]) == {tmp_path / "wide.py": 2}
