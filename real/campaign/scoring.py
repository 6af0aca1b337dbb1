"""Scorecards and tree runs of a campaign."""

from collections.abc import Sequence
from dataclasses import asdict

from real.bench.scorecard import Scorecard, ScorecardRow
from real.bench.scoring import ScoreSettings, score, split_prompts
from real.campaign.recordings import RULE
from real.campaign.selection import select_policies
from real.campaign.workspace import Workspace
from real.jobs import run_on
from real.progress import relabel
from real.provenance import device_name


def score_drafter(workspace: Workspace, drafter: str) -> dict:
    """Bf16: throughput predicted from other prompts against measured throughput.

    The best fixed length is selected on other prompts.
    """
    config, pair = workspace.config, workspace.pair(drafter, "bfloat16")
    trace, cost = workspace.open_recording(drafter, RULE)
    kept, _ = split_prompts(trace, config.scoring.prompts, workspace.seed)
    mine = set(kept.sequence.tolist())
    others = trace.select([s for s in range(trace.sequences) if int(trace.sequence[s]) not in mine])
    name, progress = (
        workspace.trace(drafter, RULE).stem,
        relabel(workspace.progress, f"scoring {drafter}"),
    )
    rows = score(
        name,
        trace,
        pair,
        select_policies(workspace, others, cost),
        cost,
        ScoreSettings(config.scoring.prompts, config.scoring.repeats, workspace.seed),
        progress,
    )
    return {
        "dtype": "bfloat16",
        "repeats": config.scoring.repeats,
        "rows": [asdict(row) for row in rows],
    }


def scorecard(workspace: Workspace, drafters: Sequence[str]) -> Scorecard | None:
    """The scorecard of all drafters that were scored; None where none was."""
    found = [workspace.result(f"score-{drafter}") for drafter in drafters]
    rows = [
        ScorecardRow(**(row | {n: tuple(row[n]) for n in ("phases", "phases_measured")}))
        for each in found
        if each
        for row in each["rows"]
    ]
    return (
        Scorecard(
            device_name(workspace.device),
            "bfloat16",
            workspace.config.scoring.repeats,
            workspace.seed,
            tuple(rows),
        )
        if rows
        else None
    )


def run_static_tree(workspace: Workspace, drafter: str) -> dict:
    """Bf16: runs one static tree, and plain decoding, on the scored prompts."""
    pair = workspace.pair(drafter, "bfloat16")
    whole, cost = workspace.open_recording(drafter, RULE)
    trace, _ = split_prompts(whole, workspace.config.scoring.prompts, workspace.seed)
    found = run_on(
        trace, pair, workspace.config.policies.tree, cost, workspace.seed, workspace.progress
    ).summary()
    return {"dtype": "bfloat16"} | {
        name: value for name, value in found.items() if name not in ("exceptions", "failures")
    }
