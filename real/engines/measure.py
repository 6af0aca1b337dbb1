"""Costs of an engine from its own passes; predicted and measured speedups.

A pass counts in units of the plain passes of its timing block, so that a machine which changes its
speed changes both. Drafting is part of an engine's pass: `verify[j]` holds all of it, `draft` is 0.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any
from uuid import uuid4

import numpy as np
from scipy.optimize import nnls

from real.engines.compare import convention_of, predicted_passes, rule_of
from real.engines.rows import Row
from real.measure.estimate import (
    LEVEL,
    Estimate,
    disturbed_warning,
    filled,
    trimmed_mean,
    width_or_none,
)
from real.measure.pace import TimingBlock
from simspec import CostModel, Trace
from simspec.cost.provenance import PARTS, CostOrigin, CostPrecision
from simspec.engines.convention import Convention
from simspec.numerics import stats

DRAWS = 200
"""Bootstrap replicates of the costs, over timing blocks."""


@dataclass(frozen=True)
class TimedBlock:
    """One timing block: seconds of a plain pass, and of passes by their draft tokens over it."""

    plain: float
    ratios: Mapping[int, float]
    seconds: float
    disturbed: bool


def engine_cost(
    about: Mapping[str, Any], rows: Sequence[Row], K: int | None = None, seed: int = 0
) -> CostModel:
    """Costs of a run's passes as paired ratios within blocks, with intervals over the blocks.

    verify[j], j >= 1, is the mean pass of j draft tokens without the highest and lowest fifth of
    the blocks; verify[0] a pass without a draft while the engine can draft. K: default the run's
    longest. Blocks that a killed process left unfinished do not count. ValueError where plain
    passes or those of K draft tokens were not timed.
    """
    K = max(about["plan"]["ks"]) if K is None else K
    rules = convention_of(about)
    timed = [timed_block(part, rules) for part in whole_blocks(about, rows)]
    held = [block for block in timed if block is not None]
    quiet = [block for block in held if not block.disturbed] or held
    if not quiet or not any(K in block.ratios for block in quiet):
        raise ValueError(
            f"the run timed no passes of {K} draft tokens beside plain ones: run K = 0 and {K} on "
            "more prompts"
        )
    baseline = float(np.median([block.plain for block in quiet]))
    measured = _ratios(quiet)
    measured.setdefault(0, Estimate(1.0, 0.0, 0))
    verify = filled({d: e for d, e in measured.items() if d <= K}, K)
    rng = np.random.default_rng(seed)
    replicates = []
    for _ in range(DRAWS):
        drawn = _ratios([quiet[i] for i in rng.integers(0, len(quiet), len(quiet))])
        known = {d: drawn.get(d, e) for d, e in measured.items() if d <= K}
        replicates.append([max(e.seconds, 0.0) for e in filled(known, K)])
    disturbed = sum(block.disturbed for block in held)
    return CostModel(
        draft=np.zeros(K + 1),
        verify=np.array([e.seconds for e in verify]) * baseline,
        catch_up=np.zeros(1),
        overhead=0.0,
        baseline=baseline,
        name=f"{about['engine']} {about['version']}",
        device=about["device"],
        origin=engine_origin(about),
        precision=CostPrecision(
            level=LEVEL,
            half_width=_parts(
                K, [None if (w := width_or_none(e)) is None else w * baseline for e in verify], None
            ),
            samples=_parts(K, [e.samples for e in verify], 0) | {"baseline": len(quiet)},
            seconds=sum(block.seconds for block in held),
            warnings=tuple(disturbed_warning(len(held), disturbed)),
            replicates=_replicates(K, replicates),
            blocks=len(held),
            disturbed=disturbed,
        ),
    )


def engine_origin(about: Mapping[str, Any]) -> CostOrigin:
    """Origin of a run's costs; `sitting` begins with the digest of its prompts."""
    engine, draft = f"{about['engine']} {about['version']}", about["draft"] or {}
    return CostOrigin(
        device=about["device"],
        threads=about["threads"],
        dtype=about["dtype"],
        engines={"target": engine, "drafter": f"{engine} {draft.get('method', 'none')}"},
        versions={about["engine"]: about["version"]},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        sitting=f"{about['prompts'][:12]}-{uuid4().hex[:6]}",
    )


def whole_blocks(about: Mapping[str, Any], rows: Sequence[Row]) -> list[list[Row]]:
    """Rows by timing block: those that one process ran at every draft length."""
    found = defaultdict(list)
    for row in rows:
        found[row.block].append(row)
    lengths = len(about["plan"]["ks"])
    return [
        part
        for _, part in sorted(found.items())
        if len({row.session for row in part}) == 1
        and len({row.k for row in part}) == lengths
        and len({len([r for r in part if r.k == row.k]) for row in part}) == 1
    ]


