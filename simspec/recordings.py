"""Recordings by name: files of the user, those of a checkout's traces/, or the one that the wheel
carries.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from simspec.cost import CostModel
from simspec.cost_table import CostTable, load_cost

CHECKOUT = Path(__file__).parent.parent / "traces"
EXAMPLE = Path(__file__).parent / "example"


def recordings() -> dict[str, Path]:
    """The bundled recordings by name: all of traces/ in a checkout, else the small one inside the
    installed package.
    """
    for folder in (CHECKOUT, EXAMPLE):
        if found := {path.stem: path for path in sorted(folder.glob("*.parquet"))}:
            return found
    return {}


def locate(names: Iterable[str] | None) -> dict[str, Path]:
    """{name: file} of recordings given as files or bundled names, all bundled ones where none is
    given; ValueError for an unknown one.

    A name that is neither stays a file: reading it says what is wrong. Files are called by their
    path as given.
    """
    known = recordings()
    if not names:
        if not known:
            raise ValueError(
                "no recording was given and none is bundled here: name a file, as `simspec record` "
                "writes it"
            )
        return known
    found = {}
    for name in map(str, names):
        if (
            not Path(name).exists()
            and name not in known
            and "/" not in name
            and not name.endswith(".parquet")
        ):
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ValueError(
                f"recording {name!r} is no file and not bundled: {hint}expected a file, or one of "
                f"{', '.join(known)}"
            )
        found[name] = Path(name) if Path(name).exists() or name not in known else known[name]
    return found


def cost_beside(path: Path) -> Path | None:
    """NAME.cost.json beside NAME.parquet, if it is there."""
    beside = Path(path).with_suffix(".cost.json")
    return beside if beside.is_file() else None


def costs_of(
    paths: Mapping[str, Path],
    cost: str | None = None,
    batch: int | None = None,
    context: int | None = None,
) -> dict:
    """{name: CostModel or ratio} for these recordings: of one file or ratio given as text, or else
    each one's own, 0.1 where it has none.

    batch and context choose a cell of cost tables. ValueError for files that are no costs, or have
    no such cell.
    """
    return {
        name: _cost(cost if cost is not None else cost_beside(path) or "0.1", batch, context)
        for name, path in paths.items()
    }


def _cost(text: Any, batch: Any, context: Any) -> CostModel | float:
    try:
        ratio = float(text)
    except (TypeError, ValueError):
        read = load_cost(text)
        if isinstance(read, CostTable):
            return read.at(batch, context)
        if batch not in (None, 1) or context is not None:
            raise ValueError(
                f"{text} prices one batch size and context: drop --batch and --context, or measure "
                "a table"
            ) from None
        return read
    if batch is not None or context is not None:
        raise ValueError(
            f"cost {text} is a ratio, the same for every batch and context: give a cost table, or "
            "drop --batch and --context"
        )
    return ratio
