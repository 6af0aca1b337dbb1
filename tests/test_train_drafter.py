"""Training of one drafter: weights, card, resumption and evaluation."""

import json
from dataclasses import replace

import pytest
import torch
from toy_lm import VOCAB, toy_target, toy_texts
from toy_training import PLAN, drafter_data

from real.model.config import DecoderConfig
from real.train.accepted_length import accepted_lengths, compare, summary
from real.train.config import drafter_training, new_head, recipe_of
from real.train.drafter_card import card_lines, compare_with, evaluate_drafter, loaded_parameters
from real.train.drafter_data import K
from real.train.train_drafter import train_drafter
from real.train.trigram import TrigramDrafter, count_trigrams

pytestmark = pytest.mark.usefixtures("bare_axes")


def test_loaded_parameters_count_used_target_modules():
    """Early exit loads the first layers and the head, or the whole target for soft labels (EESD,
    Table 6)."""
    target, token = toy_target(), toy_texts()[:2]

    def size(*modules):
        return sum({id(p): p.numel() for m in modules for p in m.parameters()}.values())

    def held(name, soft):
        part = new_head(drafter_training(name, PLAN), target)
        return loaded_parameters(
            part, target, lambda: recipe_of(name).loss(part, target, token, soft, torch.Generator())
        ), part

    count, part = held("model", False)
    assert count == size(part)
    count, part = held("model", True)
    assert count == size(part, target)
    count, part = held("early_exit", False)
    assert count == size(part, target.embed, target.layers[0], target.head) < size(part, target)
    for name, soft in (
        ("early_exit", True),
        ("eagle", True),
        ("eagle", False),
        ("medusa", True),
        ("hydra", False),
    ):
        count, part = held(name, soft)
        assert count == size(part, target), name


@pytest.mark.parametrize("name", ["early_exit", "eagle", "medusa", "hydra", "glide"])
def test_training_saves_a_drafter_and_a_reproducible_card(tmp_path, name):
    data, training = drafter_data(), drafter_training(name, PLAN)
    card = train_drafter(training, data, tmp_path / "out", tmp_path / "work")
    folder = tmp_path / "out" / name
    assert json.loads((folder / "card.json").read_text()) == card
    assert card_lines(card)
    assert card["steps"] == 6
    assert card["tokens"] == 6 * 4 * 15
    assert card["parameters"]["trained"] < card["parameters"]["loaded"]
    assert card["seconds_per_batch"] > 0
    assert card["validation"]["step"] in range(1, 7)
    lengths = evaluate_drafter(name, folder, data)
    assert card["evaluation"]["trained"] == json.loads(
        json.dumps(summary(lengths) | {"by_sequence": lengths.by_sequence()})
    )
    assert card["evaluation"]["texts"] == 12
    untrained = accepted_lengths(
        data.target,
        recipe_of(name).drafter(data.target, new_head(training, data.target)),
        data.evaluation,
        lengths.K,
    )
    assert (
        lengths.K == card["evaluation"]["K"] == (4 if name in ("medusa", "hydra") else K)
    )  # what it never offers is not held against it
    assert card["evaluation"]["beats_untrained"] == compare(lengths, untrained)
    windows = [data.batches(PLAN)(step).numpy() for step in range(6)]
    trigram = accepted_lengths(
        data.target, TrigramDrafter(count_trigrams(windows, VOCAB)), data.evaluation, lengths.K
    )
    assert card["evaluation"]["beats_trigram"] == compare(lengths, trigram)

    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert train_drafter(training, data, tmp_path / "out", tmp_path / "work") == card
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}


