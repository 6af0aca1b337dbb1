"""The search of self_skip's sub-layers as a stage of training."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from real.files import replace_json
from real.progress import Progress, quiet, relabel
from real.train import skip_search
from real.train.card_file import check_same_settings, read_card
from real.train.config import TrainConfig
from real.train.drafter_card import environment
from real.train.drafter_data import DrafterData
from real.train.drafter_training import check_folder
from real.train.evaluate import evaluation_summary
from real.train.skip_acceptance import TokenPair


@dataclass(frozen=True)
class SkipSearch:
    """A search: trials, their seed, sequences they are evaluated on, and the drafter's folder."""

    trials: int
    seed: int
    texts: int = 24
    place: str = "self_skip"


def configured_search(config: TrainConfig, settings: dict, folder: str | None) -> SkipSearch:
    """The search with changed `settings`; ValueError for an unknown one."""
    known = ("trials", "seed", "texts")
    for key, value in settings.items():
        if key not in known or type(value) is not int or value < (key != "seed"):
            raise ValueError(
                f"self_skip cannot be searched with {key}={value!r}; "
                f"expected whole numbers for some of {', '.join(known)}"
            )
    check_folder(folder or "")
    search = SkipSearch(config.trials, config.seed, place=folder or "self_skip")
    return replace(search, **settings)


def search_skips(
    search: SkipSearch,
    data: DrafterData,
    pairs: Sequence[TokenPair],
    out: Path,
    progress: Progress = quiet,
) -> dict:
    """Searches on greedy training sequences, evaluates the best setting, and returns its card."""
    folder = out / search.place
    requested = asdict(search) | {"target": dict(data.made_for)}
    if (folder / "card.json").exists():
        card = read_card(folder / "card.json")
        check_same_settings(card.get("asked", {}), requested, folder)
        return card
    if not (folder / "self_skip.json").exists():
        result = skip_search.find(
            data.target, pairs, search.trials, search.seed, progress=relabel(progress, search.place)
        )
        skip_search.save(result, folder, data.made_for, "target-written, for training")
    content = read_card(folder / "self_skip.json")
    card = {
        "drafter": "self_skip",
        "asked": requested,
        "settings": content["settings"],
        "search": content["search"],
        "evaluation": evaluation_summary("self_skip", folder, data),
        **({"text": dict(data.source)} if data.source else {}),
        **environment(data.target.device),
    }
    replace_json(folder / "card.json", card)
    return card
