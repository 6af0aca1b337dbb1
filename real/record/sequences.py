"""The target's sequences after prompts, and a file of them that several recordings share."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from glob import escape
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from real.decode.loop import Round, decode
from real.decode.plans import chain_plan
from real.draft import Silent
from real.files import replacing
from real.model.decoder import Decoder, KVCache
from real.model.passes import EAGER, RaggedKVCache
from real.model.target import Target
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.prompts import Prompt
from real.record.settings import MAX_CODE, RecordError, Settings
from real.sampling import Rule, gumbel, inverse_cdf, margin
from simspec import CostModel, TraceMeta
from simspec.numerics.rng import RESIDUAL, uniform_rows
from simspec.output.files import reraised
from simspec.policies.fixed import fixed
from simspec.trace.quantization import encode_margin

PREFILL_ROWS = {"cpu": 2048, "cuda": 16384}
"""Most rows of a prefill pass by type of device, padding included: what bounds its memory."""
LEAST_FREE = {"cpu": 0.0, "cuda": 1 / 8}
"""Share of a batch that has ended before prompts enter, so that they share a prefill pass."""
CHECKED = {"cpu": 1, "cuda": 16}
"""Passes between two looks at the tokens of a batch that need not be proven: an H200 that looked at
each wrote 6,400 tokens a second."""
LEAST_FILLED = 0.75
"""Prompts are prefilled together where the shortest has this share of the longest's tokens."""

OnSequence = Callable[[int, list[int], list[float]], None]
"""(key of the request, its new tokens, the margin or probability of each)."""


@torch.inference_mode()
def write_batch(
    decoder: Decoder, settings: Settings, requests: Mapping[int, tuple[list[int], int]],
    batch: int, on_sequence: OnSequence, proven: bool = True
) -> None:  # fmt: skip
    """Writes the sequences of some (prompt, draw address), `batch` at a time, one row each a pass.

    Sequences that end give their places to the next prompts, once they are `LEAST_FREE` of the
    batch; the last ones leave a smaller batch.
    `on_sequence` receives each when it ends, with its margins; under the rejection rule with p of
    its tokens. Where tokens need not be `proven` by these, a GPU is asked for them less often.
    """
    prompts = {i: prompt for i, (prompt, _) in requests.items()}
    order = sorted(prompts, key=lambda i: -len(prompts[i]))
    batch = min(batch, len(order))
    cache = RaggedKVCache(decoder, batch, len(prompts[order[0]]) + settings.budget)
    layers = range(len(decoder.layers))
    rule, device, kind = settings.rule, decoder.device, decoder.device.type
    together = PREFILL_ROWS.get(kind, PREFILL_ROWS["cpu"])
    least = LEAST_FREE.get(kind, 0.0) * batch
    checked = 1 if proven else CHECKED.get(kind, 1)
    draws = u = torch.zeros(0)
    if rule.sampled:
        addresses = np.array([address for _, address in requests.values()])
        drawn = uniform_rows(rule.seed, addresses, settings.budget, RESIDUAL)
        draws = torch.from_numpy(drawn).to(device)
    place = {i: n for n, i in enumerate(requests)}  # its row of the draws
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
        token, written = torch.tensor(last, device=device), [len(tokens[i]) for i in active]
        row, position = torch.tensor([[place[i] for i in active], written], device=device)
        sequence, picked = [requests[i][1] for i in active], []
        for step in range(min(checked, settings.budget - max(written))):
            rotation, mask = cache.step(decoder)
            x = decoder.embed(token)[:, None]
            hidden = decoder.run(x, layers, rotation, mask, cache)  # type: ignore[arg-type]
            if rule.sampled:
                u = draws[row, position + step]
            places, logits = [n + step for n in written], decoder.logits(hidden[:, 0])
            picked.append(pick_tokens(rule, logits, sequence, places, u, proven))
            token = picked[-1][0]
        new, values = (torch.stack(column, 1).tolist() for column in zip(*picked))
        for slot in reversed(range(len(active))):
            i, ends = active[slot], [token in settings.end_tokens for token in new[slot]]
            stop = ends.index(True) + 1 if any(ends) else len(ends)
            tokens[i] += new[slot][:stop]
            evidence[i] += values[slot][:stop]
            if any(ends) or len(tokens[i]) == settings.budget:
                on_sequence(i, tokens[i], evidence[i])
                cache.drop(slot)
                active[slot] = active[-1]
                active.pop()


