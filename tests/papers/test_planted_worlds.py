"""Every verdict where its claim is true, at its bound and false: found at the stated error.

Worlds are drawn from stated chances, so that the effect in each is also known exactly: slow twins
sum over all rounds that can happen.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations, product
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from simspec import CostModel
from simspec.papers import CLAIMS, Recordings, eagle, eesd, glide, s2d
from simspec.papers.claims import HELD, NOT_HELD, verdict_of
from simspec.papers.recorded import FLAT, Card, Recorded
from simspec.policies.calibrated import clipped_mean
from simspec.policy.predictor import fit_predictor
from simspec.trace.exits import ExitDrafts
from simspec.trace.quantization import ENTROPY, LOG_ODDS
from simspec.trace.trace import Trace, TraceMeta
from simspec.tree.replay import sibling_counts
from simspec.tree.tree import MAX_SUBMITTED, from_paths

S, ROWS, K, C = 40, 24, 5, 0.1
MANY = {claim.number: claim for claims in CLAIMS.values() for claim in claims}


@dataclass(frozen=True, eq=False)
class Planted(Recorded):
    """A recording that has one price alone."""

    only: float | None = None

    def has_price(self, price):
        return price == self.only


def slot(alpha, sibling=0.0, knows=0.0, far=1):
    """Outcomes (chance, rank, signal) of a drafted token: the target's token is its own by alpha,
    else of rank `far` in a share; the signal is 1 where it is its own, else 0, in (1 + knows) / 2
    of tokens. knows None: it is always 1.
    """
    right = 0.5 if knows is None else (1 + knows) / 2
    ranks = ((alpha, 0), ((1 - alpha) * sibling, far), ((1 - alpha) * (1 - sibling), 255))
    cells = defaultdict(float)
    for chance, rank in ranks:
        for signal in (0, 1):
            told = right if (rank == 0) == signal else 1 - right
            cells[rank, 1 if knows is None else signal] += chance * told
    return tuple((chance, *cell) for cell, chance in cells.items() if chance)


def alike(*args, **kwargs):
    """Rows whose slots are all of one kind."""
    return (slot(*args, **kwargs),)


def of(kind, j):
    """The outcomes of a row's slot j; its last kind repeats."""
    return kind[min(j, len(kind) - 1)]


def drawn(kinds, seed, K=K, S=S, drafter="eagle", tasks=("task",), cost=None, rule="coupled",
          target="tiny", only=None):  # fmt: skip
    """A recording whose prompts take turns in kinds, and in tasks, two at a time."""
    random, turn = np.random.default_rng(seed), np.arange(S) // 2
    u, found = random.random((S, ROWS, K)), np.empty((2, S, ROWS, K), np.int64)
    for i, kind in enumerate(kinds):
        chosen = turn % len(kinds) == i
        for j in range(K):
            chances, *values = zip(*of(kind, j))
            place = np.searchsorted(np.cumsum(chances)[:-1], u[chosen, :, j], side="right")
            found[0, chosen, :, j], found[1, chosen, :, j] = np.array(values)[:, place]
    rank, signal = found.reshape(2, S * ROWS, K)
    left = np.tile(np.arange(ROWS, 0, -1), S)
    run = np.minimum((rank == 0).cumprod(axis=1).sum(axis=1), left)
    features = {"confidence": "confidence", "entropy": "entropy", "theta": "identity"}
    meta = TraceMeta(
        rule=rule, target="none", drafter=drafter, K=K, seed=seed, features=tuple(features.items()),
        predictors={"theta": "0" * 64}, ids=tuple(map(str, range(S))),
        tasks=tuple(str(tasks[i % len(tasks)]) for i in turn),
    )  # fmt: skip
    trace = Trace(
        offset=np.arange(S + 1) * ROWS, budget=np.full(S, ROWS),
        token=random.integers(0, 50_000, S * ROWS).astype(np.int32),
        depth=np.full(S * ROWS, K, np.uint8), run=run.astype(np.uint8), rank=rank.astype(np.uint8),
        feature=np.stack((255 * signal, random.integers(0, 256, rank.shape), 255 * signal), 2)
        .astype(np.uint8), meta=meta,
    )  # fmt: skip
    cost = cost or CostModel.from_ratio(C, K, MAX_SUBMITTED)
    return Planted(drafter, drafter, target, trace, cost, draws=2, only=only)


