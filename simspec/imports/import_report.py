"""What an import holds, as plain data for a table or JSON."""

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from simspec.imports.conclusions import depth_counts, length_at, not_concluded, rounds_at
from simspec.imports.depth_curve import depth_curve
from simspec.imports.kinds import CensoredRounds, EngineSettings, ExactImport, Import, PooledCounts
from simspec.imports.totals import PER_ROUND, mean_of
from simspec.trace.trace import Trace

KINDS = {
    ExactImport: "exact",
    CensoredRounds: "censored",
    PooledCounts: "pooled",
    EngineSettings: "settings",
}
AT_K = "tokens / rounds at K, the last round cut at the end of the text (bonus token included)"


def import_report(
    result: Import, lengths: tuple[int, ...] = (), level: float = 0.95
) -> dict[str, Any]:
    """Origin, kind, totals, acceptance by depth, and what may not be concluded.

    lengths: draft lengths whose accepted length is asked for; ValueError where that is unknown.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, expected a share in (0, 1) such as 0.95")
    at = [
        {"drafter": name, "K": k, "accepted_length": length}
        for k in lengths
        for name, length in length_at(result, k).items()
    ]
    return {
        **asdict(result.origin),
        "kind": KINDS[type(result)],
        "totals": _totals(result),
        "accepted_length_at": at,
        "accepted_length_by_K": _lengths(result),
        "draft_lengths": _tiers(result),
        "level": level,
        "acceptance_by_depth": _depths(result, level),
        "not_concluded": dict(not_concluded(result)),
        "notes": [*result.notes, *_last_rounds(result)],
    }


def _totals(result: Import) -> list[dict[str, Any]]:
    if isinstance(result, ExactImport):
        return [_of_trace(name, trace) for name, trace in result.traces.items()]
    if isinstance(result, CensoredRounds):
        return [_of_rounds(result)]
    if isinstance(result, EngineSettings):
        return []
    row = (result.requests, result.rounds, result.drafted, result.accepted, result.length)
    total = _total("", *row, result.length_per_request, result.length_means)
    return [total | {"K": result.draft_length}]


def _lengths(result: Import) -> list[dict[str, Any]]:
    if not isinstance(result, PooledCounts):
        return []
    return [{"K": K, "accepted_length": length} for K, length in sorted(result.lengths.items())]


def _tiers(result: Import) -> list[dict[str, Any]]:
    if not isinstance(result, EngineSettings):
        return []
    return [
        asdict(tier) | {"lengths": list(tier.lengths), "method": result.method}
        for tier in result.tiers
    ]


def _last_rounds(result: Import) -> list[str]:
    if not isinstance(result, CensoredRounds):
        return []
    last, rounds = int((np.diff(result.offset) > 0).sum()), len(result.drafted)
    return [
        f"{last} of {rounds} rounds are a request's last: a stop or the token limit may have cut "
        "them, which reads as a rejection"
    ]


def _of_trace(name: str, trace: Trace) -> dict[str, Any]:
    rounds = rounds_at(trace, trace.K)
    per_request = float((np.diff(trace.offset) / np.diff(rounds.offset)).mean())
    total = _total(
        name, trace.sequences, len(rounds), int(rounds.drafted.sum()), int(rounds.accepted.sum()),
        trace.rows / len(rounds), per_request, AT_K,
    )  # fmt: skip
    return total | {"tokens": trace.rows, "K": trace.K}


def _of_rounds(result: CensoredRounds) -> dict[str, Any]:
    sums = np.concatenate(([0], np.cumsum(result.accepted)))[result.offset]
    rounds, accepted = len(result.drafted), int(result.accepted.sum())
    per_request = mean_of(np.diff(result.offset), np.diff(sums))
    row = (len(result.ids), rounds, int(result.drafted.sum()), accepted)
    total = _total("", *row, mean_of(rounds, accepted), per_request, PER_ROUND)
    return total | {"K": result.K}


def _total(*values: Any) -> dict[str, Any]:
    keys = (
        "drafter", "requests", "rounds", "drafted", "accepted", "accepted_length",
        "accepted_length_per_request", "accepted_length_means",
    )  # fmt: skip
    total = dict(zip(keys, values))
    drafted, accepted = total["drafted"], total["accepted"]
    total["acceptance_rate"] = accepted / drafted if drafted and accepted is not None else None
    return total


def _depths(result: Import, level: float) -> list[dict[str, Any]]:
    rows = [
        {"drafter": name, "K": K, **{k: _plain(v) for k, v in asdict(point).items()}}
        for (name, K), counts in depth_counts(result).items()
        for point in depth_curve(counts, level)
    ]
    if isinstance(result, PooledCounts):
        for K, rates in result.marginals.items():
            for j, rate in enumerate(rates):
                before = rates[j - 1] if j else 1.0
                row: dict[str, Any] = dict.fromkeys(("tried", "accepted", "low", "high"))
                row |= {"drafter": "", "K": K, "depth": j + 1, "marginal": rate, "interval": "none"}
                rows.append(row | {"conditional": rate / before if before else None})
    return rows


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
