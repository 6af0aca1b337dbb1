"""What a drafter shows after each slot: functions of its distribution and of states paid for, and, by one name, of the token picked."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from real.decode.acceptance_predictor import NAMES, Predictor
from real.decode.phase_timer import DRAFTING, POLICY, PhaseTimer
from real.draft import Drafter, Step
from real.model.target import TargetOutput
from simspec import quantization as grid
from simspec.stepper import TOKEN_FEATURES

FEATURES = {
    "confidence": lambda logprob: logprob.max(-1).values.exp(),
    "entropy": lambda logprob: torch.special.entr(logprob.exp()).sum(-1),
}
# A policy weighs θ linearly against a running mean: even steps (errors up to 0.002) serve it better than log-odds (0.01).
GRIDS = {
    "confidence": "confidence",
    "entropy": "entropy",
    "probability": "confidence",
    **dict.fromkeys(NAMES, "identity"),
}


def shown(reads: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The (name, grid) pairs of the features that a policy reads; ValueError for one that no drafter here shows."""
    unknown = [name for name in reads if name not in GRIDS]
    if unknown:
        raise ValueError(
            f"feature {unknown[0]!r} is unknown; drafters here show {', '.join(GRIDS)}"
        )
    return tuple((name, GRIDS[name]) for name in reads)


def offered(drafter: Drafter) -> tuple[str, ...]:
    """Names of all features that this drafter shows: those of its logits, and those it has a predictor for; none if it is silent."""
    return () if not drafter.has_logits else (*FEATURES, *drafter.predictors)


def learnt(names: tuple[str, ...], drafter: Drafter) -> dict[str, Predictor]:
    """The drafter's predictors of those `names` that need one; ValueError where one is missing, or for any name if it is silent."""
    if names and not drafter.has_logits:
        raise ValueError(
            f"feature {names[0]!r}: drafter {drafter.name!r} has no logits and shows none; use a policy that reads none"
        )
    known = drafter.predictors
    wanted = [name for name in names if name in NAMES]
    for name in wanted:
        if name not in known:
            raise ValueError(
                f"feature {name!r} needs a predictor, drafter {drafter.name!r} has none here; train one (simspec train)"
            )
    return {name: known[name] for name in wanted}


def values(
    names: tuple[str, ...],
    logits: Tensor | None,
    temperature: float,
    log_odds: Mapping[str, Tensor] = {},
    token: Tensor | None = None,
) -> Tensor:
    """Features of logits `[n, vocab]`, float64 `[n, F]` on their device.

    Those that a predictor gives are read from `log_odds`, name -> `[n]`; without any other, logits may be None. "probability", q of the
    `token [n]` picked, is the one that knows which token it was (`simspec.policy.IDENTITY`): no default shows it.
    """
    if any(name in FEATURES or name in TOKEN_FEATURES for name in names):
        logprob = torch.log_softmax(logits.double() / temperature, -1)
    columns = []
    for name in names:
        if name in FEATURES:
            columns.append(FEATURES[name](logprob))
        elif name in TOKEN_FEATURES:
            columns.append(logprob.gather(-1, token.to(logprob.device)[:, None])[:, 0].exp())
        else:
            columns.append(log_odds[name].sigmoid().double())
    return torch.stack(columns, -1)


def coded(names: tuple[str, ...], found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Grid codes uint8 `[n, F]` of feature values float64 `[n, F]`, and each value's distance to its bin's edge."""
    pairs = [grid.encode(found[:, i], grid.TABLES[GRIDS[name]]) for i, name in enumerate(names)]
    return tuple(np.stack(column, -1) for column in zip(*pairs))


def read(
    names: tuple[str, ...],
    logits: Tensor | None,
    temperature: float,
    log_odds: Mapping[str, Tensor] = {},
    token: Tensor | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """As `values`, then `coded`."""
    if not names:
        return np.empty((len(logits), 0), np.uint8), np.empty((len(logits), 0))
    return coded(names, values(names, logits, temperature, log_odds, token).cpu().numpy())


class Reader:
    """Reads the features `names` of drafted steps in a round: `begin` a text, `read` each step, `learn` from the pass.

    It holds what predictors make of the state that produced the last committed token, renewed after every pass.
    """

    def __init__(self, names: tuple[str, ...], temperature: float, drafter: Drafter):
        self.names, self.temperature = names, temperature
        self._folded = {
            name: predictor.folded() for name, predictor in learnt(names, drafter).items()
        }
        self._standing: dict[str, Tensor] = {}
        self._held: tuple[int, list[float]] | None = None

    def begin(self, prefill: TargetOutput) -> None:
        """Starts a text: the last row of `prefill` made the prompt's last token; a prompt of one token has none, zeros stand in."""
        rows = prefill.hidden
        self._stand(rows[-1] if len(rows) else rows.new_zeros(rows.shape[1]))

    def fetch(
        self, best: Tensor, logits: Tensor, hidden: Tensor | None, slot: int, clock: PhaseTimer
    ) -> int:
        """The token `best [1]` picked from logits `[vocab]` at `slot`, and with it in one transfer what `read` will be asked for there."""
        if not self.names or (self._folded and hidden is None):
            return int(best)
        clock.lap(DRAFTING)
        token, *found = torch.cat(
            (best.double(), self._values(logits, hidden, slot, best)[0])
        ).tolist()
        self._held = slot, found
        clock.lap(POLICY)
        return int(token)

    def read(self, step: Step, slot: int) -> tuple[np.ndarray, np.ndarray]:
        """Codes uint8 `[F]` of the step just drafted at `slot`, and each value's distance to its bin's edge `[F]`."""
        held, self._held = self._held, None
        if held is None or held[0] != slot:
            token = torch.tensor([step.token])
            held = slot, self._values(step.logits, step.hidden, slot, token)[0].tolist()
        code, edge = coded(self.names, np.array([held[1]]))
        return code[0], edge[0]

    def _values(self, logits: Tensor, hidden: Tensor | None, slot: int, token: Tensor) -> Tensor:
        odds = {}
        for name, folded in self._folded.items():
            standing = self._standing[name]
            odds[name] = (standing[min(slot, len(standing) - 1)] + folded.of_drafter(hidden))[None]
        return values(self.names, logits[None], self.temperature, odds, token)

    def learn(self, output: TargetOutput, path: list[int]) -> None:
        """After a pass: the last row of the kept `path` made the last committed token."""
        self._stand(output.hidden[path[-1]])

    @torch.inference_mode()
    def _stand(self, state: Tensor) -> None:
        self._standing = {name: folded.of_target(state) for name, folded in self._folded.items()}
