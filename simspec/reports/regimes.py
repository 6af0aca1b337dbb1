"""The prices that tables are printed at: measured ones, and the papers' cost coefficients."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from simspec.cost.model import CostModel
from simspec.trace.trace import Trace
from simspec.tree.tree import MAX_NODES

RATIOS = (0.05, 0.10, 0.15)
"""c = draft step / target step, where EESD, GLIDE and EAGLE work."""
MEASURED = "measured"
FLAT, VERIFIED = "flat", "measured verification"


def regimes(cost: CostModel | float, trace: Trace) -> dict[str, CostModel]:
    """{label: costs}: the recording's own, then those of `regime_label` for each of RATIOS.

    | verification | draft[j] | verify[j] | all else |
    | --- | --- | --- | --- |
    | flat | c j | 1 | 0: the papers' unit model |
    | measured verification | c j baseline | as measured | 0 |

    A ratio in place of measured costs has flat verification only.
    """
    flat = {regime_label(c, FLAT): CostModel.from_ratio(c, trace.K, MAX_NODES) for c in RATIOS}
    if not isinstance(cost, CostModel):
        return {MEASURED: CostModel.from_ratio(cost, trace.K, MAX_NODES)} | flat
    return (
        {MEASURED: cost} | flat | {regime_label(c, VERIFIED): with_ratio(cost, c) for c in RATIOS}
    )


def regime_label(c: float, verification: str) -> str:
    """'c=0.05, flat' or 'c=0.05, measured verification'."""
    return f"c={c:.2f}, {verification}"


def with_ratio(cost: CostModel, c: float) -> CostModel:
    """The measured verification, and draft steps of c plain steps; all else is free."""
    priced = replace(
        cost,
        name=regime_label(c, VERIFIED),
        draft=c * cost.baseline * np.arange(cost.K + 1),
        catch_up=np.zeros(1),
        overhead=0.0,
        feature=0.0,
        predictor=None,
        node=0.0,
        kv_draft=0.0,
        origin=None,
        precision=None,
    )
    return priced.derived(partial(with_ratio, c=c), cost)


def by_regime(traces: Mapping[str, Trace], costs: Any) -> dict[str, dict[str, CostModel]]:
    """{label: {recording: costs}}; costs as for `score`. A label holds what has it."""
    labels: dict[str, dict[str, CostModel]] = {}
    for name, trace in traces.items():
        cost = costs[name] if isinstance(costs, Mapping) else costs
        for label, priced in regimes(cost, trace).items():
            labels.setdefault(label, {})[name] = priced
    return labels


def regime_columns(labels: Mapping[str, Any]) -> dict[str, list[str]]:
    """{verification: the labels side by side, the measured price first} of one table each."""
    return {
        verification: [
            MEASURED,
            *(label for label in labels if label.endswith(f", {verification}")),
        ]
        for verification in (FLAT, VERIFIED)
        if any(label.endswith(f", {verification}") for label in labels)
    }
