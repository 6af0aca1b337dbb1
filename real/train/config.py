"""Configuration of a training: drafters by their recipes, and a target with its drafters."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from real.draft import PaperRecipe, TrainingRecipe
from real.drafters import BUILTIN, trainable
from real.model.config import DecoderConfig
from real.model.decoder import Decoder
from real.provenance import multiplies_bfloat16
from real.train.optimizers import TrainSchedule

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
    return _keywords(recipe.head, 1)  # after the target


def _loss_keywords(recipe: TrainingRecipe) -> list[str]:
    return _keywords(recipe.loss, 5)  # after head, target, token, soft and generator


def _keywords(function: Callable, skip: int) -> list[str]:
    return list(inspect.signature(function).parameters)[skip:]


ALONE = ("sorted",)
"""Drafters that are trained when they are named, and not with all the others."""


def default_drafters() -> tuple[str, ...]:
    """Names of the drafters that a training of a target and its drafters holds."""
    return tuple(name for name in trainable() if name not in ALONE)


STORED = {"drafters": "lessons", "evaluation_tokens": "judged"}
"""Fields that have another key in card.json."""


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides which models come out.

    | field | meaning |
    | --- | --- |
    | text | files or folders to train on |
    | heldout | files that are held out; the loss is reported for each |
    | vocab, sample | tokens of the BPE, and documents that it is fitted on |
    | target, target_plan | sizes and schedule of the target |
    | drafters | the drafters to train |
    | distil_tokens | tokens that the target generates, half greedily, half at temperature 1 |
    | blend | share of drafters' training rows that are generated; the rest is corpus text |
    | new_tokens | new tokens of each sequence that a given target writes after a prompt |
    | evaluation_tokens | new tokens of each sequence that drafters are evaluated on |
    | trials | settings that self_skip's search tries; 0 leaves it out |
    | predictor_texts | sequences per rule that acceptance predictors learn from |
    | rank | rank of the low-rank predictors |
    | mixed | train in bf16 autocast, on devices that multiply bf16 themselves |
    | device, seed | as named |
    | batch | sequences that the target generates at once |
    | together | whether those for predictors are too; then not bit-identical |
    | compiled | compile the target's layers for training, where that works |
    | text_tokens | tokens of `text` that drafters of a given target learn as they are |
    | distil_seconds | a given target stops writing after them, short of distil_tokens; 0: never |
    | skip_price | what self_skip's search prices trials by: measured, or layers, which repeats \
bit for bit |
    """

    text: tuple[str, ...]
    heldout: tuple[str, ...] = ()
    vocab: int = 4096
    sample: int = 8000
    target: DecoderConfig = DecoderConfig(4096, 160, 10, 5, 5, 32, 400)
    target_plan: TrainSchedule = field(
        default_factory=lambda: TrainSchedule(minutes=62, rows=8, length=512)
    )
    drafters: tuple[DrafterTraining, ...] = field(
        default_factory=lambda: tuple(map(drafter_training, default_drafters()))
    )
    distil_tokens: int = 1_000_000
    blend: float = 0.5
    evaluation_tokens: int = 48
    new_tokens: int = 192
    trials: int = 200
    predictor_texts: int = 400
    rank: int = 8
    mixed: bool = True
    device: str = "cpu"
    seed: int = 0
    batch: int = 64
    together: bool = False
    compiled: bool = False
    skip_price: str = "measured"
    text_tokens: int = 0
    distil_seconds: float = 0.0

    @property
    def autocast(self) -> bool:
        """Whether training runs in bf16 autocast on this device."""
        return self.mixed and multiplies_bfloat16(self.device)

    def stored(self) -> dict:
        """The settings as card.json holds them, without the files."""
        plan = self.target_plan.stored()
        fields = asdict(self) | {"target_plan": plan, "mixed": self.autocast}
        for drafter, training in zip(fields["drafters"], self.drafters):
            drafter["plan"] = training.plan.stored()
            del drafter["paper"]
            if not drafter["draft_vocab"]:
                del drafter["draft_vocab"]
            del drafter["start"]  # no drafter of a whole training has one
            del drafter["recipe_rate"]
        left_out = ("text", "heldout", "text_tokens", "distil_seconds")  # of a given target
        return {STORED.get(k, k): v for k, v in fields.items() if k not in left_out}


def with_minutes(config: TrainConfig, target: float, drafter: float, rows: int) -> TrainConfig:
    """Minutes for the target and for each drafter; `rows` windows in a step of the target."""
    seed = config.seed
    drafters = (
        replace(d, plan=replace(d.plan, minutes=drafter, rows=2 * rows, seed=seed))
        for d in config.drafters
    )
    target_plan = replace(config.target_plan, minutes=target, rows=rows, seed=seed)
    return replace(config, target_plan=target_plan, drafters=tuple(drafters))


def with_steps(config: TrainConfig, target: int, *drafters: int) -> TrainConfig:
    """Exact steps instead of minutes, which repeats an earlier training.

    The last number of `drafters` is for all drafters after it.
    """
    counts = [*drafters, *[drafters[-1]] * len(config.drafters)]
    trainings = (
        replace(d, plan=replace(d.plan, steps=steps, minutes=0))
        for d, steps in zip(config.drafters, counts)
    )
    target_plan = replace(config.target_plan, steps=target, minutes=0)
    return replace(config, target_plan=target_plan, drafters=tuple(trainings))


def with_objective(config: TrainConfig, soft: bool | None, patience: int) -> TrainConfig:
    """One objective and one patience for all drafters; `soft` None keeps each recipe's own."""
    drafters = (
        replace(d, soft=d.soft if soft is None else soft, plan=replace(d.plan, patience=patience))
        for d in config.drafters
    )
    return replace(config, drafters=tuple(drafters))


def toy_config(config: TrainConfig) -> TrainConfig:
    """Sizes that take seconds: to try the pipeline, not to draft well."""
    schedule = TrainSchedule(steps=4, rows=2, length=16, seed=config.seed)
    sizes = {"model": {"width": 8, "layers": 1, "heads": 1, "head_dim": 8, "hidden": 16}}
    drafters = (
        replace(
            d,
            plan=replace(schedule, rate=d.plan.rate),
            settings={**d.settings, **sizes.get(d.drafter, {})},
        )
        for d in config.drafters
    )
    return replace(
        config,
        vocab=300,
        sample=100,
        target=DecoderConfig(300, 16, 3, 2, 2, 8, 24),
        target_plan=schedule,
        drafters=tuple(drafters),
        distil_tokens=256,
        new_tokens=24,
        evaluation_tokens=8,
        trials=4,
        skip_price="layers",  # times of a toy mean nothing, and a run repeats bit for bit
        predictor_texts=3,
        rank=2,
    )
