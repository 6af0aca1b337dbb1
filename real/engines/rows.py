"""The file of a run on an engine: one JSON line a finished request, on the disk before it counts.

A killed run leaves at most half a line, which the next opening removes. So a request is never lost
once it was kept, and never kept twice.
"""

import json
import lzma
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from real.engines.messages import MOST_TOKEN_ID, Finished, Request, read_finished
from simspec.engines.vllm_proposer import suffix_rule
from simspec.output.files import check_output, naming

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
MOST_BYTES = 1 << 30
"""Bytes of a file of rows."""
MOST_LINE = 16 << 20
MOST_NGRAM, MOST_POLICY = 64, 1000


Arm = tuple[int, str]
"""A draft length, and the policy that decides lengths up to it; "": always that length."""
Key = tuple[int, Arm, int | None, str]
"""Block, arm, forced junk tokens and id of a request's row."""


@dataclass(frozen=True)
class Row:
    """A finished request of a run.

    | field | meaning |
    | --- | --- |
    | session | number of the process that ran it, from 0 |
    | block | its timing block |
    | k | draft length of the run; 0: plain decoding |
    | force | junk tokens drafted in each pass; None: the engine drafts by itself |
    | request | what was asked for |
    | finished | what the engine answered |
    | policy | text of the policy that decided the lengths, up to k; "": fixed |
    """

    session: int
    block: int
    k: int
    force: int | None
    request: Request
    finished: Finished
    policy: str = ""

    @property
    def arm(self) -> "Arm":
        """The draft length or policy of the row."""
        return self.k, self.policy

    @property
    def name(self) -> int | str:
        """The policy, or else the draft length."""
        return self.policy or self.k

    @property
    def key(self) -> "Key":
        """Fields that identify the row in its file."""
        return self.block, self.arm, self.force, self.request.id