def timed_block(rows: Sequence[Row], rules: Convention) -> TimedBlock | None:
    """The block's ratios; None where it has no plain pass after a prompt.

    Without an engine's clock of passes, the seconds of requests are sums of their passes: the
    costs of the run's draft lengths follow by least squares, those between are linear.
    """
    seconds = sum(row.finished.seconds for row in rows)
    if all(row.finished.pass_seconds is not None for row in rows):
        taken = defaultdict(list)
        pace: list[float] = []
        for row in rows:
            clock = row.finished.pass_seconds or ()
            for (_, drafted, _), spent in list(zip(row.finished.passes, clock))[1:]:
                taken[row.k == 0, _priced(drafted, row, rules)].append(spent)
            if row.k == 0 and len(clock) > 1:
                pace += (np.array(clock[1:]) / np.median(clock[1:])).tolist()
        plain = taken.pop((True, 0), [])
        if not plain or not np.mean(plain) > 0:
            return None
        ratios = {d: float(np.mean(s) / np.mean(plain)) for (_, d), s in taken.items()}
        return TimedBlock(float(np.mean(plain)), ratios, seconds, TimingBlock(pace).disturbed)
    knots = sorted({_priced(row.k, row, rules) for row in rows})
    counts = np.array([_hats(row, rules, knots) for row in rows])
    decoding = np.array([row.finished.seconds - row.finished.first_seconds for row in rows])
    if not counts.any():
        return None
    costs, _ = nnls(counts, np.maximum(decoding, 0.0))
    if not costs[0] > 0:
        return None
    ratios = {d: float(c / costs[0]) for d, c in zip(knots[1:], costs[1:]) if c > 0}
    return TimedBlock(float(costs[0]), ratios, seconds, False)


def _priced(drafted: int, row: Row, rules: Convention) -> int:
    """Draft tokens that decide the seconds of a pass: all K where the engine fills its rows."""
    return drafted if rules.fill == "none" or row.force is not None else row.k


def _hats(row: Row, rules: Convention, knots: Sequence[int]) -> list[float]:
    """How often the row's passes count each knot, a pass between two knots shared by both."""
    counted = np.zeros(len(knots))
    for _, drafted, _ in row.finished.passes[1:]:
        place = np.interp(_priced(drafted, row, rules), knots, range(len(knots)))
        low = int(place)
        counted[low] += 1 - (place - low)
        if place > low:
            counted[low + 1] += place - low
    return counted.tolist()


def _ratios(blocks: Sequence[TimedBlock]) -> dict[int, Estimate]:
    """{draft tokens: trimmed mean of the blocks' ratios}."""
    held = defaultdict(list)
    for block in blocks:
        for drafted, value in block.ratios.items():
            held[drafted].append(value)
    found = {}
    for drafted, values in held.items():
        mean, width = trimmed_mean(np.array(values), np.ones(len(values)))
        found[drafted] = Estimate(mean, width, len(values))
    return found


def _parts(K: int, verify: list, empty: Any) -> dict[str, Any]:
    lists = {"draft": [empty] * (K + 1), "verify": verify, "catch_up": [empty]}
    return {part: lists.get(part, empty) for part in PARTS}


def _replicates(K: int, verify: list[list[float]]) -> dict[str, Any]:
    zeros = [0.0] * len(verify)
    return {
        "draft": [[0.0] * (K + 1)] * len(verify),
        "verify": verify,
        "catch_up": [[0.0]] * len(verify),
        "overhead": zeros,
        "feature": zeros,
        "node": zeros,
    }


@dataclass(frozen=True)
class Speedup:
    """Predicted and measured speedup of a draft length over plain decoding after the prompt.

    error is predicted over measured, less 1; intervals are None for under MIN_PROMPTS prompts.
    """

    k: int
    predicted: float
    predicted_interval: stats.Estimate | None
    measured: float
    measured_interval: stats.Estimate | None

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class SpeedupTable:
    """Speedups of all draft lengths of a run; `recommended` is the length predicted best.

    | field | meaning |
    | --- | --- |
    | prompts, repeats | that were timed without an interruption |
    | best | the length measured best |
    | confirmed | the recommended length is the best, or within the interval of the best |
    | noise | median half-width of the measured intervals, relative |
    """

    rows: tuple[Speedup, ...]
    prompts: int
    repeats: int
    recommended: int
    best: int
    confirmed: bool
    noise: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        errors = sorted(abs(row.error) for row in self.rows if row.k)
        return asdict(self) | {
            "rows": [asdict(row) | {"error": row.error} for row in self.rows],
            "median_error": float(np.median(errors)) if errors else 0.0,
            "worst_error": max(errors, default=0.0),
        }


