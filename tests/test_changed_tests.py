"""The tests that `make test-fast` picks, and those that it leaves out."""

from pathlib import Path

import pytest
from changed_tests import ALWAYS, MOST, near

ROOT = Path(__file__).parents[1]
SLOW = (ROOT / "tests" / "slow_tests.txt").read_text(encoding="utf-8").split()


@pytest.mark.parametrize("name", SLOW)
def test_every_slow_test_exists(name):
    file, _, test = name.partition("::")
    assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), "follow the test's name"


def test_slow_tests_are_listed_once_in_order():
    assert sorted(set(SLOW)) == SLOW


def test_the_test_of_a_module_and_of_a_command_is_near():
    assert "tests/test_medusa.py" in near(["real/draft/losses.py"])
    assert near(["simspec/cli/sweep.py"])[len(ALWAYS)] == "tests/test_cli_sweep.py"


def test_a_changed_test_comes_first_and_few_follow():
    names = near(["tests/test_wheel.py", "simspec/policies/fixed.py"])
    assert names[len(ALWAYS)] == "tests/test_wheel.py"
    assert len(names) == len(ALWAYS) + MOST


def test_control_nothing_changed_is_near_nothing():
    assert near([]) == list(ALWAYS)
