"""The examples that people copy run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)


def _run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_example_has_at_most_twelve_lines():
    assert len(BLOCKS) >= 2
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) <= 12


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_readme_examples_run(number):
    assert _run(BLOCKS[number]).strip()


def test_readme_opens_with_the_two_commands_and_a_picture():
    head = (ROOT / "README.md").read_text(encoding="utf-8")[:2500]
    assert "make demo" in head
    assert "make test" in head
    picture = re.search(r"!\[[^\]]+\]\(([^)]+)\)", head)
    assert picture
    assert (ROOT / picture[1]).exists()


def test_control_a_broken_example_is_noticed():
    with pytest.raises(AssertionError, match="NameError"):
        _run("simspec.load_trace('x')")


def test_the_table_is_what_score_prints_today():
    names = [
        f"tiny-{drafter}-{rule}"
        for drafter in ("early_exit", "model")
        for rule in ("coupled", "greedy")
    ]
    command = [sys.executable, "-m", "simspec.cli", "score", *names, "--markdown"]
    printed = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout.strip()
    assert printed in (ROOT / "README.md").read_text(encoding="utf-8")


def test_drafters_stand_side_by_side_as_printed_today():
    command = [sys.executable, "-m", "simspec.cli", "drafters", "--markdown"]
    printed = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout.strip()
    assert printed.count("\n") == 17
    assert printed in (ROOT / "traces" / "README.md").read_text(encoding="utf-8")


def test_trees_stand_side_by_side_as_printed_today():
    names = ["tiny-eagle-coupled", "tiny-eagle-greedy", "--nodes", "8", "--nodes", "16"]
    command = [sys.executable, "-m", "simspec.cli", "trees", *names, "--markdown"]
    printed = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout.strip()
    assert printed.count("| beams |") == 2
    assert printed in (ROOT / "traces" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("room", ["simspec", "real"])
def test_the_tree_names_every_module(room):
    tree = (ROOT / "README.md").read_text(encoding="utf-8").partition("## What is where")[2]
    part = tree.partition("| `real/` |")[0 if room == "simspec" else 2]
    modules = {path.stem for path in (ROOT / room).glob("*.py")} - {"__init__"}
    assert modules <= set(re.findall(r"`(\w+)`", part)), modules - set(re.findall(r"`(\w+)`", part))
