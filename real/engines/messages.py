"""Messages between host and worker: one JSON object a line, read strictly.

| line | direction |
| --- | --- |
| `{"start": {…}}` | to the worker, once; `real.engines.adapter.start_options` has its keys |
| `{"ready": {…}}` | `Ready` |
| `{"run": 7, "requests": […], "concurrent": 1, "k": 5, "force": 3}` | to the worker; "policy" too |
| `{"run": 7, "id": …}` | `Finished`, one a request, in any order |
| `{"run": 7, "done": true, "seconds": 1.5}` | all requests have finished |
| `{"stop": true}`, or end of file | the worker ends |
| `{"error": "one line"}`, with "run" where one failed | the worker cannot do it |

A request is `{"id": …, "prompt": [ids], "max_tokens": …}`. A run without "k" has the start's draft
length; "force" is left out where the engine drafts by itself, "policy" where the length is fixed.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

MOST_TOKENS = 1 << 20
"""Tokens of a prompt or an output."""
MOST_TOKEN_ID = (1 << 31) - 1
STOPPED = "end", "length"


@dataclass(frozen=True)
class Request:
    """A prompt in token ids, and the most tokens of its output."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True)
class Ready:
    """An engine that has loaded its models.

    | field | meaning |
    | --- | --- |
    | engine, version, device | as the engine names them |
    | seconds | from the worker's start |
    | sets_k | a run may set the draft length, 0 for plain decoding |
    | forces_drafts | a run may force the number of junk tokens drafted in each pass |
    | notes | lines for the user |
    """

    engine: str
    version: str
    device: str
    seconds: float
    sets_k: bool
    forces_drafts: bool
    notes: tuple[str, ...] = ()


Pass = tuple[int, int, int]
"""Tokens emitted, drafted and accepted by one pass of the target."""


@dataclass(frozen=True)
class Finished:
    """One request's output and its passes of the target, plain passes included.

    | field | meaning |
    | --- | --- |
    | tokens | the output, its end token included where the engine keeps it |
    | passes | (emitted, drafted, accepted) of each pass, the prompt's pass first; not trimmed |
    | pass_seconds | seconds of each pass; None where the engine has no clock for it |
    | first_seconds | from the start of the run's clock for this request to its first token |
    | seconds | to its last token |
    | text | the output as the engine writes it; None where it gives tokens alone |
    | stopped | "end": an end token; "length": max_tokens |
    """

    id: str
    tokens: tuple[int, ...]
    passes: tuple[Pass, ...]
    pass_seconds: tuple[float, ...] | None
    first_seconds: float
    seconds: float
    text: str | None
    stopped: str

    def to_dict(self) -> dict[str, Any]:
        """The same as one JSON object, without the number of the run."""
        return asdict(self)


