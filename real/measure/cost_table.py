"""Latency of the parts of a round: drafting, verification, catching up, and plain decoding.

The decode loop runs one sequence at a time, and is timed at every context. What a batch adds is
timed as bare batched passes (`real.measure.batched`) and added on top.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter

import numpy as np
import torch

from real.draft import Drafter
from real.measure.batched import BatchedPasses, shared_layers
from real.measure.job import Job
from real.measure.loop import LoopTiming
from real.measure.origin import cost_origin
from real.measure.settings import DEFAULTS, MeasureSettings
from real.model.target import Target
from real.progress import Progress, quiet
from real.sampling import Rule
from simspec import CostModel
from simspec.cost_table import CostTable
from simspec.tree import MAX_NODES

PASSES = 4
"""Passes of a batched job in each repeat."""


def measure(
    target: Target,
    drafter: Drafter,
    rule: Rule,
    K: int,
    settings: MeasureSettings = DEFAULTS,
    progress: Progress = quiet,
) -> CostModel:
    """A CostModel of medians from runs of the decode loop at every fixed draft length, in seconds.

    | field | what is timed |
    | --- | --- |
    | draft[j] | drafting and calling the policy, without a backlog |
    | verify[j] | the pass over j + 1 rows, verification and bookkeeping |
    | overhead | calling the policy once |
    | catch_up[b] | what a draft of one token takes longer behind a backlog of b rows |
    | baseline | a whole round of plain decoding without a drafter |
    | feature | reading the features of one token; 0 for a drafter without logits |
    | verify[j], j > K | the pass over a tree of j nodes that no drafter computed |
    | node | slope of drafting time over the rows of a pass; 0 for drafters of chains |

    The last two need `settings.tree_nodes` >= K. Prompts are random tokens; for a drafter without
    logits the second half repeats the first, so that a lookup finds up to context / 2 tokens.
    A sequence's first round counts only for a length that no later round drafted.
    ValueError where the drafter never offers some length.
    """
    return measure_table(target, drafter, rule, K, settings, progress).at()


def measure_table(
    target: Target,
    drafter: Drafter,
    rule: Rule,
    K: int,
    settings: MeasureSettings = DEFAULTS,
    progress: Progress = quiet,
    timer: Callable[[], float] = perf_counter,
) -> CostTable:
    """`measure` at every batch size B and context C, in seconds of a round of the whole batch.

    cell(B, C) = batched(B, C) + max(loop(C) - batched(1, C), 0), entry by entry, for draft, verify
    and baseline. catch_up adds the difference of batched passes and is at least 0. overhead and
    feature stay those of one sequence. Every repeat runs all jobs of all cells in one new random
    order; the warm-up repeat is not counted. A cell beyond the device's memory is None.
    ValueError for a batch without a drafter's own model (`lm`), for tree nodes with a batch or
    outside K .. MOST, for a length never offered, and where not even one sequence fits.
    """
    batches, contexts = settings.batch, settings.context
    _check_tree_nodes(settings, K)
    rng = np.random.default_rng(settings.seed)
    loops = {}
    for c in contexts:
        prompt = random_prompt(rng, target.decoder.config.vocab, c, drafter)
        loops[c] = LoopTiming(target, drafter, rule, K, prompt, settings)
    passes = _batched_passes(target, drafter, K, settings, timer) if batches != (1,) else {}
    jobs: list[Callable[[bool], None]] = [
        partial(loop.run, job) for loop in loops.values() for job in loop.jobs
    ]
    jobs += [
        partial(_run_if_it_fits, passes, size, job)
        for size, timed in passes.items()
        for job in timed.jobs()
    ]
    done = 0
    for repeat in range(settings.repeats + 1):
        for i in rng.permutation(len(jobs)):
            jobs[i](repeat > 0)  # the first repeat warms caches and allocators
            done += 1
            progress("measuring", done, (settings.repeats + 1) * len(jobs))
        if not repeat:
            target.passes.warm()
    missing = [c for c in contexts if passes and (1, c) not in passes]
    if missing:
        raise ValueError(
            f"one sequence of context {missing[0]} does not fit the device: measure a shorter one"
        )
    name = f"{drafter.name}-{rule.name}"
    origin = cost_origin(target, drafter)
    one = {c: replace(loop.cost(name), origin=origin) for c, loop in loops.items()}
    if len(batches) == len(contexts) == 1 and batches == (1,):
        return CostTable(batches, contexts, ((one[contexts[0]],),), name)

    def cell(b: int, c: int) -> CostModel | None:
        label = f"{name}-b{b}-c{c}"
        if b == 1:
            return replace(one[c], name=label)
        if (b, c) not in passes:
            return None
        return add_batch(one[c], passes[1, c], passes[b, c], label)

    return CostTable(
        batches, contexts, tuple(tuple(cell(b, c) for c in contexts) for b in batches), name
    )


def _check_tree_nodes(settings: MeasureSettings, K: int) -> None:
    nodes = settings.tree_nodes
    if nodes and not K <= nodes <= MAX_NODES:
        raise ValueError(
            f"tree nodes are {nodes}; "
            f"expected 0, or {K} (the depth) to {MAX_NODES} submitted tokens"
        )
    if nodes and settings.batch != (1,):
        raise ValueError(
            f"trees are priced for one sequence at a time, batch is {list(settings.batch)}: "
            "measure with batch 1 only, or without tree nodes"
        )


def random_prompt(
    rng: np.random.Generator, vocab: int, context: int, drafter: Drafter
) -> list[int]:
    """`context` random tokens; for a drafter without logits the second half repeats the first."""
    distinct = context if drafter.has_logits else (context + 1) // 2
    return np.resize(rng.integers(0, vocab, distinct), context).tolist()


Passes = dict[tuple[int, int], BatchedPasses]


def _batched_passes(
    target: Target, drafter: Drafter, K: int, settings: MeasureSettings, timer: Callable[[], float]
) -> Passes:
    lm = drafter.lm
    if lm is None:
        raise ValueError(
            f"drafter {drafter.name!r} has no language model of its own to batch: "
            "measure it with batch 1 only"
        )
    shared = shared_layers(target, drafter)
    return {
        (b, c): BatchedPasses(target.decoder, lm, shared, K, b, c, settings.seed, timer)
        for b in sorted({1, *settings.batch})
        for c in settings.context
    }


def _run_if_it_fits(passes: Passes, size: tuple[int, int], job: Job, counted: bool) -> None:
    """Runs a batched job; a size that ran out of memory is dropped for good."""
    if size not in passes:
        return
    try:
        passes[size].run(job, PASSES, counted)
    except torch.OutOfMemoryError:
        del passes[size]


def add_batch(loop: CostModel, one: BatchedPasses, many: BatchedPasses, name: str) -> CostModel:
    """The loop's costs with batched passes in place of passes of one sequence."""

    def total(loop_seconds, one_seconds, many_seconds):
        return many_seconds + np.maximum(loop_seconds - one_seconds, 0.0)

    verify, draft, catch_up = one.seconds()
    verify_many, draft_many, catch_up_many = many.seconds()
    return replace(
        loop,
        draft=total(loop.draft, draft, draft_many),
        verify=total(loop.verify, verify, verify_many),
        catch_up=np.maximum(loop.catch_up + catch_up_many - catch_up, 0.0),
        baseline=float(total(loop.baseline, verify[0], verify_many[0])),
        name=name,
    )
