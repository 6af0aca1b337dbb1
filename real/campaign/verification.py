"""Runs of a campaign compared with replays, forced recordings and audits."""

from dataclasses import asdict

import torch

from real.audit import audit
from real.audit.emitted_run import EmittedRun
from real.audit.engine_runs import emitted_sequences, run_header
from real.audit.forced_comparison import compare_forced
from real.audit.forced_decoding import decode_forced
from real.campaign.selection import select_policies, select_prompts
from real.campaign.workspace import Workspace
from real.decode.plan import chain_plan
from real.equality import NOTHING, compare
from real.jobs import RULES
from real.progress import relabel
from real.rerun import rerun, rule_of
from simspec import policies, replay


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
