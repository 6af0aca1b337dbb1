"""Rounds in lists, one list a request: their checks, and whether they count the bonus token."""

from collections.abc import Sequence

import numpy as np

from simspec.imports.kinds import CensoredRounds, Origin
from simspec.imports.source import Source


def origin_of(source: Source) -> Origin:
    """Format, name and hash of a source."""
    return Origin(source.format, source.file, source.sha256)


def censored(
    source: Source,
    ids: Sequence[str],
    drafted: Sequence[np.ndarray],
    accepted: Sequence[np.ndarray],
    notes: Sequence[str] = (),
) -> CensoredRounds:
    """The rounds of requests; ValueError where a request's two lists differ in length."""
    for name, tried, right in zip(ids, drafted, accepted):
        if len(tried) != len(right):
            raise ValueError(
                f"request {name[:40]} has {len(tried)} rounds drafted and {len(right)} accepted, "
                "expected as many"
            )
    offset = np.concatenate(([0], np.cumsum([len(right) for right in accepted]))).astype(np.int64)
    empty = np.zeros(0, np.int64)
    return CensoredRounds(
        origin_of(source), tuple(ids), offset, np.concatenate([empty, *drafted]),
        np.concatenate([empty, *accepted]), tuple(notes),
    )  # fmt: skip


def without_bonus(
    lengths: Sequence[np.ndarray], emitted: int | None, key: str
) -> tuple[list[np.ndarray], str]:
    """Accepted drafts of lists that may count the bonus token, and a note on what was found.

    emitted: tokens of all requests. With the bonus the lists sum to about that; without, to that
    less the rounds. A zero proves that it is not counted. ValueError where neither fits within a
    quarter of the rounds.
    """
    rounds = sum(map(len, lengths))
    total = sum(int(length.sum()) for length in lengths)
    if any((length == 0).any() for length in lengths):
        return list(lengths), f"{key} holds zeros: it does not count the bonus token"
    if emitted is None:
        raise ValueError(
            f"whether {key} counts the bonus token is unknown: the file must give the tokens too"
        )
    with_bonus, without = abs(total - emitted), abs(total + rounds - emitted)
    if min(with_bonus, without) > rounds / 4:
        raise ValueError(
            f"{key} sums to {total} in {rounds} rounds and the tokens to {emitted}: neither with "
            "nor without the bonus token do they agree"
        )
    if with_bonus < without:
        return [length - 1 for length in lengths], f"{key} sums to the tokens: bonus counted"
    return list(lengths), f"{key} and the rounds sum to the tokens: bonus not counted"