def decoded(line: bytes) -> dict[str, Any]:
    """The object of a line; ValueError for another JSON value, or for none."""
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("a line is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"a line is no JSON ({str(error)[:100]}): {line[:60]!r}") from None
    if not isinstance(value, dict):
        raise ValueError(f"a line holds a {type(value).__name__}, expected an object")
    return value


def run_line(
    number: int,
    requests: Sequence[Request],
    concurrent: int,
    k: int | None,
    force: int | None,
    policy: str | None = None,
) -> dict[str, Any]:
    """The line that asks for a run."""
    line: dict[str, Any] = {
        "run": number,
        "requests": [
            {"id": r.id, "prompt": list(map(int, r.prompt)), "max_tokens": int(r.max_tokens)}
            for r in requests
        ],
        "concurrent": concurrent,
    }
    given = ("k", k), ("force", force), ("policy", policy)
    return line | {key: value for key, value in given if value is not None}


def read_ready(value: Any) -> Ready:
    """The "ready" object; ValueError for missing or unknown keys and wrong types."""
    keys = "engine", "version", "device", "seconds", "sets_k", "forces_drafts", "notes"
    fields = _object(value, keys, "ready")
    notes = _list(fields["notes"], 100, "notes")
    return Ready(
        engine=_text(fields["engine"], "engine"),
        version=_text(fields["version"], "version"),
        device=_text(fields["device"], "device"),
        seconds=_seconds(fields["seconds"], "seconds"),
        sets_k=_bool(fields["sets_k"], "sets_k"),
        forces_drafts=_bool(fields["forces_drafts"], "forces_drafts"),
        notes=tuple(_text(note, "a note") for note in notes),
    )


def read_finished(value: dict[str, Any], requests: dict[str, Request]) -> Finished:
    """A request's line without its "run"; ValueError unless it can be the answer to one.

    The passes emit at least the tokens of the output; the last one starts inside it.
    """
    keys = "id", "tokens", "passes", "pass_seconds", "first_seconds", "seconds", "text", "stopped"
    fields = _object(value, keys, "a finished request")
    id = _text(fields["id"], "id")
    if id not in requests:
        raise ValueError(f"request {id[:60]!r} was not asked for, or has finished before")
    most = requests[id].max_tokens
    tokens = tuple(
        _whole(token, 0, MOST_TOKEN_ID, "a token")
        for token in _list(fields["tokens"], most, "tokens")
    )
    passes = tuple(_pass(row) for row in _list(fields["passes"], most + 1, "passes"))
    emitted = [row[0] for row in passes]
    if sum(emitted) < len(tokens) or (emitted and sum(emitted[:-1]) >= max(len(tokens), 1)):
        raise ValueError(
            f"request {id[:60]!r} has {len(tokens)} tokens, its {len(passes)} passes emit "
            f"{sum(emitted)}"
        )
    clock = fields["pass_seconds"]
    if clock is not None:
        clock = tuple(_seconds(s, "pass_seconds") for s in _list(clock, most + 1, "pass_seconds"))
        if len(clock) != len(passes):
            raise ValueError(f"{len(clock)} pass_seconds for {len(passes)} passes")
    if fields["stopped"] not in STOPPED:
        raise ValueError(f"stopped is {fields['stopped']!r:.60}; expected {' or '.join(STOPPED)}")
    return Finished(
        id,
        tokens,
        passes,
        clock,
        _seconds(fields["first_seconds"], "first_seconds"),
        _seconds(fields["seconds"], "seconds"),
        None if fields["text"] is None else _text(fields["text"], "text", 1 << 24),
        fields["stopped"],
    )


def read_done(value: dict[str, Any]) -> float:
    """Seconds of the whole run; ValueError for another line."""
    fields = _object(value, ("done", "seconds"), "the end of a run")
    if fields["done"] is not True:
        raise ValueError(f"done is {fields['done']!r:.60}; expected true")
    return _seconds(fields["seconds"], "seconds")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _object(value: Any, keys: Sequence[str], what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is a {type(value).__name__}, expected an object")
    if set(value) != set(keys):
        missing, unknown = sorted(set(keys) - set(value)), sorted(set(value) - set(keys))
        raise ValueError(f"{what}: missing keys {missing}, unknown keys {str(unknown)[:100]}")
    return value


def _list(value: Any, most: int, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        size = f" of {len(value)}" if isinstance(value, list) else ""
        raise ValueError(
            f"{what} is a {type(value).__name__}{size}, expected a list of up to {most}"
        )
    return value


def _pass(value: Any) -> Pass:
    row = _list(value, 3, "a pass")
    if len(row) != 3:
        raise ValueError(f"a pass is {row}, expected [emitted, drafted, accepted]")
    emitted, drafted, accepted = (_whole(n, 0, MOST_TOKENS, "a pass's count") for n in row)
    if not (accepted <= drafted and 1 <= emitted <= drafted + 1):
        raise ValueError(
            f"a pass is {row}; expected accepted <= drafted and 1 <= emitted <= drafted + 1"
        )
    return emitted, drafted, accepted


def _whole(value: Any, least: int, most: int, what: str) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what} is {value!r:.40}; expected an integer from {least} to {most}")
    return value


def _seconds(value: Any, what: str) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e9 or not math.isfinite(value):
        raise ValueError(f"{what} is {value!r:.40}; expected seconds, at least 0")
    return float(value)


def _text(value: Any, what: str, most: int = 10_000) -> str:
    if not isinstance(value, str) or len(value) > most:
        raise ValueError(f"{what} is {value!r:.40}; expected a text of up to {most} characters")
    return value


def _bool(value: Any, what: str) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{what} is {value!r:.40}; expected true or false")
    return value
