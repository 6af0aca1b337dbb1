"""SGLang's measurements: `meta_info` of responses, under its present and its older names."""

from typing import Any

import numpy as np

from simspec.engines.counts import (
    PER_ROUND,
    by_length,
    censored,
    check_figure,
    check_sums,
    constant,
    dense,
    mean_of,
    origin_of,
    without_bonus,
)
from simspec.engines.documents import Fields, json_rows, responses
from simspec.engines.import_kinds import CensoredRounds, Import, PooledCounts
from simspec.engines.sglang import import_flags
from simspec.engines.source import ImportFormat, ImportOptions, Source

NAMES = {
    "accepted": ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"),
    "drafted": ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"),
    "histogram": ("spec_correct_drafts_histogram", "spec_accept_histogram"),
}
"""Each figure's names, the present one first; they were renamed twice."""

PROPOSED = (
    "SGLang computes proposed drafts as rounds x configured length, wrong where it adapts: "
    "state a constant length with --drafted (draft tokens - 1 of a chain)"
)


RAGGED = (
    "drafts were verified up to several lengths (spec_cap_lens_histogram): deeper tokens were "
    "verified by some rounds only, and which is lost"
)


def read_sglang(source: Source, options: ImportOptions) -> Import:
    """The steps of command-line flags, where the text starts with one; else `meta_info`."""
    if source.text.lstrip().startswith("-"):
        return import_flags(source, options)
    return read_meta_info(source, options)


def read_meta_info(source: Source, options: ImportOptions) -> CensoredRounds | PooledCounts:
    """Rounds where `speculative_decoding_stats` has lists (sglang#34814); else sums of requests."""
    rows = json_rows(source.text)
    detailed = [
        (holder, holder.inner("speculative_decoding_stats"))
        for holder in responses(rows, "speculative_decoding_stats")
    ]
    if detailed and all("accept_lengths" in stats for _, stats in detailed):
        return _rounds(source, detailed)
    summaries = responses(rows, "spec_verify_ct")
    if not summaries:
        raise ValueError(
            "no object has spec_verify_ct, expected SGLang responses with meta_info of a server "
            "with speculative decoding"
        )
    drafting = [stats for stats in summaries if stats.whole("spec_verify_ct")]
    if not drafting:
        raise ValueError("the file holds no round with a draft: spec_verify_ct is 0 everywhere")
    notes = []
    if len(drafting) < len(summaries):
        notes.append(f"requests left out, without a round: {len(summaries) - len(drafting)}")
    return _pooled(source, options, drafting, notes)


def _rounds(source: Source, detailed: list[tuple[Fields, Fields]]) -> CensoredRounds:
    widths = [stats.wholes("verify_lengths", 1) for _, stats in detailed]
    lengths = [stats.wholes("accept_lengths") for _, stats in detailed]
    emitted = None
    if all("completion_tokens" in holder for holder, _ in detailed):
        emitted = sum(holder.whole("completion_tokens") for holder, _ in detailed)
    accepted, note = without_bonus(lengths, emitted, "accept_lengths")
    ids = [holder.name("id") if "id" in holder else holder.place for holder, _ in detailed]
    drafted = [width - 1 for width in widths]
    return censored(
        source, ids, drafted, accepted, [note, "verify_lengths count the root of the draft"]
    )


def _pooled(
    source: Source, options: ImportOptions, summaries: list[Fields], notes: list[str]
) -> PooledCounts:
    rounds = np.array([stats.whole("spec_verify_ct") for stats in summaries], np.int64)
    accepted = np.array([_figure(stats, "accepted") for stats in summaries], np.int64)
    drafted = np.array([_figure(stats, "drafted") for stats in summaries], np.int64)
    withheld: dict[str, str] = {}
    parts = []
    K = options.drafted
    for request, stats in enumerate(summaries):
        if drafted[request]:
            check_figure(stats, "spec_accept_rate", accepted[request] / drafted[request])
        key = _name(stats, "histogram", required=False)
        counts = dense(stats, key) if key else np.zeros(0, np.int64)
        if key:
            check_sums(stats, key, counts, int(rounds[request]), int(accepted[request]))
        if not key:
            withheld["acceptance by depth"] = "some requests have no histogram of correct drafts"
        elif _is_ragged(stats, K):
            withheld["acceptance by depth"] = RAGGED
        elif K is None:
            withheld["acceptance by depth"] = PROPOSED
        elif drafted[request] != K * rounds[request] or counts[K + 1 :].any():
            raise ValueError(
                f"{stats.place}: {drafted[request]} proposed drafts in {rounds[request]} rounds, "
                f"expected {K} a round as --drafted says"
            )
        else:
            parts.append((request, K, np.pad(counts, (0, K + 1))[: K + 1]))
    if K is None:
        withheld["acceptance rate"] = PROPOSED
    if all("completion_tokens" in stats for stats in summaries):
        emitted = sum(stats.whole("completion_tokens") for stats in summaries)
        notes.append(
            f"SGLang's own length, completion tokens / rounds, is {emitted / rounds.sum():.4f} "
            "here: it counts the prefill's token, and not what a stop cut off"
        )
    total = int(rounds.sum()), int(accepted.sum())
    return PooledCounts(
        origin_of(source), len(summaries), total[0], None if K is None else int(drafted.sum()),
        total[1], mean_of(*total), PER_ROUND, mean_of(rounds, accepted),
        {} if withheld else by_length(parts, len(summaries)), constant(parts, withheld), withheld,
        notes=tuple(notes),
    )  # fmt: skip


def _is_ragged(stats: Fields, K: int | None) -> bool:
    """Whether DSpark's scheduler verified drafts of several lengths, or of another than K."""
    name = "spec_cap_lens_histogram"  # a cap counts the root of the draft
    caps = np.flatnonzero(stats.wholes(name)) if stats.values.get(name) else np.zeros(0, int)
    return len(caps) > 1 or K is not None and bool((caps != K + 1).any())


def _figure(stats: Fields, figure: str) -> int:
    return stats.whole(_name(stats, figure))


def _name(stats: Fields, figure: str, required: bool = True) -> str:
    """The name in use; a figure under no known name is an error, never 0."""
    present = [name for name in NAMES[figure] if name in stats]
    values: list[Any] = [stats.values[name] for name in present]
    if any(value != values[0] for value in values):
        raise ValueError(f"{stats.place}: {' and '.join(present)} differ, expected one figure")
    if not present and required:
        known = sorted(key for key in stats.values if key.startswith("spec_"))
        raise ValueError(
            f"{stats.place}: none of {', '.join(NAMES[figure])} is there, only {', '.join(known)}: "
            "this SGLang has other names"
        )
    return present[0] if present else ""


IMPORTS = (ImportFormat("sglang", read_sglang, ("drafted",)),)
