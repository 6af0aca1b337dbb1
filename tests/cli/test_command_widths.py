"""Commands' tables at every width: names whole, no line longer than the terminal."""

import pytest
from rich.cells import cell_len
from shell import run

from simspec import synthetic

NAMES = ("tiny-early_exit-greedy", "tiny-early_exit[red]-greedy")
ONE, TWO = (f"--policy={policy}" for policy in ("fixed:1", "confidence:0.5"))
COMMANDS = [
    ("sweep", ONE, TWO),
    ("sweep", "--report=oracle", "--cost", 0.1, ONE),
    ("sweep", "--report=differences", "--cost", 0.1, ONE),
    ("sweep", "--report=drafters", "--cost", 0.1),
    ("sweep", "--report=trees", "--cost", 0.1, "--nodes", 4),
    ("sweep", "--report=batch", "--cost", 0.1, "-b", 2),
    ("report", "--show"),
]


@pytest.mark.parametrize("width", (60, 120, None))
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[1])
def test_every_recording_is_shown(capsys, monkeypatch, tmp_path, words, width):
    for i, name in enumerate(NAMES):
        trace = synthetic.iid(0.7, 9, 30, 5, seed=i, confidence=True)
        trace.save(tmp_path / f"{name}.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("simspec.output.terminal.terminal_width", lambda: width)
    code, out, _ = run(capsys, *words, *(f"{name}.parquet" for name in NAMES))
    assert code == 0
    assert "…" not in out
    assert width is None or max(map(cell_len, out.splitlines())) <= width
    if width is None:  # names fold on a terminal
        assert all(name in out for name in NAMES)