def given(*recorded):
    return Recordings(None, given=recorded)


# --- slow twins: seconds of a prompt of ROWS tokens, in plain steps


def flat(drafted, c=C):
    return 1 + c * drafted


def one(state, rank, signal, drafted):
    """A chain: (where an accepted token leads, None where none is; tokens of a sibling)."""
    return (0 if rank == 0 else None), 0


def wide(state, rank, signal, drafted):
    """All siblings of rank 1, at every node."""
    return (0 if rank <= 1 else None), 0


def sized(sets, state, rank, signal, drafted):
    """CAPE: siblings end the round; state: siblings of the tokens before."""
    size = int(sibling_counts(LOG_ODDS[255 * signal], sets))
    open_ = max(MAX_SUBMITTED - drafted - state, 0)
    return (state + size if rank == 0 else None), int(0 < rank <= min(size, open_))


def shaped(tree, state, rank, signal, drafted):
    """A static tree; state: the row of the token before."""
    child = {(p, r): row for row, (p, r) in enumerate(zip(tree.parent, tree.rank), 1)}
    return child.get((state, rank)), 0


@cache
def planned(kind, longest, step=one, price=flat):
    """float64[ROWS + 1] of drafts as long as `longest` and the output allow, by tokens left."""
    seconds = np.zeros(ROWS + 1)
    for left in range(1, ROWS + 1):
        drafted = min(longest, left - 1)
        reach, found = {0: 1.0}, price(drafted)
        for j in range(drafted):
            later = defaultdict(float)
            for state, p in reach.items():
                for chance, rank, signal in of(kind, j):
                    to, more = step(state, rank, signal, drafted)
                    if to is None:
                        found += p * chance * seconds[left - j - 1 - more]
                    else:
                        later[to] += p * chance
            reach = later
        seconds[left] = found + sum(reach.values()) * seconds[left - drafted - 1]
    return seconds


SUCCESSES, FAILURES = np.meshgrid(np.arange(ROWS + 1), np.arange(ROWS + 1), indexing="ij")


def beta(reading, at, slot, signal):
    return (1 + SUCCESSES) / (2 + SUCCESSES + FAILURES)


def cali(side, theta, m, s, at, slot, signal):
    """Chance of going on: states hold the accepted and the rejected tokens of `at` tokens."""
    n = np.maximum(at - SUCCESSES, 0).astype(float)
    observed = (0.5 + SUCCESSES) / (1 + SUCCESSES + FAILURES)
    if side == "model":
        return np.full(n.shape, theta(slot, signal))
    if side == "sampling":
        return _clipped(observed, s / np.sqrt(np.maximum(n, 1)))
    weight = s * s / (n * m * m + s * s)
    return _clipped(weight * theta(slot, signal) + (1 - weight) * observed, m * np.sqrt(weight))


_clipped = np.vectorize(clipped_mean, otypes=[float])


