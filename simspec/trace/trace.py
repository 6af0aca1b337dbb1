"""Trace: what a drafter would propose at every position of the target's output; Rounds on it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np

from simspec.trace.file import (
    ARRAYS,
    BY_ROW,
    OPTIONAL,
    SAMPLED,
    TraceError,
    TraceMeta,
    read_trace,
    write_trace,
)
from simspec.trace.quantization import TABLES

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
    | ratio          | float32[N, K]/None | min(meta.largest_ratio, q(y)/p(y)) of sampled rules  |
    | order          | uint8[N, K]/None   | place of the target's node in the dynamic tree       |
    | beam           | uint8[N, 2]/None   | beam search's result: nodes on target's path, nodes  |

    Every sequence has at least one row. A draft stops at its first end token. Ranks are along the
    target's path and saturate at 255. `order` is by depth, in the dynamic tree of meta.tree; 255:
    not in it.

    Checked on construction. TraceError names field, row, value and what was expected.
    `run[t] <= min(depth[t], rows left)`. A known rank is 0 on the first run[t] slots, and not 0 on
    the next if that slot was drafted and has a token. With meta.prefix_only a row's run continues
    into the next row. Under the rules rejection and block run is 0 and rank unknown: `drawn_trace`
    draws acceptance at each replay. Places in `order` grow by depth up to a 255, which stays:
    ancestors come before descendants.
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

    def __repr__(self) -> str:
        meta = self.meta
        about = f"{meta.drafter!r} for {meta.target!r}, {meta.rule}, K = {self.K}"
        return f"Trace({about}: {self.sequences} sequences, {self.rows} tokens)"

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row for each output token.

        Columns: sequence (0 .. S - 1), id and task of its prompt, position in the output, token,
        depth and run. Features and prompts stay arrays.
        """
        from pandas import DataFrame

        sequence = np.repeat(np.arange(self.sequences), np.diff(self.offset))
        columns = {
            "sequence": sequence,
            "id": np.array(self.meta.ids, object)[sequence],
            "task": np.array(self.meta.tasks, object)[sequence],
            "position": np.arange(self.rows) - self.offset[sequence],
        }
        return DataFrame(columns | {n: getattr(self, n) for n in ("token", "depth", "run")})

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
        prompt = _ranges(self.prompt_offset, indices)
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
            **self._rows(_ranges(self.offset, indices)),
        )

    def under(self, rule: str) -> "Trace":
        """The same sequences and drafts, verified one by one ('rejection') or together ('block').

        TraceError where ratios are capped at 1 and hide what is accepted together, as in older
        files, and for a recording without ratios.
        """
        return replace(self, meta=replace(self.meta, rule=rule))

    def _rows(self, rows: np.ndarray) -> dict[str, Any]:
        arrays = {name: getattr(self, name) for name in BY_ROW}
        return {name: None if array is None else array[rows] for name, array in arrays.items()}

    def shorten(self, budget: int) -> "Trace":
        """The first tokens of each sequence, as if no more were allowed; TraceError below 1."""
        if budget < 1:
            raise TraceError(f"budget is {budget}, expected at least one new token")
        lengths = np.minimum(np.diff(self.offset), budget)
        starts = zip(self.offset, lengths)
        by_row = self._rows(np.concatenate([np.arange(a, a + length) for a, length in starts]))
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
        _check_shapes(self)
        _check_meta(self)
        _check_sequences(self)
        left = np.repeat(self.offset[1:], np.diff(self.offset)) - np.arange(self.rows)
        reach = np.minimum(self.depth, left)
        _refuse("depth", self.depth > self.K, self.depth, f"at most K = {self.K}")
        expected = "at most depth and the rows left in the sequence"
        _refuse("run", self.run > reach, self.run, expected)
        _check_ratio(self)
        _check_rank(self, reach)
        _check_prefix(self, left)
        _check_order(self, left)
        return self

    def save(self, path: str | PathLike[str], small: bool = False) -> None:
        """Writes the trace to one Parquet file, completely or not at all; `small`: 6% smaller, 5
        times slower. TraceError where prompts and metadata take over 1 GiB.
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


def _check_shapes(trace: Trace) -> None:
    count, K = len(trace.offset) - 1, trace.meta.K
    sizes = {
        "S+1": count + 1, "S": count, "N": len(trace.token), "P": len(trace.prompt),
        "K": K, "F": len(trace.meta.features), "2": 2,
    }  # fmt: skip
    for name, (dtype, axes) in ARRAYS.items():
        array, shape = getattr(trace, name), tuple(sizes[axis] for axis in axes)
        if array is None and name in OPTIONAL:
            continue
        if not isinstance(array, np.ndarray):
            raise TraceError(f"{name} is {type(array).__name__}, expected {dtype}{list(shape)}")
        if array.dtype != dtype or array.shape != shape:
            actual = f"{array.dtype}{list(array.shape)}"
            raise TraceError(f"{name} is {actual}, expected {dtype}{list(shape)}")
    if count < 1:
        raise TraceError("offset describes no sequence, expected at least one")


def _check_meta(trace: Trace) -> None:
    for name in ("tasks", "ids"):
        entries, count = len(getattr(trace.meta, name)), trace.sequences
        if entries != count:
            raise TraceError(f"meta.{name} has {entries} entries, expected one for each of {count}")
    for name, grid in trace.meta.features:
        if grid not in TABLES:
            raise TraceError(f"meta.features: {name!r} lies on grid {grid!r}, of no known table")


def _check_sequences(trace: Trace) -> None:
    offset, rows, length = trace.offset, trace.rows, np.diff(trace.offset)
    if offset[0] != 0 or offset[-1] != rows or (length < 1).any():
        raise TraceError(
            f"offset runs {offset[0]}..{offset[-1]}, expected strictly up from 0 to {rows} rows"
        )
    first, last = trace.prompt_offset[[0, -1]]
    if first != 0 or last != len(trace.prompt) or (np.diff(trace.prompt_offset) < 0).any():
        raise TraceError(
            f"prompt_offset runs {first}..{last}, expected up from 0 to {len(trace.prompt)} tokens"
        )
    outside = (trace.sequence < 0) | (trace.sequence >= 1 << 32)
    _refuse("sequence", outside, trace.sequence, "an address in 0 .. 2**32 - 1", "sequence")
    expected = "at least the sequence's length"
    _refuse("budget", trace.budget < length, trace.budget, expected, "sequence")
    is_last = np.zeros(rows, bool)
    is_last[offset[1:] - 1] = True
    is_end = np.isin(trace.token, trace.meta.end_tokens)
    _refuse("token", is_end & ~is_last, trace.token, "no end token before the last row")
    short = (length < trace.budget) & ~is_end[is_last]
    expected = "the sequence's length, since it does not end with an end token"
    _refuse("budget", short, trace.budget, expected, "sequence")


def _check_ratio(trace: Trace) -> None:
    if (trace.ratio is None) == (trace.meta.rule in SAMPLED):
        state = "missing" if trace.ratio is None else "there"
        raise TraceError(
            f"ratio is {state} under rule {trace.meta.rule!r}, "
            "expected it under the rules rejection and block and nowhere else"
        )
    if trace.ratio is None:
        return
    if trace.rank is not None:
        raise TraceError("rank is there under the rejection rule, expected ratio alone")
    expected = "0: under the rejection rule it is drawn at each replay"
    _refuse("run", trace.run > 0, trace.run, expected)
    most = trace.meta.largest_ratio
    outside = ~((trace.ratio >= 0) & (trace.ratio <= most))
    if outside.any():
        row, slot = np.unravel_index(int(np.argmax(outside)), outside.shape)
        raise TraceError(
            f"ratio, row {row}, slot {slot}: {trace.ratio[row, slot]}, "
            f"expected a number in [0, {most:g}]"
        )


def _check_rank(trace: Trace, reach: np.ndarray) -> None:
    if trace.rank is None:
        return
    accepted = np.arange(trace.K) < trace.run[:, None]
    wrong = ((trace.rank != 0) & accepted).any(1)
    _refuse("rank", wrong, trace.run, "rank 0 on the first run slots, found run =")
    missed = np.flatnonzero(trace.run < reach)
    wrong = np.zeros(trace.rows, bool)
    wrong[missed] = trace.rank[missed, trace.run[missed]] == 0
    expected = "a rank above 0 at the first rejected slot, found run ="
    _refuse("rank", wrong, trace.run, expected)


def _check_prefix(trace: Trace, left: np.ndarray) -> None:
    if not trace.meta.prefix_only:
        return
    # Drafts 2, 3, ... of row t are drafts 1, 2, ... of row t + 1 while they are accepted.
    t = np.flatnonzero((trace.run > 0) & (left > 1))
    wrong = np.zeros(trace.rows, bool)
    wrong[t] = trace.run[t + 1] < np.minimum(trace.run[t] - 1, trace.depth[t + 1])
    expected = "a run that continues into the next row, since meta.prefix_only is set"
    _refuse("run", wrong, trace.run, expected)


def _check_order(trace: Trace, left: np.ndarray) -> None:
    if (trace.order is None) == bool(trace.meta.tree):
        state = "missing" if trace.order is None else "there"
        raise TraceError(
            f"order is {state} and meta.tree is {trace.meta.tree}, expected both or neither"
        )
    if trace.order is None:
        if trace.beam is not None:
            raise TraceError("beam is there without order, expected both of the same trees")
        return
    width, levels = trace.meta.tree  # type: ignore[misc]
    _check_beam(trace, left, width, levels)
    inside = np.arange(trace.K) < left[:, None]
    place = np.where(inside, trace.order, 255).astype(np.int64)
    first = trace.order[:, 0]
    wrong = (place[:, levels:] < 255).any(1)
    expected = f"255 after the {levels} levels of meta.tree; at depth 1 there is"
    _refuse("order", wrong, first, expected)
    wrong = ((np.diff(place, axis=1) <= 0) & (place[:, 1:] < 255)).any(1)
    expected = "places that grow along the text, and only 255 after a 255; at depth 1 there is"
    _refuse("order", wrong, first, expected)
    if trace.rank is not None:
        wrong = ((place < 255) & (trace.rank >= width)).any(1)
        expected = f"255 where the rank is not under the width {width}; at depth 1 there is"
        _refuse("order", wrong, first, expected)


def _check_beam(trace: Trace, left: np.ndarray, width: int, levels: int) -> None:
    if trace.beam is None:
        return
    accepted, nodes = trace.beam.astype(np.int64).T
    wrong = (accepted > np.minimum(left, levels)) | (accepted > nodes) | (nodes > width * levels)
    expected = f"at most text, {levels} levels and nodes, of those {width} a level"
    _refuse("beam", wrong, trace.beam[:, 0], expected)


def _refuse(name: str, wrong: Any, values: np.ndarray, expected: str, unit: str = "row") -> None:
    """TraceError that names the first index at which `wrong` is true."""
    if wrong.any():
        index = int(np.argmax(wrong))
        raise TraceError(f"{name}, {unit} {index}: {values[index]}, expected {expected}")


@dataclass(frozen=True, eq=False)
class Rounds:
    """Rounds of a simulator or an engine; `==` between the two proves that they agree.

    | field    | dtype, shape | meaning                                                     |
    | -------- | ------------ | ----------------------------------------------------------- |
    | offset   | int64[S + 1] | rounds offset[s] .. offset[s + 1] - 1 belong to sequence s  |
    | row      | int64[R]     | row of the trace at which the round starts                  |
    | computed | int64[R]     | draft tokens computed                                       |
    | drafted  | int64[R]     | of these, submitted to the target: computed or computed - 1 |
    | accepted | int64[R]     | of these, accepted; `committed` tokens are usually one more |
    """

    offset: np.ndarray
    row: np.ndarray
    computed: np.ndarray
    drafted: np.ndarray
    accepted: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    def __repr__(self) -> str:
        accepted, sequences = int(self.accepted.sum()), len(self.offset) - 1
        return f"Rounds({len(self)} of {sequences} sequences: {accepted} drafted tokens accepted)"

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row for each round, in order.

        Columns: sequence (0 .. S - 1), then row, computed, drafted and accepted as here.
        """
        from pandas import DataFrame

        sequence = np.repeat(np.arange(len(self.offset) - 1), np.diff(self.offset))
        names = ("row", "computed", "drafted", "accepted")
        return DataFrame({"sequence": sequence} | {name: getattr(self, name) for name in names})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rounds) and all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in self.__dataclass_fields__
        )

    @classmethod
    def join(cls, sequences: Iterable[Any], start: Any = None) -> "Rounds":
        """From one int64[R_s, 4] per sequence with columns (row, computed, drafted, accepted).

        start[s] is added to the rows of sequence s: pass trace.offset when rows count from the
        sequence's start.
        """
        blocks = [np.asarray(rounds, dtype=np.int64).reshape(-1, 4) for rounds in sequences]
        counts = [len(block) for block in blocks]
        offset = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        columns = np.concatenate(blocks) if blocks else np.zeros((0, 4), np.int64)
        row, computed, drafted, accepted = (np.ascontiguousarray(column) for column in columns.T)
        if start is not None:
            row = row + np.repeat(np.asarray(start)[: len(blocks)], np.diff(offset))
        return cls(offset, row, computed, drafted, accepted)

    def as_set(self) -> set[tuple[int, int, int, int]]:
        """(row, computed, drafted, accepted) of all rounds."""
        columns = self.row, self.computed, self.drafted, self.accepted
        return set(zip(*(column.tolist() for column in columns)))

    def select(self, indices: Any, trace: Trace | None = None) -> "Rounds":
        """The rounds of these sequences; with their trace, rows are those of
        trace.select(indices).
        """
        columns = np.stack((self.row, self.computed, self.drafted, self.accepted), axis=1)
        blocks = [columns[self.offset[s] : self.offset[s + 1]] for s in indices]
        if trace is None:
            return Rounds.join(blocks)
        length = np.diff(trace.offset)[np.asarray(indices)]
        start = np.cumsum(length) - length - trace.offset[np.asarray(indices)]
        return Rounds.join(blocks, start=start)