class RowFile:
    """An open file of rows; `append` returns when the row is on the disk."""

    def __init__(self, file: IO[bytes], about: Mapping[str, Any], rows: list[Row]):
        self._file, self.about, self.rows = file, dict(about), rows
        self.session = 1 + max((row.session for row in rows), default=-1)
        self.done = {row.key for row in rows}

    def append(self, row: Row) -> None:
        """Adds a row; ValueError for one that the file holds already."""
        if row.key in self.done:
            raise ValueError(f"request {row.request.id!r} of block {row.block} is held already")
        self._file.write(_line({k: v for k, v in vars(row).items() if k != "policy" or v}))
        self._file.flush()
        os.fsync(self._file.fileno())
        self.done.add(row.key)
        self.rows.append(row)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """An OSError of the body, such as a full disk, names the file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise naming(path, error) from error


@contextmanager
def open_rows(path: str | Path, about: Mapping[str, Any]) -> Iterator[RowFile]:
    """The file of a run that `about` describes, made or continued; its rows are then known.

    ValueError for a file of another run, a damaged one, or one that another process writes;
    OSError with its name where the disk is full.
    """
    path = Path(path)
    check_output(path)
    about = json.loads(json.dumps(dict(about)))
    with _named(path), open(path, "a+b") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(f"{path} is written by another process: wait for it") from None
        held, rows, end = _read(file, path)
        file.truncate(end)  # half a line of a process that was killed
        if held is None:
            file.write(_line({"simspec_engine_rows": FORMAT, "about": about}))
            file.flush()
            os.fsync(file.fileno())
        elif held != about:
            other = sorted(key for key in {*held, *about} if held.get(key) != about.get(key))
            raise ValueError(
                f"{path} holds another run, which differs in {', '.join(other)}: name another "
                "file, or give the same settings"
            )
        yield RowFile(file, about, rows)


def read_rows(path: str | Path) -> tuple[dict[str, Any], list[Row]]:
    """(what the run is about, its rows) of a file, packed if it ends with .xz.

    ValueError for one that holds no run.
    """
    opened: Any = lzma.open if Path(path).suffix == ".xz" else open
    try:
        with opened(path, "rb") as file:
            about, rows, _ = _read(file, Path(path))
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path} is no whole .xz file ({error}): copy it again") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    if about is None:
        raise ValueError(f"{path} holds no run of an engine: name a file of `simspec engine run`")
    try:
        _check_about(about)
        if unknown := {row.policy for row in rows} - {"", *about["plan"].get("policies", [])}:
            raise ValueError(f"it states no policy {min(unknown)[:60]!r}, which its rows have")
    except (ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{path} line 1 describes no run ({reason}): name a file of `simspec engine run`"
        ) from None
    return about, rows


def _line(value: Any) -> bytes:
    # vars of the dataclasses in a row: asdict would copy every token
    return json.dumps(value, separators=(",", ":"), default=vars).encode() + b"\n"


def _read(file: IO[bytes], path: Path) -> tuple[dict[str, Any] | None, list[Row], int]:
    """(about, rows, bytes of whole lines); about is None for a file without a whole line."""
    file.seek(0)
    about: dict[str, Any] | None = None
    rows: dict[Key, Row] = {}
    number = end = 0
    while line := file.readline(MOST_LINE + 1):
        number += 1
        if len(line) > MOST_LINE or end > MOST_BYTES:
            raise ValueError(f"{path} line {number}: expected at most {MOST_LINE:,} bytes a line")
        if not line.endswith(b"\n"):
            break
        try:
            value = json.loads(line)
            if about is None:
                about = _about(value)
            else:
                row = _row(value)
                if row.key in rows:
                    raise ValueError("it repeats a request of its block")
                rows[row.key] = row
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"{path} line {number} is no row of a run ({reason}): name another file"
            ) from None
        end += len(line)
    return about, list(rows.values()), end


def _about(value: Any) -> dict[str, Any]:
    if value["simspec_engine_rows"] != FORMAT or not isinstance(value["about"], dict):
        raise ValueError(f"it is of another format than {FORMAT}")
    about: dict[str, Any] = value["about"]
    return about


TEXTS = "engine", "version", "device", "model", "dtype", "prompts"
NUMBERS = "threads", "longest", "batch"


def _check_about(about: Mapping[str, Any]) -> None:
    """ValueError, KeyError or TypeError where a description lacks what comparisons read."""
    plan, draft = about["plan"], about["draft"]
    for name in TEXTS:
        if not isinstance(about[name], str):
            raise ValueError(f"{name} is no text")
    for value in (*(about[name] for name in NUMBERS), plan["concurrent"], *plan["ks"]):
        _whole(value)
    policies = plan.get("policies", [])
    if not (isinstance(policies, list) and all(isinstance(text, str) for text in policies)):
        raise ValueError("its policies are no list of texts")
    if policies and (draft is None or draft["method"] != "policy"):
        raise ValueError("its policies have no proposer")
    if not (isinstance(plan["ks"], list) and 0 in plan["ks"] and type(plan["force"]) is bool):
        raise ValueError("its plan has no draft lengths, 0 among them")
    if draft is None:
        return
    if not isinstance(draft["method"], str):
        raise ValueError("its drafting method is no text")
    if draft["method"] == "ngram" and draft["match"] not in (None, "first", "last"):
        raise ValueError("its n-gram match is neither first nor last")
    if draft["method"] == "policy":
        _whole(about["seed"])
        _whole(plan["group"])
        if not (draft["cost"] is None or isinstance(draft["cost"], dict)):
            raise ValueError("the costs of its policies are no object")
        suffix_rule({} if draft.get("suffix") is None else draft["suffix"], 1)
    if draft["method"] not in ("ngram", "policy"):
        return
    if not 1 <= _whole(draft["ngram_min"]) <= _whole(draft["ngram_max"]) <= MOST_NGRAM:
        raise ValueError(f"its n-grams are not of 1 to {MOST_NGRAM} tokens")


def _row(value: Any) -> Row:
    asked = value["request"]
    prompt = asked["prompt"]
    ids = isinstance(prompt, list) and all(type(t) is int and 0 <= t < 1 << 31 for t in prompt)
    if not ids:
        raise ValueError("its prompt holds other values than token ids")
    if (budget := _whole(asked["max_tokens"])) > MOST_TOKEN_ID:
        raise ValueError(f"its max_tokens is {budget}; expected at most {MOST_TOKEN_ID}")
    request = Request(str(asked["id"]), tuple(prompt), budget)
    finished = read_finished(value["finished"], {request.id: request})
    force = None if value["force"] is None else _whole(value["force"])
    session, block, k = (_whole(value[name]) for name in ("session", "block", "k"))
    policy = value.get("policy", "")
    if not isinstance(policy, str) or len(policy) > MOST_POLICY:
        raise ValueError(f"its policy is no text of up to {MOST_POLICY} characters")
    return Row(session, block, k, force, request, finished, policy)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no whole number >= 0")
    return value
