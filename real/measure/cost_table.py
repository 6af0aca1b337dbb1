"""Latency of the parts of a round: drafting, verification, catching up, and plain decoding.

The decode loop runs one sequence at a time, and is timed at every context. What a batch adds is
timed as bare batched passes (`real.measure.batched`) and added on top.
"""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch

from real.draft import Drafter
from real.measure.batched import BatchedPasses, shared_layers
from real.measure.job import Job
from real.measure.price import Entry, LoopPrices
from real.measure.settings import DEFAULTS, MeasureSettings
from real.measure.sitting import sit
from real.model.target import Target
from real.progress import Progress, quiet
from real.sampling import Rule
from simspec import CostModel
from simspec.cost.table import CostTable
from simspec.tree.tree import MAX_NODES

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
    """A CostModel from timed rounds of the decode loop, in seconds; docs/costs.md has how and why.

    | field | what is timed |
    | --- | --- |
    | baseline | a whole round of plain decoding without a drafter |
    | verify[0] | its pass, verification and bookkeeping |
    | verify[j] | the same of j random tokens that no drafter computed: a chain, beyond K a tree |
    | draft[j] | drafting and calling the policy, without a backlog; and `after_draft` |
    | after_draft | what the pass behind a draft takes longer than verify[j], mean over lengths |
    | overhead | calling the policy once; what the drafter does in a round without a draft |
    | catch_up[b] | what a draft of one token takes longer behind a backlog of b rows |
    | feature | reading the features of one token; 0 for a drafter without logits |
    | predictor | theta of one token alone, its part of every round included; None without one |
    | node | slope of drafting time over the rows of a pass; 0 for drafters of chains |

    A drafter whose verification resumes behind its own layers has its own verify[j], j >= 1, timed
    behind its drafts (beyond K behind its binary trees), and no after_draft. after_draft is 0 where
    its interval holds 0, and for drafters without logits, which run no model.

    Drafts of the lengths in `job.LADDER` are timed, and passes of `job.verified_lengths`; those
    between are linear. Trees and `node` need `settings.tree_nodes` >= K.

    Prompts are random tokens; for a drafter without logits the second half repeats the first, so
    that a lookup finds up to context / 2 tokens. A sequence's first round counts only for a length
    that no later round drafted. ValueError where the drafter never offers some length.
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
    check_offered(drafter.name, drafter.max_draft_length, K)
    _check_tree_nodes(settings, K)
    entry = Entry(target, drafter, rule, K)
    prices = LoopPrices([entry], settings, np.random.default_rng(settings.seed))
    passes = _batched_passes(target, drafter, K, settings, timer) if batches != (1,) else {}
    blocks = prices.blocks | {
        f"batch {size[0]} {size[1]} {job.kind} {job.size}": BatchedBlock(passes, size, job)
        for size, timed in passes.items()
        for job in timed.jobs()
    }
    prices.pace.paced += passes.values()
    sitting = sit(
        blocks,
        settings,
        warm=target.passes.warm,
        progress=progress,
        pace=prices.settle,
        settled=lambda: all(best.settled for best in prices.best_lengths(entry)),
    )
    for timed in passes.values():
        timed.typical = prices.pace.typical
    missing = [c for c in contexts if passes and (1, c) not in passes]
    if missing:
        raise ValueError(
            f"one sequence of context {missing[0]} does not fit the device: measure a shorter one"
        )
    one = {c: prices.cost(entry, c, sitting) for c in contexts}
    if len(batches) == len(contexts) == 1 and batches == (1,):
        return CostTable(batches, contexts, ((one[contexts[0]],),), entry.name)

    def cell(b: int, c: int) -> CostModel | None:
        label = f"{entry.name}-b{b}-c{c}"
        if b == 1:
            return replace(one[c], name=label)
        if (b, c) not in passes:
            return None
        return add_batch(one[c], passes[1, c], passes[b, c], label)

    return CostTable(
        batches, contexts, tuple(tuple(cell(b, c) for c in contexts) for b in batches), entry.name
    )


def check_offered(name: str, most: int | None, K: int) -> None:
    """ValueError where a drafter that drafts at most so many tokens a round is to draft K."""
    if most is not None and most < K:
        raise ValueError(
            f"drafter {name!r} drafts at most {most} tokens a round, asked for {K}: "
            f"measure it with --depth {most}"
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


class BatchedBlock:
    """One job of bare batched passes; a size that ran out of memory is dropped for good."""

    def __init__(self, passes: Passes, size: tuple[int, int], job: Job):
        self.passes, self.size, self.job = passes, size, job

    def run(self, rng: np.random.Generator, rounds: int, counted: bool, precision: float) -> None:
        if self.size not in self.passes:
            return
        try:
            self.passes[self.size].run(self.job, PASSES, counted)
        except torch.OutOfMemoryError:
            del self.passes[self.size]

    def widths(self) -> dict[Job, float]:
        """None: passes are repeated a fixed number of times."""
        return {}


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
        precision=None,
    )
