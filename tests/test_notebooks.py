"""The notebooks run and draw their figures; the .ipynb files are their executed scripts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

pytestmark = pytest.mark.docs

FOLDER = Path(__file__).parent.parent / "notebooks"
SCRIPTS = sorted(FOLDER.glob("[0-9]_*.py"))
LIMIT = 350_000
MACHINE = re.compile(
    r"(?<![\w.])/(?:home|root|tmp|work|usr|opt|mnt|var|private|Users)/|"
    r"[A-Za-z]:\\\\?Users|site-packages"
)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")

# Runs a script, then prints for each figure the number of axes that hold data.
HARNESS = """
import runpy, sys
runpy.run_path(sys.argv[1], run_name="__main__")
import matplotlib.pyplot as plt
drawn = [sum(axis.has_data() for axis in plt.figure(number).axes) for number in plt.get_fignums()]
print("figures:", *drawn)
"""


def run(script: Path, cwd: Path) -> tuple[str, list[int]]:
    """(output of the script in fast mode, number of axes with data in each of its figures)."""
    # readers run it compiled
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_DISABLE_JIT"}
    environment |= {"SIMSPEC_FAST": "1", "MPLBACKEND": "Agg"}
    command = [sys.executable, "-c", HARNESS, str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    printed, _, figures = done.stdout.rpartition("figures:")
    return printed, list(map(int, figures.split()))


def shipped(script: Path):
    return nbformat.read(script.with_suffix(".ipynb"), as_version=4)


def text_of(output) -> str:
    return output.get("text", "") + "".join(
        value for kind, value in output.get("data", {}).items() if kind != "image/png"
    )


def pictures(notebook) -> int:
    return sum(
        "image/png" in output.get("data", {})
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    )


def faults_of(notebook, script: Path) -> list[str]:
    """Faults of a shipped notebook: stale, not executed, failed, or tied to a machine."""
    faults = []
    expected = [(cell.cell_type, cell.source) for cell in jupytext.read(script).cells]
    if [(cell.cell_type, cell.source) for cell in notebook.cells] != expected:
        faults.append("out of step")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        faults.append("not executed from top to bottom")
    for cell in code:
        if ("print(" in cell.source or "plt.subplots(" in cell.source) and not cell.outputs:
            faults.append("a cell without its output")
        if "plt.subplots(" in cell.source and not any(
            "image/png" in output.get("data", {}) for output in cell.outputs
        ):
            faults.append("a cell without its plot")
        if any(
            output.output_type == "error" or output.get("name") == "stderr"
            for output in cell.outputs
        ):
            faults.append("an error")
    everything = [cell.source for cell in notebook.cells] + [
        text_of(output) for cell in code for output in cell.outputs
    ]
    if any(
        MACHINE.search(text)
        for text in (
            *everything,
            str(notebook.metadata),
            *(str(cell.metadata) for cell in notebook.cells),
        )
    ):
        faults.append("a machine's path")
    if any(cell.metadata.get("execution") for cell in notebook.cells):
        faults.append("times of a run")
    return faults


def same(one: str, other: str) -> bool:
    """Equal words, and numbers equal up to the rounding of printed figures."""
    if NUMBER.sub("#", one).split() != NUMBER.sub("#", other).split():
        return False
    pairs = zip(map(float, NUMBER.findall(one)), map(float, NUMBER.findall(other)), strict=True)
    return all(abs(a - b) <= 2e-3 + 2e-3 * abs(a) for a, b in pairs)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_runs_and_draws_the_shipped_figures(script, tmp_path):
    printed, figures = run(script, tmp_path)
    assert len(printed.splitlines()) >= 10
    assert len(figures) >= 4
    assert min(figures) >= 1
    assert len(figures) == pictures(shipped(script))
    if "SIMSPEC_FAST" not in script.read_text(
        encoding="utf-8"
    ):  # it has one mode only, so its output is the shipped one
        outputs = "".join(
            output.text
            for cell in shipped(script).cells
            for output in cell.get("outputs", ())
            if "text" in output
        )
        assert same(printed, outputs), "stale outputs: make notebooks"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_shipped_notebook_is_its_executed_script(script):
    assert faults_of(shipped(script), script) == []
    assert script.with_suffix(".ipynb").stat().st_size < LIMIT


def test_notebooks_stay_small_together():
    assert sum(path.stat().st_size for path in FOLDER.glob("*.ipynb")) < 1_100_000


def test_each_script_has_its_notebook():
    assert [script.stem[0] for script in SCRIPTS] == list("12345678")
    assert sorted(FOLDER.glob("*.ipynb")) == [script.with_suffix(".ipynb") for script in SCRIPTS]


SMALL = """\
# %% [markdown]
# # A title

# %%
import matplotlib.pyplot as plt

print(1.5)
_ = plt.subplots()[1].plot([0, 1])
"""


def test_executed_notebook_passes_and_faults_are_noticed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import execute

    script = tmp_path / "1_small.py"
    script.write_text(SMALL)
    monkeypatch.setattr(execute, "HERE", tmp_path)
    execute.main([])
    first = script.with_suffix(".ipynb").read_bytes()
    execute.main(["1_small"])
    assert script.with_suffix(".ipynb").read_bytes() == first  # nothing volatile is left
    assert faults_of(shipped(script), script) == []
    assert pictures(shipped(script)) == 1

    spoiled = {
        "out of step": lambda cells: cells[0].update(source="# Another title"),
        "not executed from top to bottom": lambda cells: cells[1].update(execution_count=7),
        "a cell without its plot": lambda cells: cells[1].update(
            outputs=[o for o in cells[1].outputs if "text" in o]
        ),
        "a machine's path": lambda cells: (
            cells[1].outputs[0].update(text="wrote /home/someone/x.png")
        ),
        "times of a run": lambda cells: cells[1].metadata.update(
            execution={"iopub.execute_input": "now"}
        ),
        "an error": lambda cells: cells[1].outputs.append(
            nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])
        ),
    }
    for fault, spoil in spoiled.items():
        notebook = shipped(script)
        spoil(notebook.cells)
        assert faults_of(notebook, script) == [fault]


def test_control_failing_scripts_and_other_figures_are_noticed(tmp_path):
    for line in ("raise ValueError('broken')", "import warnings; warnings.warn('careful')"):
        (tmp_path / "bad.py").write_text(line)
        with pytest.raises(AssertionError):
            run(tmp_path / "bad.py", tmp_path)
    assert same("mean 0.7071, 3 rounds", "mean 0.7072, 3 rounds")
    assert not same("mean 0.707, 3 rounds", "mean 0.712, 3 rounds")
    assert not same("mean 0.7", "median 0.7")
