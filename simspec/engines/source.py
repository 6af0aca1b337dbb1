"""Source: a file that another tool wrote, what a user states about it, and its format's reader."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from simspec.engines.import_kinds import Import
from simspec.output.files import read_at_most

LARGEST = 256 << 20
"""Bytes of a file; its JSON takes several times as much memory."""


@dataclass(frozen=True)
class Source:
    """A file that another tool wrote.

    | field  | meaning                        |
    | ------ | ------------------------------ |
    | format | its name in `formats.IMPORTS`  |
    | file   | the file's name, without folder |
    | sha256 | of its bytes, in hex           |
    | text   | its content                    |
    """

    format: str
    file: str
    sha256: str
    text: str


def read_source(format: str, path: str | PathLike[str]) -> Source:
    """The file's content and hash; ValueError, one line, where it is too large or no text."""
    path = Path(path)
    try:
        content = read_at_most(path, LARGEST)
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text: name a plain-text or JSON file") from None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}; split it by lines") from None
    return Source(format, path.name, hashlib.sha256(content).hexdigest(), text)


@dataclass(frozen=True)
class ImportOptions:
    """Facts that a user states about a file.

    | field          | meaning                                                                |
    | -------------- | ---------------------------------------------------------------------- |
    | drafted        | tokens drafted in every round; None: not stated                        |
    | K              | deepest draft of a recording; None: the deepest that the file supports |
    | rule           | greedy or coupled, of recordings                                       |
    | temperature    | of recordings                                                          |
    | target         | name of the target                                                     |
    | task           | task of all sequences; '': the file's name                             |
    | end_tokens     | tokens that end a sequence                                             |
    | before         | an earlier scrape of the same counters                                 |
    | engine_version | of the engine that reads the file; None: not stated                    |
    | mode           | thinking_on or thinking_off; None: the only one in the file            |

    ValueError outside these ranges.
    """

    drafted: int | None = None
    K: int | None = None
    rule: str = "greedy"
    temperature: float = 0.0
    target: str = "unknown"
    task: str = ""
    end_tokens: tuple[int, ...] = ()
    before: Source | None = None
    engine_version: str | None = None
    mode: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("drafted", self.drafted), ("K", self.K)):
            if value is not None and not 1 <= value <= 255:
                raise ValueError(f"{name} is {value}, expected 1 to 255 tokens")
        if self.rule not in ("greedy", "coupled"):
            raise ValueError(
                f"rule is {self.rule!r}, expected greedy or coupled: counts of one draw cannot be "
                "replayed under rejection sampling, which needs each token's acceptance probability"
            )
        if (self.rule == "greedy") != (self.temperature == 0):
            raise ValueError(
                f"temperature is {self.temperature} under rule {self.rule}, expected 0 for greedy "
                "and a number > 0 for coupled"
            )


@dataclass(frozen=True)
class ImportFormat:
    """A format of `simspec import`, as its file in this folder declares it in `IMPORTS`.

    | field | meaning |
    | --- | --- |
    | name | what the command line calls it |
    | read | what the file holds; ValueError, OverflowError or RecursionError where it is another |
    | options | fields of ImportOptions that it reads; others are refused |
    | example | text of a file that it reads: its exam |
    """

    name: str
    read: Callable[[Source, ImportOptions], Import]
    options: tuple[str, ...] = ()
    example: str = ""
