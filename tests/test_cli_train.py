"""Training one drafter for an existing target, from the command line."""

import json

from shell import simspec


def test_one_drafter_is_trained_for_an_existing_target(trained_folder, bare_axes):
    options = "--toy", "--out", "models", "--json"
    out, error = simspec(
        "train",
        "eagle",
        "text.txt",
        *options,
        "--name",
        "token",
        "--set",
        "inputs=token",
        "--against",
        "eagle",
        cwd=trained_folder,
    )
    card = json.loads(out)
    assert card["asked"]["settings"]["inputs"] == "token"
    assert card["steps"] == 4
    assert "evaluating token" in error
    assert {"value", "low", "high", "longer"} <= card["against"]["eagle"]["difference"].keys()
    assert json.loads((trained_folder / "models" / "token" / "card.json").read_text()) == card
    out, _ = simspec(
        "train", "eagle", *options, "--name", "token", "--set", "inputs=token", cwd=trained_folder
    )  # its tokens are known by now
    assert json.loads(out) == card
    out, error = simspec(
        "train",
        "glide",
        *options[:-1],
        "--name",
        "hard",
        "--hard",
        "--steps",
        6,
        "--rate",
        0.01,
        "--blend",
        1,
        cwd=trained_folder,
    )
    assert "wrote models/hard" in out
    assert "longer than trigram by" in out
    assert "by depth" in out
    assert "6/6" in error
    request = json.loads((trained_folder / "models" / "hard" / "card.json").read_text())["asked"]
    assert (request["soft"], request["plan"]["rate"], request["blend"]) == (False, 0.01, 1.0)
    out, _ = simspec(
        "train", "self_skip", *options, "--name", "skips", "--set", "trials=3", cwd=trained_folder
    )
    assert json.loads(out)["search"]["trials"] == 3
    out, _ = simspec(
        "record", "prompts.jsonl", "--models", "models", "--drafter", "eagle",
        "--weights", "models/token", "-k", 2, "--budget", 4, "--longest", 400,
        "--out", "token.parquet", "--json", cwd=trained_folder,
    )  # fmt: skip
    assert json.loads(out)["texts"] == 6
