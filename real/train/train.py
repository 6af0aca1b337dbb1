"""Training of one drafter: its recipe, the weights, and its card with what was saved evaluated."""

import inspect
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from real.draft import Drafter, PaperRecipe, TrainingRecipe
from real.drafters import BUILTIN, trainable
from real.files import check_same_settings, read_card, replace_json
from real.model.checkpoint import load_decoder, save_decoder
from real.model.decoder import Decoder
from real.model.draft_head import load_draft_head, load_vocabulary, save_draft_head, save_vocabulary
from real.model.stored_weights import sha256, weights_exist
from real.processes import ALONE, Processes
from real.progress import Progress, quiet, relabel
from real.provenance import check_device, environment
from real.train import evaluation
from real.train.data import K, TrainingData, load_data
from real.train.loop import TrainSchedule, fit
from real.train.predictors import train_predictors
from real.train.settings import PREDICTORS, SEARCHED, Training, check_drafter
from real.train.skip_search import search_skips
from simspec.output.files import reraised

RECIPE_WIDTH = 160
"""Width of the target that the recipes' learning rates were chosen on."""


def train_drafter(
    settings: Training, progress: Progress = quiet, processes: Processes = ALONE
) -> dict:
    """Trains one drafter, searches self_skip, or trains predictors; returns the card.

    Text is written into the work folder, the drafter into `<out>/<name>`; a second call continues.
    Several `processes` share what the target writes; then all but the first end with ShareDone.
    """
    check_drafter(settings.drafter, trainable(), tuple(BUILTIN))
    if settings.drafter in (SEARCHED, PREDICTORS):
        for option in ("draft_vocab", "rate", "start"):
            if getattr(settings, option):
                name = {"draft_vocab": "draft-vocab", "start": "from"}.get(option, option)
                raise ValueError(f"{settings.drafter} trains no weights: leave out --{name}")
        work: Callable = search_skips if settings.drafter == SEARCHED else train_predictors
    else:
        _ = settings_of(settings)
        work = train_weights
    settings = replace(settings, device=processes.device(settings.device))
    check_device(settings.device)
    data = load_data(settings, progress, processes)
    return work(settings, data, progress)


def recipe_of(drafter: str) -> TrainingRecipe:
    """The training recipe of a drafter, which `check_drafter` has let through."""
    recipe = BUILTIN[drafter].recipe
    assert recipe is not None
    return recipe


def paper_of(settings: Training) -> PaperRecipe | None:
    """The authors' recipe where it is asked for; ValueError where none is printed."""
    if settings.recipe == "ours":
        return None
    paper = recipe_of(settings.drafter).paper
    if paper is None:
        printed = [other for other in trainable() if recipe_of(other).paper]
        raise ValueError(
            f"no paper prints a recipe for {settings.drafter}; "
            f"leave --recipe out, or train one of {', '.join(printed)}"
        )
    return paper


def settings_of(settings: Training) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """(settings of the draft head, those of the loss, whether it learns the distribution).

    By the recipe unless given; ValueError for an unknown setting.
    """
    recipe, paper = recipe_of(settings.drafter), paper_of(settings)
    head = [*inspect.signature(recipe.head).parameters][1:]  # after the target
    # after head, target, batch, soft and generator
    loss = [*inspect.signature(recipe.loss).parameters][5:]
    given = {**recipe.defaults, **(paper.settings if paper else {}), **settings.chosen}
    soft = given.pop("soft", paper.soft if paper else recipe.soft)
    if unknown := [name for name in given if name not in (*head, *loss)]:
        raise ValueError(
            f"{settings.drafter} has no setting {unknown[0]!r}; "
            f"expected one of {', '.join((*head, *loss, 'soft'))}"
        )
    if not isinstance(soft, bool):
        raise ValueError(f"soft is {soft!r}, expected true or false")
    part = ({k: v for k, v in given.items() if k in known} for known in (head, loss))
    return next(part), next(part), soft


