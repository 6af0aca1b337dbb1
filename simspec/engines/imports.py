"""Readers of what engines and load generators measured: a table of sums and a table of rows.

Sums are counters or summaries of many rounds; rows are the figures of one request each.
SpecDecode-Bench alone logs the outcome of a draft from every position, which is a recording.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from simspec.engines import IMPORT_FORMATS, LONGEST_DRAFT, Import
from simspec.engines.documents import (
    NO_POSITION,
    Fields,
    Number,
    Source,
    Whole,
    json_rows,
    log_lines,
    read_counters,
    read_source,
    responses,
)
from simspec.engines.import_report import (
    ELSEWHERE,
    NOTHING,
    PER_ROUND,
    DepthCounts,
    Imported,
    Series,
    censored,
    counts_of,
    outcomes_of_totals,
)
from simspec.output.files import check_output, reraised
from simspec.output.names import expected_one
from simspec.trace.file import TraceMeta
from simspec.trace.trace import Trace

ROUNDED = 0.0051
"""Largest difference of a figure from its own counts, such as of two decimals."""
LOST = 0.01
"""Largest share of rounds whose draft may be short, such as the last ones of requests."""
NO_ROUNDS = "rounds, accepted length, acceptance by depth"
DEPTH = "acceptance by depth"
MIXED = (
    "rounds of several draft lengths are in one histogram: deeper tokens were tried by some rounds "
    "only, and which is lost"
)
TRIMMED = (
    "under enable_adaptive_verification vLLM counts tokens that it drafted and never verified as "
    "rejected: acceptance by depth is then too low, and no file says so"
)
OMITTED = "steps without drafts are not in the file: tokens per target pass may be lower"
PROPOSED = (
    "SGLang computes proposed drafts as rounds x configured length, wrong where it adapts: "
    "state a constant length with --drafted (draft tokens - 1 of a chain)"
)
Token = Annotated[int, Meta(ge=0, lt=1 << 31)]
Depth = Annotated[int, Meta(ge=0, le=LONGEST_DRAFT)]
Histogram = Annotated[list[Whole], Meta(max_length=LONGEST_DRAFT + 1)] | dict[Depth, Whole]
"""Rounds that accepted 0, 1, .. tokens: a list, or an object {accepted: rounds}."""


def check_figure(stats: Fields, key: str, expected: float, error: float = ROUNDED) -> None:
    """ValueError where a figure of the file is there and not `expected`, to two decimals.

    Another figure under a known name is another definition: of the bonus token, or tested tokens.
    """
    if key in stats and abs(stats.get(key, Number) - expected) > error:
        counts = "a length with the bonus token, or accepted / drafted tokens"
        raise stats.error(key, f"expected {expected:.4f} by the counts ({counts})")


def _summed(source: Source, rounds: int, accepted: int, **more: Any) -> Imported:
    """Sums with the accepted length that they give."""
    length = 1 + accepted / rounds if rounds else None
    return Imported(
        source, rounds=rounds, accepted=accepted, length=length, length_means=PER_ROUND, **more
    )


def _pooled(
    source: Source, settings: Import, rounds: int, drafted: int, accepted: int,
    at_least: np.ndarray, slack: float = 0.0, notes: Iterable[str] = (),
) -> Imported:  # fmt: skip
    """Sums of rounds, int64[K] of which accepted at least 1 to K tokens.

    Rounds whose draft is shorter than K are at most the K rounds - drafted missing tokens. Up to
    1% of the rounds they are taken as K long, with a note; above, the draft length varies and
    acceptance by depth is withheld. slack: accepted tokens that rounded rates may miss.
    """
    notes, stated = list(notes), settings.drafted
    if source.format.startswith("llamacpp"):  # its positions end at the deepest accepted one
        K = stated or max(len(at_least), -(-drafted // max(rounds, 1)))
        at_least = np.pad(at_least, (0, max(min(K, LONGEST_DRAFT + 1) - len(at_least), 0)))
        least = f"the file gives no draft length: K = {K} is the least that it allows, state "
        notes += [] if stated else [least + "--drafted"]
    elif source.format.startswith("vllm"):
        notes.append(TRIMMED)
    if source.format.endswith("-log"):
        notes.append("rates of 3 decimals, so acceptance by depth is off by up to 0.0005")
    K = len(at_least)
    missing = K * rounds - drafted
    if not 1 <= K <= LONGEST_DRAFT or missing < 0 or (stated or K) != K:
        raise ValueError(
            f"{drafted} tokens are drafted in {rounds} rounds with {K} positions, expected at most "
            f"{stated or K} each: the file is of two runs, counts the bonus token, or --drafted is "
            "another"
        )
    if abs(int(at_least.sum()) - accepted) > slack:
        raise ValueError(
            f"positions sum to {int(at_least.sum())} accepted tokens, the total is {accepted}: "
            "expected the same"
        )
    varies = missing > LOST * rounds
    if missing and not varies:
        notes.append(
            f"{missing} drafted tokens fewer than K a round: acceptance is up to "
            f"{missing / rounds:.4f} too low at each depth"
        )
    return _summed(
        source, rounds, accepted, drafted=drafted,
        outcomes=None if varies else outcomes_of_totals(rounds, at_least),
        draft_length=None if varies else K, withheld={DEPTH: MIXED} if varies else {},
        notes=tuple(notes),
    )  # fmt: skip


SUMS = "drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos"
COUNTERS = {
    "vllm-prometheus": "vllm:spec_decode_num_",
    "llamacpp-prometheus": "llamacpp:spec_decode_num_",
}
"""{format: prefix of its counters}: llama.cpp's are vLLM's."""


def _prometheus(source: Source, settings: Import) -> Imported:
    """Counters of one scrape, less those of `before`, summed over engines and ranks."""
    prefix = COUNTERS[source.format]
    found = read_counters(source, settings.before, prefix, SUMS)
    notes = [] if settings.before else [
        "counters run since the server started, warm-up included: give an earlier scrape with "
        "--before"
    ]  # fmt: skip

    def counts(name: str, places: Iterable[int]) -> list[int]:
        """The counter at NO_POSITION alone, or at each of the positions."""
        held, expected = found.get(name, {}), list(places)
        if sorted(held) != expected or len(held) > LONGEST_DRAFT:
            raise ValueError(
                f"{source.file}: counter {prefix}{name}_total is missing, or at some position of 0 "
                f"to {LONGEST_DRAFT - 1}: expected /metrics of a server with speculative decoding"
            )
        return [held[place] for place in expected]

    *sums, positions = SUMS
    rounds, drafted, accepted = (counts(name, [NO_POSITION])[0] for name in sums)
    at_least = np.array(counts(positions, range(len(found.get(positions, {})))), np.int64)
    return _pooled(source, settings, rounds, drafted, accepted, at_least, notes=notes)


LOGS = {
    "vllm-log": ("SpecDecoding metrics:", "vllm serve", re.compile(
        r"SpecDecoding metrics: Mean acceptance length: (?P<mean>\d+\.\d+),.*?"
        r"Accepted: (?P<accepted>\d{1,15}) tokens, Drafted: (?P<drafted>\d{1,15}) tokens, "
        r"Per-position acceptance rate: (?P<rates>\d\.\d+(?:, \d\.\d+)*),? Avg Draft acceptance "
    )),
    "sglang-log": ("accept len:", "SGLang's decode batches", re.compile(
        r"#running-req: (?P<running>\d{1,9}),.*?accept len: (?P<mean>\d{1,5}\.\d+), "
        r"accept rate: (?P<rate>\d{1,5}\.\d+),.*?gen throughput \(token/s\): "
        r"(?P<speed>\d{1,9}\.\d+)"
    )),
    "llamacpp-log": ("#gen drafts", "llama-server", re.compile(
        r"statistics\s+(?P<drafter>\S{1,80}?):.*?#gen drafts =\s*(?P<rounds>\d{1,15}), "
        r"#acc drafts =\s*\d{1,15}, #gen tokens =\s*(?P<drafted>\d{1,15}), "
        r"#acc tokens =\s*(?P<accepted>\d{1,15}), #mean acc len =\s*\d+\.\d+, "
        r"#acc rate/pos = \((?P<rates>\d\.\d+(?:, \d\.\d+)*)\)"
    )),
}  # fmt: skip
"""{format: what a line holds, who writes it, its form}."""


OF_REQUEST = re.compile(r"draft acceptance = [\d.]+ \( *(\d{1,15}) accepted / *(\d{1,15}) gen")
"""llama-server's line of a request: printed from verbosity 3, the default, on."""


