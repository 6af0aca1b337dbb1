"""Routers: which of several drafters drafts each round, replayed on recordings of one text.

Such recordings are the full information of HedgeSpec (Liu et al., arXiv 2510.20064): they hold what
each drafter would have had accepted at every position. A router sees of it what the text has shown
so far: that a draft was rejected, or right to its end.
"""

import math
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.cost.rounds import next_backlog
from simspec.numerics.compile import interpreted
from simspec.numerics.rng import POLICY, uniform_rows
from simspec.numerics.stats import stacked
from simspec.policies.bandits import chosen_arm
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
    """The round of each of E experts from each of the N rows of a text, on D drafters."""

    experts: tuple[Expert, ...]
    drafter: tuple[int, ...]  # of each expert, 0 .. D - 1
    rounds: tuple[Rounds, ...]  # of each expert, round t from row t
    tokens: Integers  # int64[E, N]: committed
    # float64[E, N]: plain steps of the target, without catch-up
    steps: Floats
    # int64[N]: the first row at which the text has shown the outcomes of all experts
    known: Integers

    @property
    def trace(self) -> Trace:
        return self.experts[0].trace


def outcomes(experts: Sequence[Expert]) -> Outcomes:
    """The outcomes of experts on recordings of the same text; errors of `rounds_at_rows`.

    ValueError for none, for two alike, and for other prompts, budgets, tokens or rules.
    """
    names = [f"{expert.drafter} {expert.policy.name}" for expert in experts]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"a router takes different experts, given: {', '.join(names) or 'none'}")
    trace, drafters = experts[0].trace, list(dict.fromkeys(e.drafter for e in experts))
    check_one_text({expert.drafter: expert.trace for expert in experts})
    made = tuple(rounds_at_rows(e.trace, e.policy, e.cost) for e in experts)
    row = np.arange(trace.rows)
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - row
    tokens = np.stack([np.minimum(of.accepted + 1, left) for of in made])
    steps = [
        e.cost.seconds_without_backlog(of.computed, of.computed, of.drafted) / e.cost.baseline
        for e, of in zip(experts, made)
    ]
    seen = np.max([np.minimum(of.accepted + 1, of.drafted) for of in made], axis=0)
    drafter = tuple(drafters.index(e.drafter) for e in experts)
    known = row + np.minimum(seen, left)
    return Outcomes(tuple(experts), drafter, made, tokens, np.stack(steps), known)


def check_one_text(traces: Mapping[str, Trace]) -> None:
    """ValueError unless these recordings are of one text: prompts, budgets, tokens and rule."""
    (first, one), *others = traces.items()
    for name, other in others:
        same = one.meta.rule == other.meta.rule and all(
            np.array_equal(getattr(one, held), getattr(other, held))
            for held in ("prompt", "prompt_offset", "offset", "budget", "token")
        )
        if not same:
            raise ValueError(
                f"{first} and {name} hold other prompts, texts or rules: a router takes recordings "
                "of several drafters over one text, as `simspec record` makes of one target"
            )


@dataclass(frozen=True)
class Router:
    """A rule that chooses the expert of each round.

    | field   | meaning                                                                          |
    | ------- | -------------------------------------------------------------------------------- |
    | name    | label in tables                                                                  |
    | start   | (E, budget) -> the state of a sequence, any object                               |
    | chances | (state, row) -> [float] of E: the chance of each expert, 1 in all                |
    | observe | (state, expert used, its chances then, rewards of all): once these are known     |
    | random  | chances are other than 0 and 1                                                   |
    | full    | reads the rewards of all experts, else of the one used                           |
    | tokens  | rewards are a round's tokens, not its tokens a second; over the most, in [0, 1]  |
    """

    name: str
    start: Callable[[int, int], Any]
    chances: Callable[[Any, int], list[float]]
    observe: Callable[[Any, int, list[float], list[float]], None]
    random: bool = False
    full: bool = False
    tokens: bool = False


@dataclass(frozen=True, eq=False)
class Routed:
    """The rounds of a router on a text, and what they cost."""

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
    computed, drafted, accepted = (
        np.stack([getattr(of, name) for of in found.rounds])
        for name in ("computed", "drafted", "accepted")
    )
    most, pace = float(drafted.max() + 1), float(((drafted + 1) / found.steps).max())
    rewards = (found.tokens / most if router.tokens else found.tokens / found.steps / pace).T
    tokens, known, rewarded = found.tokens.T.tolist(), found.known.tolist(), rewards.tolist()
    draws = uniform_rows(seed, trace.sequence, int(np.diff(trace.offset).max()), POLICY)
    after = interpreted(next_backlog)
    chosen: list[tuple[int, int, int]] = []  # sequence, row, expert
    # rows that each drafter has not read before each round, where showing is free and where paid
    behind: list[tuple[list[int], list[int]]] = []
    regret, bound = np.zeros(trace.sequences), np.zeros(trace.sequences)
    for s in range(trace.sequences):
        row, end = trace.offset[s : s + 2].tolist()
        budget, state = int(trace.budget[s]), router.start(experts, int(trace.budget[s]))
        waiting: list[tuple[int, int, list[float], list[float]]] = []
        backlog, owed = [0] * drafters, [0] * drafters
        sums, expected, unknown, count = [0.0] * experts, 0.0, 0, 0
        while row < end:
            while waiting and (not router.full or known[waiting[0][0]] <= row):
                router.observe(state, *waiting.pop(0)[1:])
            unknown += len(waiting)
            chances = router.chances(state, row)
            sure = max(chances) == 1.0
            reach = [] if sure else list(accumulate(chances))
            e = chances.index(1.0) if sure else bisect(reach, draws[s, count] * reach[-1])
            waiting.append((row, e, chances, rewarded[row]))
            chosen.append((s, row, e))
            behind.append((backlog, owed))
            sums = [total + of for total, of in zip(sums, tokens[row])]
            expected += sum(chance * of for chance, of in zip(chances, tokens[row]))
            drafter, drafts = found.drafter[e], (int(computed[e, row]), int(accepted[e, row]))
            left = after(backlog[drafter], *drafts), after(owed[drafter], *drafts)
            backlog, owed = [of + tokens[row][e] for of in backlog], [0] * drafters
            backlog[drafter], owed[drafter] = left
            row += tokens[row][e]
            count += 1
        regret[s] = max(sums) - expected
        bound[s] = most * hedge_bound(experts, budget, count, unknown)
    sequence, rows, used = (np.array(column) for column in zip(*chosen))
    starts = np.searchsorted(sequence, np.arange(trace.sequences + 1))
    columns = (column[used, rows] for column in (computed, drafted, accepted))
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
            shown = np.max([found.rounds[e].computed for e in own], axis=0)[rounds.row]
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
    return Router(name, lambda n, _: n, lambda n, row: _only(rows[row], n), lambda *seen: None)


