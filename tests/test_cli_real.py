"""The commands that need models, in the order in which a new user calls them."""

import json

import pytest
from shell import simspec

pytestmark = pytest.mark.usefixtures("few_replicates", "any_seconds")


def test_record_measure_sweep_and_run_work_in_sequence(model_folder):
    out, _ = simspec(
        "record", "prompts.jsonl", "--models", "models", "--drafter", "early_exit",
        "--rule", "coupled", "-k", 4, "--budget", 12, "--longest", 400,
        "--out", "t.parquet", "--json", cwd=model_folder,
    )  # fmt: skip
    card = json.loads(out)
    assert card["texts"] == 6
    assert card["K"] == 4
    assert 0 <= card["repeated_8grams"] <= 1
    assert json.loads((model_folder / "t.json").read_text()) == card
    simspec(
        "measure", "--models", "models", "--drafter", "early_exit", "-k", 4, "--seconds", 0,
        "--out", "c.json", cwd=model_folder
    )  # fmt: skip
    assert len(json.loads((model_folder / "c.json").read_text())["draft"]) == 5
    out, _ = simspec(
        "sweep", "t.parquet", "--cost", "c.json", "--policy", "fixed:2", "--policy", "oracle",
        "--json", cwd=model_folder
    )  # fmt: skip
    assert {row["policy"] for row in json.loads(out)["rows"]} == {"fixed:2", "oracle"}
    for policy in ("beta_ts", "oracle"):
        out, _ = simspec(
            "run", "t.parquet", "--models", "models", "--policy", policy, "--cost", "c.json",
            "--json", cwd=model_folder
        )  # fmt: skip
        shown = json.loads(out)
        assert shown["replay_equal"]
        assert shown["lossless"]
        assert shown["rounds_compared"] > 0
    compare = ("run", "t.parquet", "--compare", "--models", "models", "--cost", "c.json")
    compare += ("--prompts", 2, "--repeats", 1, "--policy", "fixed:2", "--save", "s.json")
    first = json.loads(simspec(*compare, "--json", cwd=model_folder)[0])
    rows = {row["contestant"]: row for row in first["rows"]}
    assert rows.keys() == {"plain", "fixed:2", "generate"}
    equal = {name: row["equal"] for name, row in rows.items()}
    assert equal == {"plain": 2, "fixed:2": 2, "generate": None}  # which draws its own tokens
    assert rows["fixed:2"]["replayed"] == rows["fixed:2"]["tokens/round"]
    assert simspec(*compare, "--json", cwd=model_folder)[0] == json.dumps(first) + "\n"
    out, _ = simspec(*compare, "--plot", "p.png", cwd=model_folder)
    assert "no measurement, not to be published: 1 repeats" in out
    assert (model_folder / "p.png").read_bytes().startswith(b"\x89PNG")


def test_trees_are_recorded_priced_and_run(model_folder):
    options = "--models", "models", "--drafter", "early_exit"
    simspec(
        "record", "prompts.jsonl", *options, "-k", 3, "--budget", 10, "--longest", 400, "--tree",
        "3x2", "--out", "trees.parquet", cwd=model_folder
    )  # fmt: skip
    simspec(
        "measure", *options, "-k", 3, "--seconds", 0, "--rows", 24, "--out", "trees.cost.json",
        cwd=model_folder
    )  # fmt: skip
    assert len(json.loads((model_folder / "trees.cost.json").read_text())["verify"]) == 25
    for policy in ("static:2x1", "dynamic_tree:5", "cape:section", "optimal_tree:4"):
        out, _ = simspec(
            "run", "trees.parquet", "--models", "models", "--policy", policy, "--cost",
            "trees.cost.json", "--json", cwd=model_folder
        )  # fmt: skip
        shown = json.loads(out)
        assert shown["replay_equal"], policy
        assert shown["lossless"], policy
        assert shown["committed_per_round"] >= 1, policy
    for policy, hint in {
        "tree_oracle": "tree_oracle is only replayed",
        "static:1x1x1x1": "4 levels are too deep, here drafts reach 3",
        "static:40": "too wide",
        "static:8x8": "over budget",
    }.items():
        _, error = simspec(
            "run", "trees.parquet", "--models", "models", "--policy", policy, cwd=model_folder,
            code=2
        )  # fmt: skip
        assert hint in error
        assert len(error.strip().splitlines()) == 1, error


@pytest.mark.parametrize("command", ["demo", "train", "record", "measure", "run"])
def test_help_teaches_with_an_example(command, tmp_path):
    out, _ = simspec(command, "--help", cwd=tmp_path)
    assert f"simspec {command}" in " ".join(out.split())
    assert "Example:" in out
    assert "--json" in out or command == "measure"  # whose file is JSON
