"""Training of one drafter: settings and recipes, weights, card, resumption and evaluation."""

import json
from pathlib import Path

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from toy_lm import VOCAB, toy_target, toy_texts
from toy_training import LENGTH, asked, drafter_data

from real.drafters import BUILTIN, trainable
from real.model.decoder import DecoderConfig
from real.provenance import multiplies_bfloat16
from real.train.evaluation import accepted_lengths, card_lines, compare, evaluate_drafter, summary
from real.train.loop import TrainSchedule, fit, optimizers
from real.train.settings import Training, check_drafter
from real.train.train import (
    loaded_parameters,
    new_head,
    paper_of,
    recipe_of,
    schedule_of,
    settings_of,
    train_weights,
)

pytestmark = pytest.mark.usefixtures("bare_axes")
HERE = Path("nowhere")
SIZES = dict(width=8, layers=1, heads=1, head_dim=8, hidden=12)
DRAFTERS = ["early_exit", "eagle", "medusa", "hydra", "glide"]


def test_every_trainable_drafter_has_default_settings():
    assert set(trainable()) >= {
        "model",
        "early_exit",
        "eagle",
        "medusa",
        "hydra",
        "glide",
        "sorted",
    }
    for name in trainable():
        part, again = (new_head(asked(name, HERE), toy_target()) for _ in range(2))
        assert json.loads(json.dumps(part.settings)) == part.settings
        assert all(p.requires_grad for p in part.parameters())
        pairs = zip(part.state_dict().values(), again.state_dict().values())
        assert all(torch.equal(a, b) for a, b in pairs)


def test_settings_are_parsed_from_text():
    words = ("inputs=token", "layers=2", "cross=false", "reads=[8, 9]", "noise=0.5", "name=a=b")
    assert Training("eagle", HERE, settings=words).chosen == {
        "inputs": "token",
        "layers": 2,
        "cross": False,
        "reads": [8, 9],
        "noise": 0.5,
        "name": "a=b",
    }


@pytest.mark.parametrize(
    "given, words",
    [
        ({"settings": ("layers",)}, "is no setting; expected key=value"),
        ({"settings": ("=2",)}, "is no setting; expected key=value"),
        ({"settings": ("a=1", "a=2")}, "is no setting; expected key=value"),
        ({"name": "a/b"}, "--name is 'a/b'"),
        ({"name": ".."}, "--name is '..'"),
        ({"name": "target"}, "--name is 'target'"),
        ({"rate": 1.5}, "--rate is 1.5"),
        ({"rows": 0}, "--rows is 0"),
        ({"steps": -1}, "--steps is -1"),
        ({"minutes": float("nan")}, "--minutes is nan"),
        ({"distil_tokens": 10**30}, "--distil-tokens is 1000000000000000000000000000000"),
        ({"threads": -1}, "--threads is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"recipe": "theirs"}, "--recipe is 'theirs', expected one of ours, paper"),
        ({"dtype": "int8"}, "--dtype is 'int8', expected one of float32"),
        ({"steps": 0}, "name it by --from"),
        ({"start": "none"}, "--from names nowhere/none, which does not exist"),
        ({"learn_text": 5}, "--learn-text takes text to learn, and --prompts to continue"),
        ({"prompts": (Path("no.jsonl"),)}, "no.jsonl does not exist"),
        ({"work": Path(__file__)}, "is a file, expected a folder"),
    ],
)
def test_settings_that_cannot_be_are_refused(given, words):
    with pytest.raises(ValueError) as error:
        Training("eagle", HERE, **given)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name, chosen, words",
    [
        ("eagle", {"inpts": "token"}, "no setting 'inpts'; expected one of inputs, layers"),
        ("eagle", {"target": 1}, "no setting 'target'"),
        ("eagle", {"generator": 1}, "no setting 'generator'"),
        ("eagle", {"soft": 1}, "soft is 1, expected true or false"),
        ("early_exit", {"depth": "deep"}, "early_exit cannot be made with"),
        ("model", {"layers": 0}, "sizes are"),
        ("model", {"head_dim": 3}, "sizes are"),
    ],
)
def test_settings_of_a_drafter_are_checked(name, chosen, words):
    with pytest.raises(ValueError, match=words):
        new_head(asked(name, HERE, chosen), toy_target())


