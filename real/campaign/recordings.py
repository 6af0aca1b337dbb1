"""Recordings of a campaign: their costs, rows and dynamic trees."""

from pathlib import Path

from real.campaign.config import MAX_DRAFT_LENGTHS, TREE_DRAFTERS
from real.campaign.selection import select_prompts
from real.campaign.workspace import Workspace
from real.decode.features import drafter_features
from real.files import replacing
from real.jobs import RULES, record_to, run_on
from real.measure import MeasureSettings, measure
from real.progress import relabel
from real.record import Settings
from real.rerun import evenly_spaced
from real.sampling import Rule
from real.train.card_file import read_card
from simspec import CostModel, load_trace, policies

RULE = "coupled"
"""The rule of timed runs: sampled sequences hardly repeat; repetition inflates acceptance."""


FEATURES = ("confidence", "entropy", "theta")
"""Features that recordings hold, where the drafter exposes them."""


def measure_costs(
    workspace: Workspace, path: Path, drafter: str, rule: Rule, K: int, rows: int
) -> CostModel:
    """The costs at `path`, measured in bf16 unless they exist; with trees of `rows` tokens."""
    config, seed = workspace.config, workspace.seed
    if not path.exists():
        pair = workspace.pair(drafter, "bfloat16", "eager" if rows > config.recording.K else None)
        progress = relabel(workspace.progress, f"measuring {path.stem}")
        settings = MeasureSettings(
            context=(config.costs.context,),
            rounds=config.costs.rounds,
            repeats=config.costs.repeats,
            seed=seed,
            tree_nodes=rows,
        )
        cost = measure(pair.target, pair.drafter, rule, K, settings, progress)
        with replacing(path) as temporary:
            cost.to_json(temporary)
    return CostModel.from_json(path)


def max_depth(workspace: Workspace, drafter: str) -> int:
    """The draft depth of a drafter's recordings."""
    return min(
        workspace.config.recording.K, MAX_DRAFT_LENGTHS.get(drafter, workspace.config.recording.K)
    )


def cost_of_drafter(workspace: Workspace, drafter: str, rule: str) -> dict:
    """Measures the costs beside a recording."""
    path = workspace.trace(drafter, rule).with_suffix(".cost.json")
    K = max_depth(workspace, drafter)
    rows = (
        policies.parse(workspace.config.policies.tree).submitted(K)
        if drafter in TREE_DRAFTERS
        else 0
    )
    cost = measure_costs(workspace, path, drafter, RULES[rule], K, rows)
    return {
        "baseline": cost.baseline,
        "first_draft": float(cost.draft[1]),
        "verify": [float(v) for v in cost.verify],
    }


def record_drafter(workspace: Workspace, drafter: str, rule: str) -> dict:
    """Float32: records a drafter on the campaign's prompts."""
    config, path = workspace.config, workspace.trace(drafter, rule)
    pair = workspace.pair(drafter, "float32")
    features = tuple(name for name in drafter_features(pair.drafter) if name in FEATURES)
    settings = Settings(
        max_depth(workspace, drafter),
        config.recording.budget,
        RULES[rule],
        pair.end_tokens,
        features,
        (),
    )
    if not (path.exists() and path.with_suffix(".json").exists()):
        record_to(
            path,
            pair,
            workspace.read_prompts(pair.tokenizer),
            settings,
            workspace.progress,
            workspace.work / f"texts-{rule}.json",
        )
    card = read_card(path.with_suffix(".json"))
    return {
        name: card[name]
        for name in (
            "texts",
            "rows",
            "mean_accepted_length",
            "repeated_8grams",
            "by_task",
            "sha256",
        )
    }


def run_dynamic_trees(workspace: Workspace, drafter: str) -> dict:
    """Records the order of dynamic trees on fewer prompts, and runs trees and CAPE on it."""
    config, pair = workspace.config, workspace.pair(drafter, "float32", "eager")
    path = workspace.trace(drafter, f"{RULE}-trees")
    features = tuple(name for name in drafter_features(pair.drafter) if name == "confidence")
    plain, _ = workspace.open_recording(drafter, RULE)
    width, levels = config.recording.tree_size
    settings = Settings(
        plain.K,
        config.recording.budget,
        RULES[RULE],
        pair.end_tokens,
        features,
        (width, min(levels, plain.K)),
    )
    prompts = workspace.read_prompts(pair.tokenizer)
    if not path.with_suffix(".json").exists():
        record_to(
            path,
            pair,
            [prompts[i] for i in evenly_spaced(len(prompts), max(2, len(prompts) // 4))],
            settings,
            workspace.progress,
        )
    cost = measure_costs(
        workspace,
        path.with_suffix(".cost.json"),
        drafter,
        RULES[RULE],
        plain.K,
        config.costs.tree_nodes,
    )
    trace, results = select_prompts(load_trace(path), config.scoring.prompts), {}
    for text in config.policies.trees:
        summary = run_on(
            trace,
            workspace.pair(drafter, "float32", "eager"),
            text,
            cost,
            workspace.seed,
            workspace.progress,
        ).summary()
        results[text] = {
            name: value for name, value in summary.items() if name not in ("exceptions", "failures")
        }
    return {"dtype": "float32", "policies": results}
