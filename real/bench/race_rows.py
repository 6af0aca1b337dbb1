"""Figures of a race: throughput and speedup of every contestant, and which one is recommended."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from real.bench.race import PLAIN, PLAIN_AGAIN, Runs
from real.prompts import ALL, LOW_REPEAT, groups
from simspec.numerics.stats import MIN_PROMPTS


@dataclass(frozen=True)
class Figure:
    """A figure with its 95% interval over prompts; None for fewer than MIN_PROMPTS."""

    value: float
    low: float | None = None
    high: float | None = None


def jackknife(value: float, *left_out: Sequence[float] | np.ndarray) -> Figure:
    """A figure with its interval, from figures without one prompt, for each set of prompts.

    value -/+ t s, s^2 = sum over sets of (P - 1) / P sum_i (x_i - mean x)^2, x_i the figure without
    prompt i of that set (Efron and Stein 1981), t the Student quantile of the smallest P - 1.
    A prompt is left out with all its repeats: its times differ by the prompt and by the noise of
    its calls, so the interval holds both. Sets of prompts are independent. On simulated races it
    covers 94 to 96%, the percentile bootstrap 93 to 95%, and one that resamples repeats too 99%
    of a contestant's ratio to itself (tests/test_race_interval.py).
    """
    sets = [np.asarray(figures, np.float64) for figures in left_out]
    least = min(map(len, sets))
    if least < MIN_PROMPTS:
        return Figure(value)
    variance = sum((len(x) - 1) * float(x.var()) for x in sets)
    reach = float(stdtrit(least - 1, 0.975)) * math.sqrt(variance)
    return Figure(value, value - reach, value + reach)


@dataclass(frozen=True)
class RaceRow:
    """A contestant on a group of prompts (`all`, `low_repeat`, `task:NAME`).

    Figures are None where it could not run. Ratios are of `rate_ratio`, with 95% intervals.

    | field | meaning |
    | --- | --- |
    | prompts, tokens | of the group; new tokens of a repeat, mean over repeats |
    | seconds, rate | of a repeat, end to end, mean over repeats; tokens / seconds |
    | spread | sample deviation of the repeats' rates over their mean; None of a single repeat |
    | first | mean seconds of a call for one token: prefill and one pass |
    | after | tokens a second after the first; None unless that is positive |
    | per_pass | tokens a pass of the target |
    | speedup, low, high | rate over that of `plain` |
    | own, own_low, own_high | rate over plain decoding on its own engine; None where that lacks |
    | pass_ratio, pass_low, pass_high | seconds of a plain pass on its own engine over its own \