def test_drafters_without_weights_and_unknown_ones_are_refused():
    known = trainable(), tuple(BUILTIN)
    for name in (*trainable(), "self_skip", "predictors"):
        check_drafter(name, *known)
    for name, words in (("hidra", "did you mean hydra"), ("suffix", "has nothing to learn")):
        with pytest.raises(ValueError, match=words):
            check_drafter(name, *known)


def test_loss_settings_are_separate_from_head_settings():
    head, loss, soft = settings_of(asked("eagle", HERE, {"layers": 2, "noise": 0.0}))
    assert (head, loss, soft) == ({"layers": 2}, {"weight": 1, "noise": 0.0}, True)
    assert settings_of(asked("eagle", HERE, {"soft": False}))[2] is False


def test_a_recipes_rate_falls_with_the_width_and_a_given_one_stays():
    recipe = BUILTIN["eagle"].recipe.rate
    for width, rate in ((16, recipe), (160, recipe), (640, recipe / 4)):
        assert schedule_of(asked("eagle", HERE), width, LENGTH).rate == rate
        assert schedule_of(asked("eagle", HERE, rate=8e-3), width, LENGTH).rate == 8e-3
    own = asked("model", HERE, {"width": 320})
    assert schedule_of(own, 640, LENGTH).rate == BUILTIN["model"].recipe.rate / 2


def test_steps_replace_minutes():
    assert schedule_of(asked("eagle", HERE), 16, LENGTH) == TrainSchedule(
        6, 0, 4, LENGTH, BUILTIN["eagle"].recipe.rate
    )
    timed = schedule_of(asked("eagle", HERE, steps=None, minutes=2.0), 16, LENGTH)
    assert (timed.steps, timed.minutes) == (0, 2.0)


def test_a_cpu_multiplies_bfloat16_where_its_library_does(monkeypatch):
    for answer in (False, True):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda a=answer: a)
        assert multiplies_bfloat16("cpu") is answer
        assert multiplies_bfloat16("meta")


# (peak rate, betas, clip, towards the target's distribution, settings), and where it is printed
PRINTED = {
    # EESD §3.2 (hard labels), §3.1 (one layer, head initialised from the target's), Table 9 (1e-3)
    "early_exit": (1e-3, (0.9, 0.999), 1.0, False, {"layers": 1, "own_head": True}),
    # EAGLE §4.2 (w_cls 0.1, noise U(-0.1, 0.1)), §5 (3e-5, betas, clip 0.5)
    "eagle": (3e-5, (0.9, 0.95), 0.5, True, {"weight": 0.1, "noise": 0.1}),
    # Medusa §2.2.1 (0.8^k), train_vicuna_7b.sh (1e-3, one block), EESD Table 9 (1e-3)
    "medusa": (1e-3, (0.9, 0.999), 1.0, False, {"blocks": 1, "own_head": True, "decay": 0.8}),
    # README of zankner/Hydra (5e-4, teacher loss alone, heads summed)
    "hydra": (
        5e-4,
        (0.9, 0.999),
        1.0,
        True,
        {"blocks": 1, "own_head": True, "residual": True, "decay": 1.0},
    ),
    # GLIDE §4.1 (block 5), Appendix B (5e-4, AdamW), C (no distillation)
    "glide": (5e-4, (0.9, 0.999), 1.0, False, {"layers": 1, "shared": False, "block": 5}),
    # S2D §3.3; no rate is printed
    "sorted": (1e-3, (0.9, 0.999), 1.0, False, {"together": True}),
}


@pytest.mark.parametrize("name", PRINTED)
def test_recipes_hold_the_printed_figures(name):
    rate, betas, clip, soft, settings = PRINTED[name]
    training = asked(name, HERE, recipe="paper")
    plan = schedule_of(training, 160, LENGTH)
    assert (plan.rate, plan.betas, plan.clip, plan.optimizer) == (rate, betas, clip, "adamw")
    head, loss, learns_soft = settings_of(training)
    assert learns_soft is soft
    assert settings.items() <= (head | loss).items()
    printed = paper_of(training).rate is not None
    assert schedule_of(training, 640, LENGTH).rate == (rate if printed else rate / 4)


def test_every_drafter_but_the_small_model_has_one():
    assert set(PRINTED) == set(trainable()) - {"model"}
    with pytest.raises(ValueError, match="no paper prints a recipe for model; .* early_exit"):
        settings_of(asked("model", HERE, recipe="paper"))


def test_given_settings_win_over_the_recipe():
    given = asked("eagle", HERE, {"weight": 2, "soft": False}, rate=0.5, recipe="paper")
    assert schedule_of(given, 640, LENGTH).rate == 0.5
    assert settings_of(given)[1:] == ({"weight": 2, "noise": 0.1}, False)


