"""Drafting whose passes are real and whose tokens and features are those of a recording."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from real.bench.recorded_sequence import WRONG, RecordedSequence
from real.decode.acceptance_predictor import PREDICTOR_NAMES, FoldedPredictor
from real.decode.chain import ChainDrafting
from real.decode.phase_timer import PhaseTimer
from real.draft import Draft, Drafter, Step
from real.model.decoder import Decoder
from simspec import Policy, Stepper

PREDICTOR_DEPTHS = 10
"""As in EESD Eq. 5."""


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

    def resume(self):
        return self.inner.resume()

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


class RecordedFeatures(ChainDrafting):
    """Chain drafting whose policy receives recorded features.

    Features are also read from the random logits, for the time that it takes.
    """

    def __init__(self, stepper: Stepper, columns: np.ndarray):
        super().__init__(stepper)
        self.columns = columns

    def begin(self, drafter, rule, sequence, prefill, *more) -> None:
        """Starts a sequence."""
        super().begin(drafter, rule, sequence, prefill, *more)
        self.recorded, self.measured = drafter.recorded, self.reader
        self.reader = self

    @property
    def names(self) -> tuple[str, ...]:
        """Features that the policy reads."""
        return self.measured.names

    def read(self, step: Step, slot: int):
        """The recorded codes of this slot."""
        self.measured.read(step, slot)
        return self.recorded.feature[self.row, slot, self.columns], None

    def fetch(self, *pick) -> int:
        """As `Reader.fetch`."""
        return self.measured.fetch(*pick)

    def learn(self, output, path) -> None:
        """As `Reader.learn`."""
        self.measured.learn(output, path)

    def draft(
        self, last: int, position: int, round: int, cap: int, end_tokens, clock: PhaseTimer
    ) -> Draft:
        """As `ChainDrafting.draft`."""
        self.row = position
        return super().draft(last, position, round, cap, end_tokens, clock)


class ConstantPredictor:
    """An acceptance predictor of constant weights, which costs as much as a trained one."""

    def __init__(self, target_width: int, drafter_width: int, device: torch.device):
        self.target_width, self.drafter_width, self.device = target_width, drafter_width, device

    def folded(self) -> FoldedPredictor:
        """As `Predictor.folded`."""
        like = {"dtype": torch.float64, "device": self.device}
        return FoldedPredictor(
            torch.full((PREDICTOR_DEPTHS, self.target_width), 1e-3, **like),
            torch.full((self.drafter_width,), 1e-3, **like),
            torch.zeros(1, **like),
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
