"""Features of drafted tokens: functions of the drafter's distribution, and acceptance
predictions."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from real.decode.acceptance_predictor import PREDICTOR_NAMES, AcceptancePredictor
from real.decode.verify import DRAFTING, POLICY, PhaseTimer
from real.draft import Drafter, Step
from real.model.target import TargetOutput
from simspec.policy.stepper import TOKEN_FEATURES
from simspec.trace import quantization as grid

FEATURES = {
    "confidence": lambda logprob: logprob.max(-1).values.exp(),
    "entropy": lambda logprob: torch.special.entr(logprob.exp()).sum(-1),
}
# A policy compares θ with a running mean: even steps (errors up to 0.002) suit it better than
# log-odds (0.01).
GRIDS = {
    "confidence": "confidence",
    "entropy": "entropy",
    "probability": "confidence",
    **dict.fromkeys(PREDICTOR_NAMES, "identity"),
}


def feature_grids(reads: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The (name, grid) pairs of the features that a policy reads; ValueError for an unknown
    feature."""
    unknown = [name for name in reads if name not in GRIDS]
    if unknown:
        raise ValueError(
            f"feature {unknown[0]!r} is unknown; drafters here expose {', '.join(GRIDS)}"
        )
    return tuple((name, GRIDS[name]) for name in reads)


def drafter_features(drafter: Drafter) -> tuple[str, ...]:
    """Names of the features that a drafter exposes; none without logits."""
    return () if not drafter.has_logits else (*FEATURES, *drafter.predictors)


def required_predictors(names: tuple[str, ...], drafter: Drafter) -> dict[str, AcceptancePredictor]:
    """The drafter's predictors that the features `names` need; ValueError where the drafter cannot
    expose one."""
    if names and not drafter.has_logits:
        raise ValueError(
            f"feature {names[0]!r}: drafter {drafter.name!r} has no logits and exposes none; "
            "use a policy that reads none"
        )
    required = [name for name in names if name in PREDICTOR_NAMES]
    for name in required:
        if name not in drafter.predictors:
            raise ValueError(
                f"feature {name!r} needs a predictor, drafter {drafter.name!r} has none here; "
                "train one (simspec train)"
            )
    return {name: drafter.predictors[name] for name in required}


def feature_values(
    names: tuple[str, ...],
    logits: Tensor | None,
    temperature: float,
    log_odds: Mapping[str, Tensor] = {},
    token: Tensor | None = None,
) -> Tensor:
    """Features of logits `[n, vocab]`, float64 `[n, F]` on their device.

    | argument | needed by |
    | --- | --- |
    | logits | all but predicted features |
    | log_odds, name -> `[n]` | features that a predictor gives |
    | token `[n]` | "probability", q of the drafted token: the only feature that depends on it \
(`TOKEN_FEATURES`) |
    """
    if any(name in FEATURES or name in TOKEN_FEATURES for name in names):
        assert logits is not None  # checked by required_predictors
        logprob = torch.log_softmax(logits.double() / temperature, -1)
    columns = []
    for name in names:
        if name in FEATURES:
            columns.append(FEATURES[name](logprob))
        elif name in TOKEN_FEATURES:
            assert token is not None
            columns.append(logprob.gather(-1, token.to(logprob.device)[:, None])[:, 0].exp())
        else:
            columns.append(log_odds[name].sigmoid().double())
    return torch.stack(columns, -1)


def encode_features(names: tuple[str, ...], values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Grid codes uint8 `[n, F]` of feature values float64 `[n, F]`, and each value's distance to
    its bin's edge."""
    columns = [grid.encode(values[:, i], grid.TABLES[GRIDS[name]]) for i, name in enumerate(names)]
    code, edge = (np.stack(column, -1) for column in zip(*columns))
    return code, edge


def read_features(
    names: tuple[str, ...],
    logits: Tensor | None,
    temperature: float,
    log_odds: Mapping[str, Tensor] = {},
    token: Tensor | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """`encode_features` of `feature_values`."""
    if not names:
        assert logits is not None
        return np.empty((len(logits), 0), np.uint8), np.empty((len(logits), 0))
    values = feature_values(names, logits, temperature, log_odds, token)
    return encode_features(names, values.cpu().numpy())


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
