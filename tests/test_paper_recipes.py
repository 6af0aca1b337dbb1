"""The authors' own recipes: their figures as printed, and what a training takes from them."""

import json

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from toy_lm import VOCAB, toy_target
from toy_training import PLAN, drafter_data

from real.drafters import BUILTIN, trainable
from real.train.config import TrainConfig, drafter_training, loss_settings, new_head, scaled_rate
from real.train.optimizers import TrainSchedule, optimizers
from real.train.train_drafter import train_drafter
from real.train.training_loop import fit

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


def paper(name, **settings):
    return drafter_training(name, PLAN, recipe_name="paper", settings=settings)


@pytest.mark.parametrize("name", PRINTED)
def test_recipes_hold_the_printed_figures(name):
    rate, betas, clip, soft, settings = PRINTED[name]
    training = paper(name)
    plan = training.plan
    assert (plan.rate, plan.betas, plan.clip, plan.optimizer) == (rate, betas, clip, "adamw")
    assert training.soft is soft
    assert {key: training.settings[key] for key in settings} == settings
    assert training.paper
    printed = BUILTIN[name].recipe.paper.rate is not None
    assert scaled_rate(training, 640).plan.rate == (rate if printed else rate / 4)


def test_every_drafter_but_the_small_model_has_one():
    assert set(PRINTED) == set(trainable()) - {"model"}
    with pytest.raises(ValueError, match="no paper prints a recipe for model; .* early_exit"):
        drafter_training("model", PLAN, recipe_name="paper")
    with pytest.raises(ValueError, match="--recipe is 'theirs'; expected ours or paper"):
        drafter_training("eagle", PLAN, recipe_name="theirs")


def test_given_settings_win_over_the_recipe():
    training = drafter_training("eagle", PLAN, False, {"weight": 2}, rate=0.5, recipe_name="paper")
    assert (training.plan.rate, training.soft) == (0.5, False)
    assert loss_settings(training) == {"weight": 2, "noise": 0.1}


def test_drafters_have_the_form_of_their_papers():
    target = toy_target()
    width = target.config.width
    heads = new_head(paper("medusa"), target)
    assert [len(stack) for stack in heads.stacks] == [1, 1, 1, 1]
    assert {head.weight.shape for head in heads.head} == {(VOCAB, width)}
    exit = new_head(paper("early_exit"), target)
    assert torch.equal(exit.head.weight.float(), target.head.weight.float())
    assert len(exit.layers) == 1
    assert new_head(paper("glide"), target).embed.weight.shape == (VOCAB, width)
    assert [len(stack) for stack in new_head(drafter_training("medusa", PLAN), target).stacks] == [
        3
    ] * 4


@pytest.mark.parametrize("name, count", [("muon", 2), ("adamw", 1)])
def test_optimizers_take_the_schedules_betas_and_decay(name, count):
    part = new_head(drafter_training("eagle", PLAN), toy_target())
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
    card = train_drafter(paper("medusa"), data, tmp_path / "out", tmp_path / "work")
    assert card["asked"]["recipe"] == "paper"
    assert "Medusa §2.2.1" in card["recipe"]["source"]
    assert card["recipe"]["not_printed"] == ["betas", "clip"]
    assert card["asked"]["plan"]["optimizer"] == "adamw"
    assert card == json.loads((tmp_path / "out" / "medusa" / "card.json").read_text())
    with pytest.raises(ValueError, match="medusa was made with"):
        train_drafter(drafter_training("medusa", PLAN), data, tmp_path / "out", tmp_path / "work")


def test_earlier_cards_still_match_our_recipes():
    """Fields that came later are left out of cards where they have their default."""
    assert PLAN.stored().keys().isdisjoint({"optimizer", "betas", "clip"})
    changed = TrainSchedule(clip=0.5).stored()
    assert changed["clip"] == 0.5
    assert "betas" not in changed
    stored = TrainConfig(()).stored()
    assert "betas" not in stored["target_plan"]
    assert "paper" not in stored["lessons"][0]
    assert "betas" not in stored["lessons"][0]["plan"]


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_exits_of_any_number_of_new_layers_learn(tmp_path, layers):
    data = drafter_data()
    training = drafter_training("early_exit", PLAN, settings={"depth": 2, "layers": layers})
    before = new_head(training, data.target).state_dict()
    card = train_drafter(training, data, tmp_path / "out", tmp_path / "work")
    drafter = BUILTIN["early_exit"].load(
        tmp_path / "out" / "early_exit", data.target, data.made_for
    )
    changed = {
        name
        for name, value in drafter.head.state_dict().items()
        if not torch.equal(value, before[name].bfloat16().to(value))
    }
    assert any(name.startswith("head." if not layers else "layers.") for name in changed)
    assert card["parameters"]["trained"] > VOCAB * data.target.config.width or layers