def test_drafters_have_the_form_of_their_papers():
    target = toy_target()
    width = target.config.width

    def paper(name):
        return new_head(asked(name, HERE, recipe="paper"), target)

    heads = paper("medusa")
    assert [len(stack) for stack in heads.stacks] == [1, 1, 1, 1]
    assert {head.weight.shape for head in heads.head} == {(VOCAB, width)}
    exit = paper("early_exit")
    assert torch.equal(exit.head.weight.float(), target.head.weight.float())
    assert len(exit.layers) == 1
    assert paper("glide").embed.weight.shape == (VOCAB, width)
    assert [len(stack) for stack in new_head(asked("medusa", HERE), target).stacks] == [3] * 4


@pytest.mark.parametrize("name, count", [("muon", 2), ("adamw", 1)])
def test_optimizers_take_the_schedules_betas_and_decay(name, count):
    part = new_head(asked("eagle", HERE), toy_target())
    weights = dict(part.named_parameters())
    schedule = TrainSchedule(optimizer=name, betas=(0.8, 0.7), decay=0.3)
    built = optimizers(weights, schedule)
    assert len(built) == count
    adamw = built[-1].param_groups[0]
    assert type(built[-1]) is torch.optim.AdamW
    assert adamw["betas"] == (0.8, 0.7)
    assert adamw["weight_decay"] == (0.3 if name == "adamw" else 0.0)
    held = sum(len(group["params"]) for optimizer in built for group in optimizer.param_groups)
    assert held == len(weights)


@pytest.mark.parametrize("clip", [0.5, 2.0])
def test_gradients_are_clipped_at_the_schedules_norm(tmp_path, clip):
    model, norms = torch.nn.Linear(3, 2), []

    def look(optimizer, *_):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        norms.append(float(torch.cat([g.flatten() for g in grads]).norm()))

    handle = register_optimizer_step_pre_hook(look)
    try:
        plan = TrainSchedule(steps=3, optimizer="adamw", clip=clip)
        fit(tmp_path, model, lambda step: 1e3 * model(torch.ones(1, 3)).square().sum(), plan)
    finally:
        handle.remove()
    assert norms == pytest.approx([clip] * 3, rel=1e-4)


def test_a_card_names_the_recipe_and_refuses_another(tmp_path):
    data = drafter_data()
    card = train_weights(asked("medusa", tmp_path, recipe="paper"), data)
    assert card["asked"]["recipe"] == "paper"
    assert "Medusa §2.2.1" in card["recipe"]["source"]
    assert card["recipe"]["not_printed"] == ["betas", "clip"]
    assert card["asked"]["plan"]["optimizer"] == "adamw"
    assert card == json.loads((tmp_path / "out" / "medusa" / "card.json").read_text())
    with pytest.raises(ValueError, match="medusa was made with"):
        train_weights(asked("medusa", tmp_path), data)


def test_earlier_cards_still_match_our_recipes():
    """Fields that came later are left out of cards where they have their default."""
    assert TrainSchedule().stored().keys().isdisjoint({"optimizer", "betas", "clip"})
    changed = TrainSchedule(clip=0.5).stored()
    assert changed["clip"] == 0.5
    assert "betas" not in changed


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_exits_of_any_number_of_new_layers_learn(tmp_path, layers):
    data = drafter_data()
    training = asked("early_exit", tmp_path, {"depth": 2, "layers": layers})
    before = new_head(training, data.target).state_dict()
    card = train_weights(training, data)
    folder = tmp_path / "out" / "early_exit"
    drafter = BUILTIN["early_exit"].load(folder, data.target, data.made_for)
    changed = {
        name
        for name, value in drafter.head.state_dict().items()
        if not torch.equal(value, before[name].bfloat16().to(value))
    }
    assert any(name.startswith("head." if not layers else "layers.") for name in changed)
    assert card["parameters"]["trained"] > VOCAB * data.target.config.width or layers


def test_loaded_parameters_count_used_target_modules():
    """Early exit loads the first layers and the head, or the whole target for soft labels (EESD,
    Table 6)."""
    target, token = toy_target(), toy_texts()[:2]

    def size(*modules):
        return sum({id(p): p.numel() for m in modules for p in m.parameters()}.values())

    def held(name, soft):
        part = new_head(asked(name, HERE), target)
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


