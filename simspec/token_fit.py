"""Costs by tokens, fitted to speeds at several batch sizes, and contexts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simspec.cost import CostModel
from simspec.cost_origin import CostOrigin
from simspec.fitted_cost import precision_of
from simspec.prediction_errors import PredictionErrors
from simspec.speed_table import LONGEST, SpeedRow, SpeedTable
from simspec.token_cost import TokenCost

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
    notes = _notes(first, rows, tokens, (residuals, left_out))
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


def _notes(
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
