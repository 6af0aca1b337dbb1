"""Emitted runs: the sequences that an engine wrote, how it made them, and their JSON lines file."""

import json
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from real.decode.loop import DecodeResult
from real.files import replacing
from real.pair import Pair
from real.prompts import prompts_of
from real.provenance import device_name
from real.sampling import Rule
from simspec import Trace
from simspec.numerics.rng import check_seed
from simspec.output.files import (
    check_keys,
    convert_fields,
    converted,
    parse_json,
    read_lines,
    reraised,
)

TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]
Count = Annotated[int, Meta(ge=0)]
ROUND = "position", "computed", "drafted", "accepted"
Tokens = Annotated[tuple[TokenId, ...], Meta(min_length=1)]
T = TypeVar("T")


@dataclass(frozen=True)
class RunHeader:
    """How a run was made; names are '' where they are unknown, a greedy run's temperature is 1.

    ValueError for values of other types or ranges.
    """

    rule: str
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    dtype: Annotated[str, Meta(pattern=r"\A(float64|float32|bfloat16)\Z")] = "float32"
    device: str = ""
    target: str = ""
    drafter: str = ""
    policy: str = ""
    end_tokens: tuple[TokenId, ...] = ()

    def __post_init__(self) -> None:
        convert_fields(self, "header")
        check_seed(self.seed)
        _ = self.sampling_rule  # which checks its parameters

    @property
    def sampling_rule(self) -> Rule:
        """The rule and its parameters."""
        return Rule(self.rule, self.temperature, self.seed, self.top_k, self.top_p)


@dataclass(frozen=True)
class EmittedSequence:
    """One emitted sequence: token ids, the new ones with their end token.

    sequence: address of its random draws. rounds: (position, computed, drafted, accepted); ()
    where they are unknown. ValueError for rounds that do not follow each other, accept more than
    they drafted, or commit another number of tokens.
    """

    prompt: Tokens
    token: Tokens
    sequence: Annotated[int, Meta(ge=0, lt=1 << 32)]
    rounds: tuple[tuple[Count, Count, Count, Count], ...] = ()

    def __post_init__(self) -> None:
        convert_fields(self, "sequence")
        end, left = 0, 0
        for i, (position, _, drafted, accepted) in enumerate(self.rounds):
            if position != end:
                raise ValueError(
                    f"rounds[{i}] begins at {position}; expected {end}, the end of the round before"
                )
            if accepted > drafted:
                raise ValueError(f"rounds[{i}] accepts {accepted} of {drafted} drafted tokens")
            end, left = position + accepted + 1, len(self.token) - position - accepted
        # 0: an accepted end token, with no bonus token after it
        if self.rounds and left not in (0, 1):
            raise ValueError(f"the rounds commit {end} tokens, the sequence has {len(self.token)}")


@dataclass(frozen=True)
class EmittedRun:
    """A run: its header and its sequences.

    ValueError for no sequence, or for tokens after an end token.
    """

    header: RunHeader
    sequences: tuple[EmittedSequence, ...]

    def __post_init__(self):
        if not self.sequences:
            raise ValueError("the run holds no sequence; expected at least one")
        for i, sequence in enumerate(self.sequences):
            check_end_tokens(sequence, self.header.end_tokens, f"sequence {i}: ")

    def check_vocabulary(self, vocab: int) -> None:
        """ValueError for a token outside a vocabulary of `vocab` tokens."""
        for i, sequence in enumerate(self.sequences):
            if (largest := max(*sequence.prompt, *sequence.token)) >= vocab:
                raise ValueError(
                    f"sequence {i} holds token {largest}, the target's vocabulary is "
                    f"0..{vocab - 1}; name the target of the run"
                )


def check_end_tokens(
    sequence: EmittedSequence, end_tokens: Sequence[int], prefix: str = ""
) -> None:
    """ValueError for an end token before the sequence's end, or a last round that does not fit."""
    token, rounds = sequence.token, sequence.rounds
    early = [i for i, t in enumerate(token[:-1]) if t in end_tokens]
    if early:
        raise ValueError(
            f"{prefix}token[{early[0]}] = {token[early[0]]} ends a sequence, "
            f"but {len(token) - 1 - early[0]} more follow"
        )
    if rounds and rounds[-1][0] + rounds[-1][3] == len(token) and token[-1] not in end_tokens:
        raise ValueError(
            f"{prefix}the last round has no bonus token, "
            "though the sequence does not end with an end token"
        )


