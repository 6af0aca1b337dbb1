"""What may import what; and each check is shown to be able to fail."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import simspec

ROOT = Path(simspec.__file__).parent
HEAVY = ("torch", "transformers", "real")

USE = """
import simspec
trace = simspec.synthetic.iid(0.5, 2, 10, 4)
simspec.replay(trace, simspec.policies.fixed(2))
simspec.sweep(trace, ["fixed:1", "beta_ts"], replicates=1, progress=False)
"""


def loaded(code, names, path=None):
    """Which of these modules a fresh interpreter holds after running the code."""
    tail = f"\nimport sys\nprint(*[name for name in {names!r} if name in sys.modules])"
    command = [
        sys.executable,
        "-c",
        (f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else "") + code + tail,
    ]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=ROOT.parent
    ).stdout.split()


def test_simspec_never_imports_torch():
    assert loaded(USE, HEAVY) == []


def test_import_loads_no_heavy_package():
    others = ("pandas", "matplotlib", "pyarrow", "joblib", "scipy.stats", "scipy.special")
    assert loaded("import simspec", (*HEAVY, *others)) == []


def test_jobs_load_no_statistics():
    """A sixth of the start of `simspec record`."""
    assert loaded("import real.rerun", ("scipy.stats", "scipy.optimize", "transformers")) == []


def test_control_an_import_of_torch_is_detected(tmp_path):
    (tmp_path / "torch.py").write_text("")
    assert loaded(USE + "import torch", HEAVY, tmp_path) == ["torch"]


def imported(path):
    """Every module that a file imports, also inside functions."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


def test_slow_twin_imports_no_package_module():
    everything = imported(Path(__file__).parent / "naive.py")
    assert not {other.split(".")[0] for other in everything} & {"simspec", "real", "strategies"}


def lint(folder):
    """Runs the import contracts of pyproject.toml on the packages in `folder`."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    config = str(ROOT.parent / "pyproject.toml")
    return subprocess.run(
        [*command, "--config", config, "--no-cache"], cwd=folder, capture_output=True, text=True
    )


def test_import_contracts_hold():
    done = lint(ROOT.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


FORBIDDEN = [
    ("simspec/cost/model.py", "import simspec.policy.policy", "cost.model -> simspec.policy"),
    (
        "simspec/policies/fixed.py",
        "def f():\n    from simspec.policies.thompson import beta_ts",
        "simspec.policies.fixed -> simspec.policies.thompson",
    ),
    ("simspec/replay/sweep.py", "def f():\n    import torch", "simspec.replay.sweep -> torch"),
    ("simspec/trace/trace.py", "import simspec.replay.replay", "trace.trace -> simspec.replay"),
    ("simspec/replay/metrics.py", "import real.rerun", "simspec.replay.metrics -> real.rerun"),
    ("real/draft/protocol.py", "from real.decode import loop", ".draft -> .decode (1 import)"),
    ("real/drafters/eagle.py", "import real.drafters.medusa", "eagle -> real.drafters.medusa"),
    ("real/files.py", "from real import prompts", "real.files -> real.prompts"),
    ("real/newcomer.py", "import json", "newcomer"),
]


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """What the contracts say of a copy of the sources with all forbidden imports at once."""
    folder = tmp_path_factory.mktemp("planted")
    for name in ("simspec", "real"):
        sources = shutil.ignore_patterns("__pycache__", "tiny", "traces", "*.parquet")
        shutil.copytree(ROOT.parent / name, folder / name, ignore=sources)
    for module, line, _ in FORBIDDEN:
        with (folder / module).open("a") as file:
            file.write(f"\n{line}\n")
    return lint(folder)


@pytest.mark.parametrize("module, line, expected", FORBIDDEN)
def test_control_broken_contract_is_detected(planted, module, line, expected):
    assert planted.returncode == 1, planted.stdout
    assert expected in planted.stdout
