"""An emitted run: the texts that some engine wrote, how it says it made them, and the JSON lines that hold both."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from real.decode.loop import DecodeResult
from real.files import replacing
from real.pair import Pair
from real.provenance import device_name
from real.sampling import Rule
from simspec import Trace
from simspec.rng import check_seed

DTYPES = ("float64", "float32", "bfloat16")
FILE_KIND = "run"


class RunError(ValueError):
    """An emitted run that breaks its own rules, or a file that is none."""


@dataclass(frozen=True)
class RunHeader:
    """How a run was made.

    | field | type | meaning |
    | --- | --- | --- |
    | rule, temperature, seed, top_k, top_p | | those of a `Rule`; a greedy run's temperature is 1 |
    | dtype | str | in which the engine computed: float64, float32 or bfloat16 |
    | device, target, drafter, policy | str | in words; '' where unknown |
    | end_tokens | (int,) | tokens that end a text |

    RunError for anything else.
    """

    rule: str
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    dtype: str = "float32"
    device: str = ""
    target: str = ""
    drafter: str = ""
    policy: str = ""
    end_tokens: tuple[int, ...] = ()

    def __post_init__(self):
        for name in ("rule", "device", "target", "drafter", "policy"):
            if type(getattr(self, name)) is not str:
                raise RunError(f"{name} is {getattr(self, name)!r}; expected text")
        if self.dtype not in DTYPES:
            raise RunError(f"dtype is {self.dtype!r}; expected one of {', '.join(DTYPES)}")
        if type(self.seed) is not int or any(
            type(getattr(self, name)) not in (int, float) for name in ("temperature", "top_p")
        ):
            raise RunError(
                f"seed {self.seed!r}, temperature {self.temperature!r}, top_p {self.top_p!r}; expected numbers"
            )
        if not isinstance(self.end_tokens, (tuple, list)) or not _all_ids(self.end_tokens):
            raise RunError(f"end_tokens is {self.end_tokens!r}; expected a list of token ids")
        object.__setattr__(self, "end_tokens", tuple(self.end_tokens))
        try:
            check_seed(self.seed)
            self.how
        except ValueError as error:
            raise RunError(str(error)) from None

    @property
    def how(self) -> Rule:
        """The rule as the engine knows it."""
        return Rule(self.rule, float(self.temperature), self.seed, self.top_k, float(self.top_p))


@dataclass(frozen=True)
class EmittedSequence:
    """One emitted text.

    | field | type | meaning |
    | --- | --- | --- |
    | prompt, token | (int,) | token ids, at least one each; the new ones with their end token |
    | sequence | int, < 2**32 | the address of its random draws |
    | rounds | ((int, int, int, int),) | position, computed, drafted, accepted of each round; () where unknown |

    RunError where a round does not begin where the one before it ended, accepts more than it submitted, or the last does not end the text.
    """

    prompt: tuple[int, ...]
    token: tuple[int, ...]
    sequence: int
    rounds: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self):
        for name in ("prompt", "token"):
            if (
                not isinstance(ids := getattr(self, name), (tuple, list))
                or not ids
                or not _all_ids(ids)
            ):
                raise RunError(
                    f"{name} is not a list of at least one token id (integers in 0 .. 2**31 - 1)"
                )
            object.__setattr__(self, name, tuple(ids))
        if type(self.sequence) is not int or not 0 <= self.sequence < 1 << 32:
            raise RunError(f"sequence is {self.sequence!r}; expected an address in 0 .. 2**32 - 1")
        if not isinstance(self.rounds, (tuple, list)) or not all(
            isinstance(r, (tuple, list))
            and len(r) == 4
            and all(type(n) is int and n >= 0 for n in r)
            for r in self.rounds
        ):
            raise RunError(
                "rounds is not a list of [position, computed, drafted, accepted], integers >= 0"
            )
        object.__setattr__(self, "rounds", tuple(map(tuple, self.rounds)))
        at, left = 0, 0
        for i, (position, _, drafted, accepted) in enumerate(self.rounds):
            if position != at:
                raise RunError(
                    f"rounds[{i}] begins at {position}; expected {at}, where the round before it ended"
                )
            if accepted > drafted:
                raise RunError(f"rounds[{i}] accepts {accepted} of {drafted} drafted tokens")
            at, left = position + accepted + 1, len(self.token) - position - accepted
        if self.rounds and left not in (
            0,
            1,
        ):  # 0: an end token was accepted, and no token of the target's own follows it
            raise RunError(f"the rounds commit {at} tokens, the text has {len(self.token)}")


@dataclass(frozen=True)
class EmittedRun:
    """A run: its header and its texts, whose draw addresses differ; RunError where a text goes on behind an end token."""

    header: RunHeader
    texts: tuple[EmittedSequence, ...]

    def __post_init__(self):
        if not self.texts:
            raise RunError("the run holds no text; expected at least one")
        for i, text in enumerate(self.texts):
            check_end_tokens(text, self.header.end_tokens, f"text {i}: ")

    @property
    def tokens(self) -> int:
        return sum(len(text.token) for text in self.texts)

    def check_vocabulary(self, vocab: int) -> None:
        """RunError, naming the text, for a token that a target of `vocab` tokens does not have."""
        for i, text in enumerate(self.texts):
            if (most := max(*text.prompt, *text.token)) >= vocab:
                raise RunError(
                    f"text {i} holds token {most}, the target knows 0..{vocab - 1}; name the target that wrote it"
                )


def check_end_tokens(text: EmittedSequence, end_tokens: Sequence[int], where: str = "") -> None:
    """RunError unless end tokens stand at the text's end only, and its last round fits that."""
    early = [i for i, token in enumerate(text.token[:-1]) if token in end_tokens]
    if early:
        raise RunError(
            f"{where}token[{early[0]}] = {text.token[early[0]]} ends a text, but {len(text.token) - 1 - early[0]} more follow"
        )
    if (
        text.rounds
        and text.rounds[-1][0] + text.rounds[-1][3] == len(text.token)
        and text.token[-1] not in end_tokens
    ):
        raise RunError(
            f"{where}the last round has no token of the target's own, though the text does not end with an end token"
        )


