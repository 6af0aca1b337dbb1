"""Runs behind a scorecard: policies on some prompts of a recording, timing jobs on others."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from real.bench.phase_means import phase_costs, phase_jobs
from real.bench.prediction import scorecard_rows
from real.bench.scorecard import ScorecardRow
from real.decode.engine import engines_of
from real.decode.loop import decode
from real.decode.plan import Plan, chain_plan
from real.decode.result import DecodeResult
from real.draft import Drafter, Silent
from real.measure.job import PLAIN, Job
from real.measure.round_times import RoundTimes
from real.pair import Pair, check_predictors
from real.progress import Progress, quiet
from real.rerun import prompts_of, rerun_rule
from real.sampling import clear_noise_cache
from simspec import CostModel, Policy, Trace, policies
from simspec.simulate import replays

REPLAYS = 32
"""Replays of a recording of the rejection rule whose mean is predicted."""


@dataclass(frozen=True)
class ScoreSettings:
    """How a recording is scored.

    | field | meaning |
    | --- | --- |
    | prompts | prompts that policies run on; costs are measured on as many others |
    | repeats | runs of every policy |
    | seed | of the split, the policies' draws and the order of runs |
    """

    prompts: int = 12
    repeats: int = 3
    seed: int = 0


DEFAULTS = ScoreSettings()


def split_prompts(trace: Trace, prompts: int, seed: int) -> tuple[Trace, Trace]:
    """(prompts to score, other prompts to measure costs on), drawn by `seed`.

    ValueError unless at least one prompt is left for the costs.
    """
    if not 1 <= prompts < trace.sequences:
        raise ValueError(
            f"{prompts} prompts to score of {trace.sequences}; "
            "expected at least 1, and one left over to measure costs on"
        )
    order = np.random.default_rng(seed).permutation(trace.sequences)
    return trace.select(np.sort(order[:prompts])), trace.select(
        np.sort(order[prompts : 2 * prompts])
    )


def score(
    name: str,
    trace: Trace,
    pair: Pair,
    policies_: Sequence[Policy | str],
    policy_cost: CostModel,
    settings: ScoreSettings = DEFAULTS,
    progress: Progress = quiet,
) -> list[ScorecardRow]:
    """The rows of one recording: every policy on the scored prompts, costs from the others.

    Policies observe seconds of `policy_cost`, in runs and replays alike. Predictions use means of
    phases measured here, on the other prompts: each runs once under every job of `phase_jobs`.
    Scored runs and timing runs share one random order. Under the rejection rule each repeat draws
    its own tokens, so that the noise is that of sampling too, and predictions are means of REPLAYS
    replays.
    ValueError where no prompt is left for the costs, or a policy cannot run.
    """
    seed, repeats = settings.seed, settings.repeats
    scored, others = split_prompts(trace, settings.prompts, seed)
    built: list[Any] = [policies.make(policy, scored, policy_cost) for policy in policies_]
    check_predictors(pair.drafter, trace, built)
    seeds = range(seed, seed + (REPLAYS if trace.meta.rule == "rejection" else 1))
    replayed = [(p, list(replays(scored, p, seeds, policy_cost))) for p in built]
    deepest = max((int(r.computed.max()) for _, rounds in replayed for r in rounds), default=0)
    jobs = {job: job.policy for job in phase_jobs(deepest, pair.drafter.has_logits)}
    unit = CostModel.from_ratio(0.1, max(deepest, 1))
    runs: list[tuple[Drafter, Policy]] = [(pair.drafter, p) for p in built]
    runs.append((Silent(), jobs[Job(PLAIN)]))
    prompts = _Prompts(pair, scored), _Prompts(pair, others)

    def plans_of_runs() -> list[Plan]:
        return [chain_plan(policy, trace.K, seed, policy_cost) for _, policy in runs]

    for (drafter, _), plan in zip(runs, plans_of_runs()):  # warms caches and compiled policies
        prompts[1].run(drafter, plan, 0, seed)
    pair.target.passes.warm()
    rng = np.random.default_rng(seed)
    queue = _shuffled(rng, len(runs), scored.sequences, list(jobs), others.sequences, repeats)
    times, results, done = RoundTimes(), [], 0
    for r, repeat in enumerate(queue):
        plans = plans_of_runs()
        by_policy: list[list[DecodeResult]] = [[] for _ in runs]
        for item in repeat:
            if isinstance(item, int):
                # in file order: a stream's state carries over to the next prompt
                drafter, plan, s = runs[item][0], plans[item], len(by_policy[item])
                result = prompts[0].run(drafter, plan, s, seed + r)
                by_policy[item].append(result)
            else:
                job, s = item
                plan = chain_plan(jobs[job], max(deepest, 1), seed, unit)
                times.add(job, prompts[1].run(job.drafter(pair.drafter), plan, s, seed + r))
            done += 1
            progress("running", done, sum(map(len, queue)))
        results.append(by_policy)
    # a run may draft longer than any replay where a tie flips
    longest = max((p.longest(trace.K) for p in built), default=0)
    costs = phase_costs(times, longest)
    rows = scorecard_rows(name, scored, pair.drafter.name, replayed, costs, results)
    ran = engines_of(pair.target, pair.drafter)
    engines: dict[str, Any] = {f"{model}_engine": engine for model, engine in ran.items()}
    return [replace(row, **engines) for row in rows]


def _shuffled(
    rng: np.random.Generator,
    policies_: int,
    prompts: int,
    jobs: Sequence[Job],
    other_prompts: int,
    repeats: int,
) -> list[list[int | tuple[Job, int]]]:
    """By repeat, in random order: each policy's number once a prompt, and (job, other prompt)."""
    scored = [i for i in range(policies_) for _ in range(prompts)]
    timed = [(job, s) for s in range(other_prompts) for job in jobs]
    order = rng.permutation(len(timed))
    repeated = [[*scored, *(timed[i] for i in order[r::repeats])] for r in range(repeats)]
    return [[items[i] for i in rng.permutation(len(items))] for items in repeated]


class _Prompts:
    """The prompts of one part of a recording, ready to run."""

    def __init__(self, pair: Pair, trace: Trace):
        self.pair, self.trace = pair, trace
        self.tokens = prompts_of(trace)

    def run(self, drafter: Drafter, plan: Plan, s: int, seed: int) -> DecodeResult:
        """Decodes prompt `s` as recorded; `seed` is of the tokens where the rule draws them."""
        clear_noise_cache()
        trace = self.trace
        return decode(
            self.pair.target,
            drafter,
            plan,
            rerun_rule(trace, seed),
            self.tokens[s],
            int(trace.budget[s]),
            trace.meta.end_tokens,
            int(trace.sequence[s]),
        )
