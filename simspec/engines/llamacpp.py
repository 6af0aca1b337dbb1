"""llama.cpp: flags of a drafter, `timings` of responses, and the server's log lines.

Reference: common/arg.cpp of llama.cpp.
"""

import re
from collections.abc import Sequence

import numpy as np

from simspec.engines.counts import (
    PER_ROUND,
    at_constant_length,
    check_figure,
    mean_of,
    of_marginals,
    of_mean,
    origin_of,
    rounding_slack,
)
from simspec.engines.documents import (
    Fields,
    check_option,
    check_survival,
    check_text,
    json_rows,
    responses,
)
from simspec.engines.draft_acceptance import acceptance_at
from simspec.engines.flags import flag_integer, flag_line, number_of, read_flags
from simspec.engines.import_kinds import (
    DEEPEST,
    DepthCounts,
    EngineSettings,
    PooledCounts,
    adaptive_tier,
    constant_length,
)
from simspec.engines.prometheus import counted_rounds
from simspec.engines.request import MEASURED, ExportFormat, Request, Settings, confidence_threshold
from simspec.engines.source import ImportFormat, ImportOptions, Source
from simspec.policies.thresholds import confidence

KIND = "llama.cpp flags"
TYPE, MODEL = "--spec-type", "--model-draft"
LONGEST, SHORTEST, P_MIN = "--spec-draft-n-max", "--spec-draft-n-min", "--spec-draft-p-min"
SAMPLING, SAMPLINGS = "--spec-draft-sampling", ("greedy", "probabilistic")
RATES, MEAN, DIGITS = "--spec-synth-rates", "--spec-synth-len", 6
LOOKUP = "ngram-simple"
MATCHED, FOUND = "--spec-ngram-simple-size-n", "--spec-ngram-simple-size-m"
DRAFTERS = {"model": "draft-simple", "prompt_lookup": LOOKUP}
WITH_MODEL = ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark")
TYPES = (*WITH_MODEL, "draft-mtp", LOOKUP)
RENAMED = {"--draft-max": LONGEST, "--draft-min": SHORTEST, "-md": MODEL}
ALIASES = {"--draft-p-min": P_MIN, "--spec-draft-model": MODEL}


def export(request: Request) -> str:
    """The flags, on one line.

    p_min drops the token below it, so the policy is confidence:P,inclusive=false. ValueError for
    a policy that llama.cpp has no flag for.
    """
    threshold = confidence_threshold(request, inclusive=False, engine="llama.cpp")
    p_min, length = (0.0, request.length) if threshold is None else threshold
    kind = request.method(DRAFTERS, "llama.cpp")
    if kind == LOOKUP:
        if threshold is not None:
            raise ValueError(f"{LOOKUP} has no threshold: give --policy fixed:K, or none")
        return flag_line({TYPE: kind, MATCHED: request.settings.ngram, FOUND: length})
    flags: dict[str, object] = {TYPE: kind}
    if kind in WITH_MODEL:
        flags[MODEL] = request.model(kind)
    return flag_line(flags | {LONGEST: length, SHORTEST: 0, P_MIN: p_min})


def validate(text: str, settings: Settings) -> None:
    """ValueError, one line, for what llama.cpp refuses, or changes without a word.

    | llama.cpp would | refused here |
    | --- | --- |
    | refuse | unknown flags and types, lengths that are no integers |
    | load a draft model and never use it | no --spec-type |
    | use its default, which changed between versions | no n-max, n-min or p-min |
    | throw short drafts away | an n-min above 0 |
    | never draft | an n-max of 0, a p-min above 1 |
    | keep the last | a flag that comes twice |
    """
    read(text)


def read(text: str) -> tuple[str, int, float]:
    """(type, longest draft, p_min); ValueError as `validate`."""
    return _read(text)[:3]


