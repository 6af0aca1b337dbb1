"""The three kinds of import: exact, censored and pooled; what may be concluded differs by type."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from simspec.imports.depth_counts import DEEPEST, DepthCounts
from simspec.trace import Trace


@dataclass(frozen=True)
class Origin:
    """Where an import comes from: format, the file's name and the SHA-256 of its bytes."""

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
    | notes              | (str,)             | what was assumed or left out                  |

    ValueError where more tokens are accepted than drafted.
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


Import = ExactImport | CensoredRounds | PooledCounts
