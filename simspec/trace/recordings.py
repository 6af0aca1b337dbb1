"""Recordings by name: files, those of a checkout's traces/, or the one in the wheel."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from simspec.cost.model import CostModel
from simspec.cost.provenance import CostOrigin
from simspec.cost.table import CostTable, check_comparable, load_cost, warning_notes
from simspec.output.names import expected_one
from simspec.trace.trace import Trace, load_trace

GIVE_COSTS = (
    "give --cost FILE, as `simspec measure` or `simspec engine measure` writes it, or --cost RATIO "
    "of a draft step to a target step, as you have measured it"
)
CHECKOUT = Path(__file__).parents[2] / "traces"
EXAMPLE = Path(__file__).parents[1] / "example"


def load_example() -> Trace:
    """The recording in the package: 24 prompts of Qwen2.5-Coder 1.5B, drafted by its 0.5B."""
    return load_trace(next(EXAMPLE.glob("*.parquet")))


def load_example_cost() -> CostModel:
    """What a round of `load_example` costs: seconds, measured on the CPU that the file names."""
    return CostModel.from_json(next(EXAMPLE.glob("*.cost.json")))


def recordings() -> dict[str, Path]:
    """{name: file} of the bundled recordings: traces/ of a checkout, else the one in the
    package.
    """
    for folder in (CHECKOUT, EXAMPLE):
        if files := {path.stem: path for path in sorted(folder.glob("*.parquet"))}:
            return files
    return {}


def locate(names: Iterable[str] | None) -> dict[str, Path]:
    """{name: file} of recordings given as files or bundled names; all bundled ones where none is
    given.

    A name that is neither is an error, unless it looks like a path: then reading it reports the
    reason. Files are named by their path as given.
    """
    bundled = recordings()
    if not names:
        if not bundled:
            raise ValueError(
                "no recording was given and none is bundled here: name a file, as `simspec record` "
                "writes it"
            )
        return bundled
    files = {}
    for name in map(str, names):
        if (
            not Path(name).exists()
            and name not in bundled
            and "/" not in name
            and not name.endswith(".parquet")
        ):
            hint = expected_one(name, bundled)
            raise ValueError(f"recording {name!r} is no file and not bundled: {hint}")
        files[name] = Path(name) if Path(name).exists() or name not in bundled else bundled[name]
    return files


def cost_beside(path: Path) -> Path | None:
    """NAME.cost.json in the folder of NAME.parquet, if it is there."""
    beside = Path(path).with_suffix(".cost.json")
    return beside if beside.is_file() else None


def costs_of(
    paths: Mapping[str, Path],
    cost: str | None = None,
    batch: int | None = None,
    context: int | None = None,
) -> dict:
    """{name: CostModel, ratio or None} of these recordings: one file or ratio for all, else each
    one's own; None without one.

    batch and context choose a cell of cost tables; context moves a cost with terms for cached
    tokens. ValueError for files that are no costs, or have no such cell.
    """
    return {
        name: _cost(cost if cost is not None else cost_beside(path), batch, context)
        for name, path in paths.items()
    }


def comparable_costs(
    paths: Mapping[str, Path],
    cost: str | None = None,
    batch: int | None = None,
    context: int | None = None,
    mixed: bool = False,
) -> tuple[dict, list[str]]:
    """(`costs_of`, notes) of recordings that are compared, with the costs' own warnings.

    ValueError where the origins of two cost files differ, unless `mixed` allows it.
    """
    costs = costs_of(paths, cost, batch, context)
    files = {name: cost_beside(path) for name, path in paths.items()} if cost is None else {}
    beside = {file: costs[name] for name, file in files.items() if file is not None}
    unique = len({file.name for file in beside}) == len(beside)
    labeled = {file.name if unique else str(file): model for file, model in beside.items()}
    read = {Path(cost).name: model for model in costs.values()} if cost is not None else labeled
    return costs, [*check_comparable(labeled, mixed), *warning_notes(read)]


def whole_costs(paths: Mapping[str, Path], cost: str | None = None) -> dict[str, Any]:
    """{name: cost file or ratio}, tables whole: the one given, else its own; None without one."""
    sources = {name: cost if cost is not None else cost_beside(p) for name, p in paths.items()}
    return {name: None if of is None else read_cost(of) for name, of in sources.items()}


def check_priced(costs: Mapping[str, Any]) -> None:
    """ValueError where a recording has no costs, for what cannot be said without them."""
    if without := [name for name, cost in costs.items() if cost is None]:
        raise ValueError(f"{has_no_costs(without)}, which speedups need: {GIVE_COSTS}")


def cost_notes(
    paths: Mapping[str, Path], costs: Mapping[str, Any], cost: str | None = None
) -> list[str]:
    """Sentences that say where the costs of a table come from, and which recordings have none."""
    files: dict[str, list[str]] = {}
    for name, held in costs.items():
        if isinstance(held, CostModel | CostTable):
            file = Path(cost or cost_beside(paths[name]) or name).name
            files.setdefault(measured_on(held), []).append(file)
        elif held is not None:
            files.setdefault(f"given ratio {held:g}", [])
    texts = [f"{_several(of)} ({text})" if of else text for text, of in files.items()]
    notes = [f"Modeled at the costs of {'; '.join(texts)}."] if texts else []
    if without := [name for name, held in costs.items() if held is None]:
        notes.append(f"{has_no_costs(without)}, so no speedup is shown: {GIVE_COSTS}.")
    return notes


def measured_on(cost: CostModel | CostTable) -> str:
    """The device of measured costs and the version of what ran on it."""
    cells = cost.known if isinstance(cost, CostTable) else [cost]  # perhaps of several sittings
    origin, *others = (cell.origin or CostOrigin() for cell in cells)
    if any(other.engines != origin.engines for other in others):
        origin = CostOrigin()
    engine, own = origin.engines.get("target", ""), origin.versions.get("simspec")
    versioned = engine if any(map(str.isdigit, engine)) or not own else f"simspec {own}"
    if origin.runner and " runner" not in versioned:
        versioned += f", {origin.runner} runner"
    device = cost.device or "no device named"
    return f"{device}, {versioned or 'no version named'}"


def has_no_costs(names: Sequence[str]) -> str:
    """The start of a sentence on recordings without costs."""
    return f"{_several(names)} {'has' if len(names) == 1 else 'have'} no costs"


def _several(names: Iterable[str]) -> str:
    first, *more = dict.fromkeys(names)
    return f"{first} and {len(more)} more" if more else first


def read_cost(text: Any) -> CostModel | CostTable | float:
    """The ratio of a number, else the costs of a file."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return load_cost(text)


def _cost(text: Any, batch: Any, context: Any) -> CostModel | float | None:
    if text is None:
        return None
    read = read_cost(text)
    if isinstance(read, CostTable):
        return read.at(batch, context)
    if isinstance(read, CostModel):
        if batch in (None, 1) and context is not None and (read.kv_verify or read.kv_draft):
            return read.at(context)
        if batch not in (None, 1) or context is not None:
            raise ValueError(
                f"{text} prices one batch size and context: drop --batch and --context, or measure "
                "a table"
            )
    elif batch is not None or context is not None:
        raise ValueError(
            f"cost {text} is a ratio, the same for every batch and context: give a cost table, or "
            "drop --batch and --context"
        )
    return read
