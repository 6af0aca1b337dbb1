"""Counters of speculative decoding in Prometheus' text, as a server's /metrics prints them."""

import re
from collections.abc import Collection, Mapping

import numpy as np

from simspec.engines.documents import LARGEST_NUMBER
from simspec.engines.import_kinds import DEEPEST
from simspec.engines.source import ImportOptions, Source

LONGEST = 10_000
"""Characters of a line."""

SAMPLE = re.compile(r"\s*(?:\{([^}]*)\})?\s+(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(?:\s+\d+)?\s*")
MODEL = re.compile(r'(?:^|,)\s*model_name="((?:[^"\\]|\\.)*)"')
NO_POSITION = -1
ROUNDS = ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
"""Counters of rounds as vLLM names them, and llama.cpp after it."""

Totals = tuple[int, int, int, np.ndarray]
"""(rounds, drafted, accepted, rounds that accepted at least 1 to K)."""

Counters = dict[str, dict[int, int]]
"""{name without prefix and _total: {position, or NO_POSITION: count}}, summed over engines."""


def counted_rounds(source: Source, options: ImportOptions, prefix: str) -> tuple[Totals, list[str]]:
    """(totals, notes) of one scrape of ROUNDS, less those of `options.before`."""
    counters, notes = read_counters(source, options, prefix, ROUNDS, "position")
    rounds, drafted, accepted = (total(counters, name, source, prefix) for name in ROUNDS[:3])
    return (rounds, drafted, accepted, by_position(counters, ROUNDS[3], source, prefix)), notes


def read_counters(
    source: Source, options: ImportOptions, prefix: str, names: Collection[str], label: str
) -> tuple[Counters, list[str]]:
    """(counters, notes) of one scrape, less those of `options.before`.

    prefix, names: the counters are named prefix + name. label: the name of the position's label.
    ValueError, one line, for what is no counter, several models, and an earlier scrape that counts
    more.
    """
    now = _counters(source, prefix, names, label)
    if options.before is None:
        return now, [
            "counters run since the server started, warm-up included: give an earlier scrape with "
            "--before"
        ]
    earlier = _counters(options.before, prefix, names, label)
    difference: Counters = {}
    for name, counts in now.items():
        before = earlier.get(name, {})
        if {*before} != {*counts} or any(before[place] > counts[place] for place in counts):
            raise ValueError(
                f"{options.before.file} counts more than {source.file} or other positions, "
                "expected an earlier scrape of the same server: swap them"
            )
        difference[name] = {place: counts[place] - before[place] for place in counts}
    return difference, []


def total(counters: Mapping[str, dict[int, int]], name: str, source: Source, prefix: str) -> int:
    """The counter without positions; ValueError where it is missing."""
    counts = counters.get(name, {})
    if NO_POSITION not in counts:
        raise ValueError(
            f"{source.file}: counter {prefix}{name}_total is missing, expected the /metrics of a "
            "server with speculative decoding"
        )
    return counts[NO_POSITION]


def by_position(
    counters: Mapping[str, dict[int, int]], name: str, source: Source, prefix: str
) -> np.ndarray:
    """int64[K] of the counters at positions 0 to K - 1; ValueError where one is missing."""
    counts = counters.get(name, {})
    if sorted(counts) != list(range(len(counts))) or len(counts) > DEEPEST:
        raise ValueError(
            f"{source.file}: counters of some position are missing, expected {prefix}{name}_total "
            f"at each from 0 on, at most {DEEPEST}"
        )
    return np.array([counts[place] for place in range(len(counts))], np.int64)


def _counters(source: Source, prefix: str, names: Collection[str], label: str) -> Counters:
    name = re.compile(rf"{re.escape(prefix)}({'|'.join(names)})(?:_total)?\b")
    position = re.compile(rf'(?:^|,)\s*{label}="(\d{{1,3}})"')
    found: Counters = {}
    models = set()
    for number, line in enumerate(source.text.split("\n"), 1):
        found_name = name.match(line)
        if found_name is None:
            continue
        match = SAMPLE.fullmatch(line, found_name.end()) if len(line) <= LONGEST else None
        value = float(match[2]) if match else -1.0
        if match is None or not 0 <= value < LARGEST_NUMBER or value % 1:
            raise ValueError(f"line {number}: {line[:80]!r} is no counter")
        labels = match[1] or ""
        models |= set(MODEL.findall(labels))
        place = position.search(labels)
        counts = found.setdefault(found_name[1], {})
        at = int(place[1]) if place else NO_POSITION
        counts[at] = counts.get(at, 0) + int(value)
    if len(models) > 1:
        raise ValueError(f"{source.file} holds counters of {len(models)} models: keep one's lines")
    return found
