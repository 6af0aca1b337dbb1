"""Which policies are replayed on which recordings."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from simspec.cli.options import print_notes
from simspec.replay.sweep import supported_policies
from simspec.trace.trace import Trace, load_trace


def servable_groups(
    paths: Mapping[str, Path],
    policies: Sequence[str],
    costs: Mapping[str, Any],
    quiet: bool = False,
) -> Iterator[tuple[list[Any], dict[str, Trace]]]:
    """(policies, {recording: trace}) of neighbors that the same policies can serve.

    Prints a note on stderr for each policy left out; quiet: no notes, and a policy that no
    recording can serve is no error.
    """
    traces = {name: load_trace(path) for name, path in paths.items()}
    policies_of, notes = supported_policies(traces, policies, costs, all_used=not quiet)
    print_notes([] if quiet else notes)
    for served, names in groupby(policies_of, key=policies_of.__getitem__):
        yield served, {name: traces[name] for name in names}