def speedup_table(
    about: Mapping[str, Any], rows: Sequence[Row], cost: CostModel, recording: Trace | None = None
) -> SpeedupTable:
    """Predicted and measured speedup of a run, whose prompts the costs were not measured on.

    Predicted: passes of the replay under the engine's convention, at the engine's costs. Measured:
    seconds from the first token to the last, one request at a time. ValueError for concurrent
    requests, for prompts of the costs' own run, and where nothing was timed whole.
    """
    if about["plan"]["concurrent"] != 1 or about["plan"]["force"]:
        raise ValueError(
            "speedups are of runs with one request at a time and the engine's own drafts: run with "
            "--concurrent 1, without --force"
        )
    sitting = cost.origin.sitting if cost.origin is not None else ""
    if sitting and sitting.startswith(about["prompts"][:12]):
        raise ValueError(
            "the costs were measured on this run's own prompts: hold prompts out, see --part"
        )
    whole = [row for part in whole_blocks(about, rows) for row in part]
    ks = sorted({row.k for row in whole})
    seconds, names = _decode_seconds(whole, ks)
    one = {name: {row.k: row for row in whole if row.request.id == name} for name in names}
    found = []
    for k in ks:
        kept = [one[name][k] for name in names]
        predicted = _predicted_seconds(about, kept, k, cost, recording)
        plain = [_plain_seconds(one[name][0], cost) for name in names]
        both = np.array(plain), predicted
        interval = _interval(*both)
        measured = _interval(seconds[0], seconds[k])
        value = float(both[0][:, 0].sum() / both[1][:, 0].sum())
        own = float(seconds[0][:, 0].sum() / seconds[k][:, 0].sum())
        found.append(Speedup(k, value, interval, own, measured))
    recommended = max(found, key=lambda row: row.predicted).k
    best = max(found, key=lambda row: row.measured).k
    against = _interval(seconds[recommended], seconds[best])  # times faster that the best is
    widths = [
        (row.measured_interval.high - row.measured_interval.low) / 2 / row.measured
        for row in found
        if row.k and row.measured_interval is not None
    ]
    return SpeedupTable(
        tuple(found), len(names), seconds[0].shape[1] - 1, recommended, best,
        recommended == best or (against is not None and against.low <= 1),
        float(np.median(widths)) if widths else 0.0,
    )  # fmt: skip


def _decode_seconds(
    rows: Sequence[Row], ks: Sequence[int]
) -> tuple[dict[int, np.ndarray], list[str]]:
    """({k: float64[P, 1 + R]}, the prompts timed in most repeats): means, then every repeat."""
    held: dict[str, dict[int, dict[int, float]]] = {}
    for row in rows:
        spent = row.finished.seconds - row.finished.first_seconds
        if len(row.finished.passes) > 1 and isfinite(spent) and spent > 0:
            held.setdefault(row.request.id, {}).setdefault(row.block, {})[row.k] = spent
    complete = {
        name: [by_k for by_k in blocks.values() if len(by_k) == len(ks)]
        for name, blocks in held.items()
    }
    repeats = max(map(len, complete.values()), default=0)
    names = [name for name, blocks in complete.items() if blocks and len(blocks) == repeats]
    if not names:
        raise ValueError("no block of the run was timed whole: run it again without interruption")
    seconds = {k: np.array([[by_k[k] for by_k in complete[name]] for name in names]) for k in ks}
    return {k: np.column_stack((s.mean(axis=1), s)) for k, s in seconds.items()}, names


def _plain_seconds(row: Row, cost: CostModel) -> np.ndarray:
    """float64[1 + R]: seconds of plain passes for the tokens after the first."""
    count = len(row.finished.tokens) - 1
    return count * np.full(1 + len(cost.replicates), cost.baseline)


def _predicted_seconds(
    about: Mapping[str, Any], rows: Sequence[Row], k: int, cost: CostModel, recording: Trace | None
) -> np.ndarray:
    """float64[P, 1 + R]: seconds of the replay's passes after the prompt's, by prompt."""
    if k == 0:
        return np.array([_plain_seconds(row, cost) for row in rows])
    if k > cost.nodes:
        raise ValueError(f"the costs price drafts up to {cost.nodes}, the run has {k}: measure {k}")
    rules = convention_of(about)
    kept, passes = predicted_passes(rows, k, rules, rule_of(about), recording)
    if len(kept) < len(rows):
        raise ValueError(f"the recording covers {len(kept)} of {len(rows)} prompts: name its own")
    prices = np.array([cost.verify, *(held.verify for held in cost.replicates)])
    found = []
    for s, row in enumerate(rows):
        drafted = [_priced(d, row, rules) for _, d, _ in passes.sequence(s)[1:]]
        found.append(np.bincount(drafted, minlength=cost.nodes + 1) @ prices.T)
    return np.array(found)


def _interval(plain: np.ndarray, drafted: np.ndarray) -> stats.Estimate | None:
    """The bootstrap interval of plain over drafted seconds; None for too few prompts."""
    if len(plain) < stats.MIN_PROMPTS:
        return None
    enough = plain.shape[1] > 2
    return stats.ratio(plain if enough else plain[:, 0], drafted if enough else drafted[:, 0])
