"""Sequences that a target writes for its drafters, in shards, and text learned as it is."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from real.files import check_same_settings, read_card, replace_json, replacing
from real.model.checkpoint import end_tokens, load_decoder, load_tokenizer
from real.model.decoder import Decoder
from real.model.stored_weights import made_for, sha256
from real.model.target import Target
from real.processes import ALONE, Processes
from real.progress import Progress, quiet
from real.prompts import PromptFormat
from real.record import Settings
from real.record.sequences import target_sequences
from real.sampling import Rule
from real.train.settings import Training
from real.train.text import WINDOW, PromptSet, documents, text_files
from simspec.output.files import reraised

SHARD = 32
"""Sequences in a shard, a file."""
BATCH = {"cpu": 96, "cuda": 2048}
"""Most sequences written at a time, by type of device."""
CACHE_BYTES = {"cpu": 2 << 30, "cuda": 24 << 30}
"""Most bytes of their KV cache."""
BLOCK = {"cpu": 4 * BATCH["cpu"], "cuda": 8 * BATCH["cuda"]}
"""Sequences of a block: its last ones leave a device half empty."""
EXPECTED = 0.8
"""Share of the shards that sequences of the mean length so far would need, written at once."""
FIRST_ADDRESS = 1 << 21
"""Draw addresses of written sequences begin here, far from those of recordings."""


@dataclass(frozen=True)
class Sequences:
    """Prompts with the target's new tokens after them."""

    token: np.ndarray  # int32 [T]: all sequences, one after the other
    offset: np.ndarray  # int64 [S + 1]: where each begins
    # int64 [S]: prompt tokens of each: its loss mask; only later tokens are learned
    prompt: np.ndarray

    @classmethod
    def of(cls, tokens: Sequence[np.ndarray], prompt: Sequence[int]) -> "Sequences":
        """Of the tokens of each sequence, and how many of them are its prompt."""
        offset = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
        return cls(np.concatenate(tokens), offset, np.array(prompt, np.int64))

    def __len__(self) -> int:
        return len(self.prompt)

    @property
    def new_tokens(self) -> int:
        """Tokens that the target wrote."""
        return len(self.token) - int(self.prompt.sum())

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
class LoadedTarget:
    """A target to train drafters for, loaded in float32, and in another dtype to write with."""

    decoder: Decoder
    writer: Decoder
    tokenizer: Any
    made_for: Mapping[str, str]
    end_tokens: tuple[int, ...]

    @classmethod
    def of(cls, path: str | Path, device: str, dtype: str) -> "LoadedTarget":
        """The checkpoint of this folder or hub name."""
        decoder, tokenizer = load_decoder(path, device=device), load_tokenizer(path)
        wide = getattr(torch, dtype)
        writer = decoder if wide == decoder.dtype else load_decoder(path, wide, device)
        hashes = made_for(path, decoder, tokenizer)
        return cls(decoder, writer, tokenizer, hashes, end_tokens(path, decoder.config.vocab))


@dataclass(frozen=True)
class Writing:
    """How a target continues prompts."""

    target: LoadedTarget  # its writer continues training prompts, its decoder held-out ones
    prompts: PromptSet  # training prompts, continued in turn, and held-out ones
    tokens: int  # new tokens wanted in all
    length: int  # new tokens of a sequence at most
    seed: int = 0  # of the draws


def is_greedy(number: np.ndarray, prompts: int) -> np.ndarray:
    """Whether sequences `number [n]` are greedy: each prompt once in its first two continuations.

    Half of the first pass over the prompts, the other half of the second; later ones are drawn.
    """
    turn, place = number // prompts, number % prompts
    return (turn < 2) & ((turn + place) % 2 == 0)


def write_sequences(
    writing: Writing, work: Path, progress: Progress = quiet, processes: Processes = ALONE
) -> Sequences:
    """The target's continuations of the training prompts, in turn, until `writing.tokens` are new.

    Shards are saved in `<work>/sequences` one by one; existing ones are read. Several `processes`
    share them by blocks, which do not depend on their number. ValueError where they belong to
    another target, other prompts or settings.
    """
    folder = work / "sequences"
    with processes.first_before_others():
        check_same_work(folder, writing)
    shards: list[Sequences] = []
    done, since, began = 0, 0, perf_counter()
    while done < writing.tokens:
        size = BLOCK.get(writing.target.writer.device.type, BLOCK["cpu"]) // SHARD
        blocks = _needed_blocks(len(shards), done, writing, size)
        for i, block in enumerate(blocks):
            if processes.has(i) and not all(_path(folder, shard).exists() for shard in block):
                report = partial(_next_shard, progress, done, writing.tokens)
                since += _write_block(block, writing, folder, report)
        processes.wait()
        for shard in range(blocks[0].start, blocks[-1].stop):
            shards.append(read_shard(_path(folder, shard)))
            done += shards[-1].new_tokens
            rate = f", {since / (perf_counter() - began):,.0f} tokens/s" if since else ""
            note = f"{done:,} tokens{rate}"
            progress("distil", min(done, writing.tokens), writing.tokens, note)
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


