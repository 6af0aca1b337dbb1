"""One kind of file for the fuzzer."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fuzz_mutations import mutated

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Kind:
    """One kind of file.

    | field | meaning |
    | --- | --- |
    | prepare | writes valid files into an empty folder, beside others that the reader needs |
    | read | reads one of them as commands do, and uses what it holds; ValueError, one line |
    | damaged | names of the files that are damaged; (): all of the folder |
    | weight | how often it is drawn |
    | room | bytes of memory that it may take beside ten times the file |
    | forge | (sample, draw) -> damaged bytes; default: `mutated` |
    """

    prepare: Callable[[Path], None]
    read: Callable[[Path], object]
    damaged: tuple[str, ...] = ()
    weight: float = 1.0
    room: int = 64 * MEBIBYTE
    forge: Callable[[bytes, Random], bytes] = mutated
