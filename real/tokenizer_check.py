"""A tokenizer of untrusted origin, tried in a separate process: it may hang, panic or abort.

Patterns are matched by a backtracking engine, and a panic or abort of the library cannot be caught.
So a process with limits of time and memory refuses patterns that can backtrack for ever, loads the
file, and encodes long runs of characters. Its verdict is kept by the file's hash.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

CPU_SECONDS = 10
WALL_SECONDS = 120
"""On a busy machine the limit of CPU time comes later than this much time."""
MEMORY = 4 << 30
MEMORY_PER_BYTE = 60
"""Bytes of memory for each byte of the file: a vocabulary takes some 20."""
LONGEST_PATTERN = 20_000
MOST_REPEATS = 4
"""Unbounded repeats of one alternative; published tokenizers have 2."""
RUN = 1000
"""Characters of a probe: quadratic backtracking takes milliseconds, cubic exceeds the limit."""

_TOKEN = re.compile(
    r"\\[pP]\{[^}]*\}|\\(?P<again>[1-9]|k|g)|\\.|(?P<open>\(\?#|\(\?<?[=!]|\(\?[\w-]*:|\(\?>|\("
    r")|(?P<close>\))|(?P<either>\|)|\{(?P<least>\d*),(?P<most>\d*)\}[?+]?|\{(?P<count>\d+)\}"
    r"|(?P<many>[*+])[?+]?|(?P<maybe>\?)|(?P<class>\[)|.",
    re.DOTALL,
)


def check_tokenizer(content: bytes) -> None:
    """ValueError, one line, unless this tokenizer.json loads and encodes within the limits."""
    if reason := _verdict(hashlib.sha256(content).hexdigest(), _Content(content)):
        raise ValueError(f"{reason}; use a tokenizer of known origin")


class _Content(bytes):
    """Bytes that do not count in a cache's key; the hash replaces them there."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=64)
def _verdict(digest: str, content: _Content) -> str:
    """Fault of the tokenizer; "" if none."""
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    environment["RUST_BACKTRACE"] = "0"
    try:
        run = subprocess.run(
            [sys.executable, "-P", str(Path(__file__).resolve())],
            input=bytes(content),
            capture_output=True,
            env=environment,
            timeout=WALL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"it does not load and encode short texts within {WALL_SECONDS} s"
    if run.returncode == 0:
        return ""
    said = run.stderr.decode(errors="replace").strip().splitlines()
    if run.returncode == 2 and said:
        return said[-1][:300]
    if run.returncode in (-24, -9):  # the limit of CPU time
        return f"it does not load and encode short texts within {CPU_SECONDS} s"
    return f"the tokenizers library fails on it (exit code {run.returncode})"


def backtracking_risk(pattern: str) -> str:
    """Why matching this pattern may take exponential time; "" where nothing says so.

    A repeat of what itself repeats or has alternatives is refused, as are references backwards.
    """
    if len(pattern) > LONGEST_PATTERN:
        return f"it has {len(pattern)} characters"
    groups, closed = [_Group()], None
    at = 0
    while match := _TOKEN.match(pattern, at):
        at, group = match.end(), groups[-1]
        inner, closed = closed, None
        if match["again"]:
            return "it refers to what it matched before"
        if match["class"]:
            at = _class_end(pattern, at)
        elif match["open"]:
            groups.append(_Group())
        elif match["close"]:
            if len(groups) > 1:
                closed = groups.pop()
                groups[-1].alternatives |= closed.alternatives
                groups[-1].repeats += closed.repeats
                groups[-1].most = max(groups[-1].most, groups[-1].repeats)
        elif match["either"]:
            group.alternatives, group.repeats = True, 0
        elif match["maybe"]:
            group.alternatives = True
        elif match["many"] or match["least"] is not None or match["count"]:
            most = match["count"] or match["most"]
            unbounded = bool(match["many"]) or not most
            if inner and (inner.alternatives or inner.most) and (unbounded or _many(most)):
                return "it repeats a group that repeats or has alternatives"
            group.repeats += unbounded
            group.most = max(group.most, group.repeats)
        if group.most > MOST_REPEATS:
            return f"an alternative repeats without bound more than {MOST_REPEATS} times"
    return ""


def _many(count: str | None) -> bool:
    return bool(count and (len(count) > 2 or int(count) > 8))


class _Group:
    """Content of two parentheses: alternatives, and unbounded repeats in one of them."""

    def __init__(self) -> None:
        self.alternatives, self.repeats, self.most = False, 0, 0


def _class_end(pattern: str, at: int) -> int:
    """The index after a character class, which may hold classes."""
    depth = 1
    if pattern.startswith("^", at):
        at += 1
    if pattern.startswith("]", at):
        at += 1
    while at < len(pattern) and depth:
        if pattern[at] == "\\":
            at += 1
        depth += {"[": 1, "]": -1}.get(pattern[at : at + 1], 0) if pattern[at] != "\\" else 0
        at += 1
    return at


def _patterns(value: object) -> list[str]:
    """Every regular expression in the file."""
    found, left = [], [value]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            found += [v for k, v in item.items() if k == "Regex" and isinstance(v, str)]
            left += item.values()
        elif isinstance(item, list):
            left += item
    return found


def _try(content: bytes) -> None:
    """Runs in the separate process."""
    import resource

    memory = MEMORY + MEMORY_PER_BYTE * len(content)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    data = json.loads(content)
    # the vocabulary is most of the file, and holds no patterns
    parts = {k: v for k, v in data.items() if k not in ("model", "added_tokens")}
    patterns = _patterns(parts) if isinstance(data, dict) else []
    for pattern in patterns:
        if risk := backtracking_risk(pattern):
            raise ValueError(f"its pattern {pattern[:60]!r} may backtrack for ever: {risk}")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_buffer(content)
    own = dict.fromkeys(c for pattern in patterns for c in pattern if c.isalnum())
    for probe in (*" \n\taA1.'é中", "a ", "a1", " \n", *list(own)[:40]):
        run = probe * (RUN // len(probe))
        tokenizer.decode(tokenizer.encode(f"{run}\x00{run}!").ids)


if __name__ == "__main__":
    try:
        _try(sys.stdin.buffer.read())
    except BaseException as error:  # a panic of the library is no Exception
        print(" ".join(f"{error}".split())[:300] or type(error).__name__, file=sys.stderr)
        os._exit(2)
    os._exit(0)
