"""vLLM's measurements: metrics of requests, counters, log lines, files of `vllm bench serve`."""

import re

import numpy as np

from simspec.engines.counts import (
    MIXED,
    PER_ROUND,
    at_constant_length,
    by_length,
    censored,
    check_figure,
    check_means,
    check_sums,
    constant,
    dense,
    mean_of,
    origin_of,
    rounding_slack,
)
from simspec.engines.documents import Fields, json_rows
from simspec.engines.import_kinds import CensoredRounds, PooledCounts
from simspec.engines.prometheus import Totals, counted_rounds
from simspec.engines.source import ImportFormat, ImportOptions, Source

LONGEST = 10_000
"""Characters of a line."""

COUNTER = "vllm:spec_decode_num_"
LINE = re.compile(
    r"SpecDecoding metrics: Mean acceptance length: (?P<mean>\d+\.\d+),.*?"
    r"Accepted: (?P<accepted>\d{1,15}) tokens, Drafted: (?P<drafted>\d{1,15}) tokens, "
    r"Per-position acceptance rate: (?P<rates>\d\.\d+(?:, \d\.\d+)*),? Avg Draft acceptance rate: "
)
TRIMMED = (
    "under enable_adaptive_verification vLLM counts tokens that it drafted and never verified as "
    "rejected: acceptance by depth is then too low, and no file says so"
)


def read_prometheus(source: Source, options: ImportOptions) -> PooledCounts:
    """Counters of one scrape, less those of `options.before`, summed over engines."""
    totals, notes = counted_rounds(source, options, COUNTER)
    return _totals(source, totals, notes)


def read_log(source: Source, options: ImportOptions) -> PooledCounts:
    """Log lines `SpecDecoding metrics`, one an interval, summed.

    A line gives no rounds: they are drafted / positions, which holds for a constant draft length
    only and is compared with the line's mean length.
    """
    sums: list[Totals] = []
    drafted = accepted = empty = 0
    varies = False
    for number, line in enumerate(source.text.split("\n"), 1):
        if "SpecDecoding metrics:" not in line:
            continue
        match = LINE.search(line) if len(line) <= LONGEST else None
        if match is None:
            raise ValueError(f"line {number}: SpecDecoding metrics in another form than vLLM's")
        interval = _interval(match)
        varies |= interval is None
        drafted, accepted = drafted + int(match["drafted"]), accepted + int(match["accepted"])
        if interval is not None and interval[0]:
            sums.append(interval)
        empty += not int(match["drafted"])
    if not (sums or varies):
        if empty:
            raise ValueError(
                f"{empty} line{'s' if empty > 1 else ''} of SpecDecoding metrics "
                f"count{'' if empty > 1 else 's'} no drafted token: nothing can be concluded"
            )
        raise ValueError("no line holds SpecDecoding metrics: expected a log of vllm serve")
    if varies:
        reason = "some line's mean length is not 1 + accepted / (drafted / positions): the draft "
        reason += "length varies, and a log line gives no rounds"
        return PooledCounts(
            origin_of(source), drafted=drafted, accepted=accepted,
            withheld={"rounds, accepted length, acceptance by depth": reason},
        )  # fmt: skip
    if len({len(one[3]) for one in sums}) > 1:
        raise ValueError("lines have different numbers of positions: split the log by run")
    rounds = sum(one[0] for one in sums)
    at_least = np.sum([one[3] for one in sums], axis=0)
    note = f"{len(sums)} lines; rates of 3 decimals, so acceptance by depth is off by up to 0.0005"
    slack = sum(rounding_slack(one[0], len(at_least)) for one in sums)
    return _totals(source, (rounds, drafted, accepted, at_least), [note], slack)


