"""Counts of rounds: lists, histograms, totals and means of emitted lengths."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simspec.engines.documents import Fields
from simspec.engines.import_kinds import (
    DEEPEST,
    CensoredRounds,
    DepthCounts,
    Origin,
    PooledCounts,
    check_size,
    of_histograms,
    of_totals,
)
from simspec.engines.source import ImportOptions, Source


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


Part = tuple[int, int, np.ndarray]
"""A request, its draft length K, and its rounds that accepted 0, 1 .. K tokens."""


def dense(fields: Fields, key: str, K: int | None = None) -> np.ndarray:
    """int64 of a list or of an object {accepted: rounds}; K + 1 entries where K is given."""
    if type(fields.values.get(key)) is dict:
        table = fields.table(key)
        size = max([*table, K or 0]) + 1
        if size > DEEPEST + 1:
            raise fields.error(key, size - 1, f"at most {DEEPEST} accepted tokens")
        counts = np.zeros(size, np.int64)
        counts[list(table)] = list(table.values())
    else:
        counts = fields.wholes(key)
    if len(counts) > DEEPEST + 1 or K is not None and len(counts) != K + 1:
        raise fields.error(key, counts.tolist(), f"{'256 at most' if K is None else K + 1} counts")
    return counts


def check_sums(fields: Fields, key: str, counts: np.ndarray, rounds: int, accepted: int) -> None:
    """ValueError unless the counts sum to the rounds, and weighted ones to the accepted tokens."""
    sums = int(counts.sum()), int(counts @ np.arange(len(counts)))
    if sums != (rounds, accepted):
        raise ValueError(
            f"{fields.place}: {key} holds {sums[0]} rounds with {sums[1]} accepted tokens, the "
            f"counters say {rounds} and {accepted}: does it count the bonus token?"
        )


def constant(parts: Sequence[Part], withheld: Mapping[str, str]) -> int | None:
    """The draft length of all rounds, None where it varies or is withheld."""
    lengths = {K for _, K, counts in parts if counts.any()}
    return max(lengths) if len(lengths) == 1 and not withheld and max(lengths) else None


def by_length(parts: Sequence[Part], requests: int) -> dict[int, DepthCounts]:
    """{K: DepthCounts} of rounds by their draft length; K = 0 tried nothing."""
    tables: dict[int, np.ndarray] = {}
    for request, K, counts in parts:
        if K > 0:
            if K not in tables:
                check_size(requests, K)
            tables.setdefault(K, np.zeros((requests, K + 1), np.int64))[request] += counts
    return {K: of_histograms(tables[K]) for K in sorted(tables)}


PER_ROUND = "1 + accepted drafts / rounds with a draft (bonus token included)"
MIXED = (
    "rounds of several draft lengths are in one histogram: deeper tokens were tried by some rounds "
    "only, and which is lost"
)
ROUNDED = 0.0051
"""Largest difference of a figure from its own counts, such as of two decimals."""

LOST = 0.01
"""Largest share of rounds whose draft may be short, such as the last ones of requests."""


def mean_of(rounds: Any, accepted: Any) -> float | None:
    """1 + accepted / rounds: of totals, or the mean of it over requests that have rounds."""
    rounds, accepted = np.atleast_1d(rounds), np.atleast_1d(accepted)
    drafting = rounds > 0
    if not drafting.any():
        return None
    return float((1 + accepted[drafting] / rounds[drafting]).mean())


def rounding_slack(rounds: int, K: int) -> float:
    """Accepted tokens that K rates of three decimals may miss or add, over all positions."""
    error = 0.0005 * rounds
    return K * (error + 0.5) if error >= 0.5 else 0.0


def check_figure(fields: Fields, key: str, expected: float) -> None:
    """ValueError where a figure of the file is there and not `expected`, to two decimals.

    Another figure under a known name is another definition: of the bonus token, or tested tokens.
    """
    if key in fields and abs(fields.number(key) - expected) > ROUNDED:
        counts = "a length with the bonus token, or accepted / drafted tokens"
        raise fields.error(key, fields.number(key), f"{expected:.4f} by the counts ({counts})")


def check_means(
    fields: Fields, length: str, rate: str, rounds: int, drafted: int, accepted: int
) -> None:
    """`check_figure` of a mean length and of a rate, where there are rounds and drafts."""
    if rounds:
        check_figure(fields, length, 1 + accepted / rounds)
    if drafted:
        check_figure(fields, rate, accepted / drafted)


def at_constant_length(
    rounds: int, drafted: int, accepted: int, at_least: np.ndarray, slack: float = 0.0
) -> tuple[dict[int, DepthCounts], dict[str, str], list[str]]:
    """({K: counts}, withheld, notes) of rounds that accepted at least 1 to K tokens.

    Rounds whose draft is shorter than K are at most the K rounds - drafted missing tokens. Up to
    1% of the rounds they are taken as K long, with a note; above, the draft length varies. slack:
    accepted tokens that rounded rates may miss.
    """
    K = len(at_least)
    missing = K * rounds - drafted
    if not 1 <= K <= DEEPEST or missing < 0:
        raise ValueError(
            f"{drafted} tokens are drafted in {rounds} rounds with {K} positions, expected at most "
            f"{K} each: the file is of two runs, or counts the bonus token"
        )
    if abs(int(at_least.sum()) - accepted) > slack:
        raise ValueError(
            f"positions sum to {int(at_least.sum())} accepted tokens, the total is {accepted}: "
            "expected the same"
        )
    if missing > LOST * rounds:
        return {}, {"acceptance by depth": MIXED}, []
    notes = [f"{missing} drafted tokens fewer than K a round: acceptance is up to "
             f"{missing / rounds:.4f} too low at each depth"] if missing else []  # fmt: skip
    return {K: of_totals(rounds, at_least)}, {}, notes


PER_STEP = "mean over steps of the emitted tokens (bonus token included)"


def of_emitted_lengths(
    source: Source, options: ImportOptions, row: Fields, key: str, block: str = ""
) -> PooledCounts:
    """Counts of steps that emitted 1 to K + 1 tokens; K: `options.drafted`, or the most accepted.

    block: why acceptance has no depth there; ''. ValueError where a step emits more than K + 1.
    """
    emitted = dense(row, key)
    notes: tuple[str, ...] = ()
    if emitted[:1].any():
        raise ValueError(f"{key} counts steps of 0 tokens, expected lengths with the bonus token")
    counts = emitted[1:]
    if not counts.any():
        raise ValueError(f"{key} is empty: nothing can be concluded")
    K = options.drafted or max(len(counts) - 1, 1)
    if counts[K + 1 :].any():
        raise ValueError(f"{key} holds steps of {len(counts)} tokens, over K + 1 = {K + 1}")
    if options.drafted is None:
        notes = (f"the file gives no draft length: K = {K} is its most accepted",)
    rounds, accepted = int(counts.sum()), int(counts @ np.arange(len(counts)))
    padded = np.pad(counts, (0, K + 1))[: K + 1]
    by_depth = {} if block else by_length([(0, K, padded)], 1)
    return PooledCounts(
        origin_of(source), None, rounds, None, accepted, mean_of(rounds, accepted), PER_STEP, None,
        by_depth, max(by_depth, default=None), {"acceptance by depth": block} if block else {},
        notes=notes,
    )  # fmt: skip


SUM_OF_RATES = "1 + sum of the marginal rates (bonus token included)"
NO_COUNTS = "the file gives rates without counts: no intervals"
TOLD = "the file tells an engine what to simulate; that it was measured, at this K, is assumed"


def of_marginals(source: Source, K: int, marginals: Sequence[float]) -> PooledCounts:
    """Marginal rates of an engine that simulates draft length K: no counts, no intervals."""
    return PooledCounts(
        origin_of(source), length=1 + float(np.sum(marginals)), length_means=SUM_OF_RATES,
        draft_length=K, withheld={"rounds": NO_COUNTS},
        marginals={K: tuple(map(float, marginals))}, notes=(TOLD,),
    )  # fmt: skip


def of_mean(source: Source, K: int, length: float, name: str) -> PooledCounts:
    """The mean length that an engine simulates at draft length K; name: its key or flag."""
    reason = f"{name.lstrip('-')} is a mean: it has no positions"
    return PooledCounts(
        origin_of(source), length=length,
        length_means="mean tokens a round (bonus token included)", draft_length=K,
        withheld={"rounds": NO_COUNTS, "acceptance by depth": reason}, notes=(TOLD,),
    )  # fmt: skip
