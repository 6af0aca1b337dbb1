"""Invalid input to the commands with engines: one line on stderr, exit 2, no file changed."""

import json
import shutil

import pytest
import torch
from shell import command, refused

from real.demo import TRACES
from real.model.captured_passes import CapturedPasses
from simspec import CostModel, load_trace

RACE = ["race", "t.parquet", "--rival", "none", "--repeats", 1]
SCORECARD = ["scorecard", "t.parquet", "--prompts", 1, "--repeats", 1, "--policy", "fixed:1"]


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
        "record",
        "p.jsonl",
        "--rule",
        "rejection",
        "-k",
        2,
        "--budget",
        4,
        "--out",
        "rejection.parquet",
    ]
    assert command(folder, *record)[0] == 0
    return folder


@pytest.mark.parametrize(
    "options, words",
    [
        (["--seed", -1], "seed is -1, expected 0 <= seed"),
        (["--out", "t.parquet"], "would overwrite t.parquet"),
        (["--plot", "t.parquet"], "would overwrite t.parquet"),
        (
            ["--contestant", "model=fixed:1", "--cost", "model=c.json", "--out", "c.json"],
            "would overwrite c.json",
        ),
        (
            ["--contestant", "model=fixed:1", "--cost", "model=c.json", "--plot", "c.json"],
            "would overwrite c.json",
        ),
        (["--out", "x", "--plot", "x"], "x would overwrite x"),
        (["--rival", "generate"], "rivals are none, generate; expected none alone"),
        (["--contestant", "model=fixed:99"], "policy 'fixed:99' drafts up to 99"),
        (["--contestant", "prompt_lookup=confidence:0.5"], "drafter 'prompt_lookup' has no logits"),
        (["--contestant", "prompt_lookup=static:2x1"], "drafter 'prompt_lookup' drafts chains"),
        (
            ["--contestant", "medusa=static:1x1x1x1x1"],
            "a tree of 5 levels is too deep for drafter 'medusa' that drafts 4 tokens",
        ),
    ],
)
def test_invalid_race_options_are_refused(recordings_folder, options, words):
    refused(recordings_folder, *RACE, *options, words=words)


def test_rival_none_runs_no_rival(recordings_folder):
    code, out, _ = command(
        recordings_folder,
        *RACE,
        "--rival",
        "none",
        "--prompts",
        1,
        "--contestant",
        "prompt_lookup=fixed:2",
        "--json",
    )
    rows = json.loads(out, parse_constant=lambda constant: pytest.fail(constant))["rows"]
    assert code == 0
    assert {row["contestant"] for row in rows} == {"plain", "prompt_lookup=fixed:2"}


@pytest.mark.parametrize(
    "arguments, words",
    [
        (
            ["teacher-force", "t.parquet", "--policy", "static:2x1"],
            "takes trees, as do simspec sweep and run",
        ),
        ([*SCORECARD, "--seed", -1], "seed is -1, expected 0 <= seed"),
        ([*SCORECARD, "--plot", "t.parquet"], "would overwrite t.parquet"),
        ([*SCORECARD, "--cost", "c.json", "--plot", "c.json"], "would overwrite c.json"),
        ([*SCORECARD, "--save", "c.json"], "holds no rows of a scorecard"),
        (
            ["record", "p.jsonl", "--out", "x.parquet", "--budget", 10**6, "--engine", "fast"],
            "leaves no room for a prompt in the models' context of 512",
        ),
        (
            [
                *("record", "p.jsonl", "--out", "x.parquet", "--engine", "strict"),
                *("--budget", 10**12, "--longest", 9),
            ],
            "--budget is 1000000000000, expected at most 1048576",
        ),
        (
            ["measure", "--out", "x.json", "-k", 1, "--context", 10**12, "--engine", "fast"],
            "--context is 1000000000000, expected at most",
        ),
    ],
)
def test_invalid_run_options_are_refused(recordings_folder, arguments, words):
    refused(recordings_folder, *arguments, words=words)


@pytest.mark.parametrize("name", ["record", "measure", "run", "teacher-force", "scorecard", "race"])
def test_unknown_engine_is_refused(recordings_folder, name):
    commands = {
        "record": ["record", "p.jsonl", "--out", "x.parquet"],
        "measure": ["measure", "--out", "x.json"],
        "run": ["run", "t.parquet", "--policy", "fixed:1", "--cost", "c.json"],
        "teacher-force": ["teacher-force", "t.parquet"],
        "scorecard": SCORECARD,
        "race": RACE,
    }
    refused(
        recordings_folder,
        *commands[name],
        "--engine",
        "quick",
        words="engine 'quick' is unknown; expected one of eager, fast, strict",
    )


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
