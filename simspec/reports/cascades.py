"""Thresholds of a sorted drafter side by side (S2D, Figure 3 and Table 4, arXiv 2407.01955)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simspec.cost.model import CostModel
from simspec.output.table import Table
from simspec.policies import parse
from simspec.policy.policy import Policy
from simspec.replay.replay import replay
from simspec.trace.exits import ExitDrafts, cascade, exit_counts
from simspec.trace.trace import Trace

RATIOS = (0.05, 0.10, 0.15)


@dataclass(frozen=True)
class CascadeRow:
    """One tuple of thresholds.

    | field | meaning |
    | --- | --- |
    | thresholds | of each exit but the last |
    | shares | of drafted tokens, by the exit that drafted them |
    | drafted, committed | tokens a round |
    | speedups | by the ratio c of a step through all exits to a target step |
    """

    thresholds: tuple[float, ...]
    shares: tuple[float, ...]
    drafted: float
    committed: float
    speedups: dict[str, float]


def compare_thresholds(
    trace: Trace,
    drafts: ExitDrafts,
    thresholds: Sequence[Sequence[float]] = (),
    policy: str = "fixed:4",
    ratios: Sequence[float] = RATIOS,
    seed: int = 0,
) -> list[CascadeRow]:
    """Replays a policy on the recording at each tuple of thresholds; default `default_thresholds`.

    A token drafted after l of L layers costs c l / L target steps, a verification one. Rows that
    catch up with deeper layers share the pass of the token that needs them, at no further cost.
    ValueError for a policy that is no chain.
    """
    chosen = parse(policy)
    if not isinstance(chosen, Policy):
        raise ValueError(
            f"policy {policy!r} is not a chain that runs; expected one such as fixed:4"
        )
    rows = []
    for threshold in thresholds or default_thresholds(drafts.exits):
        derived, exits = cascade(trace, drafts, threshold)
        rounds = replay(derived, chosen, seed=seed, cost=CostModel.from_ratio(ratios[0], trace.K))
        counts, count = exit_counts(exits, rounds, drafts.exits), len(rounds.row)
        steps = float(counts @ np.array(drafts.layers)) / drafts.layers[-1]
        shares = counts / max(1, counts.sum())
        rows.append(
            CascadeRow(
                tuple(float(value) for value in threshold),
                tuple(float(share) for share in shares),
                float(counts.sum()) / count,
                trace.rows / count,
                {f"{c:g}": trace.rows / (count + c * steps) for c in ratios},
            )
        )
    return rows


def default_thresholds(exits: int) -> list[tuple[float, ...]]:
    """Each exit alone, then equal thresholds from 0.05 to 0.95: 0 always exits, 1 never."""
    alone = [tuple(1.0 if i < e else 0.0 for i in range(exits - 1)) for e in range(exits)]
    return alone + [(percent / 100,) * (exits - 1) for percent in range(5, 100, 5)]


def parse_thresholds(text: str) -> tuple[float, ...]:
    """The tuple written as 0.75/0.7; ValueError for other text."""
    try:
        return tuple(float(part) for part in text.split("/"))
    except ValueError:
        raise ValueError(
            f"thresholds {text!r}: expected one number for each exit but the last, such as 0.75/0.7"
        ) from None


def cascade_table(rows: Sequence[CascadeRow], layers: Sequence[int], policy: str) -> Table:
    """The rows, one a tuple of thresholds."""
    cells = [
        (
            "/".join(f"{value:g}" for value in row.thresholds),
            *(f"{share:.0%}" for share in row.shares),
            f"{row.drafted:.2f}",
            f"{row.committed:.3f}",
            *(f"{value:.3f}x" for value in row.speedups.values()),
        )
        for row in rows
    ]
    exits, speedups = (f"exit {layer}" for layer in layers), (f"c = {c}" for c in rows[0].speedups)
    note = (
        "exit l: share of drafted tokens that left after l layers. drafted, committed: a round. "
        "c: a step through all exits over a target step; a token pays for its layers."
    )
    headings = "thresholds", *exits, "drafted", "committed", *speedups
    return Table(headings, cells, title=f"{policy}, by the thresholds of the exits", notes=(note,))