def _interval(match: re.Match[str]) -> Totals | None:
    """(rounds, drafted, accepted, at least) of a line, None where the draft length varies."""
    rates = np.array([float(rate) for rate in match["rates"].split(",")])
    drafted, accepted = int(match["drafted"]), int(match["accepted"])
    rounds = -(-drafted // len(rates))
    if rounds and abs(1 + accepted / rounds - float(match["mean"])) > 0.0051:
        return None
    return rounds, drafted, accepted, np.rint(rates * rounds).astype(np.int64)


def read_bench_serve(source: Source, options: ImportOptions) -> PooledCounts:
    """The JSON of `vllm bench serve --save-result`; its acceptance rate is in per cent."""
    rows = [row for row in json_rows(source.text) if "spec_decode_num_drafts" in row]
    if len(rows) != 1:
        raise ValueError(
            f"{len(rows)} objects hold spec_decode_num_drafts, expected one run of vllm bench serve"
        )
    row, name = rows[0], "spec_decode_acceptance_rate"
    rounds = row.whole("spec_decode_num_drafts", 1)
    drafted, accepted = (
        row.whole(f"spec_decode_{kind}_tokens", least)
        for kind, least in (("draft", 1), ("accepted", 0))
    )
    if abs(row.number(name) - 100 * accepted / drafted) > 0.1:
        raise row.error(name, row.number(name), f"{100 * accepted / drafted:.2f} per cent")
    check_figure(row, "spec_decode_acceptance_length", 1 + accepted / rounds)
    rates = np.array(row.numbers("spec_decode_per_position_acceptance_rates"))
    at_least = np.rint(rates * rounds).astype(np.int64)
    return _totals(source, (rounds, drafted, accepted, at_least), [])


def _totals(source: Source, totals: Totals, notes: list[str], slack: float = 0.0) -> PooledCounts:
    rounds, drafted, accepted, at_least = totals
    by_depth, withheld, more = at_constant_length(rounds, drafted, accepted, at_least, slack)
    return PooledCounts(
        origin_of(source), None, rounds, drafted, accepted, mean_of(rounds, accepted), PER_ROUND,
        None, by_depth, len(at_least) if by_depth else None, withheld,
        notes=(*notes, TRIMMED, *more),
    )  # fmt: skip


OMITTED = "steps without drafts are not in the file: tokens per target pass may be lower"


def read_requests(source: Source, options: ImportOptions) -> CensoredRounds | PooledCounts:
    """Rounds of responses with per_step arrays; else sums by draft length.

    `num_spec_steps` counts rounds with a draft. Lists and counters must agree.
    """
    summaries, ids, absent = [], [], 0
    for row in json_rows(source.text):
        metrics = row.values.get("metrics")
        stats = metrics.get("speculative_decoding") if type(metrics) is dict else None
        if stats is None:
            absent += type(metrics) is dict
            continue
        summaries.append(row.inner("metrics").inner("speculative_decoding"))
        ids.append(row.name("id") if "id" in row else row.place)
    if not summaries:
        raise ValueError(
            "no response has metrics.speculative_decoding: serve with "
            "--per-request-spec-decode-metrics, n = 1, and the usage chunk of streams"
        )
    started = [i for i, stats in enumerate(summaries) if stats.whole("num_spec_steps")]
    notes = [OMITTED, TRIMMED]
    if 0 < len(started) < len(summaries):
        notes.append(f"requests left out, without a verify step: {len(summaries) - len(started)}")
        summaries, ids = [summaries[i] for i in started], [ids[i] for i in started]
    if absent:
        notes.append(f"responses left out, without acceptance (n > 1, or no drafts): {absent}")
    detailed = ["per_step_accepted" in stats for stats in summaries]
    if all(detailed):
        accepted = [stats.wholes("per_step_accepted") for stats in summaries]
        drafted = [stats.wholes("per_step_drafted") for stats in summaries]
        for stats, tried, right in zip(summaries, drafted, accepted):
            _check(stats, len(right), int(tried.sum()), int(right.sum()))
        return censored(source, ids, drafted, accepted, notes)
    if any(detailed):
        notes.append("some responses are summaries, so all are read as such")
    return _pooled(source, summaries, notes)


def _check(stats: Fields, rounds: int, drafted: int, accepted: int) -> None:
    for key, summed in (
        ("num_spec_steps", rounds),
        ("num_draft_tokens", drafted),
        ("num_accepted_draft_tokens", accepted),
    ):
        if stats.whole(key) != summed:
            raise stats.error(key, stats.whole(key), f"{summed}, the sum of the request's rounds")
    check_means(stats, "mean_acceptance_length", "draft_acceptance_rate", rounds, drafted, accepted)


def _pooled(source: Source, summaries: list[Fields], notes: list[str]) -> PooledCounts:
    totals = np.array(
        [
            [stats.whole(k) for k in ("num_spec_steps", "num_draft_tokens")]
            + [stats.whole("num_accepted_draft_tokens")]
            for stats in summaries
        ]
    )
    parts: list[tuple[int, int, np.ndarray]] = []
    withheld = {}
    for request, stats in enumerate(summaries):
        rounds, drafted, accepted = map(int, totals[request])
        _check(stats, rounds, drafted, accepted)
        K = stats.whole("num_spec_tokens", 1)
        key = "acceptance_histogram"
        counts = dense(stats, key, K)
        check_sums(stats, key, counts, rounds, accepted)
        if "acceptance_histogram_by_draft_length" in stats:
            keyed = stats.inner("acceptance_histogram_by_draft_length")
            lengths = {int(k): dense(keyed, k, int(k)) for k in keyed.values if k.isdigit()}
            _check(
                stats, sum(int(c.sum()) for c in lengths.values()),
                sum(k * int(c.sum()) for k, c in lengths.items()),
                sum(int(c @ np.arange(len(c))) for c in lengths.values()),
            )  # fmt: skip
            parts += [(request, k, c) for k, c in lengths.items()]
        elif drafted == K * rounds:
            parts.append((request, K, counts))
        else:
            withheld["acceptance by depth"] = MIXED
    rounds, drafted, accepted = map(int, totals.sum(axis=0))
    return PooledCounts(
        origin_of(source), len(summaries), rounds, drafted, accepted,
        mean_of(rounds, accepted), PER_ROUND, mean_of(totals[:, 0], totals[:, 2]),
        {} if withheld else by_length(parts, len(summaries)), constant(parts, withheld), withheld,
        notes=tuple(notes),
    )  # fmt: skip


IMPORTS = (
    ImportFormat("vllm-prometheus", read_prometheus, ("before",)),
    ImportFormat("vllm-requests", read_requests),
    ImportFormat("vllm-log", read_log),
    ImportFormat("vllm-bench-serve", read_bench_serve),
)
