"""The target's own output: plain decoding, one token of each sequence per pass."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from real.decode.loop import Round, decode
from real.decode.plan import chain_plan
from real.draft import Silent
from real.model.decoder import Decoder
from real.model.full_pass import RaggedKVCache
from real.model.kv_cache import KVCache
from real.model.runner import EAGER
from real.model.target import Target
from real.progress import Progress, quiet
from real.record.settings import RecordError, Settings
from real.sampling import Rule, gumbel_at, margin, sample_rows
from simspec import CostModel
from simspec.numerics.rng import RESIDUAL
from simspec.policies.fixed import fixed
from simspec.trace.quantization import encode_margin

PREFILL_ROWS = {"cpu": 2048, "cuda": 16384}
"""Most rows of a prefill pass by type of device, padding included: what bounds its memory."""
LEAST_FREE = {"cpu": 0.0, "cuda": 1 / 8}
"""Share of a batch that has ended before prompts enter, so that they share a prefill pass."""
LEAST_FILLED = 0.75
"""Prompts are prefilled together where the shortest has this share of the longest's tokens."""

OnSequence = Callable[[int, list[int], list[float]], None]
"""(key of the request, its new tokens, the margin or probability of each)."""


@torch.inference_mode()
def write_batch(
    decoder: Decoder,
    settings: Settings,
    requests: Mapping[int, tuple[list[int], int]],
    batch: int,
    on_sequence: OnSequence,
) -> None:
    """Writes the sequences of some (prompt, draw address), `batch` at a time, one row each a pass.

    Sequences that end give their places to the next prompts, once they are `LEAST_FREE` of the
    batch; the last ones leave a smaller batch.
    `on_sequence` receives each when it ends, with its margins; under the rejection rule with p of
    its tokens.
    """
    prompts = {i: prompt for i, (prompt, _) in requests.items()}
    order = sorted(prompts, key=lambda i: -len(prompts[i]))
    batch = min(batch, len(order))
    cache = RaggedKVCache(decoder, batch, len(prompts[order[0]]) + settings.budget)
    layers = range(len(decoder.layers))
    kind = decoder.device.type
    together = PREFILL_ROWS.get(kind, PREFILL_ROWS["cpu"])
    least = LEAST_FREE.get(kind, 0.0) * batch
    active: list[int] = []
    tokens: dict[int, list[int]] = {i: [] for i in order}
    evidence: dict[int, list[float]] = {i: [] for i in order}
    while order or active:
        free = batch - len(active)
        free = free if free >= least or not active else 0
        admitted, order = order[:free], order[free:]
        for group in groups_of_prompts(admitted, [len(prompts[i]) - 1 for i in admitted], together):
            rows = [prompts[i][:-1] for i in group]
            cache.admit(prefill(decoder, rows, together), [len(row) for row in rows])
        active += admitted
        last = [tokens[i][-1] if tokens[i] else prompts[i][-1] for i in active]
        rotation, mask = cache.step(decoder)
        x = decoder.embed(torch.tensor(last, device=decoder.device))[:, None]
        hidden = decoder.run(x, layers, rotation, mask, cache)  # type: ignore[arg-type]
        addresses = [requests[i][1] for i in active]
        positions = [len(tokens[i]) for i in active]
        logits = decoder.logits(hidden[:, 0])
        picked = pick_tokens(settings.rule, logits, addresses, positions)
        for i, token, value in zip(active, *picked):
            tokens[i].append(token)
            evidence[i].append(value)
        for slot in reversed(range(len(active))):
            i = active[slot]
            if len(tokens[i]) == settings.budget or tokens[i][-1] in settings.end_tokens:
                on_sequence(i, tokens[i], evidence[i])
                cache.drop(slot)
                active[slot] = active[-1]
                active.pop()


def pick_tokens(
    rule: Rule, logits: Tensor, sequence: list[int], position: list[int]
) -> tuple[list[int], list[float]]:
    """The rule's picks from logits `[n, vocab]`, each at its own address, and their margins.

    Equal to what the decode loop picks in rounds without drafts. Under the rejection rule the
    second list holds p of the tokens.
    """
    if rule.sampled:
        p = rule.probs(logits)
        token = sample_rows(p, rule.seed, sequence, position, RESIDUAL)
        drawn = torch.tensor(token, device=p.device)
        return token, p.gather(-1, drawn[:, None])[:, 0].log().exp().tolist()
    scores = logits
    if rule.name == "coupled":
        scores = rule.processed(logits)
        scores += gumbel_at(rule.seed, sequence, position, scores.shape[-1], scores.device)
    chosen = scores.argmax(-1, keepdim=True)
    best = scores.gather(-1, chosen).double()
    second = scores.scatter(-1, chosen, -torch.inf).amax(-1, keepdim=True).double()
    return chosen[:, 0].tolist(), (best - second)[:, 0].tolist()


def groups_of_prompts(prompts: list[int], rows: list[int], most: int) -> Iterator[list[int]]:
    """Prompts, longest first, in groups of at most `most` rows that are prefilled together."""
    start = 0
    for i in range(1, len(prompts) + 1):
        together = i < len(prompts) and (
            rows[i] >= LEAST_FILLED * rows[start] and (i + 1 - start) * rows[start] <= most
        )
        if not together:
            yield prompts[start:i]
            start = i


def prefill(decoder: Decoder, prompts: list[list[int]], most: int) -> KVCache:
    """The KV cache of prompts of any lengths, longest first, padded on the right; in pieces."""
    longest, device = len(prompts[0]), decoder.device
    cache = decoder.cache(batch=len(prompts), capacity=longest)
    padded = np.zeros((len(prompts), longest), np.int64)
    for row, prompt in zip(padded, prompts):
        row[: len(prompt)] = prompt
    token = torch.from_numpy(padded).to(device)
    piece = max(1, most // len(prompts))
    for start in range(0, longest, piece):
        part = token[:, start : start + piece]
        n = part.shape[1]
        rotation = decoder.rotation(torch.arange(start, start + n, device=device))
        mask = torch.ones(n, start + n, dtype=torch.bool, device=device).tril(start)
        decoder.run(decoder.embed(part), range(len(decoder.layers)), rotation, mask, cache, start)
    return cache


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