@cache
def sampled(kind, go, reading="acceptance", longest=K, price=flat):
    """Seconds of a policy that goes on by chance go(at, slot, signal) [accepted, rejected]."""
    mass, seconds = np.zeros((ROWS + 1, *SUCCESSES.shape)), 0.0
    mass[0, 0, 0] = 1
    for at in range(ROWS):
        drafted = min(longest, ROWS - at - 1)
        reach = {None: mass[at]}
        if not drafted:
            seconds += price(0) * mass[at].sum()
            mass[at + 1] += mass[at]
        for j in range(drafted):
            later = defaultdict(float)
            on = [0.0, 0.0] if j + 1 == drafted else [go(at, j, signal) for signal in (0, 1)]
            for miss, p in reach.items():
                for chance, rank, signal in of(kind, j):
                    now = j if miss is None and rank else miss
                    a = j + 1 if now is None else now
                    ends = chance * p * (1 - on[signal])
                    seconds += price(j + 1) * ends.sum()
                    up, down = a, int(a < j + 1)
                    if reading == "censored":
                        up, down = max(a - 1, 0), int(1 <= a < j + 1)
                    mass[at + a + 1, up:, down:] += ends[: ROWS + 1 - up, : ROWS + 1 - down]
                    later[now] = later[now] + chance * p * on[signal]
            reach = later
    return seconds


# --- worlds by a parameter x, and the seconds of policies in them


def spread(x):
    """Half of the prompts are accepted less often, half more."""
    return alike(0.55 - x), alike(0.55 + x)


def easier(x):
    """Twelve tasks, each easier than the one before."""
    return tuple(alike(0.55 + x * (2 * task / 11 - 1)) for task in range(12))


def knowing(x):
    """Prompts whose signal tells acceptance to a degree."""
    return (alike(0.6, knows=x),)


def told(x):
    """Prompts whose signal tells acceptance, or, below 0, that differ by -x."""
    return (alike(0.55, knows=x),) if x > 0 else spread(-x)


def siblings(x):
    """Prompts whose second-best tokens are right in a share of the rejected ones."""
    return (alike(0.6, x, None),)


def sevenths(x):
    """Prompts whose seventh-best tokens are, and whose signal tells where."""
    return (alike(0.6, 0.8, x, far=7),)


def worse_second(x):
    """Easy and hard prompts whose second token is right less often than the first."""
    return tuple((slot(alpha), slot(alpha - x)) for alpha in (0.35, 0.75))


def worse_third(x):
    """Prompts whose third to fifth token is right less often than the second."""
    return ((slot(0.85), slot(0.85), slot(0.85 - x)),)


def theta(slot, signal):
    """EESD's, as recorded."""
    return float(signal)


@cache
def fitted(kinds):
    """What a predictor from confidence tends to: that of 1,000 prompts."""
    found = fit_predictor(drawn(kinds, 99, S=1000).trace)
    pairs = product(range(K), (0, 1))
    at = {(j, v): float(found.probability(LOG_ODDS[255 * v], ENTROPY[128], j)) for j, v in pairs}
    return lambda slot, signal: at[slot, signal]


def total(kinds, step=one, longest=K, price=flat):
    """Of one prompt of each kind, of drafts of a fixed length or shape."""
    return sum(planned(kind, longest, step, price)[-1] for kind in kinds)


def best(kinds, longest=K, shortest=1, step=one, price=flat):
    """Of the best length."""
    return min(total(kinds, step, k, price) for k in range(shortest, longest + 1))


def best_of(kinds):
    """The best fixed length."""
    return min(range(1, K + 1), key=lambda k: total(kinds, one, k))


def by_beta(kinds, reading="acceptance", longest=K, price=flat):
    return sum(sampled(kind, partial(beta, reading), reading, longest, price) for kind in kinds)


def by_cali(kinds, side="both", by=theta, price=flat):
    """At the best of its constants."""
    sigmas = eesd.SIGMAS[: 1 if side == "model" else None]
    policies = [partial(cali, side, by, m, s) for m, s in sigmas]
    return min(sum(sampled(kind, go, price=price) for kind in kinds) for go in policies)


by_model, by_sampling = (partial(by_cali, side=side) for side in ("model", "sampling"))


def by_exit(alpha, layers):
    """Of an early exit under Beta-TS."""
    return by_beta((alike(alpha),), price=partial(flat, c=C / 2 * layers))


def rounds(drafted):
    return 1


def dear(slope, tokens, drafted):
    """The price of a round that submits `tokens` for each drafted one."""
    return flat(drafted) + slope * tokens * drafted


