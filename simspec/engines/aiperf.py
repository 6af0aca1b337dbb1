"""AIPerf: acceptance records of its per-request export."""

import numpy as np

from simspec.engines.counts import (
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
from simspec.engines.documents import Fields, json_rows
from simspec.engines.import_kinds import CensoredRounds, PooledCounts
from simspec.engines.source import ImportFormat, ImportOptions, Source

INVENTED = (
    "AIPerf derives llama.cpp's rounds from predicted_n - draft_n_accepted and spreads "
    "the accepted tokens evenly over them: its histogram was not measured"
)


def read_records(source: Source, options: ImportOptions) -> CensoredRounds | PooledCounts:
    """Rounds where every record has per_step arrays, else sums; of llama.cpp the rate only."""
    records = [record for row in json_rows(source.text) for record in row.holding("num_spec_steps")]
    if not records:
        raise ValueError("no record has num_spec_steps, expected AIPerf's export of records")
    engines = {record.name("engine").lower().replace(".", "") for record in records}
    if len(engines) > 1:
        raise ValueError(f"records of {', '.join(sorted(engines))[:100]}: keep one engine's")
    totals = np.array(
        [[record.whole(k) for k in ("num_spec_steps", "num_draft_tokens")]
         + [record.whole("num_accepted_draft_tokens")] for record in records], np.int64
    )  # fmt: skip
    if engines == {"llamacpp"}:
        return PooledCounts(
            origin_of(source), len(records), None, int(totals[:, 1].sum()), int(totals[:, 2].sum()),
            withheld={"rounds, accepted length, acceptance by depth": INVENTED},
        )  # fmt: skip
    parts, withheld = [], {}
    for request, record in enumerate(records):
        parts += (part := _histogram(record, request, *map(int, totals[request])))
        if not part:
            withheld["acceptance by depth"] = MIXED
    if all("per_step_accepted" in record for record in records):
        accepted = [record.wholes("per_step_accepted") for record in records]
        drafted = [record.wholes("per_step_drafted") for record in records]
        sums = np.array([[len(a), d.sum(), a.sum()] for a, d in zip(accepted, drafted)])
        if (sums != totals).any():
            raise ValueError("per_step arrays and counters of some record differ, expected equal")
        return censored(source, [record.place for record in records], drafted, accepted)
    rounds, tried, right = map(int, totals.sum(axis=0))
    return PooledCounts(
        origin_of(source), len(records), rounds, tried, right, mean_of(rounds, right), PER_ROUND,
        mean_of(totals[:, 0], totals[:, 2]), {} if withheld else by_length(parts, len(records)),
        constant(parts, withheld), withheld,
    )  # fmt: skip


def _histogram(
    record: Fields, request: int, rounds: int, drafted: int, accepted: int
) -> list[tuple[int, int, np.ndarray]]:
    """The record's histogram with its draft length; nothing where that varies."""
    check_means(
        record, "mean_acceptance_length", "draft_acceptance_rate", rounds, drafted, accepted
    )
    counts = dense(record, "acceptance_histogram")
    check_sums(record, "acceptance_histogram", counts, rounds, accepted)
    K = record.whole("num_spec_tokens", 1) if "num_spec_tokens" in record else 0
    if not K or drafted != K * rounds or counts[K + 1 :].any():
        return []
    return [(request, K, np.pad(counts, (0, K + 1))[: K + 1])]


IMPORTS = (ImportFormat("aiperf", read_records),)
