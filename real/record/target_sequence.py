"""The target's own output: plain decoding, one token per pass."""

from collections.abc import Callable

import numpy as np

from real.decode.loop import decode
from real.decode.plan import chain_plan
from real.decode.result import Round
from real.draft import Silent
from real.model.target import Target
from real.record.settings import Settings
from real.sampling import margin
from simspec import CostModel
from simspec.policies.fixed import fixed
from simspec.quantization import encode_margin


def decode_plain(
    target: Target,
    settings: Settings,
    prompt: list[int],
    sequence: int,
    on_round: Callable[[Round], None],
) -> np.ndarray:
    """The target's new tokens, int32 `[n]`; `on_round` receives every pass."""
    cost = CostModel.from_ratio(0.0, settings.K)
    result = decode(
        target,
        Silent(),
        chain_plan(fixed(0), settings.K, 0, cost),
        settings.rule,
        prompt,
        settings.budget,
        settings.end_tokens,
        sequence,
        on_round,
    )
    return result.token


def target_sequence(
    target: Target, settings: Settings, prompt: list[int], sequence: int
) -> tuple[np.ndarray, np.ndarray]:
    """The target's new tokens int32 `[n]` and their margin codes uint8 `[n]`."""
    margins: list[float] = []

    def listen(r: Round) -> None:
        margins.extend(margin(r.verified.scores).tolist())

    tokens = decode_plain(target, settings, prompt, sequence, listen)
    return tokens, encode_margin(np.array(margins))
