"""Running policies on a recording's prompts, under its rule."""

from collections.abc import Sequence
from dataclasses import replace

from real.decode.loop import DecodeResult, decode
from real.decode.plans import BeamSearch, Plan, chain_plan, make_plan
from real.draft import Drafter, Silent
from real.model.passes import EAGER
from real.pair import Pair, check_predictors
from real.progress import Progress, quiet
from real.sampling import Rule, clear_noise_cache
from simspec import CostModel, Policy, Trace, policies
from simspec.tree.tree import TreePolicy

SEEDS = 1 << 64
"""Seeds of draws are smaller."""
WARM_UP_TOKENS = 24
"""New tokens of the sequence that is decoded before others are timed."""


def recorded_rule(trace: Trace) -> Rule:
    """The rule that a trace was recorded under, with its seed; ValueError for a synthetic one."""
    meta = trace.meta
    if meta.rule == "greedy":
        return Rule()
    if meta.rule not in ("coupled", "rejection"):
        raise ValueError(
            f"rule {meta.rule!r} cannot be run; expected a greedy or coupled recording"
        )
    return Rule(meta.rule, meta.temperature, meta.seed, meta.top_k, meta.top_p)


def rule_of(trace: Trace) -> Rule:
    """The `recorded_rule` of a trace whose rounds can be repeated; ValueError for rejection."""
    if trace.meta.rule == "rejection":
        raise ValueError(
            "the recording is of the rejection rule: its rounds replay in distribution, "
            "not one by one; use a greedy or coupled one"
        )
    return recorded_rule(trace)


def rerun_rule(trace: Trace, seed: int = 0) -> Rule:
    """The rule under which a trace's prompts are run again.

    That of the recording. Under the rejection rule the tokens are drawn anew, by another seed than
    the recorded ones: only then are the two independent.
    """
    rule = recorded_rule(trace)
    if not rule.sampled:
        return rule
    return replace(rule, seed=(rule.seed + 1 + seed % (SEEDS - 1)) % SEEDS)


def prompts_of(trace: Trace) -> list[list[int]]:
    """The prompts' tokens."""
    offset = trace.prompt_offset
    return [trace.prompt[a:b].tolist() for a, b in zip(offset, offset[1:])]


def rerun(
    pair: Pair,
    trace: Trace,
    policies_: Sequence[Policy | TreePolicy | BeamSearch],
    seed: int,
    cost: CostModel,
    progress: Progress = quiet,
) -> list[list[DecodeResult]]:
    """Decodes all sequences of a trace under every policy, and without a drafter: one list of
    results each.

    Policies take turns on each sequence, so that a slow minute affects all. The last list is
    plain decoding, the baseline of speedups. `seed` is of the policies' draws, and of the tokens
    where the rule draws them (`rerun_rule`).
    """
    check_predictors(pair.drafter, trace, policies_)
    rule, prompts, ends = rerun_rule(trace, seed), prompts_of(trace), trace.meta.end_tokens

    def runs() -> list[tuple[Drafter, Plan]]:
        plain = chain_plan(policies.BUILTIN["fixed"](0), trace.K, seed, cost)
        plans = [make_plan(p, trace.K, seed, cost, trace.meta.tree) for p in policies_]
        return [*((pair.drafter, plan) for plan in plans), (Silent(), plain)]

    if pair.target.passes is not EAGER and prompts:  # capture before the timed runs
        budget = min(WARM_UP_TOKENS, int(trace.budget[0]))
        for drafter, plan in runs():
            decode(pair.target, drafter, plan, rule, prompts[0], budget, ends)
        pair.target.passes.warm()
    timed = runs()
    results: list[list[DecodeResult]] = [[] for _ in timed]
    for s, prompt in enumerate(prompts):
        budget, sequence = int(trace.budget[s]), int(trace.sequence[s])
        for column, (drafter, plan) in zip(results, timed):
            clear_noise_cache()
            column.append(decode(pair.target, drafter, plan, rule, prompt, budget, ends, sequence))
        progress("running", s + 1, len(prompts))
    return results


def total_seconds(results: Sequence[DecodeResult]) -> float:
    """Decoding time of several runs, without prefill."""
    return float(sum(r.seconds.sum() for r in results))
