"""Commands' tables at every width: names whole and distinct, lines no longer than the terminal."""

from itertools import pairwise

import pytest
from rich.cells import cell_len
from shell import run

from simspec import synthetic

NAMES = ("tiny-early_exit-greedy", "tiny-early_exit-coupled", "tiny-early_exit[red]-greedy")
POLICIES = ("fixed:1", "beta_ts:censored", "confidence:0.5", "oracle")
WIDTHS = (60, 80, 120, 200, None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings")
    for i, name in enumerate(NAMES):
        trace = synthetic.iid(0.7, 9, 30, 5, seed=i, confidence=True)
        trace.save(folder / f"{name}.parquet")
    return folder


def lines_of(capsys, monkeypatch, folder, width, *arguments):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("simspec.output.terminal.terminal_width", lambda: width)
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    lines = out.splitlines()
    assert "…" not in out
    assert width is None or max(map(cell_len, lines)) <= width
    return lines


@pytest.mark.parametrize("width", WIDTHS)
def test_sweep_shows_every_recording_and_policy(capsys, monkeypatch, folder, width):
    files = [f"{name}.parquet" for name in NAMES]
    options = [f"--policy={policy}" for policy in POLICIES]
    lines = lines_of(capsys, monkeypatch, folder, width, "sweep", *files, *options)
    assert all(any(file in line for line in lines) for file in files)
    for policy in POLICIES:
        assert sum(policy in line for line in lines) >= len(NAMES)


@pytest.mark.parametrize("width", WIDTHS)
def test_score_shows_every_recording_and_policy(capsys, monkeypatch, folder, width):
    files = [f"{name}.parquet" for name in NAMES]
    options = [f"--policy={policy}" for policy in POLICIES[:3]]
    lines = lines_of(capsys, monkeypatch, folder, width, "score", *files, *options)
    titles = [i for i, line in enumerate(lines) if any(line.startswith(file) for file in files)]
    assert len(titles) == len(NAMES)
    for first, last in pairwise([*titles, len(lines)]):
        text = "\n".join(lines[first:last])
        assert all(policy in text for policy in POLICIES[:3])


@pytest.mark.parametrize("width", WIDTHS)
def test_drafters_shows_every_row(capsys, monkeypatch, folder, width):
    files = [f"{name}.parquet" for name in NAMES]
    lines = lines_of(capsys, monkeypatch, folder, width, "drafters", *files, "--cost", 0.1)
    assert "speedup" in "\n".join(lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_trees_shows_every_policy(capsys, monkeypatch, folder, width):
    file = f"{NAMES[0]}.parquet"
    options = ("--cost", 0.1, "--policy", "fixed:2")
    lines = lines_of(capsys, monkeypatch, folder, width, "trees", file, *options)
    for policy in ("plain", "best chain", "fixed:2", "oracle"):
        assert any(policy in line for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_show_prints_every_field(capsys, monkeypatch, folder, width):
    lines = lines_of(capsys, monkeypatch, folder, width, "show", f"{NAMES[2]}.parquet")
    for field in ("tokenizer_sha256", "mean_accepted_length", "accept_by_depth_at_K"):
        assert any(field in line for line in lines)
