"""The file of a run on an engine: one JSON line a finished request, on the disk before it counts.

A killed run leaves at most half a line, which the next opening removes. So a request is never lost
once it was kept, and never kept twice.
"""

import fcntl
import json
import lzma
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from real.engines.worker import Finished, Request, decoded
from simspec.engines.vllm_proposer import suffix_rule
from simspec.output.files import check_output, converted, naming, parse_json, reraised

FORMAT, ROWS = 1, ".rows.jsonl"
MOST_BYTES, MOST_LINE = 1 << 30, 16 << 20
"""Bytes of a file of rows, and of a line."""
MOST_PROMPTS = 1_000_000
"""Prompts of a run."""
Whole = Annotated[int, Meta(ge=0)]
NgramSize = Annotated[int, Meta(ge=1, le=64)]
Arm = tuple[int, str]
"""A draft length, and the policy that decides lengths up to it; "": always that length."""
Key = tuple[int, Arm, int | None, str]
"""Block, arm, forced junk tokens and id of a request's row."""


class StoredDraft(TypedDict):
    """The draft of a run, as `draft_description` has it."""

    method: str
    ngram_min: NotRequired[NgramSize]
    ngram_max: NotRequired[NgramSize]
    cost: NotRequired[dict[str, Any] | None]
    suffix: NotRequired[dict[str, Any] | None]


@dataclass(frozen=True)
class Plan:
    """Draft lengths, repeats and order of the runs.

    ValueError for numbers outside their range, and lengths without 0 or given twice.
    """

    ks: tuple[int, ...]  # draft lengths; 0 is plain decoding
    repeats: int = 3  # how often every prompt runs at every length
    group: int = 4  # prompts of a block; a block runs all lengths on them, in random order
    concurrent: int = 1  # requests in flight together
    force: bool = False  # the engine drafts k junk tokens in each pass, where it can
    seed: int = 0
    policies: tuple[str, ...] = ()  # that decide draft lengths, up to the longest of ks

    def __post_init__(self) -> None:
        if len(set(self.policies)) < len(self.policies):
            raise ValueError(f"policies are {', '.join(self.policies)}, expected different ones")
        if 0 not in self.ks or len(set(self.ks)) < len(self.ks) or min(self.ks) < 0:
            raise ValueError(
                f"draft lengths are {list(self.ks)}, expected different ones, 0 (plain) among them"
            )
        for name in ("repeats", "group", "concurrent"):
            if not 1 <= getattr(self, name) <= 10_000:
                raise ValueError(f"{name} is {getattr(self, name)}, expected 1 to 10000")

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The draft lengths, then the policies."""
        return (*((k, "") for k in self.ks), *((max(self.ks), text) for text in self.policies))

    @property
    def in_waves(self) -> bool:
        """Whether all requests of a block start together."""
        return self.group <= self.concurrent > 1


class About(TypedDict):
    """What a run is about, as far as comparisons read it."""

    engine: str
    version: str
    device: str
    model: str
    dtype: str
    prompts: str
    threads: Whole
    longest: Whole
    batch: Whole
    seed: NotRequired[Whole]
    draft: StoredDraft | None
    plan: Plan
    count: Annotated[int, Meta(ge=1, le=MOST_PROMPTS)]


@dataclass(frozen=True)
class Row:
    """A finished request of a run."""

    session: Whole  # number of the process that ran it, from 0
    block: Whole  # its timing block
    k: Whole  # draft length of the run; 0: plain decoding
    force: Whole | None  # junk tokens drafted in each pass; None: the engine drafts by itself
    request: Request
    finished: Finished
    # text of the policy that decided the lengths, up to k; "": fixed
    policy: Annotated[str, Meta(max_length=1000)] = ""

    @property
    def arm(self) -> Arm:
        """The draft length or policy of the row."""
        return self.k, self.policy

    @property
    def name(self) -> int | str:
        """The policy, or else the draft length."""
        return self.policy or self.k

    @property
    def key(self) -> Key:
        """Fields that identify the row in its file."""
        return self.block, self.arm, self.force, self.request.id


class RowFile:
    """An open file of rows; `append` returns when the row is on the disk."""

    def __init__(self, file: IO[bytes], about: Mapping[str, Any], rows: list[Row]):
        self._file, self.about, self.rows = file, dict(about), rows
        self.session = 1 + max((row.session for row in rows), default=-1)
        self.done = {row.key for row in rows}

    def append(self, row: Row) -> None:
        """Adds a row that the file does not hold."""
        self.write({k: v for k, v in vars(row).items() if k != "policy" or v})
        self.done.add(row.key)
        self.rows.append(row)

    def write(self, value: Any) -> None:
        """A line of JSON, on the disk."""
        self._file.write(msgspec.json.encode(value) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def lock(file: IO[bytes], refusal: str) -> None:
    """Locks the file until it is closed; ValueError with the refusal where another process has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ValueError(refusal) from None


@contextmanager
def open_rows(path: str | Path, about: Mapping[str, Any]) -> Iterator[RowFile]:
    """The file of a run that `about` describes, made or continued; its rows are then known.

    ValueError for a file of another run, a damaged one, or one that another process writes;
    OSError with its name where the disk is full.
    """
    path = Path(path)
    check_output(path)
    about = json.loads(json.dumps(dict(about)))
    with naming(path), open(path, "a+b") as file:
        lock(file, f"{path} is written by another process: wait for it")
        held, rows, end = _read(file, path)
        file.truncate(end)  # half a line of a process that was killed
        opened = RowFile(file, about, rows)
        if held is None:
            opened.write({"simspec_engine_rows": FORMAT, "about": about})
        elif held != about:
            other = sorted(key for key in {*held, *about} if held.get(key) != about.get(key))
            raise ValueError(
                f"{path} holds another run, which differs in {', '.join(other)}: name another "
                "file, or give the same settings"
            )
        yield opened


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
    remedy = "name a file of `simspec engine run`"
    with reraised(ValueError, f"{path} line 1 describes no run", remedy):
        _check_about(about)
        if unknown := {row.policy for row in rows} - {"", *about["plan"].get("policies", [])}:
            raise ValueError(f"it states no policy {min(unknown)[:60]!r}, which its rows have")
    return about, rows


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
        with reraised(ValueError, f"{path} line {number} is no row of a run", "name another file"):
            parse_json(line.decode("utf-8"))  # which refuses a key twice
            if about is None:
                head = decoded(line)
                if head.get("simspec_engine_rows") != FORMAT:
                    raise ValueError(f"it is of another format than {FORMAT}")
                about = converted("about", head.get("about"), dict)
            else:
                row: Row = decoded(line, Row)
                row.finished.check(row.request)
                if row.key in rows:
                    raise ValueError("it repeats a request of its block")
                rows[row.key] = row
        end += len(line)
    return about, list(rows.values()), end


def _check_about(about: Mapping[str, Any]) -> None:
    """ValueError or KeyError where a description lacks what comparisons read."""
    converted("it", about, About)
    plan, draft = about["plan"], about["draft"]
    method = None if draft is None else draft["method"]
    if plan.get("policies") and method not in ("policy", "model"):
        raise ValueError("its policies have no proposer")
    if method in ("ngram", "policy") and draft["ngram_min"] > draft["ngram_max"]:
        raise ValueError("its n-grams have no length")
    if method == "policy":
        about["seed"], draft["cost"]
        suffix_rule(draft.get("suffix") or {}, 1)
    plan["group"]  # which plans made in Python may leave to its default
