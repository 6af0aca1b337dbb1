"""TensorRT-LLM: acceptance in the choices of responses; or its configuration."""

import numpy as np

from simspec.exports.tensorrt_llm import ROOT
from simspec.imports.engine_settings import read_tensorrt_config
from simspec.imports.kinds import Import, PooledCounts
from simspec.imports.options import ImportFormat, ImportOptions
from simspec.imports.source import Source, json_rows, responses
from simspec.imports.totals import (
    MIXED,
    PER_ROUND,
    by_length,
    check_means,
    check_sums,
    constant,
    dense,
    mean_of,
    origin_of,
)


def read_tensorrt_llm(source: Source, options: ImportOptions) -> Import:
    """The draft lengths of a YAML file with `speculative_config`; else responses."""
    if any(line.startswith(f"{ROOT}:") for line in source.text.splitlines()):
        return read_tensorrt_config(source, options)
    if options.engine_version is not None:
        raise ValueError("responses do not depend on the engine's version: leave it out")
    return read_responses(source, options)


def read_responses(source: Source, options: ImportOptions) -> PooledCounts:
    """Sums of choices; under a draft-length schedule `num_spec_tokens` is null, K unknown."""
    rows = json_rows(source.text)
    name, mean = "speculative_decoding", "avg_decoded_tokens_per_iter"
    summaries = [holder.inner(name) for holder in responses(rows, name)]
    means = [holder.number(mean) for holder in responses(rows, mean)]
    if not summaries:
        return _means(source, means)
    withheld, parts, totals = {}, [], []
    for request, stats in enumerate(summaries):
        rounds, drafted = stats.whole("num_spec_steps"), stats.whole("total_draft_tokens")
        accepted = stats.whole("total_accepted_draft_tokens")
        totals.append((rounds, drafted, accepted))
        check_means(stats, "", "acceptance_rate", rounds, drafted, accepted)
        counts = dense(stats, "acceptance_histogram")
        check_sums(stats, "acceptance_histogram", counts, rounds, accepted)
        K = stats.whole("num_spec_tokens", 1) if "num_spec_tokens" in stats else 0
        if K and drafted == K * rounds and not counts[K + 1 :].any():
            parts.append((request, K, np.pad(counts, (0, K + 1))[: K + 1]))
        else:
            withheld["acceptance by depth"] = MIXED
    table = np.array(totals, np.int64)
    rounds, drafted, accepted = map(int, table.sum(axis=0))
    return PooledCounts(
        origin_of(source), len(summaries), rounds, drafted, accepted, mean_of(rounds, accepted),
        PER_ROUND, mean_of(table[:, 0], table[:, 2]),
        {} if withheld else by_length(parts, len(summaries)), constant(parts, withheld), withheld,
    )  # fmt: skip


def _means(source: Source, means: list[float]) -> PooledCounts:
    if not means:
        raise ValueError(
            "no choice has speculative_decoding or avg_decoded_tokens_per_iter, expected responses "
            "of trtllm-serve with speculative decoding"
        )
    reason = "avg_decoded_tokens_per_iter is a mean of a request whose rounds are not given"
    return PooledCounts(
        origin_of(source), len(means), length_per_request=float(np.mean(means)),
        withheld={"rounds, accepted length a round, acceptance by depth": reason},
    )  # fmt: skip


FORMATS = (ImportFormat("tensorrt-llm", read_tensorrt_llm, ("engine_version",)),)
