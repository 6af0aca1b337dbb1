"""Load: requests that arrive at a server, wait in a queue and share its steps; a simulation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simspec.cost.batch import BatchCost, batch_cost
from simspec.cost.model import CostModel
from simspec.cost.rounds import next_backlog
from simspec.cost.table import CostTable
from simspec.numerics.compile import NO_C_WRAPPER, share_cache
from simspec.replay.arrivals import Requests
from simspec.replay.lock_step import LARGEST
from simspec.trace.acceptance import drawn_run
from simspec.trace.rounds import Rounds
from simspec.trace.trace import Trace

# mypy: disable-error-code="no-untyped-def"

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_STEPS = 1 << 25
"""Steps of a run, as many as could be needed: their arrays are in memory."""
MOST_TOKENS = 1 << 17
"""Tokens of a step."""


@dataclass(frozen=True)
class Server:
    """A server of continuous batching.

    | field | meaning |
    | --- | --- |
    | slots | requests that it holds at most; others wait, first come, first served |
    | tokens | of a step: prompts are read in what running requests leave of them |
    | prefill | whether prompts are read; False: they are cached before the request arrives |

    In a step each running request does one round. Then prompts are read in order of arrival, each
    as far as the step's tokens reach, the rest in later steps (vLLM's chunked prefill). The step
    that reads the end of a prompt holds the request's first round, and with it its first tokens.
    ValueError for numbers outside their range.
    """

    slots: int = 256
    tokens: int = 8192
    prefill: bool = True

    def __post_init__(self) -> None:
        for name, most in (("slots", LARGEST), ("tokens", MOST_TOKENS)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise ValueError(f"{name} is {value!r}, expected 1 to {most}")


@dataclass(frozen=True)
class Schedule:
    """Draft lengths by the number of requests that the server holds.

    starts: ((requests, K), ...), K from this number of requests on; the first is of 1 request.
    ValueError for others, and for a K outside 0 .. 255.
    """

    starts: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.starts]
        growing = sizes[:1] == [1] and all(a < b for a, b in zip(sizes, sizes[1:]))
        if not growing or any(not 0 <= K <= 255 for _, K in self.starts):
            raise ValueError(
                f"schedule {self.name} is none: expected growing numbers of requests from 1 on, "
                "each with a draft length of 0 to 255, such as schedule:1=5/9=3/33=0"
            )

    @classmethod
    def parse(cls, text: str) -> "Schedule":
        """The schedule of a text such as 'schedule:1=5/9=3/33=0'."""
        try:
            parts = [part.split("=") for part in text.removeprefix("schedule:").split("/")]
            return cls(tuple((int(size), int(K)) for size, K in parts))
        except ValueError as error:
            reason = str(error) if str(error).startswith("schedule") else "expected REQUESTS=K/.."
            raise ValueError(f"{text[:60]!r} is no schedule: {reason}") from None

    @property
    def name(self) -> str:
        """Its text."""
        return "schedule:" + "/".join(f"{size}={K}" for size, K in self.starts)

    @property
    def longest(self) -> int:
        """The longest draft."""
        return max(K for _, K in self.starts)

    def lengths(self, slots: int) -> Integers:
        """int64[slots + 1]: the draft length by the number of requests, from 0."""
        sizes, lengths = np.array(self.starts, np.int64).T
        place = np.searchsorted(sizes, np.arange(slots + 1), "right") - 1
        return np.ascontiguousarray(lengths[np.maximum(place, 0)])


@dataclass(frozen=True)
class Served:
    """Times of requests and the steps of the server, all in seconds from time 0.

    | field | dtype, shape | meaning |
    | --- | --- | --- |
    | arrival, start, first, finish | float64[n] | a request arrives, is taken from the queue, has \
