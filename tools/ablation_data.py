"""What ablations of one target share: training windows with features, and recorded sequences."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import cast

import numpy as np
import torch

from real.draft import Drafter, TrainingBatch
from real.drafters.sorted import SortedDrafter
from real.model.decoder import Decoder
from real.model.target import Target
from real.progress import Progress, quiet
from real.prompts import repeated_ngrams
from real.provenance import device_name, revision, versions
from real.record import Settings
from real.record.exits import record_exits
from real.record.recorder import record_sequence
from real.record.sequences import SequenceCache
from real.rerun import prompts_of, rule_of
from real.train.accepted_length import AcceptedLengths, summary
from real.train.config import DrafterTraining, loss_settings, recipe_of
from real.train.drafter_card import loaded_parameters
from real.train.drafter_data import DrafterData, prepared_head
from real.train.feature_store import FeatureStore
from real.train.optimizers import TrainSchedule
from real.train.sequence_shards import Sequences
from simspec.trace.exits import ExitDrafts
from simspec.trace.trace import Trace


@dataclass(frozen=True)
class TextWindows:
    """The windows of all training steps, and their features: one target pass for all drafters."""

    steps: int
    rows: int
    store: FeatureStore
    mixed: bool

    @classmethod
    def of(
        cls, batch: Callable, steps: int, target: Decoder, folder: Path, mixed: bool
    ) -> "TextWindows":
        """The windows `batch(step) [rows, n + 1]` of so many steps; features go to `folder`."""
        drawn = [batch(step).cpu().numpy() for step in range(steps)]
        token = np.concatenate(drawn).astype(np.int32)
        count, length = token.shape
        sequences = Sequences(
            token.ravel(), np.arange(count + 1) * length, np.zeros(count, np.int64)
        )
        dtype = torch.bfloat16 if mixed else target.dtype
        store = FeatureStore(folder, target, sequences, dtype)
        return cls(steps, count // steps, store, mixed)

    def compute(self, names: Sequence[str], progress: Progress = quiet) -> None:
        """Computes the features that do not exist, in one pass over each window.

        In the precision of training, so that they are those that a drafter would compute itself.
        """
        kind = self.store.target.device.type
        with torch.autocast(kind, dtype=torch.bfloat16) if self.mixed else nullcontext():
            self.store.compute(names, progress)

    def batches(
        self, schedule: TrainSchedule, reads: tuple[str, ...] = ()
    ) -> Callable[[int], TrainingBatch]:
        """Step -> its windows and the features that `reads` names; ValueError for other sizes."""
        sequences = self.store.sequences
        length = int(sequences.offset[1])
        if (schedule.rows, schedule.length + 1) != (self.rows, length):
            raise ValueError(
                f"windows are {self.rows} x {length - 1}; "
                f"expected {schedule.rows} x {schedule.length}"
            )
        self.compute(reads)
        token = torch.from_numpy(sequences.token.reshape(-1, self.rows, length).astype(np.int64))
        device = self.store.target.device

        def batch(step: int) -> TrainingBatch:
            indices = range(step * self.rows, (step + 1) * self.rows)
            stored = {name: self.store.rows(name, indices, length - 1) for name in reads}
            return TrainingBatch(token[step].to(device), None, stored)

        return batch


def whole_step(training: DrafterTraining, data: DrafterData, repeats: int = 3) -> dict:
    """Parameters that a step without stored features must hold, and its seconds (EESD Table 6)."""
    head, recipe = prepared_head(training, data), recipe_of(training.drafter)
    batch, settings = data.batches(training.plan), loss_settings(training)
    kind, seconds = data.target.device.type, []

    def loss(step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(step)
        with torch.autocast(kind, dtype=torch.bfloat16) if data.mixed else nullcontext():
            drawn = TrainingBatch.of(batch(step))
            return recipe.loss(head, data.target, drawn, training.soft, generator, **settings)

    loaded = loaded_parameters(head, data.target, lambda: loss(0))
    for step in range(repeats + 1):
        start = perf_counter()
        loss(step % training.plan.steps).backward()
        seconds.append(perf_counter() - start)
    return {"loaded": loaded, "seconds": round(median(seconds[1:]), 4)}


@dataclass(frozen=True)
class _Written:
    """The tokens of a recording, in place of a cache of sequences that the target wrote."""

    tokens: np.ndarray

    def find(self, sequence: int, prompt: list[int]) -> tuple[np.ndarray, np.ndarray]:
        return self.tokens, np.zeros(len(self.tokens), np.uint8)


def record_along(
    target: Decoder,
    drafter: Drafter,
    trace: Trace,
    K: int,
    progress: Progress = quiet,
    tree: tuple[int, int] | tuple[()] = (),
) -> Trace:
    """A drafter's recording on the sequences of another's, under its rule: lengths alone.

    With `tree`, (width, levels), also order and beam of dynamic trees. It holds no prompts,
    features or ranks, so that it is small. ValueError for the rejection rule, whose acceptance is
    drawn.
    """
    rule, engine, parts = rule_of(trace), Target(target, drafter.taps), []
    for s, prompt in enumerate(prompts_of(trace)):
        tokens = trace.token[trace.offset[s] : trace.offset[s + 1]]
        settings = Settings(K, int(trace.budget[s]), rule, trace.meta.end_tokens, (), tree)
        written = cast(SequenceCache, _Written(tokens))
        address = int(trace.sequence[s])
        parts.append(record_sequence(engine, drafter, settings, prompt, address, written))
        progress("along the recording", s + 1, trace.sequences)
    meta = replace(
        trace.meta,
        K=K,
        drafter=drafter.name,
        features=(),
        predictors={},
        prefix_only=drafter.prefix_only,
        tree=tree,
        device=device_name(target.device),
        versions=versions(),
        git=revision(),
        argv=(),
    )
    names = ("run", "depth", *(("order", "beam") if tree else ()))
    rows = {name: np.concatenate([getattr(p, name) for p in parts]) for name in names}
    return Trace(
        trace.offset, trace.budget, trace.token, meta=meta, sequence=trace.sequence, **rows
    )


def exits_along(
    target: Decoder, drafter: SortedDrafter, trace: Trace, recording: Trace
) -> ExitDrafts:
    """The exits of a sorted drafter's `recording` of some sequences of `trace`.

    Margins are left out: replays do not read them.
    """
    place = {address: s for s, address in enumerate(trace.sequence.tolist())}
    chosen = trace.select(np.array([place[address] for address in recording.sequence.tolist()]))
    prompted = replace(recording, prompt=chosen.prompt, prompt_offset=chosen.prompt_offset)
    drafts = record_exits(drafter, target, prompted, rule_of(trace))
    none = np.zeros_like(drafts.draft_margin)
    return replace(drafts, draft_margin=none, feature_margin=none)


def lengths_of(recording: Trace, K: int) -> AcceptedLengths:
    """Accepted lengths of drafts of K, at most the recording's."""
    accepted, offered = [], []
    for start, stop in zip(recording.offset, recording.offset[1:]):
        n = int(stop - start)
        run, depth = (x[start:stop].astype(np.int64) for x in (recording.run, recording.depth))
        run, depth = np.minimum(run, K), np.minimum(depth, K)
        ahead = np.minimum(K, n - np.arange(n))
        accepted.append(run)
        # a draft that is accepted as far as it is offered ends there
        offered.append(np.where(run == depth, np.minimum(run, ahead), ahead))
    return AcceptedLengths(K, tuple(accepted), tuple(offered))


def recorded_summary(recording: Trace, name: str, K: int) -> dict:
    """The accepted lengths of a recording `name`, by sequence too, for a card."""
    lengths = lengths_of(recording, K)
    sequences = [recording.token[a:b] for a, b in zip(recording.offset, recording.offset[1:])]
    return {
        "recording": name,
        "rule": recording.meta.rule,
        "temperature": recording.meta.temperature,
        "K": K,
        "texts": recording.sequences,
        "tokens": recording.rows,
        "repeated_8grams": round(repeated_ngrams(sequences), 4),
        **summary(lengths),
        "by_sequence": lengths.by_sequence(),
    }