def _read(text: str, more: Sequence[str] = ()) -> tuple[str, int, float, dict[str, str]]:
    """The result of `read`, and the flags; those in `more` are allowed too."""
    drafting, lookup = (LONGEST, SHORTEST, P_MIN), (MATCHED, FOUND)
    optional = (*drafting, *lookup, MODEL, SAMPLING, *more)
    flags = read_flags(text, KIND, (TYPE,), optional, RENAMED, ALIASES)
    kind = check_option(flags[TYPE], TYPE, TYPES)
    needed = lookup if kind == LOOKUP else drafting
    if missing := [name for name in needed if name not in flags]:
        raise ValueError(f"{KIND}: {missing[0]} is missing: add it")
    if kind == LOOKUP:
        if others := sorted({*flags} - {TYPE, *lookup}):
            raise ValueError(f"{others[0]} belongs to draft models, and {kind} ignores it: drop it")
        flag_integer(flags, MATCHED, 1)
        return kind, flag_integer(flags, FOUND, 1), 0.0, flags
    if ignored := [name for name in lookup if name in flags]:
        raise ValueError(f"{ignored[0]} belongs to {LOOKUP}, and {kind} ignores it: drop it")
    check_option(flags.get(SAMPLING, SAMPLINGS[0]), SAMPLING, SAMPLINGS)
    if kind in WITH_MODEL:
        check_text(flags.get(MODEL), MODEL)
    elif MODEL in flags:
        raise ValueError(f"{MODEL} is {flags[MODEL]!r}, but {kind} is part of the target: drop it")
    longest = flag_integer(flags, LONGEST, 1)
    shortest = flag_integer(flags, SHORTEST, 0)
    if shortest:
        raise ValueError(
            f"{SHORTEST} is {shortest}, expected 0: shorter drafts would be thrown away, which "
            "no replay did"
        )
    return kind, longest, number_of(flags[P_MIN], P_MIN, 0, 1), flags


def export_synthetic(request: Request) -> str:
    """The flags, on one line, with the marginal acceptance measured at that length."""
    kind = request.method(DRAFTERS, "llama.cpp")
    if kind == LOOKUP:
        raise ValueError(f"{RATES} needs drafts of one length, and {kind} finds shorter ones")
    rates = acceptance_at(request.evidence.traces.values(), request.length).marginals
    flags: dict[str, object] = {TYPE: kind}
    if kind in WITH_MODEL:
        flags[MODEL] = request.model(kind)
    flags |= {LONGEST: request.length, SHORTEST: 0, P_MIN: 0.0}
    return flag_line(flags | {RATES: ",".join(f"{rate:.{DIGITS}f}" for rate in rates)})


def validate_synthetic(text: str, settings: Settings) -> None:
    """ValueError, one line, for what llama.cpp refuses, or changes without a word.

    | llama.cpp would | refused here |
    | --- | --- |
    | refuse | shares outside [0, 1], growing shares |
    | draft shorter than the shares | another number of shares than n-max, a p-min above 0 |
    | accept as usual | neither shares nor a mean length |
    | use one of both | shares and a mean length together |
    | refuse or change | what it does of other flags |
    """
    read_synthetic(text)


def read_synthetic(text: str) -> tuple[int, list[float] | float]:
    """(draft length, marginal shares or the mean length); ValueError as `validate_synthetic`."""
    kind, longest, p_min, flags = _read(text, (RATES, MEAN))
    if kind == LOOKUP or p_min:
        raise ValueError(f"{kind} with {P_MIN} {p_min:g} drafts shorter too: shares hold for one K")
    if (RATES in flags) == (MEAN in flags):
        raise ValueError(f"expected exactly one of {RATES} and {MEAN}")
    if MEAN in flags:
        return longest, number_of(flags[MEAN], MEAN, 1, longest + 1)
    words = flags[RATES].split(",")
    rates = [number_of(word, f"{RATES}[{i}]", 0, 1) for i, word in enumerate(words)]
    return longest, check_survival(rates, RATES, longest)


def import_synthetic(source: Source, options: ImportOptions) -> PooledCounts:
    """Marginal shares that llama.cpp simulates, or the mean length alone."""
    K, held = read_synthetic(source.text)
    return of_mean(source, K, held, MEAN) if isinstance(held, float) else of_marginals(
        source, K, held
    )  # fmt: skip


