"""Trace: what a drafter would propose from every position of the target's own output."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np

from simspec.trace.checks import check_trace_arrays
from simspec.trace.file import read_trace, write_trace
from simspec.trace.meta import TraceError, TraceMeta
from simspec.trace.schema import ARRAYS, BY_ROW, OPTIONAL

__all__ = ["OPTIONAL", "Trace", "TraceError", "TraceMeta", "load_trace"]


@dataclass(frozen=True, eq=False)
class Trace:
    """S sequences of N rows in all; row t holds the target's next token and a draft's outcome
    there.

    | field          | dtype, shape       | meaning                                              |
    | -------------- | ------------------ | ---------------------------------------------------- |
    | offset         | int64[S + 1]       | sequence s has rows offset[s] .. offset[s + 1] - 1   |
    | budget         | int64[S]           | new tokens allowed; only an end token stops earlier  |
    | token          | int32[N]           | the target's output                                  |
    | depth          | uint8[N]           | longest draft: K, or the drafter's limit or end      |
    | run            | uint8[N]           | accepted length if depth tokens were drafted         |
    | meta           | TraceMeta          | K, features, rule, provenance                        |
    | prompt_offset  | int64[S + 1]       | prompt tokens of sequence s (default: no prompts)    |
    | prompt         | int32[P]           | prompt tokens                                        |
    | sequence       | int64[S]           | draw addresses, < 2**32 (default 0 .. S - 1)         |
    | feature        | uint8[N, K, F]     | codes on meta.features' grids, past rejections too   |
    | rank           | uint8[N, K]/None   | drafter's rank of the target's token, 0: its choice  |
    | margin         | uint8[N]/None      | target's best minus second logit, `encode_margin`    |
    | draft_margin   | uint8[N, K]/None   | the same of the drafter                              |
    | feature_margin | uint8[N, K]/None   | smallest distance of a feature to its bin's edge     |
    | ratio          | float32[N, K]/None | P(accepted) = min(1, q(y)/p(y)), rejection rule only |
    | order          | uint8[N, K]/None   | place of the target's node in the dynamic tree       |
    | beam           | uint8[N, 2]/None   | beam search's result: nodes on target's path, nodes  |

    Every sequence has at least one row. A draft stops at its first end token. Ranks are along the
    target's path and saturate at 255. `order` is by depth, in the dynamic tree of meta.tree; 255:
    not in it.

    Checked on construction. TraceError names field, row, value and what was expected.
    `run[t] <= min(depth[t], rows left)`. A known rank is 0 on the first run[t] slots, and not 0 on
    the next if that slot was drafted and has a token. With meta.prefix_only a row's run continues
    into the next row. Under the rejection rule run is 0 and rank unknown: `drawn_trace` draws
    acceptance at each replay. Places in `order` grow by depth up to a 255, which stays: ancestors
    come before descendants.
    """

    offset: np.ndarray
    budget: np.ndarray
    token: np.ndarray
    depth: np.ndarray
    run: np.ndarray
    meta: TraceMeta
    prompt_offset: np.ndarray = None  # type: ignore[assignment]
    prompt: np.ndarray = None  # type: ignore[assignment]
    sequence: np.ndarray = None  # type: ignore[assignment]
    feature: np.ndarray = None  # type: ignore[assignment]
    rank: np.ndarray | None = None
    margin: np.ndarray | None = None
    draft_margin: np.ndarray | None = None
    feature_margin: np.ndarray | None = None
    ratio: np.ndarray | None = None
    order: np.ndarray | None = None
    beam: np.ndarray | None = None

    def __post_init__(self) -> None:
        defaults: dict[str, Callable[[], np.ndarray]] = {
            "prompt_offset": lambda: np.zeros(len(self.offset), np.int64),
            "prompt": lambda: np.zeros(0, np.int32),
            "sequence": lambda: np.arange(len(self.offset) - 1),
            "feature": lambda: np.zeros((len(self.token), self.meta.K, 0), np.uint8),
        }
        for name, default in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default())
        self.validate()
        for name in ARRAYS:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace) or self.meta != other.meta:
            return False
        pairs = [(getattr(self, name), getattr(other, name)) for name in ARRAYS]
        return all(a is b if a is None or b is None else np.array_equal(a, b) for a, b in pairs)

    @property
    def sequences(self) -> int:
        return len(self.offset) - 1

    @property
    def rows(self) -> int:
        return len(self.token)

    @property
    def K(self) -> int:
        return self.meta.K

    @property
    def task(self) -> tuple[str, ...]:
        """The task of each sequence, [S]."""
        return self.meta.tasks

    def features(self, names: Sequence[str]) -> np.ndarray:
        """Columns of `feature` with these features, int64; TraceError for one that was not
        recorded.
        """
        recorded = [name for name, _ in self.meta.features]
        for name in names:
            if name not in recorded:
                raise TraceError(
                    f"feature {name!r} is not in this trace, which has {recorded}: "
                    "record it, or use another policy"
                )
        return np.array([recorded.index(name) for name in names], dtype=np.int64)

    def select(self, indices: Sequence[int] | np.ndarray) -> "Trace":
        """The sequences at these indices, in that order; each keeps its draw address and so its
        replay.
        """
        indices = np.asarray(indices)
        if indices.ndim != 1 or len(indices) == 0 or indices.dtype.kind not in "iu":
            raise TraceError("select takes a non-empty list of sequence indices")
        if indices.min() < 0 or indices.max() >= self.sequences:
            raise TraceError(
                f"select was given indices {indices.min()}..{indices.max()}, "
                f"the trace has {self.sequences} sequences"
            )
        rows, prompt = _ranges(self.offset, indices), _ranges(self.prompt_offset, indices)
        by_row: dict[str, Any] = {
            name: None if (array := getattr(self, name)) is None else array[rows] for name in BY_ROW
        }
        return Trace(
            offset=_offsets(np.diff(self.offset)[indices]),
            budget=self.budget[indices],
            prompt_offset=_offsets(np.diff(self.prompt_offset)[indices]),
            prompt=self.prompt[prompt],
            sequence=self.sequence[indices],
            meta=replace(
                self.meta,
                tasks=tuple(self.meta.tasks[s] for s in indices),
                ids=tuple(self.meta.ids[s] for s in indices),
            ),
            **by_row,
        )

    def shorten(self, budget: int) -> "Trace":
        """The first tokens of each sequence, as if no more were allowed; TraceError below 1."""
        if budget < 1:
            raise TraceError(f"budget is {budget}, expected at least one new token")
        lengths = np.minimum(np.diff(self.offset), budget)
        rows = np.concatenate(
            [np.arange(start, start + length) for start, length in zip(self.offset, lengths)]
        )
        by_row: dict[str, Any] = {
            name: None if (array := getattr(self, name)) is None else array[rows] for name in BY_ROW
        }
        left = np.concatenate([np.arange(length, 0, -1) for length in lengths])
        by_row["run"] = np.minimum(by_row["run"], left).astype(self.run.dtype)
        if self.beam is not None:
            path = np.minimum(by_row["beam"][:, 0], left)
            by_row["beam"] = np.column_stack((path, by_row["beam"][:, 1])).astype(self.beam.dtype)
        return replace(
            self, offset=_offsets(lengths), budget=np.minimum(self.budget, budget), **by_row
        )

    def validate(self) -> "Trace":
        """Checks every line of the class's table; returns the trace, raises TraceError."""
        check_trace_arrays(self)
        return self

    def save(self, path: str | PathLike[str], small: bool = False) -> None:
        """Writes the trace to one Parquet file, completely or not at all; `small`: 6% smaller, 5
        times slower.
        """
        write_trace(self, path, small)


def load_trace(path: str | PathLike[str]) -> Trace:
    """Reads what `Trace.save` wrote, and checks page checksums, the hash and every invariant.

    TraceError, one line with the path, whatever is wrong with the file; nothing in it is executed.
    """
    return read_trace(path, Trace)


def _ranges(offset: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.concatenate([np.arange(offset[s], offset[s + 1]) for s in indices])


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