def test_other_settings_need_another_folder(tmp_path):
    data, places = drafter_data(), (tmp_path / "out", tmp_path / "work")
    train_drafter(drafter_training("eagle", PLAN), data, *places)
    for other, says in (
        (
            drafter_training("eagle", PLAN, settings={"inputs": "token"}),
            "made with settings inputs 'feature&shifted_token', now 'token'",
        ),
        (
            drafter_training("eagle", PLAN, settings={"noise": 0.0}),
            "made with loss noise None, now 0.0",
        ),
        (drafter_training("eagle", PLAN, soft=False), "made with soft True, now False"),
        (drafter_training("eagle", replace(PLAN, steps=7)), "made with plan steps 6, now 7"),
        (
            drafter_training("medusa", PLAN, folder="eagle"),
            "made with drafter 'eagle', now 'medusa'",
        ),
    ):
        with pytest.raises(ValueError, match=says) as caught:
            train_drafter(other, data, *places)
        assert "\n" not in str(caught.value)
        assert "--name" in str(caught.value)
    (places[0] / "eagle" / "card.json").unlink()
    (places[0] / "eagle" / "eagle.safetensors").unlink()
    with pytest.raises(
        ValueError, match="work.*made with soft True"
    ):  # a checkpoint of another lesson is not continued
        train_drafter(drafter_training("eagle", PLAN, soft=False), data, *places)
    train_drafter(
        drafter_training("eagle", PLAN, settings={"inputs": "token"}, folder="token"), data, *places
    )
    (places[1] / "eagle" / "asked.json").write_text("[[")
    with pytest.raises(ValueError, match="asked.json is damaged"):
        train_drafter(drafter_training("eagle", PLAN), data, *places)
    (places[1] / "eagle" / "asked.json").unlink()
    train_drafter(drafter_training("eagle", PLAN), data, *places)
    card = compare_with(places[0] / "token" / "card.json", data, places[0], "eagle")
    mine, theirs = (
        evaluate_drafter("eagle", places[0] / name, data) for name in ("token", "eagle")
    )
    assert card["against"]["eagle"]["difference"] == compare(mine, theirs)
    assert any("longer than eagle by" in line for line in card_lines(card))
    assert json.loads((places[0] / "token" / "card.json").read_text()) == json.loads(
        json.dumps(card)
    )
    for other, says in (
        ("token", "compared with itself"),
        ("nothing", "holds no drafter that is known"),
    ):
        with pytest.raises(ValueError, match=says):
            compare_with(places[0] / "token" / "card.json", data, places[0], other)


def test_weights_without_a_card_are_evaluated_not_trained(tmp_path):
    data, places = drafter_data(), (tmp_path / "out", tmp_path / "work")
    first = train_drafter(drafter_training("early_exit", PLAN), data, *places)
    (places[0] / "early_exit" / "card.json").unlink()
    held = (places[0] / "early_exit" / "exit.safetensors").read_bytes()
    again = train_drafter(
        drafter_training("early_exit", replace(PLAN, seed=5)),
        data,
        places[0],
        tmp_path / "elsewhere",
    )
    assert (places[0] / "early_exit" / "exit.safetensors").read_bytes() == held
    assert again["evaluation"]["trained"] == first["evaluation"]["trained"]
    assert again["steps"] == 0
    assert again["seconds_per_batch"] is None


@pytest.mark.parametrize(
    "name, half",
    [("eagle", "eagle.json"), ("eagle", "eagle.safetensors"), ("model", "config.json")],
)
def test_incomplete_saves_are_repeated(tmp_path, name, half):
    data, places = drafter_data(), (tmp_path / "out", tmp_path / "work")
    sizes = dict(width=8, layers=1, heads=1, head_dim=8, hidden=12) if name == "model" else {}
    first = train_drafter(drafter_training(name, PLAN, settings=sizes), data, *places)
    whole = {p.name: p.read_bytes() for p in (places[0] / name).iterdir() if p.name != "card.json"}
    for gone in ("card.json", half):
        (places[0] / name / gone).unlink()
    again = train_drafter(drafter_training(name, PLAN, settings=sizes), data, *places)
    assert {
        p.name: p.read_bytes() for p in (places[0] / name).iterdir() if p.name != "card.json"
    } == whole
    assert again["evaluation"] == first["evaluation"]
    assert again["steps"] == first["steps"]


@pytest.mark.parametrize("name", ["early_exit", "eagle"])
def test_best_validated_weights_are_saved(tmp_path, name):
    data = drafter_data()
    plan = replace(PLAN, steps=60, rows=16, length=19)
    card = train_drafter(
        drafter_training(name, plan, rate=0.02), data, tmp_path / "out", tmp_path / "work"
    )
    log = json.loads((tmp_path / "work" / f"{name}.json").read_text())
    scores = {row["step"]: row["valid"]["score"] for row in log if "valid" in row}
    assert len(scores) == 10
    assert card["validation"]["score"] == max(scores.values()) >= scores[60]
    assert card["learning_curve"] == [[step, score] for step, score in scores.items()]
    assert card["validation"]["step"] == min(
        s for s, v in scores.items() if v == max(scores.values())
    )
    if name == "eagle":
        assert card["evaluation"]["beats_untrained"]["longer"]
        assert log[-1]["loss"] < log[0]["loss"]


def test_small_model_has_the_given_sizes(tmp_path):
    sizes = dict(width=8, layers=1, heads=2, kv_heads=1, head_dim=4, hidden=12)
    head = new_head(drafter_training("model", PLAN, settings=sizes), toy_target())
    assert head.settings == sizes
    assert head.config == DecoderConfig(VOCAB, **sizes)
    for odd in ({"layers": 0}, {"head_dim": 3}):
        with pytest.raises(ValueError, match="sizes are"):
            new_head(drafter_training("model", PLAN, settings=odd), toy_target())
