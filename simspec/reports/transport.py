"""Accepted length at every draft length, beside stand-ins that were measured at another one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.numerics.stats import Interval, bootstrap
from simspec.policies.fixed import fixed
from simspec.replay.replay import replay
from simspec.reports.intervals import interval_data
from simspec.reports.stand_ins import iid_length
from simspec.trace.acceptance import drawn_trace
from simspec.trace.trace import Trace, load_trace

LONGEST = 8
IID_FROM = (1, 3)
"""Draft lengths whose accepted length gives the one rate of an i.i.d. stand-in."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TransportRow:
    """Accepted length of fixed drafts of K tokens on a recording, and the errors of stand-ins.

    | field | meaning |
    | --- | --- |
    | recording, drafter, rule | what was recorded |
    | K | drafted tokens a round |
    | rounds | replayed rounds that count |
    | length | Interval: 1 + accepted / rounds, by replay |
    | errors | {stand-in: Interval of its length over the replayed one, less 1} |

    | stand-in | length |
    | --- | --- |
    | table@M | 1 + sum of the first K marginals, shares of rounds of M; none for K > M |
    | iid@M | 1 + r + .. + r^K, r from the length at M |
    | teacher-forced | 1 + mean over all rows of min(run, K) |

    low and high are NaN where there is no interval.
    """

    recording: str
    drafter: str
    rule: str
    K: int
    rounds: int
    length: Interval
    errors: Mapping[str, Interval]

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON: an interval is {value, low, high}, and NaN None."""
        values = {name: getattr(self, name) for name in ("recording", "drafter", "rule", "K")}
        errors = {name: interval_data(error) for name, error in self.errors.items()}
        return values | {
            "rounds": self.rounds,
            "length": interval_data(self.length),
            "errors": errors,
        }


@dataclass(frozen=True)
class Counts:
    """Counts of each prompt's rows, and of rounds from them, that the budget cuts at no length.

    | field | dtype, shape | meaning |
    | --- | --- | --- |
    | rounds | float64[P, L] | rounds of fixed:k, at k - 1 |
    | reached | float64[P, L, L] | of these, with more than j accepted tokens |
    | rows | float64[P] | rows |
    | run | float64[P, L] | of these, with more than j leading right tokens |
    """

    rounds: Array
    reached: Array
    rows: Array
    run: Array


def counts(trace: Trace, longest: int, seed: int = 0) -> Counts:
    """Counts to `longest` of a trace whose every prompt has a row that counts.

    A row counts where its budget allows a draft of `longest` tokens; so does a round from it. The
    same rows count for every draft length, and no draft is cut but by `depth` and by an end token.
    Prompts without such a row are left out. Under the rejection rule acceptance is one draw of this
    seed. ValueError for a recording that is not so deep, or without such rows.
    """
    if not 1 <= longest <= trace.K:
        raise ValueError(f"K is {longest}, expected 1 to {trace.K}, as deep as the recording")
    trace = drawn_trace(trace, seed)
    sequence = np.repeat(np.arange(trace.sequences), np.diff(trace.offset))
    left = trace.budget[sequence] - (np.arange(trace.rows) - trace.offset[sequence])
    counted = left - 1 >= longest

    def sums(prompt: NDArray[np.int64], values: Array) -> Array:
        total = np.zeros((trace.sequences, *values.shape[1:]))
        np.add.at(total, prompt, values)
        return total

    slot = np.arange(longest)
    rounds, reached = [], []
    for K in range(1, longest + 1):
        replayed = replay(trace, fixed(K), seed)
        kept = counted[replayed.row]
        prompt = sequence[replayed.row[kept]]
        rounds.append(sums(prompt, np.ones(len(prompt))))
        reached.append(sums(prompt, (slot < replayed.accepted[kept, None]).astype(np.float64)))
    rows = np.flatnonzero(counted)
    if not len(rows):
        raise ValueError(
            f"no row of the recording has a budget for {longest} drafted tokens: "
            "name a smaller --longest"
        )
    by_row = (slot < trace.run[rows, None]).astype(np.float64)
    some = np.bincount(sequence[rows], minlength=trace.sequences) > 0
    return Counts(
        np.stack(rounds, axis=1)[some],
        np.stack(reached, axis=1)[some],
        sums(sequence[rows], np.ones(len(rows)))[some],
        sums(sequence[rows], by_row)[some],
    )


def transport(
    traces: Mapping[str, Trace | Path | str],
    longest: int | None = None,
    measured_at: Sequence[int] = (),
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> list[TransportRow]:
    """A TransportRow per recording and K = 1 .. longest (default: up to 8, as deep as recorded).

    measured_at: draft lengths of tables (default: longest). Intervals are of the paired bootstrap
    over prompts: length and stand-in are of the same prompts in each resample. Fewer than 8 prompts
    have none. ValueError for what cannot run.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, expected a number in (0, 1), such as 0.95")
    options = {"level": level, "resamples": resamples, "seed": seed}
    rows = []
    for name, source in traces.items():
        trace = source if isinstance(source, Trace) else load_trace(source)
        most = min(trace.K, LONGEST) if longest is None else longest
        of_trace = counts(trace, most, seed)
        tables = list(measured_at) or [most]
        for M in tables:
            if not 1 <= M <= most:
                raise ValueError(f"a table at K = {M}, expected 1 to {most} on {name}")
        for K in range(1, most + 1):
            rows.append(_row(name, trace, of_trace, K, tables, options))
    return rows


def _row(
    name: str, trace: Trace, of: Counts, K: int, tables: Sequence[int], options: dict[str, Any]
) -> TransportRow:
    def measured_at(M: int, depth: int) -> tuple[Array, Array]:
        return of.rounds[:, M - 1], of.reached[:, M - 1, :depth].sum(axis=1)

    replayed = measured_at(K, K)
    candidates: dict[str, tuple[tuple[Array, Array], Callable[[Array], Array]]] = {}
    for M in tables:
        if K <= M:
            candidates[f"table@{M}"] = measured_at(M, K), lambda length: length
    longest = of.run.shape[1]
    for M in (M for M in IID_FROM if longest >= M):
        predict = partial(iid_length, measured_at=M, K=K) if K != M else lambda length: length
        candidates[f"iid@{M}"] = measured_at(M, M), predict
    forced = of.rows, of.run[:, :K].sum(axis=1)
    candidates["teacher-forced"] = forced, lambda length: length
    errors = {}
    for stand_in, (measured, predict) in candidates.items():

        def error(totals: Array, predict: Callable[[Array], Array] = predict) -> Array:
            rounds, accepted, other, more = np.moveaxis(totals, -1, 0)
            return predict(1 + more / other) / (1 + accepted / rounds) - 1

        errors[stand_in] = _interval(np.stack((*replayed, *measured), axis=-1), error, options)
    length = _interval(np.stack(replayed, -1), lambda t: 1 + t[..., 1] / t[..., 0], options)
    rounds = int(replayed[0].sum())
    return TransportRow(name, trace.meta.drafter, trace.meta.rule, K, rounds, length, errors)


def _interval(
    columns: Array, figure: Callable[[Array], Array], options: Mapping[str, Any]
) -> Interval:
    try:
        return bootstrap(columns, figure, **options)
    except ValueError:  # too few prompts
        value = float(figure(columns.sum(axis=0)))
        return Interval(value, np.nan, np.nan, options["level"], len(columns))
