"""Slow twins of draft-length rules, from their definitions: lists and fractions; and their exam.

The twins import nothing of the package's policies and share no logic with them. `play` walks a
recording with one, `same` compares a replay with it.
"""

import math
from dataclasses import replace
from fractions import Fraction

import naive
import numpy as np
from hypothesis import strategies as st
from strategies import traces

from simspec import replay, synthetic
from simspec.trace.quantization import TABLES

KINDS = ("iid", "drifting", "jumps", "all", "none", "cut")
SEED = st.integers(0, 2**64 - 1)
SCOPE = st.sampled_from(["sequence", "stream"])
LONG = traces(max_rows=60, max_sequences=3, optional=False)
LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True).map(sorted)
# No sum of a few shares meets one of these: a tie would hang on rounding.
THRESHOLD = st.integers(0, 1009).map(lambda n: (n + 0.123) / 1011)


def play(trace, policy, make, cost, seed, columns=()):
    """[[(row, drafted, accepted), ...], ...]: the rounds of the rule that make() returns.

    columns: (feature's column, its 256 values) of each feature that the rule reads.
    """
    everything, rule = [], None
    for s in range(len(trace.budget)):
        if rule is None or policy.scope == "sequence":
            rule = make()
        row, end = int(trace.offset[s]), int(trace.offset[s + 1])
        left, clock, rounds = int(trace.budget[s]), naive.Clock(cost), []
        while row < end:
            u = naive.uniform(seed, int(trace.sequence[s]), len(rounds), 0, 0)
            rule.begin(u)
            shown = []
            while len(shown) < min(left - 1, int(trace.depth[row])) and rule.more(shown):
                j = len(shown)
                shown.append([values[int(trace.feature[row, j, f])] for f, values in columns])
            accepted = min(len(shown), int(trace.run[row]))
            seconds = clock.price(len(shown), len(shown), accepted)
            rule.learn(shown, accepted, seconds)
            rounds.append((row, len(shown), accepted))
            row, left = row + accepted + 1, left - accepted - 1
        everything.append(rounds)
    return everything


def seconds_of(cost, k):
    return float(cost.overhead) + float(cost.draft[k]) + float(cost.verify[k])


class Lengths:
    """A rule that fixes the length before a round."""

    def begin(self, u):
        pass

    def more(self, shown):
        return len(shown) < self.k


class EmaTiers(Lengths):
    def __init__(self, tiers, start, weight, interval, warmup, down, up):
        self.tiers, self.k, self.weight = tiers, start, weight
        self.interval, self.warmup, self.down, self.up = interval, warmup, down, up
        self.average, self.rounds = start - 1.0, 0

    def learn(self, shown, accepted, seconds):
        if self.k != 0:
            self.average = (1 - self.weight) * self.average + self.weight * accepted
        self.rounds += 1
        if self.rounds in range(self.warmup + self.interval, self.rounds + 1, self.interval):
            self.k = self.moved()

    def moved(self):
        lower = [tier for tier in self.tiers if tier < self.k]
        higher = [tier for tier in self.tiers if tier > self.k]
        if self.k == 0:
            if higher and self.average < 0:
                self.average = higher[0] - 1.0
            return higher[0] if higher else 0
        k = self.k
        for tier in reversed(lower):
            bar = 0.5 if tier == 0 else tier - 0.5
            if self.average > bar + self.down:
                break
            k = tier
        if k != self.k:
            return k
        for tier in higher:
            if self.average <= k - 0.5 + self.up:
                break
            k = tier
        return k


class Goodput(Lengths):
    def __init__(self, prices, weight, prior, window, cooldown, shortest):
        self.prices, self.weight, self.window = prices, weight, window
        self.cooldown, self.shortest = cooldown, shortest
        self.k = self.last_jump = len(prices) - 1
        self.rates, self.waiting = [prior] * self.k, 0
        self.recent, self.learned = [], False

    def begin(self, u):
        if not self.learned:
            return
        if self.waiting:
            self.waiting, self.k = self.waiting - 1, self.last_jump
            return
        scores = {0: 1.0}
        clipped = [max(0.001, min(0.999, rate)) for rate in self.rates]
        for k in range(1, len(self.prices)):
            tokens, chain = 1.0, 1.0
            for rate in clipped[:k]:
                chain = chain * rate
                tokens = tokens + chain
            if k >= self.shortest:
                scores[k] = tokens / self.prices[k]
        longest = max(k for k, score in scores.items() if score == max(scores.values()))
        self.k = longest or self.shortest
        if abs(self.k - self.last_jump) > 1:
            self.waiting, self.last_jump = self.cooldown, self.k

    def learn(self, shown, accepted, seconds):
        self.recent += [(len(shown), accepted)] if shown else []
        if len(self.recent) < self.window:
            return
        for j in range(len(self.rates)):
            reached = [a for k, a in self.recent if k > j and a >= j]
            if reached:
                share = sum(a > j for a in reached) / len(reached)
                self.rates[j] += self.weight * (share - self.rates[j])
        self.recent, self.learned = [], True


