"""Prices of one target's drafters from one sitting, and the draft length that they favour.

The decode loop, which runs one sequence at a time, is timed at every context.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch

from real.decode.engine import engines_of
from real.draft import Drafter, Silent
from real.measure import MeasureSettings
from real.measure.blocks import Block, LoopBlock, TreeWidthBlock, resumes
from real.measure.estimate import (
    DRAWS,
    KEPT,
    Priced,
    disturbed_warning,
    draw_blocks,
    drift_warning,
    faster_wider_warning,
    halves,
    replicate_costs,
    timed_cost,
    with_replicates,
)
from real.measure.sitting import Sitting, UnfinishedSitting, sit
from real.measure.timing import PLAIN, Job, Pace, Samples, alone_jobs, draft_jobs, tree_jobs
from real.model.target import Target
from real.progress import Progress, quiet
from real.provenance import device_name, processor_name, versions
from real.sampling import Rule
from simspec import CostModel, Trace, replay
from simspec.cost.gate import no_interval
from simspec.cost.provenance import CostOrigin
from simspec.cost.table import CostTable
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
    """The best fixed draft length at one acceptance, "recorded" or that of every draft token."""

    acceptance: str
    K: int
    speedup: float
    row: int  # rows of the pass that decides,
    half_width: float  # and its relative half-width
    loss: float  # share that K loses to the best length, 95% quantile over replicates

    @property
    def settled(self) -> bool:
        """Whether the costs are certain enough to choose K."""
        return self.loss <= LOSS

    def describe(self) -> str:
        """One line."""
        state = "settled" if self.settled else "not settled"
        bare = self.loss == float("inf")
        lost = "these costs have no interval" if bare else f"it loses at most {self.loss:.1%}"
        of = "recorded acceptance" if self.acceptance == "recorded" else f"a = {self.acceptance}"
        return (
            f"{of}: K = {self.K} is best ({self.speedup:.2f}x), {state}: {lost}; the pass of "
            f"{self.row} rows, +-{self.half_width:.1%}, decides"
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
    held: Mapping[str, Any] = cost.precision.replicates
    if not held or no_interval(cost):
        return BestLength(acceptance, K, float(point[K]), K + 1, float("inf"), float("inf"))
    drawn = np.array([
        _speedups(emitted, np.array(draft[:lengths]), np.array(verify[:lengths]), overhead)
        for draft, verify, overhead in zip(held["draft"], held["verify"], held["overhead"])
    ])  # fmt: skip
    loss = drawn.max(1) / drawn[:, K] - 1
    other = drawn.argmax(1)[drawn.argmax(1) != K]
    second = int(np.argsort(point)[-2:][0])
    rival = int(np.bincount(other).argmax()) if len(other) else second
    verify = np.array(held["verify"])
    error = 2 * verify.std(axis=0, ddof=1) / np.maximum(verify.mean(axis=0), 1e-9)
    row = max(K, rival, key=lambda k: error[k])
    lost = float(np.quantile(loss, 0.95))
    return BestLength(acceptance, K, float(point[K]), row + 1, float(error[row]), lost)


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

    Of each rule: plain decoding twice, in separate sequences, and verification of what no drafter
    computed. They are the target's, which all entries share; they run on the first entry's target,
    whose taps are kept but not read. Of each entry: drafts, trees where its passes resume, and
    passes over several rows where it grows trees. `pace` holds the timing blocks.
    """

    def __init__(
        self, entries: Sequence[Entry], settings: MeasureSettings, rng: np.random.Generator
    ):
        self.entries, self.settings = entries, settings
        self.blocks: dict[str, Block] = {}
        self.samples: dict[str, Samples] = {}
        self._emitted: dict[str, dict[str, np.ndarray]] = {}
        self.name = uuid4().hex[:12]
        self.created = datetime.now(UTC).isoformat(timespec="seconds")
        self.pace = Pace()
        for context in settings.context:
            self._add(context, rng)

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
        priced = Priced(entry.K, self.settings.tree_nodes, resumes(drafter), drafter.has_logits)
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
            warnings=(
                *self._drift(of_target),
                *disturbed_warning(len(counted), counted.count(False)),
                *faster_wider_warning(cost),
            ),
        )
        return replace(
            cost,
            name=entry.name,
            device=device_name(entry.target.decoder.device),
            origin=self._origin(entry),
            precision=precision,
        )

    def _origin(self, entry: Entry) -> CostOrigin:
        decoder = entry.target.decoder
        return CostOrigin(
            device=processor_name(decoder.device),
            threads=torch.get_num_threads(),
            dtype=str(decoder.dtype).removeprefix("torch."),
            engines=engines_of(entry.target, entry.drafter),
            versions=versions(),
            created=self.created,
            sitting=self.name,
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


def measure(
    target: Target,
    drafter: Drafter,
    rule: Rule,
    K: int,
    settings: MeasureSettings,
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
    return measure_several([Entry(target, drafter, rule, K)], settings, None, progress)[0].at()


def measure_several(
    entries: Sequence[Entry],
    settings: MeasureSettings,
    unfinished: Path | None = None,
    progress: Progress = quiet,
) -> list[CostTable]:
    """`measure` of every entry; plain decoding and verification are timed once a rule.

    Every repeat runs all jobs of all contexts in one new random order; the warm-up is not counted.
    All entries' targets share their weights. `unfinished` keeps the rounds until all are done: a
    killed measurement of the same entries continues.

    ValueError for two entries, or rules, of one name; for several entries with several contexts;
    for tree nodes outside K .. MAX_NODES; for a length never offered.
    """
    _check(entries, settings)
    contexts = settings.context
    prices = LoopPrices(entries, settings, np.random.default_rng(settings.seed))
    state = None
    if unfinished is not None:
        state = UnfinishedSitting(unfinished, _key(entries, settings), prices.samples, prices.pace)

    def warm() -> None:
        for each in entries:
            each.target.passes.warm()

    sitting = sit(
        prices.blocks,
        settings,
        state.load() if state else None,
        warm,
        state.save if state else lambda sitting: None,
        progress,
        settled=lambda: all(b.settled for each in entries for b in prices.best_lengths(each)),
    )
    costs = [[prices.cost(each, c, sitting) for c in contexts] for each in entries]
    if state:
        state.save(sitting)
    if len(contexts) == 1:
        return [CostTable((1,), contexts, ((cost,),), cost.name) for (cost,) in costs]
    (row,), name = costs, entries[0].name  # several entries are measured at one context
    cells = tuple(replace(cost, name=f"{name}-b1-c{c}") for cost, c in zip(row, contexts))
    return [CostTable((1,), contexts, (cells,), name)]


def _check(entries: Sequence[Entry], settings: MeasureSettings) -> None:
    names = [entry.name for entry in entries]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"costs of {twice[0]} are asked for twice: name each once")
    if len({entry.rule for entry in entries}) > len({entry.rule.name for entry in entries}):
        raise ValueError("two rules have the same name, expected one temperature and seed in all")
    if len(entries) > 1 and len(settings.context) > 1:
        raise ValueError(
            f"several drafters are measured at one context, given are {list(settings.context)}: "
            "measure one at a time"
        )
    for entry in entries:
        if (most := entry.drafter.longest(entry.K)) < entry.K:
            raise ValueError(
                f"drafter {entry.drafter.name!r} drafts at most {most} tokens a round, asked for "
                f"{entry.K}: measure it with --depth {most}"
            )
    K, nodes = max(entry.K for entry in entries), settings.tree_nodes
    if nodes and not K <= nodes <= MAX_NODES:
        raise ValueError(f"tree nodes are {nodes}; expected 0, or {K} (the depth) to {MAX_NODES}")


def _key(entries: Sequence[Entry], settings: MeasureSettings) -> dict[str, object]:
    """What a killed measurement must have had to be continued."""
    decoder = entries[0].target.decoder
    return {
        "entries": [[entry.name, entry.K, repr(entry.rule)] for entry in entries],
        "context": settings.context,
        "nodes": settings.tree_nodes,
        "seed": settings.seed,
        "model": repr(decoder.config),
        "origin": [processor_name(decoder.device), torch.get_num_threads(), str(decoder.dtype)],
        "engines": [entry.target.passes.name for entry in entries],
        "versions": versions(),
    }
