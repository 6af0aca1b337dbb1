"""Configuration of a training: a target and its drafters from text."""

from dataclasses import asdict, dataclass, field, replace

from real.drafters import trainable
from real.model.config import DecoderConfig
from real.model.prepacked import multiplies_bfloat16
from real.train.drafter_training import DrafterTraining, drafter_training
from real.train.schedule import TrainSchedule

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
    | new_tokens | new tokens of each sequence that a given target writes behind a prompt |
    | evaluation_tokens | new tokens of each sequence that drafters are evaluated on |
    | trials | settings that self_skip's search tries; 0 leaves it out |
    | predictor_texts | sequences per rule that acceptance predictors learn from |
    | rank | rank of the low-rank predictors |
    | mixed | train in bf16 autocast, on devices that multiply bf16 themselves |
    | device, seed | as named |
    | batch | sequences that the target generates at once |
    | together | whether those for predictors are too; then not bit-identical |
    | compiled | compile the target's layers for training, where that works |
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
        return {STORED.get(k, k): v for k, v in fields.items() if k not in ("text", "heldout")}


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

    The last number of `drafters` is for all drafters behind it.
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
