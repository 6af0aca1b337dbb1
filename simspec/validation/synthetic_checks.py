"""Checks of the simulator where the truth is known: synthetic texts against the closed forms and against exact recursions."""

from dataclasses import dataclass, field

import numpy as np

from simspec import formulas, metrics, policies, simulate, synthetic
from simspec.cost import CostModel
from simspec.rng import check_seed
from simspec.validation.bounds import Law, interval, moments

DEEP, TEXTS, ROWS = 16, 1500, 64
ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
RATIOS = (0.05, 0.1, 0.3)
DECAYING = tuple(0.92 * 0.95**j for j in range(DEEP))
SWITCHING = {"alphas": (0.35, 0.92), "switch": (0.1, 0.05)}
DRIFTING = {"first": 0.95, "last": 0.3}
SOME_K = (1, 2, 4, 8, 16)
STAY, STILL_ALPHAS = (0.2, 0.5, 0.8, 0.95), (0.3, 0.6, 0.8, 0.95)


@dataclass(frozen=True)
class Check:
    """One comparison: what was expected, what the simulator gave, and the interval that it must lie in."""

    name: str
    expected: float
    got: float
    low: float
    high: float

    @property
    def ok(self) -> bool:
        slack = 1e-9 * max(1.0, abs(self.expected))
        return bool(self.low - slack <= self.got <= self.high + slack)

    def to_dict(self) -> dict:
        """The check as plain data; interval is [low, high]."""
        figures = {"expected": self.expected, "got": self.got, "interval": [self.low, self.high]}
        return (
            {"name": self.name}
            | {k: v if isinstance(v, list) else float(v) for k, v in figures.items()}
            | {"ok": self.ok}
        )


@dataclass
class Ledger:
    """Collects comparisons of sums over rounds with their laws, then judges all at one shared risk.

    A ratio compares sum(x) / sum(y) with e by the sum of x - e y, whose mean is 0 if e is right; where e is a formula's, that
    the mean is 0 is a check of its own. A speedup compares a sum of seconds with its exact mean. x, y are tables
    [cap, drafted, accepted] as in tail.moments.
    """

    planned: list = field(default_factory=list)
    exact: list = field(default_factory=list)

    def ratio(self, name, law, x, y, expected, got, weight, formula=False):
        kind = "formula" if formula else "ratio"
        self.planned.append(
            (name, law, x - expected * y, kind, float(expected), float(got), float(weight))
        )

    def speedup(self, name, law, seconds, got):
        """got = tokens / seconds where a plain step takes 1, seconds the table of what a round costs."""
        self.planned.append((name, law, seconds, "speedup", None, got, TEXTS * law.rows))

    def same(self, name, expected, got, tolerance=0.0):
        self.exact.append(Check(name, expected, got, expected - tolerance, expected + tolerance))

    def judge(self, false_alarm: float) -> list[Check]:
        """All checks: each planned one has its share of the false-alarm rate (Bonferroni), the exact ones have none."""
        risk, checks = false_alarm / max(len(self.planned), 1), []
        for name, law, reward, kind, expected, got, weight in self.planned:
            mean, low, high = interval(law, reward, TEXTS, risk)
            if kind == "speedup":
                checks.append(Check(name, weight / mean, got, weight / high, weight / low))
                continue
            checks.append(
                Check(
                    name,
                    expected,
                    got,
                    expected + (low - mean) / weight,
                    expected + (high - mean) / weight,
                )
            )
            if kind == "formula":
                checks.append(
                    Check(
                        f"{name}, by the exact law",
                        expected,
                        expected + mean / weight,
                        expected - 1e-9,
                        expected + 1e-9,
                    )
                )
        return checks + self.exact


class Tables:
    """Reward tables [cap, drafted, accepted], float64[K + 1] * 3; whole is 1 where the text's end did not cap the draft."""

    def __init__(self, K):
        self.cap, self.k, self.a = np.indices((K + 1,) * 3).astype(np.float64)
        self.one, self.whole = np.ones_like(self.k), (self.cap == K).astype(np.float64)

    def read(self, table, caps, rounds) -> float:
        """The table's sum over rounds; what lies outside it is read at its edge, other checks report that."""
        top = table.shape[0] - 1
        return float(
            table[
                tuple(np.clip(part, 0, top) for part in (caps, rounds.drafted, rounds.accepted))
            ].sum()
        )


def plan(seed: int = 0) -> Ledger:
    """Replay synthetic texts of every law and write down what is to be compared."""
    ledger, seeds = (
        Ledger(),
        iter(np.random.SeedSequence(check_seed(seed)).generate_state(64, np.uint64).tolist()),
    )
    size = {"sequences": TEXTS, "rows": ROWS}
    for alpha in ALPHAS:
        _iid(ledger, alpha, synthetic.iid(alpha, **size, K=DEEP, seed=next(seeds)))
    _decaying(ledger, synthetic.decaying(DECAYING, **size, seed=next(seeds)))
    _switching(ledger, synthetic.switching(**SWITCHING, **size, K=DEEP, seed=next(seeds)))
    _drifting(ledger, synthetic.drifting(**DRIFTING, **size, K=DEEP, seed=next(seeds)))
    for alpha in STILL_ALPHAS:
        _thompson(
            ledger, alpha, synthetic.iid(alpha, **size, K=DEEP, seed=next(seeds)), next(seeds)
        )
    return ledger


