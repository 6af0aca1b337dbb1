"""Invalid input to the commands with engines: one line on stderr, exit 2, no file changed."""

import shutil

import pytest
import torch
from shell import command, refused

from real.model.captured_passes import CapturedPasses
from simspec import CostModel, load_trace
from simspec.trace.recordings import CHECKOUT as TRACES

COMPARE = ["run", "t.parquet", "--compare", "--cost", "c.json", "--rival", "none"]


@pytest.fixture(scope="module")
def recordings_folder(tmp_path_factory):
    """Recordings of several drafters, one by rejection, costs, a config; tests change no file."""
    folder = tmp_path_factory.mktemp("lab")
    for drafter in ("model", "medusa", "prompt_lookup"):
        load_trace(TRACES / f"tiny-{drafter}-greedy.parquet").select([0, 1]).save(
            folder / f"{drafter}.parquet"
        )
    shutil.copy(folder / "model.parquet", folder / "t.parquet")
    CostModel.from_ratio(0.3, 16).to_json(folder / "c.json")
    (folder / "p.jsonl").write_text('{"task": "t", "text": "some words"}\n')
    record = [
        "record", "p.jsonl", "--rule", "rejection", "-k", 2, "--budget", 4, "--out",
        "rejection.parquet",
    ]  # fmt: skip
    assert command(folder, *record)[0] == 0
    return folder


@pytest.mark.parametrize(
    "arguments, words",
    [
        (
            ["run", "t.parquet", "--teacher-force", "--policy", "static:2x1"],
            "takes trees, as do simspec sweep and run",
        ),
        ([*COMPARE, "--save", "t.parquet"], "would overwrite t.parquet"),
        ([*COMPARE, "--rival", "generate"], "--rival is none, generate; expected none alone"),
        ([*COMPARE, "--teacher-force"], "two kinds of run"),
        ([*COMPARE, "--policy", "oracle"], "no replay to predict its run by"),
        ([*COMPARE, "--policy", "fixed:99"], "policy 'fixed:99' drafts up to 99"),
        ([*COMPARE[:-1], "generat"], "rival 'generat' is unknown"),
        (["run", "t.parquet", "--policy", "fixed:1", "--policy", "fixed:2"], "2 policies given"),
        (
            ["record", "p.jsonl", "--out", "x.parquet", "--budget", 10**6, "--engine", "fast"],
            "leaves no room for a prompt in the models' context of 512",
        ),
    ],
)
def test_invalid_run_options_are_refused(recordings_folder, arguments, words):
    refused(recordings_folder, *arguments, words=words)


@pytest.mark.parametrize("name", ["record", "measure", "run", "force", "compare"])
def test_unknown_engine_is_refused(recordings_folder, name):
    commands = {
        "record": ["record", "p.jsonl", "--out", "x.parquet"],
        "measure": ["measure", "--out", "x.json"],
        "run": ["run", "t.parquet", "--policy", "fixed:1", "--cost", "c.json"],
        "force": ["run", "t.parquet", "--teacher-force"],
        "compare": COMPARE,
    }
    refused(
        recordings_folder, *commands[name], "--engine", "quick",
        words="engine 'quick' is unknown; expected one of eager, fast, strict"
    )  # fmt: skip


def test_out_of_memory_is_reported_and_other_errors_raised():
    class Odd:
        device = "cpu"

        def cache(self, layers, capacity):
            raise self.error

    odd = Odd()
    for odd.error in (
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("can't allocate memory"),
        MemoryError(),
    ):
        with pytest.raises(
            ValueError,
            match="caches of 64 rows do not fit cpu; use shorter sequences, or the eager engine",
        ):
            CapturedPasses((1,), 64).cache("a", odd, 1, 1)
    odd.error = TypeError("another error")
    with pytest.raises(TypeError, match="another error"):
        CapturedPasses((1,), 64).cache("a", odd, 1, 1)
