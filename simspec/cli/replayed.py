"""Options of commands that replay policies on recordings, and which policies each can serve."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simspec.output.terminal import print_note
from simspec.settings import Settings, argument, option

if TYPE_CHECKING:
    from simspec.trace.trace import Trace

Traces = Annotated[
    tuple[str, ...],
    argument("Recordings: files, or names of bundled ones; default: all bundled ones."),
]
Cost = Annotated[
    str | None,
    option(
        "A cost file, or the ratio draft step / target step; "
        "default: NAME.cost.json next to each recording."
    ),
]
MixedCosts = Annotated[
    bool,
    option("Compare costs of different devices, threads or dtypes all the same.", "--mixed-costs"),
]
Replicates = Annotated[int, option("Draws of each policy that draws.", ge=1, le=10_000)]
Level = Annotated[float, option("Level of the intervals.", gt=0, lt=1)]
Seed = Annotated[int, option("Seed of all draws and of the bootstrap.", ge=0, le=(1 << 63) - 1)]
Json = Annotated[bool, option("Print one JSON object instead of a table.", "--json")]
Markdown = Annotated[bool, option("Print Markdown instead of a table.", "--markdown")]


@dataclass(frozen=True)
class Replayed(Settings):
    """What is replayed, at which costs and draws."""

    traces: Traces = ()
    policy: Annotated[
        tuple[str, ...], option("name[:arg,...], repeatable; default: a range of all families.")
    ] = ()
    cost: Cost = None
    mixed_costs: MixedCosts = False
    level: Level = 0.95
    replicates: Replicates = 4
    seed: Seed = 0
    as_json: Json = False


def print_notes(notes: Iterable[str]) -> None:
    """Prints each note as one line on stderr."""
    for note in notes:
        print_note(note)


def servable_groups(
    paths: Mapping[str, Path],
    policies: Sequence[str],
    costs: Mapping[str, Any],
    quiet: bool = False,
) -> "Iterator[tuple[list[Any], dict[str, Trace]]]":
    """(policies, {recording: trace}) of neighbors that the same policies can serve.

    Prints a note on stderr for each policy left out; quiet: only on those that plan with costs
    where there are none, and a policy that no recording can serve is no error.
    """
    from simspec.replay.sweep import supported_policies
    from simspec.trace.trace import load_trace

    traces = {name: load_trace(path) for name, path in paths.items()}
    policies_of, notes = supported_policies(traces, policies, costs, all_used=not quiet)
    print_notes(notes)
    for served, names in groupby(policies_of, key=policies_of.__getitem__):
        yield served, {name: traces[name] for name in names}
