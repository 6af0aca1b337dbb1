"""Summaries: means of a sweep's rows, and what a recording holds."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simspec.cost.model import CostModel
from simspec.output.frames import frame
from simspec.policies.fixed import fixed
from simspec.replay.metrics import Metrics, summary
from simspec.replay.replay import replay
from simspec.trace.acceptance import expected_accepted_length
from simspec.trace.trace import OPTIONAL, Trace

NAMES = ("trace", "group", "cost", "policy")
FIGURES = ("committed_per_round", "v_d", "r_d", "hm", "speedup", "cut_share")


def gains_frame(table: Any) -> Any:
    """The means of FIGURES over draws by NAMES, in the order of the sweep's rows; without speedups
    where no recording has costs.
    """
    names, figures = ([n for n in of if n in table.columns] for of in (NAMES, FIGURES))
    means = table.groupby(names, sort=False, dropna=False)[figures].mean().reset_index()
    means["trace"] = [Path(name).name for name in means["trace"]]
    notes = (
        "committed_per_round: tokens a round. v_d: accepted of computed. r_d: accepted of output. "
        "hm: their harmonic mean. cut_share: rounds that the recorded depth may have cut.",
    )
    optional = ("cut_share", "hm", "r_d", "v_d", "committed_per_round")
    return frame(means.to_dict("records"), names=len(names), notes=notes, optional=optional)


def contents_frame(name: str, trace: Trace) -> Any:
    """`trace_summary` as a table of one line a field."""
    rows = [
        (key, ", ".join(map(str, value)) if isinstance(value, list) else value)
        for key, value in trace_summary(trace).items()
    ]
    return frame(rows, ("field", "value"), names=2, title=name)


def trace_summary(trace: Trace) -> dict[str, Any]:
    """The recording's metadata, its size, and its acceptance by depth at K.

    Acceptance by depth is that of rounds at K: it holds for that draft length only.
    """
    meta = {key: value for key, value in asdict(trace.meta).items() if key not in ("tasks", "ids")}
    figures = summary(replay(trace, fixed(trace.K)), trace, CostModel.from_ratio(0.1, trace.K))
    assert isinstance(figures, Metrics)
    last = [int(token) for token in trace.token[trace.offset[1:] - 1]]
    by_depth = [None if math.isnan(r) else round(r, 4) for r in figures.accept_by_depth]
    counts = {
        "sequences": trace.sequences,
        "rows": trace.rows,
        "prompt_tokens": 0 if trace.prompt is None else len(trace.prompt),
        "tasks": {task: trace.task.count(task) for task in sorted(set(trace.task))},
        "ended_by_token": sum(token in trace.meta.end_tokens for token in last),
        "mean_accepted_length": round(float(expected_accepted_length(trace).mean()), 4),
        "committed_at_K": round(figures.committed_per_round, 4),
        "accept_by_depth_at_K": by_depth,
        "recorded": [name for name in OPTIONAL if getattr(trace, name) is not None],
    }
    return json.loads(json.dumps(meta | counts))
