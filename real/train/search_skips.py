"""The search of self_skip's sub-layers as a stage of training."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from real.drafters.self_skip import SelfSkipDrafter
from real.files import replace_json
from real.progress import Progress, quiet, relabel
from real.train import skip_search
from real.train.accepted_length import accepted_lengths
from real.train.card_file import check_same_settings, read_card
from real.train.config import TrainConfig
from real.train.drafter_card import environment, evaluation_summary
from real.train.drafter_data import DrafterData
from real.train.drafter_training import check_folder
from real.train.skip_acceptance import TokenPair
from real.train.skip_search import LONGEST, SkipPrice, measured_price, sublayer_price


@dataclass(frozen=True)
class SkipSearch:
    """A search of the sub-layers that a draft skips.

    | field | meaning |
    | --- | --- |
    | trials, seed | of the search |
    | texts | sequences that its trials are evaluated on |
    | place | the drafter's folder |
    | price | measured: of draft steps and verification, timed here; layers: the number of \
sub-layers, equal on every machine |
    """

    trials: int
    seed: int
    texts: int = 24
    place: str = "self_skip"
    price: str = "measured"

    @property
    def stored(self) -> dict[str, object]:
        """The fields as a card holds them; earlier cards were priced by layers."""
        fields = asdict(self)
        if self.price == "layers":
            del fields["price"]
        return fields


PRICES = ("measured", "layers")
"""Values of `SkipSearch.price`."""


def configured_search(config: TrainConfig, settings: dict, folder: str | None) -> SkipSearch:
    """The search with changed `settings`; ValueError for an unknown one."""
    known = ("trials", "seed", "texts")
    price = settings.get("price", config.skip_price)
    if price not in PRICES:
        raise ValueError(f"price is {price!r}; expected {' or '.join(PRICES)}")
    for key, value in settings.items():
        if key == "price":
            continue
        if key not in known or type(value) is not int or value < (key != "seed"):
            raise ValueError(
                f"self_skip cannot be searched with {key}={value!r}; "
                f"expected whole numbers for some of {', '.join(known)}, or price=layers"
            )
    check_folder(folder or "")
    search = SkipSearch(config.trials, config.seed, place=folder or "self_skip")
    return replace(search, **settings | {"price": price})


def search_skips(
    search: SkipSearch,
    data: DrafterData,
    pairs: Sequence[TokenPair],
    out: Path,
    progress: Progress = quiet,
) -> dict:
    """Searches on greedy training sequences, evaluates the best setting, and returns its card.

    The card holds the speedup that the search promises beside its replay on held-out sequences, at
    the same price.
    """
    folder = out / search.place
    requested = search.stored | {"target": dict(data.made_for)}
    if (folder / "card.json").exists():
        card = read_card(folder / "card.json")
        check_same_settings(card.get("asked", {}), requested, folder)
        return card
    if not (folder / "self_skip.json").exists():
        priced = measured_price(data.target, LONGEST) if search.price == "measured" else None
        found = relabel(progress, search.place)
        result = skip_search.find(
            data.target, pairs, search.trials, search.seed, progress=found, price=priced
        )
        skip_search.save(result, folder, data.made_for, "target-written, for training")
    content = read_card(folder / "self_skip.json")
    card = {
        "drafter": "self_skip",
        "asked": requested,
        "settings": content["settings"],
        "search": content["search"],
        "evaluation": evaluation_summary("self_skip", folder, data),
        "replay": _replay(content["search"], folder, data),
        **({"text": dict(data.source)} if data.source else {}),
        **environment(data.target.device),
    }
    replace_json(folder / "card.json", card)
    return card


def _replay(search: dict, folder: Path, data: DrafterData) -> dict:
    """The speedup of the promised draft length on held-out sequences, at the search's price."""
    price = sublayer_price(search["K"], len(data.target.layers))
    if stored := search.get("price"):
        price = SkipPrice(**stored | {"verify": tuple(stored["verify"])})
    drafter = SelfSkipDrafter.load(folder, data.target, data.made_for)
    lengths = accepted_lengths(data.target, drafter, data.evaluation, search["k"])
    return price.replay(lengths.accepted, search["k"], search["cost"])
