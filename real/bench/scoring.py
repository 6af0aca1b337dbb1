"""Runs that fill a scorecard: policies on some prompts of a recording, timing jobs on others."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from real.bench.phase_costs import RoundTimes, phase_costs_without_each, phase_jobs
from real.bench.scorecard import Prices, ScorecardRow, scorecard_rows
from real.decode.engine import engines_of
from real.decode.loop import DecodeResult, decode
from real.decode.plans import Plan, chain_plan
from real.draft import Drafter, Silent
from real.measure.timing import PLAIN, Job
from real.pair import Pair, check_predictors
from real.progress import Progress, quiet
from real.rerun import prompts_of, rerun_rule
from real.sampling import clear_noise_cache
from simspec import CostModel, Policy, Trace, policies
from simspec.replay.replay import replays

REPLAYS = 32
"""Replays of a recording of the rejection rule whose mean is predicted."""
WARM_TOKENS = 8
"""New tokens of the run that warms a timing job up."""
MOST = 1 << 30
"""No bound on new tokens but the recording's."""


@dataclass(frozen=True)
class ScoreSettings:
    """How a recording is scored.

    | field | meaning |
    | --- | --- |
    | prompts | prompts that policies run on; costs are measured on as many others |
    | repeats | runs of every policy |
    | seed | of the split, the policies' draws and the order of runs |
    """

    prompts: int = 20
    repeats: int = 5
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

    Policies observe seconds of `policy_cost`, in runs and replays alike. For each scored prompt
    plain decoding and all policies run back to back in shuffled order: a block, in every repeat.
    Predictions use means of phases measured on the other prompts: each is one block of all jobs of
    `phase_jobs`, and these blocks are spread among the scored ones. Under the rejection rule each
    repeat draws its own tokens, so that the noise is that of sampling too, and predictions are
    means of REPLAYS replays.
    ValueError where no prompt is left for the costs, or a policy cannot run.
    """
    seed, repeats = settings.seed, settings.repeats
    scored, others = split_prompts(trace, settings.prompts, seed)
    built: list[Any] = [policies.make(policy, scored, policy_cost) for policy in policies_]
    check_predictors(pair.drafter, trace, built)
    seeds = range(seed, seed + (REPLAYS if trace.meta.rule == "rejection" else 1))
    replayed = [(p, list(replays(scored, p, seeds, policy_cost))) for p in built]
    deepest = max((int(r.computed.max()) for _, rounds in replayed for r in rounds), default=0)
    jobs = phase_jobs(deepest, pair.drafter.has_logits)
    unit = CostModel.from_ratio(0.1, max(deepest, 1))
    runs: list[tuple[Drafter, Policy]] = [(pair.drafter, p) for p in built]
    runs.append((Silent(), Job(PLAIN).policy))
    prompts = _Prompts(pair, scored), _Prompts(pair, others)
    times = [RoundTimes() for _ in range(others.sequences)]

    def plans_of_runs() -> list[Plan]:
        return [chain_plan(policy, trace.K, seed, policy_cost) for _, policy in runs]

    def run_job(job: Job, s: int, budget: int = MOST) -> DecodeResult:
        plan = chain_plan(job.policy, max(deepest, 1), seed, unit)
        drafter = Silent() if job.kind == PLAIN else pair.drafter
        return prompts[1].run(drafter, plan, s, seed, budget)

    for (drafter, _), plan in zip(runs, plans_of_runs()):  # warms caches and compiled policies
        prompts[1].run(drafter, plan, 0, seed)
    for job in jobs:
        run_job(job, 0, WARM_TOKENS)
    pair.target.passes.warm()
    rng = np.random.default_rng(seed)
    blocks = _blocks(rng, scored.sequences, others.sequences, repeats)
    results, done = [], 0
    for r, repeat in enumerate(blocks):
        plans = plans_of_runs()
        by_policy: list[list[DecodeResult]] = [[] for _ in runs]
        for is_scored, s in repeat:
            if is_scored:  # in file order: a stream's state carries over to the next prompt
                for i in rng.permutation(len(runs)):
                    by_policy[i].append(prompts[0].run(runs[i][0], plans[i], s, seed + r))
            else:
                for j in rng.permutation(len(jobs)):
                    times[s].add(jobs[j], run_job(jobs[j], s))
            done += 1
            progress("running", done, sum(map(len, blocks)))
        results.append(by_policy)
    # a run may draft longer than any replay where a tie flips
    longest = max((p.longest(trace.K) for p in built), default=0)
    prices = Prices(*phase_costs_without_each(times, longest), len(times))
    rows = scorecard_rows(name, scored, pair.drafter.name, replayed, prices, results)
    ran = engines_of(pair.target, pair.drafter)
    engines: dict[str, Any] = {f"{model}_engine": engine for model, engine in ran.items()}
    return [replace(row, **engines) for row in rows]


def _blocks(
    rng: np.random.Generator, scored: int, others: int, repeats: int
) -> list[list[tuple[bool, int]]]:
    """By repeat: (whether it is scored, prompt), scored prompts in order, others spread evenly.

    Each other prompt is in one repeat.
    """
    order = rng.permutation(others)
    spread = []
    for r in range(repeats):
        mine = order[r::repeats]
        place = (np.arange(len(mine)) + rng.random(len(mine))) * scored / max(len(mine), 1)
        keyed = [(s + 0.5, True, s) for s in range(scored)]
        keyed += [(float(at), False, int(s)) for at, s in zip(place, mine)]
        spread.append([(is_scored, s) for _, is_scored, s in sorted(keyed)])
    return spread


class _Prompts:
    """The prompts of one part of a recording, ready to run."""

    def __init__(self, pair: Pair, trace: Trace):
        self.pair, self.trace = pair, trace
        self.tokens = prompts_of(trace)

    def run(
        self, drafter: Drafter, plan: Plan, s: int, seed: int, budget: int = MOST
    ) -> DecodeResult:
        """Decodes prompt `s` as recorded; `seed` is of the tokens where the rule draws them."""
        clear_noise_cache()
        trace = self.trace
        return decode(
            self.pair.target,
            drafter,
            plan,
            rerun_rule(trace, seed),
            self.tokens[s],
            min(int(trace.budget[s]), budget),
            trace.meta.end_tokens,
            int(trace.sequence[s]),
        )
