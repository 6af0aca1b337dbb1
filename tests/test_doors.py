"""What may import what; and each check is shown to be able to fail."""

import ast
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
    command = [sys.executable, "-c", (f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else "") + code + tail]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT.parent).stdout.split()


def test_simspec_leaves_torch_unloaded_even_after_work():
    assert loaded(USE, HEAVY) == []


def test_import_alone_is_light():
    assert loaded("import simspec", (*HEAVY, "pandas", "matplotlib", "pyarrow", "joblib", "scipy.stats")) == []


def test_the_check_can_fail(tmp_path):
    (tmp_path / "torch.py").write_text("")
    assert loaded(USE + "import torch", HEAVY, tmp_path) == ["torch"]


# module -> modules of ours that it may import
ALLOWED = {
    "rng": set(),
    "grid": set(),
    "jit": set(),
    "meta": set(),
    "output": set(),
    "cost": {"output"},
    "formulas": set(),
    "trace": {"grid", "meta", "output"},
    "policy": {"rng", "cost", "grid", "jit"},
    "simulate": {"rng", "trace", "cost", "grid", "jit", "policy"},
    "synthetic": {"grid", "meta", "trace"},
    "metrics": {"cost", "simulate", "trace"},
    "predictor": {"grid", "trace", "output"},
    "tree": {"cost", "output", "trace"},
    "tree_policy": {"grid", "policy", "trace", "tree"},
    "tree_replay": {"cost", "simulate", "trace", "tree_policy"},
    "policies.*": {"policy", "cost", "trace", "rng", "predictor", "tree", "tree_policy"},
}


def imports(path, package="simspec"):
    """{module imported, from this package, anywhere in the file, even inside a function}."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= set(whole) if node.module == package else {node.module}
    return {name.removeprefix(package + ".") for name in found if name.split(".")[0] == package}, found


def broken_doors(root):
    """One line per import that the table does not allow; relies on the source alone."""
    wrong = []
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        ours, everything = imports(path)
        wrong += [f"{name} -> {other}" for other in everything if other.split(".")[0] in HEAVY]
        key = "policies.*" if name.startswith("policies.") and not name.endswith("__init__") else name
        if key in ALLOWED:
            wrong += [f"{name} -> {other}" for other in ours - ALLOWED[key]]
    return wrong


def test_doors_are_one_way():
    assert broken_doors(ROOT) == []


@pytest.mark.parametrize(
    "module, line, found",
    [
        ("cost.py", "from simspec.policy import Policy", "cost -> policy"),
        ("policies/fixed.py", "def f():\n    from simspec.policies.thompson import beta_ts", "policies.fixed -> policies.thompson"),
        ("sweep.py", "def f():\n    import torch", "sweep -> torch"),
        ("trace.py", "from simspec import simulate", "trace -> simulate"),
        ("metrics.py", "from real.decode import decode", "metrics -> real.decode"),
    ],
)
def test_the_table_check_can_fail(tmp_path, module, line, found):
    for path in ROOT.rglob("*.py"):
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(exist_ok=True, parents=True)
        target.write_text(path.read_text())
    (tmp_path / module).write_text((tmp_path / module).read_text() + "\n" + line + "\n")
    assert broken_doors(tmp_path) == [found]


def test_the_slow_twin_imports_nothing_of_ours():
    _, everything = imports(Path(__file__).parent / "naive.py")
    assert not {other.split(".")[0] for other in everything} & {"simspec", "real", "strategies"}


CONTRACTS = """
[importlinter]
root_package = {package}

[importlinter:contract:leaves]
name = leaves import nothing of ours
type = forbidden
source_modules =
    {package}.rng
    {package}.cost
forbidden_modules =
    {package}.policy
    {package}.simulate
"""


def lint(folder, config):
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    return subprocess.run([*command, "--config", str(config), "--no-cache"], cwd=folder, capture_output=True, text=True)


def test_import_linter_contracts_hold():
    done = lint(ROOT.parent, ROOT.parent / "pyproject.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 broken" in done.stdout


def test_an_import_linter_contract_can_fail(tmp_path):
    package = tmp_path / "badtree"
    package.mkdir()
    for name in ("__init__", "rng", "cost", "policy", "simulate"):
        (package / f"{name}.py").write_text("")
    config = tmp_path / "contracts.ini"
    config.write_text(CONTRACTS.format(package="badtree"))
    assert lint(tmp_path, config).returncode == 0
    (package / "cost.py").write_text("def late():\n    from badtree import policy\n")
    done = lint(tmp_path, config)
    assert done.returncode == 1 and "badtree.cost -> badtree.policy" in done.stdout
