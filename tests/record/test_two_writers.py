"""Two processes that make one recording: the second is refused in one line, nothing is lost."""

import subprocess
import sys

import pytest
from interrupted_jobs import prompts, rows
from shell import command, refused

import real.record.recorder
from real.record.recorder import FolderClaim
from real.record.settings import RecordError

ARGUMENTS = ["record", "p.jsonl", "--out", "x.parquet", "-k", 2, "--budget", 3]


def test_second_writer_of_a_recording_is_refused(tmp_path, monkeypatch):
    """It starts while the first is at its second sequence."""
    assert command(prompts(tmp_path / "whole", 3), *ARGUMENTS)[0] == 0
    folder, record, seen = prompts(tmp_path / "both", 3), real.record.recorder.record_sequence, []

    def while_recording(*arguments):
        seen.append(1)
        if len(seen) == 2:
            for other in (ARGUMENTS, [*ARGUMENTS, "--rule", "coupled"]):
                refused(folder, *other, words="in use by another process", progress=True)
        return record(*arguments)

    monkeypatch.setattr(real.record.recorder, "record_sequence", while_recording)
    assert command(folder, *ARGUMENTS)[0] == 0
    assert len(seen) == 3
    assert rows(folder / "x.parquet") == rows(tmp_path / "whole" / "x.parquet")
    assert command(folder, *ARGUMENTS)[0] == 0  # the claim ends with the recording


def test_failed_recording_gives_its_folder_back(tmp_path, monkeypatch):
    folder = prompts(tmp_path, 2)

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(real.record.recorder, "record_sequence", stopped)
        assert command(folder, *ARGUMENTS)[0] == 130
    assert command(folder, *ARGUMENTS)[0] == 0


HOLDS = """
import sys, time
from pathlib import Path
from real.record.recorder import FolderClaim
claim = FolderClaim(Path(sys.argv[1]))
print("ready", flush=True)
time.sleep(60)
"""


def test_killed_process_holds_no_claim(tmp_path):
    folder = tmp_path / "x.parts"
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "ready\n"
    with pytest.raises(RecordError, match="x.parts is in use by another process"):
        FolderClaim(folder)
    other.kill()
    other.communicate()
    FolderClaim(folder).release()


def test_folder_removed_before_it_is_claimed_is_made_anew(tmp_path, monkeypatch):
    """The first writer has just finished and removed it."""
    import real.record.recorder

    folder, lock, removed = tmp_path / "x.parts", real.record.recorder._lock, []

    def finished_meanwhile(*arguments):
        if not removed:
            removed.append(folder.rmdir())
        lock(*arguments)

    monkeypatch.setattr(real.record.recorder, "_lock", finished_meanwhile)
    claim = FolderClaim(folder)
    assert removed == [None]
    assert folder.is_dir()
    with pytest.raises(RecordError, match="in use"):
        FolderClaim(folder)
    claim.release()
    claim.release()
    FolderClaim(folder).release()
