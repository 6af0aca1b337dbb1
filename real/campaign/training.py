"""Training stages of a campaign."""

from dataclasses import replace

from real.campaign.workspace import Workspace, take_checkpoint
from real.files import replace_json
from real.train.card_file import read_card
from real.train.config import TrainConfig
from real.train.drafter_card import write_model_card
from real.train.pipeline import train_all_predictors
from real.train.search_skips import SkipSearch, search_skips
from real.train.target_data import TargetData
from real.train.target_pipeline import PredictorRequest, train_target_predictors
from real.train.train_drafter import train_drafter as train_one_drafter
from real.train.train_target import train_target as train_target_model


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


def train_drafter(workspace: Workspace, drafter: str) -> dict:
    """Trains one drafter."""
    (training,) = (each for each in workspace.train_config.drafters if each.drafter == drafter)
    if workspace.checkpoint is not None:  # whole sequences: none is longer
        length = workspace.config.recording.longest + workspace.train_config.new_tokens
        training = replace(training, plan=replace(training.plan, length=length))
    card = train_one_drafter(
        training, workspace.known.data, workspace.models, workspace.work, workspace.progress
    )
    return {
        "steps": card["steps"],
        "parameters": card["parameters"],
        "evaluation": card["evaluation"],
    }


def search_self_skip(workspace: Workspace) -> dict:
    """Searches the sub-layers that self_skip leaves out."""
    config, known = workspace.train_config, workspace.known
    search = SkipSearch(config.trials, config.seed, price=config.skip_price)
    pairs = known.greedy_pairs(search.texts)
    card = search_skips(search, known.data, pairs, workspace.models, workspace.progress)
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