def run_header(rule: Rule, pair: Pair, policy: str, end_tokens: Sequence[int]) -> RunHeader:
    """The header of a run of `pair` on this machine."""
    decoder = pair.target.decoder
    return RunHeader(
        rule=rule.name, temperature=rule.temperature, top_k=rule.top_k, top_p=rule.top_p,
        seed=rule.seed, dtype=str(decoder.dtype).removeprefix("torch."),
        device=device_name(decoder.device), target=pair.name, drafter=pair.drafter.name,
        policy=policy, end_tokens=tuple(end_tokens)
    )  # fmt: skip


def emitted_sequences(trace: Trace, results: Sequence[DecodeResult]) -> tuple[EmittedSequence, ...]:
    """The sequences, with their rounds, of runs on all prompts of a trace."""
    return tuple(
        EmittedSequence(
            tuple(prompt),
            result.token.tolist(),
            address,
            tuple(zip(*(getattr(result, name).tolist() for name in ROUND), strict=True)),
        )
        for prompt, address, result in zip(prompts_of(trace), trace.sequence.tolist(), results)
    )


def recorded_run(trace: Trace) -> EmittedRun:
    """A recording as a run without rounds; ValueError for a synthetic one."""
    meta = trace.meta
    header = RunHeader(
        rule=meta.rule, temperature=meta.temperature or 1.0, top_k=getattr(meta, "top_k", 0),
        top_p=getattr(meta, "top_p", 1.0), seed=meta.seed, dtype=meta.dtype, device=meta.device,
        target=meta.target, drafter=meta.drafter, end_tokens=meta.end_tokens
    )  # fmt: skip
    sequences = (
        EmittedSequence(tuple(prompt), trace.token[start:stop].tolist(), address)
        for prompt, start, stop, address in zip(
            prompts_of(trace), trace.offset, trace.offset[1:], trace.sequence.tolist()
        )
    )
    return EmittedRun(header, tuple(sequences))


FILE_KIND = "run"
LONGEST_LINE, MOST_BYTES = 1 << 26, 1 << 34
"""Bytes of a line, which is one sequence, and of a file."""


def save_run(path: Path, header: RunHeader, sequences: Sequence[EmittedSequence]) -> None:
    """Writes a run atomically: one line for the header, then one for each sequence."""
    run = EmittedRun(header, tuple(sequences))
    lines = {"simspec": FILE_KIND, **asdict(run.header)}, *map(asdict, run.sequences)
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line) + "\n")


def load_run(path: Path) -> EmittedRun:
    """Reads a run that `save_run` or another engine wrote.

    | line | required keys | optional keys |
    | --- | --- | --- |
    | first | "simspec": "run", "rule" | the other fields of `RunHeader` |
    | others | "prompt", "token" | "sequence" (default: 0, 1, ...), "rounds" |

    ValueError, one line that names path and line, for any fault. Two sequences with one address are
    refused, because they would share their draws.
    """
    sequences: list[EmittedSequence] = []
    addresses: set[int] = set()
    header = None
    with reraised(ValueError, f"{path} cannot be read"):
        for number, line in read_lines(path, LONGEST_LINE, MOST_BYTES):
            with reraised(ValueError, f"line {number}"):
                held = converted("it", parse_json(line.decode("utf-8")), dict)
                if header is None:
                    header = _header(held)
                    continue
                sequence = _made(EmittedSequence, {"sequence": len(sequences)} | held)
                check_end_tokens(sequence, header.end_tokens)
                if sequence.sequence in addresses:
                    raise ValueError(
                        f"sequence {sequence.sequence} occurs twice; "
                        "expected a different address for every sequence"
                    )
                addresses.add(sequence.sequence)
                sequences.append(sequence)
        if header is None:
            raise ValueError("the file is empty; expected a header and one line per sequence")
        return EmittedRun(header, tuple(sequences))


def _header(values: dict[str, Any]) -> RunHeader:
    if values.pop("simspec", None) != FILE_KIND:
        raise ValueError(
            'not an emitted run: expected a header with "simspec": "run", '
            "as `simspec run --save` writes it"
        )
    return _made(RunHeader, values)


def _made(kind: type[T], values: dict[str, Any]) -> T:
    """The dataclass of a line's values, which may leave out fields that have a default."""
    known = fields(kind)  # type: ignore[arg-type]
    check_keys(values, (f.name for f in known if f.name in values or f.default is MISSING))
    return kind(**values)
