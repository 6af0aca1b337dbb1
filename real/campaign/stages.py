"""All stages of a campaign in order, training first; each writes one result and runs once."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from safetensors.torch import load_file, save_file

from real.campaign.config import RECOMMENDED, REQUIRED, TREE_DRAFTERS
from real.campaign.recordings import (
    audit_free_runs,
    compare_with_replay,
    cost_of_drafter,
    force_recorded,
    record_drafter,
    run_dynamic_trees,
)
from real.campaign.scheduler import RANKS, Stage
from real.campaign.timings import (
    EAGER,
    LAB,
    TUNED,
    draw_figures,
    emulate_drafter,
    measure_host_wait,
    measure_latency,
    race_transformers,
    run_static_tree,
    score_drafter,
)
from real.campaign.workspace import Workspace, take_checkpoint
from real.files import read_card, replace_json, replacing
from real.jobs import RULES
from real.jobs.convert import quantize_drafter
from real.train.config import TrainConfig
from real.train.drafter_card import write_model_card
from real.train.drafter_data import TargetData
from real.train.pipeline import (
    PredictorRequest,
    train_all_predictors,
    train_target_predictors,
    train_with,
)
from real.train.pipeline import train_target as train_target_model
from real.train.skip_search import SkipSearch


def prepare_text(workspace: Workspace) -> dict:
    """Fits the tokenizer and encodes the text."""
    read = workspace.read
    return {
        "tokens": len(read.tokens),
        "heldout": {name: len(tokens) for name, tokens in read.heldout.items()},
    }


def train_target(workspace: Workspace) -> dict:
    """Trains the target, or takes the given checkpoint, and saves its hash."""
    if workspace.checkpoint is not None:
        take_checkpoint(workspace.checkpoint, workspace.models / "target", workspace.progress)
    else:
        train_target_model(
            workspace.train_config,
            workspace.read,
            workspace.models,
            workspace.work,
            workspace.progress,
        )
    workspace.save_target_hash()
    return {"sha256": workspace.target}


def generate_text(workspace: Workspace) -> dict:
    """Lets the target generate what drafters learn from."""
    known = workspace.known
    if isinstance(known, TargetData):
        return {"tokens": known.sequences.new_tokens, "sequences": len(known.sequences)}
    return {"tokens": int(known.distilled.size)}


EVALUATION_SECONDS, TRAINING_SHARE = 45, 0.85
"""Seconds of a call that a training leaves for its evaluation; the share of the others that it
plans for: steps are counted from the speed of the first ones, before others have begun."""


def train_drafter(workspace: Workspace, folder: str) -> dict:
    """Trains the drafter of one folder."""
    (training,) = (each for each in workspace.train_config.drafters if each.place == folder)
    fits = max(TRAINING_SHARE * (workspace.seconds_left - EVALUATION_SECONDS), 1) / 60
    plan = replace(training.plan, minutes=min(training.plan.minutes, fits))
    training = replace(training, plan=plan)
    if workspace.checkpoint is not None:  # whole sequences: none is longer
        length = workspace.config.recording.longest + workspace.train_config.new_tokens
        training = replace(training, plan=replace(training.plan, length=length))
    card = train_with(workspace.known, training, workspace.folders, workspace.progress)
    if workspace.checkpoint is not None:
        store_small(workspace.models / training.place)
    return {
        "steps": card["steps"],
        "parameters": card["parameters"],
        "evaluation": card["evaluation"],
    }


def store_small(folder: Path) -> None:
    """Stores a trained drafter small enough to carry: a draft head in int8, a model in float16.

    It is recorded and run as it is stored. A second call changes nothing.
    """
    card, weights = read_card(folder / "card.json"), folder / "model.safetensors"
    if "stored" in card:
        return
    if weights.exists():
        half = {name: value.half() for name, value in load_file(weights).items()}
        with replacing(weights) as temporary:
            save_file(half, temporary, {"format": "pt"})
        replace_json(folder / "card.json", card | {"stored": "float16"})
        return
    part = folder.with_name(f".{folder.name}.int8")  # a killed job leaves it; the next starts anew
    shutil.rmtree(part, ignore_errors=True)
    made = quantize_drafter(folder, part)
    for path in part.glob("*.safetensors"):
        path.replace(folder / path.name)
    shutil.rmtree(part)
    kept = {name: made[name] for name in ("stored", "source_sha256", "relative_error")}
    replace_json(folder / "card.json", card | kept)


def search_self_skip(workspace: Workspace) -> dict:
    """Searches the sub-layers that self_skip leaves out."""
    config = workspace.train_config
    search = SkipSearch(config.trials, config.seed, price=config.skip_price)
    card = train_with(workspace.known, search, workspace.folders, workspace.progress)
    return {"settings": card["settings"], "evaluation": card["evaluation"]}


def _trained_drafters(workspace: Workspace) -> TrainConfig:
    """The training with those drafters that are trained."""
    config = workspace.train_config
    drafters = tuple(
        each for each in config.drafters if (workspace.models / each.place / "card.json").exists()
    )
    return replace(
        config,
        drafters=drafters,
        trials=config.trials * (workspace.models / "self_skip" / "card.json").exists(),
    )


def train_predictors(workspace: Workspace) -> dict:
    """Trains the acceptance predictors."""
    known, config = workspace.known, workspace.train_config
    if isinstance(known, TargetData):
        request = PredictorRequest(config.predictor_texts, config.rank, config.seed)
        train_target_predictors(request, known, workspace.models, workspace.progress)
        return {}
    train_all_predictors(
        _trained_drafters(workspace), workspace.read, known, workspace.models, workspace.progress
    )
    return {}


def write_card(workspace: Workspace) -> dict:
    """Writes the card of the model folder; for a given target, the cards of its drafters."""
    known = workspace.known
    if isinstance(known, TargetData):
        return _write_drafter_cards(workspace, known)
    write_model_card(
        _trained_drafters(workspace),
        workspace.read,
        known,
        workspace.models,
        workspace.work,
        workspace.progress,
    )
    card = read_card(workspace.models / "card.json")
    return {
        name: card[name] for name in ("parameters", "heldout_loss_nats", "steps", "text_tokens")
    }


def _write_drafter_cards(workspace: Workspace, known: TargetData) -> dict:
    config = _trained_drafters(workspace)
    places = [training.place for training in config.drafters] + ["self_skip"] * bool(config.trials)
    cards = {place: read_card(workspace.models / place / "card.json") for place in places}
    parameters = sum(p.numel() for p in known.data.target.parameters())
    card = {
        "target": dict(known.data.made_for),
        "parameters": {"target": parameters},
        "steps": {place: card["steps"] for place, card in cards.items() if "steps" in card},
        "text": dict(known.data.source),
        "drafters": cards,
    }
    replace_json(workspace.models / "card.json", card)
    return {"parameters": card["parameters"], "steps": card["steps"], "text_tokens": 0}


FULLY_REQUIRED = ("model", "eagle")
"""Drafters whose audits and emulations are required: one reads tokens, one the target."""


SLOW_SECONDS = {"cost-eagle-greedy": 65, "record-eagle-greedy": 50, "record-eagle-coupled": 50}
"""Seconds of stages that compile layers, or generate sequences that others reuse.