def schedule_of(settings: Training, width: int, length: int) -> TrainSchedule:
    """The schedule for a target of this `width`, on sequences of at most `length` tokens.

    A recipe's learning rate falls as 1 / width where the draft head is wider than the recipe's:
    muP's rule for inner matrices (Yang et al., arXiv 2203.03466, Table 3). A rate that is given,
    or printed, stays.
    """
    paper, rate = paper_of(settings), settings.rate
    if rate is None and paper is not None:
        rate = paper.rate
    if rate is None:
        wide = settings_of(settings)[0].get("width", width)
        rate = recipe_of(settings.drafter).rate * min(1.0, RECIPE_WIDTH / wide)
    schedule = TrainSchedule(
        steps=settings.steps or 0,
        minutes=settings.minutes if settings.steps is None else 0,
        rows=settings.rows,
        length=length,
        rate=rate,
        seed=settings.seed,
    )
    if paper is None:
        return schedule
    return replace(
        schedule,
        optimizer="adamw",
        betas=paper.betas,
        decay=paper.decay,
        clip=paper.clip,
        warmup=paper.warmup,
    )


def new_head(settings: Training, target: Decoder) -> nn.Module:
    """The draft head before any training, by the seed; ValueError for bad settings."""
    chosen = settings_of(settings)[0]
    torch.manual_seed(settings.seed + 1)
    what = f"{settings.drafter} cannot be made with {chosen}"
    with reraised(ValueError, what, raised=(TypeError, RuntimeError)):
        return recipe_of(settings.drafter).head(target, **chosen).requires_grad_(True)


def prepared_head(settings: Training, data: TrainingData) -> nn.Module:
    """`new_head`, or the weights that it starts from, with the draft vocabulary that is asked for.

    That holds the most frequent tokens; one of all tokens is none. ValueError for a size that
    cannot be, or a drafter without a vocabulary head that can be restricted.
    """
    head: Any = new_head(settings, data.target)
    if settings.start is not None:
        _start(head, settings, data)
    size, vocab = settings.draft_vocab, data.target.config.vocab
    if size and not hasattr(head, "restrict"):
        raise ValueError(f"{settings.drafter} has no draft vocabulary; leave out --draft-vocab")
    if size and size != vocab:
        token = most_frequent(data.counts, size).to(data.target.device)
        head.restrict(data.target, token)
    return head


def most_frequent(counts: np.ndarray, size: int) -> Tensor:
    """The `size` tokens of largest count, ascending int64 `[size]`; ties go to the smaller id.

    ValueError for fewer than 2, or more than there are.
    """
    if not 2 <= size <= len(counts):
        raise ValueError(
            f"--draft-vocab is {size}; expected 2 to {len(counts)} tokens, "
            f"such as {len(counts) // 4}, or none for all of them"
        )
    best = np.argsort(-counts, kind="stable")[:size]
    return torch.from_numpy(np.sort(best))


def _start(head: Any, settings: Training, data: TrainingData) -> None:
    """Copies the weights that training starts from; ValueError where they are of another form.

    A drafter with a draft vocabulary is given another one: scores of tokens outside it come from
    rows of the target's head or the drafter's embedding.
    """
    assert settings.start is not None
    folder, vocab = settings.out / settings.start, data.target.config.vocab
    stored: nn.Module
    if isinstance(head, Decoder):
        stored = load_decoder(folder, device=str(data.target.device))
        token = load_vocabulary(folder, vocab)
    else:
        recipe = recipe_of(settings.drafter)
        given = recipe.file, data.target, data.made_for
        stored = load_draft_head(recipe.head, folder, *given)
        token = getattr(stored, "draft_token", None)
    if token is not None:
        name = f"--from {settings.start} drafts from a part of the vocabulary"
        if getattr(stored, "settings", {}).get("own_head"):
            raise ValueError(
                f"{name} and stores no other rows of its head; start from the whole one"
            )
        if not settings.draft_vocab:
            raise ValueError(f"{name}; say which part now: --draft-vocab N, {vocab} for all of it")
    try:
        head.load_state_dict(stored.state_dict())
    except RuntimeError as error:
        raise ValueError(
            f"--from {settings.start} has other settings; repeat its --set options"
        ) from error


