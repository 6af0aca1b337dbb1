"""Accepted length at every draft length, and predictions of it from another one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simspec.numerics.formulas import expected_committed
from simspec.numerics.stats import MIN_PROMPTS, Estimate, estimate
from simspec.output.files import replacing
from simspec.output.names import label_text
from simspec.output.table import Table
from simspec.policies.fixed import fixed
from simspec.published import LengthCurve, length_curves
from simspec.replay.replay import replay
from simspec.trace.acceptance import drawn_trace
from simspec.trace.trace import Trace, load_trace

IID_FROM = (1, 3)
"""Draft lengths whose accepted length gives the one rate of an i.i.d. prediction."""

MOST_STEPS = 100
"""Most Newton steps; a dozen is usual."""


def iid_rate(length: ArrayLike, K: int) -> NDArray[np.float64]:
    """The acceptance r at which 1 + r + .. + r^K is this accepted length; 0 and 1 beyond.

    By Newton's method from above: the sum is convex in r, so that every step falls towards it.
    """
    length = np.clip(np.asarray(length, dtype=np.float64), 1.0, K + 1.0)
    rate: NDArray[np.float64] = np.minimum(length - 1.0, 1.0)
    for _ in range(MOST_STEPS):
        total, slope = np.ones(rate.shape), np.zeros(rate.shape)
        for _ in range(K):
            slope = slope * rate + total
            total = total * rate + 1.0
        step = (total - length) / slope
        rate = np.clip(rate - step, 0.0, 1.0)
        if (np.abs(step) < 1e-15).all():
            break
    return rate


def iid_length(length: ArrayLike, measured_at: int, K: int) -> NDArray[np.float64]:
    """Accepted length at K of i.i.d. acceptance that has this length at `measured_at`."""
    predicted: NDArray[np.float64] = expected_committed(iid_rate(length, measured_at), K)
    return predicted


@dataclass(frozen=True)
class PublishedError:
    """A prediction's relative error on one published curve.

    | field | meaning |
    | --- | --- |
    | group, drafter, task, source | where it is from |
    | stand_in | table, iid or teacher-forced |
    | measured_at | draft length that the prediction is from; 0: none |
    | K | draft length that was predicted |
    | error | predicted over measured accepted length, less 1 |
    | computed | whether it follows from published lengths; else it was computed from raw data |
    """

    group: str
    drafter: str
    task: str
    source: str
    stand_in: str
    measured_at: int
    K: int
    error: float
    computed: bool

    @property
    def label(self) -> str:
        """The prediction's name as in `simspec.reports.transport`."""
        return f"{self.stand_in}@{self.measured_at}" if self.measured_at else self.stand_in


@lru_cache(maxsize=1)
def published_errors() -> tuple[PublishedError, ...]:
    """Errors of predictions on all published curves."""
    return tuple(error for curve in length_curves() for error in curve_errors(curve))


def curve_errors(curve: LengthCurve) -> list[PublishedError]:
    """Errors of tables where the curve has marginals, of i.i.d. acceptance where it has lengths.

    A measured length is 1 + the sum of the marginals at that K where all are published.
    """
    drafter, task, source = (curve.texts.get(key, "") for key in ("drafter", "task", "source"))
    about = curve.group, drafter, task, source
    lengths = dict(curve.accepted_length)
    for K, marginals in curve.marginals.items():
        if len(marginals) == K:
            lengths[K] = 1 + sum(marginals)
    found = [
        PublishedError(*about, e.stand_in, e.measured_at, e.K, e.error, False)
        for e in curve.printed
    ]
    for M, marginals in curve.marginals.items():
        for K in (K for K in lengths if len(marginals) >= K != M):
            error = (1 + sum(marginals[:K])) / lengths[K] - 1
            found.append(PublishedError(*about, "table", M, K, error, True))
    for M in sorted({*IID_FROM, min(lengths, default=1)} & set(lengths)):
        for K in (K for K in lengths if K > M):
            error = float(iid_length(lengths[M], M, K)) / lengths[K] - 1
            found.append(PublishedError(*about, "iid", M, K, error, True))
    return found


def summarized(errors: Sequence[PublishedError]) -> list[dict[str, Any]]:
    """A dict for each (group, prediction): its errors by K over the group's curves.

    Keys: group, stand_in, curves, medians {K: error}, least, greatest, source.
    """
    groups: dict[tuple[str, str], list[PublishedError]] = {}
    for error in errors:
        groups.setdefault((error.group, error.label), []).append(error)
    return [_summary(group, label, members) for (group, label), members in groups.items()]


