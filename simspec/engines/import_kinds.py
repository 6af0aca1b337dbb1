"""The kinds of import: exact, censored, pooled, and settings; what may be concluded differs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from simspec.policies.fixed import fixed
from simspec.trace.trace import Trace

DEEPEST = 255
"""Longest draft, as in recordings."""

LARGEST = 1 << 25
"""Counts of a table of requests by depth."""


@dataclass(frozen=True, eq=False)
class DepthCounts:
    """Rounds of S requests; depth j is tried where all before it are accepted and j is drafted.

    | field    | dtype, shape | meaning                                   |
    | -------- | ------------ | ----------------------------------------- |
    | tried    | int64[S, K]  | rounds that tried depth j + 1             |
    | accepted | int64[S, K]  | those of them whose token was accepted    |
    | clusters | bool         | S counts requests; False: all are in one  |

    ValueError unless accepted <= tried, and what is tried was accepted one depth before.
    """

    tried: np.ndarray
    accepted: np.ndarray
    clusters: bool = True

    def __post_init__(self) -> None:
        if self.tried.ndim != 2 or self.tried.shape != self.accepted.shape:
            raise ValueError("depth counts expect two tables [requests, depths] of one shape")
        if (self.accepted > self.tried).any() or (self.accepted < 0).any():
            raise ValueError("more drafts are accepted than tried at some depth: the file is wrong")
        if (self.tried[:, 1:] > self.accepted[:, :-1]).any():
            raise ValueError(
                "acceptance rises with depth: expected the share of rounds whose first j drafts "
                "are all accepted, which never rises"
            )

    @property
    def K(self) -> int:
        return self.tried.shape[1]


def of_rounds(offset: np.ndarray, drafted: np.ndarray, accepted: np.ndarray) -> DepthCounts:
    """The counts of rounds, request s from offset[s] to offset[s + 1] - 1."""
    requests, K = len(offset) - 1, max(int(drafted.max(initial=0)), 1)
    check_size(requests, K)
    request = np.repeat(np.arange(requests), np.diff(offset))

    def at_least(depth: np.ndarray) -> np.ndarray:
        """int64[requests, K]: rounds that got to depth 1 to K."""
        size = requests * (K + 1)
        counts = np.bincount(request * (K + 1) + depth, minlength=size).reshape(requests, K + 1)
        return counts[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]

    return DepthCounts(at_least(np.minimum(drafted, accepted + 1)), at_least(accepted))


def check_size(requests: int, K: int) -> None:
    """ValueError where a table of requests by depth would be too large."""
    if requests * K > LARGEST:
        raise ValueError(
            f"{requests} requests by {K} depths are over {LARGEST} counts: split the file"
        )


def of_histograms(counts: np.ndarray, clusters: bool = True) -> DepthCounts:
    """The counts of histograms int64[S, K + 1]: rounds of K drafts that accepted 0 to K."""
    at_least = counts[:, ::-1].cumsum(axis=1)[:, ::-1]
    return DepthCounts(at_least[:, :-1], at_least[:, 1:], clusters)


def of_totals(rounds: int, at_least: np.ndarray) -> DepthCounts:
    """The counts of totals: rounds of K drafts, and those that accepted at least 1 to K."""
    return DepthCounts(np.concatenate(([rounds], at_least[:-1]))[None], at_least[None], False)


@dataclass(frozen=True)
class Origin:
    """Source of an import: format, the file's name and the SHA-256 of its bytes."""

    format: str
    file: str
    sha256: str


@dataclass(frozen=True)
class ExactImport:
    """Recordings: the accepted length of a draft from every position is known.

    | field  | type           | meaning                        |
    | ------ | -------------- | ------------------------------ |
    | origin | Origin         | format, file, hash             |
    | traces | {str: Trace}   | one recording a drafter        |
    | notes  | (str,)         | what was assumed or left out   |
    """

    origin: Origin
    traces: Mapping[str, Trace]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class CensoredRounds:
    """Every round of a real run; what a longer draft would have given is unknown.

    | field    | dtype, shape | meaning                                                   |
    | -------- | ------------ | --------------------------------------------------------- |
    | origin   | Origin       | format, file, hash                                        |
    | ids      | (str,) [S]   | the requests                                              |
    | offset   | int64[S + 1] | request s has rounds offset[s] .. offset[s + 1] - 1       |
    | drafted  | int64[R]     | tokens drafted, at most 255; of trees, levels             |
    | accepted | int64[R]     | leading drafted tokens accepted, without the bonus token  |
    | notes    | (str,)       | what was assumed or left out                              |

    accepted == drafted is censored there. ValueError unless 0 <= accepted <= drafted.
    """

    origin: Origin
    ids: tuple[str, ...]
    offset: np.ndarray
    drafted: np.ndarray
    accepted: np.ndarray
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        rounds = len(self.drafted)
        if len(self.offset) != len(self.ids) + 1 or len(self.accepted) != rounds:
            raise ValueError("rounds expect one offset a request and one more, and equal columns")
        if self.offset[0] != 0 or self.offset[-1] != rounds or (np.diff(self.offset) < 0).any():
            raise ValueError(f"offsets of rounds expect to go up from 0 to {rounds}")
        if rounds == 0:
            raise ValueError("the file holds no round with a draft: nothing can be concluded")
        wrong = np.flatnonzero((self.accepted < 0) | (self.accepted > self.drafted))
        if len(wrong) or self.drafted.max() > DEEPEST:
            r = wrong[0] if len(wrong) else self.drafted.argmax()
            raise ValueError(
                f"round {r} accepted {self.accepted[r]} of {self.drafted[r]} drafted tokens, "
                f"expected accepted <= drafted <= {DEEPEST}: is the bonus token counted?"
            )

    @property
    def K(self) -> int | None:
        """The draft length of all rounds, None where it varies.

        The last round of a request may be shorter: the token budget cuts it, not the outcome.
        """
        lasting = np.ones(len(self.drafted), bool)
        lasting[self.offset[1:][np.diff(self.offset) > 0] - 1] = False
        lengths = np.unique(self.drafted[lasting] if lasting.any() else self.drafted)
        constant = len(lengths) == 1 and self.drafted.max() == lengths[0]
        return int(lengths[0]) if constant else None


