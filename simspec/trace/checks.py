"""The invariants of a trace, line by line of its table."""

from typing import Any

import numpy as np

from simspec.trace.meta import TraceError
from simspec.trace.quantization import TABLES
from simspec.trace.schema import ARRAYS, OPTIONAL


def check_trace_arrays(trace: Any) -> None:
    """Checks every line of the table of `Trace`; TraceError at the first line broken."""
    _check_shapes(trace)
    _check_meta(trace)
    _check_sequences(trace)
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    reach = np.minimum(trace.depth, left)
    _refuse("depth", trace.depth > trace.K, trace.depth, f"at most K = {trace.K}")
    expected = "at most depth and the rows left in the sequence"
    _refuse("run", trace.run > reach, trace.run, expected)
    _check_ratio(trace)
    _check_rank(trace, reach)
    _check_prefix(trace, left)
    _check_order(trace, left)


def _check_shapes(trace: Any) -> None:
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


def _check_meta(trace: Any) -> None:
    for name in ("tasks", "ids"):
        entries = len(getattr(trace.meta, name))
        if entries != trace.sequences:
            raise TraceError(
                f"meta.{name} has {entries} entries, expected one per sequence ({trace.sequences})"
            )
    for name, grid in trace.meta.features:
        if grid not in TABLES:
            raise TraceError(
                f"meta.features: {name!r} lies on grid {grid!r}, expected one of {sorted(TABLES)}"
            )


def _check_sequences(trace: Any) -> None:
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


def _check_ratio(trace: Any) -> None:
    if (trace.ratio is None) == (trace.meta.rule == "rejection"):
        state = "missing" if trace.ratio is None else "there"
        raise TraceError(
            f"ratio is {state} under rule {trace.meta.rule!r}, "
            "expected it under the rejection rule and nowhere else"
        )
    if trace.ratio is None:
        return
    if trace.rank is not None:
        raise TraceError("rank is there under the rejection rule, expected ratio alone")
    expected = "0: under the rejection rule it is drawn at each replay"
    _refuse("run", trace.run > 0, trace.run, expected)
    outside = ~((trace.ratio >= 0) & (trace.ratio <= 1))
    if outside.any():
        row, slot = np.unravel_index(int(np.argmax(outside)), outside.shape)
        raise TraceError(
            f"ratio, row {row}, slot {slot}: {trace.ratio[row, slot]}, expected a number in [0, 1]"
        )


def _check_rank(trace: Any, reach: np.ndarray) -> None:
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


def _check_prefix(trace: Any, left: np.ndarray) -> None:
    if not trace.meta.prefix_only:
        return
    # Drafts 2, 3, ... of row t are drafts 1, 2, ... of row t + 1 while they are accepted.
    t = np.flatnonzero((trace.run > 0) & (left > 1))
    wrong = np.zeros(trace.rows, bool)
    wrong[t] = trace.run[t + 1] < np.minimum(trace.run[t] - 1, trace.depth[t + 1])
    expected = "a run that continues into the next row, since meta.prefix_only is set"
    _refuse("run", wrong, trace.run, expected)


def _check_order(trace: Any, left: np.ndarray) -> None:
    if (trace.order is None) == bool(trace.meta.tree):
        state = "missing" if trace.order is None else "there"
        raise TraceError(
            f"order is {state} and meta.tree is {trace.meta.tree}, expected both or neither"
        )
    if trace.order is None:
        if trace.beam is not None:
            raise TraceError("beam is there without order, expected both of the same trees")
        return
    width, levels = trace.meta.tree
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


def _check_beam(trace: Any, left: np.ndarray, width: int, levels: int) -> None:
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
