"""The target's own output: plain decoding, one token of each sequence per pass."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from real.decode.loop import decode
from real.decode.plan import chain_plan
from real.decode.result import Round
from real.draft import Silent
from real.model.runner import EAGER
from real.model.target import Target
from real.progress import Progress, quiet
from real.record.batch_writer import write_batch
from real.record.settings import RecordError, Settings
from real.sampling import margin
from simspec import CostModel
from simspec.policies.fixed import fixed
from simspec.trace.quantization import encode_margin

TargetSequence = tuple[np.ndarray, np.ndarray]
"""New tokens int32 `[n]` and their margin codes uint8 `[n]`; under the rejection rule the target's
probabilities float64 `[n]` of these tokens in place of margins."""
BATCHES = {"cpu": 32, "cuda": 64}
"""Sequences that are written at a time by default, by type of device."""


class SequenceError(RecordError):
    """A sequence that cannot be written: its draw address, and why."""

    def __init__(self, address: int, reason: Exception):
        super().__init__(f"sequence {address} cannot be recorded: {reason}")
        self.address, self.reason = address, reason


def default_batch(target: Target) -> int:
    """Sequences written at a time where nobody says: by device, 1 where rounding must not vary.

    Captured passes and bfloat16 promise equal tokens only for passes of equal shape.
    """
    wide = target.decoder.dtype in (torch.float32, torch.float64)
    return BATCHES.get(target.decoder.device.type, 1) if target.passes is EAGER and wide else 1


def target_sequences(
    target: Target,
    settings: Settings,
    prompts: Sequence[list[int]],
    addresses: Sequence[int],
    progress: Progress = quiet,
) -> list[TargetSequence]:
    """The target's sequences after all `prompts`, whose draw addresses are `addresses`.

    `settings.batch` are written at a time; 1: each through the decode loop, on the target's engine.
    Equal but for rounding, which may decide near-ties otherwise in float32. A batch that does not
    fit into the GPU's memory is halved. RecordError for an empty prompt, and for a batch under the
    strict engine; SequenceError for scores that are not finite.
    """
    written: dict[int, TargetSequence] = {}

    def finish(i: int, sequence: TargetSequence) -> None:
        written[i] = sequence
        progress("writing", len(written), len(prompts))

    def encode(i: int, tokens: list[int], evidence: list[float]) -> None:
        try:
            finish(i, (np.array(tokens, np.int32), _encoded(evidence, settings)))
        except ValueError as error:
            raise SequenceError(addresses[i], error) from error

    _check(target, settings, prompts)
    requests = dict(enumerate(zip(prompts, addresses)))
    batch = settings.batch
    while batch > 1 and len(written) < len(requests):
        left = {i: request for i, request in requests.items() if i not in written}
        if not _fits(partial(write_batch, target.decoder, settings, left, batch, encode)):
            batch //= 2
    for i, request in requests.items():
        if i not in written:
            try:
                finish(i, target_sequence(target, settings, *request))
            except ValueError as error:
                raise SequenceError(addresses[i], error) from error
    return [written[i] for i in range(len(prompts))]


def _check(target: Target, settings: Settings, prompts: Sequence[list[int]]) -> None:
    if settings.batch > 1 and target.passes.smallest:
        raise RecordError(
            f"batch {settings.batch} under the strict engine, whose passes have one shape; "
            "use --batch 1, or --engine eager"
        )
    if not all(prompts):
        raise RecordError("a prompt is empty; expected at least one token, the first pass's input")


def _fits(write: Callable[[], None]) -> bool:
    """Whether `write` ran within the GPU's memory."""
    try:
        write()
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return False
    return True


def target_sequence(
    target: Target, settings: Settings, prompt: list[int], sequence: int
) -> TargetSequence:
    """The target's sequence after one prompt, through the decode loop."""
    sampled = settings.rule.sampled
    evidence: list[float] = []

    def listen(r: Round) -> None:
        scores = r.verified.scores
        if sampled:
            evidence.append(float(scores[0, r.verified.token[0]].exp()))
        else:
            evidence.extend(margin(scores).tolist())

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
        listen,
    )
    return result.token, _encoded(evidence, settings)


def _encoded(evidence: list[float], settings: Settings) -> np.ndarray:
    values = np.array(evidence)
    return values if settings.rule.sampled else encode_margin(values)
