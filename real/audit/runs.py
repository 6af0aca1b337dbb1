"""Emitted runs: the sequences that an engine wrote, how it made them, and their JSON lines file."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta

from real.decode.loop import DecodeResult
from real.files import replacing
from real.pair import Pair
from real.prompts import prompts_of
from real.provenance import device_name
from real.sampling import Rule
from simspec import Trace
from simspec.numerics.rng import check_seed
from simspec.output.files import parse_json

TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]
Count = Annotated[int, Meta(ge=0)]
ROUND = "position", "computed", "drafted", "accepted"
Tokens = Annotated[tuple[TokenId, ...], Meta(min_length=1)]


class RunError(ValueError):
    """An invalid emitted run, or an invalid file of one."""


def _convert(instance: Any) -> None:
    """Checks the fields against their annotations; RunError."""
    for name, hint in get_type_hints(type(instance), include_extras=True).items():
        try:
            value = msgspec.convert(getattr(instance, name), hint)
        except msgspec.ValidationError as error:
            raise RunError(f"{name} is invalid: {error}") from None
        object.__setattr__(instance, name, value)


@dataclass(frozen=True)
class RunHeader:
    """How a run was made; names are '' where they are unknown, a greedy run's temperature is 1.

    RunError for values of other types or ranges.
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
        _convert(self)
        try:
            check_seed(self.seed)
            _ = self.sampling_rule
        except ValueError as error:
            raise RunError(str(error)) from None

    @property
    def sampling_rule(self) -> Rule:
        """The rule and its parameters."""
        return Rule(self.rule, self.temperature, self.seed, self.top_k, self.top_p)


@dataclass(frozen=True)
class EmittedSequence:
    """One emitted sequence: token ids, the new ones with their end token.

    sequence: address of its random draws. rounds: (position, computed, drafted, accepted); ()
    where they are unknown. RunError for rounds that do not follow each other, accept more than they
    drafted, or commit another number of tokens.
    """

    prompt: Tokens
    token: Tokens
    sequence: Annotated[int, Meta(ge=0, lt=1 << 32)]
    rounds: tuple[tuple[Count, Count, Count, Count], ...] = ()

    def __post_init__(self) -> None:
        _convert(self)
        end, left = 0, 0
        for i, (position, _, drafted, accepted) in enumerate(self.rounds):
            if position != end:
                raise RunError(
                    f"rounds[{i}] begins at {position}; expected {end}, the end of the round before"
                )
            if accepted > drafted:
                raise RunError(f"rounds[{i}] accepts {accepted} of {drafted} drafted tokens")
            end, left = position + accepted + 1, len(self.token) - position - accepted
        # 0: an accepted end token, with no bonus token after it
        if self.rounds and left not in (0, 1):
            raise RunError(f"the rounds commit {end} tokens, the sequence has {len(self.token)}")


@dataclass(frozen=True)
class EmittedRun:
    """A run: its header and its sequences.

    RunError for no sequence, or for tokens after an end token.
    """

    header: RunHeader
    sequences: tuple[EmittedSequence, ...]

    def __post_init__(self):
        if not self.sequences:
            raise RunError("the run holds no sequence; expected at least one")
        for i, sequence in enumerate(self.sequences):
            check_end_tokens(sequence, self.header.end_tokens, f"sequence {i}: ")

    def check_vocabulary(self, vocab: int) -> None:
        """RunError for a token outside a vocabulary of `vocab` tokens."""
        for i, sequence in enumerate(self.sequences):
            if (largest := max(*sequence.prompt, *sequence.token)) >= vocab:
                raise RunError(
                    f"sequence {i} holds token {largest}, the target's vocabulary is "
                    f"0..{vocab - 1}; name the target of the run"
                )


def check_end_tokens(
    sequence: EmittedSequence, end_tokens: Sequence[int], prefix: str = ""
) -> None:
    """RunError for an end token before the sequence's end, or a last round that does not fit it."""
    token, rounds = sequence.token, sequence.rounds
    early = [i for i, t in enumerate(token[:-1]) if t in end_tokens]
    if early:
        raise RunError(
            f"{prefix}token[{early[0]}] = {token[early[0]]} ends a sequence, "
            f"but {len(token) - 1 - early[0]} more follow"
        )
    if rounds and rounds[-1][0] + rounds[-1][3] == len(token) and token[-1] not in end_tokens:
        raise RunError(
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
    """A recording as a run without rounds; RunError for a synthetic one."""
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
LONGEST_LINE = 1 << 26
"""Characters of a line, which is one sequence."""


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

    RunError, one line that names path and line, for any fault. Two sequences with one address are
    refused, because they would share their draws.
    """
    sequences: list[EmittedSequence] = []
    addresses: set[int] = set()
    number = 0
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), ""), 1):
                if len(line) == LONGEST_LINE:
                    raise RunError(f"it has over {LONGEST_LINE:,} characters; expected a sequence")
                if number > 1 and not line.strip():
                    continue
                parse_json(line)  # which refuses a key twice
                held = msgspec.json.decode(line, type=dict[str, Any])
                if number == 1:
                    header = _header(held)
                else:
                    values = {"sequence": len(sequences)} | held
                    _check_keys(values, EmittedSequence, ("prompt", "token"))
                    sequence = EmittedSequence(**values)
                    check_end_tokens(sequence, header.end_tokens)
                    if sequence.sequence in addresses:
                        raise RunError(
                            f"sequence {sequence.sequence} occurs twice; "
                            "expected a different address for every sequence"
                        )
                    addresses.add(sequence.sequence)
                    sequences.append(sequence)
        if not number:
            raise RunError("the file is empty; expected a header and one line per sequence")
        return EmittedRun(header, tuple(sequences))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        where = f"line {number}: " if number else ""
        raise RunError(f"{path}: {where}{' '.join(str(error).split())[:300]}") from None


def _header(values: dict) -> RunHeader:
    if values.pop("simspec", None) != FILE_KIND:
        raise RunError(
            'not an emitted run: expected a header with "simspec": "run", '
            "as `simspec run --save` writes it"
        )
    _check_keys(values, RunHeader, ("rule",))
    return RunHeader(**values)


def _check_keys(values: dict, kind: type, required: Sequence[str]) -> None:
    missing = [name for name in required if name not in values]
    unknown = sorted(set(values) - {f.name for f in fields(kind)})
    if missing or unknown:
        raise RunError(f"missing keys {missing}, unknown keys {unknown}")