seconds a pass: own / per_pass |
    | equal | prompts continued as by plain decoding, in every repeat; None if drawn anew |
    | warm | seconds of the longer of its first two calls |
    """

    contestant: str
    group: str
    drafts: bool
    prompts: int
    tokens: float | None = None
    seconds: float | None = None
    rate: float | None = None
    spread: float | None = None
    first: float | None = None
    after: float | None = None
    per_pass: float | None = None
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    own: float | None = None
    own_low: float | None = None
    own_high: float | None = None
    pass_ratio: float | None = None
    pass_low: float | None = None
    pass_high: float | None = None
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
        _row(r, group, members, ran[PLAIN], ran.get(r.own_plain))
        for group, members in prompt_groups(ran[PLAIN], tasks).items()
        for r in runs
    ]


def _row(
    runs: Runs, group: str, members: list[int], plain: Runs, own_plain: Runs | None
) -> RaceRow:
    prompts = len(members)
    if runs.error or not members:
        return RaceRow(runs.name, group, runs.drafts, prompts, remark=runs.remark, error=runs.error)
    total = np.array(runs.seconds)[:, members].sum(1)
    tokens = _tokens(runs, members).sum(1)
    rates = tokens / total
    mean_tokens, seconds = float(tokens.mean()), float(total.mean())
    first = float(np.array(runs.first)[members].sum())
    behind = seconds > first and mean_tokens > prompts
    speedup = rate_ratio(runs, plain, members)
    own = None if own_plain is None else rate_ratio(runs, own_plain, members)
    a_pass = None if own_plain is None else pass_ratio(runs, own_plain, members)
    return RaceRow(
        contestant=runs.name,
        group=group,
        drafts=runs.drafts,
        prompts=prompts,
        tokens=mean_tokens,
        seconds=seconds,
        rate=mean_tokens / seconds,
        spread=float(rates.std(ddof=1) / rates.mean()) if len(rates) > 1 else None,
        first=first / prompts,
        after=(mean_tokens - prompts) / (seconds - first) if behind else None,
        per_pass=float(tokens.sum() / np.array(runs.passes)[:, members].sum()),
        **_named(("speedup", "low", "high"), speedup),
        **_named(("own", "own_low", "own_high"), own),
        **_named(("pass_ratio", "pass_low", "pass_high"), a_pass),
        equal=sum(all(t[s] == plain.token[0][s] for t in runs.token) for s in members)
        if runs.writes_plain
        else None,
        warm=runs.warm,
        remark=runs.remark,
    )


def _named(names: tuple[str, str, str], ratio: Figure | None) -> dict[str, Any]:
    values = (None,) * 3 if ratio is None else (ratio.value, ratio.low, ratio.high)
    return dict(zip(names, values))


def _tokens(runs: Runs, members: list[int]) -> np.ndarray:
    """float64 `[R, S]`: new tokens."""
    return _columns([[len(tokens) for tokens in repeat] for repeat in runs.token], members)


def _columns(values: Sequence[Sequence[float]], members: list[int]) -> np.ndarray:
    return np.array(values, np.float64)[:, members]


def mean_rate(runs: Runs, members: list[int]) -> float:
    """Tokens of all repeats over their seconds."""
    return float(_tokens(runs, members).sum() / _columns(runs.seconds, members).sum())


def rate_ratio(runs: Runs, other: Runs, members: list[int]) -> Figure:
    """The ratio of both rates: in each repeat over all prompts, then the mean over repeats.

    The interval is of this mean; see `mean_of_ratios`.
    """
    seconds, other_seconds = (_columns(r.seconds, members) for r in (runs, other))
    return mean_of_ratios(_tokens(runs, members), seconds, _tokens(other, members), other_seconds)


def pass_ratio(runs: Runs, other: Runs, members: list[int]) -> Figure:
    """Seconds a pass of `other` over those of `runs`, as `rate_ratio` with passes for tokens."""
    columns = (runs.passes, runs.seconds, other.passes, other.seconds)
    return mean_of_ratios(*(_columns(column, members) for column in columns))


def mean_of_ratios(
    work: np.ndarray, seconds: np.ndarray, other_work: np.ndarray, other_seconds: np.ndarray
) -> Figure:
    """Mean over repeats of (work / seconds) / (other work / other seconds), each summed over S.

    All are float64 `[R, S]`. The interval leaves out a prompt with all its repeats. It holds no
    noise that hits one contestant for a whole repeat, which shuffled blocks make unlikely.
    """
    value, left_out = ratio_without_each(work, seconds, other_work, other_seconds)
    return jackknife(value, left_out)


def ratio_without_each(
    work: np.ndarray, seconds: np.ndarray, other_work: np.ndarray, other_seconds: np.ndarray
) -> tuple[float, np.ndarray]:
    """(ratio of `mean_of_ratios`, float64 `[S]` without each prompt).

    The latter is empty for fewer than MIN_PROMPTS.
    """
    parts = np.stack((work, seconds, other_work, other_seconds))

    def statistic(totals: np.ndarray) -> np.ndarray:
        work, seconds, other_work, other_seconds = totals
        return (work / seconds * other_seconds / other_work).mean(0)

    totals = parts.sum(2)
    value = float(statistic(totals))
    if parts.shape[2] < MIN_PROMPTS:
        return value, np.empty(0)
    return value, statistic(totals[:, :, None] - parts)


LEAST_REPEATS, LEAST_PROMPTS = 5, 20
"""Repeats, an odd number, and prompts of a measurement."""


def shortcomings(repeats: int, prompts: int) -> list[str]:
    """Reasons why these numbers of repeats and prompts make no measurement; [] if none."""
    reasons = []
    if repeats < LEAST_REPEATS or not repeats % 2:
        reasons.append(f"{repeats} repeats, expected an odd number of at least {LEAST_REPEATS}")
    if prompts < LEAST_PROMPTS:
        reasons.append(f"{prompts} prompts, expected at least {LEAST_PROMPTS}")
    return reasons


def impossible(rows: Sequence[RaceRow]) -> list[str]:
    """A reason for each contestant that is surely faster than its tokens a pass allow.

    A pass that verifies drafts is not cheaper than a plain pass of one row on the same engine. So
    speedup <= tokens a pass. Both are of the same prompts and vary together, so the interval is of
    their ratio, `pass_ratio`: a reason where it lies above 1. At a true ratio of 1, which a drafter
    that costs nothing has, one contestant of 40 is reported by chance.
    """
    return [
        f"{r.contestant} is faster than its passes allow, {r.own:.3f}x its own plain decoding at "
        f"{r.per_pass:.3f} tokens a pass (ratio {r.pass_ratio:.3f} [{r.pass_low:.3f}, "
        f"{r.pass_high:.3f}]): the plain pass is handicapped, or noise"
        for r in rows
        if r.group == ALL and r.drafts and r.pass_low is not None and r.pass_low > 1
    ]


def recommend(rows: Sequence[RaceRow]) -> str:
    """The fastest `drafter=policy` that beats every contestant without drafts; else `plain`.

    It must win on all prompts and on those that repeat little, and the interval of its speedup
    over all prompts, where there is one, must lie above 1.
    """
    candidates = {
        r.contestant: r.rate
        for r in rows
        if r.group == ALL
        and r.rate is not None
        and is_loop_with_drafter(r)
        and (r.low is None or r.low > 1)
    }
    for name in sorted(candidates, key=lambda name: -candidates[name]):
        if all(_beats_undrafted(rows, name, group) for group in (ALL, LOW_REPEAT)):
            return name
    return PLAIN


def is_loop_with_drafter(row: RaceRow) -> bool:
    """Whether a row is of the decode loop with a drafter: `drafter=policy`."""
    return row.drafts and "=" in row.contestant


def _beats_undrafted(rows: Sequence[RaceRow], name: str, group: str) -> bool:
    """Whether it is faster there than all contestants without drafts; true for no prompts."""
    rates = {r.contestant: r.rate for r in rows if r.group == group and r.rate is not None}
    undrafted = [
        rates[r.contestant]
        for r in rows
        if r.contestant in rates and not r.drafts and r.contestant != PLAIN_AGAIN
    ]
    return not undrafted or name in rates and rates[name] > max(undrafted)


def ratio_to_assisted(runs: Sequence[Runs], tasks: Sequence[str]) -> list[dict]:
    """By group, the best `model=...` over transformers' best assisted generation, with interval.

    Both draft with the same model.
    """
    ran = {r.name: r for r in runs if not r.error}
    ours = [r for r in ran.values() if r.name.startswith("model=")]
    assisted = [r for r in ran.values() if r.name.startswith("assisted:")]
    if not ours or not assisted or PLAIN not in ran:
        return []
    ratios = []
    for group, members in prompt_groups(ran[PLAIN], tasks).items():
        if not members:
            continue
        best, best_assisted = (
            max(kind, key=lambda r: mean_rate(r, members)) for kind in (ours, assisted)
        )
        ratio = rate_ratio(best, best_assisted, members)
        ratios.append(
            {
                "group": group,
                "prompts": len(members),
                "contestant": best.name,
                "assisted": best_assisted.name,
                "ratio": ratio.value,
                "low": ratio.low,
                "high": ratio.high,
            }
        )
    return ratios


def recommendation(rows: Sequence[RaceRow]) -> str:
    """The recommendation in one line, with its speedup."""
    name = recommend(rows)
    ran = [r for r in rows if r.rate is not None]
    by_key = {(r.contestant, r.group): r for r in ran}
    undrafted = [r for r in ran if r.group == ALL and not r.drafts and r.contestant != PLAIN_AGAIN]
    fastest = max(undrafted, key=lambda r: r.rate or 0.0)
    if name == PLAIN:
        ratio = (fastest.rate or 0.0) / (by_key[PLAIN, ALL].rate or 1.0)
        remark = (
            ""
            if fastest.contestant == PLAIN
            else f"; transformers' {fastest.contestant} is {ratio:.2f} times as fast"
        )
        return (
            f"recommended: {PLAIN}, no drafter and policy is surely faster than no speculation"
            f"{remark}"
        )
    low = by_key.get((name, LOW_REPEAT))
    on_low = f", {low.speedup:.2f}x on {low.prompts} prompts that repeat little" if low else ""
    return (
        f"recommended: {name}, {by_key[name, ALL].speedup:.2f}x {PLAIN}{on_low}; "
        f"the fastest without drafts is {fastest.contestant}"
    )


def low_repeat_line(rows: Sequence[RaceRow]) -> str:
    """The fastest `drafter=policy` on prompts that repeat little, in one line; "" where none is."""
    ours = [r for r in rows if r.group == LOW_REPEAT and is_loop_with_drafter(r) and r.speedup]
    if not ours:
        return ""
    best = max(ours, key=lambda r: r.speedup or 0.0)
    interval = "" if best.low is None else f" [{best.low:.2f}, {best.high:.2f}]"
    return (
        f"on {best.prompts} prompts that repeat little the fastest is {best.contestant}, "
        f"{best.speedup:.2f}x{interval} {PLAIN}"
    )


def race_summary(
    runs: Sequence[Runs], rows: Sequence[RaceRow], tasks: Sequence[str], about: dict
) -> dict:
    """The object that `simspec race --json` prints.

    `about` the run, whether it is a measurement and why not, what is impossible in it, the rows,
    the recommendation, and every call by repeat and prompt, from which the figures follow.
    """
    repeats = next(len(r.seconds) for r in runs if r.name == PLAIN)
    reasons, wrong = shortcomings(repeats, len(tasks)), impossible(rows)
    return about | {
        "measurement": not reasons and not wrong,
        "reasons": reasons + wrong,
        "impossible": wrong,
        "recommended": recommend(rows),
        "verdict": recommendation(rows),
        "low_repeat": low_repeat_line(rows),
        "over_assisted": ratio_to_assisted(runs, tasks),
        "rows": [_shortened(asdict(r)) for r in rows],
        "raw": {
            r.name: {
                "seconds": [_printed(repeat) for repeat in r.seconds],
                "first": _printed(r.first),
                "tokens": [list(map(len, repeat)) for repeat in r.token],
                "passes": r.passes,
            }
            for r in runs
        },
    }


def _shortened(row: dict) -> dict:
    """Figures to 7 digits: they follow from `raw`, and published races are tracked files."""
    return {k: float(f"{v:.7g}") if isinstance(v, float) else v for k, v in row.items()}


def _printed(seconds: Sequence[float]) -> list[float]:
    """To a tenth of a microsecond: what is left out is far below the noise of a call."""
    return [round(value, 7) for value in seconds]
