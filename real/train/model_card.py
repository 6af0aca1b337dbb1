"""The card of a model folder: settings, sizes, steps and held-out losses of all its models."""

import json
from collections.abc import Iterator
from pathlib import Path

from real.decode.acceptance_predictor import PREDICTOR_NAMES
from real.drafters import BUILTIN
from real.files import replace_json
from real.model.decoder import Decoder
from real.model.fingerprint import sha256
from real.progress import Progress, quiet
from real.train.card_file import read_card
from real.train.config import TrainConfig
from real.train.drafter_card import environment
from real.train.drafter_data import DrafterData, TrainedTarget
from real.train.evaluate import agreement, heldout_loss
from real.train.training_text import EncodedText


def language_models(
    config: TrainConfig, data: DrafterData, out: Path
) -> Iterator[tuple[str, Decoder]]:
    """The drafters that are language models of the prefix, by folder."""
    for training in config.drafters:
        folder = out / training.place
        drafter = BUILTIN[training.drafter].load(folder, data.target, data.made_for)
        if drafter.prefix_only and drafter.lm is not None:
            yield training.place, drafter.lm


def write_model_card(
    config: TrainConfig,
    text: EncodedText,
    trained: TrainedTarget,
    out: Path,
    work: Path,
    progress: Progress = quiet,
) -> None:
    """Writes `<out>/card.json`, which includes the cards of all drafters."""
    places = [d.place for d in config.drafters] + ["self_skip"] * bool(config.trials)
    cards = {place: read_card(out / place / "card.json") for place in places}
    progress("card", 0, 1, "held-out losses")
    length, target, distilled = config.target_plan.length, trained.data.target, trained.distilled
    drafters = dict(language_models(config, trained.data, out))
    models = {"target": target, **drafters}
    card = {
        "settings": config.stored(),
        "text": [Path(p).name for p in config.text],
        "text_tokens": len(text.tokens),
        "distilled_tokens": int(distilled.size),
        "steps": {
            "target": _steps(work / "target.json"),
            **{place: card["steps"] for place, card in cards.items() if "steps" in card},
        },
        "parameters": {name: sum(p.numel() for p in m.parameters()) for name, m in models.items()},
        "heldout_loss_nats": {
            name: {
                part: round(heldout_loss(m, tokens, length), 4)
                for part, tokens in text.heldout.items()
            }
            for name, m in models.items()
        },
        "predictors": {
            drafter: {
                name: _predictor_card(out / drafter / f"{name}.json") for name in PREDICTOR_NAMES
            }
            for drafter in drafters
        },
        "agreement_on_target_text": {
            name: round(agreement(m, target, distilled), 4) for name, m in drafters.items()
        },
        "drafters": cards,
        "sha256": {
            str(p.relative_to(out)): sha256(p)
            for p in sorted([*out.rglob("*.safetensors"), *out.rglob("tokenizer.json")])
        },
        **environment(config.device),
    }
    replace_json(out / "card.json", card)
    progress("card", 1, 1, str(out / "card.json"))


def _predictor_card(path: Path) -> dict:
    return json.loads(path.read_text()).get("training", {})


def _steps(path: Path) -> int | None:
    return json.loads(path.read_text())[-1]["step"] if path.exists() else None
