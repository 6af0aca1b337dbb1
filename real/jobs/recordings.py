"""Recordings by name, and the costs that policies observe on them."""

from pathlib import Path

from real.rerun import evenly_spaced
from real.sampling import Rule
from simspec import CostModel, Trace, load_trace
from simspec.trace.recordings import costs_of, locate

RULES = {"greedy": Rule(), "coupled": Rule("coupled", 0.8, 0)}
"""The rules of the bundled recordings."""


def open_recording(name: str, prompts: int = 0) -> tuple[Path, Trace]:
    """(file, recording) of a file or bundled name; only some `prompts`, evenly spread, unless 0."""
    (path,) = locate([name]).values()
    if prompts < 0:
        raise ValueError(f"--prompts is {prompts}, expected a number of prompts, or 0 for all")
    trace = load_trace(path)
    return path, trace.select(evenly_spaced(trace.sequences, prompts)) if prompts else trace


def policy_cost_of(path: Path, cost: Path | None, K: int) -> CostModel:
    """Costs that policies observe: of `cost`, else beside the recording, else a ratio of 0.1."""
    costs = costs_of({"": path}, None if cost is None else str(cost))[""]
    return costs if isinstance(costs, CostModel) else CostModel.from_ratio(costs, K)