def optima(checks: list[Check]) -> list[Check]:
    """Whether `formulas.optimal_k` names a draft length that the replayed speedups cannot tell from the best.

    At cost ratio c the speedup of fixed K is its tokens per round over 1 + c K. With each K's tokens per round inside its
    interval, none of these can fail: they share the false-alarm rate of `judge` and add nothing to it.
    """
    named, found = {check.name: check for check in checks}, []
    for alpha in ALPHAS:
        tokens = [
            named[f"iid: alpha={alpha:g} fixed:{K}, tokens per round, formula 1"]
            for K in range(1, DEEP + 1)
        ]
        got, up, down = (
            np.array([start, *each])
            for start, each in (
                (1.0, [t.got for t in tokens]),
                (0.0, [t.high - t.expected for t in tokens]),
                (0.0, [t.expected - t.low for t in tokens]),
            )
        )
        for c in RATIOS:
            cost, best = 1 + c * np.arange(DEEP + 1), int(formulas.optimal_k(alpha, c, DEEP))
            low = ((got - up) / cost).max() - down[best] / cost[best]
            top = (got / cost).max()
            found.append(
                Check(
                    f"optimal_k: alpha={alpha:g} c={c:g}, speedup at {best}",
                    top,
                    (got / cost)[best],
                    low,
                    top,
                )
            )
    return found


def faults(trace, rounds, K) -> int:
    """Rounds that break the rules: accepted = min(drafted, run), the draft within its cap, each round behind the one before."""
    first, last = rounds.offset[:-1], rounds.offset[1:] - 1
    sequence = np.repeat(np.arange(trace.sequences), np.diff(rounds.offset))
    row, end = rounds.row, trace.offset[1:][sequence]
    cap = np.minimum(
        np.minimum(K, trace.budget[sequence] - (row - trace.offset[sequence]) - 1), trace.depth[row]
    )
    follows = np.append(row[1:], 0)
    follows[last] = trace.offset[1:]
    wrong = (
        (rounds.accepted != np.minimum(rounds.drafted, trace.run[row]))
        | (rounds.computed > cap)
        | (rounds.drafted < 0)
    )
    wrong |= np.minimum(row + rounds.accepted + 1, end) != follows
    wrong[first] |= row[first] != trace.offset[:-1]
    return int(wrong.sum())


def _replayed(trace, policy, K, seed=0):
    rounds = simulate.replay(trace, policy, seed)
    left = np.repeat(trace.offset[1:], np.diff(rounds.offset)) - rounds.row
    return rounds, np.minimum(K, left - 1)


def _law(accept, go, move=((1.0,),), start=(1.0,)):
    accept = np.asarray(accept, dtype=np.float64)
    return Law(
        accept[:, : len(go)],
        np.array(move),
        np.array(start),
        np.asarray(go, dtype=np.float64),
        ROWS,
    )


def _common(ledger, name, law, trace, rounds, caps, tables, ratios=(0.1,)):
    # What holds for every law and policy: the rules, and the exact means on texts of finite length.
    K = law.K
    ledger.same(f"{name}, rounds that break a rule", 0, faults(trace, rounds, K))
    figures = metrics.summary(rounds, trace, CostModel.from_ratio(ratios[0], trace.K))
    v_d = moments(law, tables.a)[0] / moments(law, tables.k)[0]
    ledger.ratio(f"{name}, v_d", law, tables.a, tables.k, v_d, figures.v_d, figures.drafted)
    for c in ratios:
        seconds = float(CostModel.from_ratio(c, trace.K).seconds(rounds).sum())
        ledger.speedup(f"{name}, speedup at c={c:g}", law, 1 + c * tables.k, trace.rows / seconds)
    return figures


def _by_depth(ledger, name, law, tables, caps, rounds, figures, alphas):
    for j, alpha in enumerate(alphas):
        tried, taken = ((tables.k > j) & (tables.a >= j)) * 1.0, (tables.a > j) * 1.0
        if TEXTS * moments(law, tried)[0] >= 100:  # chosen by the law, not by the outcome
            label, got = f"{name}, acceptance at depth {j + 1}", figures.accept_by_depth[j]
            ledger.ratio(
                label, law, taken, tried, alpha, got, tables.read(tried, caps, rounds), True
            )


def _against(ledger, name, law, tables, caps, rounds, x, y, expected):
    # A formula speaks of rounds that no text's end has cut: compare it on those.
    weight = tables.read(y * tables.whole, caps, rounds)
    got = tables.read(x * tables.whole, caps, rounds) / weight
    ledger.ratio(name, law, x * tables.whole, y * tables.whole, expected, got, weight, True)


