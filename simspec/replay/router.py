"""Routers: which of several drafters drafts each round, replayed on recordings of one text.

Such recordings are the full information of HedgeSpec (Liu et al., arXiv 2510.20064): they hold what
each drafter would have had accepted at every position. A router sees of it what the text has shown
so far: that a draft was rejected, or right to its end.
"""

import math
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from simspec.cost.model import CostModel
from simspec.cost.rounds import next_backlog
from simspec.numerics.compile import interpreted
from simspec.numerics.rng import POLICY, uniform_rows
from simspec.numerics.stats import stacked
from simspec.policy.policy import Policy
from simspec.replay.metrics import part_counts, part_prices
from simspec.replay.replay import rounds_at_rows
from simspec.trace.trace import Rounds, Trace

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Expert:
    """What a router chooses: a drafter with a policy, on its recording, at its own costs."""

    drafter: str
    policy: Policy
    trace: Trace
    cost: CostModel  # reading the policy's features


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The round of each of E experts from each of the N rows of a sequence, on D drafters."""

    experts: tuple[Expert, ...]
    drafter: tuple[int, ...]  # of each expert, 0 .. D - 1
    # int64[E, N]: as in Rounds, and committed
    computed: Integers
    drafted: Integers
    accepted: Integers
    tokens: Integers
    steps: Floats  # float64[E, N]: plain steps of the target, without catch-up
    known: Integers  # int64[N]: the first row at which the text has shown all experts' outcomes

    @property
    def trace(self) -> Trace:
        return self.experts[0].trace


def outcomes(experts: Sequence[Expert]) -> Outcomes:
    """The outcomes of experts on recordings of one text; errors of `rounds_at_rows`.

    ValueError for none, for two alike, and for other prompts, budgets, tokens or rules.
    """
    names = [f"{expert.drafter} {expert.policy.name}" for expert in experts]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"a router takes different experts, given: {', '.join(names) or 'none'}")
    trace, drafters = experts[0].trace, list(dict.fromkeys(e.drafter for e in experts))
    for expert in experts[1:]:
        same = expert.trace.meta.rule == trace.meta.rule and all(
            np.array_equal(getattr(trace, held), getattr(expert.trace, held))
            for held in ("prompt", "prompt_offset", "offset", "budget", "token")
        )
        if not same:
            raise ValueError(
                f"{drafters[0]} and {expert.drafter} hold other prompts, texts or rules: a router "
                "takes recordings of several drafters over one text"
            )
    rounds = [rounds_at_rows(e.trace, e.policy, e.cost) for e in experts]
    computed, drafted, accepted = (
        np.stack([getattr(of, name) for of in rounds])
        for name in ("computed", "drafted", "accepted")
    )
    row = np.arange(trace.rows)
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - row
    steps = np.stack([
        e.cost.seconds_without_backlog(c, c, d) / e.cost.baseline
        for e, c, d in zip(experts, computed, drafted)
    ])  # fmt: skip
    seen = np.minimum(np.minimum(accepted + 1, drafted).max(axis=0), left)
    return Outcomes(
        tuple(experts), tuple(drafters.index(e.drafter) for e in experts), computed, drafted,
        accepted, np.minimum(accepted + 1, left), steps, row + seen,
    )  # fmt: skip


@dataclass
class Seen:
    """What a router has seen of a sequence before the round at `row`, of E experts.

    A reward is a round's tokens a plain step, or its tokens for a router on tokens.
    """

    row: int
    budget: int
    most: float  # the most that a reward can be
    # of rounds whose outcomes are known for all: rewards of each expert, and those that the router
    # expected by its chances then; only a router with full information may read these
    rewards: list[float]
    expected: float
    used: list[int]  # rounds that each expert drafted
    gained: list[float]  # rewards of these rounds


@dataclass(frozen=True)
class Router:
    """A rule that chooses the expert of each round, by the chance of each, 1 in all."""

    name: str
    chances: Callable[[Seen], list[float]]
    random: bool = False  # its chances are other than 0 and 1
    full: bool = False  # it reads the rewards of all experts
    tokens: bool = False  # rewards are tokens


@dataclass(frozen=True, eq=False)
class Routed:
    """The rounds of a router on a sequence, and what they cost."""

    rounds: Rounds
    used: Integers  # int64[R]: the expert of each round
    # float64[S, 1 + B]: plain steps of each sequence, as measured and at the costs' B replicates,
    # where drafters that a round did not use show their drafts for nothing, and at their price
    steps: Floats
    paid: Floats
    # float64[S]: max_e sum of e's tokens - sum of tokens that the router expects, over its rounds
    regret: Floats
    bound: Floats  # float64[S]: of the regret of `hedge` on tokens


def route(found: Outcomes, router: Router, seed: int = 0) -> Routed:
    """The rounds of a router: a round of one expert, then the next from the row that it reached.

    A round's rewards reach a router with full information at the first later round where all are
    known. To show its draft a drafter reads the round's tokens: in one pass where it is
    `prefix_only`, since its choices along the text are its draft, else before a draft of its own.
    Where showing is free, it reads what it missed once it is used. ValueError for an invalid seed.
    """
    experts, drafters, trace = len(found.experts), max(found.drafter) + 1, found.trace
    per: Any = 1.0 if router.tokens else found.steps
    rewards, most = found.tokens / per, float(((found.drafted + 1) / per).max())
    tokens, known, rewarded = found.tokens.T.tolist(), found.known.tolist(), rewards.T.tolist()
    draws = uniform_rows(seed, trace.sequence, int(np.diff(trace.offset).max()), POLICY)
    after = interpreted(next_backlog)
    chosen: list[tuple[int, int, int]] = []  # sequence, row, expert
    # rows that each drafter has not read before each round, where showing is free and where paid
    behind: list[tuple[list[int], list[int]]] = []
    regret, bound = np.zeros(trace.sequences), np.zeros(trace.sequences)
    for s in range(trace.sequences):
        row, end = trace.offset[s : s + 2].tolist()
        none, backlog, owed = [0.0] * experts, [0] * drafters, [0] * drafters
        seen = Seen(row, int(trace.budget[s]), most, none.copy(), 0.0, [0] * experts, none.copy())
        waiting: list[tuple[int, list[float]]] = []  # rows and chances of outcomes not known
        sums, expected, unknown = none, 0.0, 0
        while row < end:
            while waiting and known[waiting[0][0]] <= row:
                then, chances = waiting.pop(0)
                seen.rewards = [of + more for of, more in zip(seen.rewards, rewarded[then])]
                seen.expected += sum(of * more for of, more in zip(chances, rewarded[then]))
            unknown += len(waiting)
            seen.row, count = row, sum(seen.used)
            chances = router.chances(seen)
            sure = max(chances) == 1.0
            reach = [] if sure else list(accumulate(chances))
            e = chances.index(1.0) if sure else bisect(reach, draws[s, count] * reach[-1])
            seen.used[e] += 1
            seen.gained[e] += rewarded[row][e]
            waiting.append((row, chances))
            chosen.append((s, row, e))
            behind.append((backlog, owed))
            sums = [total + of for total, of in zip(sums, tokens[row])]
            expected += sum(chance * of for chance, of in zip(chances, tokens[row]))
            d, drafts = found.drafter[e], (int(found.computed[e, row]), int(found.accepted[e, row]))
            left = after(backlog[d], *drafts), after(owed[d], *drafts)
            backlog, owed = [of + tokens[row][e] for of in backlog], [0] * drafters
            backlog[d], owed[d] = left
            row += tokens[row][e]
        regret[s] = max(sums) - expected
        bound[s] = most * hedge_bound(experts, seen.budget, sum(seen.used), unknown)
    sequence, rows, used = (np.array(column) for column in zip(*chosen))
    starts = np.searchsorted(sequence, np.arange(trace.sequences + 1))
    columns = (of[used, rows] for of in (found.computed, found.drafted, found.accepted))
    rounds = Rounds(starts, rows, *columns)
    unread = np.array(behind)
    free, paid = (_steps(found, rounds, used, unread[:, i], i == 1) for i in range(2))
    return Routed(rounds, used, free, paid, regret, bound)


def _steps(found: Outcomes, rounds: Rounds, used: Integers, behind: Integers, paid: bool) -> Floats:
    """float64[S, 1 + B]: plain steps of rounds, before which drafters are `behind` int64[R, D].

    paid: and of what the drafters that a round did not use show after it.
    """
    sequences, drafter, spent = len(rounds.offset) - 1, np.array(found.drafter)[used], []
    sequence = np.repeat(np.arange(sequences), np.diff(rounds.offset))
    for d in dict.fromkeys(found.drafter):
        own = [e for e, of in enumerate(found.drafter) if of == d]
        cost, meta = found.experts[own[0]].cost, found.experts[own[0]].trace.meta
        mine = drafter == d
        parts = sequence, rounds.computed, rounds.drafted, behind[:, d]
        counts = part_counts(cost, sequences, *(part[mine] for part in parts))
        if paid:
            shown = found.computed[own].max(axis=0)[rounds.row]
            shown = np.minimum(shown, 1) if meta.prefix_only else shown
            new = found.tokens[used, rounds.row] - 1
            parts = sequence, shown, np.zeros_like(shown), new
            read = part_counts(cost, sequences, *(part[~mine] for part in parts))
            # neither a pass of the target nor the overhead of a round
            read[:, len(cost.draft) : len(cost.draft) + len(cost.verify)] = read[:, -2] = 0.0
            counts += read
        spent.append(counts @ part_prices(cost) / cost.baseline)
    total: Floats = stacked(*spent).sum(axis=1)
    return total


def _only(expert: int, experts: int) -> list[float]:
    return [float(e == expert) for e in range(experts)]


def planned(name: str, plan: Any) -> Router:
    """The expert plan[row], whatever happens."""
    rows = np.asarray(plan).tolist()
    return Router(name, lambda seen: _only(rows[seen.row], len(seen.used)))


def hedge_rate(experts: int, budget: int) -> float:
    """eta = sqrt(8 ln N / T), with the budget as T: a round commits a token at least."""
    return math.sqrt(8.0 * math.log(experts) / budget)


def hedge_bound(experts: int, budget: int, rounds: int, unknown: int = 0) -> float:
    """Bound of the regret of `hedge` in rewards: ln N / eta + eta R / 8 + eta M / 4.

    R rounds; M: outcomes not known yet, summed over rounds. At R = T, M = 0 it is sqrt(T ln N / 2)
    (Cesa-Bianchi and Lugosi 2006, Theorem 2.2), the order of HedgeSpec's. An unknown loss in [0, 1]
    moves the expected loss by eta times a covariance, which is 1/4 at most.
    """
    eta = hedge_rate(experts, budget)
    return math.log(experts) / eta + eta * (rounds / 8 + unknown / 4) if eta else 0.0


def hedge(tokens: bool = False) -> Router:
    """Hedge with full information: chances ~ exp(eta S), S the sum of an expert's rewards.

    Rewards are over the most that one can be. tokens: accepted lengths, as in HedgeSpec, whose
    drafters cost the same.
    """

    def chances(seen: Seen) -> list[float]:
        eta, best = hedge_rate(len(seen.used), seen.budget) / seen.most, max(seen.rewards)
        return _shares([math.exp(eta * (of - best)) for of in seen.rewards])

    return Router(f"hedge on {'tokens' if tokens else 'seconds'}", chances, True, True, tokens)


def normal_hedge() -> Router:
    """NormalHedge (Chaudhuri, Freund and Hsu 2009), HedgeSpec's learner: no rate to choose.

    R_e: regret to expert e, over the most that a reward can be. Chances ~ [R_e]+ exp([R_e]+^2 / 2c)
    with c such that the mean of exp([R_e]+^2 / 2c) is e; all alike while no regret is positive.
    """

    def chances(seen: Seen) -> list[float]:
        n, halves = len(seen.used), [max(of - seen.expected, 0.0) for of in seen.rewards]
        halves = [(of / seen.most) ** 2 / 2 for of in halves]
        if max(halves) <= 1e-18:
            return [1.0 / n] * n
        # at c = max the mean is e or less, at max / ln(n e) it is e or more
        ends = max(halves) / (1.0 + math.log(n)), max(halves)
        c = brentq(lambda c: sum(math.exp(half / c) for half in halves) - n * math.e, *ends)
        return _shares([math.sqrt(of) * math.exp((of - max(halves)) / c) for of in halves])

    return Router("normal hedge", chances, True, True)


def _shares(weights: list[float]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


def leader() -> Router:
    """Follow the leader: the expert of the most reward so far; of a tie the first."""
    return Router("leader", lambda seen: _first_best(seen.rewards), full=True)


def bandit() -> Router:
    """UCB1 on the experts used: each once, then the largest upper bound, as the policy `ucb`."""

    def chances(seen: Seen) -> list[float]:
        more = 2 * math.log(max(sum(seen.used), 1))
        wide = [math.sqrt(more / n) if n else math.inf for n in seen.used]
        return _first_best(
            [of / seen.most / max(n, 1) + w for of, n, w in zip(seen.gained, seen.used, wide)]
        )

    return Router("bandit", chances)


def _first_best(values: list[float]) -> list[float]:
    return _only(values.index(max(values)), len(values))


def cascade(found: Outcomes) -> Router:
    """The cheapest drafter that has anything to draft here, which it knows before it drafts."""
    first = [e.cost.draft[min(1, e.cost.K)] / e.cost.baseline for e in found.experts]
    order = np.argsort(first, kind="stable")
    return planned("cascade", order[np.argmax(found.computed[order] > 0, axis=0)])


def oracle(found: Outcomes) -> Router:
    """The schedule of least time, knowing the future; it plans for no catch-up."""
    plan, tokens = np.zeros(found.trace.rows, np.int64), found.tokens.T.tolist()
    left, ends = np.zeros(found.trace.rows + 1), set(found.trace.offset.tolist())
    for row in range(found.trace.rows - 1, -1, -1):
        steps = found.steps[:, row].tolist()
        reached = (row + count for count in tokens[row])
        times = [of + (0.0 if at in ends else left[at]) for of, at in zip(steps, reached)]
        left[row] = min(times)
        plan[row] = times.index(left[row])
    return planned("oracle", plan)
