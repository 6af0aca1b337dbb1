"""Prices of one target's drafters, from one sitting."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from real.draft import Drafter, Silent
from real.measure.best_length import BestLength, best_length, tokens_per_round
from real.measure.blocks import Block, LoopBlock, TreeWidthBlock, resumes
from real.measure.diagnosis import disturbed_warning, drift_warning, faster_wider_warning, halves
from real.measure.job import PLAIN, Job, alone_jobs, draft_jobs, tree_jobs
from real.measure.origin import cost_origin
from real.measure.pace import Pace
from real.measure.replicates import DRAWS, KEPT, draw_blocks, replicate_costs, with_replicates
from real.measure.samples import Samples
from real.measure.settings import MeasureSettings
from real.measure.sitting import Sitting
from real.measure.timed_cost import Priced, timed_cost
from real.model.target import Target
from real.provenance import device_name
from real.sampling import Rule
from simspec import CostModel, Trace


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
    | plain | each rule | plain decoding once more, in sequences of its own |
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
                # apart: a draft behind an accepted tree first passes its rows
                self.blocks[f"{entry.name}{where} resumed"] = LoopBlock(
                    *models, of_trees, own, of_target
                )
            if nodes and drafter.grows and drafter.max_draft_length != 1 and entry.K > 1:
                self.blocks[f"{entry.name}{where} trees"] = TreeWidthBlock(*models, own)

    def _samples(self, name: str) -> Samples:
        return self.samples.setdefault(name, Samples(self.pace))

    def cost(self, entry: Entry, context: int, sitting: Sitting, draws: int = DRAWS) -> CostModel:
        """The costs of an entry, with intervals from so many replicates, and warnings."""
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
