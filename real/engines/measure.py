"""Costs of an engine from its own passes; predicted and measured speedups.

A pass counts in units of the plain passes of its timing block, so that a machine which changes its
speed changes both. Drafting is part of an engine's pass: `verify[j]` holds all of it, `draft` is 0.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import zip_longest
from math import isfinite
from typing import Any
from uuid import uuid4

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from real.engines.adapter import RUNNER
from real.engines.compare import batch_size, lock_step, predicted_passes, whole_waves
from real.engines.rows import Arm, Row
from real.measure.estimate import (
    LEVEL,
    Estimate,
    disturbed_warning,
    faster_wider,
    filled,
    trimmed_mean,
    width_or_none,
)
from real.measure.timing import TimingBlock
from simspec import CostModel, Trace
from simspec.cost.gate import MIN_BLOCKS, Claim, check_claims, no_interval
from simspec.cost.provenance import PARTS, CostOrigin, CostPrecision
from simspec.cost.table import CostTable
from simspec.cost.why import CACHED, DRAFTING, HOST, ROWS, Why, why
from simspec.numerics import stats

DRAWS = 200
"""Bootstrap replicates of the costs, over timing blocks."""
DIGITS = 5
"""Decimals of a replicate, in plain steps: far below its noise, as `simspec measure` has it."""


@dataclass(frozen=True)
class TimedBlock:
    """One timing block: seconds of a plain pass, and of passes by their draft tokens over it."""

    plain: float
    ratios: Mapping[int, float]
    seconds: float
    disturbed: bool


def whole_blocks(about: Mapping[str, Any], rows: Sequence[Row]) -> list[list[Row]]:
    """Rows by timing block: those that one process ran at every draft length and policy."""
    found = defaultdict(list)
    for row in rows:
        found[row.block].append(row)
    arms = len(about["plan"]["ks"]) + len(about["plan"].get("policies", ()))
    return [
        part
        for _, part in sorted(found.items())
        if len({row.session for row in part}) == 1
        and len({row.arm for row in part}) == arms
        and len({len([r for r in part if r.arm == row.arm]) for row in part}) == 1
    ]


def timed_block(rows: Sequence[Row], together: bool = False) -> TimedBlock | None:
    """The block's ratios; None where it has no plain pass after a prompt.

    together: the requests of a draft length share their passes; those of all of them count, where
    they draft alike.
    """
    waves = [[row] for row in rows]
    if together:
        waves = [[row for row in rows if row.k == k] for k in sorted({row.k for row in rows})]
    taken, pace = defaultdict(list), list[float]()
    for wave in waves:
        count = min(len(row.finished.passes) for row in wave)
        clock = lock_step(wave)[1:count]
        for i, spent in enumerate(clock, 1):
            drafted = {row.finished.passes[i][1] for row in wave}
            if len(drafted) == 1:
                taken[wave[0].k == 0, drafted.pop()].append(spent)
        if wave[0].k == 0 and clock:
            pace += (np.array(clock) / np.median(clock)).tolist()
    plain = taken.pop((True, 0), [])
    if not plain or not np.mean(plain) > 0:
        return None
    ratios = {d: float(np.mean(s) / np.mean(plain)) for (_, d), s in taken.items()}
    seconds = sum(max(row.finished.seconds for row in wave) for wave in waves)
    return TimedBlock(float(np.mean(plain)), ratios, seconds, TimingBlock(pace).disturbed)


def engine_cost(about: Mapping[str, Any], rows: Sequence[Row], seed: int = 0) -> CostModel:
    """Costs of a run's passes as paired ratios within blocks, with intervals over the blocks.

    verify[j], j >= 1, is the mean pass of j draft tokens without the highest and lowest fifth of
    the blocks; verify[0] a pass without a draft while the engine can draft. K is the run's longest.
    Blocks that a killed process left unfinished do not count. Requests in flight together
    are a wave: passes of all of them count, and seconds are those of the whole batch. ValueError
    where plain passes or those of K draft tokens were not timed; PriceError where a pass with
    drafts takes less time than any can. Costs that give no interval say why in their warnings.
    """
    K = max(about["plan"]["ks"])
    size = about["plan"]["concurrent"]
    parts = whole_blocks(about, rows)
    if size > 1:
        lengths = len(about["plan"]["ks"])
        parts = [part for part in parts if len(part) == batch_size(about) * lengths]
    timed = [timed_block(part, size > 1) for part in parts]
    held = [block for block in timed if block is not None]
    quiet = [block for block in held if not block.disturbed] or held
    if not quiet or not any(K in block.ratios for block in quiet):
        raise ValueError(
            f"the run timed no passes of {K} draft tokens and plain ones: run K = 0 and {K} on "
            "more prompts"
        )
    baseline = float(np.median([block.plain for block in quiet]))
    measured = _ratios(quiet)
    measured.setdefault(0, Estimate(1.0, 0.0, len(quiet)))  # a plain pass over itself
    rng = np.random.default_rng(seed if size == 1 else (seed, size))
    drawn = [
        measured | _ratios([quiet[i] for i in rng.integers(0, len(quiet), len(quiet))])
        for _ in range(DRAWS)
    ]
    disturbed = sum(block.disturbed for block in held)
    return ratio_cost(
        K, baseline, measured, drawn, {"baseline": len(quiet)},
        name=f"{about['engine']} {about['version']}" + (f" batch {size}" if size > 1 else ""),
        origin=engine_origin(about),
        seconds=sum(block.seconds for block in held),
        warnings=tuple(disturbed_warning(len(held), disturbed)),
        blocks=len(held),
        disturbed=disturbed,
    )  # fmt: skip


def ratio_cost(
    K: int, baseline: float, measured: Mapping[int, Estimate],
    drawn: Sequence[Mapping[int, Estimate]], samples: Mapping[str, int],
    *, name: str, origin: CostOrigin, **precision: Any,
) -> CostModel:  # fmt: skip
    """Costs of passes in plain passes, {draft tokens: ratio}, and of their bootstrap replicates.

    Ratios between measured lengths are linear. precision: other fields of CostPrecision.
    """
    verify = filled({d: e for d, e in measured.items() if d <= K}, K)
    replicates = [
        [max(e.seconds, 0.0) for e in filled({d: held[d] for d in measured if d <= K}, K)]
        for held in drawn
    ]
    zeros = {part: [one] * len(replicates) for part, one in _parts(K, [], 0.0).items()}
    del zeros["baseline"]  # the unit of the others
    widths = [None if (w := width_or_none(e)) is None else w * baseline for e in verify]
    cost = CostModel(
        draft=np.zeros(K + 1),
        verify=np.array([e.seconds for e in verify]) * baseline,
        catch_up=np.zeros(1),
        overhead=0.0,
        baseline=baseline,
        name=name,
        device=origin.device,
        origin=origin,
        precision=CostPrecision(
            level=LEVEL,
            half_width=_parts(K, widths, None),
            samples=_parts(K, [e.samples for e in verify], 0) | dict(samples),
            replicates=zeros | {"verify": np.round(replicates, DIGITS).tolist()},
            **precision,
        ),
    )
    rounds = {d: e for d, e in measured.items() if 0 < d <= K and e.samples >= MIN_BLOCKS}
    check_claims(
        (Claim(f"{d} accepted drafts", (d + 1) / e.seconds, d + 1, (d + 1) / sum(e[:2]))
         for d, e in rounds.items() if e.seconds > 0),
        cost, cost.name,
    )  # fmt: skip
    return with_warnings(cost)


def with_warnings(cost: CostModel) -> CostModel:
    """The costs, with a line each where they give no interval, and where a wider pass is faster.

    The passes are the engine's own, so that its speedups are real, and yet no other engine's.
    """
    assert cost.precision is not None
    lines = []
    if why := no_interval(cost):
        lines.append(f"no interval and no confirmation at these costs, which have {why}")
    if (found := faster_wider(cost)) is not None:
        narrow, wide, gap = found
        lines.append(
            f"a pass of {wide} draft tokens is faster than one of {narrow} by {gap:.0%} of a plain "
            "one in this engine: speedups may exceed tokens a pass"
        )
    warnings = (*cost.precision.warnings, *lines)
    return replace(cost, precision=replace(cost.precision, warnings=warnings))


def cost_table(runs: Sequence[tuple[Mapping[str, Any], Sequence[Row]]], seed: int = 0) -> CostTable:
    """Costs by batch size, from a run of each; its size is the requests in flight together."""
    sizes = {about["plan"]["concurrent"]: (about, rows) for about, rows in runs}
    cells = {size: engine_cost(*sizes[size], seed=seed) for size in sorted(sizes)}
    about = runs[0][0]
    name = f"{about['engine']} {about['version']}"
    return CostTable(tuple(cells), (0,), tuple((cell,) for cell in cells.values()), name)


def engine_origin(about: Mapping[str, Any]) -> CostOrigin:
    """Origin of a run's costs; `sitting` begins with the digest of its prompts."""
    engine, draft = f"{about['engine']} {about['version']}", about["draft"] or {}
    if runner := RUNNER.get(about["engine"]):
        engine += f", {runner} runner"
    return CostOrigin(
        device=about["device"],
        threads=about["threads"],
        dtype=about["dtype"],
        engines={"target": engine, "drafter": f"{engine}, {draft.get('method', 'none')}"},
        versions={about["engine"]: about["version"]},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        sitting=f"{about['prompts'][:12]}-{uuid4().hex[:6]}",
    )


