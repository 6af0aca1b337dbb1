"""The suite's own exam: every bug can still be planted, and the exam tells tests that notice."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from mutation import (
    ARGUED,
    INVALID,
    KILLED,
    ROOT,
    SURVIVED,
    Mutant,
    MutantError,
    failed_tests,
    load_mutants,
)

MUTANTS = load_mutants(ROOT / "tests" / "mutants")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_bug_can_be_planted(mutant):
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    planted = mutant.planted(text)
    assert planted != text
    compile(planted, mutant.file, "exec")
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8") if name else True
        assert (ROOT / file).is_file()


def test_there_are_enough_bugs_with_a_sentence_each():
    assert len(MUTANTS) >= 120
    assert all(m.bug.endswith(".") and len(m.bug.split()) <= 25 for m in MUTANTS)
    assert len({m.bug for m in MUTANTS}) == len(MUTANTS)
    assert {m.file.split("/")[0] for m in MUTANTS} == {"simspec", "real"}


def test_a_bug_that_the_code_has_left_behind_is_an_error():
    mutant = MUTANTS[0]
    for text in ("", mutant.old * 2):
        with pytest.raises(MutantError, match="occurs [02] times .*: follow the code"):
            mutant.planted(text)


def test_bugs_of_one_name_are_an_error(tmp_path):
    bug = 'bug = "b."\nold = "d"\ntests = []\n'
    (tmp_path / "a.toml").write_text(f'["c".a]\n{bug}["d".a]\n{bug}')
    with pytest.raises(MutantError, match="a is the name of two bugs"):
        load_mutants(tmp_path)


def test_failed_tests_are_read_from_the_summary():
    output = (
        "FAILED tests/test_a.py::test_x[a b-1] - assert 1 == 2\nERROR tests/test_b.py\n"
        "FAILED tests/test_a.py::test_y - ValueError: FAILED x\n1 failed, 1 error\n"
    )
    names = ["tests/test_a.py::test_x[a b-1]", "tests/test_b.py", "tests/test_a.py::test_y"]
    assert failed_tests(output) == names


CODE = "def larger(a, b):\n    return max(a, b)\n\n\ndef name():\n    return 'x' + ''\n"
CONFTEST = "from hypothesis import settings\n\nsettings.register_profile('exam')\n"
TESTS = """from simspec.numbers import larger, name


def test_larger():
    assert larger(1, 2) == 2


def test_broken():
    assert not larger(1, 2)


def test_name():
    assert name()
"""


def toy_bug(name, old, new, test, equivalent=""):
    tests = (f"tests/test_numbers.py::{test}",)
    return Mutant(name, f"{name}.", "simspec/numbers.py", old, new, tests, equivalent)


TOYS = {
    KILLED: toy_bug("smaller", "max(", "min(", "test_larger"),
    SURVIVED: toy_bug("always-b", "max(a, b)", "b", "test_larger"),
    ARGUED: toy_bug("nothing-added", " + ''", "", "test_name", "adding nothing changes nothing"),
    INVALID: toy_bug("fails-anyway", "max(a, b)", "a + b", "test_broken"),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A repository of one module, its tests and four bugs; one of the tests always fails."""
    root = tmp_path_factory.mktemp("project")
    for name, text in (
        ("simspec/__init__.py", ""),
        ("simspec/numbers.py", CODE),
        ("tests/test_numbers.py", TESTS),
        ("tests/mutants/a.toml", "\n".join(map(entry, TOYS.values()))),
        ("tests/conftest.py", CONFTEST),
        (".gitignore", "out/\n"),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def entry(mutant):
    fields = {key: value for key, value in vars(mutant).items() if key not in ("file", "name")}
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join([f'["{mutant.file}".{mutant.name}]', *lines])


def exam(root, *options):
    script = str(ROOT / "tools" / "mutation.py")
    command = [sys.executable, script, "--root", str(root), "--json", "--libraries", "pytest"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
    return done.returncode, json.loads(done.stdout), done.stderr


def test_the_exam_names_each_outcome_and_resumes(project):
    code, report, shown = exam(project)
    found = {o["name"]: o["outcome"] for o in report["outcomes"]}
    assert found == {mutant.name: outcome for outcome, mutant in TOYS.items()}
    assert report["score"] == {KILLED: 1, SURVIVED: 1, ARGUED: 1, INVALID: 1}
    assert code == 1
    killed = report["outcomes"][0]
    assert killed["by"] == "tests/test_numbers.py::test_larger"
    assert shown.count("\n") == 4
    assert (project / "simspec" / "numbers.py").read_text() == CODE
    assert (project / "out" / "mutants" / "copy" / "simspec" / "numbers.py").read_text() == CODE
    again = exam(project)[1]
    seconds = [[o["seconds"] for o in found["outcomes"]] for found in (report, again)]
    assert again["score"] == report["score"]
    assert seconds[0][:3] == seconds[1][:3]  # nothing ran again but what was invalid
    code, one, _ = exam(project, "--only", "smaller")
    assert (code, one["outcomes"]) == (0, [killed])


def test_an_edit_of_file_test_or_bug_is_a_new_exam(project):
    mutant, names = TOYS[KILLED], (Path("simspec/numbers.py"), Path("tests/test_numbers.py"))
    keys = {mutant.key(project), replace(mutant, new="min(1, ").key(project)}
    for name in names:
        text = (project / name).read_text()
        (project / name).write_text(text + "\n")
        keys.add(mutant.key(project))
        (project / name).write_text(text)
    assert len(keys) == 4
    assert mutant.key(project) in keys