def hedge_rate(experts: int, budget: int) -> float:
    """eta = sqrt(8 ln N / T), with the budget as T: a round commits a token at least."""
    return math.sqrt(8.0 * math.log(experts) / budget)


def hedge_bound(experts: int, budget: int, rounds: int, unknown: int = 0) -> float:
    """Bound of the regret of `hedge` in rewards: ln N / eta + eta R / 8 + eta M / 4.

    R rounds; M: outcomes not known yet, summed over rounds. At R = T, M = 0 it is sqrt(T ln N / 2)
    (Cesa-Bianchi and Lugosi 2006, Theorem 2.2), the order of HedgeSpec's. An unknown loss in [0, 1]
    moves the expected loss by eta times a covariance, which is 1/4 at most.
    """
    if experts == 1:
        return 0.0
    eta = hedge_rate(experts, budget)
    return math.log(experts) / eta + eta * rounds / 8.0 + eta * unknown / 4.0


def _add_losses(state: Any, used: int, chances: list[float], rewards: list[float]) -> None:
    for e, reward in enumerate(rewards):
        state[1][e] += 1.0 - reward


def hedge(tokens: bool = False) -> Router:
    """Hedge with full information: chances ~ exp(-eta L), L the sum of losses 1 - reward.

    tokens: by accepted length, as in HedgeSpec, whose drafters cost the same; else by tokens a
    second.
    """

    def chances(state: Any, row: int) -> list[float]:
        eta, losses = state
        weights = [math.exp(-eta * (loss - min(losses))) for loss in losses]
        return [weight / sum(weights) for weight in weights]

    def start(experts: int, budget: int) -> Any:
        return hedge_rate(experts, budget), [0.0] * experts

    name = f"hedge on {'tokens' if tokens else 'seconds'}"
    return Router(name, start, chances, _add_losses, True, True, tokens)


def leader() -> Router:
    """Follow the leader: the expert of the most reward so far, the first of equals."""

    def chances(state: Any, row: int) -> list[float]:
        return _only(state[1].index(min(state[1])), len(state[1]))

    return Router("leader", lambda n, _: (0.0, [0.0] * n), chances, _add_losses, full=True)


def normal_hedge() -> Router:
    """NormalHedge (Chaudhuri, Freund and Hsu 2009), HedgeSpec's learner: no rate to choose.

    R_e: regret to expert e. Chances ~ [R_e]+ exp([R_e]+^2 / 2c), with c such that the mean of
    exp([R_e]+^2 / 2c) is e; all alike while no regret is positive.
    """

    def observe(regrets: Any, used: int, chances: list[float], rewards: list[float]) -> None:
        mean = sum(chance * reward for chance, reward in zip(chances, rewards))
        for e, reward in enumerate(rewards):
            regrets[e] += reward - mean

    def chances(regrets: Any, row: int) -> list[float]:
        n, halves = len(regrets), [max(r, 0.0) ** 2 / 2.0 for r in regrets]
        # at c = most the mean is e or less, at most / ln(n e) it is e or more
        most = max(halves)
        low, high = most / (1.0 + math.log(n)), most
        if most <= 0.0:
            return [1.0 / n] * n
        for _ in range(40):
            c = (low + high) / 2.0
            above = sum(math.exp(half / c) for half in halves) > n * math.e
            low, high = (c, high) if above else (low, c)
        weights = [math.sqrt(half) * math.exp((half - most) / high) for half in halves]
        return [weight / sum(weights) for weight in weights]

    return Router("normal hedge", lambda n, _: [0.0] * n, chances, observe, True, True)


def bandit(exploration: float = 2.0) -> Router:
    """UCB1 on the expert used alone, see the policy `ucb`: each once, then the largest bound."""

    def start(experts: int, budget: int) -> Any:
        params = np.array([0.0, exploration, 0.0, *range(experts)])
        return params, np.zeros(2 + 2 * experts)

    def chances(state: Any, row: int) -> list[float]:
        return _only(chosen_arm(*state), len(state[0]) - 3)

    def observe(state: Any, used: int, chances: list[float], rewards: list[float]) -> None:
        state[1][[1, 2 + 2 * used, 3 + 2 * used]] += 1.0, 1.0, rewards[used]

    return Router("bandit", start, chances, observe)


def cascade(found: Outcomes) -> Router:
    """The cheapest drafter that has anything to draft here, which it knows before it drafts."""
    first = [e.cost.draft[min(1, e.cost.K)] / e.cost.baseline for e in found.experts]
    order = np.argsort(first, kind="stable")
    drafts = np.stack([found.rounds[e].computed > 0 for e in order])
    return planned("cascade", order[np.argmax(drafts, axis=0)])


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
