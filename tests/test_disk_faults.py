"""Disks that fill and folders that cannot be written: one line, nothing lost, and it goes on."""

import os

import pytest
from forked_jobs import prompts, rows
from inputs import RECORD_COMMAND
from safetensors import SafetensorError
from shell import refused
from toy_models import TRAIN, begin_training

import real.files
from simspec.output.files import replacing, write_csv

ARGUMENTS = ["record", "p.jsonl", "--out", "x.parquet", "-k", 2, "--budget", 2]


@pytest.fixture(scope="module")
def whole(server, tmp_path_factory):
    """(an undisturbed recording, its file operations)"""
    folder = prompts(tmp_path_factory.mktemp("whole"), 2)
    code, operations = server(folder, ARGUMENTS)
    assert code == 0
    return rows(folder / "x.parquet"), operations


def failed_in_one_line(server, code):
    assert code == 2, server.error
    assert "Traceback" not in server.error
    assert server.error.count("simspec: ") == 1
    assert server.error.splitlines()[-1].startswith("simspec: ")
    return server.error.splitlines()[-1]


@pytest.mark.parametrize("most_bytes, share", [
    (0, None), (300, None), (1500, None), (None, 0.0), (None, 0.4), (None, 0.8),
])  # fmt: skip
def test_recording_goes_on_after_a_full_disk_or_a_read_only_folder(
    server, tmp_path, whole, most_bytes, share
):
    """No file may be larger, settings and shards are; or the folder is read-only from a moment."""
    folder = prompts(tmp_path, 2)
    fault = {"most_bytes": most_bytes} if share is None else {"seal_at": 1 + int(share * whole[1])}
    line = failed_in_one_line(server, server(folder, ARGUMENTS, **fault)[0])
    if share is None:
        assert "free some space, and give the same command again" in line
        assert ".parts/" in line
        assert not (folder / "x.parquet").exists()
        assert not list(folder.rglob(".*.part"))
    else:
        assert "Read-only file system" in line
        assert not (folder / "x.parquet").exists() or rows(folder / "x.parquet") == whole[0]
    assert server(folder, ARGUMENTS)[0] == 0
    assert rows(folder / "x.parquet") == whole[0]


def test_disk_that_fills_before_the_last_file_loses_no_shard(server, tmp_path, whole):
    """Shards of one sequence fit, the whole recording does not."""

    def shards(folder):
        parts = folder / "x.parquet.parts"
        return {path.name: path.read_bytes() for path in parts.glob("0*.parquet")}

    for operation in range(whole[1] - 12, 0, -1):  # killed before the last file is written
        folder = prompts(tmp_path / str(operation), 2)
        server(folder, ARGUMENTS, die_at=operation)
        if not (folder / "x.parquet").exists():
            break
    held = shards(folder)
    assert len(held) == 2
    largest = max(map(len, held.values()))
    failed_in_one_line(server, server(folder, ARGUMENTS, most_bytes=largest + 1)[0])
    assert shards(folder) == held
    assert server(folder, ARGUMENTS)[0] == 0
    assert rows(folder / "x.parquet") == whole[0]


@pytest.mark.parametrize("most_bytes", [2_000, 20_000])
def test_training_on_a_full_disk_is_one_line(server, tmp_path, most_bytes):
    """The prompts do not fit, or the checkpoint does not."""
    begin_training(tmp_path)
    arguments = [*TRAIN, "--steps", "4"]
    failed_in_one_line(server, server(tmp_path, arguments, most_bytes=most_bytes)[0])
    assert not list(tmp_path.rglob(".*.part"))
    assert not (tmp_path / "m" / "early_exit" / "card.json").exists()
    assert server(tmp_path, arguments)[0] == 0
    assert (tmp_path / "m" / "early_exit" / "card.json").exists()


def test_libraries_that_name_no_file_are_told_apart(tmp_path):
    for path, fail, words in (
        (tmp_path / "a", OSError(28, "No space left on device"), "No space left on device: '.*a'"),
        (tmp_path / "b", OSError("10 requested and 3 written"), "requested and 3 written: '.*b'"),
        (tmp_path / "c", SafetensorError("I/O error:\nfull"), "I/O error: full: '.*c'"),
    ):
        with pytest.raises(OSError, match=words), real.files.replacing(path) as temporary:
            temporary.write_text("half")
            raise fail
        assert not list(tmp_path.iterdir())


def test_two_processes_that_write_one_file_leave_one_of_them(tmp_path, monkeypatch):
    """Each has a temporary file of its own; the last one to finish remains."""
    path = tmp_path / "a.json"
    with replacing(path) as first:
        first.write_text("first")
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with replacing(path) as second:
            assert second != first
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


READ_ONLY = [
    ("sweep", "t.parquet", "--out", "o.csv"),
    (*RECORD_COMMAND[:2], "--out", "x.parquet"),
    ("measure", "--out", "c.json"),
    ("import", "vllm-requests", "p.jsonl", "--out", "o.json"),
    ("run", "t.parquet", "--policy", "fixed:1", "--save", "o.jsonl"),
]


@pytest.mark.parametrize("arguments", READ_ONLY, ids=lambda a: f"{a[0]} {a[-2]}")
def test_read_only_folder_is_refused_before_the_work(input_folder, monkeypatch, arguments):
    """Injected: the superuser may write everywhere."""
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode, **_: not mode & os.W_OK and access(path, mode)
    )
    refused(input_folder, *arguments, words="its folder is read-only: name another")


def test_failed_csv_names_its_file(tmp_path, monkeypatch):
    import pandas

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pandas.DataFrame, "to_csv", full)
    with pytest.raises(OSError, match="No space left on device: '.*o.csv'"):
        write_csv(pandas.DataFrame({"a": [1]}), tmp_path / "o.csv")