def import_settings(source: Source, options: ImportOptions) -> EngineSettings:
    """The longest draft and p_min, which drops the token below it."""
    kind, longest, p_min = read(source.text)
    if not p_min:
        return constant_length(origin_of(source), kind, longest)
    policy = confidence(p_min, inclusive=False, K=longest).name
    return EngineSettings(origin_of(source), kind, (adaptive_tier(longest, policy),))


COUNTER = "llamacpp:spec_decode_num_"
LONGEST_LINE = 10_000
"""Characters of a log line."""

ROUNDS = (
    "predicted_n - draft_n_accepted counts rounds without a draft and the prefill's token as "
    "rounds: rounds with a draft are not in the file"
)
REQUEST = re.compile(
    r"draft acceptance(?: rate)? = (\d\.\d+) \(\s*(\d{1,15}) accepted /\s*(\d{1,15}) generated\)"
)
STATISTICS = re.compile(
    r"statistics\s+(\S{1,80}?):.*?#gen drafts =\s*(\d{1,15}), #acc drafts =\s*(\d{1,15}), "
    r"#gen tokens =\s*(\d{1,15}), #acc tokens =\s*(\d{1,15})"
    r"(?:, #mean acc len =\s*(\d+\.\d+))?(?:, #acc rate/pos = \((\d\.\d+(?:, \d\.\d+)*)\))?"
)


def read_timings(source: Source, options: ImportOptions) -> PooledCounts:
    """Sums of responses: accepted of drafted tokens, and tokens a target pass."""
    timings = responses(json_rows(source.text), "predicted_n")
    drafting = [stats for stats in timings if "draft_n" in stats]
    if not drafting:
        raise ValueError(
            "no timings with draft_n, expected responses of llama-server with a drafter"
        )
    table = np.array(
        [
            [stats.whole(k) for k in ("draft_n", "draft_n_accepted", "predicted_n")]
            for stats in drafting
        ],
        np.int64,
    )
    drafted, accepted, tokens = map(int, table.sum(axis=0))
    passes = tokens - accepted
    if passes <= 0:
        raise ValueError(f"{accepted} tokens are accepted of {tokens} predicted, expected fewer")
    notes = []
    if len(drafting) < len(timings):
        notes.append(f"responses left out, without drafts: {len(timings) - len(drafting)}")
    means = "tokens a target pass: rounds without a draft and the prefill's token are passes too"
    return PooledCounts(
        origin_of(source), len(drafting), None, drafted, accepted, tokens / passes, means,
        withheld={"rounds, accepted length, acceptance by depth": ROUNDS}, notes=tuple(notes),
    )  # fmt: skip


def read_log(source: Source, options: ImportOptions) -> PooledCounts:
    """The last `statistics` line, which is cumulative; without one, sums of the requests' lines."""
    requests, last = [], {}
    for number, line in enumerate(source.text.split("\n"), 1):
        if "statistics" not in line and "draft acceptance" not in line:
            continue
        if len(line) > LONGEST_LINE:
            raise ValueError(f"line {number} has {len(line)} characters, expected a log line")
        if (match := STATISTICS.search(line)) is not None:
            last[match[1]] = match
        elif (match := REQUEST.search(line)) is not None:
            accepted, drafted = int(match[2]), int(match[3])
            if drafted:
                rate = Fields({"rate": float(match[1])}, f"line {number}")
                check_figure(rate, "rate", accepted / drafted)
            requests.append((accepted, drafted))
    if len(last) > 1:
        raise ValueError(f"statistics of {', '.join(sorted(last))}: keep the lines of one drafter")
    if last:
        return _statistics(source, options, next(iter(last.values())), len(requests))
    if not requests:
        raise ValueError("no line holds draft acceptance, expected a log of llama-server")
    right, tried = map(sum, zip(*requests))
    reason = "lines of requests give no rounds; the statistics line does, keep it"
    return PooledCounts(
        origin_of(source), len(requests), None, tried, right,
        withheld={"rounds, accepted length, acceptance by depth": reason},
        notes=("the rate is accepted of generated tokens, tested or not",),
    )  # fmt: skip


