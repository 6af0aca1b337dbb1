"""Latency of the parts of a round: drafting, verification, catching up, and plain decoding.

The decode loop runs one sequence at a time, and is timed at every context. What a batch adds is
timed as bare batched passes (`real.measure.cost_table`) and added on top.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from real.decode.loop import start
from real.draft import Drafter
from real.measure.job import BACKLOG, MAX_BACKLOG, STEPS, VERIFY, Job
from real.measure.price import Entry, LoopPrices
from real.measure.settings import DEFAULTS, MeasureSettings
from real.measure.sitting import sit
from real.model.decoder import Decoder
from real.model.kv_cache import KVCache
from real.model.runner import ancestor_mask, chain
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
    | after_draft | extra time of the pass after a draft over verify[j], mean over lengths |
    | overhead | calling the policy once; what the drafter does in a round without a draft |
    | catch_up[b] | extra time of a draft of one token after a backlog of b rows |
    | feature | reading the features of one token; 0 for a drafter without logits |
    | predictor | theta of one token alone, its part of every round included; None without one |
    | node | slope of drafting time over the rows of a pass; 0 for drafters of chains |

    A drafter whose verification resumes after its own layers has its own verify[j], j >= 1, timed
    after its drafts (beyond K after its binary trees), and no after_draft. after_draft is 0 where
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
    missing = [c for c in contexts if batches != (1,) and (1, c) not in passes]
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
    """ValueError where a drafter that drafts at most `most` tokens a round is to draft K."""
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


Run = Callable[[], list[float]]
"""One run of a job: seconds of each of its passes."""


class BatchedPasses:
    """Times single passes of `batch` sequences after `context` cached rows of random numbers.

    | job | passes |
    | --- | --- |
    | verify j | the target and its head over j + 1 rows; the first j have passed `shared` layers |
    | steps | the drafter and its head, K steps of one row each |
    | backlog b | the first step, over b + 1 rows |

    Picking tokens, verification and a batched engine's own work are not included.
    """

    def __init__(
        self,
        decoder: Decoder,
        lm: Decoder,
        shared: int,
        K: int,
        batch: int,
        context: int,
        seed: int = 0,
        timer: Callable[[], float] = perf_counter,
    ):
        self.decoder, self.lm, self.shared, self.K = decoder, lm, shared, K
        self.batch, self.context, self.timer = batch, context, timer
        self.random = torch.Generator(decoder.device).manual_seed(seed)
        self.wait = torch.cuda.synchronize if decoder.device.type == "cuda" else lambda: None
        self.times: dict[Job, list[list[float]]] = defaultdict(list)
        self.waiting: list[list[float]] = []
        self.typical = self.reference = 0.0

    def jobs(self) -> list[Job]:
        """Every job that `seconds` needs."""
        return [
            *(Job(VERIFY, j) for j in range(self.K + 1)),
            Job(STEPS),
            *(Job(BACKLOG, b) for b in range(self.backlog + 1)),
        ]

    @property
    def backlog(self) -> int:
        """The longest backlog to time, limited by the context."""
        return min(MAX_BACKLOG, self.context)

    @torch.inference_mode()
    def run(self, job: Job, times: int, counted: bool = True) -> None:
        """Allocates the job's cache, runs it once unmeasured, then `times` times."""
        if job.kind == STEPS:
            once = self._steps()
        else:
            once = {VERIFY: self._verify, BACKLOG: self._catch_up}[job.kind](job.size)
        once()
        for _ in range(times):
            seconds = once()
            if counted:
                self.times[job].append(seconds)
                self.waiting.append(seconds)

    def settle(self, before: float, after: float) -> None:
        """Scales the seconds that wait by the machine's pace, the mean of both, to the first."""
        self.reference = self.reference or before
        scale = 2 * self.reference / (before + after) if before + after else 1.0
        for seconds in self.waiting:
            seconds[:] = [scale * s for s in seconds]
        self.waiting.clear()

    def seconds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Medians at the `typical` pace: verify[0 .. K]; draft[0 .. K], cumulative;
        catch_up[0 .. MAX_BACKLOG]."""
        scale = self.typical / self.reference if self.typical and self.reference else 1.0
        median = {job: np.median(np.array(runs), 0) * scale for job, runs in self.times.items()}
        backlog = [float(median[Job(BACKLOG, b)][0]) for b in range(self.backlog + 1)]
        catch_up = np.array(backlog) - backlog[0]
        return (
            np.array([float(median[Job(VERIFY, j)][0]) for j in range(self.K + 1)]),
            np.concatenate(([0.0], np.cumsum(median[Job(STEPS)]))),
            np.pad(catch_up, (0, MAX_BACKLOG - self.backlog), mode="edge"),
        )

    def _random_cache(self, model: Decoder) -> KVCache:
        cache = model.cache(len(model.layers), self.batch, self.context + self.K + 1)
        for rows in (cache.key, cache.value):
            rows.normal_(generator=self.random)
        return cache

    def _tokens(self, rows: int) -> Tensor:
        return torch.randint(
            self.decoder.config.vocab,
            (self.batch, rows),
            generator=self.random,
            device=self.decoder.device,
        )

    def _verify(self, drafted: int) -> Run:
        decoder, start = self.decoder, self.context
        cache, token = self._random_cache(decoder), self._tokens(drafted + 1)
        done = drafted if self.shared else 0
        hidden = decoder.embed(token[:, :done])

        def once():
            begin = self._now()
            rotation, mask = _positions(decoder, start, drafted + 1)
            x, layers = decoder.embed(token[:, done:]), range(len(decoder.layers))
            if done:  # as Target._pass: the last draft catches up through the shared layers
                last = tuple(t[done:] for t in rotation)
                x = decoder.run(x, layers[: self.shared], last, mask[done:], cache, start + done)
                x, layers = torch.cat((hidden, x), 1), layers[self.shared :]
            decoder.logits(decoder.run(x, layers, rotation, mask, cache, start))
            return [self._now() - begin]

        return once

    def _steps(self) -> Run:
        cache, token = self._random_cache(self.lm), self._tokens(1)

        def once():
            seconds = []
            for i in range(self.K):
                begin = self._now()
                self._step(cache, token, self.context + i, None)
                seconds.append(self._now() - begin)
            return seconds

        return once

    def _catch_up(self, rows: int) -> Run:
        cache, token = self._random_cache(self.lm), self._tokens(rows + 1)
        hidden = self.lm.embed(token[:, :rows])

        def once():
            begin = self._now()
            self._step(cache, token, self.context - rows, hidden)
            return [self._now() - begin]

        return once

    def _step(self, cache: KVCache, token: Tensor, start: int, hidden: Tensor | None) -> None:
        """A draft step; the target's pass has taken the backlog through shared layers."""
        lm, rows = self.lm, token.shape[1]
        skipped = rows - 1 if self.shared else 0
        rotation, mask = _positions(lm, start, rows)
        x = lm.embed(token[:, skipped:])
        if self.shared:
            last = tuple(t[skipped:] for t in rotation)
            last_mask = None if mask is None else mask[skipped:]
            x = lm.run(x, range(self.shared), last, last_mask, cache, start + skipped)
            if skipped and hidden is not None:
                x = torch.cat((hidden, x), 1)
        layers = range(self.shared, len(lm.layers))
        lm.logits(lm.run(x, layers, rotation, mask, cache, start)[:, -1])

    def _now(self) -> float:
        self.wait()
        return self.timer()


def _positions(model: Decoder, start: int, rows: int) -> tuple:
    position = torch.arange(start, start + rows, device=model.device)
    return model.rotation(position), ancestor_mask(start, chain(rows), model.device)


def shared_layers(target: Target, drafter: Drafter) -> int:
    """How many target layers verification skips, because this drafter has run them."""
    start(target, drafter, [0, 0])
    drafter.next()
    resume = drafter.resume()
    return 0 if resume is None else resume.layer


Passes = dict[tuple[int, int], BatchedPasses]


def _batched_passes(
    target: Target, drafter: Drafter, K: int, settings: MeasureSettings, timer: Callable[[], float]
) -> Passes:
    lm = drafter.lm
    if lm is None:
        raise ValueError(
            f"drafter {drafter.name!r} is no separate language model to batch: "
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
