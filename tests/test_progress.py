"""One progress callback for all jobs."""

import inspect
from importlib import import_module

import pytest

from real.commands.options import show_progress
from real.progress import Progress, quiet, relabel

JOBS = (
    "audit.forced_decoding.decode_forced", "audit.auditor.audit", "contest.contest",
    "record.recorder.record_to",
    "audit.forced_decoding.decode_forced_sampled", "rerun.run_sampled",
    "rerun.run_on", "measure.price.measure", "measure.price.measure_several",
    "rerun.rerun", "record.recorder.record_all",
    "train.train.train_drafter", "train.skip_search.find",
    "train.train.train_weights", "train.loop.fit",
)  # fmt: skip


@pytest.mark.parametrize("job", JOBS)
def test_jobs_are_quiet_by_default(job):
    module, _, name = job.rpartition(".")
    parameter = inspect.signature(getattr(import_module(f"real.{module}"), name)).parameters
    assert parameter["progress"].default is quiet
    assert parameter["progress"].annotation is Progress


def test_relabel_keeps_counts_and_note():
    reported = []

    def progress(label, done, total, note=""):
        reported.append((label, done, total, note))

    relabel(progress, "running a")("running", 1, 2, "note")
    relabel(progress, "running a")("running", 2, 2)
    assert reported == [("running a", 1, 2, "note"), ("running a", 2, 2, "")]


def test_quiet_takes_what_every_job_reports():
    assert quiet("job", 1, 2, "note") is None


def test_a_finished_label_is_reported_once_without_a_terminal(capsys):
    with show_progress() as progress:
        for done in (1, 2, 2, 1, 2):
            progress("recording", done, 2)
    assert capsys.readouterr().err.splitlines() == ["recording: 2/2", "recording: 2/2"]


def test_long_work_says_a_line_a_minute_without_a_terminal(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr("real.commands.options.time.monotonic", lambda: now)
    with show_progress() as progress:
        for done in range(1, 8):
            now += 25
            progress("training", done, 8, f"loss {done}")
        now += 25
        progress("training", 8, 8)
    lines = ["training: 3/8 loss 3, 2 min left", "training: 6/8 loss 6, under a minute left"]
    lines.append("training: 8/8")
    assert capsys.readouterr().err.splitlines() == lines


def test_escape_sequences_in_labels_and_notes_are_no_commands(capsys):
    with show_progress() as progress:
        progress("a\x1b[2J", 1, 1, "b\x1b]0;c\x07")
    assert capsys.readouterr().err == "a\\x1b[2J: 1/1 b\\x1b]0;c\\x07\n"
