"""Reading the features of drafted tokens round by round."""

import numpy as np
import torch
from torch import Tensor

from real.decode.features import encode_features, feature_values, required_predictors
from real.decode.phase_timer import DRAFTING, POLICY, PhaseTimer
from real.draft import Drafter, Step
from real.model.target import TargetOutput


class FeatureReader:
    """Reads the features `names` of drafted steps: `begin` a sequence, `read` each step, `learn`
    after each pass.

    Between passes it stores the target's part of each prediction, of the last committed token.
    """

    def __init__(self, names: tuple[str, ...], temperature: float, drafter: Drafter):
        self.names, self.temperature = names, temperature
        predictors = required_predictors(names, drafter)
        self._folded = {name: predictor.folded() for name, predictor in predictors.items()}
        self._target_log_odds: dict[str, Tensor] = {}
        self._fetched: tuple[int, list[float]] | None = None

    def begin(self, prefill: TargetOutput) -> None:
        """Starts a sequence; without a row in `prefill` (a prompt of one token) the target's state
        is zero."""
        rows = prefill.hidden
        self._update(rows[-1] if len(rows) else rows.new_zeros(rows.shape[1]))

    def fetch(
        self, best: Tensor, logits: Tensor, hidden: Tensor | None, slot: int, clock: PhaseTimer
    ) -> int:
        """The token `best [1]` picked from logits `[vocab]`, copied to the host together with its
        features."""
        if not self.names or (self._folded and hidden is None):
            return int(best)
        clock.lap(DRAFTING)
        token, *values = torch.cat(
            (best.double(), self._values(logits, hidden, slot, best)[0])
        ).tolist()
        self._fetched = slot, values
        clock.lap(POLICY)
        return int(token)

    def read(self, step: Step, slot: int) -> tuple[np.ndarray, np.ndarray]:
        """Codes uint8 `[F]` of the step drafted at `slot`, and each value's distance to its bin's
        edge `[F]`."""
        fetched, self._fetched = self._fetched, None
        if fetched is None or fetched[0] != slot:
            assert step.logits is not None  # checked by required_predictors
            token = torch.tensor([step.token])
            fetched = slot, self._values(step.logits, step.hidden, slot, token)[0].tolist()
        code, edge = encode_features(self.names, np.array([fetched[1]]))
        return code[0], edge[0]

    def learn(self, output: TargetOutput, path: list[int]) -> None:
        """After a pass: the last row of the committed `path` produced the last committed token."""
        self._update(output.hidden[path[-1]])

    def _values(self, logits: Tensor, hidden: Tensor | None, slot: int, token: Tensor) -> Tensor:
        log_odds = {}
        for name, folded in self._folded.items():
            assert hidden is not None  # a drafter with predictors has hidden states
            of_target = self._target_log_odds[name]
            of_depth = of_target[min(slot, len(of_target) - 1)]
            log_odds[name] = (of_depth + folded.of_drafter(hidden))[None]
        return feature_values(self.names, logits[None], self.temperature, log_odds, token)

    @torch.inference_mode()
    def _update(self, state: Tensor) -> None:
        self._target_log_odds = {
            name: folded.of_target(state) for name, folded in self._folded.items()
        }
