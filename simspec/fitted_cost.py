"""A CostModel fitted to a table of accepted length and speed by draft length."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simspec.cost import CostModel
from simspec.cost_origin import CostOrigin
from simspec.cost_precision import CostPrecision
from simspec.prediction_errors import PredictionErrors
from simspec.speed_table import LONGEST, SpeedRow, SpeedTable

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
    notes = _notes(table, line, deepest, residuals, left_out)
    cost = replace(cost, precision=precision_of(cost, notes))
    return FittedCost(cost, line, residuals, left_out)


def _left_out(table: SpeedTable) -> PredictionErrors | None:
    try:
        return PredictionErrors.of(leave_one_length_out(table))
    except ValueError:  # too few draft lengths, or a line that falls below 0
        return None


def _notes(
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
        notes.append("the table has speedups alone: seconds stand for plain steps")
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
