"""Has acceptance fallen? A test of counters that follow each other in time."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.engines.import_report import DepthCounts, Imported, Series, counts_of

ALARMS = 0.05
"""Share of series without a fall in which some stream is said to have fallen."""
LEAST = 16
"""Periods of a series that can be judged."""
MOST = 60
"""Periods are added up by neighbors to at most this number."""
STREAMS = 16
"""Of the tasks with the most rounds, and of the positions, at most this number are judged."""
PERMUTATIONS = 999
EFFECTIVE = 8.0
"""Independent periods that are as sure as the series, below which nothing is said."""

Array = NDArray[np.float64]


def series_of(results: Iterable[Imported]) -> Series:
    """All periods in order; of a file of sums it is one. ValueError where a file has no rounds."""
    parts = []
    for result in results:
        if result.series is not None:
            parts.append(result.series)
            continue
        rounds, accepted, outcomes = result.rounds, result.accepted, result.outcomes
        if rounds is None or accepted is None:
            reason = "; ".join(dict.fromkeys(result.withheld.values())) or "no sums of rounds"
            raise ValueError(f"{result.source.file} is no period of a series: {reason}")
        depths = None
        if outcomes is not None and result.draft_length is not None:
            tried, right = counts_of(outcomes)
            depths = DepthCounts(tried.sum(axis=0)[None], right.sum(axis=0)[None])
        sums = np.array([float(rounds)]), np.array([float(accepted)])
        parts.append(Series((result.source.file,), ("",), *sums, depths))
    held = [part.depths for part in parts if part.depths is not None]
    depths = None
    if len(held) == len(parts) and len({each.tried.shape[1] for each in held}) == 1:
        depths = DepthCounts(*(np.concatenate(each) for each in zip(*held)))
    at, task, rounds_of, accepted_of, _ = zip(*parts)
    return Series(
        sum(at, ()), sum(task, ()), np.concatenate(rounds_of), np.concatenate(accepted_of), depths
    )


def _streams(series: Series) -> dict[str, tuple[Array, Array]]:
    """{stream: (accepted, tried)}, float64[N] each: all rounds, each position, each task."""
    streams = {"accepted length": (series.accepted, series.rounds)}
    if series.depths is not None:
        for j in range(min(series.depths.tried.shape[1], STREAMS)):
            right, tried = series.depths.accepted[:, j], series.depths.tried[:, j]
            streams[f"position {j + 1}"] = right.astype(float), tried.astype(float)
    tasks = Counter(filter(None, series.task)).most_common(STREAMS)
    for task, _ in tasks if len(tasks) > 1 else ():
        of_task = np.array([each == task for each in series.task])
        streams[f"task {task}"] = series.accepted * of_task, series.rounds * of_task
    return streams


def self_normalized(residuals: Array, least: int) -> Array:
    """T[..., k - least], k = least .. n - least: how far the mean of the first k is above the rest.

    T(k) = S(k) / sqrt(n V(k)), S the partial sums of r - mean(r), and n^2 V(k) = sum over t <= k of
    (S(t) - t/k S(k))^2 + the same of the rest, counted from the end (Shao, Zhang 2010). The scale
    is of the series itself, so periods may depend on their neighbors. residuals: [..., n].
    """
    n = residuals.shape[-1]
    t = np.arange(1.0, n + 1)

    def spread(r: Array) -> tuple[Array, Array]:
        S = np.cumsum(r, axis=-1)
        squares, crossed = np.cumsum(S**2, axis=-1), np.cumsum(t * S, axis=-1)
        return S, squares - 2 * S / t * crossed + S**2 / t**2 * np.cumsum(t**2)

    centered = residuals - residuals.mean(axis=-1, keepdims=True)
    (S, first), (_, rest) = spread(centered), spread(centered[..., ::-1])
    k = np.arange(least, n - least + 1)
    V = np.maximum(first[..., k - 1] + rest[..., n - k - 1], 1e-12) / n**2
    T: Array = S[..., k - 1] / np.sqrt(n * V)
    return T


def _effective(residuals: Array) -> float:
    """Number of independent periods that are as sure, by the lag-1 autocorrelation r: n (1 - r) /
    (1 + r). r compares squared differences of neighbors with those of periods n // 8 apart, the
    largest left out: of one fall they hold few."""
    n = len(residuals)
    far = max(4, n // 8)
    kept = 1 - 1.2 * far / (n - far)
    near, apart = (
        np.sort((residuals[lag:] - residuals[:-lag]) ** 2)[: max(int(kept * (n - lag)), 1)].mean()
        for lag in (1, far)
    )
    r = min(max(1 - float(near / apart), 0.0), 1.0) if apart > 0 else 0.0
    return n * (1 - r) / (1 + r)


def fallen(series: Series, alarms: float = ALARMS, seed: int = 0) -> dict[str, Any]:
    """Whether acceptance fell, of which streams, since when, and how sure that is.

    Streams are permuted together, and each is compared with the largest statistic of all (Westfall,
    Young 1993): of series whose periods are exchangeable a share of at most `alarms` is said to
    have fallen, at one look, however prompts differ. A request that spans periods makes neighbors
    alike: where fewer than 8 independent ones would be as sure, nothing is said. Measured alarms:
    3 to 7% of series of 16 to 60 independent periods, but 8 to 15% where a request lasts 4 periods,
    and up to 28% where it lasts 20: periods should be longer. ValueError for fewer than 16.
    """
    periods = len(series.at)
    if periods < LEAST:
        raise ValueError(
            f"a series of {periods} periods is too short to be judged, expected at least {LEAST}: "
            "requests with times, lines of a log, or files of counters"
        )
    starts = np.unique(np.linspace(0, periods, min(periods, MOST), endpoint=False).astype(int))
    n, least = len(starts), max(2, len(starts) // 10)
    streams = {
        name: (np.add.reduceat(right, starts), np.add.reduceat(tried, starts))
        for name, (right, tried) in _streams(series).items() if tried.sum() > 0
    }  # fmt: skip
    residuals = np.stack([a - a.sum() / b.sum() * b for a, b in streams.values()])
    found = self_normalized(residuals, least)
    random, largest = np.random.default_rng(seed), np.empty(PERMUTATIONS)
    for i in range(PERMUTATIONS):
        largest[i] = self_normalized(residuals[:, random.permutation(n)], least).max()
    effective = _effective(residuals[0])
    rows, fell = list[dict[str, Any]](), list[tuple[str, str]]()
    for (name, (right, tried)), statistic in zip(streams.items(), found):
        k = least + int(statistic.argmax())
        sides = (right[:k].sum(), tried[:k].sum()), (right[k:].sum(), tried[k:].sum())
        one = 0.0 if name.startswith("position") else 1.0
        before, after = (one + float(a / b) if b else None for a, b in sides)
        p = (1 + int((largest >= statistic.max()).sum())) / (PERMUTATIONS + 1)
        if p <= alarms and effective >= EFFECTIVE:
            fell.append((name, series.at[starts[k]]))
        since = fell[-1][1] if fell and fell[-1][0] == name else None
        rows.append({"stream": name, "before": before, "after": after, "since": since, "p": p})
    if effective < EFFECTIVE:
        verdict = (
            f"undecided: {n} periods are as sure as {effective:.0f} independent ones, expected "
            f"{EFFECTIVE:.0f}, since requests last longer than periods: give a longer series"
        )
    elif fell:
        verdict = f"{', '.join(name for name, _ in fell)} fell, since about {fell[0][1]}"
    else:
        verdict = "no fall is shown; a small one may be there"
    return {
        "verdict": verdict, "false_alarms": alarms, "periods": periods, "compared": n,
        "effective": effective, "streams": rows,
    }  # fmt: skip
