"""Training a model folder, or one drafter of it."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

import torch

from real.drafters import BUILTIN, trainable
from real.model.checkpoint import load_tokenizer
from real.model_settings import dtype_of
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.provenance import check_device
from real.train.config import (
    DrafterTraining,
    TrainConfig,
    drafter_training,
    toy_config,
    with_minutes,
    with_objective,
    with_steps,
)
from real.train.corpus import END
from real.train.drafter_data import load_target
from real.train.optimizers import TrainSchedule
from real.train.pipeline import (
    Folders,
    PredictorRequest,
    PromptFiles,
    build,
    configured_predictors,
    train_for_target,
    train_one,
)
from real.train.skip_search import SkipSearch, configured_search
from simspec.numerics.rng import check_seed

PREDICTORS = "predictors"
"""In place of a drafter: the acceptance predictors of those that are there."""


def train_choices() -> tuple[str, ...]:
    """All drafters that `simspec train` makes: self_skip's settings are searched."""
    return (*trainable(), "self_skip")


def split_arguments(words: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """The drafter to train, or None for all, and the text; an existing path is never a drafter."""
    first = words[0] if words else ""
    if first == PREDICTORS and not Path(first).exists():
        return first, tuple(words[1:])
    if first and Path(first).exists():
        return None, tuple(words)
    if first in train_choices():
        return first, tuple(words[1:])
    if first in BUILTIN:
        raise ValueError(
            f"{first} has nothing to learn; expected one of {', '.join(train_choices())}, or text"
        )
    if near := get_close_matches(first, train_choices(), n=1):
        raise ValueError(
            f"{first} does not exist, and no drafter has that name; did you mean {near[0]}?"
        )
    return None, tuple(words)


def read_settings(items: Iterable[str]) -> dict:
    """Settings from key=value items; a value is JSON if possible (4, true, [8, 9]), else text."""
    settings: dict = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not (key and equals) or key in settings:
            raise ValueError(
                f"--set {item!r} is no setting; expected key=value, such as layers=2, each key once"
            )
        try:
            settings[key] = json.loads(value)
        except (ValueError, RecursionError):
            settings[key] = value
    return settings


@dataclass(frozen=True)
class TrainingText:
    """Training data: files or folders of text, held-out text, and self-distillation.

    | field | meaning |
    | --- | --- |
    | distil_tokens | tokens that the target generates for its drafters |
    | text_tokens | tokens of the files that drafters of a given target learn as they are |
    | blend | share of generated tokens in what drafters learn from |
    | prompts | files of prompts, for a target that is given |
    """

    files: Sequence[str]
    heldout: Sequence[Path] = ()
    distil_tokens: int = 1_000_000
    blend: float = 0.5
    prompts: PromptFiles = PromptFiles()
    text_tokens: int = 0

    def __post_init__(self) -> None:
        if self.distil_tokens < 1:
            raise ValueError(f"distil-tokens is {self.distil_tokens}; expected at least 1")
        if self.text_tokens and not self.files:
            raise ValueError("--learn-text learns from text files, and none are named")
        if not 0 <= self.blend <= 1:
            raise ValueError(f"--blend is {self.blend}; expected a share, from 0 to 1")


@dataclass(frozen=True)
class TrainingLength:
    """How long training takes.

    | field | meaning |
    | --- | --- |
    | minutes | of the target (a tenth for each drafter), or of the one drafter |
    | steps | exact steps in place of minutes: target,model,early_exit ... or of the drafter |
    | rows | windows per step |
    | patience | validations without improvement before a drafter stops; 0: never |
    | toy | minute sizes |
    """

    minutes: float
    rows: int
    steps: str | None = None
    patience: int = 0
    toy: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.minutes < float("inf") or self.rows < 1 or self.patience < 0:
            raise ValueError(
                f"minutes {self.minutes}, rows {self.rows}, patience {self.patience}; "
                "expected minutes > 0, at least one row, patience >= 0"
            )

    def counts(self, one_drafter: bool) -> list[int]:
        """The exact steps, [] where minutes count; ValueError for a list that cannot be."""
        texts = [] if self.steps is None else self.steps.split(",")
        least, most = (1, 1) if one_drafter else (3, 99)
        if texts and not (
            least <= len(texts) <= most
            and all(t.isdigit() and (int(t) or one_drafter) for t in texts)
        ):
            expected = (
                "a positive number such as 1800"
                if one_drafter
                else "three positive numbers or more such as 2662,1800,1800"
            )
            raise ValueError(f"--steps is {self.steps!r}; expected {expected}")
        return [int(text) for text in texts]


@dataclass(frozen=True)
class TrainingPlace:
    """Folders of models and work files, and the device and seed of their training."""

    out: Path
    work: Path | None = None
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        check_device(self.device)
        check_seed(self.seed)
        for folder in (self.out, self.work):
            if folder is not None and folder.exists() and not folder.is_dir():
                raise ValueError(
                    f"{folder} is a file, expected a folder for the models or their work"
                )

    @property
    def work_folder(self) -> Path:
        """Tokens, checkpoints and curves."""
        return self.work or self.out.with_name(self.out.name + "-work")


@dataclass(frozen=True)
class DrafterRequest:
    """One drafter to train for a target that exists.

    | field | meaning |
    | --- | --- |
    | drafter, settings | its name; key=value |
    | name | its folder among the models; None: the drafter's name |
    | rate | peak learning rate; None: the drafter's own |
    | against | another drafter's folder to compare with |
    | draft_vocab | number of most frequent tokens that it drafts from; 0: all |
    | target | a checkpoint folder or hub name; None: `<out>/target` |
    | dtype | in which a target that is given writes sequences and computes features |
    | start | a folder among the models whose weights it starts from; None: random ones |
    | recipe | ours, or paper: the authors' own |
    """

    drafter: str
    settings: Sequence[str] = ()
    name: str | None = None
    rate: float | None = None
    against: str | None = None
    draft_vocab: int = 0
    target: str | Path | None = None
    dtype: str = "float32"
    start: str | None = None
    recipe: str = "ours"


def train_models(
    text: TrainingText,
    length: TrainingLength,
    place: TrainingPlace,
    soft: bool | None = None,
    progress: Progress = quiet,
    processes: Processes = ALONE,
) -> dict:
    """Trains a target and its drafters into `place.out`, and returns the folder's card.

    soft: drafters learn the target's distribution, or the tokens; None: each drafter's own way.
    Several `processes` share what the target generates; then all but the first end with ShareDone.
    """
    counts = length.counts(one_drafter=False)
    config = _config(text, length, place)
    if soft is not None or length.patience:
        config = with_objective(config, soft, length.patience)
    if counts:
        config = with_steps(config, *counts)
    build(config, place.out, place.work_folder, progress, processes)
    return json.loads((place.out / "card.json").read_text())


def train_drafter(
    request: DrafterRequest,
    text: TrainingText,
    length: TrainingLength,
    place: TrainingPlace,
    soft: bool | None = None,
    progress: Progress = quiet,
    processes: Processes = ALONE,
) -> dict:
    """Trains one drafter for a target that exists, and returns the drafter's card.

    Drafters of a target that `train_models` made learn from the text too. Any other target, or one
    that is given prompts, writes all that its drafters learn from. Several `processes` share what
    the target writes; then all but the first end with ShareDone.
    """
    counts = length.counts(one_drafter=True)
    config, settings = _config(text, length, place), read_settings(request.settings)
    training = _training(request, length, place, (config, settings, counts, soft))
    dtype = dtype_of(request.dtype)
    if not (request.target or text.prompts.files) and _is_ours(place.out):
        if text.text_tokens:
            raise ValueError("--learn-text is for a target that is given; see --blend")
        if dtype != torch.float32:
            raise ValueError("--dtype is for a target that is given: name it by --target")
        if isinstance(training, PredictorRequest):
            raise ValueError(
                "simspec train TEXT trains predictors with the target; "
                f"for one that exists name it: --target {place.out / 'target'}"
            )
        job = config, training, place.out, place.work_folder
        return train_one(*job, progress, request.against, processes)
    if text.text_tokens and not text.prompts.files:
        raise ValueError("--learn-text takes the text; name prompts to continue by --prompts")
    path = request.target or place.out / "target"
    target = load_target(path, place.device, dtype)
    folders = Folders(place.out, place.work_folder)
    return train_for_target(
        config, training, target, text.prompts, folders, progress, request.against, processes
    )


def _is_ours(out: Path) -> bool:
    """Whether `<out>/target` is missing, or has the end token of `simspec train`."""
    if not (out / "target" / "tokenizer.json").exists():
        return True
    return load_tokenizer(out / "target").token_to_id(END) is not None


def _training(
    request: DrafterRequest, length: TrainingLength, place: TrainingPlace, given: tuple
) -> SkipSearch | DrafterTraining | PredictorRequest:
    config, settings, counts, soft = given
    if request.start is not None and request.drafter in ("self_skip", PREDICTORS):
        raise ValueError(f"{request.drafter} starts from no weights; leave out --from")
    if request.recipe != "ours" and request.drafter in ("self_skip", PREDICTORS):
        raise ValueError(f"no paper prints a recipe for {request.drafter}; leave out --recipe")
    if request.drafter == "self_skip" and request.draft_vocab:
        raise ValueError("self_skip drafts by the target's own head; leave out --draft-vocab")
    if request.drafter == "self_skip":
        training: SkipSearch | DrafterTraining = configured_search(config, settings, request.name)
    elif request.drafter == PREDICTORS:
        return configured_predictors(config, settings)
    else:
        schedule = TrainSchedule(
            steps=counts[0] if counts else 0,
            minutes=0 if counts else length.minutes,
            rows=length.rows,
            length=192,
            seed=place.seed,
            patience=length.patience,
        )
        if length.toy:
            steps = counts[0] if counts else 4
            schedule = replace(schedule, steps=steps, minutes=0, rows=2, length=16)
        training = drafter_training(
            request.drafter,
            schedule,
            soft,
            settings,
            request.name or "",
            request.rate,
            request.recipe,
        )
        start = None if request.start is None else place.out / request.start
        if start is None and counts == [0]:
            raise ValueError("--steps 0 keeps the weights of another drafter: name it by --from")
        if start is not None and not start.is_dir():
            raise ValueError(f"--from names {start}, which does not exist; train it first")
        training = replace(training, draft_vocab=request.draft_vocab, start=start)
    return training


def _config(text: TrainingText, length: TrainingLength, place: TrainingPlace) -> TrainConfig:
    config = TrainConfig(
        tuple(text.files),
        tuple(map(str, text.heldout)),
        distil_tokens=text.distil_tokens,
        text_tokens=text.text_tokens,
        blend=text.blend,
        device=place.device,
        seed=place.seed,
    )
    if length.toy:
        return toy_config(config)
    return with_minutes(config, length.minutes, length.minutes / 10, length.rows)
