"""The outcome of a race: which contestant is recommended, and how it compares."""

from collections.abc import Sequence
from dataclasses import asdict

from real.bench.contestant import PLAIN, PLAIN_AGAIN, Runs
from real.bench.race_rows import RaceRow, mean_rate, prompt_groups, rate_ratio
from real.prompts import ALL, LOW_REPEAT

LEAST_REPEATS, LEAST_PROMPTS = 5, 20
"""Repeats, an odd number, and prompts of a measurement."""


def shortcomings(repeats: int, prompts: int) -> list[str]:
    """Reasons why so many repeats and prompts are no measurement; [] where they are."""
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
        "rows": [asdict(r) for r in rows],
        "raw": {
            r.name: {
                "seconds": r.seconds,
                "first": r.first,
                "tokens": [list(map(len, repeat)) for repeat in r.token],
                "passes": r.passes,
            }
            for r in runs
        },
    }
