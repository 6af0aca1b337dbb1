"""Summaries: means of a sweep's rows, and what a recording holds."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simspec.cost.model import CostModel
from simspec.output.files import replacing
from simspec.output.names import label_text
from simspec.policies.fixed import fixed
from simspec.replay.metrics import Metrics, summary
from simspec.replay.replay import replay
from simspec.trace.acceptance import expected_accepted_length
from simspec.trace.trace import OPTIONAL, Trace

NAMES = ("trace", "group", "cost", "policy")
FIGURES = ("committed_per_round", "v_d", "r_d", "hm", "speedup", "cut_share")


def sweep_means(table: Any) -> Any:
    """The means of FIGURES by NAMES, a pandas DataFrame, in the order of the sweep's rows."""
    means = table.groupby(list(NAMES), sort=False)[list(FIGURES)].mean().reset_index()
    return means.assign(trace=[Path(name).name for name in means["trace"]])


def plot_sweep(table: Any, path: Path) -> None:
    """Write a PNG of the speedups: a line per recording, group and cost, policies across."""
    from matplotlib.figure import Figure

    means = sweep_means(table)
    means["label"] = [
        label_text(f"{row.trace} {row.group} {row.cost}") for row in means.itertuples()
    ]
    figure = Figure(figsize=(9, 4.5 + 0.2 * means["label"].nunique()), layout="constrained")
    axes = figure.subplots()
    for label, part in means.groupby("label", sort=False):
        axes.plot([*map(label_text, part["policy"])], part["speedup"], marker="o", label=label)
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set_ylabel("modelled speedup over plain decoding")
    axes.tick_params(axis="x", rotation=40)
    for label in axes.get_xticklabels():
        label.set(ha="right", rotation_mode="anchor")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)


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
