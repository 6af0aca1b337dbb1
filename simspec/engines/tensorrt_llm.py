"""TensorRT-LLM: speculative_config with a draft_len_schedule, and acceptance in responses.

The schedule's meaning changed in 1.3.

Reference: tensorrt_llm/llmapi/llm_args.py of TensorRT-LLM, before and after its #10860.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Any

import numpy as np

from simspec.engines.choice import Limits, Schedule
from simspec.engines.counts import (
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
from simspec.engines.documents import (
    check_fields,
    check_integer,
    check_number,
    check_option,
    check_text,
    json_rows,
    parse_yaml,
    responses,
    shown,
)
from simspec.engines.import_kinds import (
    BatchTier,
    EngineSettings,
    Import,
    PooledCounts,
    fixed_tier,
    of_totals,
)
from simspec.engines.prometheus import by_position, read_counters, total
from simspec.engines.request import ExportFormat, Request, Settings
from simspec.engines.source import ImportFormat, ImportOptions, Source

KIND = "TensorRT-LLM config"
ROOT, LENGTH, SCHEDULE = "speculative_config", "max_draft_len", "draft_len_schedule"
DRAFTERS = {"model": "Draft_Target", "eagle": "Eagle", "prompt_lookup": "NGram"}
WITH_MODEL = ("Draft_Target", "Eagle", "Eagle3")
TYPES = (*WITH_MODEL, "NGram", "MTP")
NGRAM = "max_matching_ngram_size"
GATE = ("acceptance_rate_window_size", "acceptance_rate_threshold")
"""The kill switch since 1.3.0rc27; it had other names before."""

LIMITS = Limits(falling=True)
LOWER_BEFORE, UPPER_FROM = (1, 3, 0, 0), (1, 3, 0, 27)


def upper_bounds(version: str | None) -> bool:
    """Whether keys of a schedule are upper bounds in that version; ValueError where unknown.

    | version | a key is |
    | --- | --- |
    | 1.2 and before | a lower bound |
    | release candidates of 1.3.0 before 27 | either: #10860 changed it in March 2026 |
    | 1.3.0rc27 and later | an upper bound |
    """
    if version is None:
        raise ValueError(
            f"{SCHEDULE} changed its meaning between versions of TensorRT-LLM: give "
            "--engine-version, such as 1.3.0 (upper bounds) or 1.2.0 (lower bounds)"
        )
    found = re.fullmatch(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:rc(\d{1,4}))?", version)
    if found is None:
        raise ValueError(f"engine version is {shown(version)}, expected one such as 1.3.0rc27")
    major, minor, patch, candidate = found.groups()
    release = (int(major), int(minor), int(patch or 0), int(candidate or 9999))
    if LOWER_BEFORE <= release < UPPER_FROM:
        raise ValueError(
            f"engine version is {version}: the keys of {SCHEDULE} changed from lower to upper "
            "bounds among the candidates of 1.3.0, give 1.2.0 or 1.3.0rc27 for the one that "
            "yours has"
        )
    return release >= UPPER_FROM


def export(request: Request) -> str:
    """The YAML of `--config`; ValueError for a drafter that TensorRT-LLM has no type for.

    Lengths of larger batches are at most that of batch 1, which is max_draft_len.
    """
    import yaml

    schedule = clamped(request.schedule)
    kind = request.method(DRAFTERS, "TensorRT-LLM")
    config: dict[str, Any] = {"decoding_type": kind, LENGTH: schedule.longest}
    if kind in WITH_MODEL:
        config["speculative_model"] = request.model(kind)
    if kind == "NGram":
        config[NGRAM] = request.settings.ngram
    if not schedule.single:
        config[SCHEDULE] = bounds(schedule, upper_bounds(request.settings.engine_version))
    text: str = yaml.safe_dump({ROOT: config}, sort_keys=False)
    return text


def clamped(schedule: Schedule) -> Schedule:
    """The schedule with no length above the first, which TensorRT-LLM refuses."""
    if schedule.length[0] == 0:
        raise ValueError(
            "batch 1 is fastest without drafts, and TensorRT-LLM needs its longest draft there: "
            "give --policy fixed:K"
        )
    return LIMITS.of(schedule)


def bounds(schedule: Schedule, upper: bool) -> dict[int, int]:
    """{bound: length}; upper bounds leave out what is 0 beyond the last key by itself."""
    if not upper:
        return {low: length for low, _, length in schedule.steps}
    steps = schedule.steps
    if steps[-1][2] == 0:
        steps = steps[:-1]
    return {high: length for _, high, length in steps}


def validate(text: str, settings: Settings) -> None:
    """ValueError, one line, for what TensorRT-LLM refuses, or changes without a word.

    | TensorRT-LLM would | refused here |
    | --- | --- |
    | refuse | unknown keys and types, bounds below 1, lengths below 0 or above max_draft_len |
    | refuse | a smallest key, or key 1 of lower bounds, without max_draft_len; no key at all |
    | refuse | a schedule together with max_concurrency |
    | convert | true, "4" and 4.0 as integers |
    | keep the last | a key that comes twice |
    | read bounds as the other kind | a schedule without a version that says which |
    """
    read(text, settings.engine_version)


def read(text: str, version: str | None = None) -> dict[str, Any]:
    """The content of speculative_config; ValueError as `validate`."""
    config = check_fields(parse_yaml(text, KIND), KIND, (ROOT,))[ROOT]
    optional = ("speculative_model", SCHEDULE, "max_concurrency", NGRAM, *GATE)
    check_fields(config, ROOT, ("decoding_type", LENGTH), optional)
    kind = check_option(config["decoding_type"], "decoding_type", TYPES)
    longest = check_integer(config[LENGTH], LENGTH, 1)
    if kind in WITH_MODEL:
        check_text(config.get("speculative_model"), "speculative_model")
    if (kind == "NGram") != (NGRAM in config):
        raise ValueError(f"{NGRAM} belongs to NGram and to nothing else, here with {kind}")
    if NGRAM in config:
        check_integer(config[NGRAM], NGRAM, 1)
    if "max_concurrency" in config:
        check_integer(config["max_concurrency"], "max_concurrency", 1)
        if SCHEDULE in config:
            raise ValueError(f"max_concurrency and {SCHEDULE} exclude each other: drop one")
    if GATE[0] in config:
        check_integer(config[GATE[0]], GATE[0], 0)
    if GATE[1] in config:
        check_number(config[GATE[1]], GATE[1], 0, 1)
    if SCHEDULE in config:
        _check_schedule(config[SCHEDULE], longest, upper_bounds(version))
    return config


def length_at(config: dict[str, Any], batch: int, upper: bool) -> int:
    """The draft length that TensorRT-LLM uses at that batch size."""
    schedule = config.get(SCHEDULE)
    if schedule is None:
        return int(config[LENGTH])
    keys = sorted(schedule)
    if not upper:
        return int(schedule[keys[bisect_right(keys, batch) - 1]])
    place = bisect_left(keys, batch)
    return int(schedule[keys[place]]) if place < len(keys) else 0


def _check_schedule(schedule: Any, longest: int, upper: bool) -> None:
    if not isinstance(schedule, dict) or not schedule:
        raise ValueError(f"{SCHEDULE} is {shown(schedule)}, expected bounds with their lengths")
    for bound, length in schedule.items():
        check_integer(bound, f"{SCHEDULE}: key", 1)
        check_integer(length, f"{SCHEDULE}[{bound}]", 0, longest)
    first = min(schedule)
    if not upper and first != 1:
        raise ValueError(f"{SCHEDULE} starts at {first}, expected 1: keys are lower bounds")
    if schedule[first] != longest:
        raise ValueError(
            f"{SCHEDULE}[{first}] is {schedule[first]}, expected {LENGTH}, {longest}: it is the "
            "smallest batch size"
        )


def import_config(source: Source, options: ImportOptions) -> EngineSettings:
    """Draft lengths of `speculative_config`, whose bounds `options.engine_version` explains."""
    version = options.engine_version
    config = read(source.text, version)
    length, method = config[LENGTH], config["decoding_type"]
    schedule = config.get(SCHEDULE)
    gate: list[Any] = [config.get(name) for name in GATE]
    window, threshold = gate
    if schedule is None and "max_concurrency" in config:
        schedule, upper = {config["max_concurrency"]: length}, True
    else:
        upper = schedule is not None and upper_bounds(version)
    tiers = (fixed_tier(1, None, length),) if schedule is None else _tiers(schedule, upper)
    if window is None and threshold is None:
        return EngineSettings(origin_of(source), method, tiers)
    note = "drafting also ends for good at a low acceptance rate, which the policies leave out"
    return EngineSettings(origin_of(source), method, tiers, (note,))


def _tiers(schedule: Mapping[int, int], upper: bool) -> tuple[BatchTier, ...]:
    """The tiers of upper bounds, above which nothing is drafted, or of lower bounds."""
    keys: list[Any] = sorted(schedule)
    lengths = [schedule[key] for key in keys]
    if upper:
        firsts = [1, *(key + 1 for key in keys)]
        return tuple(map(fixed_tier, firsts, [*keys, None], [*lengths, 0]))
    return tuple(map(fixed_tier, keys, [*(key - 1 for key in keys[1:]), None], lengths))


def read_tensorrt_llm(source: Source, options: ImportOptions) -> Import:
    """The draft lengths of a YAML file with `speculative_config`; else responses."""
    if any(line.startswith(f"{ROOT}:") for line in source.text.splitlines()):
        return import_config(source, options)
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


COUNTER = "trtllm_spec_decode_"
COUNTED = ("drafted_tokens", "accepted_tokens", "num_draft_tokens", "num_accepted_tokens")
FINISHED = "counters by position are of finished requests; rounds are those that draft position 0"
ONLY_SUMS = "this TensorRT-LLM counts no tokens by position"
UNEVEN = (
    "rounds that drafted deep were accepted more often than others: the shares of depths are of "
    "different rounds"
)


def read_prometheus(source: Source, options: ImportOptions) -> PooledCounts:
    """Counters of one scrape, less those of `options.before`, summed over ranks.

    TensorRT-LLM counts the rounds that drafted each position, so the share at depth j is accepted
    at j / rounds that drafted j, whether or not the draft length varies.
    """
    counters, notes = read_counters(source, options, COUNTER, COUNTED, "token_position")
    if "drafted_tokens" not in counters:
        sums = [total(counters, name, source, COUNTER) for name in COUNTED[2:]]
        withheld = {"rounds, accepted length, acceptance by depth": ONLY_SUMS}
        return PooledCounts(
            origin_of(source), drafted=sums[0], accepted=sums[1], withheld=withheld,
            notes=tuple(notes),
        )  # fmt: skip
    drafted = by_position(counters, "drafted_tokens", source, COUNTER)
    accepted = by_position(counters, "accepted_tokens", source, COUNTER)
    if len(drafted) != len(accepted) or (accepted > drafted).any():
        raise ValueError(
            f"{source.file}: positions {len(drafted)} are drafted and {len(accepted)} accepted, "
            "expected the same, and no more accepted than drafted at each"
        )
    if not drafted[0]:
        raise ValueError(f"{source.file} counts no draft: nothing can be concluded")
    if (np.diff(drafted) > 0).any():
        raise ValueError(f"{source.file}: a deeper position is drafted more often, expected less")
    return _of_positions(source, drafted[drafted > 0], accepted[drafted > 0], notes)


def _of_positions(
    source: Source, drafted: np.ndarray, accepted: np.ndarray, notes: list[str]
) -> PooledCounts:
    K, rounds = len(drafted), int(drafted[0])
    one = bool((drafted == rounds).all())
    shares, withheld, marginals = accepted / drafted, {}, {}
    if not one and (np.diff(shares) > 0).any():
        withheld["acceptance by depth"] = UNEVEN
    elif not one:
        marginals[K] = tuple(map(float, shares))
        notes = [
            *notes,
            "the draft length varies: a depth's share is of the rounds that drafted it",
        ]
    return PooledCounts(
        origin_of(source), None, rounds, int(drafted.sum()), int(accepted.sum()),
        mean_of(rounds, int(accepted.sum())), PER_ROUND, None,
        {K: of_totals(rounds, accepted)} if one else {}, K if one else None, withheld, marginals,
        notes=(*notes, FINISHED),
    )  # fmt: skip


EXPORTS = (
    ExportFormat(
        "tensorrt-llm",
        export,
        validate,
        (
            "batches beyond the last key: upper bounds switch drafts off, lower bounds keep them",
            "decoding types that do not take a length by batch size",
        ),
        LIMITS,
        engine="tensorrt-llm",
    ),
)
IMPORTS = (
    ImportFormat("tensorrt-llm", read_tensorrt_llm, ("engine_version",)),
    ImportFormat("tensorrt-llm-prometheus", read_prometheus, ("before",)),
)
