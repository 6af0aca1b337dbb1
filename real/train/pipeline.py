"""A target and its drafters from text, in stages that each leave a file and are then skipped.

tokenizer -> tokens -> target -> distilled sequences -> every drafter with a training recipe ->
self_skip's search -> predictors -> card.
"""

from pathlib import Path

from real.model.checkpoint import load_tokenizer
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.train.config import TrainConfig
from real.train.corpus import END, EncodedText, encoded_text, read_training_text
from real.train.drafter_card import compare_with, language_models, write_model_card
from real.train.drafter_data import TrainedTarget, load_trained_target
from real.train.drafter_training import DrafterTraining
from real.train.generate import generate_together
from real.train.search_skips import SkipSearch, search_skips
from real.train.train_drafter import train_drafter
from real.train.train_predictor import (
    PredictorTraining,
    generate_one_by_one,
    predictor_prompts,
    train_predictors,
)
from real.train.train_target import train_target


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
    for training in config.drafters:
        train_drafter(training, trained.data, out, work, progress)
    if config.trials:
        search = SkipSearch(config.trials, config.seed, price=config.skip_price)
        pairs = trained.greedy_pairs(search.texts)
        search_skips(search, trained.data, pairs, out, progress)
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
    if isinstance(training, SkipSearch):
        pairs = trained.greedy_pairs(training.texts)
        card = search_skips(training, trained.data, pairs, out, progress)
    else:
        card = train_drafter(training, trained.data, out, work, progress)
    if other:
        return compare_with(out / training.place / "card.json", trained.data, out, other)
    return card
