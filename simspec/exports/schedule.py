"""Schedule: the draft length of each batch size."""

from bisect import bisect_left
from dataclasses import dataclass, replace

MAX_LENGTH = 255
CAPTURED = 512
"""Rows that vLLM's largest CUDA graph holds by default."""


@dataclass(frozen=True)
class Schedule:
    """Draft lengths by batch size; batches of batch[i - 1] + 1 to batch[i] draft length[i] tokens.

    | field  | type, shape                   | meaning                                  |
    | ------ | ----------------------------- | ---------------------------------------- |
    | batch  | (int,) [n], growing, >= 1     | largest batch size of each step          |
    | length | (int,) [n], 0..255            | tokens drafted for each sequence         |

    Batches beyond the last size are not covered. ValueError for other values.
    """

    batch: tuple[int, ...]
    length: tuple[int, ...]

    def __post_init__(self) -> None:
        growing = all(a < b for a, b in zip((0, *self.batch), self.batch))
        if not self.batch or not growing or len(self.batch) != len(self.length):
            raise ValueError(
                f"schedule has batch sizes {list(self.batch)} and {len(self.length)} lengths, "
                "expected growing sizes from 1 on with one length each"
            )
        if not all(0 <= k <= MAX_LENGTH for k in self.length):
            raise ValueError(
                f"schedule has lengths {list(self.length)}, expected 0 to {MAX_LENGTH}"
            )

    @property
    def longest(self) -> int:
        """The longest draft of any batch size."""
        return max(self.length)

    @property
    def single(self) -> bool:
        """Whether all batch sizes draft alike."""
        return len(set(self.length)) == 1

    @property
    def steps(self) -> list[tuple[int, int, int]]:
        """[(first batch size, last, length)]: neighbours of equal length are one step."""
        steps: list[tuple[int, int, int]] = []
        for low, high, length in zip((1, *(b + 1 for b in self.batch)), self.batch, self.length):
            if steps and steps[-1][2] == length:
                low = steps.pop()[0]
            steps.append((low, high, length))
        return steps

    def at(self, batch: int) -> int:
        """The draft length at that batch size; ValueError beyond the last."""
        if not 1 <= batch <= self.batch[-1]:
            raise ValueError(f"batch is {batch}, expected 1 to {self.batch[-1]}")
        return self.length[bisect_left(self.batch, batch)]


@dataclass(frozen=True)
class Limits:
    """What an engine allows of a schedule.

    | field    | type | meaning                                                              |
    | -------- | ---- | -------------------------------------------------------------------- |
    | captured | int  | rows of the largest captured graph, batch (k + 1) at most; 0: any    |
    | shortest | int  | the shortest draft to choose from                                    |
    | longest  | int  | the longest draft                                                    |
    | falling  | bool | no batch size drafts more than the smallest                          |
    """

    captured: int = 0
    shortest: int = 0
    longest: int = MAX_LENGTH
    falling: bool = False

    def cap(self, batch: int) -> int:
        """The longest draft of that batch size: batch (k + 1) <= captured, and `longest`."""
        rows = MAX_LENGTH if self.captured == 0 else self.captured // batch - 1
        return max(self.shortest, min(rows, self.longest))

    def of(self, schedule: Schedule) -> Schedule:
        """The schedule with each length at most its cap."""
        caps = [self.cap(batch) for batch in schedule.batch]
        if self.falling:
            first = min(schedule.length[0], caps[0])
            caps = [min(cap, first) for cap in caps]
        return replace(schedule, length=tuple(map(min, schedule.length, caps)))


NO_LIMITS = Limits()