Like those of all stages of a given target's EAGLE and of n-gram costs they are an H200's.
"""


PREFIX_ONLY = ("model", "early_exit")
"""Required drafters that acceptance predictors are trained for."""


def stages(checkpoint: bool = False, ablations: Sequence[str] = ()) -> list[Stage]:
    """All stages, the required ones first; what one drafter needs comes before the next trains.

    `checkpoint`: the target exists already. `ablations`: folders of further drafters to train.
    """
    silent, first, others = "prompt_lookup", REQUIRED[0], REQUIRED[1:]
    drafters = (*REQUIRED, silent)
    if checkpoint:
        ordered = [Stage("target", "required", 45, train_target)]
    else:
        ordered = [
            Stage("text", "required", 20, prepare_text),
            Stage("target", "required", 265, train_target, ("text",), True),
        ]
    learned = tuple(f"drafter-{d}" for d in REQUIRED)
    predicted = tuple(f"drafter-{d}" for d in PREFIX_ONLY)
    tree = partial(run_static_tree, drafter="eagle")
    ordered += [
        Stage("distil", "required", 130 if checkpoint else 40, generate_text, ("target",), True),
        _training(first, "required"),
        *_drafter_stages(first, "required", (f"drafter-{first}",), checkpoint),
        *_drafter_stages(silent, "required", ("distil",), checkpoint),
        Stage("tree-eagle", "required", 15, tree, _recording_stages("eagle")),
        *(_training(d, "required") for d in others),
        Stage("predictors", "required", 12, train_predictors, predicted),
        Stage("card", "required", 10, write_card, ("predictors", *learned)),
    ]
    for d in others:
        needs = (f"drafter-{d}", *["predictors"] * (d in PREFIX_ONLY))
        ordered += _drafter_stages(d, "required", needs, checkpoint)
    ordered += [
        Stage(f"ladder-{name}", "required", 65, partial(measure_latency, name=name), (), True)
        for name in ("8b", "7b")
    ]
    ordered.append(
        Stage(
            f"ladder-{LAB}", "required", 15, partial(measure_latency, name=LAB), ("target",), True
        )
    )
    needs = ("target",) if checkpoint else ()
    ordered.append(Stage("wait", "required", 2, measure_host_wait, needs))
    ordered += [
        Stage(
            f"ladder-{name}", "optional", 60, partial(measure_latency, name=name), ("target",), True
        )
        for name in (TUNED, EAGER)
    ]
    greedy = tuple(f"{what}-{d}-greedy" for d in drafters for what in ("record", "cost"))
    ordered.append(Stage("race", "required", 120, race_transformers, greedy))
    ordered += [
        Stage(
            f"drive-{d}",
            "required" if d in FULLY_REQUIRED else "recommended",
            50,
            partial(emulate_drafter, drafter=d),
            _recording_stages(d),
        )
        for d in REQUIRED
    ]
    ordered.append(Stage("figures", "recommended", 20, draw_figures, _recording_stages("model")))
    skips = Stage("drafter-self_skip", "recommended", 50, search_self_skip, ("distil",))
    ordered += [_training(folder, "recommended") for folder in ablations]
    for d in (*RECOMMENDED, "self_skip"):
        ordered.append(skips if d == "self_skip" else _training(d, "recommended"))
        ordered += _drafter_stages(d, "recommended", (f"drafter-{d}",), checkpoint)
    ordered.append(
        Stage(
            "card-of-more",
            "recommended",
            15,
            write_card,
            tuple(f"drafter-{d}" for d in (*RECOMMENDED, "self_skip")),
        )
    )
    ordered += [
        Stage(
            f"trees-{d}",
            "recommended",
            60,
            partial(run_dynamic_trees, drafter=d),
            _recording_stages(d),
            True,
        )
        for d in TREE_DRAFTERS
    ]
    ordered += [
        Stage(
            f"tree-{d}", "optional", 15, partial(run_static_tree, drafter=d), _recording_stages(d)
        )
        for d in TREE_DRAFTERS
        if d != "eagle"
    ]
    return sorted(ordered, key=lambda stage: RANKS.index(stage.rank))


def _training(folder: str, rank: str) -> Stage:
    run = partial(train_drafter, folder=folder)
    return Stage(f"drafter-{folder}", rank, 40, run, ("distil",), True)


def _recording_stages(drafter: str) -> tuple[str, ...]:
    return tuple(f"{what}-{drafter}-{rule}" for rule in RULES for what in ("record", "cost"))


SCORE_SECONDS = {False: 25, True: 185}
"""Seconds of a scorecard; of a given target it is of more prompts, under each rule."""


def _drafter_stages(
    drafter: str, rank: str, needs: tuple[str, ...], checkpoint: bool
) -> list[Stage]:
    """Stages of a trained drafter; those of one dtype are adjacent, so that models load twice."""
    recordings = _recording_stages(drafter)
    silent = drafter == "prompt_lookup"
    ordered = [
        Stage(
            f"cost-{drafter}-{r}",
            rank,
            37,
            partial(cost_of_drafter, drafter=drafter, rule=r),
            needs,
        )
        for r in RULES
    ]
    ordered += [
        Stage(
            f"record-{drafter}-{r}",
            rank,
            6,
            partial(record_drafter, drafter=drafter, rule=r),
            needs,
            True,
        )
        for r in RULES
    ]
    ordered = [
        replace(stage, seconds=SLOW_SECONDS.get(stage.name, stage.seconds)) for stage in ordered
    ]
    ordered.append(
        Stage(
            f"equal-{drafter}", rank, 24, partial(compare_with_replay, drafter=drafter), recordings
        )
    )
    last: list[tuple[str, str, int, Callable]] = [
        ("score", "recommended" if silent else rank, SCORE_SECONDS[checkpoint], score_drafter),
        ("forced", rank, 15, force_recorded),
        ("audit", rank if drafter in FULLY_REQUIRED else "recommended", 11, audit_free_runs),
    ]
    return ordered + [
        Stage(f"{name}-{drafter}", stage_rank, seconds, partial(run, drafter=drafter), recordings)
        for name, stage_rank, seconds, run in last
    ]
