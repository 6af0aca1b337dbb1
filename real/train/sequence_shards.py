"""Sequences that a target wrote, in shards that are saved one by one."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
from safetensors.numpy import load_file, save_file

from real.files import read_card, replace_json, replacing
from real.model.decoder import Decoder
from real.model.target import Target
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.record import Settings
from real.record.sequences import target_sequences
from real.sampling import Rule
from real.train.batch_writing import BATCH as BATCH_OF_GPU
from real.train.batch_writing import write_together
from real.train.prompt_set import PromptSet

SHARD = 32
"""Sequences in a shard, a file."""
BATCH = 96
"""Sequences written at a time on a CPU, fewer where their KV cache would be larger."""
CACHE_BYTES = 2 << 30
"""Most bytes of that cache."""
BLOCK = {"cpu": 4 * BATCH, "cuda": 8 * BATCH_OF_GPU}
"""Sequences of a block by type of device: its last ones leave a device half empty."""
EXPECTED = 0.8
"""Share of the shards that sequences of the mean length so far would need, written at once."""
FIRST_ADDRESS = 1 << 21
"""Draw addresses of written sequences begin here, far from those of recordings."""


@dataclass(frozen=True)
class Sequences:
    """Prompts with the target's new tokens after them.

    | field | meaning |
    | --- | --- |
    | token int32 `[T]` | all sequences, one after the other |
    | offset int64 `[S + 1]` | where each begins |
    | prompt int64 `[S]` | prompt tokens of each: its loss mask; only later tokens are learned |
    """

    token: np.ndarray
    offset: np.ndarray
    prompt: np.ndarray

    def __len__(self) -> int:
        return len(self.prompt)

    @property
    def new_tokens(self) -> int:
        """Tokens that the target wrote."""
        return len(self.token) - int(self.prompt.sum())

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return int(np.diff(self.offset).max())

    def sequence(self, i: int) -> np.ndarray:
        """All tokens of sequence `i`."""
        return self.token[self.offset[i] : self.offset[i + 1]]

    def pair(self, i: int) -> tuple[list[int], np.ndarray]:
        """The prompt of sequence `i`, and its new tokens int64."""
        whole = self.sequence(i).astype(np.int64)
        return whole[: self.prompt[i]].tolist(), whole[self.prompt[i] :]

    def part(self, start: int, stop: int) -> "Sequences":
        """Sequences `start` .. `stop` - 1."""
        offset = self.offset[start : stop + 1]
        token = self.token[offset[0] : offset[-1]]
        return Sequences(token, offset - offset[0], self.prompt[start:stop])

    def learned(self) -> np.ndarray:
        """The new tokens of all sequences, int32."""
        place = np.arange(len(self.token)) - np.repeat(self.offset[:-1], np.diff(self.offset))
        return self.token[place >= np.repeat(self.prompt, np.diff(self.offset))]


@dataclass(frozen=True)
class Writing:
    """How a target writes sequences.

    | field | meaning |
    | --- | --- |
    | tokens | new tokens wanted in all |
    | length | new tokens of a sequence at most |
    | end_tokens | end a sequence; they are learned too |
    | seed | of the draws |
    | seconds | a call that writes ends after them, between blocks; 0: never |
    """

    tokens: int
    length: int
    end_tokens: tuple[int, ...]
    seed: int = 0
    seconds: float = 0.0


def is_greedy(number: np.ndarray, prompts: int) -> np.ndarray:
    """Whether sequences `number [n]` are greedy: each prompt once in its first two continuations.

    Half of the first pass over the prompts, the other half of the second; later ones are drawn.
    """
    turn, place = number // prompts, number % prompts
    return (turn < 2) & ((turn + place) % 2 == 0)


def write_sequences(
    writing: Writing,
    prompts: PromptSet,
    target: Decoder,
    made_for: Mapping[str, str],
    work: Path,
    progress: Progress = quiet,
    processes: Processes = ALONE,
) -> Sequences:
    """The target's continuations of the training prompts, in turn, until `writing.tokens` are new.

    Shards are saved in `<work>/sequences` one by one; existing ones are read. Several `processes`
    share them by blocks, which do not depend on their number. ValueError where they belong to
    another target, other prompts or settings.
    """
    folder = work / "sequences"
    with processes.first_before_others():
        dtype = str(target.dtype).removeprefix("torch.")
        check_same_work(folder, writing, prompts, made_for, dtype)
    shards: list[Sequences] = []
    done, since, began = 0, 0, perf_counter()
    late = False
    while done < writing.tokens and not late:
        size = BLOCK.get(target.device.type, BLOCK["cpu"]) // SHARD
        blocks = _needed_blocks(len(shards), done, writing, size)
        if writing.seconds:
            blocks = blocks[:1]  # the time is asked for after each
        for i, block in enumerate(blocks):
            if processes.has(i) and not all(_path(folder, shard).exists() for shard in block):
                report = _within(progress, done, writing.tokens)
                since += _write_block(block, writing, prompts, target, folder, report)
        processes.wait()
        for shard in range(blocks[0].start, blocks[-1].stop):
            shards.append(read_shard(_path(folder, shard)))
            done += shards[-1].new_tokens
            rate = f", {since / (perf_counter() - began):,.0f} tokens/s" if since else ""
            note = f"{done:,} tokens{rate}"
            progress("distil", min(done, writing.tokens), writing.tokens, note)
        late = bool(writing.seconds and since) and perf_counter() - began > writing.seconds
    return joined(shards)


def _needed_blocks(first: int, done: int, writing: Writing, size: int) -> list[range]:
    """The shards from `first` on that are needed, by the mean length so far, in blocks of `size`.

    Batches of both kinds are full in a block. Only the last blocks of all are smaller.
    """
    left = writing.tokens - done
    least = -(-left // (SHARD * writing.length))
    if done:
        least = max(least, int(EXPECTED * left * first / done))
    end = first + (least - least % size or least)
    return [range(start, min(start + size, end)) for start in range(first, end, size)]


def _write_block(
    block: range,
    writing: Writing,
    prompts: PromptSet,
    target: Decoder,
    folder: Path,
    progress: Progress,
) -> int:
    """Writes the shards of a block that do not exist, and returns the tokens written."""
    training = prompts.training
    number = np.arange(block.start * SHARD, block.stop * SHARD)
    asked = [training[n % len(training)] for n in number]
    greedy = is_greedy(number, len(training))
    written = _continued(target, asked, writing, number, greedy, progress)
    for i, shard in enumerate(block):
        if not _path(folder, shard).exists():
            save_shard(written.part(i * SHARD, (i + 1) * SHARD), _path(folder, shard))
    return written.new_tokens


def _path(folder: Path, shard: int) -> Path:
    return folder / f"{shard:05d}.safetensors"


def _batch(target: Decoder, longest: int) -> int:
    """Sequences of up to `longest` tokens written at a time, in any dtype.

    Rounding may decide what is learned from.
    """
    c = target.config
    row = 2 * c.layers * c.kv_heads * c.head_dim * target.embed.weight.element_size()
    return max(1, min(BATCH, CACHE_BYTES // (row * longest)))


def heldout_sequences(
    writing: Writing, prompts: PromptSet, target: Decoder, work: Path
) -> Sequences:
    """The target's greedy continuations of the held-out prompts, kept in `<work>/sequences`."""
    path = work / "sequences" / f"heldout-{writing.length}.safetensors"
    if not path.exists():
        number = np.arange(len(prompts.heldout))
        greedy = np.ones(len(number), bool)
        save_shard(_continued(target, list(prompts.heldout), writing, number, greedy), path)
    return read_shard(path)