@dataclass(frozen=True, eq=False)
class PooledCounts:
    """Sums over rounds; which round gave what is lost.

    | field              | type               | meaning                                       |
    | ------------------ | ------------------ | --------------------------------------------- |
    | origin             | Origin             | format, file, hash                            |
    | requests, rounds   | int/None           | counts; rounds are those with a draft         |
    | drafted, accepted  | int/None           | tokens, without the bonus token               |
    | length             | float/None         | tokens emitted a round                        |
    | length_means       | str                | definition of `length`                        |
    | length_per_request | float/None         | mean over requests of each one's own length   |
    | by_depth           | {int: DepthCounts} | by draft length K of the rounds               |
    | draft_length       | int/None           | of all rounds; None: varies or unknown        |
    | withheld           | {str: str}         | conclusion: why the file cannot give it       |
    | marginals          | {int: (float,)}    | by draft length, where counts are not given   |
    | lengths            | {int: float}       | tokens a round by draft length, each measured |
    | notes              | (str,)             | what was assumed or left out                  |

    ValueError where more tokens are accepted than drafted, or a length is outside [1, K + 1].
    """

    origin: Origin
    requests: int | None = None
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    length: float | None = None
    length_means: str = ""
    length_per_request: float | None = None
    by_depth: Mapping[int, DepthCounts] = field(default_factory=dict)
    draft_length: int | None = None
    withheld: Mapping[str, str] = field(default_factory=dict)
    marginals: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    lengths: Mapping[int, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rounds == 0:
            raise ValueError("the file holds no round with a draft: nothing can be concluded")
        drafted, accepted = self.drafted, self.accepted
        if drafted is not None and accepted is not None and accepted > drafted:
            raise ValueError(
                f"{self.accepted} tokens are accepted of {self.drafted} drafted, expected no more "
                "than those: is the bonus token counted?"
            )
        for K, length in self.lengths.items():
            if not (1 <= K <= DEEPEST and 1 <= length <= K + 1):
                raise ValueError(
                    f"the accepted length at K = {K} is {length:g}, expected 1 to K + 1 and K in "
                    f"1..{DEEPEST}: the bonus token counts"
                )


@dataclass(frozen=True)
class BatchTier:
    """How an engine drafts at some batch sizes.

    | field       | type        | meaning                                                 |
    | ----------- | ----------- | ------------------------------------------------------- |
    | first, last | int         | batch sizes; last None: and all above                   |
    | lengths     | (int,)      | draft lengths that it chooses from                      |
    | policy      | str         | of `simspec sweep --policy`; '': none drafts like it    |
    """

    first: int
    last: int | None
    lengths: tuple[int, ...]
    policy: str = ""


@dataclass(frozen=True)
class EngineSettings:
    """Settings by which an engine drafts; nothing in it says what is accepted.

    | field  | type          | meaning                               |
    | ------ | ------------- | ------------------------------------- |
    | origin | Origin        | format, file, hash                    |
    | method | str           | the engine's name of its mechanism    |
    | tiers  | (BatchTier,)  | by batch size, from 1 on, without gap |
    | notes  | (str,)        | what was assumed or left out          |

    ValueError for batch sizes with a gap, and for draft lengths that do not grow within 0..255.
    """

    origin: Origin
    method: str
    tiers: tuple[BatchTier, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        end: int | None = 0
        for tier in self.tiers:
            if end is None or tier.first != end + 1 or not (tier.last or tier.first) >= tier.first:
                raise ValueError(
                    f"batch sizes {tier.first} to {tier.last} follow those up to {end}, expected "
                    "tiers from 1 on without a gap"
                )
            end, steps = tier.last, tier.lengths
            if (
                not steps
                or not 0 <= steps[0] <= steps[-1] <= DEEPEST
                or sorted({*steps}) != [*steps]
            ):
                raise ValueError(
                    f"draft lengths are {list(steps)[:20]}, expected growing ones in 0..{DEEPEST}"
                )
        if not self.tiers:
            raise ValueError("the setting has no draft length, expected at least one")


Import = ExactImport | CensoredRounds | PooledCounts | EngineSettings


def constant_length(origin: Origin, method: str, length: int) -> EngineSettings:
    """One draft length at all batch sizes."""
    return EngineSettings(origin, method, (fixed_tier(1, None, length),))


def fixed_tier(first: int, last: int | None, length: int) -> BatchTier:
    """Batch sizes first to last that draft one length."""
    return BatchTier(first, last, (length,), fixed(length).name)


def adaptive_tier(longest: int, policy: str) -> BatchTier:
    """All batch sizes under a policy that starts from, or drafts at most, this length."""
    return BatchTier(1, None, (longest,), policy)
