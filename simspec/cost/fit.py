"""Costs fitted to published tables: by draft length, or by tokens at several batch sizes."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from simspec.cost.batch import TokenCost
from simspec.cost.model import CostModel
from simspec.cost.provenance import CostOrigin, CostPrecision
from simspec.cost.speed_table import LONGEST, SpeedRow, SpeedTable


@dataclass(frozen=True)
class PredictionErrors:
    """Absolute relative errors |predicted / measured - 1|.

    | field | meaning |
    | --- | --- |
    | count | measurements that were predicted |
    | median, p90, worst | quantiles of the errors, linear between ranks |
    """

    count: int
    median: float
    p90: float
    worst: float

    @classmethod
    def of(cls, errors: Iterable[float]) -> "PredictionErrors":
        """The summary of relative errors of either sign; ValueError for none."""
        sizes = np.abs(np.array(list(errors), dtype=np.float64))
        if not len(sizes):
            raise ValueError("no measurement was predicted, expected at least one")
        median, p90 = np.quantile(sizes, (0.5, 0.9))
        return cls(len(sizes), float(median), float(p90), float(sizes.max()))

    def to_dict(self) -> dict[str, float]:
        """Plain data for JSON."""
        return asdict(self)

    @property
    def text(self) -> str:
        """One line for notes and files."""
        return (
            f"median {self.median:.2%}, 90th percentile {self.p90:.2%}, worst {self.worst:.2%} "
            f"of {self.count}"
        )


Sized = tuple[int, SpeedRow]


@dataclass(frozen=True)
class TokenFit:
    """Costs by tokens, and how well they predict the speedups that they were fitted to.

    | field | meaning |
    | --- | --- |
    | tokens | TokenCost, in seconds; in plain steps of one sequence where no second is known |
    | cost | its CostModel of one sequence |
    | residuals | PredictionErrors of the rows that were fitted |
    | left_out | the same, each batch size predicted from the others; None for fewer than three |
    """

    tokens: TokenCost
    cost: CostModel
    residuals: PredictionErrors
    left_out: PredictionErrors | None


def fit_tokens(tables: Sequence[SpeedTable], K: int | None = None) -> TokenFit:
    """The costs of least squared relative errors over tables of several batch sizes, all >= 0.

    A plain step of B sequences with c cached tokens each takes pass + token B + kv B c, a round of
    K drafted tokens token B K + step + draft K more. `step` is all that drafting adds at once, and
    `token` holds the drafter's further rows too. kv is fitted where contexts differ. ValueError for
    one batch size, or where no such costs are positive.
    """
    rows = [(table.batch, row) for table in tables for row in table.rows]
    sizes = sorted({batch for batch, _ in rows})
    if len(sizes) < 2:
        raise ValueError(
            f"the batch sizes are {sizes}, expected at least two: without --by-batch one is fitted"
        )
    deepest = max(row.K for _, row in rows) if K is None else K
    if not 1 <= deepest <= LONGEST:
        raise ValueError(f"--depth is {deepest}, expected 1 to {LONGEST} drafted tokens")
    tokens = _solve(rows)
    residuals = PredictionErrors.of(speedup_error(tokens, *row) for row in rows)
    left_out = None
    if len(sizes) > 2:
        found = [
            speedup_error(_solve([row for row in rows if row[0] != size]), *left)
            for size in sizes
            for left in rows
            if left[0] == size
        ]
        left_out = PredictionErrors.of(found)
    first = tables[0]
    contexts = sorted({row.context for _, row in rows})
    cost = tokens.cost(deepest, contexts[0], first.name)
    notes = _notes_by_tokens(first, rows, tokens, (residuals, left_out))
    return TokenFit(
        tokens,
        replace(
            cost,
            device=f"fitted to {first.name}",
            origin=CostOrigin(
                device=first.texts.get("device", ""), sitting=f"table sha256 {first.sha256}"
            ),
            precision=precision_of(cost, notes),
        ),
        residuals,
        left_out,
    )


def speedup_error(tokens: TokenCost, batch: int, row: SpeedRow) -> float:
    """Predicted over measured speedup, less 1, from the row's own accepted length."""
    plain, seconds = tokens.plain(batch, row.context), tokens.round(row.K, batch, row.context)
    return row.accepted_length * plain / seconds / row.speedup - 1