def check_same_work(
    folder: Path,
    writing: Writing,
    prompts: PromptSet,
    made_for: Mapping[str, str],
    dtype: str = "float32",
) -> None:
    """ValueError where `folder` holds sequences of another target, other prompts or settings."""
    made = {
        "dtype": dtype,
        "target": dict(made_for),
        "prompts": prompts.sha256,
        "length": writing.length,
        "seed": writing.seed,
        "end_tokens": list(writing.end_tokens),
    }
    path = folder / "made.json"
    if not path.exists():
        replace_json(path, made)
        return
    stored = {"dtype": "float32"} | read_card(path)
    different = [key for key, value in made.items() if stored.get(key) != value]
    if different:
        raise ValueError(
            f"{folder} holds sequences made with another {different[0]}; choose another --work"
        )


def joined(shards: list[Sequences]) -> Sequences:
    """The sequences of all shards."""
    lengths = np.concatenate([np.diff(shard.offset) for shard in shards])
    return Sequences(
        np.concatenate([shard.token for shard in shards]),
        np.concatenate(([0], np.cumsum(lengths))),
        np.concatenate([shard.prompt for shard in shards]),
    )


def save_shard(sequences: Sequences, path: Path) -> None:
    """Writes a shard, atomically."""
    tensors = {name: getattr(sequences, name) for name in ("token", "offset", "prompt")}
    with replacing(path) as temporary:
        save_file(tensors, str(temporary))


