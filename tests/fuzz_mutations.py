"""Kinds of files, and mutations of valid ones: bytes, text, JSON values, headers with sizes."""

import json
import lzma
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

ABSURD = [
    None, True, False, 0, -1, 1, 1.5, 255, 256, 2**31, 2**32, 2**53, 2**63, 2**64, 10**12, 10**30,
    -(10**30), 10**400, 1e308, 1e-320, -0.0, math.inf, -math.inf, math.nan, "", "0", "1e400", "nan",
    "x" * 5000, "\ud800", "\x00", "two\nlines", "[/b]", "\x1b[2J", "../../etc/passwd", "/dev/zero",
    [], {}, [[]], [None] * 300, [0] * 5000, {"": {}}, [1, "2", None, {}],
]  # fmt: skip
BYTES = [b"", b"\x00", b"\xff", b"\n", b"\r", b"{", b"[", b'"', b"\\", b",", b"-", b"e999", b"NaN"]
DEEP = 20_000
"""Levels of nesting, beyond every limit of recursion."""
LARGEST = 1 << 20
"""Bytes of a mutated file: what doubles it again and again stops here."""


def mutated(content: bytes, draw: Random) -> bytes:
    """A damaged copy: one to three mutations, of its structure where it has one."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        ways = [of_bytes, of_bytes, of_text, of_structure, of_structure, of_structure]
        content = draw.choice(ways)(content, draw)[:LARGEST]
    return content


def of_bytes(content: bytes, draw: Random) -> bytes:
    """Bits flipped, bytes overwritten, inserted, cut out, doubled, or the end missing."""
    at = draw.randrange(len(content) + 1)
    if draw.random() < 0.3:  # headers and footers say most
        at = draw.choice((draw.randrange(64), len(content) - draw.randrange(64)))
        at = min(max(at, 0), len(content))
    many = draw.choice((1, 2, 4, 8, 64, 1000))
    kind = draw.randrange(6)
    if kind == 0:
        flipped = bytes(b ^ 1 << draw.randrange(8) for b in content[at : at + 1])
        return content[:at] + flipped + content[at + 1 :]
    if kind == 1:
        filling = draw.choice((bytes(many), b"\xff" * many, draw.randbytes(many)))
        return content[:at] + filling + content[at + many :]
    if kind == 2:
        return content[:at] + (draw.choice(BYTES) or draw.randbytes(many)) + content[at:]
    if kind == 3:
        return content[:at] + content[at + many :]
    if kind == 4:
        return content[:at] + content[at : at + many] * draw.choice((2, 3, 100)) + content[at:]
    return content[:at]


def of_text(content: bytes, draw: Random) -> bytes:
    """Lines removed, doubled or exchanged, numbers made huge, nesting without end."""
    kind = draw.randrange(4)
    if kind == 0:
        lines = content.split(b"\n")
        i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
        lines[i : i + 1] = draw.choice(([], [lines[i]] * 2, [lines[j]], [b""], [lines[i]] * 50))
        return b"\n".join(lines)
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?", content))
    if kind in (1, 2) and numbers:
        number = draw.choice(numbers)
        other = draw.choice(
            (b"9" * 5000, b"-1", b"0", b"1e400", b"1e-400", b"NaN", b"4294967296", b"1" * 19, b"",
             b"0x10", b"1_000", b"1,5", b"\xd9\xa3", number[0] + b"0" * 6, b"-" + number[0])
        )  # fmt: skip
        return content[: number.start()] + other + content[number.end() :]
    at = draw.randrange(len(content) + 1)
    return content[:at] + draw.choice((b"[", b'{"a":', b"(", b"- ")) * DEEP + content[at:]


def of_structure(content: bytes, draw: Random) -> bytes:
    """Values of the JSON in it replaced, removed or renamed, with its sizes kept right."""
    if content[:6] == b"\xfd7zXZ\x00":
        with suppress(lzma.LZMAError):
            reader = lzma.LZMADecompressor()
            return lzma.compress(mutated(reader.decompress(content, LARGEST), draw))
    size = int.from_bytes(content[:8], "little")
    if content[8:9] == b"{" and size <= len(content) - 8:  # safetensors
        header = _json(content[8 : 8 + size], draw)
        if header is not None:
            return len(header).to_bytes(8, "little") + header + content[8 + size :]
    whole = _json(content, draw)
    if whole is not None:
        return whole
    lines = content.split(b"\n")
    place = draw.randrange(len(lines))
    line = _json(lines[place], draw)
    if line is not None:
        return b"\n".join([*lines[:place], line, *lines[place + 1 :]])
    return of_text(content, draw)


def _json(text: bytes, draw: Random) -> bytes | None:
    """Mutated JSON; None where the text is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    with suppress(ValueError, RecursionError, UnicodeError):
        return json.dumps(mutated_value(value, draw)).encode()
    return None


def mutated_value(value: object, draw: Random) -> object:
    """The JSON value with one of its parts changed, removed, doubled or renamed."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.02:
        return absurd(value, draw)
    holder, key = value, None
    while True:  # a walk to a random part
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = draw.choice(keys)
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner or draw.random() < 0.25:
            break
        holder = inner
    kind = draw.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        name = draw.choice(("", "x" * 300, key + " ", key.upper(), "__class__", "\x1b[31m"))
        holder[name] = holder.pop(key)
    elif kind == 1:
        holder.insert(key, holder[key])
    elif kind == 2 and isinstance(holder, dict):
        holder[draw.choice(list(holder))] = holder[key]
    elif kind == 2:
        holder[key], holder[0] = holder[0], holder[key]
    else:
        holder[key] = absurd(holder[key], draw)
    return value


def absurd(value: object, draw: Random) -> object:
    """Another value: a near one, a far one, or one of another type."""
    if type(value) in (int, float) and draw.random() < 0.6:
        with suppress(OverflowError, ValueError):
            return draw.choice(
                (value + 1, value - 1, -value, value * 10**6, value * 10**12, value / 3, str(value),
                 [value], float(value), int(value))
            )  # fmt: skip
    if isinstance(value, list) and draw.random() < 0.5:
        return draw.choice((value[:-1], value + value[:1], value[::-1], value * 3, value[:1]))
    if isinstance(value, str) and draw.random() < 0.3:
        return draw.choice((value + "x", value[:-1], value.upper(), value * 40, [value]))
    return draw.choice(ABSURD)


MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    prepare writes valid files into an empty folder, read reads one as commands do; damaged names
    those that are damaged, (): all of them; weight: how often it is drawn, room: bytes of memory
    beside ten times the file; forge: (sample, draw) -> damaged bytes.
    """

    prepare: Callable[[Path], None]
    read: Callable[[Path], object]
    damaged: tuple[str, ...] = ()
    weight: float = 1.0
    room: int = 64 * MEBIBYTE
    forge: Callable[[bytes, Random], bytes] = mutated