def noded(slope, tree, drafted):
    """The price of a round that submits the first levels of a tree."""
    return flat(drafted) + slope * len(tree.cut(drafted))


def tau_added(x):
    """Tokens a round of EAGLE's tree less those of a chain as deep."""
    steps = partial(shaped, eagle.EAGLE_TREE), one
    tree, chain = (ROWS / total(siblings(x), step, 5, rounds) for step in steps)
    return tree - chain


def hm_loss(c):
    """Claim 6, of acceptance .8 by the price of a draft step."""
    ways = []
    for k in (1, 2):
        prices = rounds, float, partial(flat, c=c)
        count, computed, spent = (total(EIGHT, one, k, price) for price in prices)
        ways.append((2 * (ROWS - count) / (computed + ROWS), spent))
    return max(ways)[1] / min(spent for _, spent in ways) - 1


@cache
def many(x):
    """Claim 4a, of 20,000 prompts."""
    effect = eesd.samples_differ(drawn(spread(x), 99, S=20_000))
    return effect.of(np.sum(effect.columns, axis=1))


def code_gain(x):
    kinds = alike(0.6 + x), alike(0.6)
    code, text = (ROWS / total((kind,), one, best_of(kinds)) for kind in kinds)
    return code - text


# --- recordings and cards of these worlds


def one_of(kinds, **more):
    """Worlds of one recording, of kinds by x."""
    return lambda x, seed: given(drawn(kinds(x), seed, **more))


def over(kinds, theirs, ours, **more):
    """(such worlds, their effect: the time of one way over that of another, less 1)."""
    return one_of(kinds, **more), cache(lambda x: theirs(kinds(x)) / ours(kinds(x)) - 1)


def costing(theirs, ours, make):
    """(worlds by a price, their effect, of two times that are functions of it)."""
    return make, cache(lambda x: theirs(x) / ours(x) - 1)


def priced(slope, read=0.0):
    """Costs of a verification that grows with its tokens, and of reading a feature."""
    verify = 1 + slope * np.arange(64)
    return CostModel(C * np.arange(K + 1), verify, np.zeros(1), 0.0, 1.0, "", feature=read)


def beams(x, seed):
    """A beam search of width 4 that holds the token of rank 1, at the price of its nodes."""
    ours = drawn(siblings(0.5), seed, cost=priced(x), rule="greedy", drafter="glide")
    trace, cap = ours.trace, np.minimum(K, np.tile(np.arange(ROWS, 0, -1), S) - 1)
    path = np.minimum((trace.rank <= 1).cumprod(axis=1).sum(axis=1), cap)
    held = np.stack((path, 4 * cap), 1).astype(np.uint8)
    order, meta = np.full_like(trace.rank, 255), replace(trace.meta, tree=(4, K))
    return given(replace(ours, trace=replace(trace, beam=held, order=order, meta=meta)))


def two_targets(x, seed):
    both = zip((0.9 - x, 0.9), ("tiny", "other"))
    return given(*(drawn((alike(a),), seed + len(n), S=160, target=n) for a, n in both))


@dataclass(frozen=True)
class Cards(Recordings):
    """Cards of accepted lengths, or early exits (acceptance, layers); of two training seeds."""

    lengths: dict | None = None
    exits: dict | None = None

    def cards(self, *names):
        return [tuple(self._card(name, seed) for name in names) for seed in (0, 1)]

    def _card(self, name, seed):
        prompts = np.random.default_rng([self.seed, seed])  # of all drafters
        drafts, easy = prompts.integers(10, 30, S), prompts.normal(2, 0.4, S)
        own = np.random.default_rng([self.seed, seed, *name.encode()]).normal(0, 0.4, S)
        sums = drafts * (easy + own + (self.lengths or {}).get(name, 0)), drafts, drafts
        return Card(Path(name), {"asked": {"plan": {"seed": seed}}}, np.stack(sums, 1))

    def exit(self, card):
        alpha, form = self.exits[card.path.stem]
        seed = 1000 * self.seed + card.data["asked"]["plan"]["seed"]
        return replace(drawn((alike(alpha),), seed), exit=form)