its first tokens, has its last |
    | tokens | int64[n] | output tokens of each request |
    | begin, seconds | float64[T] | of each step |
    | held, active | int64[T] | requests that the server holds, that have tokens in the step |
    | rows, emitted | int64[T] | tokens that the target's pass reads, output tokens |
    """

    arrival: Array
    start: Array
    first: Array
    finish: Array
    tokens: Integers
    begin: Array
    seconds: Array
    held: Integers
    active: Integers
    rows: Integers
    emitted: Integers


def serve(
    trace: Trace,
    requests: Requests,
    rounds: Rounds | Schedule | None,
    cost: CostModel | CostTable,
    server: Server,
    context: float | None = None,
    reads: Sequence[str] = (),
    seed: int = 0,
) -> Served:
    """The run of a server until all requests have finished.

    rounds: a policy's, of `replay`; a Schedule, decided in each step; None: plain decoding. A step
    is priced by `BatchCost.seconds` of its requests, to which the rows of a prompt count as drafted
    tokens; `plain_seconds` for plain decoding, plus what prompts add to a step without drafts.
    catch_up is that of a full batch. context and reads as for `policy_steps`; seed draws acceptance
    under the rejection rule, for a Schedule. ValueError for what the costs lack, sequences outside
    the recording, and runs of over 2^25 steps.
    """
    if not (requests.sequence.min() >= 0 and requests.sequence.max() < trace.sequences):
        raise ValueError(f"requests decode others than the {trace.sequences} recorded sequences")
    nothing = np.zeros(trace.rows, np.int64)
    lengths, done = np.zeros(0, np.int64), rounds
    if rounds is None:
        done = Rounds(trace.offset, np.arange(trace.rows), nothing, nothing, nothing)
    elif isinstance(rounds, Schedule):
        if rounds.longest > trace.K:
            raise ValueError(
                f"{rounds.name} drafts {rounds.longest} tokens, the recording has {trace.K}: lower "
                "it, or record deeper"
            )
        lengths = rounds.lengths(server.slots)
        done = Rounds(trace.offset, nothing, nothing, nothing, nothing)
    assert isinstance(done, Rounds)
    longest = int(max(done.computed.max(initial=0), lengths.max(initial=0)))
    prompt = np.diff(trace.prompt_offset).astype(np.int64)
    unread = np.maximum(prompt, 1) if server.prefill else np.ones(trace.sequences, np.int64)
    passes = np.diff(done.offset) + unread // server.tokens
    most = int(passes[requests.sequence].sum())
    if most > MOST_STEPS:
        raise ValueError(
            f"the run may take {most} steps, expected at most {MOST_STEPS}: give fewer requests"
        )
    prices = _prices(cost, server, context, None if rounds is None else tuple(reads), longest)
    text = _Text(
        trace.offset, trace.budget, trace.depth, drawn_run(trace, seed), prompt, unread,
        -1.0 if context is None else float(context),
    )  # fmt: skip
    of_requests = np.full((3, len(requests.arrival)), np.nan)
    times, counts = np.empty((2, most)), np.empty((4, most), np.int64)
    steps = _serve(
        (requests.arrival, requests.sequence),
        text,
        (done.offset, done.row, done.computed, done.drafted, done.accepted),
        (lengths, server.slots, server.tokens),
        prices,
        (of_requests[0], of_requests[1], of_requests[2], times, counts),
    )
    tokens = np.diff(trace.offset)[requests.sequence]
    start, first, finish = of_requests
    begin, seconds = times[:, :steps]
    held, active, rows, emitted = counts[:, :steps]
    return Served(
        requests.arrival, start, first, finish, tokens, begin, seconds, held, active, rows, emitted
    )


class _Text(NamedTuple):
    """The recording as the loop reads it; prompt and unread int64[S], tokens; context -1: own."""

    offset: Any
    budget: Any
    depth: Any
    run: Any
    prompt: Any
    unread: Any
    context: float


class _Prices(NamedTuple):
    """The terms of BatchCost, by the cells of a table; cell int64[slots + 1] by active requests.

    passes float64[cells, P], of which `exact` of each cell are known: 0 without CostModel.passes.
    """

    cell: Any
    measured: Any
    draft: Any
    verify: Any
    passes: Any
    exact: Any
    catch_up: Any
    terms: Any


def _prices(
    cost: CostModel | CostTable,
    server: Server,
    context: float | None,
    reads: tuple[str, ...] | None,
    longest: int,
) -> _Prices:
    """Arrays of `_Prices` for at most these requests and tokens; reads None: plain decoding."""
    sizes = [server.slots]
    if isinstance(cost, CostTable) and cost.batch != (1,):
        sizes = [size for size in cost.batch if size < server.slots] + sizes
    batches = [batch_cost(cost, size, context) for size in sizes]
    if longest > batches[0].cost.K:
        raise ValueError(
            f"cost {batches[0].cost.name!r} prices drafts up to {batches[0].cost.K}, a round "
            f"computes {longest}: measure further"
        )
    rows = server.slots * (longest + 1) + server.tokens
    widened = [batch.cost.widen(rows).verify[: rows + 1] for batch in batches]
    known = [
        np.zeros(0) if batch.measured == 1 or batch.cost.passes is None else batch.cost.passes
        for batch in batches
    ]
    exact = np.array([len(each) for each in known])
    passes = np.array([np.pad(each, (0, int(exact.max()) - len(each))) for each in known])
    return _Prices(
        np.searchsorted(sizes, np.arange(server.slots + 1)),
        np.array([batch.measured for batch in batches]),
        np.array([batch.cost.reading(reads or ()).draft for batch in batches]),
        np.array(widened),
        passes,
        exact,
        batches[-1].cost.catch_up,
        np.array([_terms(batch, reads) for batch in batches]),
    )


def _terms(batch: BatchCost, reads: tuple[str, ...] | None) -> tuple[float, ...]:
    """(overhead, each further computed token, kernel step, cached tokens in verify and draft, and
    those that the lists hold)."""
    cost, one = batch.cost, batch.measured == 1
    overhead = cost.baseline - cost.verify[0] if reads is None else cost.overhead
    further = cost.node + cost.charge(reads or ()) if one else 0.0
    held = batch.measured * cost.context
    return overhead, further, cost.step if one else 0.0, cost.kv_verify, cost.kv_draft, held


def _released(function: Any) -> Any:
    """Compiled without the interpreter's lock, so that threads run at the same time."""
    return share_cache(njit(nogil=True, **NO_C_WRAPPER)(function))