def _iid(ledger, alpha, trace):
    for K in range(1, DEEP + 1):
        name, tables = f"iid: alpha={alpha:g} fixed:{K}", Tables(K)
        law = _law(np.full((1, K, 1), alpha), np.ones(K))
        rounds, caps = _replayed(trace, policies.fixed(K), K)
        figures = _common(ledger, name, law, trace, rounds, caps, tables, RATIOS)
        committed, cost = tables.a + 1, 1 + 0.1 * tables.k
        expected = formulas.expected_committed(alpha, K)
        _against(
            ledger,
            f"{name}, tokens per round, formula 1",
            law,
            tables,
            caps,
            rounds,
            committed,
            tables.one,
            expected,
        )
        expected = formulas.expected_speedup(alpha, K, 0.1)
        _against(
            ledger,
            f"{name}, speedup at c=0.1, formula 1",
            law,
            tables,
            caps,
            rounds,
            committed,
            cost,
            expected,
        )
        r_d = 1 - 1 / formulas.expected_committed(alpha, K)
        v_d = (formulas.expected_committed(alpha, K) - 1) / K
        ledger.same(
            f"{name}, Eq. 14 is formula 1", expected, formulas.eesd_speedup(v_d, r_d, 0.1), 1e-9
        )
    _by_depth(
        ledger,
        f"iid: alpha={alpha:g} fixed:{DEEP}",
        law,
        tables,
        caps,
        rounds,
        figures,
        [alpha] * DEEP,
    )


def _decaying(ledger, trace):
    for K in range(1, DEEP + 1):
        name, tables = f"decaying: fixed:{K}", Tables(K)
        law = _law(np.array(DECAYING)[None, :K, None], np.ones(K))
        rounds, caps = _replayed(trace, policies.fixed(K), K)
        figures = _common(ledger, name, law, trace, rounds, caps, tables)
        expected = formulas.depthwise_committed(DECAYING[:K])
        _against(
            ledger,
            f"{name}, tokens per round, formula 2",
            law,
            tables,
            caps,
            rounds,
            tables.a + 1,
            tables.one,
            expected,
        )
    _by_depth(ledger, f"decaying: fixed:{DEEP}", law, tables, caps, rounds, figures, DECAYING)


def _switching(ledger, trace):
    alphas, switch = (np.array(SWITCHING[key]) for key in ("alphas", "switch"))
    move, start = (
        [[1 - switch[0], switch[0]], [switch[1], 1 - switch[1]]],
        switch[::-1] / switch.sum(),
    )
    for K in SOME_K:
        name, tables = f"switching: fixed:{K}", Tables(K)
        law = _law(np.broadcast_to(alphas, (1, K, 2)), np.ones(K), move, start)
        rounds, caps = _replayed(trace, policies.fixed(K), K)
        _common(ledger, name, law, trace, rounds, caps, tables, RATIOS)
        longer = [
            moments(Law(law.accept, law.move, law.start, law.go, rows), tables.one)[0]
            for rows in (300, 400)
        ]
        expected = formulas.switching_committed(alphas, switch, K)
        ledger.same(
            f"{name}, tokens per round of long texts", expected, 100 / (longer[1] - longer[0]), 1e-4
        )


def _drifting(ledger, trace):
    chance = synthetic.drift(**DRIFTING, rows=ROWS, K=DEEP)[:, :, None]
    for K in SOME_K:
        law, tables = _law(chance, np.ones(K)), Tables(K)
        rounds, caps = _replayed(trace, policies.fixed(K), K)
        _common(ledger, f"drifting: fixed:{K}", law, trace, rounds, caps, tables, RATIOS)


def _thompson(ledger, alpha, trace, seed):
    # 1e12 pseudo-counts: what a text adds moves the posterior mean by 1e-10 at most.
    for stay in STAY:
        for K in (3, DEEP):
            name, tables = f"beta_ts standing still: alpha={alpha:g} stay={stay:g} K={K}", Tables(K)
            law = _law(np.full((1, K, 1), alpha), [1.0] + [stay] * (K - 1))
            policy = policies.beta_ts(alpha0=stay * 1e12, beta0=(1 - stay) * 1e12, K=K)
            rounds, caps = _replayed(trace, policy, K, seed)
            _common(ledger, name, law, trace, rounds, caps, tables)
            against = (
                ("drafted per round", tables.k, tables.one, formulas.geometric_drafted(stay, K)),
                (
                    "accepted per round",
                    tables.a,
                    tables.one,
                    formulas.geometric_accepted(alpha, stay, K),
                ),
                (
                    "tokens per round",
                    tables.a + 1,
                    tables.one,
                    formulas.geometric_committed(alpha, stay, K),
                ),
                (
                    "speedup at c=0.2",
                    tables.a + 1,
                    1 + 0.2 * tables.k,
                    formulas.geometric_speedup(alpha, stay, K, 0.2),
                ),
            )
            for label, x, y, expected in against:
                _against(
                    ledger,
                    f"{name}, {label}, geometric stop",
                    law,
                    tables,
                    caps,
                    rounds,
                    x,
                    y,
                    expected,
                )
