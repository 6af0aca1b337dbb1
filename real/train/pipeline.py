"""Training in stages that each leave files and are then skipped.

| what | stages |
| --- | --- |
| `build`: a target and its drafters from text | tokenizer, tokens, target, distilled sequences, \
every drafter with a recipe, self_skip's search, predictors, card |
| `train_one`: a drafter of such a target | tokens, distilled sequences, the drafter, its card |
| `train_for_target`: a drafter of any target | prompts, sequences that the target writes, \
features, the drafter, its card |
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from real.decode.features import PREDICTOR_NAMES
from real.draft.losses import next_token_loss
from real.drafters import BUILTIN
from real.files import read_card
from real.model.checkpoint import load_tokenizer, save_decoder
from real.model.decoder import Decoder, initialize
from real.processes import ALONE, Processes
from real.progress import Progress, quiet, relabel
from real.prompts import PromptFormat, load_chat_template
from real.train.config import DrafterTraining, TrainConfig
from real.train.corpus import END, EncodedText, encoded_text, read_training_text, windows
from real.train.drafter_card import compare_with, language_models, write_model_card
from real.train.drafter_data import (
    TargetCheckpoint,
    TargetData,
    TrainedTarget,
    load_trained_target,
    longest_prompt,
    target_data,
)
from real.train.generate import generate_batched, generate_together
from real.train.prompt_set import PromptSources
from real.train.skip_search import SkipSearch, search_skips
from real.train.train_drafter import train_drafter
from real.train.train_predictor import (
    PredictorTraining,
    generate_one_by_one,
    predictor_prompts,
    train_predictors,
)
from real.train.training_loop import fit, save_loss_curve


def compile_layers(
    layers: Iterable[nn.Module], trial: Callable[[], Tensor], backend: str = "inductor"
) -> str:
    """Compiles each layer in place and tries `trial().backward()`; "" or the reason why not.

    After a failure the layers are uncompiled again. Layers of one kind share one compiled graph:
    seconds, where a whole model takes minutes.
    """
    layers = list(layers)
    for layer in layers:
        layer.compile(backend=backend)
    try:
        trial().backward()
        return ""
    except Exception as error:  # compilers raise anything, and training goes on without them
        for layer in layers:
            layer._compiled_call_impl = None
        return f"not compiled: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finally:
        for layer in layers:
            layer.zero_grad(set_to_none=True)


def train_target(
    config: TrainConfig, text: EncodedText, out: Path, work: Path, progress: Progress = quiet
) -> None:
    """Trains the target into `<out>/target`, unless it exists."""
    folder = out / "target"
    if (folder / "model.safetensors").exists():
        return
    decoder = Decoder(replace(config.target, vocab=config.vocab))
    schedule, device = config.target_plan, torch.device(config.device)
    initialize(decoder, config.seed)
    decoder.to(device)

    def loss(step: int) -> torch.Tensor:
        rows = windows(text.tokens, schedule.rows, schedule.length, schedule.seed, step)
        batch = torch.from_numpy(rows).to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.autocast):
            logits = decoder(batch[:, :-1])
        return next_token_loss(logits, batch[:, 1:])

    if config.compiled and (note := compile_layers(decoder.layers, lambda: loss(0))):
        progress("target", 0, 1, note)
    log = fit(work / "target", decoder, loss, schedule, relabel(progress, "target"))
    save_loss_curve(log, work / "target.png", "target: training loss")
    save_decoder(decoder, folder, text.tokenizer.token_to_id(END), schedule.length)


@dataclass(frozen=True)
class Folders:
    """Folders of drafters and of their work files."""

    out: Path
    work: Path


def train_with(
    known: TrainedTarget | TargetData,
    training: DrafterTraining | SkipSearch,
    folders: Folders,
    progress: Progress = quiet,
    other: str | None = None,
) -> dict:
    """The stage of one drafter on the data of its target: trains it, or searches self_skip.

    Returns its card; with `other`, another folder among the models, both drafters are compared.
    """
    if isinstance(training, SkipSearch):
        pairs = known.greedy_pairs(training.texts)
        card = search_skips(training, known.data, pairs, folders.out, progress)
    else:
        card = train_drafter(training, known.data, folders.out, folders.work, progress)
    if other:
        path = folders.out / training.place / "card.json"
        return compare_with(path, known.data, folders.out, other)
    return card


def build(
    config: TrainConfig,
    out: Path,
    work: Path,
    progress: Progress = quiet,
    processes: Processes = ALONE,
) -> None:
    """Runs all stages: models to `out`; tokens, checkpoints and loss curves to `work`.

    After an interruption a second call continues. Several `processes` share what the target
    generates; then all but the first end with ShareDone.
    """
    with processes.first_before_others():
        text = read_training_text(config, out, work, progress)
        if processes.first:
            train_target(config, text, out, work, progress)
    trained = load_trained_target(
        config, text.tokenizer, text.tokens, out, work, progress, processes
    )
    stages: list[DrafterTraining | SkipSearch] = [*config.drafters]
    if config.trials:
        stages.append(SkipSearch(config.trials, config.seed, price=config.skip_price))
    for training in stages:
        train_with(trained, training, Folders(out, work), progress)
    train_all_predictors(config, text, trained, out, progress)
    write_model_card(config, text, trained, out, work, progress)


def train_all_predictors(
    config: TrainConfig,
    text: EncodedText,
    trained: TrainedTarget,
    out: Path,
    progress: Progress = quiet,
) -> None:
    """Trains the acceptance predictors that do not exist yet."""
    data = trained.data
    training = PredictorTraining(
        sequences=config.predictor_texts,
        rank=config.rank,
        seed=config.seed,
        end_tokens=data.end_tokens,
        target=data.made_for["weights"],
        generate=generate_together if config.together else generate_one_by_one,
    )
    drafters = language_models(config, data, out)
    prompts = predictor_prompts(training, text.tokens)
    train_predictors(training, data.target, drafters, prompts, out, progress)


def train_one(
    config: TrainConfig,
    training: DrafterTraining | SkipSearch,
    out: Path,
    work: Path,
    progress: Progress = quiet,
    other: str | None = None,
    processes: Processes = ALONE,
) -> dict:
    """Trains one drafter for the target in `out`, or searches self_skip; returns its card.

    Text and generated sequences are taken from `work` where they exist. With `other`, another
    folder of `out`, both drafters are compared. Several `processes` share what the target
    generates; then all but the first end with ShareDone. ValueError for no target, or no text.
    """
    if not (out / "target" / "model.safetensors").exists():
        raise ValueError(
            f"{out} holds no target/ to train a drafter for; "
            f"make one first: simspec train TEXT --out {out}, or name one by --target"
        )
    if not config.text and not (work / "text.npy").exists():
        raise ValueError(
            f"no text is given and {work} holds no text.npy; "
            "name files or folders to train on, or that folder by --work"
        )
    tokenizer = load_tokenizer(out / "target")
    if tokenizer.token_to_id(END) is None:
        raise ValueError(
            f"the tokenizer of {out / 'target'} has no {END} token; "
            "expected a target made by simspec train"
        )
    with processes.first_before_others():
        tokens = encoded_text(config, tokenizer, work, progress)
    trained = load_trained_target(config, tokenizer, tokens, out, work, progress, processes)
    return train_with(trained, training, Folders(out, work), progress, other)


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
    unless the work folder has what it wrote. With `other`, another folder next to it, both
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
    if isinstance(training, DrafterTraining):  # whole sequences: none is longer
        plan = replace(training.plan, length=longest + config.new_tokens)
        training = replace(training, plan=plan)
    return train_with(known, training, folders, progress, other)


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