def lengths(**more):
    """Worlds of cards whose drafts are longer by a function of x."""
    return lambda x, seed: Cards(None, seed=seed, lengths={n: by(x) for n, by in more.items()})


def exits(*forms):
    """Worlds of early exits (name, acceptance, how many x more, layers)."""
    return lambda x, seed: Cards(
        None, seed=seed, exits={name: (a + by * x, form) for name, a, by, form in forms}
    )


@dataclass(frozen=True)
class Sorted(Recordings):
    own: s2d.SortedRecording | None = None
    single: Trace | None = None


def cascades(x, seed):
    """A sorted drafter whose first exit is sure of half of the tokens and right in .8 of them, its
    last one right in .7; and a drafter of the last exit alone, right in .75 - x."""
    random, trace = np.random.default_rng(seed), drawn((alike(0.5),), seed, K=3).trace
    n, none = trace.rows, np.zeros((trace.rows, 2), np.uint8)
    wrong = (random.random((n, 2)) >= (0.8, 0.7)).astype(np.uint8)
    sure = (255 * (random.random((n, 1)) < 0.5) * (1, 0)).astype(np.uint8)
    child = np.append(np.arange(1, n), -1)[:, None].repeat(2, axis=1).astype(np.int32)
    drafts = ExitDrafts(
        (3, 12), trace.token[:, None] + wrong.astype(np.int32), child, sure,
        np.zeros((n, 2, 3), np.uint8), none, none, wrong,
    )  # fmt: skip
    cost = CostModel.from_ratio(0.0, 3)
    own = s2d.SortedRecording(trace, drafts, cost, C / 12, 0.0, "flat, c = 0.10")
    return Sorted(None, own=own, single=drawn((alike(0.75 - x),), seed + 1000, K=3).trace)


@pytest.fixture
def sorted_drafters(monkeypatch):
    """Such recordings where claims look for the bundled ones."""
    for name, find in {
        "ablation": lambda of, c, seed: of.own if (c, seed) == (FLAT, 0) else None,
        "single": lambda of, seed: of.single,
        "on_target": lambda of, size: size == "small" and (of.own, of.single),
        "cascades": lambda exits: [(0.5,) * (exits - 1)],
    }.items():
        monkeypatch.setattr(s2d, name, find)


def same(x):
    return x


TOP, TWO, BARE = (f"early_exit-n1-x{layers}" for layers in (1, 2, 0))
EXITS = [(f"early_exit-n{n}-x1", 0.6, n > 1, (n, 1)) for n in (1, 2, 3)]
READS, PAIRED, EASY = knowing(0.5), siblings(0.5), (0.35**2 + 0.75**2) / 1.1 - 0.55
EIGHT = (alike(0.8),)
TREES = [from_paths((*first, *second))
         for first in ([(0,)], [(1,)], [(0,), (1,)])
         for n in range(2 * len(first) + 1)
         for second in combinations(product((r for r, in first), (0, 1)), n)
         if any(map(max, (*first, *second)))]  # fmt: skip