@pytest.mark.parametrize("name", DRAFTERS)
def test_training_saves_a_drafter_and_a_reproducible_card(tmp_path, name):
    data, training = drafter_data(), asked(name, tmp_path)
    card = train_weights(training, data)
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
    drafter = recipe_of(name).drafter(data.target, new_head(training, data.target))
    untrained = accepted_lengths(data.target, drafter, data.evaluation, lengths.K)
    # what it never offers is not held against it
    assert lengths.K == card["evaluation"]["K"] == (4 if name in ("medusa", "hydra") else 5)
    assert card["evaluation"]["beats_untrained"] == compare(lengths, untrained)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert train_weights(training, data) == card
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}


def test_other_settings_need_another_folder(tmp_path):
    data = drafter_data()
    train_weights(asked("eagle", tmp_path), data)
    for other, words in (
        (
            asked("eagle", tmp_path, {"inputs": "token"}),
            "made with settings inputs 'feature&shifted_token', now 'token'",
        ),
        (asked("eagle", tmp_path, {"noise": 0.0}), "made with loss noise None, now 0.0"),
        (asked("eagle", tmp_path, {"soft": False}), "made with soft True, now False"),
        (asked("eagle", tmp_path, steps=7), "made with plan steps 6, now 7"),
        (asked("medusa", tmp_path, name="eagle"), "made with drafter 'eagle', now 'medusa'"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            train_weights(other, data)
        assert "\n" not in str(caught.value)
        assert "--name" in str(caught.value)
    folder, store = tmp_path / "out" / "eagle", tmp_path / "work" / "eagle"
    (folder / "card.json").unlink()
    (folder / "eagle.safetensors").unlink()
    # a checkpoint of other settings is not continued
    with pytest.raises(ValueError, match="work.*made with soft True"):
        train_weights(asked("eagle", tmp_path, {"soft": False}), data)
    (store / "asked.json").write_text("[[")
    with pytest.raises(ValueError, match="asked.json is damaged"):
        train_weights(asked("eagle", tmp_path), data)


def test_weights_without_a_card_are_evaluated_not_trained(tmp_path):
    data, folder = drafter_data(), tmp_path / "out" / "early_exit"
    first = train_weights(asked("early_exit", tmp_path), data)
    (folder / "card.json").unlink()
    held = (folder / "exit.safetensors").read_bytes()
    again = train_weights(asked("early_exit", tmp_path, seed=5, work=tmp_path / "other"), data)
    assert (folder / "exit.safetensors").read_bytes() == held
    assert again["evaluation"]["trained"] == first["evaluation"]["trained"]
    assert again["steps"] == 0
    assert again["seconds_per_batch"] is None


@pytest.mark.parametrize(
    "name, half",
    [("eagle", "eagle.json"), ("eagle", "eagle.safetensors"), ("model", "config.json")],
)
def test_incomplete_saves_are_repeated(tmp_path, name, half):
    data, folder = drafter_data(), tmp_path / "out" / name
    training = asked(name, tmp_path, SIZES if name == "model" else {})
    first = train_weights(training, data)
    whole = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "card.json"}
    for gone in ("card.json", half):
        (folder / gone).unlink()
    again = train_weights(training, data)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "card.json"} == whole
    assert again["evaluation"] == first["evaluation"]
    assert again["steps"] == first["steps"]


@pytest.mark.parametrize("name", ["early_exit", "eagle"])
def test_best_validated_weights_are_saved(tmp_path, name):
    card = train_weights(asked(name, tmp_path, rate=0.02, steps=60, rows=16), drafter_data())
    log = json.loads((tmp_path / "work" / f"{name}.json").read_text())
    scores = {row["step"]: row["valid"]["score"] for row in log if "valid" in row}
    assert len(scores) == 10
    assert card["validation"]["score"] == max(scores.values()) >= scores[60]
    assert card["learning_curve"] == [[step, score] for step, score in scores.items()]
    best = min(step for step, score in scores.items() if score == max(scores.values()))
    assert card["validation"]["step"] == best
    if name == "eagle":
        assert card["evaluation"]["beats_untrained"]["longer"]
        assert log[-1]["loss"] < log[0]["loss"]


def test_small_model_has_the_given_sizes():
    sizes = dict(width=8, layers=1, heads=2, kv_heads=1, head_dim=4, hidden=12)
    head = new_head(asked("model", HERE, sizes), toy_target())
    assert head.settings == sizes
    assert head.config == DecoderConfig(VOCAB, **sizes)