def pick_tokens(
    rule: Rule, logits: Tensor, sequence: list[int], position: list[int], u: Tensor, proven: bool
) -> tuple[Tensor, Tensor]:
    """The rule's picks int64 `[n]` from logits `[n, vocab]`, each at its own address, and margins.

    Equal to what the decode loop picks in rounds without drafts. Under the rejection rule tokens
    are drawn by `u [n]`, and the second tensor holds their p. Margins that prove nothing are 0.
    """
    if rule.sampled:
        p = rule.probs(logits)
        token = inverse_cdf(p, u)
        return token, p.gather(-1, token[:, None])[:, 0].log().exp()
    scores = logits
    if rule.name == "coupled":
        scores = rule.processed(logits)
        scores += gumbel(rule.seed, sequence, position, scores.shape[-1], scores.device)
    chosen = scores.argmax(-1, keepdim=True)
    if not proven:
        return chosen[:, 0], torch.zeros_like(chosen[:, 0])
    best = scores.gather(-1, chosen).double()
    second = scores.scatter(-1, chosen, -torch.inf).amax(-1, keepdim=True).double()
    return chosen[:, 0], (best - second)[:, 0]


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
    token = pad_sequence([torch.tensor(prompt, dtype=torch.int64) for prompt in prompts], True)
    piece = max(1, most // len(prompts))
    for start in range(0, longest, piece):
        part = token[:, start : start + piece].to(device)
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
    target: Target, settings: Settings, prompts: Sequence[list[int]], addresses: Sequence[int],
    progress: Progress = quiet, proven: bool = True
) -> list[TargetSequence]:  # fmt: skip
    """The target's sequences after all `prompts`, whose draw addresses are `addresses`.

    `settings.batch` are written at a time; 1: each through the decode loop, on the target's engine.
    Equal but for rounding, which may decide near-ties otherwise in float32. A batch that does not
    fit into the GPU's memory is halved. Tokens that need not be `proven` come without evidence,
    and sooner from a GPU. RecordError for a batch under the strict engine; SequenceError for scores
    that are not finite.
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

    if settings.batch > 1 and target.passes.smallest:
        raise RecordError(
            f"batch {settings.batch} under the strict engine, whose passes have one shape; "
            "use --batch 1, or --engine eager"
        )
    requests = dict(enumerate(zip(prompts, addresses)))
    batch = settings.batch
    while batch > 1 and len(written) < len(requests):
        left = {i: request for i, request in requests.items() if i not in written}
        if not _fits(partial(write_batch, target.decoder, settings, left, batch, encode, proven)):
            batch //= 2
    for i, request in requests.items():
        if i not in written:
            try:
                finish(i, target_sequence(target, settings, *request))
            except ValueError as error:
                raise SequenceError(addresses[i], error) from error
    return [written[i] for i in range(len(prompts))]


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
        target, Silent(), chain_plan(fixed(0), settings.K, 0, cost), settings.rule, prompt,
        settings.budget, settings.end_tokens, sequence, listen
    )  # fmt: skip
    return result.token, _encoded(evidence, settings)


def _encoded(evidence: list[float], settings: Settings) -> np.ndarray:
    values = np.array(evidence)
    return values if settings.rule.sampled else encode_margin(values)


MADE_WITH = (
    "target", "tokenizer_sha256", "rule", "temperature", "top_k", "top_p", "seed", "device",
    "dtype", "versions"
)  # fmt: skip
"""Fields of the metadata that the sequences depend on."""


class SequenceCache:
    """The sequences in the JSON file `path`, by draw address and prompt.

    They hold for one target, rule, budget, set of end tokens, device, dtype, versions and kind of
    passes. RecordError for a file of others, and for a damaged file.

    Of several processes, each writes a separate file next to `path` and reads those of all;
    `merge` makes them one.
    """

    def __init__(
        self, path: str | Path, settings: Settings, meta: TraceMeta, target: Target,
        processes: Processes = ALONE
    ):  # fmt: skip
        self.sampled = settings.rule.sampled
        self.path, self.budget, self.end_tokens = Path(path), settings.budget, settings.end_tokens
        name = self.path.name
        self.own = self.path if processes.first else self.path.with_name(f"{name}.{processes.rank}")
        self.vocab = target.decoder.config.vocab
        made_with = {name: getattr(meta, name) for name in MADE_WITH}
        made_with |= {"budget": settings.budget, "end_tokens": settings.end_tokens}
        passes = target.passes
        made_with["passes"] = [type(passes).__name__, *passes.widths, passes.smallest]
        if settings.batch > 1:
            made_with["batch"] = settings.batch
        self.made_with = json.loads(json.dumps(made_with))
        self.sequences: dict[str, list[list[int]]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Reads what all processes have saved."""
        for path in (self.path, *self._others()):
            if path.exists():
                self.sequences |= self._read(path)
        self.saved = len(self.sequences)

    def merge(self) -> None:
        """Makes one file of those of all processes, when none of them writes any more."""
        others = self._others()
        if others:
            self.saved = 0
            self.refresh()
            self._write(self.path)
        for path in others:
            path.unlink()

    def _others(self) -> list[Path]:
        """The files of other processes than the first, of this job or of an interrupted one."""
        files = self.path.parent.glob(f"{escape(self.path.name)}.*")
        return sorted(path for path in files if path.suffix[1:].isdecimal())

    def find(self, sequence: int, prompt: list[int]) -> TargetSequence | None:
        """The sequence at that address after that prompt, if it is cached."""
        cached = self.sequences.get(_key(sequence, prompt))
        if cached is None:
            return None
        evidence = np.float64 if self.sampled else np.uint8
        return np.array(cached[0], np.int32), np.array(cached[1], evidence)

    def add(self, sequence: int, prompt: list[int], written: TargetSequence) -> None:
        """Caches a sequence; `save` writes it."""
        self.sequences[_key(sequence, prompt)] = [column.tolist() for column in written]

    def save(self) -> None:
        """Writes the file atomically, if a sequence was added."""
        if len(self.sequences) > self.saved:
            self._write(self.own)

    def _write(self, path: Path) -> None:
        content = {
            "made_with": self.made_with,
            "sha256": checksum(self.sequences),
            "texts": dict(sorted(self.sequences.items(), key=lambda item: _address(item[0]))),
        }
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
        self.saved = len(self.sequences)

    def _read(self, path: Path) -> dict[str, list[list[int]]]:
        remedy = "delete it to write them again"
        with reraised(RecordError, f"{path} holds no sequences", remedy):
            content = json.loads(path.read_text(encoding="utf-8"))
            sequences = dict(content["texts"])
            made_with = dict(content["made_with"])
            intact = content["sha256"] == checksum(sequences)
            if made_with == self.made_with:
                intact = intact and all(self._is_valid(s) for s in sequences.values())
            else:
                intact = True
        keys = {*made_with, *self.made_with}
        differing = sorted(k for k in keys if made_with.get(k) != self.made_with.get(k))
        if differing:
            raise RecordError(
                f"{path} holds sequences made with another {differing[0]}; "
                "name another file for these, or delete it"
            )
        if not intact:
            raise RecordError(
                f"{path} is damaged: its sequences are not those that were written; "
                "delete it to write them again"
            )
        return sequences

    def _is_valid(self, sequence) -> bool:
        token, evidence = sequence
        valid = _integers(token, self.vocab) and (
            _probabilities(evidence) if self.sampled else _integers(evidence, MAX_CODE + 1)
        )
        return (
            valid
            and 1 <= len(token) == len(evidence) <= self.budget
            and not set(token[:-1]) & set(self.end_tokens)
        )


