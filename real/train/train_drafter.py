"""One trainer for every drafter: train, keep the best weights, evaluate what was saved."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn

from real.draft import TrainingBatch
from real.files import check_same_settings, read_card, replace_json
from real.model.checkpoint import save_decoder
from real.model.decoder import Decoder
from real.model.draft_head import save_draft_head, save_vocabulary
from real.model.stored_weights import sha256, weights_exist
from real.progress import Progress, quiet, relabel
from real.train.accepted_length import accepted_lengths
from real.train.config import DrafterTraining, loss_settings, recipe_of, scaled_rate
from real.train.drafter_card import drafter_card
from real.train.drafter_data import DrafterData, K, prepared_head
from real.train.training_loop import fit, save_loss_curve


def train_drafter(
    training: DrafterTraining, data: DrafterData, out: Path, work: Path, progress: Progress = quiet
) -> dict:
    """Trains one drafter into `<out>/<folder>`, evaluates what was saved, and returns its card.

    Existing results are kept: a card means that all is done, weights without one are evaluated.
    ValueError where the folder, or the checkpoint in `<work>/<folder>`, has other settings.
    """
    folder, store = out / training.place, work / training.place
    head = prepared_head(training, data)
    training = scaled_rate(training, data.target.config.width)
    requested = _requested(training, head, data)
    card_path = folder / "card.json"
    if card_path.exists():
        card = read_card(card_path)
        check_same_settings(card.get("asked", {}), requested, folder)
        return card
    if (store / "asked.json").exists():
        check_same_settings(read_card(store / "asked.json"), requested, store)
    step_starts: list[float] = []
    loss = _loss(training, head, data, step_starts)
    if _is_saved(training, head, folder):
        path = work / f"{training.place}.json"
        log = json.loads(path.read_text()) if path.exists() else []
    else:
        replace_json(store / "asked.json", requested)
        log = []
        if training.trains:
            log = _fit(training, head, data, store, loss, relabel(progress, training.place))
            title = f"drafter {training.place}: training loss"
            save_loss_curve(log, work / f"{training.place}.png", title)
        _save(training, head, data, folder)
    progress(f"evaluating {training.place}", 0, 1)
    card = drafter_card(training, head, data, requested, log, step_starts, loss, folder)
    replace_json(card_path, card)
    evaluation = card["evaluation"]
    length = evaluation["trained"]["accepted_length"]["value"]
    note = f"accepted length {length:.2f} of {evaluation['K']}"
    progress(f"evaluating {training.place}", 1, 1, note)
    return card


def _requested(training: DrafterTraining, head: nn.Module, data: DrafterData) -> dict:
    """Everything that a repetition must share, as JSON."""
    plan = {k: v for k, v in training.plan.stored().items() if k not in ("minutes", "save_every")}
    requested = {
        "drafter": training.drafter,
        "settings": head.settings,
        "loss": loss_settings(training),
        "soft": training.soft,
        "plan": plan,
        "blend": data.blend,
        "target": dict(data.made_for),
    }
    if training.start is not None:
        name = f"{recipe_of(training.drafter).file}.safetensors"
        if isinstance(head, Decoder):
            name = "model.safetensors"
        requested["start"] = {training.start.name: sha256(training.start / name)}
    if training.paper:
        requested["recipe"] = "paper"
    if training.draft_vocab:
        requested["draft_vocab"] = training.draft_vocab
    if data.source:
        requested["text"] = {k: data.source[k] for k in ("prompts_sha256", "sequences", "features")}
    return json.loads(json.dumps(requested))


def _is_saved(training: DrafterTraining, head: nn.Module, folder: Path) -> bool:
    """Whether both files of the drafter exist; a process may have ended between the two."""
    file = recipe_of(training.drafter).file
    config = "config.json" if isinstance(head, Decoder) else f"{file}.json"
    return weights_exist(folder / f"{file}.safetensors") and (folder / config).exists()


def _save(training: DrafterTraining, head: nn.Module, data: DrafterData, folder: Path) -> None:
    if isinstance(head, Decoder):
        if (token := getattr(head, "draft_token", None)) is not None:
            save_vocabulary(token, folder)
        if hasattr(head, "exits"):
            replace_json(folder / "sorted.json", head.settings)
        save_decoder(head, folder, next(iter(data.end_tokens), None), data.context)
    else:
        save_draft_head(head, folder, recipe_of(training.drafter).file, data.made_for)


def _fit(
    training: DrafterTraining,
    head: nn.Module,
    data: DrafterData,
    store: Path,
    loss: Callable[[int], Tensor],
    progress: Progress,
) -> list[dict]:
    drafter = recipe_of(training.drafter).drafter(data.target, head)

    def validate() -> dict:
        lengths = accepted_lengths(data.target, drafter, data.validation, K)
        return {"score": round(lengths.mean(), 4), "by_depth": lengths.by_depth()}

    validation = validate if data.validation else None
    return fit(store, head, loss, training.plan, progress, validation)


def _loss(
    training: DrafterTraining, head: nn.Module, data: DrafterData, step_starts: list[float]
) -> Callable[[int], Tensor]:
    """The loss of a step; the time when it starts is appended to `step_starts`."""
    target, recipe = data.target, recipe_of(training.drafter)
    batch = data.batches(training.plan, recipe.reads(head, training.soft))
    settings = loss_settings(training)
    autocast = torch.autocast(target.device.type, dtype=torch.bfloat16)
    mixed = autocast if data.mixed else nullcontext()

    def loss(step: int) -> Tensor:
        step_starts.append(perf_counter())
        generator = torch.Generator().manual_seed((training.plan.seed << 32) + step)
        with mixed:
            drawn = TrainingBatch.of(batch(step))
            return recipe.loss(head, target, drawn, training.soft, generator, **settings)

    return loss
