"""Claims about draft lengths, drafters, tasks and batches (EESD, EAGLE)."""

from collections.abc import Iterator
from itertools import groupby, permutations

import numpy as np

from simspec.evaluate.evaluation import halves
from simspec.numerics.stats import difference, jackknife
from simspec.papers.claim import EAGLE, EESD, Claim, Inputs
from simspec.papers.evidence import POSITIVE, Array, Bounds, Effect, EffectSource, excess, observe
from simspec.papers.recorded import PRICES, TRAINED, Price, Recorded, by_prompt, crossed
from simspec.policies.fixed import fixed
from simspec.replay.lock_step import plain_steps, policy_steps
from simspec.trace.rounds import committed

SHORT, LONG = 1, 5
"""Lengths between which a sample prefers one; 5 is the better setting of EESD's section 5.3."""
WEAK = 0.1
"""A correlation up to this is none."""
LENGTHS = (1, 2, 4, 10)
"""Of claim 6; EESD drafts 10 tokens with other drafters."""
CODE = "code"


def samples_differ(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 4a: what a long draft gains persists within a sample."""
    every = inputs.recordings.of(*TRAINED)
    return [_samples(r, inputs, price) for r in every if r.trace.K >= LONG]


def tasks_differ(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 4b: a length for each task is faster than one for all."""
    return [_tasks(r, inputs, price) for r in inputs.recordings.of(*TRAINED)]


def models_differ(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 4c: a target's own length is faster than another's, for one kind of drafter."""
    return [
        _models(recorded, other, inputs, price)
        for drafter in TRAINED
        for recorded, other in permutations(inputs.recordings.of(drafter), 2)
        if other.target != recorded.target
        and other.rule == recorded.rule
        and other.excluded == recorded.excluded
    ]


def _samples(recorded: Recorded, inputs: Inputs, price: Price) -> Effect:
    """Correlation over prompts of what a long draft gains in both halves of an output."""
    short, long = (_by_half(recorded, k, price) for k in (SHORT, LONG))
    x, y = (short - long) / _by_half(recorded, 0, price)
    columns = np.stack((np.ones_like(x), x, y, x * x, y * y, x * y), -1)
    best = recorded.fixed_seconds(price).argmin(axis=0)
    return observe(
        f"samples: correlation of what K={LONG} gains over K={SHORT} in both halves of an output",
        recorded.source,
        price.name,
        columns,
        correlation,
        (WEAK, np.inf),
        {"prompts whose best K is the most frequent": float(np.bincount(best).max() / len(best))},
        inputs.seed,
    )


def correlation(totals: Array) -> Array:
    """Of sums [..., 6] of 1, x, y, x^2, y^2 and x y."""
    n, x, y, xx, yy, xy = np.moveaxis(np.asarray(totals), -1, 0)
    covariance: Array = (xy - x * y / n) / np.sqrt((xx - x * x / n) * (yy - y * y / n))
    return covariance


def _by_half(recorded: Recorded, K: int, price: Price) -> Array:
    """float64[2, S]: seconds of each half of the outputs; a round's are shared by its tokens."""
    trace, rounds = recorded.trace, recorded.rounds(fixed(K))
    tokens = committed(rounds, trace)
    pace = np.repeat(price.of(recorded.cost).seconds(rounds) / tokens, tokens)
    middle = (trace.offset[:-1] + trace.offset[1:]) // 2
    bounds = np.stack((trace.offset[:-1], middle), -1).reshape(-1)
    sums: Array = np.add.reduceat(pace, bounds).reshape(-1, 2).T
    return sums


def _tasks(recorded: Recorded, inputs: Inputs, price: Price) -> Effect:
    """How much slower one length is than one for each task; chosen on the other half."""
    seconds, trace = recorded.fixed_seconds(price), recorded.trace
    one, _ = crossed(seconds, trace)
    tasks, by_task = np.array(trace.task), np.empty_like(one)
    for fit, rest in halves(trace):
        for task in dict.fromkeys(trace.task):
            of = [half[tasks[half] == task] for half in (fit, rest)]
            best = seconds[:, of[0]].sum(axis=1).argmin()
            by_task[of[1]] = seconds[best, of[1]]
    part = "tasks: time of one K over that of a K for each task, less 1"
    columns = np.stack((one, by_task), -1)
    return observe(part, recorded.source, price.name, columns, excess, seed=inputs.seed)


def _models(recorded: Recorded, other: Recorded, inputs: Inputs, price: Price) -> Effect:
    """How much slower the other target's best length is than one chosen on the other half."""
    longest = min(recorded.trace.K, other.trace.K)
    theirs = int(other.fixed_seconds(price, longest).sum(axis=1).argmin())
    seconds = recorded.fixed_seconds(price, longest)
    own, setting = crossed(seconds, recorded.trace)
    return observe(
        f"models: time of the best K of {other.name} over that of the best own K, less 1",
        recorded.source,
        price.name,
        np.stack((seconds[theirs], own), -1),
        excess,
        POSITIVE,
        {"other K": theirs + 1.0, "own K": float(setting.mean()) + 1},
        inputs.seed,
    )


def higher_hm_lower_speedup(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 6: of two drafters of one target, the one with the higher HM is the slower one.

    The claim is that there is such a pair. Every drafter counts at each of LENGTHS; the pair that
    disagrees most on one half of the prompts is tested on the other.
    """
    best: tuple[float, list[Effect]] = (-np.inf, [])
    for group in _same_outputs([r for r in inputs.recordings.of(*TRAINED) if not r.excluded]):
        fit, rest = halves(group[0].trace)[0]
        counts = {
            (recorded.name, k): _counts(recorded, k, price)
            for recorded in group
            for k in LENGTHS
            if k <= recorded.trace.K
        }
        for first, second in permutations(counts, 2):
            if first[0] == second[0]:
                continue
            columns = np.concatenate((counts[first], counts[second]), axis=1)
            gaps = [jackknife(columns[fit], statistic) for statistic, _ in DISAGREEMENT]
            clear = min(value / error if error else 0.0 for value, error in gaps)
            if clear > best[0]:
                names = " / ".join(f"{name}, K={k}" for name, k in (first, second))
                source = EffectSource(names, group[0].trace.meta.device)
                best = (
                    clear,
                    [
                        observe(
                            part, source, price.name, columns[rest], statistic, seed=inputs.seed
                        )
                        for statistic, part in DISAGREEMENT
                    ],
                )
    return best[1]


def _same_outputs(recordings: list[Recorded]) -> Iterator[list[Recorded]]:
    """Recordings of the same outputs: one target, one rule."""

    def key(recorded: Recorded) -> tuple[str, str]:
        return recorded.target, recorded.trace.meta.rule

    for _, group in groupby(sorted(recordings, key=key), key):
        yield list(group)


def _counts(recorded: Recorded, K: int, price: Price) -> Array:
    """float64[S, 4] at a fixed length: accepted, drafted and output tokens, plain steps."""
    rounds = recorded.rounds(fixed(K))
    cost = price.of(recorded.cost)
    values = rounds.accepted, rounds.computed, cost.seconds(rounds) / cost.baseline
    accepted, drafted, steps = (by_prompt(v.astype(np.float64), rounds) for v in values)
    return np.stack((accepted, drafted, recorded.tokens, steps), -1)


def hm_gap(totals: Array) -> Array:
    """HM of the first less that of the second of totals [..., 8]; HM = 2 a / (drafted + output)."""
    a, d, L, _, b, e, M, _ = np.moveaxis(np.asarray(totals), -1, 0)
    gap: Array = 2 * a / (d + L) - 2 * b / (e + M)
    return gap


def time_gap(totals: Array) -> Array:
    """Plain steps of the first over those of the second, less 1, of totals [..., 8]."""
    quotient: Array = totals[..., 3] / totals[..., 7]
    return quotient - 1


DISAGREEMENT = (
    (hm_gap, "HM of the first less that of the second"),
    (time_gap, "time of the first over that of the second, less 1"),
)


def code_is_fastest(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 19: the speedup of code less that of each other task, at one length for all."""
    found = []
    for recorded in inputs.recordings.of("eagle"):
        tasks = np.array(recorded.trace.task)
        if CODE not in tasks:
            continue
        seconds, k = recorded.best_fixed(price)
        plain = recorded.tokens * price.of(recorded.cost).baseline
        for task in dict.fromkeys(recorded.trace.task):
            if task != CODE:
                found.append(_task_gap(recorded, (plain, seconds), (task, k), inputs, price))
    return found


def _task_gap(
    recorded: Recorded, times: tuple[Array, Array], task: tuple[str, float], inputs: Inputs,
    price: Price, bounds: Bounds = POSITIVE,
) -> Effect:  # fmt: skip
    tasks = np.array(recorded.trace.task)
    flags = [(tasks == name)[:, None] for name in (CODE, task[0])]
    columns = np.concatenate([np.stack(times, -1) * flag for flag in flags], axis=1)
    columns = columns[flags[0][:, 0] | flags[1][:, 0]]
    part, figures = f"speedup of code less that of {task[0]}", {"K": task[1]}
    return observe(
        part, recorded.source, price.name, columns, difference, bounds, figures, inputs.seed
    )


LARGER = (4, 16)
"""EAGLE's largest batch, and one beyond."""
BATCH_LENGTHS = range(1, 7)
ROW_PRICES = tuple(price for price in PRICES if not price.flat)
"""Without flat prices: there a batch costs as much as one sequence, so the claim has no content."""


def shrinking_gains(inputs: Inputs, price: Price) -> list[Effect]:
    """Claim 17: the speedup at batch 1 less that at a larger one, each at its best fixed length."""
    found = []
    for recorded in inputs.recordings.of("eagle"):
        single, k = _in_batch(recorded, 1, price)
        for batch in LARGER:
            larger, longer = _in_batch(recorded, batch, price)
            shown = {"speedup at 1": _speedup(single), "K at 1": k}
            shown |= {f"speedup at {batch}": _speedup(larger), f"K at {batch}": longer}
            part = f"speedup at batch 1 less that at batch {batch}"
            columns = np.concatenate((single, larger), axis=1)
            found.append(
                observe(
                    part, recorded.source, price.name, columns, difference, POSITIVE, shown,
                    inputs.seed,
                )
            )  # fmt: skip
    return found


def _in_batch(recorded: Recorded, batch: int, price: Price) -> tuple[Array, float]:
    """(seconds [S, 2] of plain decoding and of the best fixed length, that length)."""
    cost, trace = price.of(recorded.cost), recorded.trace
    plain = plain_steps(trace, cost, batch).share
    shares = [
        policy_steps(trace, recorded.rounds(fixed(k)), cost, batch).share
        for k in BATCH_LENGTHS
        if k <= trace.K
    ]
    best = int(np.argmin([share.sum() for share in shares]))
    return np.stack((plain, shares[best]), -1), best + 1.0


def _speedup(columns: Array) -> float:
    plain, seconds = columns.sum(axis=0)
    return float(plain / seconds)


CLAIMS = (
    Claim(
        4, "The best draft length differs between samples.", EESD, "Figure 1b",
        samples_differ, part="a",
        detail="What a long draft gains in one half of an output goes with what it gains in the "
        "other (correlation above 0.1). Raised recordings add acceptance at random, which would "
        "dilute every difference that 4a to 4c look for, so they cannot carry them.",
        regime="the best K of each sample in hindsight, which also fits its noise.",
    ),
    Claim(
        4, "The best draft length differs between tasks.", EESD, "Figure 3",
        tasks_differ, part="b",
        detail="A length for each task is faster on prompts that did not choose it.",
        regime="two or three tasks, a sweep over K in hindsight.",
    ),
    Claim(
        4, "The best draft length differs between models.", EESD, "Figure 3",
        models_differ, part="c",
        detail="A length of the target's own is faster, on prompts that did not choose it, than "
        "the best length of the same kind of drafter for the other target.",
        regime="LLaMA-2 of 13B and 70B.",
    ),
    Claim(
        6, "A higher HM need not mean a higher speedup.", EESD, "section 4.2, Table 1",
        higher_hm_lower_speedup,
        detail="There is such a pair: of all drafters of a target at K = 1, 2, 4 and 10, the two "
        "that disagree most on one half of the prompts, tested on the other.",
        regime="pairs of methods in its tables.",
    ),
    Claim(
        19, "Code is accelerated most.", EAGLE, "section 5.1, Figure 8",
        code_is_fastest, detail="Against each other task, at one length for all.",
        regime="MT-bench and HumanEval, targets of 7B to 70B.",
    ),
    Claim(
        17, "Gains shrink as the batch grows.", EAGLE, "Table 7", shrinking_gains,
        ROW_PRICES,
        detail="Batches 4, the paper's largest, and 16, extrapolated from rows of one sequence. "
        "With flat verification a batch costs nothing, so that price is left out.",
        regime="batches of 1 to 4, measured.",
        construction="a batch is priced as more rows of one pass, so where rows have a "
        "price the gain shrinks by arithmetic.",
    ),
)  # fmt: skip