def train_weights(settings: Training, data: TrainingData, progress: Progress = quiet) -> dict:
    """Trains one drafter into `<out>/<name>`, evaluates what was saved, and returns its card.

    Existing results are kept: a card means that all is done, weights without one are evaluated.
    ValueError where the folder, or the checkpoint in the work folder, has other settings.
    """
    place, work = settings.place, settings.work_folder
    folder, store, losses = settings.out / place, work / place, work / f"{place}.json"
    head = prepared_head(settings, data)
    schedule = schedule_of(settings, data.target.config.width, data.length)
    requested = _requested(settings, schedule, head, data)
    if (folder / "card.json").exists():
        card = read_card(folder / "card.json")
        check_same_settings(card.get("asked", {}), requested, folder)
        return card
    if (store / "asked.json").exists():
        check_same_settings(read_card(store / "asked.json"), requested, store)
    starts: list[float] = []
    loss = _loss(settings, schedule, head, data, starts)
    log: list[dict] = []
    if _is_saved(settings.drafter, head, folder):
        log = json.loads(losses.read_text()) if losses.exists() else []
    else:
        replace_json(store / "asked.json", requested)
        if settings.steps != 0:  # else the weights stay as they start
            drafter = recipe_of(settings.drafter).drafter(data.target, head)
            label = relabel(progress, place)
            log = fit(store, head, loss, schedule, label, _validation(drafter, data))
            replace_json(losses, log)
        _save(settings.drafter, head, data, folder)
    progress(f"evaluating {place}", 0, 1)
    steps = log[-1]["step"] if log else 0
    seconds = [b - a for a, b in zip(starts, starts[1:])]
    validations = [{"step": row["step"]} | row["valid"] for row in log if "valid" in row]
    file = recipe_of(settings.drafter).file
    card = {
        "drafter": settings.drafter,
        "asked": requested,
        "steps": steps,
        "tokens": data.learning.seen(schedule, steps)[1],
        "seconds_per_batch": round(median(seconds), 4) if seconds else None,
        "parameters": {"trained": sum(p.numel() for p in head.parameters())},
        "validation": max(validations, key=lambda row: row["score"], default=None),
        "learning_curve": [[row["step"], row["score"]] for row in validations],
        "evaluation": evaluate_trained(settings, data, schedule, steps),
        "sha256": sha256(folder / f"{file}.safetensors"),
        **environment(data.target.device),
        "text": dict(data.source),
    }
    if paper := paper_of(settings):
        card["recipe"] = {"source": paper.source, "not_printed": list(paper.silent)}
    if (token := getattr(head, "draft_token", None)) is not None:
        held = np.concatenate([new_tokens for _, new_tokens in data.evaluation])
        share = round(float(np.isin(held, token.cpu().numpy()).mean()), 4)
        card["draft_vocabulary"] = {"tokens": len(token), "coverage": share}
    replace_json(folder / "card.json", card)
    trained = card["evaluation"]["trained"]["accepted_length"]["value"]
    note = f"accepted length {trained:.2f} of {card['evaluation']['K']}"
    progress(f"evaluating {place}", 1, 1, note)
    return card


