"""Jobs that are interrupted before they have made anything leave no file.

`test_signals` interrupts a recording that has; `test_kill` goes on after kills.
"""

import pytest
from forked_jobs import RECORD, prompts
from shell import command, refused

from simspec import synthetic


@pytest.mark.parametrize("job", ["record", "sweep", "train"])
def test_early_interrupt_leaves_no_file(tmp_path, monkeypatch, job):
    folder = prompts(tmp_path, 2)

    def stopped(*_, **__):
        raise KeyboardInterrupt

    if job == "record":
        monkeypatch.setattr("real.record.sequences.target_sequences", stopped)
        refused(folder, *RECORD, words="interrupted", code=130)
    elif job == "sweep":
        synthetic.iid(0.5, 1, 9, 2).save(folder / "t.parquet")
        monkeypatch.setattr("simspec.trace.file.digest", stopped)
        refused(
            folder, "sweep", "t.parquet", "--policy", "fixed:1", "--out", "o.csv",
            words="interrupted", code=130
        )  # fmt: skip
    else:
        monkeypatch.setattr("real.train.text.documents", stopped)
        (folder / "text.txt").write_text("words " * 99)
        code, out, error = command(folder, "train", "medusa", "text.txt", "--out", "m")
        assert code == 130
        assert out == ""
        assert error.endswith("same command is given again\n")
        assert not [
            p for p in folder.rglob("*") if p.is_file() and p.name not in ("p.jsonl", "text.txt")
        ]
