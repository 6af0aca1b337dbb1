"""Drafting whose passes are real and whose tokens and features are those of a recording."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from real.decode.acceptance_predictor import PREDICTOR_NAMES, FoldedPredictor
from real.decode.features import FeatureReader
from real.decode.plan import ChainDrafting
from real.decode.protocol import RoundStart, SequenceStart
from real.draft import Draft, Drafter, Step
from real.model.decoder import Decoder
from real.model.target import TargetOutput
from simspec import Policy, Stepper, Trace

END, WRONG, FIRST = 0, 1, 2
"""Tokens: the end token, what a rejected draft proposes, and the first of random tokens."""


@dataclass(frozen=True)
class SequenceSettings:
    """How random sequences are drawn.

    | field | meaning |
    | --- | --- |
    | context | tokens of every prompt; None: as many as recorded, at least 2 |
    | seed | of the tokens, and of policies' draws |
    """

    context: int | None = None
    seed: int = 0


RECORDED = SequenceSettings()


@dataclass(frozen=True)
class RecordedSequence:
    """Recorded rows of one sequence, with random tokens in place of the real ones.

    | field | dtype, shape | meaning |
    | --- | --- | --- |
    | prompt | int list | random tokens |
    | tokens | int list `[n]` | random; END last where the recording ends with an end token |
    | depth, run | uint8 `[n]` | as in `Trace` |
    | feature | uint8 `[n, K, F]` | of all features recorded |
    | budget, sequence | int | as in `Trace` |
    """

    prompt: list[int]
    tokens: list[int]
    depth: np.ndarray
    run: np.ndarray
    feature: np.ndarray
    budget: int
    sequence: int


def recorded_sequences(
    trace: Trace, vocab: int, settings: SequenceSettings = RECORDED
) -> list[RecordedSequence]:
    """One RecordedSequence for each of the trace, for a model of `vocab` tokens.

    ValueError for fewer than 4 tokens, or a context under 2.
    """
    context = settings.context
    if vocab <= FIRST + 1 or (context is not None and context < 2):
        raise ValueError(
            f"vocabulary {vocab} and context {context}; "
            f"expected at least {FIRST + 2} tokens, and a context of 2 or more"
        )
    random, sequences = np.random.default_rng(settings.seed), []
    for s in range(trace.sequences):
        rows = slice(int(trace.offset[s]), int(trace.offset[s + 1]))
        length = context or max(2, int(trace.prompt_offset[s + 1] - trace.prompt_offset[s]))
        prompt, tokens = (
            random.integers(FIRST, vocab, n).tolist() for n in (length, rows.stop - rows.start)
        )
        if int(trace.token[rows.stop - 1]) in trace.meta.end_tokens:
            tokens[-1] = END
        sequences.append(
            RecordedSequence(
                prompt=prompt,
                tokens=tokens,
                depth=trace.depth[rows],
                run=trace.run[rows],
                feature=trace.feature[rows],
                budget=int(trace.budget[s]),
                sequence=int(trace.sequence[s]),
            )
        )
    return sequences


PREDICTOR_DEPTHS = 10
"""Depths of the predictor, the number in EESD Eq. 5."""


class RecordedDrafter(Drafter):
    """Runs a drafter's passes and picks; its tokens are accepted as often as recorded."""

    def __init__(self, drafter: Drafter, predictors: Mapping):
        self.inner, self.predictors = drafter, predictors
        self.name, self.taps, self.has_logits = drafter.name, drafter.taps, drafter.has_logits
        self.prefix_only = self.history_free = False

    def follow(self, recorded: RecordedSequence) -> None:
        """Sets the sequence that is decoded next."""
        self.recorded = recorded

    def begin(self, target, prompt, prefill, pick) -> None:
        self.position = self.slot = 0

        def pick_recorded(logits, slot: int, hidden=None) -> int:
            pick(logits, slot, hidden)  # its time is part of drafting
            return self._token(slot)

        self.inner.begin(target, prompt, prefill, pick_recorded)

    def next(self) -> Step | None:
        slot = self.slot
        if slot >= self.recorded.depth[self.position]:
            return None
        step = self.inner.next()
        self.slot += 1
        if not self.has_logits:
            return Step(self._token(slot), slot, None)
        if step is None:
            raise ValueError(
                f"drafter {self.name!r} offers {slot} tokens where {slot + 1} were recorded; "
                "take one that drafts as deep"
            )
        return step

    def resume(self, grown=()):
        return self.inner.resume(grown)

    def rollback(self, accepted: int) -> None:
        self.slot = 0
        self.inner.rollback(accepted)

    def catch_up(self, tokens, output, path) -> None:
        self.position += len(tokens)
        self.inner.catch_up(tokens, output, path)

    def _token(self, slot: int) -> int:
        if slot < self.recorded.run[self.position]:
            return self.recorded.tokens[self.position + slot]
        return WRONG


class RecordedReader(FeatureReader):
    """Returns recorded features; reads those of the random logits too, for the time it takes."""

    def __init__(self, measured: FeatureReader, recorded: RecordedSequence, columns: np.ndarray):
        self.measured, self.recorded, self.columns = measured, recorded, columns
        self.names, self.position = measured.names, 0

    def fetch(self, *pick) -> int:
        return self.measured.fetch(*pick)

    def read(self, step: Step, slot: int) -> tuple[np.ndarray, np.ndarray]:
        """The recorded codes of this slot, and the measured distances to the bins' edges."""
        _, edge = self.measured.read(step, slot)
        return self.recorded.feature[self.position, slot, self.columns], edge

    def learn(self, output: TargetOutput, path: list[int]) -> None:
        self.measured.learn(output, path)


class RecordedFeatures(ChainDrafting):
    """Chain drafting whose policy receives the features `columns` of a recording."""

    reader: RecordedReader

    def __init__(self, stepper: Stepper, columns: np.ndarray):
        super().__init__(stepper)
        self.columns = columns

    def begin(self, start: SequenceStart) -> None:
        """Starts the sequence that the drafter follows."""
        super().begin(start)
        assert isinstance(start.drafter, RecordedDrafter)
        self.reader = RecordedReader(self.reader, start.drafter.recorded, self.columns)

    def draft(self, start: RoundStart) -> Draft:
        """See `ChainDrafting.draft`; first moves the reader to the round's position."""
        self.reader.position = start.position
        return super().draft(start)


class ConstantPredictor:
    """An acceptance predictor of constant weights, which costs as much as a trained one."""

    def __init__(self, target_width: int, drafter_width: int, device: torch.device):
        self.target_width, self.drafter_width, self.device = target_width, drafter_width, device

    def folded(self) -> FoldedPredictor:
        """See `Predictor.folded`; its weights are constant."""
        options: dict[str, Any] = {"dtype": torch.float64, "device": self.device}
        return FoldedPredictor(
            torch.full((PREDICTOR_DEPTHS, self.target_width), 1e-3, **options),
            torch.full((self.drafter_width,), 1e-3, **options),
            torch.zeros(1, **options),
        )


def constant_predictors(
    policies_: Sequence[Policy], decoder: Decoder, drafter: Drafter
) -> dict[str, ConstantPredictor]:
    """A predictor for each learned feature that one of the policies reads."""
    target_width = decoder.config.width
    drafter_width = (drafter.lm or decoder).config.width
    return {
        name: ConstantPredictor(target_width, drafter_width, decoder.device)
        for policy in policies_
        for name in policy.reads
        if name in PREDICTOR_NAMES
    }
