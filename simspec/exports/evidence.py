"""Evidence: the recordings of one target and drafter, and their costs at each batch size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simspec.cost.comparison import check_comparable, warning_notes
from simspec.cost.model import CostModel
from simspec.cost.table import CostTable, load_cost
from simspec.replay.sweep import cost_model
from simspec.trace.recordings import cost_beside
from simspec.trace.trace import Trace, load_trace

PAIR = ("target", "drafter", "rule", "temperature", "top_k", "top_p")
"""What recordings have to share before their rounds are counted together."""


@dataclass(frozen=True)
class Evidence:
    """What an export rests on.

    | field  | type                 | meaning                                                 |
    | ------ | -------------------- | ------------------------------------------------------- |
    | traces | {name: Trace}        | recordings that share all of PAIR                       |
    | batch  | (int,), growing      | batch sizes that are priced                             |
    | costs  | {name: (CostModel,)} | of each recording, one cost model for each batch size   |

    ValueError, one line, where recordings differ in PAIR.
    """

    traces: Mapping[str, Trace]
    batch: tuple[int, ...]
    costs: Mapping[str, tuple[CostModel, ...]]

    def __post_init__(self) -> None:
        if not self.traces:
            raise ValueError("no recording was given, expected at least one")
        (first, one), *others = self.traces.items()
        for name, trace in others:
            for field in PAIR:
                ours, theirs = getattr(one.meta, field), getattr(trace.meta, field)
                if ours != theirs:
                    raise ValueError(
                        f"recordings {first} and {name} differ in {field} ({ours!r} and "
                        f"{theirs!r}): export each pair of target and drafter alone"
                    )

    @property
    def drafter(self) -> str:
        return next(iter(self.traces.values())).meta.drafter

    @property
    def target(self) -> str:
        return next(iter(self.traces.values())).meta.target

    @property
    def K(self) -> int:
        """The longest draft that every recording holds and every cost prices."""
        priced = (cost.K for costs in self.costs.values() for cost in costs)
        return min(*(trace.K for trace in self.traces.values()), *priced)


def gather(
    paths: Mapping[str, Path],
    cost: str | None = None,
    batch: Sequence[int] | None = None,
    context: int | None = None,
    mixed: bool = False,
) -> tuple[Evidence, list[str]]:
    """(Evidence, notes) of recordings at one cost file or ratio for all, else at each one's own.

    batch: default the batch sizes of the cost tables, else 1. ValueError, one line, for several
    batch sizes where a cost prices one only, and for costs of different origins unless `mixed`.
    """
    traces = {name: load_trace(path) for name, path in paths.items()}
    sources = {name: cost or str(cost_beside(path) or 0.1) for name, path in paths.items()}
    read = {name: _read(source) for name, source in sources.items()}
    sizes = _batch_sizes(batch, read, sources)
    costs = {
        name: tuple(
            _priced(read[name], sources[name], traces[name], size, context) for size in sizes
        )
        for name in traces
    }
    files = {sources[name]: costs[name][0] for name in traces if not isinstance(read[name], float)}
    labels = [Path(file).name for file in files]
    unique = len(set(labels)) == len(labels)
    labeled = dict(zip(labels if unique else files, files.values()))
    notes = [*check_comparable(labeled, mixed), *warning_notes(labeled)]
    return Evidence(traces, sizes, costs), notes


def _read(source: str) -> CostModel | CostTable | float:
    try:
        return float(source)
    except ValueError:
        return load_cost(source)


def _batch_sizes(
    batch: Sequence[int] | None,
    read: Mapping[str, CostModel | CostTable | float],
    sources: Mapping[str, str],
) -> tuple[int, ...]:
    if batch is None:
        tables = {tuple(c.batch) if isinstance(c, CostTable) else (1,) for c in read.values()}
        if len(tables) > 1:
            raise ValueError(
                f"the cost tables have different batch sizes, {sorted(tables)}: say which with "
                "--batch-sizes"
            )
        return tables.pop()
    sizes = tuple(sorted(set(batch)))
    if not sizes or sizes[0] < 1:
        raise ValueError(f"batch sizes are {list(batch)}, expected integers from 1 on")
    for name, cost in read.items():
        if sizes != (1,) and not isinstance(cost, CostTable):
            kind = "is a ratio" if isinstance(cost, float) else "prices one batch size"
            raise ValueError(
                f"batch sizes {', '.join(map(str, sizes))} were asked for, but the cost "
                f"{Path(sources[name]).name} {kind}: measure a cost table, or leave out "
                "--batch-sizes"
            )
    return sizes


def _priced(
    read: CostModel | CostTable | float, source: str, trace: Trace, batch: int, context: int | None
) -> CostModel:
    if isinstance(read, CostTable):
        return read.at(batch, context)
    if context is not None:
        raise ValueError(
            f"--context is {context}, but the cost {Path(source).name} prices one context: "
            "measure a cost table, or leave it out"
        )
    return cost_model(read, trace)
