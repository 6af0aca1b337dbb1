"""One drafter to train: its schedule, objective and settings, checked against its recipe."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from real.draft import PaperRecipe, TrainingRecipe
from real.drafters import BUILTIN, trainable
from real.model.decoder import Decoder
from real.train.schedule import TrainSchedule

RECIPES = ("ours", "paper")
"""Whose figures a drafter is trained by; see `drafter_training`."""
RECIPE_WIDTH = 160
"""Width of the target that the recipes' learning rates were chosen on."""


@dataclass(frozen=True)
class DrafterTraining:
    """One drafter to train.

    | field | meaning |
    | --- | --- |
    | drafter | its name in `real.drafters.BUILTIN` |
    | plan | its schedule |
    | soft | towards the target's distribution, else the next token |
    | settings | keywords of its draft head, and of its loss |
    | draft_vocab | tokens of its draft vocabulary; 0: all |
    | folder | its folder among the models and in the work folder; "": the drafter's name |
    | start | the folder of a trained drafter whose weights it starts from; None: random ones |
    | recipe_rate | whether the peak learning rate is the recipe's, see `scaled_rate` |
    | paper | whether it follows the authors' recipe, `TrainingRecipe.paper` |
    """

    drafter: str
    plan: TrainSchedule
    soft: bool
    settings: Mapping[str, object] = field(default_factory=dict)
    folder: str = ""
    draft_vocab: int = 0
    start: Path | None = None
    recipe_rate: bool = False
    paper: bool = False

    @property
    def place(self) -> str:
        return self.folder or self.drafter

    @property
    def trains(self) -> bool:
        """Whether there is a step to take; without one the weights stay as they start."""
        return bool(self.plan.steps or self.plan.minutes)


def drafter_training(
    drafter: str,
    schedule: TrainSchedule | None = None,
    soft: bool | None = None,
    settings: Mapping[str, object] | None = None,
    folder: str = "",
    rate: float | None = None,
    recipe_name: str = "ours",
) -> DrafterTraining:
    """The training of a drafter, by its recipe unless given; ValueError for an unknown setting.

    | recipe_name | meaning |
    | --- | --- |
    | ours | chosen for minutes of training of a small drafter |
    | paper | the authors' own, `TrainingRecipe.paper`; ValueError where none is printed |
    """
    recipe = recipe_of(drafter)
    paper = _paper_recipe(drafter, recipe, recipe_name)
    known = [*_head_keywords(recipe), *_loss_keywords(recipe)]
    if unknown := [name for name in settings or {} if name not in known]:
        raise ValueError(
            f"{drafter} has no setting {unknown[0]!r}; expected one of {', '.join(known)}"
        )
    check_folder(folder)
    if rate is not None and not 0 < rate < 1:
        raise ValueError(
            f"--rate is {rate}; "
            f"expected a peak learning rate between 0 and 1, such as {recipe.rate}"
        )
    schedule = schedule or TrainSchedule(minutes=6, rows=16, length=192)
    own_rate, own_soft, defaults = recipe.rate, recipe.soft, {**recipe.defaults}
    printed_rate = paper is not None and paper.rate is not None
    if paper is not None:
        own_rate, own_soft = paper.rate or recipe.rate, paper.soft
        defaults |= paper.settings
        schedule = replace(
            schedule,
            optimizer="adamw",
            betas=paper.betas,
            decay=paper.decay,
            clip=paper.clip,
            warmup=paper.warmup,
        )
    return DrafterTraining(
        drafter,
        replace(schedule, rate=own_rate if rate is None else rate),
        own_soft if soft is None else soft,
        {**defaults, **(settings or {})},
        folder,
        recipe_rate=rate is None and not printed_rate,
        paper=paper is not None,
    )


def _paper_recipe(drafter: str, recipe: TrainingRecipe, name: str) -> PaperRecipe | None:
    if name not in RECIPES:
        raise ValueError(f"--recipe is {name!r}; expected {' or '.join(RECIPES)}")
    if name == "paper" and recipe.paper is None:
        printed = [other for other in trainable() if recipe_of(other).paper]
        raise ValueError(
            f"no paper prints a recipe for {drafter}; "
            f"leave --recipe out, or train one of {', '.join(printed)}"
        )
    return recipe.paper if name == "paper" else None


def scaled_rate(training: DrafterTraining, target_width: int) -> DrafterTraining:
    """A recipe's learning rate falls as 1 / width where the draft head is wider than the recipe's.

    This is muP's rule for inner matrices (Yang et al., arXiv 2203.03466, Table 3). A rate that was
    given stays.
    """
    width = training.settings.get("width", target_width)
    assert isinstance(width, int)  # the settings were checked by the head
    if not training.recipe_rate or width <= RECIPE_WIDTH:
        return training
    rate = training.plan.rate * RECIPE_WIDTH / width
    return replace(training, plan=replace(training.plan, rate=rate))


def recipe_of(drafter: str) -> TrainingRecipe:
    """The training recipe of a drafter; ValueError for one without."""
    recipe = BUILTIN[drafter].recipe if drafter in BUILTIN else None
    if recipe is None:
        raise ValueError(
            f"drafter {drafter!r} has nothing to train; expected one of {', '.join(trainable())}"
        )
    return recipe


def new_head(training: DrafterTraining, target: Decoder) -> nn.Module:
    """The draft head before any training, by the schedule's seed; ValueError for bad settings."""
    recipe = recipe_of(training.drafter)
    known = _head_keywords(recipe)
    torch.manual_seed(training.plan.seed + 1)
    try:
        settings = {k: v for k, v in training.settings.items() if k in known}
        return recipe.head(target, **settings).requires_grad_(True)
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"{training.drafter} cannot be made with {dict(training.settings)}: "
            f"{' '.join(str(error).split())[:200]}"
        ) from error


def loss_settings(training: DrafterTraining) -> dict:
    """The settings that the loss takes."""
    known = _loss_keywords(recipe_of(training.drafter))
    return {k: v for k, v in training.settings.items() if k in known}


def check_folder(name: str) -> None:
    """ValueError for a name that is no folder among the models; "" is the drafter's."""
    if name and (Path(name).name != name or name in (".", "..", "target")):
        raise ValueError(
            f"--name is {name!r}; "
            "expected the name of a folder among the models, such as eagle-token"
        )


def _head_keywords(recipe: TrainingRecipe) -> list[str]:
    return _keywords(recipe.head, 1)  # behind the target


def _loss_keywords(recipe: TrainingRecipe) -> list[str]:
    return _keywords(recipe.loss, 5)  # behind head, target, token, soft and generator


def _keywords(function: Callable, skip: int) -> list[str]:
    return list(inspect.signature(function).parameters)[skip:]
