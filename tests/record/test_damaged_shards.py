"""Shards of an interrupted recording that were damaged; two writers of one recording."""

import random
import shutil
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
from forked_jobs import prompts, rows
from shell import command, refused

import real.record.recorder
import real.rerun
from real.record import RecordError, RecordingFiles
from real.record.recorder import FolderClaim, Shards
from real.rerun import prompts_of
from simspec import load_trace

ARGUMENTS = ["record", "p.jsonl", "--out", "x.parquet", "-k", 3, "--budget", 4]


@pytest.fixture(scope="module")
def shards_of_two():
    """Recordings have shards of two sequences."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real.record, "RecordingFiles", partial(RecordingFiles, shard_size=2))
        yield


@pytest.fixture(scope="module")
def interrupted(shards_of_two, tmp_path_factory):
    """(a recording interrupted with two of its three shards on disk, the whole recording)"""
    base = tmp_path_factory.mktemp("shards")
    assert command(prompts(base / "whole", 6), *ARGUMENTS)[0] == 0
    recorded, text = [], real.record.recorder.record_sequence

    def until_the_fifth(*job):
        if len(recorded) == 4:
            raise KeyboardInterrupt
        recorded.append(text(*job))
        return recorded[-1]

    folder = prompts(base / "half", 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real.record.recorder, "record_sequence", until_the_fifth)
        assert command(folder, *ARGUMENTS)[0] == 130
    assert sorted(p.name for p in (folder / "x.parquet.parts").iterdir()) == [
        "000000.parquet",
        "000002.parquet",
        "sequences.json",
        "settings.json",
    ]
    return folder, rows(base / "whole" / "x.parquet")


@pytest.fixture
def half(interrupted, tmp_path):
    """A copy of the interrupted recording, its command, and the whole recording."""
    folder, whole = interrupted
    return shutil.copytree(folder, tmp_path / "half"), ARGUMENTS, whole


def test_flipped_bit_is_refused_or_harmless(half):
    folder, arguments, whole = half
    shard = folder / "x.parquet.parts" / "000002.parquet"
    raw, draw, refusals = shard.read_bytes(), random.Random(0), 0
    kept = {p: p.read_bytes() for p in shard.parent.iterdir()}
    for _ in range(16):
        place = draw.randrange(len(raw))
        shard.write_bytes(
            raw[:place] + bytes([raw[place] ^ 1 << draw.randrange(8)]) + raw[place + 1 :]
        )
        code, out, error = command(folder, *arguments)
        if code == 0:
            assert rows(folder / "x.parquet") == whole
            (folder / "x.parquet").unlink()
            shard.parent.mkdir()
            for path, held in kept.items():
                path.write_bytes(held)
            continue
        refusals += 1
        assert code == 2
        assert out == ""
        assert error.count("\n") == 1
        assert "x.parquet.parts/000002.parquet" in error
        assert error.startswith("simspec: ")
        assert "delete this file" in error
        assert not (folder / "x.parquet").exists()
    assert refusals > 8
    shard.unlink()  # as the line says
    assert command(folder, *arguments)[0] == 0
    assert rows(folder / "x.parquet") == whole


def test_shard_of_other_sequences_is_refused(half):
    folder, arguments, whole = half
    parts = folder / "x.parquet.parts"
    (parts / "000002.parquet").write_bytes((parts / "000000.parquet").read_bytes())
    refused(folder, *arguments, words="000002.parquet holds other sequences", progress=True)
    (parts / "000002.parquet").unlink()
    assert command(folder, *arguments)[0] == 0
    assert rows(folder / "x.parquet") == whole


def test_shard_of_the_same_prompts_elsewhere_is_refused(half):
    """Draws are addressed by the sequence's number: equal prompts give other sequences."""
    parts = half[0] / "x.parquet.parts"
    trace = load_trace(parts / "000000.parquet")
    group = [SimpleNamespace(token=prompt) for prompt in prompts_of(trace)]
    shards = SimpleNamespace(path=lambda first: parts / "000000.parquet", settings=trace.meta)
    assert Shards.load(shards, 0, group) == trace
    with pytest.raises(RecordError, match="000000.parquet holds other sequences"):
        Shards.load(shards, 2, group)


@pytest.mark.parametrize("text", ["", "{", "[" * 200_000, "\x00"])
def test_damaged_settings_are_named(half, text):
    folder, arguments, _ = half
    (folder / "x.parquet.parts" / "settings.json").write_text(text)
    refused(folder, *arguments, words="settings.json is damaged", progress=True)


def test_shards_without_settings_are_recorded_again(half):
    folder, arguments, whole = half
    (folder / "x.parquet.parts" / "settings.json").unlink()
    other = [*arguments[:-1], 3]
    assert command(folder, *other)[0] == 0
    assert rows(folder / "x.parquet").budget.tolist() == [3] * 6
    assert whole.budget.tolist() == [4] * 6


OPTIONS = ["record", "p.jsonl", "--out", "x.parquet", "-k", 2, "--budget", 3]


def test_second_writer_of_a_recording_is_refused(tmp_path, monkeypatch):
    """It starts while the first is at its second sequence."""
    assert command(prompts(tmp_path / "whole", 3), *OPTIONS)[0] == 0
    folder, record, seen = prompts(tmp_path / "both", 3), real.record.recorder.record_sequence, []

    def while_recording(*arguments):
        seen.append(1)
        if len(seen) == 2:
            for other in (OPTIONS, [*OPTIONS, "--rule", "coupled"]):
                refused(folder, *other, words="in use by another process", progress=True)
        return record(*arguments)

    monkeypatch.setattr(real.record.recorder, "record_sequence", while_recording)
    assert command(folder, *OPTIONS)[0] == 0
    assert len(seen) == 3
    assert rows(folder / "x.parquet") == rows(tmp_path / "whole" / "x.parquet")
    assert command(folder, *OPTIONS)[0] == 0  # the claim ends with the recording


def test_failed_recording_gives_its_folder_back(tmp_path, monkeypatch):
    folder = prompts(tmp_path, 2)

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(real.record.recorder, "record_sequence", stopped)
        assert command(folder, *OPTIONS)[0] == 130
    assert command(folder, *OPTIONS)[0] == 0


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
