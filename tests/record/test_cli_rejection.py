"""Recordings by rejection sampling, from the command line."""

import json

from shell import refused, simspec
from test_check import quick

from real.model.stored_weights import sha256
from simspec import CostModel

__all__ = ["quick"]


def test_rejection_recordings_from_the_command_line(model_folder, quick):
    """Rejection recordings are swept and described; what cannot replay them fails in one line."""
    drawn = (
        "prompts.jsonl", "--models", "models", "--drafter", "model", "--longest", 400, "--rule",
        "rejection", "-k", 3, "--budget", 8
    )  # fmt: skip
    out, _ = simspec(
        "record", *drawn, "--temperature", 1, "--top-p", 0.9, "--out", "drawn.parquet", "--json",
        cwd=model_folder
    )  # fmt: skip
    assert json.loads(out)["rule"] == "rejection"
    assert json.loads(out)["mean_accepted_length"] > 0
    assert json.loads(out)["drafter_sha256"] == sha256(model_folder / "models" / "model")
    out, _ = simspec(
        "sweep", "drawn.parquet", "--cost", 0.1, "--policy", "fixed:2", "--replicates", 3,
        "--json", cwd=model_folder
    )  # fmt: skip
    assert [row["policy"] for row in json.loads(out)["rows"]] == ["fixed:2"]
    out, _ = simspec(
        "sweep", "drawn.parquet", "--cost", 0.1, "--json", cwd=model_folder
    )  # of the usual policies those that can be answered
    assert {"fixed:3", "hf_heuristic:5"} & {row["policy"] for row in json.loads(out)["rows"]}
    out, _ = simspec("report", "--show", "drawn.parquet", "--json", cwd=model_folder)
    (shown,) = json.loads(out)["rows"]
    assert (shown["top_p"], shown["recorded"]) == (0.9, ["ratio"])
    simspec("check", "drawn.parquet", "--json", cwd=model_folder)
    drafters = ("sweep", "--report", "drafters", "drawn.parquet", "--cost", 0.1, "--json")
    out, _ = simspec(*drafters, cwd=model_folder)
    assert json.loads(out)["rows"][0]["rule"] == "rejection"
    assert json.loads(out)["rows"][0]["speedup"]["value"] > 0
    price = (
        "--models", "models", "-k", 2, "--seconds", 0, "--rule", "rejection", "--temperature", 1,
        "--top-k", 5
    )  # fmt: skip
    out, _ = simspec("measure", *price, "--out", "drawn.cost.json", "--json", cwd=model_folder)
    assert json.loads(out)["name"] == "model-rejection"
    assert len(json.loads(out)["draft"]) == 3
    for words, *arguments in (
        (
            "replays in distribution only", "sweep", "drawn.parquet", "--policy",
            "confidence:0.5", "--cost", 0.1,
        ),
        ("nobody can know it", "sweep", "drawn.parquet", "--policy", "oracle", "--cost", 0.1),
        (
            "of the rejection rule", "sweep", "drawn.parquet", "--policy", "static:2x1", "--cost",
            0.1,
        ),
        (
            "temperature is -1.0, expected",
            "record",
            *drawn,
            "--temperature",
            -1,
            "--out",
            "x.parquet",
        ),
        ("temperature 0.0", "record", *drawn, "--temperature", 0, "--out", "x.parquet"),
        ("temperature 0.0", "measure", "--rule", "coupled", "--temperature", 0, "--out", "x.json"),
        (
            "temperature is -0.5",
            "measure",
            "--rule",
            "rejection",
            "--temperature",
            -0.5,
            "--out",
            "x.json",
        ),
        (
            "top_k and top_p change nothing", "measure", "--rule", "greedy", "--top-p", 0.5,
            "--out", "x.json",
        ),
        ("6 prompts are too few", "sweep", "--report", "oracle", "drawn.parquet", "--cost", 0.1),
        ("top_p is 0.0", "record", *drawn, "--top-p", 0, "--out", "x.parquet"),
        ("top_p is 1.5", "record", *drawn, "--top-p", 1.5, "--out", "x.parquet"),
        ("--top-k is -1", "record", *drawn, "--top-k", -1, "--out", "x.parquet"),
        (
            "expected WIDTHxLEVELS", "record", *drawn[:-6], "-k", 3, "--tree", "2by2", "--out",
            "x.parquet",
        ),
        (
            "levels from 1 to K", "record", *drawn[:-6], "-k", 3, "--tree", "2x9", "--out",
            "x.parquet",
        ),
    ):  # fmt: skip
        refused(model_folder, *arguments, words=words)


def test_rejection_recordings_are_run_forced_scored_and_audited(model_folder):
    """Six prompts: too few for the comparison with the recording, prompt by prompt."""
    models = ("--models", "models")
    record = ("prompts.jsonl", *models, "--drafter", "model", "--longest", 400, "-k", 3)
    rule = ("--rule", "rejection", "--temperature", 1, "--budget", 16, "--out", "again.parquet")
    simspec("record", *record, *rule, cwd=model_folder)
    CostModel.from_ratio(0.2, 3).to_json(model_folder / "ratio.json")
    run = ("run", "again.parquet", *models, "--policy", "fixed:2", "--cost", "ratio.json")
    out, _ = simspec(*run, "--save", "run.jsonl", "--json", cwd=model_folder)
    report = json.loads(out)
    assert report["replay_equal"]
    assert report["rule"] == "rejection"
    assert list(report["tests"]["p_values"]) == ["rounds", "accepted lengths", "rounds by prompt"]
    assert report["tests"]["replays"] == 3000
    assert report["speedup_simulated"] > 0
    out, _ = simspec(*run, cwd=model_folder)
    assert "no alarm" in out
    out, _ = simspec("audit", "run.jsonl", *models, "--json", cwd=model_folder)
    assert json.loads(out)["clean"]
    assert json.loads(out)["sampling"]["p_bias"] is not None
    out, _ = simspec("audit", "again.parquet", *models, "--json", cwd=model_folder)
    assert json.loads(out)["clean"]
    force = ("run", "again.parquet", "--teacher-force", *models, "--policy", "beta_ts")
    out, _ = simspec(*force, "--json", cwd=model_folder)
    assert json.loads(out)["sound"]
    assert json.loads(out)["equal"] == json.loads(out)["rounds"] == json.loads(out)["replayed"]
    out, _ = simspec(*force, cwd=model_folder)
    assert "accept as the replay does (100.00%)" in out
    compare = (*run, "--compare", "--repeats", 1, "--rival", "none", "--json")
    out, _ = simspec(*compare, cwd=model_folder)
    plain, row = json.loads(out)["rows"]
    assert row["predicted"]["value"] > 0
    assert plain["equal"] is not None
    assert row["equal"] is None
    for words, *arguments in (
        ("replays in distribution only", *run[:-4], "--policy", "confidence:0.5"),
        ("nobody can know it", *run[:-4], "--policy", "oracle"),
        ("depends on earlier rounds", *run, "--drafter", "lookahead"),
        ("cannot equal a recording", "audit", "run.jsonl", *models, "--against", "again.parquet"),
    ):
        refused(model_folder, *arguments, words=words, progress=True)
