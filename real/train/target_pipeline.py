"""One drafter for a target that exists, whatever its tokenizer, in stages that each leave files.

prompts -> sequences that the target writes -> features -> the drafter, and its card.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from real.decode.acceptance_predictor import PREDICTOR_NAMES
from real.drafters import BUILTIN
from real.model.decoder import Decoder
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.prompts import PromptFormat, load_chat_template
from real.train.card_file import read_card
from real.train.config import TrainConfig
from real.train.drafter_card import compare_with
from real.train.drafter_training import DrafterTraining
from real.train.generate import generate_batched
from real.train.prompt_set import PromptSources
from real.train.search_skips import SkipSearch, search_skips
from real.train.target_data import TargetCheckpoint, TargetData, longest_prompt, target_data
from real.train.train_drafter import train_drafter
from real.train.train_predictor import PredictorTraining, train_predictors


@dataclass(frozen=True)
class PredictorRequest:
    """Acceptance predictors for the drafters of a folder that are language models of the prefix.

    | field | meaning |
    | --- | --- |
    | texts | training prompts that the target continues under each rule |
    | rank | rank of the low-rank form |
    | seed | of draws and initial weights |
    """

    texts: int = 400
    rank: int = 8
    seed: int = 0


def configured_predictors(config: TrainConfig, settings: dict) -> PredictorRequest:
    """The request with changed `settings`; ValueError for an unknown one."""
    known = ("texts", "rank", "seed")
    for key, value in settings.items():
        if key not in known or type(value) is not int or value < (key != "seed"):
            raise ValueError(
                f"predictors cannot be trained with {key}={value!r}; "
                "expected whole numbers for some of texts, rank, seed"
            )
    request = PredictorRequest(config.predictor_texts, config.rank, config.seed)
    return replace(request, **settings)


@dataclass(frozen=True)
class PromptFiles:
    """Files of prompts that a target continues.

    | field | meaning |
    | --- | --- |
    | files | JSON lines as `simspec record` reads them |
    | chat_template, system | as for `simspec record` |
    | longest | most tokens of a prompt |
    """

    files: tuple[Path, ...] = ()
    chat_template: str = "auto"
    system: str = ""
    longest: int = 1024

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise ValueError(f"--longest is {self.longest}; expected at least 1 token")
        for path in self.files:
            if not path.is_file():
                raise ValueError(f"{path} does not exist; expected JSON lines of prompts")


@dataclass(frozen=True)
class Folders:
    """Where drafters go, and their work files."""

    out: Path
    work: Path


def train_for_target(
    config: TrainConfig,
    training: DrafterTraining | SkipSearch | PredictorRequest,
    target: TargetCheckpoint,
    prompts: PromptFiles,
    folders: Folders,
    progress: Progress = quiet,
    other: str | None = None,
    processes: Processes = ALONE,
) -> dict:
    """Trains one drafter, searches self_skip, or trains predictors; returns the card.

    The target continues `prompts` and windows of `config.text`, by half of its context at most,
    unless the work folder has what it wrote. With `other`, another folder beside it, both
    drafters are compared. Several `processes` share what the target writes; then all but the first
    end with ShareDone.
    """
    config = replace(config, new_tokens=max(1, min(config.new_tokens, target.context // 2)))
    longest = longest_prompt(target.context, config.new_tokens, prompts.longest)
    template = load_chat_template(target.path, prompts.chat_template, prompts.system)
    form = PromptFormat(target.tokenizer, template)
    sources = PromptSources(prompts.files, config.text, form, longest, config.seed)
    known = target_data(config, target, sources, folders.work, progress, processes)
    if isinstance(training, PredictorRequest):
        return train_target_predictors(training, known, folders.out, progress)
    if isinstance(training, SkipSearch):
        pairs = known.greedy_pairs(training.texts)
        card = search_skips(training, known.data, pairs, folders.out, progress)
    else:
        # whole sequences: none is longer
        plan = replace(training.plan, length=longest + config.new_tokens)
        training = replace(training, plan=plan)
        card = train_drafter(training, known.data, folders.out, folders.work, progress)
    if other:
        path = folders.out / training.place / "card.json"
        return compare_with(path, known.data, folders.out, other)
    return card


def train_target_predictors(
    request: PredictorRequest, known: TargetData, out: Path, progress: Progress = quiet
) -> dict:
    """Trains the predictors of all drafters in `out` that are language models of the prefix.

    ValueError where none is.
    """
    data = known.data
    training = PredictorTraining(
        sequences=request.texts,
        rank=request.rank,
        seed=request.seed,
        end_tokens=data.end_tokens,
        target=data.made_for["weights"],
        generate=generate_batched,
    )
    drafters = dict(_prefix_models(known, out))
    if not drafters:
        raise ValueError(
            f"{out} holds no drafter that predictors are trained for; "
            "train model or early_exit there first"
        )
    prompts = known.prompts.training[: request.texts]
    train_predictors(training, data.target, drafters.items(), prompts, out, progress)
    return {
        "predictors": {
            drafter: {
                name: read_card(out / drafter / f"{name}.json").get("training", {})
                for name in PREDICTOR_NAMES
            }
            for drafter in drafters
        }
    }


def _prefix_models(known: TargetData, out: Path) -> Iterator[tuple[str, Decoder]]:
    """The language models of the prefix among the trained drafters in `out`, by folder."""
    for path in sorted(out.glob("*/card.json")):
        name = str(read_card(path).get("drafter"))
        if name in BUILTIN:
            drafter = BUILTIN[name].load(path.parent, known.data.target, known.data.made_for)
            if drafter.prefix_only and drafter.lm is not None:
                yield path.parent.name, drafter.lm