"""Trees of two levels and two ranks that have siblings."""
SURE = partial(flat, c=C * (0.5 * 3 / 12 + 0.5))
# fmt: off
BEST_8, BETA_8 = partial(best, longest=8), partial(by_beta, longest=8)
WORLDS = {
    "1": (*over(spread, BEST_8, BETA_8, K=8), 0.44, 0.2125, 0.0),
    "1 censored": (
        *over(spread, BEST_8, partial(BETA_8, reading="censored"), K=8), 0.44, 0.2513, 0.0),
    "2": (*over(knowing, by_beta, by_cali), 1.0, 0.0044, -1.0),
    "2 by confidence": (*costing(
        lambda x: by_beta(READS),
        lambda x: by_cali(READS, by=fitted(READS), price=partial(flat, c=C + x)),
        lambda x, seed: given(drawn(READS, seed, cost=priced(0.0, x)))), 0.0, 0.0277, 0.2),
    "3": (*over(knowing, by_model, by_sampling), -0.5, 0.0203, 1.0),
    "3 by confidence": (
        *over(told, lambda kinds: by_model(kinds, by=fitted(kinds)), by_sampling),
        -0.44, -0.072, 0.6),
    "4a": (one_of(spread, S=3200), many, 0.44, 0.0513, 0.0),
    "4b": (
        lambda x, seed: given(drawn(easier(x), seed, S=192 if x else 960, tasks=range(12))),
        lambda x: best(easier(x)) / sum(best((kind,)) for kind in easier(x)) - 1, 0.4, 0.1345, 0.0),
    "4c": (*costing(
        lambda x: total((alike(0.9 - x),), one, best_of((alike(0.9),))),
        lambda x: best((alike(0.9 - x),)), two_targets), 0.55, 0.2111, 0.0),
    "5a": (
        *over(lambda x: (alike(x),), partial(total, longest=8), BETA_8, K=8, drafter="model"),
        0.3, 0.6764, 1.0),
    "5b": (*over(spread, BEST_8, BETA_8, K=8, drafter="model"), 0.44, 0.2345, 0.0),
    "6": (
        lambda x, seed: given(drawn((alike(0.8),), seed, K=2, cost=CostModel.from_ratio(x, 2))),
        hm_loss, 1.2, 0.5897, 0.1),
    "7a": (lengths(**{TOP: same}), same, 0.3, 0.0, -0.3),
    "7b": (*costing(
        lambda x: by_exit(0.7 - x, 1), lambda x: by_exit(0.7, 2),
        exits((TOP, 0.7, 0, (1, 1)), (BARE, 0.7, -1, (1, 0)))), 0.3, 0.0665, 0.0),
    "7c": (*costing(
        lambda x: by_exit(0.6 + x, 3), lambda x: by_exit(0.6, 2),
        exits((TOP, 0.6, 0, (1, 1)), (TWO, 0.6, 1, (1, 2)))), 0.0, 0.0669, 0.3),
    "8": (
        exits(*EXITS), lambda x: [by_exit(0.6 + x, n + 1) / by_exit(0.6, 2) - 1 for n in (2, 3)],
        0.0, 0.0669, 0.35),
    "9": (lengths(**{TOP: same}), same, 0.3, 0.0, -0.3),
    "10": (*costing(
        lambda x: best(PAIRED, 2, price=partial(dear, x, 1)),
        lambda x: min(
            total(PAIRED, partial(shaped, t), t.levels, partial(noded, x, t)) for t in TREES),
        lambda x, seed: given(drawn(PAIRED, seed, K=2, cost=priced(x)))), 0.0, 0.1552, 0.4),
    "20": (*over(knowing, by_beta, by_cali), 1.0, 0.0044, -1.0),
    "20 by confidence": (*costing(
        lambda x: by_beta(EIGHT, price=partial(flat, c=x)),
        lambda x: by_cali(EIGHT, by=fitted(EIGHT), price=partial(flat, c=x)),
        lambda x, seed: given(drawn(EIGHT, seed, S=160, cost=CostModel.from_ratio(x, K)))),
        0.02, 0.3346, 1.0),
    "11a": (lengths(**{glide.LAYERS[2]: same}), same, 0.3, 0.0, -0.3),
    "11b": (
        lengths(**dict(zip(glide.LAYERS, (lambda x: 0, same, lambda x: 2 * x)))),
        lambda x: [x, 2 * x, x], 0.3, 0.0, -0.3),
    "13a": (*costing(
        lambda x: total(PAIRED, price=partial(dear, x, 1)),
        lambda x: total(PAIRED, partial(sized, "section"), price=partial(dear, x, 2)),
        lambda x, seed: given(drawn(PAIRED, seed, cost=priced(x), drafter="glide"))),
        0.0, 0.0749, 0.2),
    "13b": (*costing(
        lambda x: total(PAIRED, wide, price=partial(dear, x, 4)),
        lambda x: total(PAIRED, price=partial(dear, x, 1)), beams), 0.1, 0.0662, 0.0),
    "13c": (
        *over(sevenths, lambda kinds: min(total(kinds, partial(sized, n)) for n in glide.SIZES),
              partial(total, step=partial(sized, "section")), S=160, drafter="glide"),
        1.0, 0.7463, -1.0),
    "14a": (lengths(**{eagle.INPUTS[2]: same}), same, 0.3, 0.0, -0.3),
    "14b": (
        lengths(**{eagle.INPUTS[0]: lambda x: 1 + x, eagle.INPUTS[1]: lambda x: 0.5}), same,
        0.6, 0.0, -0.6),
    "15a": (one_of(worse_second, only=FLAT), lambda x: x - EASY, 0.3, EASY, -0.15),
    "15a, all rows": (one_of(worse_second, only=FLAT), same, 0.3, 0.0, -0.15),
    "15b": (one_of(worse_third, only=FLAT), lambda x: [x] * 3, 0.0, 0.1, 0.3),
    "15b, all rows": (one_of(worse_third, only=FLAT), lambda x: [x] * 3, 0.0, 0.1, 0.3),
    "16": (one_of(siblings, S=400, only=FLAT), tau_added, 0.48, 0.4218, 0.0),
    "18a": (*costing(
        lambda x: best((alike(0.75 - x),), 3), lambda x: best((alike(0.75),), 3, price=SURE),
        cascades), 0.15, -0.0575, -0.2),
    "19": (
        one_of(lambda x: (alike(0.6 + x), alike(0.6)), tasks=("code", "text")), code_gain,
        0.2, 0.0, -0.2),
}
WORLDS["18c"] = WORLDS["18a"]
# fmt: on
"""{claim: (what is drawn at (x, seed), the exact effect at x, of each alternative, and the x at
which the claim is true, at its bound and false)}."""
DRAWS = 16
MOST = int(binom.ppf(0.999, DRAWS, 0.05))
"""Of draws that a verdict of error 5% gets wrong: more have a chance of 1 in 1,000."""