def _integers(column, limit: int) -> bool:
    return isinstance(column, list) and all(type(x) is int and 0 <= x < limit for x in column)


def _probabilities(column) -> bool:
    return isinstance(column, list) and all(type(x) is float and 0 < x <= 1.000001 for x in column)


def checksum(sequences: dict) -> str:
    """SHA-256 of the cached sequences, in hexadecimal."""
    return hashlib.sha256(json.dumps(sequences, sort_keys=True).encode()).hexdigest()


def _key(sequence: int, prompt: list[int]) -> str:
    return f"{sequence}:{hashlib.sha256(json.dumps(prompt).encode()).hexdigest()[:32]}"


def _address(key: str) -> tuple[int, str]:
    """The order of keys in a file: by draw address, whoever wrote first."""
    sequence, prompt = key.split(":")
    return int(sequence), prompt


BATCHES_PER_BLOCK = 4
"""Ended sequences are replaced within a block, so only its last batch is partly empty."""


def blocks_of(settings: Settings, shard_size: int, sequences: int) -> list[range]:
    """The sequences that are written together: whole shards, some batches long.

    Blocks depend neither on the number of processes nor on where a recording was interrupted, so
    nor does the rounding.
    """
    return groups_of(-(-BATCHES_PER_BLOCK * settings.batch // shard_size) * shard_size, sequences)


def groups_of(size: int, sequences: int) -> list[range]:
    """The sequences in groups of `size`; the last holds the remainder."""
    return [range(start, min(start + size, sequences)) for start in range(0, sequences, size)]


def write_block(
    target: Target, settings: Settings, prompts: Sequence[Prompt], block: range,
    cache: SequenceCache, progress: Progress = quiet
) -> None:  # fmt: skip
    """Writes and saves the sequences of a block of the prompts that are not in the cache.

    RecordError naming the prompt of a sequence that cannot be written.
    """

    def overall(label: str, done: int, total: int, note: str = "") -> None:
        progress(label, block.stop - total + done, len(prompts), note)

    missing = [i for i in block if cache.find(i, prompts[i].token) is None]
    if not missing:
        return
    tokens = [prompts[i].token for i in missing]
    try:
        written = target_sequences(target, settings, tokens, missing, overall)
    except SequenceError as error:
        raise RecordError(
            f"sequence {error.address} (prompt {prompts[error.address].id!r}) cannot be recorded: "
            f"{error.reason}"
        ) from error
    for i, sequence in zip(missing, written):
        cache.add(i, prompts[i].token, sequence)
    cache.save()