def run_header(rule: Rule, pair: Pair, policy: str, end_tokens: Sequence[int]) -> RunHeader:
    """The header of a run that this pair makes here."""
    decoder = pair.target.decoder
    dtype = str(decoder.dtype).removeprefix("torch.")
    device = device_name(decoder.device)
    where = dtype, device, pair.name, pair.drafter.name, policy
    return RunHeader(
        rule.name, rule.temperature, rule.top_k, rule.top_p, rule.seed, *where, tuple(end_tokens)
    )


def sequences_of_results(trace: Trace, results: Sequence[DecodeResult]) -> tuple[EmittedSequence, ...]:
    """The texts that runs of all sequences of a trace emitted, with their rounds."""
    cuts = trace.prompt_offset
    return tuple(
        EmittedSequence(
            trace.prompt[cuts[s] : cuts[s + 1]].tolist(),
            result.token.tolist(),
            int(trace.sequence[s]),
            tuple(
                zip(
                    *(
                        column.tolist()
                        for column in (
                            result.position,
                            result.computed,
                            result.drafted,
                            result.accepted,
                        )
                    )
                )
            ),
        )
        for s, result in enumerate(results)
    )


def run_of_recording(trace: Trace) -> EmittedRun:
    """A recording seen as a run: its texts, without rounds. RunError for a synthetic one or one without prompts."""
    meta, cuts, rows = trace.meta, trace.prompt_offset, trace.offset
    header = RunHeader(
        meta.rule,
        meta.temperature or 1.0,
        getattr(meta, "top_k", 0),
        getattr(meta, "top_p", 1.0),
        meta.seed,
        meta.dtype,
        meta.device,
        meta.target,
        meta.drafter,
        end_tokens=meta.end_tokens,
    )
    return EmittedRun(
        header,
        tuple(
            EmittedSequence(
                trace.prompt[cuts[s] : cuts[s + 1]].tolist(),
                trace.token[rows[s] : rows[s + 1]].tolist(),
                int(trace.sequence[s]),
            )
            for s in range(trace.sequences)
        ),
    )


def save_run(path: Path, header: RunHeader, texts: Sequence[EmittedSequence]) -> None:
    """Writes a run, whole or not at all: a line with the header, then a line a text; see `load_run`."""
    run = EmittedRun(header, tuple(texts))
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for line in ({"simspec": FILE_KIND, **asdict(run.header)}, *map(asdict, run.texts)):
            file.write(json.dumps(line) + "\n")


def load_run(path: Path) -> EmittedRun:
    """Reads a run that `save_run` or another engine wrote; RunError, one line with the path and the line, for whatever is wrong with it.

    The header needs "simspec": "run" and "rule", a text needs "prompt" and "token"; what else is left out is as the types say, and a
    text without "sequence" counts from 0. Two texts at one address are refused: they would be one draw.
    """
    number, texts, seen = 0, [], set()
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if number == 1:
                    header = _header(_object(line))
                elif line.strip():
                    made = {"sequence": len(texts)} | _object(line)
                    _only(made, EmittedSequence, ("prompt", "token"))
                    text = EmittedSequence(**made)
                    check_end_tokens(text, header.end_tokens)
                    if text.sequence in seen:
                        raise RunError(
                            f"sequence {text.sequence} occurs twice; expected an address of its own for every text"
                        )
                    seen.add(text.sequence)
                    texts.append(text)
        if not number:
            raise RunError("the file is empty; expected a header and a text a line")
        return EmittedRun(header, tuple(texts))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, OverflowError, RecursionError) as error:
        where = f"line {number}: " if number else ""
        raise RunError(f"{path}: {where}{' '.join(str(error).split())[:300]}") from None


def _header(found: dict) -> RunHeader:
    if found.pop("simspec", None) != FILE_KIND:
        raise RunError(
            'not an emitted run: expected a header with "simspec": "run", as `simspec run --save` writes it'
        )
    _only(found, RunHeader, ("rule",))
    return RunHeader(**found)


def _object(line: str) -> dict:
    found = json.loads(line)
    if type(found) is not dict:
        raise RunError(f"holds a {type(found).__name__}; expected one JSON object a line")
    return found


def _only(found: dict, kind: type, needed: Sequence[str]) -> None:
    missing = [name for name in needed if name not in found]
    unknown = sorted(set(found) - {f.name for f in fields(kind)})
    if missing or unknown:
        raise RunError(f"missing keys {missing}, unknown keys {unknown}")


def _all_ids(ids) -> bool:
    return all(type(i) is int and 0 <= i < 1 << 31 for i in ids)