def _ratios(blocks: Sequence[TimedBlock]) -> dict[int, Estimate]:
    """{draft tokens: trimmed mean of the blocks' ratios}."""
    held = defaultdict(list)
    for block in blocks:
        for drafted, value in block.ratios.items():
            held[drafted].append(value)
    return {drafted: block_mean(np.array(values)) for drafted, values in held.items()}


def block_mean(values: np.ndarray) -> Estimate:
    """The trimmed mean of blocks of equal weight."""
    mean, width = trimmed_mean(values, np.ones(len(values)))
    return Estimate(mean, width, len(values))


def _parts(K: int, verify: list, empty: Any) -> dict[str, Any]:
    lists = {"draft": [empty] * (K + 1), "verify": verify, "catch_up": [empty]}
    return {part: lists.get(part, empty) for part in PARTS}


def steps(passes: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(requests int64[T], draft tokens int64[T]) of a wave's steps, the prompts' step left out.

    passes: the draft tokens of each request's passes, the prompt's pass first.
    """
    later = np.array([*zip_longest(*(each[1:] for each in passes), fillvalue=-1)], np.int64)
    later = later.reshape(-1, len(passes))
    return (later >= 0).sum(axis=1), np.maximum(later, 0).sum(axis=1)


def cells_of(cost: CostModel | CostTable) -> list[CostModel]:
    """All costs of a table, or the one."""
    return cost.known if isinstance(cost, CostTable) else [cost]


def cell_at(cost: CostModel | CostTable, batch: int) -> CostModel:
    """The costs at that batch size."""
    return cost.at(batch) if isinstance(cost, CostTable) else cost


@dataclass(frozen=True)
class StepPrices:
    """Seconds of steps by requests and draft tokens, at the costs and at their R replicates."""

    sizes: np.ndarray  # int64[nb]: measured numbers of requests
    plain: np.ndarray  # float64[nb, 1 + R]: a plain step
    verify: np.ndarray  # float64[nb, 1 + R, K + 1]: a step by the draft tokens of each request

    @classmethod
    def of(cls, cost: CostModel | CostTable) -> "StepPrices":
        """Prices of a CostModel, which is of one request, or of a table of one context."""
        sizes = cost.batch if isinstance(cost, CostTable) else (1,)
        cells = [cell_at(cost, size) for size in sizes]
        count = min(len(cell.replicates) for cell in cells)
        every = [(cell, *cell.replicates[:count]) for cell in cells]
        return cls(
            np.array(sizes, np.int64),
            np.array([[cell.baseline] * (1 + count) for cell in cells]),
            np.array([[held.verify for held in of_size] for of_size in every]),
        )

    @property
    def longest(self) -> int:
        """The longest draft that is priced."""
        return self.verify.shape[2] - 1

    def check(self, fewest: int, most: int) -> None:
        """ValueError unless passes of that many requests lie between measured sizes."""
        for number, missing in ((most, most), (fewest, 1)):
            if not self.sizes[0] <= number <= self.sizes[-1]:
                raise ValueError(
                    f"the costs price {self.sizes[0]} to {self.sizes[-1]} requests a pass, the run "
                    f"has passes of {number}: measure --concurrent {missing} too"
                )

    def seconds(self, active: np.ndarray, drafted: np.ndarray | None = None) -> np.ndarray:
        """float64[1 + R]: the sum over steps; drafted None: plain decoding.

        A step of n requests and d draft tokens is linear in d / n between the entries of a size,
        and linear in n between sizes. ValueError for steps smaller or larger than any measured.
        """
        if not len(active):
            return np.zeros(self.plain.shape[1])
        self.check(int(active.min()), int(active.max()))
        axes, values, at = [self.sizes], self.plain, [active]
        if drafted is not None:
            axes, at = [*axes, np.arange(self.longest + 1)], [active, drafted / active]
            values = np.moveaxis(self.verify, 1, -1)
        seconds: np.ndarray = RegularGridInterpolator(axes, values)(tuple(at)).sum(axis=0)
        return seconds


@dataclass(frozen=True)
class Speedup:
    """Predicted and measured speedup of a draft length over plain decoding after the prompt."""

    k: int
    predicted: float
    predicted_interval: stats.Estimate | None  # None for few prompts or waves, or doubtful costs
    measured: float
    measured_interval: stats.Estimate | None  # None for under MIN_PROMPTS prompts or waves
    policy: str = ""
    tokens: float = float("inf")  # that a pass after the prompt emits: the speedup's bound
    # measured over predicted, of the prompts timed first and last; None: one prompt
    halves: tuple[float, float] | None = None

    @property
    def name(self) -> int | str:
        """The policy that decides lengths up to k, or else k."""
        return self.policy or self.k

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class SpeedupTable:
    """Speedups of all draft lengths and policies of a run; `recommended` is predicted best."""

    rows: tuple[Speedup, ...]
    # prompts, repeats: that were timed without an interruption
    prompts: int
    repeats: int
    recommended: int | str
    best: int | str  # the length or policy measured best
    confirmed: bool  # the recommended one is the best, or within the interval of the best; no doubt
    batch: int = 1  # requests that start together; of more than 1 an interval is over such waves
    # the longest length is a schedule's, which drafts less where it says so
    scheduled: bool = False
    doubt: str = ""  # why the costs confirm nothing; "": they can

    def row(self, name: int | str) -> Speedup:
        """The speedup of that length or policy."""
        return next(row for row in self.rows if row.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        errors = sorted(abs(row.error) for row in self.rows if row.k)
        return asdict(self) | {
            "rows": [asdict(row) | {"error": row.error} for row in self.rows],
            "median_error": float(np.median(errors)) if errors else 0.0,
            "worst_error": max(errors, default=0.0),
        }


def speedup_table(
    about: Mapping[str, Any],
    rows: Sequence[Row],
    cost: CostModel | CostTable,
    recording: Trace | None = None,
    advised: int | None = None,
) -> SpeedupTable:
    """Predicted and measured speedup of a run, whose prompts the costs were not measured on.

    advised: the recommended length, of other prompts; None: the one predicted best on these.

    Predicted: passes of the replay under the engine's convention, at the engine's costs. Measured:
    seconds from the first token to the last, of one request, or of a wave whose requests start
    together. ValueError for requests that take turns, for prompts of the costs' own run, and where
    nothing was timed whole; PriceError for a speedup above tokens a pass, beyond noise.
    """
    if about["plan"]["force"]:
        raise ValueError(
            "these rows are of forced drafts, by which costs are measured: name rows of "
            "`simspec engine run`"
        )
    for cell in cells_of(cost):
        sitting = "" if cell.origin is None else cell.origin.sitting
        if sitting and sitting.startswith(about["prompts"][:12]):
            raise ValueError(
                "the costs were measured on this run's own prompts: hold prompts out, see --part"
            )
    whole = [row for part in whole_blocks(about, rows) for row in part]
    arms = sorted({row.arm for row in whole})
    waves = _timed_waves(about, whole)
    texts_to_draft([row for row in whole if not row.k], 1)
    seconds, names = _decode_seconds(waves, arms)
    one = {(name, arm): wave for (name, _, arm), wave in waves.items()}
    size, prices, found = about["plan"]["concurrent"], StepPrices.of(cost), []
    prices.check(size, size)
    cell, doubt = cell_at(cost, size), doubt_of(cost)
    plain = Replayed.plain([one[name, PLAIN] for name in names], prices)
    place = {row.request.id: i for i, row in reversed([*enumerate(rows)])}
    in_time = np.argsort([place[name[0]] for name in names])
    for arm in arms:
        replayed = _replayed(about, [one[name, arm] for name in names], arm, prices, recording)
        predicted = replayed.over(plain, arm, doubt, cell)
        interval = _interval(seconds[PLAIN], seconds[arm])
        measured = _quotient(seconds[PLAIN], seconds[arm])
        low = None if interval is None else interval.low
        check_claims([Claim(f"the measured {predicted.title}", measured, predicted.tokens, low)])
        errors = [
            _quotient(seconds[PLAIN][part], seconds[arm][part])
            / _quotient(plain.seconds[part], replayed.seconds[part])
            for part in np.array_split(in_time, 2)
            if len(names) > 1
        ]
        halves = (errors[0], errors[1]) if errors else None
        found.append(
            Speedup(
                arm[0], predicted.speedup, predicted.interval, measured, interval, arm[1],
                predicted.tokens, halves,
            )
        )  # fmt: skip
    recommended = max(found, key=lambda row: row.predicted).name if advised is None else advised
    best = max(found, key=lambda row: row.measured).name
    of_name = {row.name: seconds[row.k, row.policy] for row in found}
    against = _interval(of_name[recommended], of_name[best])  # times faster that the best is
    return SpeedupTable(
        tuple(found), sum(len(one[name, PLAIN]) for name in names), seconds[PLAIN].shape[1] - 1,
        recommended, best,
        not doubt and (recommended == best or (against is not None and against.low <= 1)),
        size, bool(about.get("schedule")), doubt,
    )  # fmt: skip


def arm_text(arm: int | str) -> str:
    """A draft length or policy in sentences."""
    return arm if isinstance(arm, str) else f"K = {arm}"


@dataclass(frozen=True)
class Predicted:
    """The speedup of a draft length, or policy, over plain decoding by replay of texts.

    plain, seconds: float64[1 + R] of all texts, at the costs and each of their replicates; tokens:
    a pass after the prompt emits.
    """

    arm: Arm
    interval: stats.Estimate | None
    tokens: float
    plain: np.ndarray
    seconds: np.ndarray

    @property
    def speedup(self) -> float:
        """At the costs as measured."""
        return float(self.plain[0] / self.seconds[0])

    @property
    def title(self) -> str:
        """The length or policy in sentences."""
        return arm_text(self.arm[1] or self.arm[0])

    def why(self, cost: CostModel | CostTable, batch: int) -> Why:
        """Where its mean pass goes; an engine drafts within its pass."""
        cell = cell_at(cost, batch)
        every = [cell, *cell.replicates][: len(self.seconds)]
        host = np.array([held.verify[0] / held.baseline - 1 for held in every])
        rows = self.tokens * self.seconds / self.plain - 1 - host
        unknown = (DRAFTING, CACHED) if host.any() else (DRAFTING, CACHED, HOST)
        name = self.title + (f", {batch} in flight" if batch > 1 else "")
        return why(name, self.tokens, {ROWS: rows, HOST: host}, unknown, not doubt_of(cost))


def doubt_of(cost: CostModel | CostTable) -> str:
    """Why predictions at these costs have no interval and confirm nothing; "": they may."""
    whys = [why for cell in cells_of(cost) if (why := no_interval(cell))]
    return f"the costs have {whys[0]}" if whys else ""


def texts_to_draft(rows: Sequence[Row], size: int) -> list[list[Row]]:
    """The texts in batches of that size, those without a token after their first left out.

    ValueError where no batch is left.
    """
    long = [row for row in rows if len(row.finished.tokens) > 1]
    if len(long) < size:
        ended = [row.request.id for row in rows if len(row.finished.tokens) < 2]
        raise ValueError(
            f"{len(ended)} of {len(rows)} answers end with their first token "
            f"({', '.join(ended):.60}) and have no pass after their prompt, which leaves "
            f"{len(long)}, expected at least {size}: give prompts with longer answers, in the "
            "model's chat template where it has one"
        )
    return [long[i : i + size] for i in range(0, len(long) - size + 1, size)]


def predicted_speedups(
    about: Mapping[str, Any],
    rows: Sequence[Row],
    cost: CostModel | CostTable,
    arms: Sequence[Arm],
    recording: Trace | None = None,
) -> list[Predicted]:
    """The prediction of each arm by replay of the rows' texts, `concurrent` of them together.

    Texts that fill no batch are left out. ValueError as in `speedup_table`.
    """
    size, prices = about["plan"]["concurrent"], StepPrices.of(cost)
    texts, doubt, found = texts_to_draft(rows, size), doubt_of(cost), []
    plain = Replayed.plain(texts, prices)
    for arm in arms:
        waves = [[replace(row, k=arm[0], policy=arm[1]) for row in wave] for wave in texts]
        replayed = _replayed(about, waves, arm, prices, recording)
        found.append(replayed.over(plain, arm, doubt, cell_at(cost, size)))
    return found


Wave = tuple[tuple[str, ...], int, Arm]
"""Ids of the requests that ran together, their block and their arm."""
PLAIN = 0, ""
"""The arm of plain decoding."""


def _timed_waves(about: Mapping[str, Any], rows: Sequence[Row]) -> dict[Wave, list[Row]]:
    """The waves of the batch's size; each request where they ran one at a time."""
    waves = [[row] for row in rows]
    if about["plan"]["concurrent"] > 1:
        size = batch_size(about)
        waves = [wave for wave in whole_waves(about, rows).values() if len(wave) == size]
    return {
        (tuple(sorted(row.request.id for row in wave)), wave[0].block, wave[0].arm): wave
        for wave in waves
    }


def _decode_seconds(
    waves: Mapping[Wave, Sequence[Row]], arms: Sequence[Arm]
) -> tuple[dict[Arm, np.ndarray], list[tuple[str, ...]]]:
    """({arm: float64[P, 1 + R]}, the waves timed in most repeats): means, then every repeat."""
    held: dict[tuple[str, ...], dict[int, dict[Arm, float]]] = {}
    for (name, block, arm), wave in waves.items():
        spent = max(row.finished.seconds - row.finished.first_seconds for row in wave)
        several = any(len(row.finished.passes) > 1 for row in wave)
        if several and isfinite(spent) and spent > 0:
            held.setdefault(name, {}).setdefault(block, {})[arm] = spent
    complete = {
        name: [by_arm for by_arm in blocks.values() if len(by_arm) == len(arms)]
        for name, blocks in held.items()
    }
    repeats = max(map(len, complete.values()), default=0)
    names = [name for name, blocks in complete.items() if blocks and len(blocks) == repeats]
    if not names:
        raise ValueError("no block of the run was timed whole: run it again without interruption")
    seconds = {
        arm: np.array([[by[arm] for by in complete[name]] for name in names]) for arm in arms
    }
    return {arm: np.column_stack((s.mean(axis=1), s)) for arm, s in seconds.items()}, names


@dataclass(frozen=True)
class Replayed:
    """Seconds float64[P, 1 + R] of the passes after the prompt, by wave, and how many they are.

    steps: passes of the engine; passes: summed over the requests that share one.
    """

    seconds: np.ndarray
    steps: int
    passes: int

    @classmethod
    def of(
        cls, drafted: Sequence[Sequence[Sequence[int]]], prices: StepPrices, plain: bool = False
    ) -> "Replayed":
        """drafted: draft tokens of each pass, by wave and request."""
        parts = [steps(wave) for wave in drafted]
        seconds = np.array([prices.seconds(a, None if plain else d) for a, d in parts])
        return cls(seconds, sum(len(a) for a, _ in parts), sum(int(a.sum()) for a, _ in parts))

    @classmethod
    def plain(cls, waves: Sequence[Sequence[Row]], prices: StepPrices) -> "Replayed":
        """Plain steps for the tokens after the first."""
        tokens = [[[0] * len(row.finished.tokens) for row in wave] for wave in waves]
        return cls.of(tokens, prices, plain=True)

    def over(self, plain: "Replayed", arm: Arm, doubt: str, cell: CostModel) -> Predicted:
        """The speedup over plain decoding; PriceError for one above tokens a pass.

        Where a batch shrinks, tokens a pass are those of a step or of a request, if more.
        """
        tokens = max(plain.steps / self.steps, plain.passes / self.passes)
        interval = None if doubt else _interval(plain.seconds, self.seconds)
        totals = plain.seconds.sum(axis=0), self.seconds.sum(axis=0)
        found = Predicted(arm, interval, tokens, *totals)
        low = None if doubt else float(np.quantile(totals[0] / totals[1], 0.025))
        check_claims([Claim(found.title, found.speedup, tokens, low)], cell, cell.name)
        return found


def _replayed(
    about: Mapping[str, Any],
    waves: Sequence[Sequence[Row]],
    arm: Arm,
    prices: StepPrices,
    recording: Trace | None,
) -> Replayed:
    """The replay's passes after the prompt's, by wave."""
    k = arm[0]
    if k == 0:
        return Replayed.plain(waves, prices)
    if k > prices.longest:
        raise ValueError(
            f"the costs price drafts up to {prices.longest}, the run has {k}: measure {k}"
        )
    rows = [row for wave in waves for row in wave]
    kept, passes = predicted_passes(about, rows, arm, recording)
    if len(kept) < len(rows):
        raise ValueError(f"the recording covers {len(kept)} of {len(rows)} prompts: name its own")
    drafted = [[d for _, d, _ in passes_of_row] for passes_of_row in passes]
    ends = np.cumsum([len(wave) for wave in waves]).tolist()
    of_wave = [drafted[end - len(wave) : end] for wave, end in zip(waves, ends)]
    return Replayed.of(of_wave, prices)


def _quotient(plain: np.ndarray, drafted: np.ndarray) -> float:
    """Plain over drafted seconds of all prompts."""
    return float(plain[:, 0].sum() / drafted[:, 0].sum())


def _interval(plain: np.ndarray, drafted: np.ndarray) -> stats.Estimate | None:
    """The bootstrap interval of plain over drafted seconds; None for too few prompts or waves."""
    if len(plain) < stats.MIN_PROMPTS:
        return None
    enough = plain.shape[1] > 2
    return stats.ratio(plain if enough else plain[:, 0], drafted if enough else drafted[:, 0])