def committed(rounds: Rounds, trace: Trace) -> np.ndarray:
    """int64[R]: tokens that each round commits: accepted + 1, or accepted where an end token is
    accepted.
    """
    ends = np.append(rounds.row, trace.rows)[1:]
    last = rounds.offset[1:] - 1
    ends[last] = trace.offset[1:]
    tokens: np.ndarray = ends - rounds.row
    return tokens


def broken_rounds(trace: Trace, rounds: Rounds, K: int) -> int:
    """Rounds that break a rule: accepted = min(drafted, run[row]); 0 <= drafted, computed <= min(K,
    budget left - 1, depth[row]); drafted is computed, or one less; the next round begins after the
    accepted tokens and the bonus token.
    """
    first, last = rounds.offset[:-1], rounds.offset[1:] - 1
    sequence = np.repeat(np.arange(trace.sequences), np.diff(rounds.offset))
    row, end = rounds.row, trace.offset[1:][sequence]
    left = trace.budget[sequence] - (row - trace.offset[sequence])
    cap = np.minimum(np.minimum(K, left - 1), trace.depth[row])
    follows = np.append(row[1:], 0)
    follows[last] = trace.offset[1:]
    wrong = rounds.accepted != np.minimum(rounds.drafted, trace.run[row])
    wrong |= (rounds.computed > cap) | (rounds.drafted < 0)
    wrong |= (rounds.drafted > rounds.computed) | (rounds.drafted < rounds.computed - 1)
    wrong |= np.minimum(row + rounds.accepted + 1, end) != follows
    wrong[first] |= row[first] != trace.offset[:-1]
    return int(wrong.sum())