def _log(source: Source, settings: Import) -> Imported:
    """vLLM's lines, one an interval, summed; of llama.cpp the last line, which is cumulative.

    Without such a line, llama.cpp's lines of requests give the rate alone.

    A line of vLLM gives no rounds: they are drafted / positions, which holds for a constant draft
    length only and is compared with the line's mean length.
    """
    words, written_by, form = LOGS[source.format]
    if source.format == "llamacpp-log" and words not in source.text:
        requests = log_lines(source, "draft acceptance", OF_REQUEST, written_by)
        right, tried = (sum(int(line[i]) for _, line in requests) for i in (1, 2))
        why = {NO_ROUNDS: "they are in statistics lines, which llama-server prints from -lv 4 on"}
        return Imported(source, requests=len(requests), drafted=tried, accepted=right, withheld=why)
    lines = [match for _, match in log_lines(source, words, form, written_by)]
    of_vllm = source.format == "vllm-log"
    if not of_vllm:
        if len(names := {match["drafter"] for match in lines}) > 1:
            raise ValueError(f"statistics of {', '.join(sorted(names))}: keep one drafter's lines")
        lines = lines[-1:]
    at_least, sums, used = list[np.ndarray](), np.zeros(3, np.int64), list[tuple[Any, ...]]()
    slack, varies = 0.0, False
    for line in lines:
        right, tried = int(line["accepted"]), int(line["drafted"])
        rates = np.array([float(rate) for rate in line["rates"].split(",")])
        passes = -(-tried // len(rates)) if of_vllm else int(line["rounds"])
        sums += passes, tried, right
        if passes:
            used.append((_when(line), passes, right))
            varies |= of_vllm and abs(1 + right / passes - float(line["mean"])) > ROUNDED
            at_least.append(np.rint(rates * passes).astype(np.int64))
            error = 0.0005 * passes  # of rates of three decimals
            slack += len(rates) * (error + 0.5) if error >= 0.5 else 0.0
    rounds, drafted, accepted = map(int, sums)
    if not drafted or not rounds:
        raise ValueError(f"lines of {words} count no drafted token: nothing can be concluded")
    if varies:
        reason = (
            "some line's mean length is not 1 + accepted / (drafted / positions): the draft "
            "length varies, and a log line gives no rounds"
        )
        return Imported(source, drafted=drafted, accepted=accepted, withheld={NO_ROUNDS: reason})
    if len({len(one) for one in at_least}) > 1:
        raise ValueError("lines have different numbers of positions: split the log by run")
    note = f"{len(at_least)} lines" if of_vllm else (
        "the statistics line runs since the server started; rounds without a draft are not in it"
    )  # fmt: skip
    counts = np.sum(at_least, axis=0)
    result = _pooled(source, settings, rounds, drafted, accepted, counts, slack, (note,))
    if not of_vllm:
        return result
    times, passed, accepted_of = map(np.array, zip(*used))
    by_place = np.array(at_least)
    depths = DepthCounts(np.column_stack((passed, by_place[:, :-1])), by_place)
    return replace(result, series=_series(times, passed, accepted_of, depths))


WHEN = re.compile(r"(?:\d{4}-)?\d\d-\d\d[ T]\d\d:\d\d:\d\d")


def _when(line: re.Match[str]) -> str | None:
    """The time at the start of a log's line."""
    found = WHEN.search(line.string, 0, line.start())
    return found and found[0]


def _series(
    times: Iterable[Any], rounds: np.ndarray, accepted: np.ndarray,
    depths: DepthCounts | None = None, tasks: Iterable[Any] = (),
) -> Series:  # fmt: skip
    """Periods, by their times where all are numbers: seconds or nanoseconds since 1970."""
    held, order = list(times), np.arange(len(rounds))
    if all(type(t) in (int, float) and 0 < t < 1e19 for t in held):
        seconds = np.array([t / 1e9 if t > 1e14 else min(t, 1e10) for t in held])
        order = np.argsort(seconds, kind="stable")
        held = [f"{datetime.fromtimestamp(s, UTC):%Y-%m-%d %H:%M:%S}" for s in seconds.tolist()]
    at = [t[:40] if isinstance(t, str) else f"period {i}" for i, t in enumerate(held, 1)]
    task = [t[:80] if isinstance(t, str) else "" for t in tasks] or [""] * len(at)
    if depths is not None:
        depths = DepthCounts(depths.tried[order], depths.accepted[order])
    at, task = [at[i] for i in order], [task[i] for i in order]
    return Series(tuple(at), tuple(task), rounds[order] * 1.0, accepted[order] * 1.0, depths)


def _by_batch(
    running: np.ndarray, rounds: np.ndarray, accepted: np.ndarray, **means: np.ndarray
) -> tuple[dict[str, float], ...]:
    """A row for up to 1, 2, 4, .. requests running, with the median of each of `means`."""
    most, rows = np.exp2(np.ceil(np.log2(np.maximum(running, 1)))), list[dict[str, float]]()
    for size in np.unique(most).tolist():
        here = most == size
        length = 1 + float(accepted[here].sum() / rounds[here].sum())
        row = {"running_up_to": int(size), "periods": int(here.sum()), "accepted_length": length}
        rows.append(row | {name: float(np.median(each[here])) for name, each in means.items()})
    return tuple(rows)


def _sglang_log(source: Source, settings: Import) -> Imported:
    """SGLang's decode lines: means of equally many steps each, weighed by the requests running."""
    words, written_by, form = LOGS[source.format]
    lines = [match for _, match in log_lines(source, words, form, written_by)]
    keys = "running", "mean", "rate", "speed"
    table = np.array([[float(line[key]) for key in keys] for line in lines])
    used = (table[:, 0] > 0) & (table[:, 1] >= 1)
    running, mean, rate, speed = table[used].T
    if not (mean > 1).any():
        raise ValueError(NOTHING)
    K, accepted = settings.drafted, running * (mean - 1)
    least = int(np.rint(np.median((mean - 1)[mean > 1] / np.maximum(rate[mean > 1], 0.005))))
    if K and (abs(mean - 1 - rate * K) > ROUNDED * (1 + K)).any():
        raise ValueError(f"accept len - 1 is not accept rate x {K}: expected --drafted {least}")
    note = f"{len(lines)} lines, weighed by the requests running when they were written"
    return Imported(
        source, length=float(np.average(mean, weights=running)), length_means=PER_ROUND,
        draft_length=K, withheld=dict.fromkeys(("rounds", DEPTH), "a line holds means, no counts"),
        notes=(note,) if K else (note, f"{PROPOSED}; most lines are of {least}"),
        by_batch=_by_batch(running, running, accepted, tokens_per_second=speed),
        series=_series(
            (_when(line) for line, use in zip(lines, used) if use), running, accepted
        ),
    )  # fmt: skip


def _sglang_counters(source: Source, settings: Import) -> Imported:
    """SGLang's counters of finished requests; its gauges are means of the last interval only."""
    names = "spec_verify_calls", "generation_tokens", "num_requests"
    found = read_counters(source, settings.before, "sglang:", names)
    if any(list(found.get(name, ())) != [NO_POSITION] for name in names):
        raise ValueError(
            "counters sglang:spec_verify_calls_total, generation_tokens_total and "
            "num_requests_total are not all there; gauges hold the last interval alone: import "
            "the server's log as sglang-log"
        )
    rounds, tokens, requests = (found[name][NO_POSITION] for name in names)
    if not rounds:
        raise ValueError(NOTHING)
    accepted, K = tokens - requests - rounds, settings.drafted
    if accepted < 0 or (K and accepted > K * rounds):
        raise ValueError(
            f"{tokens} tokens of {requests} requests in {rounds} verify calls: expected 1 to "
            f"{K + 1 if K else 'K + 1'} tokens a call beside a request's first, so some requests "
            "ran without speculation, or --drafted is another"
        )
    return _summed(
        source, rounds, accepted, requests=requests, drafted=K and K * rounds, draft_length=K,
        withheld={DEPTH: "no counter is by position"}
        | ({} if K else {"acceptance rate": PROPOSED}),
        notes=(
            "accepted = tokens - requests - verify calls: a request's first token is its prefill's;"
            " a stop inside a draft makes it too low, a request without speculation too high",
        ),
    )  # fmt: skip


def _timings(source: Source, settings: Import) -> Imported:
    """llama.cpp's `timings`: accepted of drafted tokens, and tokens a target pass."""
    timings = responses(json_rows(source.text), "predicted_n")
    drafting = [stats for stats in timings if "draft_n" in stats]
    if not drafting:
        raise ValueError(
            "no timings with draft_n, expected responses of llama-server with a drafter"
        )
    names = "draft_n", "draft_n_accepted", "predicted_n"
    drafted, accepted, tokens = (sum(stats.get(key) for stats in drafting) for key in names)
    passes = tokens - accepted
    if passes <= 0:
        raise ValueError(f"{accepted} tokens are accepted of {tokens} predicted, expected fewer")
    left_out = len(timings) - len(drafting)
    reason = (
        "predicted_n - draft_n_accepted counts rounds without a draft and the prefill's token as "
        "rounds: rounds with a draft are not in the file"
    )
    means = "tokens a target pass: rounds without a draft and the prefill's token are passes too"
    return Imported(
        source, requests=len(drafting), drafted=drafted, accepted=accepted,
        length=tokens / passes, length_means=means, withheld={NO_ROUNDS: reason},
        notes=(f"responses left out, without drafts: {left_out}",) if left_out else (),
    )  # fmt: skip


class RowNames(NamedTuple):
    """Names of the figures of a request, a server's iteration, or a run.

    holder: the key of the object that holds them; '': the object that has `rounds`. expected: what
    the file should be. K: '' where the user states the draft length, since `drafted` is computed
    from it. length, rate: figures that must agree with the counts. by_length: histograms by draft
    length. lists: accepted and drafted tokens of each round. time, task: paths of keys, from an
    object around these figures. unit: of `rate`, 100 for per cent.
    """

    holder: str
    expected: str
    rounds: str = "num_spec_steps"
    drafted: str = "num_draft_tokens"
    accepted: str = "num_accepted_draft_tokens"
    histogram: str = "acceptance_histogram"
    K: str = "num_spec_tokens"
    length: str = "mean_acceptance_length"
    rate: str = "draft_acceptance_rate"
    by_length: str = "acceptance_histogram_by_draft_length"
    lists: tuple[str, str] = ("per_step_accepted", "per_step_drafted")
    notes: tuple[str, ...] = ()
    time: tuple[str, ...] = ("created",)
    task: tuple[str, ...] = ()
    unit: float = 1.0


VLLM_ROWS = RowNames(
    "speculative_decoding",
    "responses of vLLM with --per-request-spec-decode-metrics, n = 1, and the usage chunk of "
    "streams, or guidellm's benchmarks.json of them",
    notes=(OMITTED, TRIMMED),
)
ROWS = {
    "vllm-requests": VLLM_ROWS,
    "guidellm": VLLM_ROWS._replace(time=("info", "timings", "request_start")),
    "aiperf": RowNames(
        "spec_decode_acceptance", "AIPerf's export of records",
        time=("metadata", "request_start_ns"), task=("metadata", "source_kind"),
    ),
    "tensorrt-llm": RowNames(
        "speculative_decoding", "responses of trtllm-serve with speculative decoding",
        drafted="total_draft_tokens", accepted="total_accepted_draft_tokens",
        rate="acceptance_rate",
    ),
    "sglang": RowNames(
        "", "SGLang responses with meta_info of a server with speculative decoding",
        rounds="spec_verify_ct", drafted="spec_num_proposed_drafts",
        accepted="spec_num_correct_drafts", histogram="spec_correct_drafts_histogram", K="",
        rate="spec_accept_rate",
    ),
    "vllm-bench-serve": RowNames(
        "", "one run of vllm bench serve with speculative decoding",
        rounds="spec_decode_num_drafts", drafted="spec_decode_draft_tokens",
        accepted="spec_decode_accepted_tokens",
        histogram="spec_decode_per_position_acceptance_rates",
        length="spec_decode_acceptance_length", rate="spec_decode_acceptance_rate", unit=100,
    ),
    "tensorrt-llm-stats": RowNames(
        "specDecodingStats", "iterations of TensorRT-LLM's /metrics or llm.get_stats()",
        rounds="numRequestsWithDraftTokens", drafted="numDraftTokens",
        accepted="numAcceptedTokens", length="acceptanceLength", time=("timestamp",),
    ),
}  # fmt: skip
"""guidellm and AIPerf store vLLM's object. The bonus token is in no count: a file that counts it
disagrees with its own sums."""


def _sums(source: Source, settings: Import) -> Imported:
    """Sums of rounds by their names in ROWS: of a run by position, or of a server's iterations."""
    names = ROWS[source.format]
    rows = [
        held.inner(names.holder) if names.holder else held
        for row in json_rows(source.text) for held in row.holding(names.holder or names.rounds)
    ]  # fmt: skip
    of_run = source.format == "vllm-bench-serve"
    if not rows or (of_run and len(rows) > 1):
        raise ValueError(
            f"{len(rows)} objects hold {names.holder or names.rounds}, expected {names.expected}"
        )
    drafting = [bool(row.get(names.rounds) and row.get(names.drafted)) for row in rows]
    used = [row for row, drew in zip(rows, drafting) if drew]
    if not used:
        raise ValueError(NOTHING)
    each = np.array([_totals(row, names) for row in used], np.int64)
    rounds, drafted, accepted = each.sum(axis=0).tolist()
    if of_run:
        rates = np.array(used[0].get(names.histogram, list[Number]))
        at_least = np.rint(rates * rounds).astype(np.int64)
        return _pooled(source, settings, rounds, drafted, accepted, at_least)
    per_round = each[:, 1] / each[:, 0]
    step_ms = _step_ms(rows)[drafting]
    timed, (of_rounds, _, of_accepted) = step_ms > 0, each.T
    return _summed(
        source, rounds, accepted, drafted=drafted,
        draft_length=int(per_round[0]) if (per_round == per_round[0] // 1).all() else None,
        withheld={DEPTH: "an iteration holds sums of its requests, and no histogram"},
        notes=(f"{len(used)} iterations with a draft of {len(rows)}",),
        by_batch=_by_batch(of_rounds[timed], *each.T[::2, timed], step_ms=step_ms[timed]),
        series=_series((row.near(names.time) for row in used), of_rounds, of_accepted),
    )  # fmt: skip


def _step_ms(rows: list[Fields]) -> np.ndarray:
    """float64: milliseconds of each iteration of a server; 0: unknown, or it reads a prompt.

    TensorRT-LLM's overlap scheduler, its default, ends an iteration in the next one's loop, so
    iterLatencyMS is of two loops. One loop is hostStepTimeMS, of later versions, or the time until
    the next iteration starts, unless the server waited for requests in between.
    """
    table = np.full((len(rows), 3), np.nan)
    for i, row in enumerate(rows):
        held = row.around[-1]
        with suppress(KeyError, TypeError, ValueError):
            started = datetime.strptime(held["timestamp"], "%m-%d-%Y %H:%M:%S.%f")
            table[i, 2] = started.replace(tzinfo=UTC).timestamp() * 1e3
        if row.near(("inflightBatchingStats", "numContextRequests")) == 0:
            times = held.get("hostStepTimeMS"), held.get("iterLatencyMS")
            table[i, :2] = [time if type(time) in (int, float) else np.nan for time in times]
    loop, latency, start = table.T
    found = np.where(loop > 0, loop, np.minimum(latency, np.diff(start, append=np.nan)))
    return np.where((found > 0) & (found < 1e9), found, 0.0)


def _rows(source: Source, settings: Import) -> Imported:
    """Requests by their names in ROWS: rounds where all have lists, else sums by draft length."""
    names = ROWS[source.format]
    holders = responses(json_rows(source.text), names.holder or names.rounds)
    found = [holder.inner(names.holder) if names.holder else holder for holder in holders]
    if not found:
        raise ValueError(f"no object has {names.holder or names.rounds}: expected {names.expected}")
    if any("llama" in str(stats.values.get("engine")).lower() for stats in found):
        raise ValueError(
            "AIPerf derives llama.cpp's rounds from predicted_n - draft_n_accepted, they were not "
            "measured: import llama.cpp's own log or /metrics"
        )
    started = [stats for stats in found if stats.get(names.rounds)]
    if not started:
        raise ValueError(NOTHING)
    notes = [*names.notes]
    if len(started) < len(found):
        notes.append(f"requests left out, without a verify step: {len(found) - len(started)}")
    totals = [_totals(stats, names) for stats in started]
    detailed = [names.lists[0] in stats for stats in started]
    if not all(detailed):
        if any(detailed):
            notes.append("some responses are summaries, so all are read as such")
        result = _requests(source, settings, started, totals, notes)
    else:
        result = _rounds_of(source, started, totals, notes)
    rounds, _, accepted = np.array(totals, np.int64).T
    known = result.outcomes if result.draft_length is not None else None
    return replace(result, series=_series(
        (stats.near(names.time) for stats in started), rounds, accepted,
        None if known is None else counts_of(known), (stats.near(names.task) for stats in started),
    ))  # fmt: skip


def _rounds_of(
    source: Source, started: list[Fields], totals: "list[Totals]", notes: list[str]
) -> Imported:
    """The rounds of requests whose figures list each of them."""
    accepted, drafted = (
        [np.array(stats.get(key, list[Depth]), np.int64) for stats in started]
        for key in ROWS[source.format].lists
    )
    for stats, tried, right, total in zip(started, drafted, accepted, totals):
        if len(tried) != len(right):
            raise ValueError(
                f"{stats.place}: its two lists differ in length, expected one of each round"
            )
        _agree(stats, "its lists", (len(right), int(tried.sum()), int(right.sum())), total)
    offset = np.concatenate(([0], np.cumsum([len(right) for right in accepted]))).astype(np.int64)
    return censored(source, offset, np.concatenate(drafted), np.concatenate(accepted), tuple(notes))


Totals = tuple[int, ...]
"""(rounds, drafted, accepted)."""


def _totals(stats: Fields, names: RowNames) -> Totals:
    """The sums of a request, with which its own figures must agree."""
    rounds = stats.get(names.rounds)
    drafted, accepted = stats.get(names.drafted), stats.get(names.accepted)
    check_figure(stats, names.length, 1 + accepted / rounds)
    if drafted:
        check_figure(stats, names.rate, names.unit * accepted / drafted, names.unit * ROUNDED)
    return rounds, drafted, accepted


def _agree(stats: Fields, what: str, summed: Totals, totals: Totals) -> None:
    if summed != totals:
        raise ValueError(
            f"{stats.place}: {what} sum to {summed[0]} rounds, {summed[1]} drafted and {summed[2]} "
            f"accepted tokens, the counters to {totals[0]}, {totals[1]} and {totals[2]}, expected "
            "the same: is the bonus token counted?"
        )


def _counts(histogram: Any) -> np.ndarray:
    """int64: rounds that accepted 0, 1, .. tokens."""
    if isinstance(histogram, dict):
        histogram = [histogram.get(j, 0) for j in range(max(histogram, default=0) + 1)]
    return np.array(histogram, np.int64)


def _requests(
    source: Source, settings: Import, summaries: list[Fields], totals: list[Totals],
    notes: list[str],
) -> Imported:  # fmt: skip
    """Sums of requests, by depth where each one's rounds drafted one length."""
    names, withheld = ROWS[source.format], dict[str, str]()
    outcomes: list[tuple[int, int, int, int]] = []  # request, K, accepted, rounds
    for request, (stats, total) in enumerate(zip(summaries, totals)):
        rounds, drafted, accepted = total
        K = stats.get(names.K, Depth) if names.K in stats else settings.drafted
        if not names.K and K is not None and drafted != K * rounds:
            raise ValueError(
                f"{stats.place}: {drafted} proposed drafts in {rounds} rounds, expected {K} a "
                "round as --drafted says"
            )
        key, counts = names.histogram, np.zeros(0, np.int64)
        if key in stats:
            counts = _counts(stats.get(key, Histogram))
            summed = int(counts.sum()), drafted, int(counts @ np.arange(len(counts)))
            _agree(stats, key, summed, total)
        if names.by_length in stats:
            keyed = stats.get(names.by_length, dict[Depth, Histogram])
            held = {k: _counts(found) for k, found in keyed.items()}
            if any(len(found) != k + 1 for k, found in held.items()):
                raise stats.error(names.by_length, "expected K + 1 counts for rounds of K drafts")
            sums = np.zeros(3, np.int64)
            for k, found in held.items():
                sums += found.sum(), k * found.sum(), found @ np.arange(k + 1)
            _agree(stats, names.by_length, tuple(sums.tolist()), total)
            outcomes += [
                (request, k, j, n) for k, c in held.items() for j, n in enumerate(c.tolist())
            ]
        elif key not in stats:
            withheld[DEPTH] = "some requests have no histogram of accepted drafts"
        elif K and drafted == K * rounds and not counts[K + 1 :].any():
            outcomes += [(request, K, j, n) for j, n in enumerate(counts.tolist())]
        else:
            withheld[DEPTH] = MIXED if names.K else PROPOSED
    rounds, drafted, accepted = map(sum, zip(*totals))
    believed = bool(names.K) or settings.drafted is not None
    if not believed:
        withheld["acceptance rate"] = PROPOSED
    table = np.array(outcomes, np.int64).reshape(-1, 4)
    table = table[table[:, 3] > 0]
    lengths = np.unique(table[:, 1]).tolist()
    return _summed(
        source, rounds, accepted, drafted=drafted if believed else None, requests=len(summaries),
        withheld=withheld, outcomes=None if withheld else table,
        draft_length=lengths[0] if not withheld and len(lengths) == 1 else None,
        notes=tuple(notes),
    )  # fmt: skip


UNKNOWN = -1
"""The token of a row whose text is not in the file."""


def read_positions(source: Source, settings: Import) -> Imported:
    """One recording a drafter, of `acc_NAME` with `acc_len`, or of `acc` alone.

    | in the file             | in the recording                                                |
    | ----------------------- | --------------------------------------------------------------- |
    | acc_len[i]              | run = min(acc_len[i] - 1, rows left): emitted if a round starts |
    |                         | after i generated tokens, bonus included                        |
    | length of acc_len       | rows of the sequence, whatever the length of the text           |
    | generated_token_ids     | tokens, if as many as acc_len; else unknown, -1                 |
    | largest acc_len - 1     | K: some draft was that deep, so min(run, K) is the outcome      |

    Every offer is taken as K deep. The budget is the sequence's length, except where it ends with
    one of `end_token`.
    """
    rows = json_rows(source.text)
    names = {
        "drafter" if key == "acc" else key.removeprefix("acc_"): key
        for row in rows for key in row.values if key == "acc" or key[:4] == "acc_" != key
    }  # fmt: skip
    if not names:
        raise ValueError(
            "no object has acc_NAME with acc_len (such as acc_eagle): expected SpecDecode-Bench's "
            "JSON lines"
        )
    traces, notes = {}, []
    for name in sorted(names):
        traces[name], remarks = _recording(source, settings, rows, name, names[name])
        notes += [f"{name}: {note}" for note in remarks]
    return Imported(source, "exact", traces, notes=tuple(notes))


def _recording(
    source: Source, settings: Import, rows: list[Fields], name: str, key: str
) -> tuple[Trace, list[str]]:
    ids, prompts, tokens = list[str](), list[np.ndarray](), list[np.ndarray]()
    right, left, ended = list[np.ndarray](), list[np.ndarray](), list[bool]()
    foreign = 0
    for row in rows:
        held = row if type(row.values.get(key)) is list else row.inner(key)
        emitted = np.array(held.get(key if held is row else "acc_len", list[Whole]), np.int64)
        if not len(emitted):
            continue
        if emitted.min() < 1:
            raise ValueError(
                f"{row.place}: {key} holds 0, expected at least 1: acc_len counts the bonus token, "
                "add 1 to each if this file does not"
            )
        text, prompt = (
            np.array(row.get(part, list[Token]), np.int32)
            for part in ("generated_token_ids", "prompt_token_ids")
        )
        known = len(text) == len(emitted)
        foreign += not known
        ends = np.isin(text, settings.end_token)
        if known and ends[:-1].any() and ends[-1]:
            raise ValueError(f"{row.place}: an end token comes before the last one, expected none")
        ids.append(str(row.get("id", str | int)))
        prompts.append(prompt)
        tokens.append(text if known else np.full(len(emitted), UNKNOWN, np.int32))
        right.append(emitted - 1)
        left.append(np.arange(len(emitted), 0, -1))
        ended.append(known and bool(ends[-1]))
    if not ids:
        raise ValueError(f"{key} is empty in every object: there is nothing to replay")
    accepted, remaining = np.concatenate(right), np.concatenate(left)
    K = min(max(int(accepted.max()), 1), LONGEST_DRAFT)
    lengths = np.array([len(part) for part in tokens])
    run = np.minimum(np.minimum(accepted, remaining), K)
    # where the end token itself was drafted, the draft stops there
    stops = np.repeat(ended, lengths) & (accepted >= remaining)
    trace = Trace(
        offset=np.concatenate(([0], np.cumsum(lengths))),
        budget=lengths + np.where(ended, K + 1, 0),
        token=np.concatenate(tokens),
        depth=np.where(stops, np.minimum(remaining, K), K).astype(np.uint8),
        run=run.astype(np.uint8),
        prompt_offset=np.concatenate(([0], np.cumsum([len(part) for part in prompts]))),
        prompt=np.concatenate(prompts),
        meta=TraceMeta(
            rule="coupled" if settings.temperature else "greedy",
            target=settings.target,
            drafter=name,
            K=K,
            temperature=settings.temperature,
            end_tokens=settings.end_token,
            sources=(f"{source.format} {source.file} sha256 {source.sha256}",),
            tasks=(source.file.partition(".")[0],) * len(ids),
            ids=tuple(ids),
            device="unknown",
            dtype="unknown",
            notes=f"imported from {source.format}: no signals of the drafter, offers taken as K "
            "deep, rows as long as acc_len, tokens -1 where list and text differ in length",
        ),
    )
    counts = {
        "requests left out, without positions": len(rows) - len(ids),
        "requests whose list and text differ in length (tokens unknown, -1)": foreign,
        "accepted lengths cut, for they reach past the end of their list": int(
            (accepted > remaining).sum()
        ),
    }
    return trace, [f"{note}: {count}" for note, count in counts.items() if count]


Reader = Callable[[Source, Import], Imported]
READERS: Mapping[str, tuple[Reader, tuple[str, ...]]] = {
    "vllm-requests": (_rows, ()),
    "vllm-log": (_log, ()),
    "vllm-prometheus": (_prometheus, ("before",)),
    "vllm-bench-serve": (_sums, ()),
    "sglang": (_rows, ("drafted",)),
    "sglang-log": (_sglang_log, ("drafted",)),
    "sglang-prometheus": (_sglang_counters, ("before", "drafted")),
    "tensorrt-llm": (_rows, ()),
    "tensorrt-llm-stats": (_sums, ()),
    "llamacpp-log": (_log, ("drafted",)),
    "llamacpp-timings": (_timings, ()),
    "llamacpp-prometheus": (_prometheus, ("before", "drafted")),
    "guidellm": (_rows, ()),
    "aiperf": (_rows, ()),
    "specdecode-bench": (read_positions, ("temperature", "target", "end_token")),
}
"""{format: (its reader, the settings that it reads)}."""
ANY_FORMAT = ("format", "files", "out", "at", "as_json")


def read_import(settings: Import) -> Imported:
    """Contents of the file; ValueError, one line with the file, where it is not of this format."""
    format = settings.format
    if format not in READERS:
        raise ValueError(f"format {format!r} is unknown: {expected_one(format, IMPORT_FORMATS)}")
    reader, reads = READERS[format]
    for field in fields(settings):
        stated = getattr(settings, field.name) != field.default
        if stated and field.name not in ANY_FORMAT + reads:
            raise ValueError(f"format {format} does not read {field.name}: leave that option out")
    source = read_source(format, settings.file)
    raised = ValueError, OverflowError, RecursionError
    with reraised(ValueError, str(settings.file), raised=raised):
        return reader(source, settings)


def read_imports(settings: Import) -> list[Imported]:
    """Several files in order; of counters each less the one before it, the first with `before`."""
    before, results = settings.before, list[Imported]()
    counters = "before" in READERS.get(settings.format, ("", ()))[1]
    for file in settings.files:
        if not counters or before is not None:
            results.append(read_import(replace(settings, files=(file,), before=before)))
        before = file if counters else before
    return results


def write_recordings(result: Imported, out: Path, *inputs: Path) -> list[Path]:
    """The files written: of several drafters, NAME-DRAFTER.parquet each.

    ValueError where the import is no recording, or the path is none of a recording.
    """
    if result.kind != "exact":
        raise ValueError(f"{out} would be a recording: {ELSEWHERE}")
    if out.suffix != ".parquet":
        raise ValueError(f"{out} would hold a recording, expected a name that ends in .parquet")
    paths = {name: out for name in result.traces}
    if len(paths) > 1:
        if odd := [name for name in paths if not re.fullmatch(r"[\w-]{1,80}", name)]:
            raise ValueError(
                f"drafter {odd[0][:80]!r} is no part of a file's name, expected letters, digits, _ "
                "and -: rename it in the file"
            )
        paths = {name: out.with_name(f"{out.stem}-{name}.parquet") for name in paths}
    for path in paths.values():
        check_output(path, *inputs)
    for name, trace in result.traces.items():
        trace.save(paths[name])
    return list(paths.values())
