"""Settings of a drafter's training, as typed and as its recipe has them."""

import json

import pytest
import torch
from toy_lm import toy_target
from toy_training import PLAN

from real.drafters import BUILTIN, trainable
from real.jobs.train import read_settings, split_arguments, train_choices
from real.train.config import (
    TrainConfig,
    drafter_training,
    loss_settings,
    new_head,
    scaled_rate,
    with_objective,
)
from real.train.skip_search import SkipSearch, configured_search


def test_every_trainable_drafter_has_default_settings():
    assert set(trainable()) <= set(BUILTIN)
    rest = set(BUILTIN) - set(train_choices())
    assert rest >= {"prompt_lookup", "lookahead", "suffix"}
    assert set(trainable()) >= {
        "model",
        "early_exit",
        "eagle",
        "medusa",
        "hydra",
        "glide",
        "sorted",
    }
    assert "self_skip" in train_choices()
    for name in trainable():
        part = new_head(drafter_training(name, PLAN), toy_target())
        assert json.loads(json.dumps(part.settings)) == part.settings
        assert all(p.requires_grad for p in part.parameters())
        again = new_head(drafter_training(name, PLAN), toy_target())
        assert all(
            torch.equal(a, b)
            for a, b in zip(part.state_dict().values(), again.state_dict().values())
        )


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"inpts": "token"}, "no setting 'inpts'; expected one of inputs, layers"),
        ({"target": 1}, "no setting 'target'"),
        ({"generator": 1}, "no setting 'generator'"),
    ],
)
def test_unknown_settings_are_named(settings, says):
    with pytest.raises(ValueError, match=says):
        drafter_training("eagle", PLAN, settings=settings)


def test_loss_settings_are_separate_from_head_settings():
    training = drafter_training("eagle", PLAN, settings={"layers": 2, "noise": 0.0})
    assert loss_settings(training) == {"weight": 1, "noise": 0.0}
    assert new_head(training, toy_target()).settings["layers"] == 2
    with pytest.raises(ValueError, match="early_exit cannot be made with"):
        new_head(drafter_training("early_exit", PLAN, settings={"depth": "deep"}), toy_target())


def test_a_recipes_rate_falls_with_the_width_and_a_given_one_stays():
    recipe = drafter_training("eagle", PLAN)
    assert scaled_rate(recipe, 16) == recipe
    assert scaled_rate(recipe, 160) == recipe
    assert scaled_rate(recipe, 640).plan.rate == BUILTIN["eagle"].recipe.rate / 4
    given = drafter_training("eagle", PLAN, rate=8e-3)
    assert scaled_rate(given, 640) == given
    own = drafter_training("model", PLAN, settings={"width": 320})
    assert scaled_rate(own, 640).plan.rate == own.plan.rate / 2


def test_settings_are_parsed_from_text():
    parsed = read_settings(
        ["inputs=token", "layers=2", "cross=false", "reads=[8, 9]", "noise=0.5", "name=a=b"]
    )
    assert parsed == {
        "inputs": "token",
        "layers": 2,
        "cross": False,
        "reads": [8, 9],
        "noise": 0.5,
        "name": "a=b",
    }
    for odd in (["layers"], ["=2"], ["a=1", "a=2"]):
        with pytest.raises(ValueError, match="is no setting; expected key=value"):
            read_settings(odd)


def test_first_argument_is_a_drafter_unless_it_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert split_arguments(["eagle", "corpus"]) == ("eagle", ("corpus",))
    assert split_arguments(["corpus"]) == (None, ("corpus",))
    (tmp_path / "eagle").mkdir()
    assert split_arguments(["eagle", "corpus"]) == (None, ("eagle", "corpus"))
    with pytest.raises(ValueError, match="did you mean hydra"):
        split_arguments(["hidra", "corpus"])
    with pytest.raises(ValueError, match="prompt_lookup has nothing to learn"):
        split_arguments(["prompt_lookup", "corpus"])
    for name in ("a/b", "..", "target"):
        with pytest.raises(ValueError, match="--name is"):
            drafter_training("eagle", PLAN, folder=name)


def test_skip_search_settings_are_checked():
    lab = TrainConfig((), trials=7, seed=3)
    assert configured_search(lab, {"texts": 9}, None) == SkipSearch(7, 3, 9, "self_skip")
    assert configured_search(lab, {"seed": 0}, "s").place == "s"
    assert configured_search(lab, {"price": "layers"}, None).price == "layers"
    with pytest.raises(ValueError, match="price is 'free'; expected measured or layers"):
        configured_search(lab, {"price": "free"}, None)
    for odd in ({"trials": 0}, {"rate": 1}, {"seed": True}, {"texts": "many"}):
        with pytest.raises(ValueError, match="self_skip cannot be searched with"):
            configured_search(lab, odd, None)
    both = with_objective(lab, False, 4)
    assert all(not training.soft and training.plan.patience == 4 for training in both.drafters)
    assert with_objective(lab, None, 0) == lab
