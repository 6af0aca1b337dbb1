"""What the card of a trained drafter says of its training."""

from pathlib import Path
from typing import Any

from simspec.output.files import read_json
from simspec.trace.recordings import CHECKOUT


def bundled_cards(recording: Path) -> Path | None:
    """The folder with the cards of a checkout's recording; None for another one."""
    path = recording.resolve()
    if path.parent == CHECKOUT:
        return CHECKOUT.parent / "real" / "tiny"
    return CHECKOUT / "smollm2" / "drafters" if CHECKOUT / "smollm2" in path.parents else None


def tokens_learned(folder: Path | None, recording: str, drafter: str) -> int | None:
    """The tokens that a drafter learned, repetitions included, by its card; None without one.

    folder None: there are no cards.

    The first that exists of FOLDER/NAME/card.json and FOLDER/NAME.json, where NAME is the
    recording's file without its ending, then the drafter's name. None too for a card without
    training. ValueError, one line, for a damaged card, or one of another drafter.
    """
    if folder is None:
        return None
    for name in (Path(recording).stem, drafter):
        for path in (folder / name / "card.json", folder / f"{name}.json"):
            if path.is_file():
                return read_json(path, lambda data: _tokens(data, drafter), "drafter's card")
    return None


def _tokens(data: Any, drafter: str) -> int | None:
    if not isinstance(data, dict):
        raise ValueError(f"a {type(data).__name__}, expected an object")
    if data.get("drafter") != drafter:
        raise ValueError(f"drafter is {data.get('drafter')!r}, expected {drafter!r}")
    tokens = data.get("tokens")
    if tokens is None:
        return None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise ValueError(f"tokens is {tokens!r}, expected a number of tokens")
    return tokens
