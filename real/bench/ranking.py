"""Who won a race: rates over plain decoding, by prompts that loop little and by task; what may be recommended."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from real.bench.race import PLAIN, Runs
from real.prompts import ALL, LOW_REPEAT, groups
from simspec.stats import MIN_PROMPTS, bootstrap


@dataclass(frozen=True)
class Row:
    """A contestant on a group of prompts (`all`, `low_repeat`, `task:NAME`); figures are None where it could not run.

    | field | meaning |
    | --- | --- |
    | prompts, tokens | of the group; new tokens of the repeat that `rate` is of |
    | seconds, rate | whole calls of the repeat with the (lower) median time, and its tokens a second |
    | spread | sample deviation of the repeats' rates over their mean; None of a single repeat |
    | first | mean seconds of a call for one token: prefill and one pass |
    | after | (tokens - prompts) / (seconds - first of all prompts): tokens a second behind the first; None unless that is positive |
    | per_pass | tokens a pass of the target |
    | speedup, over_generate | rate over that of `plain`, and of transformers' `generate`, None where that did not run |
    | low, high | of the speedup: 95% by resampling prompts, their seconds medians over repeats; None of fewer than 8 prompts |
    | equal | prompts whose text is plain's, in every repeat |
    | warm | seconds of the longer of two first calls, compilation and capture included |
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


def members(plain: Runs, tasks: Sequence[str]) -> dict[str, list[int]]:
    """Prompts by group (`real.prompts.groups`), by the texts that plain decoding wrote."""
    return groups([np.array(text) for text in plain.token[0]], tasks)


def rows(runs: Sequence[Runs], tasks: Sequence[str]) -> list[Row]:
    """A row for each group and contestant, in their order. ValueError unless `plain` is among those that ran."""
    found = {r.name: r for r in runs if not r.error}
    if PLAIN not in found:
        raise ValueError(
            f"no {PLAIN!r} among {', '.join(found) or 'the contestants'}; expected it, every figure is over it"
        )
    return [
        _row(r, name, of, found[PLAIN], found.get("generate"))
        for name, of in members(found[PLAIN], tasks).items()
        for r in runs
    ]


def _row(runs: Runs, group: str, of: list[int], plain: Runs, generate: Runs | None) -> Row:
    if runs.error or not of:
        return Row(runs.name, group, runs.drafts, len(of), remark=runs.remark, error=runs.error)
    at, rates = _rates(runs, of)
    tokens, seconds = _tokens(runs, of)[at], np.array(runs.seconds)[at, of].sum()
    first = np.array(runs.first)[of].sum()
    rate, base = rates[at], _rate(plain, of)
    _, low, high = over(runs, plain, of)
    return Row(
        runs.name,
        group,
        runs.drafts,
        len(of),
        int(tokens),
        float(seconds),
        float(rate),
        float(rates.std(ddof=1) / rates.mean()) if len(rates) > 1 else None,
        float(first / len(of)),
        float((tokens - len(of)) / (seconds - first))
        if seconds > first and tokens > len(of)
        else None,
        float(tokens / np.array(runs.passes)[at, of].sum()),
        float(rate / base),
        None if generate is None else float(rate / _rate(generate, of)),
        low,
        high,
        sum(all(text[s] == plain.token[0][s] for text in runs.token) for s in of),
        runs.warm,
        runs.remark,
    )


def _tokens(runs: Runs, of: list[int]) -> np.ndarray:
    return np.array([sum(len(texts[s]) for s in of) for texts in runs.token])