@_released
def _seconds(prices, active, rows, widest, computed, longest, sums):
    """Seconds of a step as `BatchCost.seconds` has them; widest: most rows of one request; sums:
    of catch-up seconds, cached tokens and draft_cached.
    """
    caught, cached, draft_cached = sums
    c = prices.cell[active]
    overhead, further, step, kv_verify, kv_draft, held = prices.terms[c]
    if prices.measured[c] == 1:
        verify = prices.verify[c, rows - 1]
        if widest == 1 and rows > 1:
            verify = verify - step
    elif max(rows - prices.measured[c], 0) < prices.exact[c]:
        verify = prices.passes[c, max(rows - prices.measured[c], 0)]
    else:
        each = (rows - active) / active
        low = int(each)
        first = prices.verify[c, low]
        verify = (prices.verify[c, low + 1] - first) * (each - low) + first
    seconds = overhead + prices.draft[c, longest] + verify
    seconds = seconds + caught / prices.measured[c]
    seconds = seconds + further * (computed - longest)
    return seconds + (kv_verify * (cached - held) + kv_draft * (draft_cached - held * longest))


@_released
def _serve(requests, text, rounds, server, prices, out):
    """Fills (start, first, finish, times [2, T], counts [4, T]); the number of steps."""
    arrival, sequence = requests
    offset, budget, depth, run, prompt, unread, context = text
    round_offset, round_row, round_computed, round_drafted, round_accepted = rounds
    lengths, slots, tokens = server
    start, first, finish, times, counts = out
    scheduled, catch_up = lengths.shape[0] > 0, prices.catch_up
    # Held requests, in order of arrival: which, its prompt's unread tokens, its next round (row of
    # its text under a schedule), backlog, and what the step brings: 1 first tokens, 2 the last.
    who, left, at, backlog, event = np.zeros((5, slots), np.int64)
    held, queue, t, now = 0, 0, 0, 0.0
    while held > 0 or queue < arrival.shape[0]:
        if held == 0:
            now = max(now, arrival[queue])
        while held < slots and queue < arrival.shape[0] and arrival[queue] <= now:
            s = sequence[queue]
            who[held], left[held], backlog[held] = queue, unread[s], 0
            at[held] = offset[s] if scheduled else round_offset[s]
            start[queue] = now
            held, queue = held + 1, queue + 1
        K = lengths[held] if scheduled else 0
        free, active, rows, widest, computed, longest, emitted = tokens, 0, 0, 0, 0, 0, 0
        caught, cached, draft_cached = 0.0, 0.0, 0.0
        for i in range(held):
            event[i] = 0
            if left[i] > 0 and free <= 0:
                continue
            s, fresh = sequence[who[i]], left[i] > 0
            chunk = min(left[i], free) if fresh else 0
            left[i] -= chunk
            width, row = chunk, 0
            c = d = a = 0
            if left[i] == 0:
                if scheduled:
                    t0 = at[i]
                    row = t0 - offset[s]
                    c = d = max(min(K, budget[s] - row - 1, np.int64(depth[t0])), 0)
                    a = min(d, np.int64(run[t0]))
                    at[i] += a + 1
                    ended = at[i] >= offset[s + 1]
                else:
                    r = at[i]
                    t0, c, d, a = (
                        round_row[r],
                        round_computed[r],
                        round_drafted[r],
                        round_accepted[r],
                    )
                    row = t0 - offset[s]
                    at[i] += 1
                    ended = at[i] >= round_offset[s + 1]
                width = max(chunk, 1) + d
                emitted += min(a + 1, offset[s + 1] - t0)
                event[i] = (1 if fresh else 0) + (2 if ended else 0)
                if c > 0:
                    caught += catch_up[min(backlog[i], catch_up.shape[0] - 1)]
                backlog[i] = next_backlog(backlog[i], c, a)
            read = prompt[s] - left[i] + row if context < 0 else context
            active, rows, free = active + 1, rows + width, free - width
            widest, computed, longest = max(widest, width), computed + c, max(longest, c)
            cached += read
            draft_cached += read * c
        times[0, t] = now
        counts[0, t], counts[1, t], counts[2, t], counts[3, t] = held, active, rows, emitted
        sums = (caught, cached, draft_cached)
        seconds = _seconds(prices, active, rows, widest, computed, longest, sums)
        times[1, t] = seconds
        now += seconds
        kept = 0
        for i in range(held):
            if event[i] & 1:
                first[who[i]] = now
            if event[i] & 2:
                finish[who[i]] = now
                continue
            if kept < i:
                who[kept], left[kept], at[kept] = who[i], left[i], at[i]
                backlog[kept] = backlog[i]
            kept += 1
        held = kept
        t += 1
    return t
