"""Recordings of a campaign: costs, rows, trees, and runs compared with their replays."""

from dataclasses import asdict
from pathlib import Path

import torch

from real.audit import audit
from real.audit.forced_decoding import compare_forced, decode_forced
from real.audit.runs import EmittedRun, emitted_sequences, run_header
from real.campaign.config import MAX_DRAFT_LENGTHS, TREE_DRAFTERS
from real.campaign.workspace import Workspace
from real.decode.features import drafter_features
from real.decode.plan import chain_plan
from real.equality import NOTHING, compare
from real.files import read_card, replacing
from real.jobs import RULES, record_to, run_on
from real.measure import MeasureSettings, measure
from real.progress import relabel
from real.record import Settings
from real.rerun import evenly_spaced, rerun, rule_of
from real.sampling import Rule
from simspec import CostModel, Policy, Trace, load_trace, policies, replay


def best_fixed(trace: Trace, cost: CostModel, seed: int = 0) -> int:
    """The fixed draft length of the largest modeled speedup; 0 where none beats plain decoding."""

    def seconds(k: int) -> float:
        policy = policies.BUILTIN["fixed"](k)
        return float(cost.seconds(replay(trace, policy, seed=seed, cost=cost)).sum())

    return min(range(min(trace.K, cost.K) + 1), key=seconds)


def select_policies(workspace: Workspace, trace: Trace, cost: CostModel) -> list[Policy]:
    """The best fixed length, and the configured chains whose features are recorded."""
    shown = {name for name, _ in trace.meta.features}
    parsed = [
        policies.make(text, trace, cost)
        for text in workspace.config.policies.chains
        if set(policies.parse(text).reads) <= shown
    ]
    return [policies.BUILTIN["fixed"](max(1, best_fixed(trace, cost, workspace.seed))), *parsed]


def select_prompts(trace: Trace, prompts: int) -> Trace:
    """Selects `prompts` prompts of a recording, evenly spread."""
    return trace.select(evenly_spaced(trace.sequences, prompts))


RULE = "coupled"
"""The rule of timed runs: sampled sequences rarely repeat; repetition inflates acceptance."""


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
    """Measures the costs that belong to a recording, and writes them next to it."""
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


def compare_with_replay(workspace: Workspace, drafter: str) -> dict:
    """Float32: compares every round of every policy with its replay, under both rules."""
    pair, total, tokens, by = workspace.pair(drafter, "float32"), NOTHING, 0, {}
    for rule in RULES:
        whole, cost = workspace.open_recording(drafter, rule)
        trace = select_prompts(whole, workspace.config.checks.equal)
        made = select_policies(workspace, whole, cost)
        ran = rerun(
            pair,
            trace,
            made,
            workspace.seed,
            cost,
            relabel(workspace.progress, f"running {drafter} {rule}"),
        )
        for policy, results in zip([*made, policies.BUILTIN["fixed"](0)], ran):
            found = compare(
                trace, policy, replay(trace, policy, seed=workspace.seed, cost=cost), results
            )
            by[f"{policy.name} {rule}"] = {
                "rounds": found.rounds,
                "exceptions": len(found.exceptions),
                "failures": len(found.failures),
            }
            total, tokens = total + found, tokens + sum(len(r.token) for r in results)
    apart = [asdict(f) for f in (*total.exceptions, *total.failures)]
    counts = {
        "rounds": total.rounds,
        "exceptions": len(total.exceptions),
        "failures": len(total.failures),
        "lossless": total.lossless,
    }
    where = {"dtype": "float32", "tf32": torch.backends.cuda.matmul.allow_tf32, "tokens": tokens}
    return where | counts | {"policies": by, "apart": apart[:40]}


def force_recorded(workspace: Workspace, drafter: str) -> dict:
    """Bf16 with recorded tokens forced: the share of rounds that accept as recorded."""
    pair, made = workspace.pair(drafter, "bfloat16", "strict"), {}
    for rule in RULES:
        whole, cost = workspace.open_recording(drafter, rule)
        trace = select_prompts(whole, workspace.config.checks.forced)
        policy = policies.BUILTIN["fixed"](min(4, whole.K))
        plan = chain_plan(policy, trace.K, workspace.seed, cost)
        ran, apart = decode_forced(
            pair.target,
            pair.drafter,
            plan,
            trace,
            relabel(workspace.progress, f"forcing {drafter} {rule}"),
        )
        found = compare_forced(
            trace, replay(trace, policy, seed=workspace.seed, cost=cost), ran, apart
        ).summary()
        said = {name: found.pop(name) for name in ("draft_flips", "divergences")}
        counts = {name: len(each) for name, each in said.items()}
        made[rule] = (
            found
            | counts
            | {
                "policy": policy.name,
                "largest_gap": max((d["gap"] for d in said["divergences"]), default=0.0),
            }
        )
    return {"dtype": "bfloat16", "engine": "strict", "rules": made}


def audit_free_runs(workspace: Workspace, drafter: str) -> dict:
    """Bf16, free runs: audits every token under both rules, and classifies every divergence."""
    pair, made = workspace.pair(drafter, "bfloat16", "strict"), {}
    for rule in RULES:
        whole, cost = workspace.open_recording(drafter, rule)
        trace = select_prompts(whole, workspace.config.checks.audited)
        policy = policies.make("beta_ts", trace, cost)
        ran, _ = rerun(
            pair,
            trace,
            [policy],
            workspace.seed,
            cost,
            relabel(workspace.progress, f"running {drafter} {rule}"),
        )
        header = run_header(rule_of(trace), pair, policy.name, trace.meta.end_tokens)
        made[rule] = audit(
            pair.target, EmittedRun(header, emitted_sequences(trace, ran))
        ).summary() | {"policy": policy.name}
    return {"dtype": "bfloat16", "engine": "strict", "rules": made}