def _write_block(block: range, writing: Writing, folder: Path, progress: Progress) -> int:
    """Writes the shards of a block that do not exist, and returns the tokens written."""
    training = writing.prompts.training
    number = np.arange(block.start * SHARD, block.stop * SHARD)
    asked = [training[n % len(training)] for n in number]
    greedy = is_greedy(number, len(training))
    written = _continued(
        writing, writing.target.writer, asked, number, greedy, writing.length, progress
    )
    for i, shard in enumerate(block):
        if not _path(folder, shard).exists():
            save_shard(written.part(i * SHARD, (i + 1) * SHARD), _path(folder, shard))
    return written.new_tokens


def _path(folder: Path, shard: int) -> Path:
    return folder / f"{shard:05d}.safetensors"


def heldout_sequences(writing: Writing, length: int, work: Path) -> Sequences:
    """The target's greedy continuations of the held-out prompts, kept in `<work>/sequences`."""
    path = work / "sequences" / f"heldout-{length}.safetensors"
    if not path.exists():
        prompts = list(writing.prompts.heldout)
        number, greedy = np.arange(len(prompts)), np.ones(len(prompts), bool)
        decoder = writing.target.decoder
        save_shard(_continued(writing, decoder, prompts, number, greedy, length), path)
    return read_shard(path)


def check_same_work(folder: Path, writing: Writing) -> None:
    """ValueError where `folder` holds sequences of another target, other prompts or settings."""
    made = {
        "dtype": str(writing.target.writer.dtype).removeprefix("torch."),
        "target": dict(writing.target.made_for),
        "prompts": writing.prompts.sha256,
        "length": writing.length,
        "seed": writing.seed,
        "end_tokens": list(writing.target.end_tokens),
    }
    path = folder / "made.json"
    if not path.exists():
        replace_json(path, made)
        return
    stored = {"dtype": "float32"} | read_card(path)
    check_same_settings(stored, made, folder, "choose another --work")


def joined(shards: list[Sequences]) -> Sequences:
    """The sequences of all shards."""
    every = [shard.sequence(i) for shard in shards for i in range(len(shard))]
    return Sequences.of(every, np.concatenate([shard.prompt for shard in shards]).tolist())


def save_shard(sequences: Sequences, path: Path) -> None:
    """Writes a shard, atomically."""
    tensors = {name: getattr(sequences, name) for name in ("token", "offset", "prompt")}
    with replacing(path) as temporary:
        save_file(tensors, str(temporary))


def read_shard(path: Path) -> Sequences:
    """The sequences of a shard; ValueError where it is damaged."""
    # safetensors raises its own type
    with reraised(ValueError, f"{path} is damaged", "delete it, and it is made anew", Exception):
        stored = Sequences(**load_file(str(path)))
        size, prompt = np.diff(stored.offset), stored.prompt
        if stored.offset[0] or stored.offset[-1] != len(stored.token) or len(size) != len(prompt):
            raise ValueError("its counts do not agree")
        if (prompt < 1).any() or (size <= prompt).any() or (stored.token < 0).any():
            raise ValueError("a sequence has no prompt or no new tokens")
    return stored


def _next_shard(
    progress: Progress, tokens: int, wanted: int, label: str, done: int, total: int, note: str = ""
) -> None:
    progress("distil", tokens, wanted, f"next shard: {done} of {total} sequences")