def reward(cost, arms, accepted, seconds):
    """Throughput of a round over the largest that an arm can have, at most 1."""
    largest = max((k + 1) / seconds_of(cost, k) for k in arms)
    return min(1.0, (accepted + 1) / seconds / largest)


class Ucb(Lengths):
    def __init__(self, released, arms, exploration, cost):
        self.released, self.arms, self.exploration, self.cost = released, arms, exploration, cost
        self.history = []

    def begin(self, u):
        n, t = len(self.arms), len(self.history)
        rewards = {k: [r for arm, r in self.history if arm == k] for k in self.arms}
        untried = [k for k in self.arms if not rewards[k]]
        if self.released and t < 2 * n - 1:
            self.k = self.arms[t % n]
        elif untried:
            self.k = untried[0]
        else:
            bounds = []
            for k in self.arms:
                pulls = t if self.released else len(rewards[k])
                weight = 6 if self.released else self.exploration
                bounds.append(
                    math.fsum(rewards[k]) / len(rewards[k])
                    + math.sqrt(weight * math.log(t) / pulls)
                )
            # A difference of rounding is a tie, and ties go to the first.
            best = max(bounds)
            self.k = next(k for k, bound in zip(self.arms, bounds) if bound > best - 1e-12)

    def learn(self, shown, accepted, seconds):
        self.history.append((self.k, reward(self.cost, self.arms, accepted, seconds)))


class Exp3(Lengths):
    def __init__(self, arms, rate, cost):
        self.arms, self.rate, self.cost = arms, rate, cost
        self.losses, self.t = [0.0] * len(arms), 1

    def probabilities(self):
        n = len(self.arms)
        eta = self.rate * math.sqrt(math.log(n) / (n * self.t))
        weights = [math.exp(-eta * (loss - min(self.losses))) for loss in self.losses]
        return [weight / math.fsum(weights) for weight in weights]

    def begin(self, u):
        self.chances = self.probabilities()
        self.arm = next(
            i for i in range(len(self.arms)) if u < math.fsum(self.chances[: i + 1]) + 1e-15
        )
        self.k = self.arms[self.arm]

    def learn(self, shown, accepted, seconds):
        loss = 1 - reward(self.cost, self.arms, accepted, seconds)
        self.losses[self.arm] += loss / self.chances[self.arm]
        self.t += 1


class SpecDecPP:
    """released: the last token is not judged yet when the next one is decided on."""

    def __init__(self, threshold, released, weights, shortest, longest):
        self.threshold, self.released, self.weights = threshold, released, weights
        self.shortest, self.longest = shortest, longest

    def begin(self, u):
        pass

    def learn(self, shown, accepted, seconds):
        pass

    def accepted(self, depth, values):
        if self.weights is None:
            return values[0]
        bias, by_confidence, by_entropy, by_depth = self.weights
        confidence, entropy = values
        odds = math.log(confidence / (1 - confidence)) if 0 < confidence < 1 else None
        if odds is None:
            odds = 12.0 if confidence >= 1 else -8.0
        odds = max(-8.0, min(12.0, odds))
        z = bias + by_confidence * odds + by_entropy * entropy + by_depth * min(depth, 10)
        return 1 / (1 + math.exp(-z))

    def more(self, shown):
        if len(shown) < self.shortest:
            return True
        if len(shown) >= self.longest:
            return False
        judged = shown[: len(shown) - 1] if self.released else shown
        all_accepted = math.prod(self.accepted(i, values) for i, values in enumerate(judged))
        return 1 - all_accepted <= self.threshold