def read_shard(path: Path) -> Sequences:
    """The sequences of a shard; ValueError where it is damaged."""
    try:
        stored = Sequences(**load_file(str(path)))
        size, prompt = np.diff(stored.offset), stored.prompt
        if stored.offset[0] or stored.offset[-1] != len(stored.token) or len(size) != len(prompt):
            raise ValueError("its counts do not agree")
        if (prompt < 1).any() or (size <= prompt).any() or (stored.token < 0).any():
            raise ValueError("a sequence has no prompt or no new tokens")
    except Exception as error:  # safetensors raises its own type
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} is damaged ({reason}); delete it, and it is made anew") from error
    return stored


def _within(progress: Progress, tokens: int, wanted: int) -> Progress:
    """Reports sequences of a shard as a note."""

    def report(label: str, done: int, total: int, note: str = "") -> None:
        progress("distil", tokens, wanted, f"next shard: {done} of {total} sequences")

    return report


def _continued(
    target: Decoder,
    prompts: list[list[int]],
    writing: Writing,
    number: np.ndarray,
    greedy: np.ndarray,
    progress: Progress = quiet,
) -> Sequences:
    """The prompts continued; those that are not `greedy` are drawn at temperature 1.

    A draw depends on the seed, the sequence's number and the token's place, not on the batch.
    """
    engine = Target(target)
    new: dict[int, np.ndarray] = {}
    for chosen, rule in ((greedy, Rule()), (~greedy, Rule("rejection", 1.0, writing.seed))):
        rows = np.flatnonzero(chosen).tolist()
        addresses = [FIRST_ADDRESS + int(number[i]) for i in rows]
        asked = [prompts[i] for i in rows]
        if target.device.type == "cuda":
            report = partial(progress, "writing", total=len(rows))
            ends = writing.end_tokens
            many = write_together(target, rule, asked, addresses, writing.length, ends, report)
            new |= dict(zip(rows, many))
            continue
        batch = _batch(target, max(map(len, asked), default=1) + writing.length)
        settings = Settings(1, writing.length, rule, writing.end_tokens, (), (), batch)
        written = target_sequences(engine, settings, asked, addresses, progress)
        new |= {i: tokens for i, (tokens, _) in zip(rows, written)}
    parts = [np.concatenate((np.array(p, np.int32), new[i])) for i, p in enumerate(prompts)]
    offset = np.concatenate(([0], np.cumsum([len(part) for part in parts])))
    prompt = np.array([len(p) for p in prompts], np.int64)
    return Sequences(np.concatenate(parts), offset.astype(np.int64), prompt)
