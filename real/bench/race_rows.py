"""Figures of a race: throughput and speedup of every contestant, by group of prompts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from real.bench.contestant import PLAIN, Runs
from real.prompts import groups
from simspec.stats import MIN_PROMPTS, bootstrap


@dataclass(frozen=True)
class RaceRow:
    """A contestant on a group of prompts (`all`, `low_repeat`, `task:NAME`).

    Figures are None where it could not run. `seconds`, `rate` and `tokens` are of the repeat with
    the (lower) median time.

    | field | meaning |
    | --- | --- |
    | prompts, tokens | of the group; new tokens |
    | seconds, rate | end to end, and tokens a second |
    | spread | sample deviation of the repeats' rates over their mean; None of a single repeat |
    | first | mean seconds of a call for one token: prefill and one pass |
    | after | tokens a second behind the first; None unless that is positive |
    | per_pass | tokens a pass of the target |
    | speedup, over_generate | rate over that of `plain`, and of transformers' `generate` |
    | low, high | 95% interval of the speedup over prompts; None of fewer than 8 prompts |
    | equal | prompts continued as by plain decoding, in every repeat; None if drawn anew |
    | warm | seconds of the longer of its first two calls |
    """

    contestant: str
    group: str
    drafts: bool
    prompts: int
    tokens: int | None = None
    seconds: float | None = None
    rate: float | None = None
    spread: float | None = None
    first: float | None = None
    after: float | None = None
    per_pass: float | None = None
    speedup: float | None = None
    over_generate: float | None = None
    low: float | None = None
    high: float | None = None
    equal: int | None = None
    warm: float | None = None
    remark: str = ""
    error: str = ""


def prompt_groups(plain: Runs, tasks: Sequence[str]) -> dict[str, list[int]]:
    """Prompts by group (`real.prompts.groups`), by the sequences that plain decoding produced."""
    return groups([np.array(tokens) for tokens in plain.token[0]], tasks)


def race_rows(runs: Sequence[Runs], tasks: Sequence[str]) -> list[RaceRow]:
    """A row for each group and contestant, in their order; ValueError unless `plain` ran."""
    ran = {r.name: r for r in runs if not r.error}
    if PLAIN not in ran:
        raise ValueError(
            f"no {PLAIN!r} among {', '.join(ran) or 'the contestants'}; "
            "expected it, every figure is over it"
        )
    return [
        _row(r, group, members, ran[PLAIN], ran.get("generate"))
        for group, members in prompt_groups(ran[PLAIN], tasks).items()
        for r in runs
    ]


def _row(runs: Runs, group: str, members: list[int], plain: Runs, generate: Runs | None) -> RaceRow:
    prompts = len(members)
    if runs.error or not members:
        return RaceRow(runs.name, group, runs.drafts, prompts, remark=runs.remark, error=runs.error)
    repeat, rates = _rates(runs, members)
    tokens = _tokens(runs, members)[repeat]
    seconds = np.array(runs.seconds)[repeat, members].sum()
    first = np.array(runs.first)[members].sum()
    behind = seconds > first and tokens > prompts
    rate = rates[repeat]
    _, low, high = rate_ratio(runs, plain, members)
    return RaceRow(
        contestant=runs.name,
        group=group,
        drafts=runs.drafts,
        prompts=prompts,
        tokens=int(tokens),
        seconds=float(seconds),
        rate=float(rate),
        spread=float(rates.std(ddof=1) / rates.mean()) if len(rates) > 1 else None,
        first=float(first / prompts),
        after=float((tokens - prompts) / (seconds - first)) if behind else None,
        per_pass=float(tokens / np.array(runs.passes)[repeat, members].sum()),
        speedup=float(rate / median_rate(plain, members)),
        over_generate=None if generate is None else float(rate / median_rate(generate, members)),
        low=low,
        high=high,
        equal=sum(all(t[s] == plain.token[0][s] for t in runs.token) for s in members)
        if runs.writes_plain
        else None,
        warm=runs.warm,
        remark=runs.remark,
    )


def _tokens(runs: Runs, members: list[int]) -> np.ndarray:
    return np.array([sum(len(tokens[s]) for s in members) for tokens in runs.token])


def _rates(runs: Runs, members: list[int]) -> tuple[int, np.ndarray]:
    """The repeat with the lower median time, and tokens a second of all repeats."""
    total = np.array(runs.seconds)[:, members].sum(1)
    repeat = int(np.argsort(total, kind="stable")[(len(total) - 1) // 2])
    return repeat, _tokens(runs, members) / total


def median_rate(runs: Runs, members: list[int]) -> float:
    """Tokens a second of the repeat with the (lower) median time."""
    repeat, rates = _rates(runs, members)
    return float(rates[repeat])


def rate_ratio(
    runs: Runs, other: Runs, members: list[int]
) -> tuple[float, float | None, float | None]:
    """(ratio of both rates, its 95% interval over prompts); None for fewer than MIN_PROMPTS."""
    ratio = median_rate(runs, members) / median_rate(other, members)
    if len(members) < MIN_PROMPTS:
        return ratio, None, None
    columns = []
    for r in (runs, other):
        columns.append(_median_tokens(r, members))
        columns.append(np.median(r.seconds, 0)[members])
    interval = bootstrap(
        np.stack(columns, 1),
        lambda t: t[..., 0] / t[..., 1] * t[..., 3] / t[..., 2],
        method="percentile",
    )
    return ratio, float(interval.low), float(interval.high)


def _median_tokens(runs: Runs, members: list[int]) -> np.ndarray:
    """Median over repeats of new tokens, for each prompt."""
    return np.array([np.median([len(repeat[s]) for repeat in runs.token]) for s in members])
