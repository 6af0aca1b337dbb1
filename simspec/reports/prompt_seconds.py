"""Modelled time of each prompt under each policy: what intervals over prompts resample."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost import CostModel
from simspec.sweep import sweep_rows
from simspec.trace import Trace


def prompt_seconds(
    trace: Trace, policies: Sequence[Any], cost: CostModel, replicates: int, seed: int
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.int64]]:
    """({policy name: modelled seconds float64[S], averaged over replicates}, tokens int64[S])."""
    seconds: dict[str, dict[str, float]] = {}
    tokens: dict[str, int] = {}
    for row in sweep_rows(
        {"": trace}, policies, {"": cost}, replicates=replicates, seed=seed, by="prompt"
    ):
        of_policy = seconds.setdefault(row["policy"], {})
        of_policy[row["group"]] = of_policy.get(row["group"], 0.0) + row["seconds"] / replicates
        tokens[row["group"]] = row["tokens"]
    return (
        {name: np.array(list(of_policy.values())) for name, of_policy in seconds.items()},
        np.array(list(tokens.values())),
    )
