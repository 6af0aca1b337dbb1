"""vLLM per request: `metrics.speculative_decoding` of responses, detailed or as a summary."""

import numpy as np

from simspec.imports.kinds import CensoredRounds, PooledCounts
from simspec.imports.options import ImportFormat, ImportOptions
from simspec.imports.source import Fields, Source, json_rows
from simspec.imports.totals import (
    MIXED,
    PER_ROUND,
    by_length,
    censored,
    check_means,
    check_sums,
    constant,
    dense,
    mean_of,
    origin_of,
)

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
    notes = [OMITTED]
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
    for key, total in (
        ("num_spec_steps", rounds),
        ("num_draft_tokens", drafted),
        ("num_accepted_draft_tokens", accepted),
    ):
        if stats.whole(key) != total:
            raise stats.error(key, stats.whole(key), f"{total}, the sum of the request's rounds")
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


FORMATS = (ImportFormat("vllm-requests", read_requests),)