def _requested(settings: Training, schedule: TrainSchedule, head: Any, data: TrainingData) -> dict:
    """Everything that a repetition must share, as JSON."""
    plan = {k: v for k, v in schedule.stored().items() if k not in ("minutes", "save_every")}
    _, loss, soft = settings_of(settings)
    requested = {
        "drafter": settings.drafter,
        "settings": head.settings,
        "loss": loss,
        "soft": soft,
        "plan": plan,
        "blend": 1.0,  # the share that the target wrote; cards of before know others
        "target": dict(data.made_for),
        "text": {k: data.source[k] for k in ("prompts_sha256", "sequences", "features")},
    }
    if settings.start is not None:
        file = "model" if isinstance(head, Decoder) else recipe_of(settings.drafter).file
        started = settings.out / settings.start / f"{file}.safetensors"
        requested["start"] = {settings.start: sha256(started)}
    if settings.recipe == "paper":
        requested["recipe"] = "paper"
    if settings.draft_vocab:
        requested["draft_vocab"] = settings.draft_vocab
    return json.loads(json.dumps(requested))


def _is_saved(drafter: str, head: nn.Module, folder: Path) -> bool:
    """Whether both files of the drafter exist; a process may have ended between the two."""
    file = recipe_of(drafter).file
    config = "config.json" if isinstance(head, Decoder) else f"{file}.json"
    return weights_exist(folder / f"{file}.safetensors") and (folder / config).exists()


def _save(drafter: str, head: nn.Module, data: TrainingData, folder: Path) -> None:
    if isinstance(head, Decoder):
        if (token := getattr(head, "draft_token", None)) is not None:
            save_vocabulary(token, folder)
        if hasattr(head, "exits"):
            replace_json(folder / "sorted.json", head.settings)
        save_decoder(head, folder, next(iter(data.end_tokens), None), data.context)
    else:
        save_draft_head(head, folder, recipe_of(drafter).file, data.made_for)


def _validation(drafter: Drafter, data: TrainingData) -> Callable[[], dict] | None:
    def validate() -> dict:
        lengths = evaluation.accepted_lengths(data.target, drafter, data.validation, K)
        return {"score": round(lengths.mean(), 4), "by_depth": lengths.by_depth()}

    return validate if data.validation else None


def _loss(
    settings: Training,
    schedule: TrainSchedule,
    head: nn.Module,
    data: TrainingData,
    step_starts: list[float],
) -> Callable[[int], Tensor]:
    """The loss of a step; the time when it starts is appended to `step_starts`."""
    target, recipe = data.target, recipe_of(settings.drafter)
    _, chosen, soft = settings_of(settings)
    batch = data.learning.batches(schedule, recipe.reads(head, soft))
    autocast = torch.autocast(target.device.type, dtype=torch.bfloat16)

    def loss(step: int) -> Tensor:
        step_starts.append(perf_counter())
        generator = torch.Generator().manual_seed((schedule.seed << 32) + step)
        with autocast if data.mixed else nullcontext():
            return recipe.loss(head, target, batch(step), soft, generator, **chosen)

    return loss


def evaluate_trained(
    settings: Training, data: TrainingData, schedule: TrainSchedule, steps: int
) -> dict:
    """The "evaluation" of a card: the saved drafter, an untrained drafter and a trigram table."""
    target, held = data.target, data.evaluation
    trained = evaluation.evaluate_drafter(settings.drafter, settings.out / settings.place, data)
    longest = trained.K  # compared at what it offers
    head = prepared_head(replace(settings, start=None, steps=settings.steps or None), data)
    untrained = evaluation.accepted_lengths(
        target, recipe_of(settings.drafter).drafter(target, head), held, longest
    )
    # of 4,000 steps where weights came without their log
    windows, _ = data.learning.seen(schedule, steps or schedule.steps or 4000)
    table = evaluation.count_trigrams(windows, target.config.vocab)
    rows = (evaluation.lengths_of_hits(table.hits(*pair), longest) for pair in held)
    trigram = evaluation.AcceptedLengths(longest, *zip(*rows))
    return {
        **evaluation.evaluation_size(data),
        "K": longest,
        "trained": evaluation.summary(trained) | {"by_sequence": trained.by_sequence()},
        "untrained": evaluation.summary(untrained),
        "trigram": evaluation.summary(trigram),
        "beats_untrained": evaluation.compare(trained, untrained),
        "beats_trigram": evaluation.compare(trained, trigram),
    }