def _rates(runs: Runs, of: list[int]) -> tuple[int, np.ndarray]:
    """The repeat of the lower median time, and tokens a second of all."""
    total = np.array(runs.seconds)[:, of].sum(1)
    return int(np.argsort(total, kind="stable")[(len(total) - 1) // 2]), _tokens(runs, of) / total


def _rate(runs: Runs, of: list[int]) -> float:
    at, rates = _rates(runs, of)
    return float(rates[at])


def over(runs: Runs, other: Runs, of: list[int]) -> tuple[float, float | None, float | None]:
    """(rate of one over that of the other, and its 95% interval over prompts or None for too few)."""
    ratio = _rate(runs, of) / _rate(other, of)
    if len(of) < MIN_PROMPTS:
        return ratio, None, None
    columns = [
        column
        for r in (runs, other)
        for column in (_median(r, of, lambda s, i: len(r.token[i][s])), np.median(r.seconds, 0)[of])
    ]
    found = bootstrap(
        np.stack(columns, 1),
        lambda t: t[..., 0] / t[..., 1] * t[..., 3] / t[..., 2],
        method="percentile",
    )
    return ratio, float(found.low), float(found.high)


def _median(runs: Runs, of: list[int], what) -> np.ndarray:
    return np.array([np.median([what(s, i) for i in range(len(runs.token))]) for s in of])


def recommend(found: Sequence[Row]) -> str:
    """Our fastest contestant that is faster than every one without drafts, on all prompts and where texts loop little; else `plain`.

    Where there is an interval of its speedup over all prompts, that lies above 1, too.
    """
    ahead = {
        r.contestant: r
        for r in found
        if r.group == ALL and r.rate is not None and ours(r) and (r.low is None or r.low > 1)
    }
    for name in sorted(ahead, key=lambda name: -ahead[name].rate):
        if all(_beats(found, name, group) for group in (ALL, LOW_REPEAT)):
            return name
    return PLAIN


def ours(row: Row) -> bool:
    """Whether a row is of our loop with a drafter: `drafter=policy`."""
    return row.drafts and "=" in row.contestant


def _beats(found: Sequence[Row], name: str, group: str) -> bool:
    here = [r for r in found if r.group == group and r.rate is not None]
    rate = max((r.rate for r in here if r.contestant == name), default=None)
    bars = [r.rate for r in here if not r.drafts]
    return not bars or rate is not None and rate > max(bars)  # no bars: no such prompts


def over_assisted(runs: Sequence[Runs], tasks: Sequence[str]) -> list[dict]:
    """Our best `model=...` over transformers' best assisted generation, which drafts with the same model, by group with the interval."""
    found = {r.name: r for r in runs if not r.error}
    kinds = [
        [r for r in found.values() if r.name.startswith(start)] for start in ("model=", "assisted:")
    ]
    if not all(kinds) or PLAIN not in found:
        return []
    made = []
    for group, of in members(found[PLAIN], tasks).items():
        if of:
            mine, theirs = (max(kind, key=lambda r: _rate(r, of)) for kind in kinds)
            ratio, low, high = over(mine, theirs, of)
            names = {"contestant": mine.name, "assisted": theirs.name}
            made.append(
                {"group": group, "prompts": len(of)}
                | names
                | {"ratio": ratio, "low": low, "high": high}
            )
    return made


def verdict(found: Sequence[Row]) -> str:
    """The recommendation in one line, with what it is worth."""
    name = recommend(found)
    by = {(r.contestant, r.group): r for r in found if r.rate is not None}
    bar = max(
        (r for r in found if r.group == ALL and r.rate is not None and not r.drafts),
        key=lambda r: r.rate,
    )
    if name == PLAIN:
        also = (
            ""
            if bar.contestant == PLAIN
            else f"; transformers' {bar.contestant} is {bar.rate / by[PLAIN, ALL].rate:.2f} times as fast"
        )
        return f"recommended: {PLAIN}, no drafter and policy is surely faster than no speculation{also}"
    low = by.get((name, LOW_REPEAT))
    there = f", {low.speedup:.2f}x on {low.prompts} prompts that loop little" if low else ""
    return f"recommended: {name}, {by[name, ALL].speedup:.2f}x {PLAIN}{there}; the fastest without drafts is {bar.contestant}"


def summary(runs: Sequence[Runs], found: Sequence[Row], tasks: Sequence[str], about: dict) -> dict:
    """The object that `simspec race --json` prints: `about` the run, the rows, the verdict, and the raw seconds by repeat and prompt."""
    told = {
        "recommended": recommend(found),
        "verdict": verdict(found),
        "over_assisted": over_assisted(runs, tasks),
    }
    raw = {
        r.name: {
            "seconds": r.seconds,
            "first": r.first,
            "tokens": [list(map(len, texts)) for texts in r.token],
        }
        for r in runs
    }
    return about | told | {"rows": [asdict(r) for r in found], "raw": raw}
