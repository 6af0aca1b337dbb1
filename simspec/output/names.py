"""Names from files: written so that no terminal, table, picture or page reads them as markup."""

import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

LONGEST_LABEL = 120
"""Characters of a label in a picture."""

_MARKDOWN = re.compile(r"[\\`*<>|~]|&(?=#?\w+;)|\](?=[(\[:])|(?<!\w)_|_(?!\w)")
_FORMULA = ("=", "+", "-", "@")


def printable(text: str) -> str:
    """The text with control characters written as escapes, so that each cell is one line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Several lines, each as `printable` writes it."""
    return "\n".join(map(printable, text.split("\n")))


def one_note(text: object) -> str:
    """An error or a note as one printable line."""
    return printable(" ".join(str(text).split()))


def expected_one(given: str, known: Iterable[str], others: Iterable[str] = ()) -> str:
    """'expected one of A, B', after the name that was perhaps meant, also of others."""
    known = list(known)
    near = get_close_matches(given, [*known, *others], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{hint}expected one of {', '.join(known)}"


def markdown_text(text: str) -> str:
    """The text as a cell of a Markdown table that shows it as it is."""
    return _MARKDOWN.sub(lambda match: f"\\{match[0]}", printable(text))


def csv_text(text: str) -> str:
    """The text as a cell of a CSV file: a spreadsheet takes it for no formula."""
    return f"'{printable(text)}" if text.startswith(_FORMULA) else printable(text)


def label_text(text: str) -> str:
    """The text as a label of a picture, not too long; matplotlib typesets what stands between two
    dollar signs."""
    text = printable(text)
    if len(text) > LONGEST_LABEL:
        text = text[: LONGEST_LABEL - 1] + "…"
    return text.replace("$", r"\$")


@contextmanager
def printable_logs() -> Iterator[None]:
    """What libraries log meanwhile has no control characters: they quote names from files."""
    make = logging.getLogRecordFactory()

    def printable_record(*args: Any, **keywords: Any) -> logging.LogRecord:
        record = make(*args, **keywords)
        record.msg, record.args = printable_lines(record.getMessage()), ()
        return record

    logging.setLogRecordFactory(printable_record)
    try:
        yield
    finally:
        logging.setLogRecordFactory(make)