def _summary(group: str, label: str, members: Sequence[PublishedError]) -> dict[str, Any]:
    by_length: dict[int, list[float]] = {}
    for member in members:
        by_length.setdefault(member.K, []).append(member.error)
    every = [member.error for member in members]
    return {
        "group": group,
        "stand_in": label,
        "curves": max(map(len, by_length.values())),
        "medians": {K: float(np.median(by_length[K])) for K in sorted(by_length)},
        "least": min(every),
        "greatest": max(every),
        "source": members[0].source,
    }


def published_table(errors: Sequence[PublishedError]) -> Table:
    """The errors of `summarized`."""
    rows = [
        (
            row["group"],
            row["stand_in"],
            row["curves"],
            ", ".join(f"{K}: {error:+.1%}" for K, error in row["medians"].items()),
            *(f"{row[name]:+.1%}" for name in ("least", "greatest")),
            row["source"],
        )
        for row in summarized(errors)
    ]
    headings = (
        "published", "estimate", "curves", "median error by K", "least", "greatest", "source",
    )  # fmt: skip
    note = "Published figures: live runs without intervals, or replays of raw data."
    return Table(headings, rows, names=2, notes=(note,), optional=("source", "curves"))


LONGEST = 8

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TransportRow:
    """Accepted length of fixed drafts of K tokens on a recording, and the errors of predictions.

    | field | meaning |
    | --- | --- |
    | recording, drafter, rule | what was recorded |
    | K | drafted tokens a round |
    | rounds | replayed rounds that count |
    | length | Estimate: 1 + accepted / rounds, by replay |
    | errors | {prediction: Estimate of its length over the replayed one, less 1} |

    | prediction | length |
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
    length: Estimate
    errors: Mapping[str, Estimate]


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
    over prompts: length and prediction are of the same prompts in each resample. Fewer than 8
    prompts have none. ValueError for what cannot run.
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

        errors[stand_in] = estimate(np.stack((*replayed, *measured), axis=-1), error, **options)
    length = estimate(np.stack(replayed, -1), lambda t: 1 + t[..., 1] / t[..., 0], **options)
    rounds = int(replayed[0].sum())
    return TransportRow(name, trace.meta.drafter, trace.meta.rule, K, rounds, length, errors)


def transport_tables(rows: Sequence[TransportRow]) -> list[Table]:
    """A table for each recording, the last with the legend."""
    recordings: dict[str, list[TransportRow]] = {}
    for row in rows:
        recordings.setdefault(row.recording, []).append(row)
    notes = (
        "accepted length: tokens a round with the target's own, by replay of fixed:K on rows that "
        "the budget does not cut. Then the errors of the estimates:",
        "table@M: marginals of rounds of M; iid@M: one rate from M; teacher-forced: all rows.",
        f"Intervals: paired bootstrap over prompts, none for fewer than {MIN_PROMPTS}.",
    )
    tables: list[Table] = []
    for name, (first, *others) in recordings.items():
        cells = [
            (
                row.K,
                row.length.text(".3f"),
                *(row.errors[of].text("+.1%") if of in row.errors else "-" for of in first.errors),
            )
            for row in (first, *others)
        ]
        title = f"{name}: {first.drafter}, {first.rule}"
        below = notes if len(tables) == len(recordings) - 1 else ()
        headings = "K", "accepted length", *first.errors
        tables.append(Table(headings, cells, title=title, notes=below))
    return tables


ACROSS = 4
"""Most panels side by side."""


def plot_transport(rows: Sequence[TransportRow], path: Path | str) -> None:
    """Write a PNG: relative error against K, a line with its band for each prediction."""
    from matplotlib.figure import Figure

    panels: dict[str, list[TransportRow]] = {}
    for row in rows:
        panels.setdefault(row.recording, []).append(row)
    stand_ins = list(dict.fromkeys(name for row in rows for name in row.errors))
    across = min(len(panels), ACROSS)
    down = -(-len(panels) // across)
    figure = Figure(figsize=(4.8 * across, 3.8 * down + 0.5), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    legend: dict[str, Any] = {}
    for panel, (recording, of_recording) in zip(axes, panels.items()):
        for i, name in enumerate(stand_ins):
            held = [row for row in of_recording if name in row.errors]
            lengths, errors = [row.K for row in held], [row.errors[name] for row in held]
            low, high = ([100 * getattr(e, limit) for e in errors] for limit in ("low", "high"))
            panel.fill_between(lengths, low, high, color=f"C{i}", alpha=0.2, lw=0)
            values = [100 * error.value for error in errors]
            legend[name] = panel.plot(lengths, values, "o-", color=f"C{i}", ms=3, lw=1)[0]
        panel.axhline(0, color="grey", lw=0.8, ls=":")
        panel.set(xlabel="draft length K", ylabel="error of accepted length, %")
        panel.set_title(label_text(Path(recording).name), fontsize="medium")
        panel.xaxis.get_major_locator().set_params(integer=True)
    for panel in axes[len(panels) :]:
        panel.remove()
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=len(legend))
    with replacing(Path(path)) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