def decided(claim, recordings):
    """(word, figures) of the verdict on the first pair at the last price."""
    effects = claim.effects(recordings)
    key = effects[0].pair, effects[-1].regime
    found = verdict_of(claim, [e for e in effects if (e.pair, e.regime) == key])
    return found.word, [piece.interval.value for piece in found.pieces]


def test_every_claim_has_its_worlds():
    assert set(WORLDS) == set(MANY)


@pytest.mark.parametrize("number", WORLDS)
def test_a_planted_world_is_found_at_the_stated_error(number, sorted_drafters):
    """Figures agree with the exact effect; where the claim is true, or false, its verdict says the
    opposite in 5% of draws at most, and is right in 4 of 5; at the bound it decides in 5%."""
    (make, effect, *places), claim = WORLDS[number], MANY[number]
    for x, right in zip(places, (HELD, None, NOT_HELD)):
        words, figures = zip(*(decided(claim, make(x, seed)) for seed in range(DRAWS)))
        found = np.array([each for each in figures if each])
        if len(found):
            exact = np.broadcast_to(effect(x), found.shape[1:])
            error = 4 * found.std(axis=0) / sqrt(len(found))
            assert (abs(found.mean(axis=0) - exact) < error + 0.015).all(), (x, exact, found)
            inside = (claim.bounds[0] < exact) & (exact < claim.bounds[1])
            assert inside.all() if right == HELD else right is None or not inside.any()
        for word in (HELD, NOT_HELD):
            if word == right:
                assert words.count(word) >= 0.8 * DRAWS, (x, words)
            else:
                assert words.count(word) <= MOST, (x, words)