def _solve(rows: Sequence[Sized]) -> TokenCost:
    """Least squares over (pass, token, kv, step, draft) >= 0; kv 0 where contexts are equal."""
    from scipy.optimize import nnls

    several = len({row.context for _, row in rows}) > 1
    known = all(row.plain_step for _, row in rows)
    lines, values = [], []
    least = min(row.context for _, row in rows)
    for batch, row in rows:
        cached = float(batch * row.context) if several else 0.0
        plain: Any = np.array([1.0, batch, cached, 0.0, 0.0])
        drafting = plain + [0.0, batch * row.K, 0.0, 1.0, row.K]
        if known:
            lines += [plain / row.plain_step, drafting / (row.plain_step * row.round_cost)]
            values += [1.0, 1.0]
        else:
            # One sequence's plain step is 1: pass = 1 - token - kv least.
            moved = drafting - row.round_cost * plain
            fixed = np.array([1.0, 1.0, least if several else 0.0, 0.0, 0.0])
            lines.append((moved - moved[0] * fixed) / row.round_cost)
            values.append(-moved[0] / row.round_cost)
    design = np.array(lines)
    terms, _ = nnls(design, np.array(values))
    if not known:
        terms[0] = 1 - terms[1] - (terms[2] * least if several else 0.0)
        if terms[0] < 0:
            raise ValueError("the tokens of a plain step would cost more than it: measure more")
    return TokenCost(fixed=terms[0], token=terms[1], kv=terms[2], step=terms[3], draft=terms[4])


def _notes_by_tokens(
    table: SpeedTable,
    rows: Sequence[Sized],
    tokens: TokenCost,
    errors: tuple[PredictionErrors, PredictionErrors | None],
) -> list[str]:
    unit = "ms" if all(row.plain_step for _, row in rows) else "thousandths of a plain step"
    parts = (tokens.fixed, tokens.token, tokens.kv, tokens.step, tokens.draft)
    names = ("pass", "token", "kv", "step", "draft")
    texts = ", ".join(f"{name} {1000 * value:.4g}" for name, value in zip(names, parts))
    sizes = sorted({batch for batch, _ in rows})
    source = table.texts.get("source", "")
    notes = [
        f"fitted, not measured: {len(rows)} rows of {table.name}"
        f"{f' ({source})' if source else ''} at batch sizes {', '.join(map(str, sizes))}, "
        f"file sha256 {table.sha256}",
        f"{texts}, in {unit}; speedups of the rows are off by {errors[0].text}",
        "step is all that drafting adds at once, and token holds the drafter's further rows",
    ]
    if errors[1] is not None:
        notes.append(f"speedups at a batch size left out are off by {errors[1].text}")
    if len({row.K for _, row in rows}) < 2:
        notes.append("one draft length: step and draft are not separable")
    if len({row.context for _, row in rows}) < 2:
        notes.append("one context: seconds for cached tokens are not separable, and 0 here")
    if caution := table.texts.get("caution"):
        notes.append(f"caution: {caution}")
    return notes


CONVENTION = (
    "draft step and verification slope are not separable in such a table: all that grows with K is "
    "in draft, verify is flat from one drafted token on"
)


@dataclass(frozen=True)
class RoundLine:
    """A round's cost in plain steps: intercept + step K for K >= 1 drafted tokens."""

    intercept: float
    step: float

    def at(self, K: int) -> float:
        """The cost of a round of K >= 1 drafted tokens; ValueError where the line is not > 0."""
        cost = self.intercept + self.step * K
        if not cost > 0:
            raise ValueError(f"a round of {K} drafted tokens would cost {cost:.3g} plain steps")
        return cost

    def speedup(self, row: SpeedRow) -> float:
        """The speedup that the line predicts from the row's own accepted length."""
        return row.accepted_length / self.at(row.K)

    def error(self, row: SpeedRow) -> float:
        """Predicted over measured speedup, less 1."""
        return self.speedup(row) / row.speedup - 1


def fit_line(rows: Sequence[SpeedRow]) -> RoundLine:
    """The line of least squared relative errors of the round costs.

    It minimizes sum ((intercept + step K) / cost - 1)^2 over the rows. ValueError for fewer than
    two draft lengths.
    """
    if len({row.K for row in rows}) < 2:
        raise ValueError(
            f"the draft lengths are {sorted({row.K for row in rows})}, expected at least two: "
            "a line through one point has any slope"
        )
    K, cost = (np.array(values, np.float64) for values in zip(*((r.K, r.round_cost) for r in rows)))
    design = np.stack((np.ones(len(K)), K), axis=-1) / cost[:, None]
    (intercept, step), *_ = np.linalg.lstsq(design, np.ones(len(K)), rcond=None)
    return RoundLine(float(intercept), 0.0 if abs(step) < 1e-12 else float(step))


