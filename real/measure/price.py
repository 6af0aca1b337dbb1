"""Prices of one target's drafters from one sitting, and the draft length that they favour."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch

from real.draft import Drafter, Silent
from real.measure.blocks import Block, LoopBlock, TreeWidthBlock, resumes
from real.measure.estimate import disturbed_warning, drift_warning, faster_wider_warning, halves
from real.measure.job import PLAIN, Job, alone_jobs, draft_jobs, tree_jobs
from real.measure.pace import Pace
from real.measure.samples import Samples
from real.measure.settings import MeasureSettings, cost_origin
from real.measure.sitting import REAL, Clocks, Sitting, UnfinishedSitting, sit
from real.measure.timed_cost import (
    DRAWS,
    KEPT,
    Priced,
    draw_blocks,
    replicate_costs,
    timed_cost,
    with_replicates,
)
from real.model.target import Target
from real.progress import Progress, quiet
from real.provenance import device_name, processor_name, versions
from real.sampling import Rule
from simspec import CostModel, Trace, replay
from simspec.numerics.formulas import expected_committed
from simspec.policies.fixed import fixed
from simspec.tree.tree import MAX_NODES

ACCEPTANCE = 0.5, 0.7, 0.9
"""Acceptance rates of a draft token that are assumed without a recording."""
LEAST = 1e-3
"""Plain steps of a round: a replicate of one or two blocks may be far below its cost."""
LOSS = 0.01
"""A length is settled where another gains no more than this share, at 95% of the replicates."""


@dataclass(frozen=True)
class BestLength:
    """The best fixed draft length at one acceptance.

    | field | meaning |
    | --- | --- |
    | acceptance | "recorded", or that of every draft token |
    | K, speedup | the best length, and its speedup over plain decoding |
    | rival | the length that is best in most replicates where K is not; else the second best |
    | row, half_width | rows of the pass that decides, and its relative half-width |
    | loss | share that K loses to the best length, 95% quantile over replicates |
    """

    acceptance: str
    K: int
    speedup: float
    rival: int
    row: int
    half_width: float
    loss: float

    @property
    def settled(self) -> bool:
        """Whether the costs are certain enough to choose K."""
        return self.loss <= LOSS

    def describe(self) -> str:
        """One line."""
        state = "settled" if self.settled else "not settled"
        of = "recorded acceptance" if self.acceptance == "recorded" else f"a = {self.acceptance}"
        return (
            f"{of}: K = {self.K} is best ({self.speedup:.2f}x), {state}: it loses at most "
            f"{self.loss:.1%}; the pass of {self.row} rows, +-{self.half_width:.1%}, decides"
        )


def tokens_per_round(trace: Trace | None, K: int) -> dict[str, np.ndarray]:
    """{acceptance: float64 [K + 1], tokens a round of every fixed length}, recorded or assumed."""
    if trace is not None:
        rounds = [len(replay(trace, fixed(k), seed=0)) for k in range(K + 1)]
        return {"recorded": trace.rows / np.array(rounds)}
    return {
        f"{a:g}": np.array([expected_committed(a, k) for k in range(K + 1)]) for a in ACCEPTANCE
    }


def best_length(
    acceptance: str, tokens: Sequence[float] | np.ndarray, cost: CostModel
) -> BestLength:
    """The best of K = 0 .. len(tokens) - 1; a round of K tokens emits `tokens[K]`.

    Catching up, features and ends of sequences are left out: they barely change the best length.
    """
    assert cost.precision is not None
    emitted = np.asarray(tokens)
    lengths = len(emitted)
    point = _speedups(
        emitted, cost.draft[:lengths] / cost.baseline, cost.verify[:lengths] / cost.baseline,
        cost.overhead / cost.baseline,
    )  # fmt: skip
    K = int(point.argmax())
    held = cost.precision.replicates
    if not held:
        return BestLength(acceptance, K, float(point[K]), K, K + 1, float("inf"), float("inf"))
    drawn = np.array([
        _speedups(emitted, np.array(draft[:lengths]), np.array(verify[:lengths]), overhead)
        for draft, verify, overhead in zip(held["draft"], held["verify"], held["overhead"])
    ])  # fmt: skip
    loss = drawn.max(1) / drawn[:, K] - 1
    other = drawn.argmax(1)[drawn.argmax(1) != K]
    if len(other):
        rival = int(np.bincount(other).argmax())
    else:
        rival = int(np.argsort(point)[-2]) if lengths > 1 else K
    verify = np.array(held["verify"])
    error = 2 * verify.std(axis=0, ddof=1) / np.maximum(verify.mean(axis=0), 1e-9)
    row = max(K, rival, key=lambda k: error[k])
    return BestLength(
        acceptance,
        K,
        float(point[K]),
        rival,
        row + 1,
        float(error[row]),
        float(np.quantile(loss, 0.95)),
    )


def _speedups(
    emitted: np.ndarray, draft: np.ndarray, verify: np.ndarray, overhead: float
) -> np.ndarray:
    """Speedup of every draft length over plain decoding; length 0 gives 1."""
    speedup = emitted / np.maximum(draft + verify + overhead, LEAST)
    speedup[0] = 1.0
    return speedup


@dataclass(frozen=True)
class Entry:
    """A drafter to price under a rule: drafts of up to K tokens; `target` holds its taps.

    A recording says what is accepted of its drafts, and so which passes decide the best length.
    """

    target: Target
    drafter: Drafter
    rule: Rule
    K: int
    trace: Trace | None = None

    @property
    def name(self) -> str:
        """The label of its costs."""
        return f"{self.drafter.name}-{self.rule.name}"


class LoopPrices:
    """Blocks of the decode loop that price `entries` at every context, and the costs they give.

    | block | of | times |
    | --- | --- | --- |
    | target | each rule | plain decoding, and verification of what no drafter computed |
    | plain | each rule | plain decoding once more, in separate sequences |
    | drafter | each entry | drafts |
    | resumed | each entry whose passes resume | verification of its trees |
    | trees | each entry that grows trees | passes of the drafter over several rows |

    The first two belong to the target: all entries of a rule share them. They run on the first
    entry's target, whose taps are kept but not read. `pace` holds the timing blocks.
    """

    def __init__(
        self, entries: Sequence[Entry], settings: MeasureSettings, rng: np.random.Generator
    ):
        self.entries, self.settings = entries, settings
        self.blocks: dict[str, Block] = {}
        self.samples: dict[str, Samples] = {}
        self._emitted: dict[str, dict[str, np.ndarray]] = {}
        vocab = entries[0].target.decoder.config.vocab
        prompt = random_prompt(np.random.default_rng(0), vocab, settings.context[0], True)
        self.pace = Pace()
        self.prompt = prompt
        for context in settings.context:
            self._add(context, rng)

    def settle(self) -> None:
        """Measures the pace around runs of bare batched passes."""
        self.pace.settle(self.entries[0].target, self.prompt[-1])

    def _add(self, context: int, rng: np.random.Generator) -> None:
        target, nodes = self.entries[0].target, self.settings.tree_nodes
        where = f" {context}" if len(self.settings.context) > 1 else ""
        rules = {entry.rule.name: entry.rule for entry in self.entries}
        jobs = dict.fromkeys(job for entry in self.entries for job in alone_jobs(entry.K, 0))
        jobs |= dict.fromkeys(alone_jobs(max(entry.K for entry in self.entries), nodes))
        vocab = target.decoder.config.vocab
        prompt = random_prompt(rng, vocab, context, True)
        repeating = random_prompt(rng, vocab, context, False)
        for name, rule in rules.items():
            of_target = self._samples(f"{name}{where} target")
            for kind, block_jobs in (("target", [Job(PLAIN), *jobs]), ("plain", [Job(PLAIN, 1)])):
                self.blocks[f"{name}{where} {kind}"] = LoopBlock(
                    target, Silent(), rule, prompt, block_jobs, of_target
                )
        for entry in self.entries:
            own = self._samples(f"{entry.name}{where}")
            of_target = self.samples[f"{entry.rule.name}{where} target"]
            drafter = entry.drafter
            behind = prompt if drafter.has_logits else repeating
            models = entry.target, drafter, entry.rule, behind
            of_drafts = draft_jobs(entry.K, drafter.has_logits, drafter.predictors)
            self.blocks[f"{entry.name}{where}"] = LoopBlock(*models, of_drafts, own, of_target)
            if resumes(drafter) and (of_trees := tree_jobs(entry.K, nodes)):
                # apart: a draft after an accepted tree first passes its rows
                self.blocks[f"{entry.name}{where} resumed"] = LoopBlock(
                    *models, of_trees, own, of_target
                )
            if nodes and drafter.grows and drafter.max_draft_length != 1 and entry.K > 1:
                self.blocks[f"{entry.name}{where} trees"] = TreeWidthBlock(*models, own)

    def _samples(self, name: str) -> Samples:
        return self.samples.setdefault(name, Samples(self.pace))

    def cost(self, entry: Entry, context: int, sitting: Sitting, draws: int = DRAWS) -> CostModel:
        """The costs of an entry, with intervals from `draws` replicates, and warnings."""
        where = f" {context}" if len(self.settings.context) > 1 else ""
        of_target = self.samples[f"{entry.rule.name}{where} target"]
        own = self.samples[f"{entry.name}{where}"]
        drafter = entry.drafter
        nodes = self.settings.tree_nodes
        priced = Priced(entry.K, nodes, resumes(drafter), drafter.has_logits)
        cost = timed_cost(of_target, own, priced)
        drawn = draw_blocks(len(self.pace.blocks), self.settings.seed, draws)
        cost = with_replicates(cost, replicate_costs(of_target, own, priced, cost, drawn))
        assert cost.precision is not None
        counted = self.pace.counted
        precision = replace(
            cost.precision,
            seconds=sitting.wall,
            blocks=len(counted),
            disturbed=counted.count(False),
            warnings=tuple(
                [
                    *self._drift(of_target),
                    *disturbed_warning(len(counted), counted.count(False)),
                    *faster_wider_warning(cost),
                ]
            ),
        )
        return replace(
            cost,
            name=entry.name,
            device=device_name(entry.target.decoder.device),
            origin=cost_origin(entry.target, drafter),
            precision=precision,
        )

    def best_lengths(self, entry: Entry) -> list[BestLength]:
        """The best draft length at the costs of the first context so far."""
        if entry.name not in self._emitted:
            self._emitted[entry.name] = tokens_per_round(entry.trace, entry.K)
        cost = self.cost(entry, self.settings.context[0], Sitting(), KEPT)
        return [best_length(a, tokens, cost) for a, tokens in self._emitted[entry.name].items()]

    def _drift(self, samples: Samples) -> list[str]:
        plain, again = samples.seconds(Job(PLAIN)), samples.seconds(Job(PLAIN, 1))
        return [
            *drift_warning(plain, again, "the two measurements"),
            *drift_warning(*halves(plain), "the two halves of the sitting"),
        ]


def random_prompt(
    rng: np.random.Generator, vocab: int, context: int, has_logits: bool
) -> list[int]:
    """`context` random tokens; for a drafter without logits the second half repeats the first."""
    distinct = context if has_logits else (context + 1) // 2
    return np.resize(rng.integers(0, vocab, distinct), context).tolist()


def measure_several(
    entries: Sequence[Entry],
    settings: MeasureSettings,
    unfinished: Path,
    progress: Progress = quiet,
    clocks: Clocks = REAL,
) -> list[CostModel]:
    """`real.measure.measure` of every entry; plain decoding and verification are timed once a rule.

    All entries' targets share their weights. `unfinished` keeps the rounds until all are done: a
    killed measurement of the same entries continues. ValueError for two entries of one name, two
    rules of one name, a batch or several contexts, and tree nodes outside K .. MAX_NODES.
    """
    names = [entry.name for entry in entries]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"costs of {twice[0]} are asked for twice: name each once")
    if len({entry.rule for entry in entries}) > len({entry.rule.name for entry in entries}):
        raise ValueError("two rules have the same name, expected one temperature and seed in all")
    if settings.batch != (1,) or len(settings.context) > 1:
        raise ValueError(
            f"several drafters are measured at batch 1 and one context, given are batch "
            f"{list(settings.batch)} and context {list(settings.context)}: measure one at a time"
        )
    K, nodes = max(entry.K for entry in entries), settings.tree_nodes
    if nodes and not K <= nodes <= MAX_NODES:
        raise ValueError(f"tree nodes are {nodes}; expected 0, or {K} (the depth) to {MAX_NODES}")
    prices = LoopPrices(entries, settings, np.random.default_rng(settings.seed))
    decoder = entries[0].target.decoder
    key = {
        "entries": [[entry.name, entry.K, repr(entry.rule)] for entry in entries],
        "context": settings.context,
        "nodes": nodes,
        "seed": settings.seed,
        "model": repr(decoder.config),
        "origin": [processor_name(decoder.device), torch.get_num_threads(), str(decoder.dtype)],
        "engines": [entry.target.passes.name for entry in entries],
        "versions": versions(),
    }
    state = UnfinishedSitting(unfinished, key, prices.samples, prices.pace)

    def warm() -> None:
        for entry in entries:
            entry.target.passes.warm()

    def settled() -> bool:
        return all(best.settled for entry in entries for best in prices.best_lengths(entry))

    sitting = sit(
        prices.blocks, settings, state.load(), warm, state.save, progress, clocks, settled=settled
    )
    name = uuid4().hex[:12]
    costs = [prices.cost(entry, settings.context[0], sitting) for entry in entries]
    state.save(sitting)
    return [
        replace(cost, origin=replace(cost.origin, sitting=name)) if cost.origin else cost
        for cost in costs
    ]
