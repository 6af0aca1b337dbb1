"""Latencies: what drafting j tokens, verifying j, catching up and one plain step cost, as the decode loop itself spends."""

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from real.decode import DRAFTING, OTHER, POLICY, VERIFICATION, DecodeResult, decode
from real.draft import Drafter, Silent
from real.features import shown
from real.provenance import device_name
from real.sampling import Rule
from real.target import Target
from simspec import CostModel, Policy, Stepper, policies
from simspec.cost import next_backlog

OWED = 4  # catch-up is measured up to this many rows
READ = 4  # what reading features costs is measured on drafts of so many
PLAIN, READING = -1, -2


def _now_and_then(params, state, slot, features, u):
    return slot < 1 and state[0] >= params[0], True


def _count(params, state, computed, drafted, accepted, features, cost):
    state[0] = 0.0 if computed > 0 else state[0] + 1.0


def after(owed: int) -> Policy:
    """Drafts one token after every `owed` rounds without a draft: its first steps have rows to catch up."""
    return Policy(f"after:{owed}", _now_and_then, _count, params=(float(owed),), state0=(0.0,))


def measure(
    target: Target,
    drafter: Drafter,
    rule: Rule,
    K: int,
    context: int = 128,
    rounds: int = 24,
    repeats: int = 4,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, all: None,
) -> CostModel:
    """A CostModel from runs of the decode loop at every fixed draft length: medians of its own clock, in seconds.

    draft[j] is drafting and asking the policy where nothing is owed, verify[j] the pass over j + 1 rows with the walk
    and the bookkeeping, overhead asking once, catch_up[b] what a draft of one takes longer when b rows are owed,
    baseline a whole round of plain decoding without a drafter. Texts start from `context` random tokens and go on for
    about `rounds` rounds; lengths come in a new random order in each of `repeats`, so that a slow minute of the machine
    falls on all alike. feature is what a policy that reads the confidence pays for each token. ValueError where the
    drafter never offers some length.
    """
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, target.decoder.shape.vocab, context).tolist()
    unit = CostModel.from_ratio(0.1, K)
    jobs = {PLAIN: policies.BUILTIN["fixed"](0)} | {j: policies.BUILTIN["fixed"](j) for j in range(K + 1)}
    jobs |= {(b,): after(b) for b in range(2, OWED + 1)} | {READING: policies.BUILTIN["confidence"](0.0, K=min(READ, K))}
    plain: list[float] = []
    asked: list[float] = []
    read: list[tuple[float, int]] = []
    drafting, passing = defaultdict(list), defaultdict(list)  # (computed, rows owed) -> seconds; drafted -> seconds
    names, done = list(jobs), 0
    for repeat in range(repeats + 1):
        for i in rng.permutation(len(names)):
            name = names[i]
            model = Silent() if name == PLAIN else drafter
            budget = 2 * rounds + (2 * max(name, 0) if isinstance(name, int) else 0)
            # a new sequence each time: its noise is drawn anew, as in a run
            drive = Stepper(jobs[name], K, 0, unit, shown(jobs[name].reads))
            result = decode(target, model, drive, rule, prompt, budget, (), done)
            done += 1
            progress(done, (repeats + 1) * len(names))
            if not repeat:
                continue  # the first repeat warms caches and allocators
            for computed, owed, seconds in list(_rounds(result))[1:]:
                if name == PLAIN:
                    plain.append(seconds.sum())
                    continue
                if name == READING:
                    if computed:
                        read.append((seconds[POLICY] / computed, computed))
                    continue
                drafting[computed, owed].append(seconds[DRAFTING] + seconds[POLICY])
                passing[computed].append(seconds[VERIFICATION] + seconds[OTHER])
                if not computed:
                    asked.append(seconds[POLICY])
    overhead = float(np.median(asked))
    # of the policy's time on a round of j tokens, j + 1 questions are priced elsewhere
    feature = max(float(np.median([each - overhead * (j + 1) / j for each, j in read])), 0.0)
    return CostModel(
        draft=[0.0, *(max(_median(drafting, j) - overhead, 0.0) for j in range(1, K + 1))],
        verify=[_median({(j, 0): passing[j]}, j) for j in range(K + 1)],
        catch_up=_catch_up(drafting),
        overhead=overhead,
        baseline=float(np.median(plain)),
        name=f"{drafter.name}-{rule.name}",
        device=device_name(target.decoder.device),
        feature=feature,
    )


def _rounds(result: DecodeResult):
    """(computed, rows owed before it, seconds [4]) of each round."""
    owed = 0
    for computed, accepted, seconds in zip(result.computed.tolist(), result.accepted.tolist(), result.seconds):
        yield computed, owed, seconds
        owed = next_backlog(owed, computed, accepted)


def _median(found, j: int) -> float:
    """Median for drafts of j with nothing owed, or of all drafts of j where each followed a full acceptance."""
    every = [s for (computed, _), seconds in found.items() if computed == j for s in seconds]
    if not every:
        raise ValueError(f"the drafter never drafted {j} tokens in a round; measure with a smaller depth")
    return float(np.median(found.get((j, 0)) or every))


def _catch_up(drafting) -> list[float]:
    """catch_up[0 .. OWED] from drafts of one token; a backlog that never came up costs as much as the one before."""
    base, longer = _median(drafting, 1), [0.0]
    for owed in range(1, OWED + 1):
        seen = drafting.get((1, owed))
        longer.append(max(float(np.median(seen)) - base, 0.0) if seen else longer[-1])
    return longer