def stream(kind, rows=3000, K=12, seed=0):
    """A recording of one long sequence; `cut`: many drafts are shorter than a rule meant."""
    rng, at = np.random.default_rng(seed), np.arange(rows)
    alpha = {
        "iid": np.full(rows, 0.75), "drifting": 0.97 - 0.9 * at / rows,
        "jumps": np.where(at // 120 % 2, 0.1, 0.96), "all": np.ones(rows), "none": np.zeros(rows),
        "cut": np.full(rows, 0.9),
    }[kind]  # fmt: skip
    misses = rng.random((rows, K)) >= alpha[:, None]
    depth = rng.integers(0, K + 1, rows) if kind == "cut" else np.full(rows, K)
    run = np.where(misses.any(1), misses.argmax(1), K)
    run = np.minimum(np.minimum(run, depth), rows - at)
    trace = synthetic.iid(0.5, 1, rows, K)
    parts = {"rank": None} if trace.rank is not None else {}
    return replace(trace, depth=depth.astype(np.uint8), run=run.astype(np.uint8), **parts)


class LaggingEmaTiers(EmaTiers):
    """SGLang's slot; with `lag`, the tier of a round was decided one round earlier."""

    def __init__(self, tiers, start, ceiling, lag, *rest):
        super().__init__(tiers, start, *rest)
        self.ceiling, self.decided, self.lag = ceiling, start, lag

    def learn(self, shown, accepted, seconds):
        before = self.k = self.decided
        super().learn(shown, accepted, seconds)
        self.decided = self.k
        if self.lag:
            self.k = before

    def moved(self):
        before = self.k
        target = super().moved()
        if before == 0 or self.ceiling == 0 or target > before:
            return target
        most = max(1, math.ceil(self.average * self.ceiling))
        allowed = [tier for tier in self.tiers if tier <= min(most, target)]
        return max(allowed, default=min(self.tiers))


class TwoThresholds(Lengths):
    def __init__(self, low, high, attempts, start, lo, hi, K):
        self.low, self.high, self.attempts = Fraction(str(low)), Fraction(str(high)), attempts
        self.k, self.lo, self.hi, self.drafts = start, lo, min(hi, K), []

    def learn(self, shown, accepted, seconds):
        self.drafts += [(len(shown), accepted)] if shown else []
        if len(self.drafts) < self.attempts:
            return
        share = Fraction(sum(a for _, a in self.drafts), sum(d for d, _ in self.drafts))
        if share > self.high and self.k < self.hi:
            self.k += 1
        elif share < self.low and self.k > self.lo:
            self.k -= 1
        self.drafts = []


def text(lengths):
    return "/".join(map(str, lengths))


def same(trace, policy, make_twin, cost, seed=0, features=()):
    """Asserts that a replay makes the rounds of the twin."""
    names = [name for name, _ in trace.meta.features]
    grids = dict(trace.meta.features)
    columns = [(names.index(name), TABLES[grids[name]]) for name in features]
    rounds = replay(trace, policy, seed, cost)
    flat = list(zip(rounds.row.tolist(), rounds.drafted.tolist(), rounds.accepted.tolist()))
    walked = [flat[a:b] for a, b in zip(rounds.offset[:-1], rounds.offset[1:])]
    assert walked == play(trace, policy, make_twin, cost, seed, columns)


def learn(policy, state, accepted, drafted, cost=1.0, K=16):
    """The state after a round, by the policy's own function."""
    shown = np.full((K, len(policy.reads)), np.nan)
    state = np.array(state, dtype=float)
    policy.compiled()[1](np.array(policy.params), state, drafted, drafted, accepted, shown, cost)
    return state


def state_after(policy, state, rounds):
    """The state after these rounds (k, a)."""
    for k, a in rounds:
        state = learn(policy, state, a, k)
    return np.array(state, dtype=float)


def threshold(policy, state, shown=()):
    """The probability to continue: the u at which the compiled answer changes, by bisection down
    to neighbouring floats.
    """
    features = np.full((16, 2), np.nan)
    features[0, : len(shown)] = shown
    params, state = np.array(policy.params), np.array(state, dtype=float)
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        go, _ = policy.compiled()[0](params, state, 1, features, middle)
        low, high = (middle, high) if go else (low, middle)
    return high


def goes_on(policy, shown, slot=1):
    """(go, keep) behind tokens of which the last shows this feature."""
    features = np.full((16, 1), np.nan)
    features[slot - 1, 0] = shown
    go, keep = policy.compiled()[0](*policy.start(), slot, features, math.nan)
    return bool(go), bool(keep)


def drafts(policy, outcomes, K=16):
    """Draft lengths before each round of `outcomes` (accepted tokens) and after the last."""
    more, _ = policy.compiled()
    params, state = policy.start()
    lengths = []
    for accepted in [*outcomes, None]:
        slot = 0
        while slot < K and more(params, state, slot, np.full((K, 0), np.nan), 0.5)[0]:
            slot += 1
        lengths.append(slot)
        if accepted is not None:
            state = learn(policy, state, min(accepted, slot), slot, K=K)
    return lengths
