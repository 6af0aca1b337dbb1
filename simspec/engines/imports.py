"""Readers of what engines and load generators measured: a table of sums and a table of rows.

Sums are counters or summaries of many rounds; rows are the figures of one request each.
SpecDecode-Bench alone logs the outcome of a draft from every position, which is a recording.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simspec.engines import IMPORT_FORMATS, LONGEST_DRAFT, Import
from simspec.engines.documents import (
    LONGEST_LINE,
    NO_POSITION,
    Fields,
    Source,
    json_rows,
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
    censored,
    check_size,
    mean_of,
    of_totals,
)
from simspec.engines.positions import read_positions
from simspec.output.files import LONGEST_REASON, check_output

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
INVENTED = (
    "AIPerf derives llama.cpp's rounds from predicted_n - draft_n_accepted and spreads "
    "the accepted tokens evenly over them: its histogram was not measured"
)
PROPOSED = (
    "SGLang computes proposed drafts as rounds x configured length, wrong where it adapts: "
    "state a constant length with --drafted (draft tokens - 1 of a chain)"
)
RAGGED = (
    "drafts were verified up to several lengths (spec_cap_lens_histogram): deeper tokens were "
    "verified by some rounds only, and which is lost"
)


def check_figure(stats: Fields, key: str, expected: float) -> None:
    """ValueError where a figure of the file is there and not `expected`, to two decimals.

    Another figure under a known name is another definition: of the bonus token, or tested tokens.
    """
    if key in stats and abs(stats.number(key) - expected) > ROUNDED:
        counts = "a length with the bonus token, or accepted / drafted tokens"
        raise stats.error(key, stats.number(key), f"{expected:.4f} by the counts ({counts})")


def rounding_slack(rounds: int, K: int) -> float:
    """Accepted tokens that K rates of three decimals may miss or add, over all positions."""
    error = 0.0005 * rounds
    return K * (error + 0.5) if error >= 0.5 else 0.0


def _pooled(
    source: Source, settings: Import, rounds: int, drafted: int, accepted: int,
    at_least: np.ndarray, requests: int | None = None, slack: float = 0.0,
    notes: Iterable[str] = (),
) -> Imported:  # fmt: skip
    """Sums of rounds, int64[K] of which accepted at least 1 to K tokens.

    Rounds whose draft is shorter than K are at most the K rounds - drafted missing tokens. Up to
    1% of the rounds they are taken as K long, with a note; above, the draft length varies and
    acceptance by depth is withheld. slack: accepted tokens that rounded rates may miss.
    """
    notes = list(notes)
    if source.format.startswith("llamacpp"):
        at_least, more = _to_draft_length(settings.drafted, rounds, drafted, at_least)
        notes += more
    elif source.format.startswith("vllm"):
        notes.append(TRIMMED)
    if source.format.endswith("-log"):
        notes.append("rates of 3 decimals, so acceptance by depth is off by up to 0.0005")
    K = len(at_least)
    missing = K * rounds - drafted
    if not 1 <= K <= LONGEST_DRAFT or missing < 0:
        raise ValueError(
            f"{drafted} tokens are drafted in {rounds} rounds with {K} positions, expected at most "
            f"{K} each: the file is of two runs, or counts the bonus token"
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
        source, rounds, drafted, accepted, requests=requests,
        by_depth={} if varies else {K: of_totals(rounds, at_least)},
        draft_length=None if varies else K, withheld={DEPTH: MIXED} if varies else {},
        notes=tuple(notes),
    )  # fmt: skip


def _summed(
    source: Source, rounds: int, drafted: int | None, accepted: int, **more: Any
) -> Imported:
    """Sums with the accepted length that they give."""
    return Imported(
        source, rounds=rounds, drafted=drafted, accepted=accepted,
        length=mean_of(rounds, accepted), length_means=PER_ROUND, **more,
    )  # fmt: skip


def _to_draft_length(
    stated: int | None, rounds: int, drafted: int, at_least: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """(counts of all K positions, notes): llama.cpp's end at the deepest accepted one."""
    deepest = len(at_least)
    K = stated or max(deepest, -(-drafted // max(rounds, 1)))
    if not deepest <= K <= LONGEST_DRAFT or K * rounds < drafted:
        name = "the draft length" if stated is None else "--drafted"
        raise ValueError(
            f"{name} is {K}, expected at most {LONGEST_DRAFT} and enough for {drafted} tokens "
            f"drafted in {rounds} rounds, {deepest} of them deep"
        )
    note = f"the file gives no draft length: K = {K} is the least that it allows, state --drafted"
    return np.pad(at_least, (0, K - deepest)), [note] if stated is None else []


SUMS = "drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos"
COUNTERS = {
    "vllm-prometheus": ("vllm:spec_decode_num_", "position", SUMS),
    "llamacpp-prometheus": ("llamacpp:spec_decode_num_", "position", SUMS),
    "tensorrt-llm-prometheus": (
        "trtllm_spec_decode_", "token_position", ("drafted_tokens", "accepted_tokens"),
    ),
}  # fmt: skip
"""{format: prefix of its counters, label of positions, names}: llama.cpp's are vLLM's, and
TensorRT-LLM counts drafted and accepted tokens by position alone."""


def _prometheus(source: Source, settings: Import) -> Imported:
    """Counters of one scrape, less those of `before`, summed over engines and ranks."""
    prefix, label, names = COUNTERS[source.format]
    before = read_source(source.format, settings.before) if settings.before else None
    found = read_counters(source, before, prefix, names, label)
    notes = [] if before else [
        "counters run since the server started, warm-up included: give an earlier scrape with "
        "--before"
    ]  # fmt: skip

    def total(name: str) -> int:
        if NO_POSITION not in found.get(name, {}):
            raise ValueError(
                f"{source.file}: counter {prefix}{name}_total is missing, expected the /metrics of "
                "a server with speculative decoding"
            )
        return found[name][NO_POSITION]

    def by_position(name: str) -> np.ndarray:
        counts = found.get(name, {})
        if sorted(counts) != list(range(len(counts))) or len(counts) > LONGEST_DRAFT:
            raise ValueError(
                f"{source.file}: counters of some position are missing, expected {prefix}{name}"
                f"_total at each from 0 on, at most {LONGEST_DRAFT}"
            )
        return np.array([counts[place] for place in range(len(counts))], np.int64)

    if names is SUMS:
        rounds, drafted, accepted = map(total, names[:3])
        return _pooled(
            source, settings, rounds, drafted, accepted, by_position(names[3]), notes=notes
        )
    tried, right = map(by_position, names)
    if len(tried) != len(right) or not tried.any() or (right > tried).any():
        raise ValueError(
            f"{source.file}: {len(tried)} positions are drafted, {len(right)} accepted, expected "
            "as many, some draft, and no more accepted than drafted"
        )
    notes.append(
        "counters by position are of finished requests; rounds are those that draft position 0"
    )
    sums = int(tried[0]), int(tried.sum()), int(right.sum()), right[tried > 0]
    return _pooled(source, settings, *sums, notes=notes)


VLLM_LINE = re.compile(
    r"SpecDecoding metrics: Mean acceptance length: (?P<mean>\d+\.\d+),.*?"
    r"Accepted: (?P<accepted>\d{1,15}) tokens, Drafted: (?P<drafted>\d{1,15}) tokens, "
    r"Per-position acceptance rate: (?P<rates>\d\.\d+(?:, \d\.\d+)*),? Avg Draft acceptance rate: "
)
LLAMACPP_REQUEST = re.compile(
    r"draft acceptance(?: rate)? = (\d\.\d+) \(\s*(\d{1,15}) accepted /\s*(\d{1,15}) generated\)"
)
LLAMACPP_LINE = re.compile(
    r"statistics\s+(?P<drafter>\S{1,80}?):.*?#gen drafts =\s*(?P<rounds>\d{1,15}), "
    r"#acc drafts =\s*(?P<right>\d{1,15}), #gen tokens =\s*(?P<drafted>\d{1,15}), "
    r"#acc tokens =\s*(?P<accepted>\d{1,15})(?:, #mean acc len =\s*(?P<mean>\d+\.\d+))?"
    r"(?:, #acc rate/pos = \((?P<rates>\d\.\d+(?:, \d\.\d+)*)\))?"
)


def _log_lines(source: Source, *words: str) -> list[tuple[int, str]]:
    lines = [
        (number, line)
        for number, line in enumerate(source.text.split("\n"), 1)
        if any(word in line for word in words)
    ]
    for number, line in lines:
        if len(line) > LONGEST_LINE:
            raise ValueError(f"line {number} has {len(line)} characters, expected a log line")
    return lines


def _vllm_log(source: Source, settings: Import) -> Imported:
    """Log lines `SpecDecoding metrics`, one an interval, summed.

    A line gives no rounds: they are drafted / positions, which holds for a constant draft length
    only and is compared with the line's mean length.
    """
    drafted = accepted = rounds = lines = 0
    at_least: list[np.ndarray] = []
    slack, varies = 0.0, False
    for number, line in _log_lines(source, "SpecDecoding metrics:"):
        match = VLLM_LINE.search(line)
        if match is None:
            raise ValueError(f"line {number}: SpecDecoding metrics in another form than vLLM's")
        lines += 1
        right, tried = int(match["accepted"]), int(match["drafted"])
        rates = np.array([float(rate) for rate in match["rates"].split(",")])
        passes = -(-tried // len(rates))
        drafted, accepted, rounds = drafted + tried, accepted + right, rounds + passes
        if passes:
            varies |= abs(1 + right / passes - float(match["mean"])) > ROUNDED
            at_least.append(np.rint(rates * passes).astype(np.int64))
            slack += rounding_slack(passes, len(rates))
    if not lines:
        raise ValueError("no line holds SpecDecoding metrics: expected a log of vllm serve")
    if not drafted:
        raise ValueError(
            f"{lines} line{'s count' if lines > 1 else ' of SpecDecoding metrics counts'} no "
            "drafted token: nothing can be concluded"
        )
    if varies:
        reason = (
            "some line's mean length is not 1 + accepted / (drafted / positions): the draft "
            "length varies, and a log line gives no rounds"
        )
        withheld = {NO_ROUNDS: reason}
        return Imported(source, drafted=drafted, accepted=accepted, withheld=withheld)
    if len({len(one) for one in at_least}) > 1:
        raise ValueError("lines have different numbers of positions: split the log by run")
    note = f"{len(at_least)} lines"
    sums = rounds, drafted, accepted, np.sum(at_least, axis=0)
    return _pooled(source, settings, *sums, slack=slack, notes=(note,))


def _llamacpp_log(source: Source, settings: Import) -> Imported:
    """The last `statistics` line, which is cumulative; without one, sums of the requests' lines."""
    requests, last = [], dict[str, re.Match[str]]()
    for number, line in _log_lines(source, "statistics", "draft acceptance"):
        if (match := LLAMACPP_LINE.search(line)) is not None:
            last[match["drafter"]] = match
        elif (match := LLAMACPP_REQUEST.search(line)) is not None:
            right, tried = int(match[2]), int(match[3])
            if tried:
                rate = Fields({"rate": float(match[1])}, f"line {number}")
                check_figure(rate, "rate", right / tried)
            requests.append((right, tried))
    if len(last) > 1:
        raise ValueError(f"statistics of {', '.join(sorted(last))}: keep the lines of one drafter")
    if not last and not requests:
        raise ValueError("no line holds draft acceptance, expected a log of llama-server")
    if not last:
        accepted, drafted = map(sum, zip(*requests))
        reason = "lines of requests give no rounds; the statistics line does, keep it"
        return Imported(
            source, requests=len(requests), drafted=drafted, accepted=accepted,
            withheld={NO_ROUNDS: reason},
            notes=("the rate is accepted of generated tokens, tested or not",),
        )  # fmt: skip
    (line_,) = last.values()
    rounds, right, drafted, accepted = (
        int(line_[name]) for name in ("rounds", "right", "drafted", "accepted")
    )
    if right > rounds:
        raise ValueError(f"{right} drafts are accepted of {rounds} generated, expected fewer")
    notes = (
        "the statistics line runs since the server started; rounds without a draft are not in it",
    )
    if line_["rates"] is None:
        withheld = {DEPTH: "this llama.cpp prints no rate by position"}
        return _summed(
            source, rounds, drafted, accepted, requests=len(requests) or None, withheld=withheld,
            notes=notes,
        )  # fmt: skip
    rates = np.array([float(rate) for rate in line_["rates"].split(",")])
    at_least = np.rint(rates * rounds).astype(np.int64)
    slack, sums = rounding_slack(rounds, len(rates)), (rounds, drafted, accepted, at_least)
    return _pooled(source, settings, *sums, len(requests) or None, slack, notes)


def _bench_serve(source: Source, settings: Import) -> Imported:
    """The JSON of `vllm bench serve --save-result`; its acceptance rate is in per cent."""
    rows = [row for row in json_rows(source.text) if "spec_decode_num_drafts" in row]
    if len(rows) != 1:
        raise ValueError(
            f"{len(rows)} objects hold spec_decode_num_drafts, expected one run of vllm bench serve"
        )
    (row,) = rows
    rounds, drafted = (row.whole(f"spec_decode_{k}", 1) for k in ("num_drafts", "draft_tokens"))
    accepted, name = row.whole("spec_decode_accepted_tokens"), "spec_decode_acceptance_rate"
    if abs(row.number(name) - 100 * accepted / drafted) > 0.1:
        raise row.error(name, row.number(name), f"{100 * accepted / drafted:.2f} per cent")
    check_figure(row, "spec_decode_acceptance_length", 1 + accepted / rounds)
    rates = np.array(row.numbers("spec_decode_per_position_acceptance_rates"))
    at_least = np.rint(rates * rounds).astype(np.int64)
    return _pooled(source, settings, rounds, drafted, accepted, at_least)


def _timings(source: Source, settings: Import) -> Imported:
    """llama.cpp's `timings`: accepted of drafted tokens, and tokens a target pass."""
    timings = responses(json_rows(source.text), "predicted_n")
    drafting = [stats for stats in timings if "draft_n" in stats]
    if not drafting:
        raise ValueError(
            "no timings with draft_n, expected responses of llama-server with a drafter"
        )
    drafted, accepted, tokens = (
        sum(stats.whole(key) for stats in drafting)
        for key in ("draft_n", "draft_n_accepted", "predicted_n")
    )
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
    """Names of a request's figures; of several the present one comes first.

    path: keys down to the object that holds them. K: '' where the user states the draft length,
    since `drafted` is computed from it. length, rate: figures that must agree with the counts.
    lists: accepted and drafted tokens of each round. missing: the error where no response has them.
    """

    path: tuple[str, ...]
    rounds: str
    drafted: tuple[str, ...]
    accepted: tuple[str, ...]
    histogram: tuple[str, ...]
    K: str
    length: str
    rate: str
    missing: str
    by_length: str = ""
    lists: tuple[str, str] = ("", "")
    notes: tuple[str, ...] = ()


VLLM_ROWS = RowNames(
    ("metrics", "speculative_decoding"), "num_spec_steps", ("num_draft_tokens",),
    ("num_accepted_draft_tokens",), ("acceptance_histogram",), "num_spec_tokens",
    "mean_acceptance_length", "draft_acceptance_rate",
    "no response has metrics.speculative_decoding: serve with --per-request-spec-decode-metrics, "
    "n = 1, and the usage chunk of streams", "acceptance_histogram_by_draft_length",
    ("per_step_accepted", "per_step_drafted"), (OMITTED, TRIMMED),
)  # fmt: skip
ROWS = {
    "vllm-requests": VLLM_ROWS,
    "guidellm": VLLM_ROWS._replace(
        path=("response_metrics", "speculative_decoding"),
        missing="no request has response_metrics.speculative_decoding, expected benchmarks.json of "
        "guidellm and a vLLM that serves with --per-request-spec-decode-metrics",
    ),
    "aiperf": VLLM_ROWS._replace(
        path=("num_spec_steps",), by_length="", notes=(),
        missing="no record has num_spec_steps, expected AIPerf's export of records",
    ),
    "tensorrt-llm": RowNames(
        ("speculative_decoding",), "num_spec_steps", ("total_draft_tokens",),
        ("total_accepted_draft_tokens",), ("acceptance_histogram",), "num_spec_tokens", "",
        "acceptance_rate", "no choice has speculative_decoding, expected responses of trtllm-serve "
        "with speculative decoding",
    ),
    "sglang": RowNames(
        ("spec_verify_ct",), "spec_verify_ct",
        ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"),
        ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"),
        ("spec_correct_drafts_histogram", "spec_accept_histogram"), "", "", "spec_accept_rate",
        "no object has spec_verify_ct, expected SGLang responses with meta_info of a server with "
        "speculative decoding",
    ),
}  # fmt: skip
"""guidellm and AIPerf store vLLM's object; SGLang's figures were renamed twice."""


def _rows(source: Source, settings: Import) -> Imported:
    """Requests by their names in ROWS: rounds where all have lists, else sums by draft length."""
    names = ROWS[source.format]
    holders = responses(json_rows(source.text), names.path[0])
    inside = () if names.path == (names.rounds,) else names.path
    found = [(h, stats) for h in holders if (stats := _inner(h, inside)) is not None]
    if not found:
        raise ValueError(names.missing)
    if source.format == "aiperf" and (derived := _derived(source, [s for _, s in found])):
        return derived
    started = [(holder, stats) for holder, stats in found if stats.whole(names.rounds)]
    if not started:
        raise ValueError(NOTHING)
    left_out, absent = len(found) - len(started), len(holders) - len(found)
    notes = list(names.notes)
    if left_out:
        notes.append(f"requests left out, without a verify step: {left_out}")
    if absent:
        notes.append(f"responses left out, without acceptance (n > 1, or no drafts): {absent}")
    summaries = [stats for _, stats in started]
    totals = [_totals(stats, names) for stats in summaries]
    detailed = [names.lists[0] in stats for stats in summaries]
    if all(detailed):
        accepted, drafted = ([stats.wholes(k) for stats in summaries] for k in names.lists)
        for stats, tried, right, total in zip(summaries, drafted, accepted, totals):
            _agree(stats, "its lists", (len(right), int(tried.sum()), int(right.sum())), total)
        return _lists(source, [holder for holder, _ in started], drafted, accepted, notes)
    if any(detailed):
        notes.append("some responses are summaries, so all are read as such")
    return _requests(source, settings, summaries, totals, notes)


def _inner(stats: Fields, path: Sequence[str]) -> Fields | None:
    """The object at the end of the path; None where it is null or absent."""
    for key in path:
        if key not in stats:
            return None
        stats = stats.inner(key)
    return stats


def _name(stats: Fields, known: tuple[str, ...], required: bool = True) -> str:
    """The name in use; a figure under no known name is an error, never 0."""
    present = [name for name in known if name in stats]
    values: list[Any] = [stats.values[name] for name in present]
    if any(value != values[0] for value in values):
        raise ValueError(f"{stats.place}: {' and '.join(present)} differ, expected one figure")
    if not present and required and len(known) > 1:
        held = sorted(key for key in stats.values if key.startswith("spec_"))
        raise ValueError(
            f"{stats.place}: none of {', '.join(known)} is there, only {', '.join(held)}: this "
            "SGLang has other names"
        )
    return present[0] if present else known[0] if required else ""


Totals = tuple[int, ...]
"""(rounds, drafted, accepted)."""


def _totals(stats: Fields, names: RowNames) -> Totals:
    """The sums of a request, with which its own figures must agree."""
    rounds = stats.whole(names.rounds)
    drafted, accepted = (stats.whole(_name(stats, n)) for n in (names.drafted, names.accepted))
    check_figure(stats, names.length, 1 + accepted / rounds)
    if drafted:
        check_figure(stats, names.rate, accepted / drafted)
    return rounds, drafted, accepted


def _agree(stats: Fields, what: str, summed: Totals, totals: Totals) -> None:
    if summed != totals:
        raise ValueError(
            f"{stats.place}: {what} sum to {summed[0]} rounds, {summed[1]} drafted and {summed[2]} "
            f"accepted tokens, the counters to {totals[0]}, {totals[1]} and {totals[2]}, expected "
            "the same: is the bonus token counted?"
        )


def _histogram(stats: Fields, key: str, K: int | None = None) -> np.ndarray:
    """int64 of a list or of an object {accepted: rounds}; K + 1 entries where K is given."""
    most = LONGEST_DRAFT + 1 if K is None else K + 1
    if type(stats.values.get(key)) is dict:
        table = stats.table(key)
        if max(table, default=0) >= most:
            raise stats.error(key, max(table), f"at most {most - 1} accepted tokens")
        counts = np.zeros(max(table, default=0) + 1 if K is None else most, np.int64)
        counts[list(table)] = list(table.values())
    else:
        counts = stats.wholes(key)
    if len(counts) > most or K is not None and len(counts) != most:
        raise stats.error(key, counts.tolist(), f"{most}{' at most' if K is None else ''} counts")
    return counts


def _requests(
    source: Source, settings: Import, summaries: list[Fields], totals: list[Totals],
    notes: list[str],
) -> Imported:  # fmt: skip
    """Sums of requests, by depth where each one's rounds drafted one length."""
    names, withheld = ROWS[source.format], dict[str, str]()
    parts: list[tuple[int, int, np.ndarray]] = []  # request, K, rounds that accepted 0 to K
    for request, (stats, total) in enumerate(zip(summaries, totals)):
        rounds, drafted, accepted = total
        K = stats.whole(names.K, 1) if names.K in stats else settings.drafted
        key = _name(stats, names.histogram, required=bool(names.K))
        counts = _histogram(stats, key) if key else np.zeros(0, np.int64)
        weighted = int(counts @ np.arange(len(counts)))
        if key:
            _agree(stats, key, (int(counts.sum()), drafted, weighted), total)
        if names.by_length and names.by_length in stats:
            keyed = stats.inner(names.by_length)
            held = {int(k): _histogram(keyed, k, int(k)) for k in keyed.values if k.isdigit()}
            sums = [(c.sum(), k * c.sum(), c @ np.arange(k + 1)) for k, c in held.items()]
            _agree(stats, names.by_length, tuple(int(sum(each)) for each in zip(*sums)), total)
            parts += [(request, k, c) for k, c in held.items()]
        elif not key:
            withheld[DEPTH] = "some requests have no histogram of correct drafts"
        elif _is_ragged(stats, K):
            withheld[DEPTH] = RAGGED
        elif K and drafted == K * rounds and not counts[K + 1 :].any():
            parts.append((request, K, np.pad(counts, (0, K + 1))[: K + 1]))
        elif names.K:
            withheld[DEPTH] = MIXED
        elif K is None:
            withheld[DEPTH] = PROPOSED
        else:
            raise ValueError(
                f"{stats.place}: {drafted} proposed drafts in {rounds} rounds, expected {K} a "
                "round as --drafted says"
            )
    table = np.array(totals, np.int64)
    rounds, drafted, accepted = map(int, table.sum(axis=0))
    believed = bool(names.K) or settings.drafted is not None
    if not believed:
        withheld["acceptance rate"] = PROPOSED
    if not names.K and all("completion_tokens" in stats for stats in summaries):
        emitted = sum(stats.whole("completion_tokens") for stats in summaries)
        notes.append(
            f"SGLang's own length, completion tokens / rounds, is {emitted / rounds:.4f} here: it "
            "counts the prefill's token, and not what a stop cut off"
        )
    by_depth = {} if withheld else _by_length(parts, len(summaries))
    lengths = {K for _, K, counts in parts if counts.any()}
    return _summed(
        source, rounds, drafted if believed else None, accepted, requests=len(summaries),
        length_per_request=mean_of(table[:, 0], table[:, 2]), by_depth=by_depth,
        draft_length=max(lengths) if by_depth and len(lengths) == 1 else None, withheld=withheld,
        notes=tuple(notes),
    )  # fmt: skip


def _by_length(
    parts: Sequence[tuple[int, int, np.ndarray]], requests: int
) -> dict[int, DepthCounts]:
    """{K: DepthCounts} of rounds by their draft length; K = 0 tried nothing."""
    found = {}
    for K in sorted({K for _, K, _ in parts if K}):
        check_size(requests, K)
        table = np.zeros((requests, K + 1), np.int64)  # rounds that accepted 0 to K
        for request, length, counts in parts:
            if length == K:
                table[request] += counts
        at_least = table[:, ::-1].cumsum(axis=1)[:, ::-1]
        found[K] = DepthCounts(at_least[:, :-1], at_least[:, 1:])
    return found


def _is_ragged(stats: Fields, K: int | None) -> bool:
    """Whether DSpark's scheduler verified drafts of several lengths, or of another than K."""
    name = "spec_cap_lens_histogram"  # a cap counts the root of the draft
    caps = np.flatnonzero(stats.wholes(name)) if stats.values.get(name) else np.zeros(0, int)
    return len(caps) > 1 or K is not None and bool((caps != K + 1).any())


def _derived(source: Source, records: list[Fields]) -> Imported | None:
    """AIPerf's records of llama.cpp, whose rounds it derives; None of engines that count them."""
    engines = {record.name("engine").lower().replace(".", "") for record in records}
    if len(engines) > 1:
        raise ValueError(f"records of {', '.join(sorted(engines))[:100]}: keep one engine's")
    if engines != {"llamacpp"}:
        return None
    drafted, accepted = (
        sum(record.whole(f"num_{key}_tokens") for record in records)
        for key in ("draft", "accepted_draft")
    )
    return Imported(
        source, requests=len(records), drafted=drafted, accepted=accepted,
        withheld={NO_ROUNDS: INVENTED},
    )  # fmt: skip


def _lists(
    source: Source, holders: Sequence[Fields], drafted: Sequence[np.ndarray],
    accepted: Sequence[np.ndarray], notes: Sequence[str],
) -> Imported:  # fmt: skip
    """The rounds of requests; ValueError where a request's two lists differ in length."""
    for holder, tried, right in zip(holders, drafted, accepted):
        if len(tried) != len(right):
            raise ValueError(
                f"{holder.place}: {len(tried)} rounds are drafted and {len(right)} accepted, "
                "expected as many"
            )
    offset = np.concatenate(([0], np.cumsum([len(right) for right in accepted]))).astype(np.int64)
    columns = np.concatenate(drafted), np.concatenate(accepted)
    return censored(source, offset, *columns, tuple(notes))


def _sglang(source: Source, settings: Import) -> Imported:
    """Rounds where `speculative_decoding_stats` has lists (sglang#34814); else sums of requests."""
    name = "speculative_decoding_stats"
    holders = responses(json_rows(source.text), name)
    stats = [holder.inner(name) for holder in holders]
    if not stats or not all("accept_lengths" in each for each in stats):
        return _rows(source, settings)
    drafted = [each.wholes("verify_lengths", 1) - 1 for each in stats]
    lengths = [each.wholes("accept_lengths") for each in stats]
    emitted = None
    if all("completion_tokens" in holder for holder in holders):
        emitted = sum(holder.whole("completion_tokens") for holder in holders)
    accepted, note = without_bonus(lengths, emitted, "accept_lengths")
    notes = note, "verify_lengths count the root of the draft"
    return _lists(source, holders, drafted, accepted, notes)


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


Reader = Callable[[Source, Import], Imported]
BEFORE, DRAFTED = ("before",), ("drafted",)
READERS: Mapping[str, tuple[Reader, tuple[str, ...]]] = {
    "vllm-requests": (_rows, ()),
    "vllm-log": (_vllm_log, ()),
    "vllm-prometheus": (_prometheus, BEFORE),
    "vllm-bench-serve": (_bench_serve, ()),
    "sglang": (_sglang, DRAFTED),
    "tensorrt-llm": (_rows, ()),
    "tensorrt-llm-prometheus": (_prometheus, BEFORE),
    "llamacpp-log": (_llamacpp_log, DRAFTED),
    "llamacpp-timings": (_timings, ()),
    "llamacpp-prometheus": (_prometheus, BEFORE + DRAFTED),
    "guidellm": (_rows, ()),
    "aiperf": (_rows, ()),
    "specdecode-bench": (
        read_positions,
        ("K", "rule", "temperature", "target", "task", "end_token", "drafter", "out"),
    ),
}
"""{format: (its reader, the settings that it reads)}."""
ANY_FORMAT = ("format", "file", "at", "level", "as_json")


def read_import(settings: Import) -> Imported:
    """Contents of the file; ValueError, one line with the file, where it is not of this format."""
    format = settings.format
    if format not in READERS:
        near = get_close_matches(format, IMPORT_FORMATS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(
            f"format {format!r} is unknown: {hint}expected one of {', '.join(IMPORT_FORMATS)}"
        )
    reader, reads = READERS[format]
    for field in fields(settings):
        stated = getattr(settings, field.name) != field.default
        if stated and field.name not in ANY_FORMAT + reads + ("out",):
            raise ValueError(f"format {format} does not read {field.name}: leave that option out")
    source = read_source(format, settings.file)
    try:
        return reader(source, settings)
    except (ValueError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        raise ValueError(f"{settings.file}: {reason}") from None


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
                "and -: choose one with --drafter"
            )
        paths = {name: out.with_name(f"{out.stem}-{name}.parquet") for name in paths}
    for path in paths.values():
        check_output(path, *inputs)
    for name, trace in result.traces.items():
        trace.save(paths[name])
    return list(paths.values())
