"""Wheel and source distribution: their files, and that they work without a checkout and torch."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from cut_example import CUTS, cut
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import simspec
from simspec import load_trace, replay
from simspec.policies import parse

ROOT = Path(__file__).parent.parent
FILES = ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
FOLDERS = ("simspec", "real", "traces", "tests", "tools", "notebooks")
LIMIT = 1_000_000
SWEEP = ("-m", "simspec.cli", "sweep", "--policy", "fixed:1", "--policy", "beta_ts", "--json")


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> Path:
    """A copy of the working tree, since a build leaves files in its source."""
    source = tmp_path_factory.mktemp("source")
    for name in FILES:
        shutil.copyfile(ROOT / name, source / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        left = source / name / "__pycache__"
        left.mkdir()
        (left / "stale.py311.1.nbc").write_bytes(b"a compiled kernel of this machine")
    return source


def built_wheel(source: Path, out: Path) -> Path:
    """The wheel of these sources."""
    command = [
        sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index",
        "--disable-pip-version-check",
    ]  # fmt: skip
    done = subprocess.run(
        [*command, "-q", "-w", str(out), "."], cwd=source, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def wheel(source, tmp_path_factory) -> Path:
    return built_wheel(source, tmp_path_factory.mktemp("wheel"))


def _unpacked(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="session")
def unpacked(wheel, tmp_path_factory) -> Path:
    return _unpacked(wheel, tmp_path_factory.mktemp("unpacked"))


@pytest.fixture(scope="session")
def models(source, tmp_path_factory) -> Path:
    """The unpacked wheel of the embedded models."""
    folder = tmp_path_factory.mktemp("models")
    return _unpacked(built_wheel(source / "real" / "tiny", folder), folder / "unpacked")


def _alone(first, arguments, cwd, **variables):
    # -S reads no .pth file, so an editable install of the checkout is absent.
    sites = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {"PYTHONPATH": os.pathsep.join([*map(str, first), *sites])} | variables
    done = subprocess.run(
        [sys.executable, "-S", *arguments], cwd=cwd, env=environment, capture_output=True,
        text=True, timeout=300
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def _strangers(names) -> list:
    """Files that do not belong in the wheel."""
    kinds = {
        "simspec": (".py", "py.typed", ".parquet", ".json", ".txt", "page.html"),
        "real": (".py", "py.typed"),
    }
    return [
        name for name in names
        if "__pycache__" in name
        or not name.split("/")[0].endswith(".dist-info")
        and not name.endswith(kinds.get(name.split("/")[0], ()))
        and not re.fullmatch(r"real/engines/(shapes\.json|requirements/[a-z]+\.txt)", name)
    ]  # fmt: skip


def test_wheel_holds_code_and_example_only(wheel, record_property):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    assert _strangers(names) == []
    for package in ("simspec", "real"):
        here = {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py")}
        assert {
            name for name in names if name.startswith(f"{package}/") and name.endswith(".py")
        } == here
    example = [name for name in names if name.startswith("simspec/example/")]
    assert sorted(Path(name).name.split(".", 1)[1] for name in example) == [
        "cost.json",
        "parquet",
        "txt",
    ]
    assert (
        sum((ROOT / name).stat().st_size for name in example if name.endswith(".parquet"))
        <= 120_000
    )
    assert wheel.stat().st_size < LIMIT
    record_property("measured", f"wheel: {len(names)} files, {wheel.stat().st_size / 1e6:.1f} MB")


def test_source_distribution_builds_the_same_wheel(source, wheel, tmp_path):
    build = "import setuptools.build_meta as b, sys; print(b.build_sdist(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=source, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as files:
        names = [name.partition("/")[2] for name in files.getnames()]
        files.extractall(tmp_path, filter="data")
    assert {"tests", "tools", "traces", "notebooks"}.isdisjoint(
        name.split("/")[0] for name in names
    )
    assert not [name for name in names if name.endswith((".nbc", ".pyc"))]
    again = built_wheel(tmp_path / path.name.removesuffix(".tar.gz"), tmp_path)
    with zipfile.ZipFile(wheel) as here, zipfile.ZipFile(again) as there:
        assert {i.filename: i.CRC for i in here.infolist()} == {
            i.filename: i.CRC for i in there.infolist()
        }


def test_lock_pins_by_hash_what_the_project_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    text = (ROOT / "requirements.lock").read_text("utf-8")
    pins = dict(re.findall(r"^([\w.-]+)==(\S+).*\n    --hash=sha256:\w{64}", text, re.M))
    assert len(pins) == len(re.findall(r"^\S+==", text, re.M))
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(r for n in ("real", "dev", "docs") for r in extras[n])]
    named = {r.name: r.specifier for r in map(Requirement, [*wanted, *extras["notebooks"]])}
    assert {"torch", "simspec"} <= set(named)
    for name in set(named) - {"torch", "simspec"}:
        assert pins[canonicalize_name(name)] in named[name], "renew it, see CONTRIBUTING.md"


def test_one_version_is_named_everywhere():
    files = ("pyproject.toml", "real/tiny/pyproject.toml", "CITATION.cff")
    found = [
        re.findall(r'^version(?: = "|: )([^"\n]+)', (ROOT / f).read_text(), re.M) for f in files
    ]
    assert found == [[simspec.__version__]] * 3


@pytest.mark.parametrize("source", CUTS)
def test_example_replays_as_the_full_recording_and_equals_its_script(source):
    (shipped,) = (ROOT / CUTS[source]).glob("*.parquet")
    example, whole = load_trace(shipped), load_trace(ROOT / "traces" / f"{source}.parquet")
    assert shipped.stem == f"{source.replace('/', '-')}-{example.sequences}"
    assert {example.task.count(task) for task in set(whole.task)} == {4}
    chosen = [whole.meta.ids.index(name) for name in example.meta.ids]
    for text in ("fixed:3", "beta_ts", "confidence:0.5"):
        assert replay(example, parse(text), seed=5) == replay(whole, parse(text), seed=5).select(
            chosen, whole
        ), "make example"
    fresh = cut(whole)
    for name in ("token", "run", "depth", "feature", "rank", "margin", "prompt", "sequence"):
        assert (getattr(example, name) == getattr(fresh, name)).all(), name
    assert example.meta.ids == fresh.meta.ids
    assert example.meta.features == fresh.meta.features
    costs = ROOT / "traces" / f"{source}.cost.json", shipped.with_suffix(".cost.json")
    assert costs[0].read_bytes() == costs[1].read_bytes()


def test_control_extra_files_are_detected():
    bad = [
        "tests/naive.py", "traces/a.parquet", "simspec/__pycache__/a.py311.1.nbc",
        "real/__pycache__/a.py", "lab/prose.jsonl", "real/tiny/target/model.safetensors.xz",
    ]  # fmt: skip
    assert _strangers([*bad, "simspec/cli.py", "simspec-0.1.0.dist-info/RECORD"]) == bad


def test_installed_wheel_sweeps_its_example(unpacked, tmp_path):
    where = (
        "import simspec as s; print(s.__file__); print(s.__version__); "
        "print(s.load_example().K, s.load_example_cost().K)"
    )
    code, output, problem = _alone([unpacked], ["-c", where], tmp_path)
    assert code == 0, problem
    file, version, deepest = output.splitlines()
    assert Path(file).is_relative_to(unpacked)
    assert (version, deepest) == (simspec.__version__, "12 12")
    code, output, problem = _alone([unpacked], SWEEP, tmp_path)
    assert code == 0, problem
    rows = json.loads(output)["rows"]
    (name,) = {row["trace"] for row in rows}
    assert name.startswith("coder-greedy-model-")
    assert (unpacked / "simspec" / "example" / f"{name}.parquet").exists()
    assert {row["policy"] for row in rows} == {"fixed:1", "beta_ts:acceptance"}
    assert {row["cost"] for row in rows} != {"c=0.1"}  # the example's own costs were found
    assert all(row["committed_per_round"] > 0 and row["speedup"] > 0 for row in rows)
    assert not list(tmp_path.iterdir())


def test_demo_runs_on_the_wheel_of_models_and_asks_for_it(unpacked, models, tmp_path):
    here, held = (
        {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        for folder in (ROOT / "real" / "tiny", models / "simspec_models")
    )
    assert here - held == {"pyproject.toml"}
    assert held < here
    demo = ("-m", "simspec.cli", "demo", "--prompts", "2", "--json")
    assert _alone([unpacked], demo, tmp_path) == (
        2, "", "simspec: the embedded models are not installed: pip install 'simspec[demo]', or "
        "name models of your own\n",
    )  # fmt: skip
    # the sweep above compiles what the wheel holds; here that would be half of the time
    code, output, problem = _alone([unpacked, models], demo, tmp_path, NUMBA_DISABLE_JIT="1")
    assert code == 0, problem
    (row,) = json.loads(output)["rows"]
    assert row["recording"].startswith("tiny-model-greedy-")
    assert (row["exceptions"], row["failures"]) == (0, 0)


def test_control_without_the_wheel_import_fails(tmp_path):
    code, _, problem = _alone([], ["-c", "import simspec"], tmp_path)
    assert code == 1
    assert "No module named 'simspec'" in problem