def _continued(
    writing: Writing,
    target: Decoder,
    prompts: list[list[int]],
    number: np.ndarray,
    greedy: np.ndarray,
    length: int,
    progress: Progress = quiet,
) -> Sequences:
    """The prompts continued; those that are not `greedy` are drawn at temperature 1.

    A draw depends on the seed, the sequence's number and the token's place, not on the batch.
    """
    engine, ends, kind = Target(target), writing.target.end_tokens, target.device.type
    c, new = target.config, dict[int, np.ndarray]()
    cached = 2 * c.layers * c.kv_heads * c.head_dim * target.embed.weight.element_size()
    for chosen, rule in ((greedy, Rule()), (~greedy, Rule("rejection", 1.0, writing.seed))):
        left = sorted(np.flatnonzero(chosen).tolist(), key=lambda i: -len(prompts[i]))
        while left:
            # the same in any dtype: rounding may decide what is learned from
            held = cached * (len(prompts[left[0]]) + length)
            batch = max(1, min(BATCH[kind], CACHE_BYTES[kind] // held))
            # more of the shorter prompts fit a GPU's next batch
            rows = left[:batch] if kind == "cuda" else left
            left, asked = left[len(rows) :], [prompts[i] for i in rows]
            addresses = [FIRST_ADDRESS + int(number[i]) for i in rows]
            settings, proven = Settings(1, length, rule, ends, (), (), batch), kind != "cuda"
            written = target_sequences(engine, settings, asked, addresses, progress, proven)
            new |= {i: tokens for i, (tokens, _) in zip(rows, written)}
    parts = [np.concatenate((np.array(p, np.int32), new[i])) for i, p in enumerate(prompts)]
    return Sequences.of(parts, [len(p) for p in prompts])


LONGEST = 512
"""Tokens of a sequence; longer documents are cut into several."""
TURN = re.compile(r"(?:^|\n\n)(User|Assistant): ")


def conversation(text: str) -> tuple[list[str], list[str]] | None:
    """(user turns, as many answers) of `User: a\\n\\nAssistant: b ...`; None for any other text."""
    first, *parts = TURN.split(text)
    names, turns = parts[::2], [part.strip() for part in parts[1::2]]
    alternate = names == ["User", "Assistant"] * (len(names) // 2)
    if first.strip() or not names or not alternate or not all(turns):
        return None
    return turns[::2], turns[1::2]


def read_text(form: PromptFormat, text: str) -> list[int]:
    """Tokens of a document; of a conversation in the chat template, where there is one."""
    chat = conversation(text) if form.template is not None else None
    if chat is None:
        return form.text(text)
    users, answers = chat
    prompt = form.turns("dialogue", users, answers[:-1])
    return prompt + form.tokenizer.encode(answers[-1], add_special_tokens=False).ids


def learned_windows(form: PromptFormat, paths: Sequence[str]) -> Iterator[list[int]]:
    """Up to LONGEST tokens each, side by side; ends of under WINDOW are left out."""
    for document in documents(paths):
        ids = read_text(form, document["text"])
        for start in range(0, len(ids), LONGEST):
            if len(part := ids[start : start + LONGEST]) >= WINDOW:
                yield part


def learned_text(
    settings: Training, form: PromptFormat, progress: Progress = quiet
) -> tuple[list[Sequences], dict]:
    """The first sequences of the text that hold `learn_text` tokens, and their source for cards.

    All tokens but a sequence's first are learned: the target reads them and writes none. EAGLE's
    Table 6 (arXiv 2401.15077): fixed text in place of the target's own costs 3% of the speedup.
    Kept in the work folder; ValueError where that holds others, or the files hold fewer tokens.
    """
    if not settings.learn_text:
        return [], {}
    folder, tokens = settings.work_folder / "text", settings.learn_text
    made = {
        "files": {path.name: sha256(path) for path in text_files(settings.text)},
        "tokens": tokens,
        "chat": form.metadata(),
    }
    file, card = folder / "text.safetensors", folder / "text.json"
    if card.exists() and file.exists():
        check_same_settings(read_card(card), made, folder)
        return [read_shard(file)], made
    kept, held = [], 0
    for part in learned_windows(form, settings.text):
        kept.append(np.array(part, np.int32))
        held += len(part)
        if len(kept) % 100 == 0:
            progress("text", min(held, tokens), tokens, f"{len(kept)} sequences")
        if held >= tokens:
            break
    if held < tokens:
        raise ValueError(
            f"the text holds {held:,} tokens in sequences of {WINDOW} and more, and {tokens:,} are "
            "to be learned: bring more text, or lower --learn-text"
        )
    found = Sequences.of(kept, [1] * len(kept))
    folder.mkdir(parents=True, exist_ok=True)
    save_shard(found, file)
    replace_json(card, made)
    progress("text", tokens, tokens, f"{len(kept)} sequences")
    return [found], made