def _statistics(
    source: Source, options: ImportOptions, line: re.Match[str], requests: int
) -> PooledCounts:
    """The counts of a `statistics` line, whose rates end at the deepest accepted position."""
    rounds, right, drafted, accepted = (int(line[i]) for i in (2, 3, 4, 5))
    if right > rounds:
        raise ValueError(f"{right} drafts are accepted of {rounds} generated, expected fewer")
    notes = [
        "the statistics line runs since the server started; rounds without a draft are not in it"
    ]
    by_depth: dict[int, DepthCounts] = {}
    withheld: dict[str, str] = {}
    if line[7] is None:
        withheld["acceptance by depth"] = "this llama.cpp prints no rate by position"
    else:
        at_least = np.rint(np.array([float(r) for r in line[7].split(",")]) * rounds).astype(
            np.int64
        )
        slack = rounding_slack(rounds, len(at_least))
        at_least, note = _to_draft_length(options, rounds, drafted, at_least)
        notes += note
        by_depth, withheld, more = at_constant_length(rounds, drafted, accepted, at_least, slack)
        notes += ["rates of 3 decimals, so acceptance by depth is off by up to 0.0005", *more]
    return PooledCounts(
        origin_of(source), requests or None, rounds, drafted, accepted, mean_of(rounds, accepted),
        PER_ROUND, None, by_depth, max(by_depth, default=None), withheld, notes=tuple(notes),
    )  # fmt: skip


EXPORTS = (
    ExportFormat(
        "llamacpp",
        export,
        validate,
        (
            "several slots: llama.cpp drafts for each slot by itself",
            "p_min: llama.cpp compares a softmax over its ten best candidates, never below 0.1, "
            "where a recording holds the probability over all tokens; it drafts longer",
            "ngram-simple matches --ngram tokens, where a recording's lookup tries fewer too",
        ),
        engine="llamacpp",
    ),
    ExportFormat(
        "llamacpp-synthetic",
        export_synthetic,
        validate_synthetic,
        ("dependence between rounds: the engine draws each round's acceptance alone",),
        MEASURED,
    ),
)


def _to_draft_length(
    options: ImportOptions, rounds: int, drafted: int, at_least: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """(counts of all K positions, notes): llama.cpp's end at the deepest accepted one."""
    deepest = len(at_least)
    K = options.drafted or max(deepest, -(-drafted // max(rounds, 1)))
    if not deepest <= K <= DEEPEST or K * rounds < drafted:
        stated = "the draft length" if options.drafted is None else "--drafted"
        raise ValueError(
            f"{stated} is {K}, expected at most {DEEPEST} and enough for {drafted} tokens "
            f"drafted in {rounds} rounds, {deepest} of them deep"
        )
    note = f"the file gives no draft length: K = {K} is the least that it allows, state --drafted"
    return np.pad(at_least, (0, K - deepest)), [note] if options.drafted is None else []


def read_prometheus(source: Source, options: ImportOptions) -> PooledCounts:
    """Counters of one scrape, less those of `options.before`; they are named as vLLM's are."""
    (rounds, drafted, accepted, at_least), notes = counted_rounds(source, options, COUNTER)
    at_least, note = _to_draft_length(options, rounds, drafted, at_least)
    by_depth, withheld, more = at_constant_length(rounds, drafted, accepted, at_least)
    return PooledCounts(
        origin_of(source), None, rounds, drafted, accepted, mean_of(rounds, accepted), PER_ROUND,
        None, by_depth, max(by_depth, default=None), withheld, notes=(*notes, *note, *more),
    )  # fmt: skip


IMPORTS = (
    ImportFormat("llamacpp", import_settings),
    ImportFormat("llamacpp-synthetic", import_synthetic),
    ImportFormat("llamacpp-timings", read_timings),
    ImportFormat("llamacpp-log", read_log, ("drafted",)),
    ImportFormat("llamacpp-prometheus", read_prometheus, ("before", "drafted")),
)
