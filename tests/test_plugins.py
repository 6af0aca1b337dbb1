"""A policy, a drafter, a command, an engine and a claim are one new file each, and no other edit.

The files lie in a scratch copy of the packages; commands run from there, and the exam too, in
forks of a process that has imported them. With SIMSPEC_SLOW each file alone goes through the fast
suite, as `make test-fast` runs it.
"""

import json
import shutil

import pytest
from copied_commands import CopiedCommands
from documents import ROOT

FILES = {
    "simspec/policies/accepted_plus.py": '''
"""One token more than the last round accepted."""

from simspec.policy.policy import Policy
from simspec.policy_kind import Option, PolicyKind


def _draft_more(params, state, slot, features, u):
    return slot < state[0], True


def _observe(params, state, computed, drafted, accepted, features, cost):
    state[0] = accepted + params[0]


def accepted_plus(more: int = 1) -> Policy:
    """Draft as many tokens as the last round accepted, and `more`."""
    return Policy(f"accepted_plus:{more}", _draft_more, _observe, (more,), (2.0,))


POLICIES = (
    PolicyKind(
        accepted_plus, "outcomes", "a newcomer", "last round", "accepted and one more",
        examples=("accepted_plus", "accepted_plus:2"), space={"more": Option((1, 2, 3))},
    ),
)
''',
    "real/drafters/parrot.py": '''
"""Repeats the last token."""

from real.draft import Drafter, DrafterKind, Step
from real.draft.protocol import load_configured


class ParrotDrafter(Drafter):
    """Proposes the last token again and again."""

    name = "parrot"
    prefix_only = True
    has_logits = False

    def __init__(self):
        self.settings, self.predictors = {}, {}

    @classmethod
    def load(cls, folder, target, made_for):
        return load_configured(folder, cls)

    def begin(self, target, prompt, prefill, pick):
        self.last, self.drafted = prompt[-1], 0

    def next(self):
        self.drafted += 1
        return Step(self.last, self.drafted - 1, None)

    def rollback(self, accepted):
        self.drafted = 0

    def catch_up(self, tokens, output, path):
        self.last = tokens[-1] if tokens else self.last


KIND = DrafterKind(ParrotDrafter, ParrotDrafter.load)
''',
    "simspec/cli/greet.py": '''
"""simspec greet: a greeting."""

PANEL = "Simulate"


def greet(name: str) -> None:
    """Greet somebody.

    Example: simspec greet world
    """
    print(f"hello, {name}")
''',
}
COPIED = ("simspec", "real", "tests", "tools", "docs")
LINKED = ("traces", "pyproject.toml", "README.md")


def copy_of_checkout(folder):
    """The copy; the recordings are linked."""
    for name in COPIED:  # compiled kernels too, but for those that are being written
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.tmp.*"))
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A copy of the checkout with FILES."""
    folder = copy_of_checkout(tmp_path_factory.mktemp("scratch"))
    for file, text in FILES.items():
        (folder / file).write_text(text.lstrip())
    return folder


@pytest.fixture(scope="module")
def simspec(scratch):
    """The command line of the copy: a function to (exit code, stdout, stderr)."""
    commands = CopiedCommands(scratch)
    yield commands
    commands.close()


def test_a_policy_is_listed_swept_tuned_and_documented(simspec, scratch):
    listed = json.loads(simspec("policies", "--json")[1])
    assert listed["accepted_plus"]["source"] == "a newcomer"
    code, out, error = simspec(
        "sweep", "tiny-model-greedy", "--policy", "accepted_plus:2", "--cost", "0.1", "--json"
    )
    assert code == 0, error
    assert "accepted_plus:2" in out
    code, out, error = simspec(
        "tune", "accepted_plus", "tiny-model-greedy", "--trials", "16", "--json"
    )
    assert code == 0, error
    assert "accepted_plus:more=" in out
    page = scratch / "docs" / "policies.md"
    first, end, _ = page.read_text(encoding="utf-8").partition("<!-- table: end -->")
    page.write_text(first + end, encoding="utf-8")  # each table is a process
    assert "`accepted_plus`" not in first
    code, _, error = simspec("--write", "docs/policies.md", module="docs/tables.py")
    assert code == 0, error
    assert "| `accepted_plus` | a newcomer |" in page.read_text(encoding="utf-8")


def test_a_policy_enters_the_exam(simspec):
    code, out, error = simspec(
        "-o", "addopts=", "-q", "-p", "no:cacheprovider", "-n", "0", "-k", "accepted_plus",
        "tests/policies/test_policy_names.py", "tests/test_tuning.py", "tests/test_simulate.py",
        "tests/test_equality.py", module="pytest",
    )  # fmt: skip
    assert code == 0, out + error
    passed = int(out.split(" passed")[0].split()[-1])
    assert passed >= 5, out


def test_a_drafter_is_listed_recorded_and_swept(simspec, scratch):
    assert "parrot" in simspec("record", "--help")[1]
    prompts = scratch / "prompts.jsonl"
    rows = [{"id": str(i), "text": f"Count: {i}, {i}, {i},", "task": "t"} for i in range(8)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    code, out, error = simspec(
        "record", "prompts.jsonl", "--drafter", "parrot", "--budget", "8", "--depth", "3",
        "--out", "parrot.parquet",
    )  # fmt: skip
    assert code == 0, out + error
    code, out, error = simspec("sweep", "parrot.parquet", "--policy", "fixed:1", "--cost", "0.1")
    assert code == 0, error


def test_a_command_is_in_the_help_of_its_group_and_runs(simspec):
    assert "Greet somebody." in simspec("--help")[1]
    assert simspec("greet", "world") == (0, "hello, world\n", "")
