"""The commands that need models, as a newcomer uses and misuses them."""

import json

import pytest
from shell import command, refused

from real.demo import TRACES


def simspec(*arguments, cwd, code=0):
    """Runs the command line in this process, from the folder `cwd`; returns (stdout, stderr)."""
    left, out, error = command(cwd, *arguments)
    assert left == code, out + error
    return out, error


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Toy models trained through the command line, and prompts for them."""
    folder = tmp_path_factory.mktemp("lab")
    words = [
        "a", "drafter", "proposes", "and", "the", "target", "disposes", "of", "every", "token",
        "that", "it", "is", "shown",
    ]  # fmt: skip
    (folder / "text.txt").write_text(" ".join(words[i * i % len(words)] for i in range(4000)))
    rows = [
        {"id": f"p{i}", "task": "ab"[i % 2], "text": f"the target {words[i]}"} for i in range(6)
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out, _ = simspec(
        "train",
        "text.txt",
        "--toy",
        "--out",
        "models",
        "--heldout",
        "text.txt",
        "--json",
        cwd=folder,
    )
    card = json.loads(out)
    assert set(card["heldout_loss_nats"]) == {"target", "model", "early_exit"}
    assert card["steps"]["target"] == 4
    return folder


def test_one_drafter_is_trained_for_a_target_that_is_there(lab):
    few = "--toy", "--out", "models", "--json"
    out, error = simspec(
        "train",
        "eagle",
        "text.txt",
        *few,
        "--name",
        "token",
        "--set",
        "inputs=token",
        "--against",
        "eagle",
        cwd=lab,
    )
    card = json.loads(out)
    assert card["asked"]["settings"]["inputs"] == "token"
    assert card["steps"] == 4
    assert "evaluating token" in error
    assert {"value", "low", "high", "longer"} <= card["against"]["eagle"]["difference"].keys()
    assert json.loads((lab / "models" / "token" / "card.json").read_text()) == card
    out, _ = simspec(
        "train", "eagle", *few, "--name", "token", "--set", "inputs=token", cwd=lab
    )  # its tokens are known by now
    assert json.loads(out) == card
    out, error = simspec(
        "train",
        "glide",
        *few[:-1],
        "--name",
        "hard",
        "--hard",
        "--steps",
        6,
        "--rate",
        0.01,
        "--blend",
        1,
        cwd=lab,
    )
    assert "wrote models/hard" in out
    assert "longer than trigram by" in out
    assert "by depth" in out
    assert "6/6" in error
    said = json.loads((lab / "models" / "hard" / "card.json").read_text())["asked"]
    assert (said["soft"], said["plan"]["rate"], said["blend"]) == (False, 0.01, 1.0)
    out, _ = simspec("train", "self_skip", *few, "--name", "skips", "--set", "trials=3", cwd=lab)
    assert json.loads(out)["search"]["trials"] == 3
    out, _ = simspec(
        "record", "prompts.jsonl", "--models", "models", "--drafter", "eagle",
        "--weights", "models/token", "-k", 2, "--budget", 4,
        "--out", "token.parquet", "--json", cwd=lab,
    )  # fmt: skip
    assert json.loads(out)["texts"] == 6


def test_demo_prints_one_object_with_the_promised_keys(tmp_path):
    out, _ = simspec("demo", "--json", "--prompts", 3, cwd=tmp_path)
    shown = json.loads(out)
    assert isinstance(shown["replay_equal"], bool)
    assert shown["replay_equal"]
    assert isinstance(shown["lossless"], bool)
    assert shown["lossless"]
    assert isinstance(shown["rounds_compared"], int)
    assert shown["rounds_compared"] > 100
    assert shown["speedup_simulated"] > 0
    assert shown["speedup_measured"] > 0
    assert shown["best_policy"]
    assert shown["device"].startswith("cpu")
    assert (tmp_path / shown["plot"]).read_bytes().startswith(b"\x89PNG")


def test_record_measure_sweep_and_run_follow_one_another(lab):
    out, _ = simspec(
        "record", "prompts.jsonl", "--models", "models", "--drafter", "early_exit",
        "--rule", "coupled", "-k", 4, "--budget", 12,
        "--out", "t.parquet", "--json", cwd=lab,
    )  # fmt: skip
    card = json.loads(out)
    assert card["texts"] == 6
    assert card["K"] == 4
    assert 0 <= card["repeated_8grams"] <= 1
    assert json.loads((lab / "t.json").read_text()) == card
    out, _ = simspec(
        "measure",
        "--models",
        "models",
        "--drafter",
        "early_exit",
        "-k",
        4,
        "--seconds",
        0,
        "--out",
        "c.json",
        "--json",
        cwd=lab,
    )
    assert len(json.loads(out)["draft"]) == 5
    out, _ = simspec(
        "sweep",
        "t.parquet",
        "--cost",
        "c.json",
        "--policy",
        "fixed:2",
        "--policy",
        "oracle",
        "--json",
        cwd=lab,
    )
    assert {row["policy"] for row in json.loads(out)["rows"]} == {"fixed:2", "oracle"}
    for policy in ("beta_ts", "oracle"):
        out, _ = simspec(
            "run",
            "t.parquet",
            "--models",
            "models",
            "--policy",
            policy,
            "--cost",
            "c.json",
            "--json",
            cwd=lab,
        )
        shown = json.loads(out)
        assert shown["replay_equal"]
        assert shown["lossless"]
        assert shown["rounds_compared"] > 0
    out, _ = simspec("run", "t.parquet", "--models", "models", "--prompts", 1, "--text", cwd=lab)
    assert "--- p0" in out
    assert "0 failures" in out


def test_trees_are_recorded_priced_and_run(lab):
    few = "--models", "models", "--drafter", "early_exit"
    simspec(
        "record",
        "prompts.jsonl",
        *few,
        "-k",
        3,
        "--budget",
        10,
        "--tree",
        "3x2",
        "--out",
        "trees.parquet",
        cwd=lab,
    )
    out, _ = simspec(
        "measure",
        *few,
        "-k",
        3,
        "--seconds",
        0,
        "--rows",
        32,
        "--out",
        "trees.cost.json",
        "--json",
        cwd=lab,
    )
    assert len(json.loads(out)["verify"]) == 33
    for policy in ("static:2x1", "dynamic_tree:5", "cape:section", "optimal_tree:4", "beam:2,k=3"):
        out, _ = simspec(
            "run",
            "trees.parquet",
            "--models",
            "models",
            "--policy",
            policy,
            "--cost",
            "trees.cost.json",
            "--json",
            cwd=lab,
        )
        shown = json.loads(out)
        assert shown["replay_equal"], policy
        assert shown["lossless"], policy
        assert shown["committed_per_round"] >= 1, policy
    for policy, hint in {
        "tree_oracle": "tree_oracle is only replayed",
        "beam:2,k=9": "9 levels are too deep",
        "beam:two": "expected beam:width",
        "static:1x1x1x1": "4 levels are too deep, here drafts reach 3",
        "static:40": "too wide",
        "static:8x8": "over budget",
    }.items():
        _, error = simspec(
            "run", "trees.parquet", "--models", "models", "--policy", policy, cwd=lab, code=2
        )
        assert hint in error
        assert len(error.strip().splitlines()) == 1, error


@pytest.mark.parametrize("command", ["demo", "train", "record", "measure", "run"])
def test_help_teaches_with_an_example(command, tmp_path):
    out, _ = simspec(command, "--help", cwd=tmp_path)
    assert f"simspec {command}" in " ".join(out.split())
    assert "Example:" in out
    assert "--json" in out


@pytest.mark.parametrize(
    "arguments, hint",
    [
        (["train", "missing.txt", "--out", "x"], "missing.txt does not exist"),
        (["train", "text.txt", "--out", "x", "--steps", "5,few"], "--steps is '5,few'"),
        (["train", "eagel", "text.txt", "--out", "models"], "did you mean eagle?"),
        (["train", "prompt_lookup", "--out", "models"], "prompt_lookup has nothing to learn"),
        (
            ["train", "eagle", "text.txt", "--out", "x"],
            "make one first: simspec train TEXT --out x",
        ),
        (["train", "eagle", "--out", "models", "--work", "x"], "x holds no text.npy"),
        (
            ["train", "eagle", "--out", "models", "--set", "inpts=token"],
            "no setting 'inpts'; expected one of inputs,",
        ),
        (["train", "eagle", "--out", "models", "--set", "inputs"], "expected key=value"),
        (["train", "eagle", "--out", "models", "--name", "../x"], "--name is '../x'"),
        (
            ["train", "eagle", "--out", "models", "--steps", "1,2"],
            "expected a positive number such as 1800",
        ),
        (["train", "eagle", "--out", "models", "--rate", "-1"], "--rate is -1"),
        (
            ["train", "self_skip", "--out", "models", "--set", "rate=1"],
            "expected whole numbers for some of trials, seed, texts",
        ),
        (
            ["train", "text.txt", "--out", "x", "--set", "layers=2"],
            "--set, --rate, --name and --against are for one drafter",
        ),
        (["record", "missing.jsonl", "--out", "x.parquet"], "missing.jsonl cannot be read"),
        (
            ["record", "text.txt", "--out", "x.parquet", "--models", "models"],
            "expected a JSON object",
        ),
        (
            ["record", "prompts.jsonl", "--out", "x.parquet", "--drafter", "eagle9"],
            "'eagle9' is unknown",
        ),
        (["record", "prompts.jsonl", "--out", "x.parquet", "--rule", "beam"], "'beam' is unknown"),
        (["record", "prompts.jsonl", "--out", "x.parquet", "--tree", "4y6"], "--tree is '4y6'"),
        (
            ["record", "prompts.jsonl", "--out", "x.parquet", "-k", "4", "--tree", "4x6"],
            "levels from 1 to K, here 4",
        ),
        (
            [
                "record",
                "prompts.jsonl",
                "--out",
                "x.parquet",
                "--drafter",
                "prompt_lookup",
                "--tree",
                "4x6",
            ],
            "it grows no trees",
        ),
        (["measure", "--out", "c.json", "--rows", "4"], "tree nodes are 4; expected 0, or 16"),
        (
            ["run", str(TRACES / "tiny-glide-greedy.parquet"), "--policy", "dynamic_tree:8"],
            "records no order of dynamic trees",
        ),
        (["measure", "--out", "c.json", "--models", "nowhere"], "nowhere"),
        (["measure", "--out", "c.json", "--device", "cuda:7"], "no CUDA device"),
        (["run", "text.txt"], "text.txt"),
        (["run", str(TRACES / "tiny-model-greedy.parquet"), "--policy", "fixd:3"], "fixd"),
        (
            ["run", str(TRACES / "tiny-model-greedy.parquet"), "--models", "models"],
            "was recorded with target",
        ),
    ],
)
def test_mistakes_are_answered_in_one_line(lab, arguments, hint):
    out, error = simspec(*arguments, cwd=lab, code=2)
    assert out == ""
    assert hint in error
    assert "Traceback" not in error
    assert len(error.strip().splitlines()) == 1, error
    assert not (lab / "x.parquet").exists()


def test_drawn_recordings_from_the_command_line(lab):
    """Rejection recordings are swept and described; round-by-round commands fail in one line."""
    drawn = (
        "prompts.jsonl",
        "--models",
        "models",
        "--drafter",
        "model",
        "--rule",
        "rejection",
        "-k",
        3,
        "--budget",
        8,
    )
    out, _ = simspec(
        "record",
        *drawn,
        "--temperature",
        1,
        "--top-p",
        0.9,
        "--out",
        "drawn.parquet",
        "--json",
        cwd=lab,
    )
    assert json.loads(out)["rule"] == "rejection"
    assert json.loads(out)["mean_accepted_length"] > 0
    out, _ = simspec(
        "sweep",
        "drawn.parquet",
        "--cost",
        0.1,
        "--policy",
        "fixed:2",
        "--replicates",
        3,
        "--json",
        cwd=lab,
    )
    assert len(json.loads(out)["rows"]) == 3
    assert all(row["random"] for row in json.loads(out)["rows"])
    out, _ = simspec(
        "sweep", "drawn.parquet", "--cost", 0.1, "--json", cwd=lab
    )  # of the usual policies those that can be answered
    assert {"fixed:3", "hf_heuristic:5"} & {row["policy"] for row in json.loads(out)["rows"]}
    out, _ = simspec("show", "drawn.parquet", "--json", cwd=lab)
    assert (json.loads(out)["top_p"], json.loads(out)["recorded"]) == (0.9, ["ratio"])
    simspec("check", "drawn.parquet", "--json", cwd=lab)
    out, _ = simspec("drafters", "drawn.parquet", "--cost", 0.1, "--json", cwd=lab)
    assert json.loads(out)["drafters"][0]["rule"] == "rejection"
    assert json.loads(out)["drafters"][0]["speedup"]["value"] > 0
    price = (
        "--models",
        "models",
        "-k",
        2,
        "--repeats",
        1,
        "--rule",
        "rejection",
        "--temperature",
        1,
        "--top-k",
        5,
    )
    out, _ = simspec("measure", *price, "--seconds", 0, "--out", "drawn.cost.json", "--json", cwd=lab)
    assert json.loads(out)["name"] == "model-rejection"
    assert len(json.loads(out)["draft"]) == 3
    for words, *arguments in (
        (
            "replay in distribution, not one by one",
            "run",
            "drawn.parquet",
            "--models",
            "models",
            "--policy",
            "fixed:1",
        ),
        (
            "replays in distribution only",
            "sweep",
            "drawn.parquet",
            "--policy",
            "confidence:0.5",
            "--cost",
            0.1,
        ),
        ("nobody can know it", "sweep", "drawn.parquet", "--policy", "oracle", "--cost", 0.1),
        (
            "of the rejection rule",
            "sweep",
            "drawn.parquet",
            "--policy",
            "static:2x1",
            "--cost",
            0.1,
        ),
        ("temperature is -1.0", "record", *drawn, "--temperature", -1, "--out", "x.parquet"),
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
            "top_k and top_p change nothing",
            "measure",
            "--rule",
            "greedy",
            "--top-p",
            0.5,
            "--out",
            "x.json",
        ),
        ("6 prompts are too few", "score", "drawn.parquet", "--policy", "fixed:1", "--cost", 0.1),
        ("top_p is 0.0", "record", *drawn, "--top-p", 0, "--out", "x.parquet"),
        ("top_p is 1.5", "record", *drawn, "--top-p", 1.5, "--out", "x.parquet"),
        ("top_k is -1", "record", *drawn, "--top-k", -1, "--out", "x.parquet"),
        ("holds no tree order", "record", *drawn, "--tree", "2x2", "--out", "x.parquet"),
        (
            "expected WIDTHxLEVELS",
            "record",
            *drawn[:-6],
            "-k",
            3,
            "--tree",
            "2by2",
            "--out",
            "x.parquet",
        ),
        (
            "levels from 1 to K",
            "record",
            *drawn[:-6],
            "-k",
            3,
            "--tree",
            "2x9",
            "--out",
            "x.parquet",
        ),
    ):
        refused(lab, *arguments, words=words)