def leave_one_length_out(table: SpeedTable) -> list[float]:
    """Errors of each row's speedup, predicted by the line of the table's other draft lengths.

    Empty for fewer than three draft lengths. ValueError where such a line is not positive.
    """
    if len(table.lengths) < 3:
        return []
    errors = []
    for K in table.lengths:
        line = fit_line([row for row in table.rows if row.K != K])
        errors += [line.error(row) for row in table.rows if row.K == K]
    return errors


@dataclass(frozen=True)
class FittedCost:
    """Costs of a table, and how well they predict it.

    | field | meaning |
    | --- | --- |
    | cost | CostModel, in seconds; in plain steps where the table has speedups alone |
    | line | RoundLine, in plain steps |
    | residuals | PredictionErrors of the rows that were fitted |
    | left_out | the same of `leave_one_length_out`; None where it cannot be had |
    """

    cost: CostModel
    line: RoundLine
    residuals: PredictionErrors
    left_out: PredictionErrors | None


def fit_cost(table: SpeedTable, K: int | None = None) -> FittedCost:
    """The affine costs of a table's rounds, for drafts of up to K tokens (default: its longest).

    With r(j) = a + b j the line in plain steps of t seconds: draft[j] = b j t, verify[0] = t,
    verify[j] = a t for j >= 1, overhead and catch-up 0. A table does not separate draft step from
    verification; `precision` of the result says so, with file, hash and residuals. ValueError for
    a table without a valid line, or K below 1.
    """
    deepest = table.lengths[-1] if K is None else K
    if not 1 <= deepest <= LONGEST:
        raise ValueError(f"--depth is {deepest}, expected 1 to {LONGEST} drafted tokens")
    line = fit_line(table.rows)
    if line.step < 0 or line.intercept <= 0:
        raise ValueError(
            f"a round would cost {line.intercept:.3g} + {line.step:.3g} K plain steps, "
            "expected both terms >= 0: measure more draft lengths"
        )
    residuals = PredictionErrors.of(map(line.error, table.rows))
    left_out = _left_out(table)
    plain = table.plain_step
    device = table.texts.get("device", "")
    verify = np.full(deepest + 1, plain * line.intercept)
    verify[0] = plain
    cost = CostModel(
        draft=plain * line.step * np.arange(deepest + 1),
        verify=verify,
        catch_up=np.zeros(1),
        overhead=0.0,
        baseline=plain,
        name=table.name,
        device=f"fitted to {table.name}{f' ({device})' if device else ''}",
        origin=CostOrigin(device=device, sitting=f"table sha256 {table.sha256}"),
    )
    notes = _notes_by_length(table, line, deepest, residuals, left_out)
    cost = replace(cost, precision=precision_of(cost, notes))
    return FittedCost(cost, line, residuals, left_out)


def _left_out(table: SpeedTable) -> PredictionErrors | None:
    try:
        return PredictionErrors.of(leave_one_length_out(table))
    except ValueError:  # too few draft lengths, or a line that falls below 0
        return None


def _notes_by_length(
    table: SpeedTable,
    line: RoundLine,
    deepest: int,
    residuals: PredictionErrors,
    left_out: PredictionErrors | None,
) -> list[str]:
    source = table.texts.get("source", "")
    notes = [
        f"fitted, not measured: {len(table.rows)} rows of {table.name}"
        f"{f' ({source})' if source else ''}, file sha256 {table.sha256}",
        f"a round costs {line.intercept:.4f} + {line.step:.4f} K plain steps; speedups of "
        f"the rows are off by {residuals.text}",
        CONVENTION,
    ]
    if left_out is not None:
        notes.append(f"speedups at a draft length left out are off by {left_out.text}")
    if table.plain_step == 1.0 and not any(row.plain_step for row in table.rows):
        notes.append("the table has speedups alone: its unit of time is the plain step")
    least, most = table.lengths[0], table.lengths[-1]
    if deepest > most or least > 1:
        notes.append(f"draft lengths {least} to {most} are in the table, others extrapolated")
    if caution := table.texts.get("caution"):
        notes.append(f"caution: {caution}")
    return notes


def precision_of(cost: CostModel, notes: Iterable[str]) -> CostPrecision:
    """The precision of costs that nobody measured: no intervals, and the notes as warnings."""
    sizes = {"draft": len(cost.draft), "verify": len(cost.verify), "catch_up": len(cost.catch_up)}
    single = ("overhead", "baseline", "feature", "node")
    unknown = {part: [None] * size for part, size in sizes.items()} | dict.fromkeys(single)
    filled = {part: [0] * size for part, size in sizes.items()} | dict.fromkeys(single, 0)
    return CostPrecision(0.0, unknown, filled, warnings=tuple(notes))
