"""Slow twins of rules that engines propose, from their definitions, and streams to play them on.

They import nothing of the package's policies and share no logic with them; see `field_rules.play`.
"""

import math
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import numpy as np
from field_rules import EmaTiers, Lengths, seconds_of

from simspec import synthetic

KINDS = ("iid", "drifting", "jumps", "all", "none", "cut")


def stream(kind, rows=3000, K=12, seed=0):
    """A recording of one long sequence; `cut`: many drafts are shorter than a rule meant."""
    rng, at = np.random.default_rng(seed), np.arange(rows)
    alpha = {
        "iid": np.full(rows, 0.75),
        "drifting": 0.97 - 0.9 * at / rows,
        "jumps": np.where(at // 120 % 2, 0.1, 0.96),
        "all": np.ones(rows),
        "none": np.zeros(rows),
        "cut": np.full(rows, 0.9),
    }[kind]
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


class MtpAdaptive(Lengths):
    def __init__(self, variant, lo, hi):
        self.variant, self.lo, self.hi = variant, lo, hi
        self.n = self.k = min(lo, hi)
        self.climb = self.drop = 0
        self.b = self.D(self.n)
        table = {1: 2, 2: 4, 3: 6, 4: 5, 5: 4, 6: 3}
        if variant == "single":
            table = {1: 2, 2: 5, 3: 10, 4: 5, 5: 4, 6: 3}
        self.C = defaultdict(lambda: 2, table)

    def D(self, n):
        return max(5 * n, 20) if self.variant == "single" else max(20, 4 * n)

    def learn(self, shown, accepted, seconds):
        d, a, n = len(shown), accepted, self.n
        if d:
            {"streak": self.streak, "single": self.one}.get(self.variant, self.credit)(d, a, n)
        self.k = self.n

    def streak(self, d, a, n):
        if a == d:
            self.drop = 0
            if n < self.hi:
                self.climb += 1
                if self.climb >= self.C[n]:
                    self.n, self.climb = n + 1, 0
        else:
            self.climb = 0
            if n > self.lo:
                self.drop += d - a
                if self.drop >= max(5 * n, 20):
                    self.n, self.drop = n - 1, 0

    def one(self, d, a, n):
        self.b += -int(Fraction(n + 1 - a, 2)) if a == d < n else a + 1 - n
        self.settle(n, self.D(n) + self.C[n])

    def credit(self, d, a, n):
        self.b += max(1, a - 1) if a >= n else a - n
        self.settle(n, self.D(n) + 20)

    def settle(self, n, top):
        carries = self.variant == "carry"
        if self.b >= top and n < self.hi:
            over = min(self.b - top, n) if carries else 0
            self.n, self.b = n + 1, self.D(n + 1) + over
        elif self.b >= top:
            self.b = top
        elif self.b <= 0 and n > self.lo:
            under = self.b - self.D(n) + 20 if carries else 0
            self.n, self.b = n - 1, self.D(n - 1) + under
        elif self.b <= 0:
            self.b = 0


class Staircase(Lengths):
    def __init__(self, lo, hi):
        self.lo, self.hi, self.k, self.row = lo, hi, min(lo, hi), 0
        self.C = defaultdict(lambda: 2, {1: 2, 2: 4, 3: 10, 4: 6, 5: 4, 6: 3})

    def learn(self, shown, accepted, seconds):
        d, n = len(shown), self.k
        if d == 0:
            return
        if d < n:
            self.row = 0
        elif accepted < d:
            widths = ((4, 1), (8, 2), (16, 4), (32, 8), (math.inf, 16))
            down = next(w for most, w in widths if n <= most)
            self.row, self.k = 0, max(n - down, min(self.lo, n))
        else:
            self.row += 1
            if n >= self.hi:
                self.row = 0
            elif self.row >= self.C[n]:
                widths = ((4, 1), (8, 2), (16, 4), (32, 8), (math.inf, self.hi))
                up = next(w for below, w in widths if n < below)
                self.row, self.k = 0, min(n + up, self.hi)


class RollingWindow(Lengths):
    def __init__(self, threshold, window, bias, cooldown, lo, hi):
        self.threshold, self.bias, self.cooldown, self.lo, self.hi = (
            threshold, bias, cooldown, lo, hi,
        )  # fmt: skip
        self.positive, self.negative, self.history = window
        self.k = min(lo, hi)
        self.reset()

    def reset(self):
        self.h, self.window, self.good, self.bad = 0, [], 0, 0

    def learn(self, shown, accepted, seconds):
        n = self.k
        if not shown:
            return
        if self.h > -1:
            self.h += n
            if self.h >= self.cooldown:
                self.h = -1
        self.window = [*self.window, accepted >= n - self.bias][-self.history :]
        if self.window.count(True) >= self.positive:
            self.good, self.bad = min(self.good + 1, self.threshold), 0
        elif self.window.count(False) >= self.negative:
            self.good, self.bad = 0, min(self.bad + 1, self.threshold)
        else:
            self.good = self.bad = 0
        if self.h == -1:
            if self.good == self.threshold:
                if n < self.hi:
                    self.k = n + 1
                    self.reset()
            elif self.bad == self.threshold and n > self.lo:
                self.k = n - 1
                self.reset()


class AcceptanceAdaptiveK(Lengths):
    def __init__(self, threshold, window, probe, hysteresis, lo, hi):
        self.threshold, self.window, self.probe = threshold, window, probe
        self.hysteresis, self.lo, self.hi = hysteresis, min(lo, hi), hi
        self.seen, self.rate, self.on = [0] * hi, [0.0] * hi, [True] * hi
        self.drafts = self.steps = 0

    def begin(self, u):
        self.steps += 1
        self.k = self.hi
        if self.drafts < self.window or (self.probe and self.steps % self.probe == 0):
            return
        self.k = 0
        for j in range(self.hi):
            if self.seen[j]:
                bar = self.threshold if self.on[j] else self.threshold + self.hysteresis
                self.on[j] = self.rate[j] >= bar
            if not self.on[j]:
                break
            self.k += 1
        self.k = max(self.k, self.lo)

    def learn(self, shown, accepted, seconds):
        self.drafts += bool(shown)
        for j in range(len(shown)):
            hit, n = float(j < accepted), self.seen[j]
            if n < self.window:
                self.rate[j] = (self.rate[j] * n + hit) / (n + 1)
            else:
                self.rate[j] += (1.0 / self.window) * (hit - self.rate[j])
            self.seen[j] += 1


class CensoredEma(Lengths):
    def __init__(self, lo, hi):
        self.lo, self.hi, self.ema = lo, hi, np.float32(2)

    def begin(self, u):
        whole = Fraction(float(self.ema))
        rounded = math.floor(whole) + (whole - math.floor(whole) >= Fraction(1, 2))
        self.k = max(self.lo, min(self.hi, rounded))
        self.ema = min(self.ema, np.float32(self.hi))

    def learn(self, shown, accepted, seconds):
        if not shown:
            return
        if accepted >= self.k:
            self.ema = np.float32(self.ema + np.float32(1))
        else:
            kept = np.float32(np.float32(0.75) * self.ema)
            self.ema = np.float32(kept + np.float32(0.25 * accepted))


class Cascade(Lengths):
    """Utilities as fractions: costs of the streams are exact in binary."""

    def __init__(self, lengths, start, test, hold, cost):
        self.order = [start, *(k for k in lengths if k != start)]
        self.test, self.hold = test, hold
        self.plain = Fraction(seconds_of(cost, 0))
        self.plan = self.phases()
        self.k, self.left = next(self.plan)
        self.outcomes = []

    def phases(self):
        """(length, rounds) of each phase; reads `outcomes` of the phase before."""
        while True:
            utilities = []
            for k in self.order:
                yield k, self.test
                tokens = sum(a + 1 for a, _ in self.outcomes)
                seconds = sum(Fraction(s) for _, s in self.outcomes)
                utilities.append(tokens * self.plain / seconds)
                if utilities[0] < 1:
                    break
            best = self.order[utilities.index(max(utilities))]
            yield (0 if utilities[0] < 1 else best), self.hold

    def learn(self, shown, accepted, seconds):
        self.outcomes.append((accepted, seconds))
        self.left -= 1
        if self.left == 0:
            self.k, self.left = next(self.plan)
            self.outcomes = []


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


class BlockPrefix(Lengths):
    def __init__(self, lengths, weight, headroom):
        self.lengths, self.weight, self.headroom = lengths, weight, headroom
        self.k, self.ema = lengths[-1], lengths[-1] - headroom

    def learn(self, shown, accepted, seconds):
        if shown:
            self.ema = (1 - self.weight) * self.ema + self.weight * accepted
            enough = [k for k in self.lengths if k >= self.ema + self.headroom]
            self.k = enough[0] if enough else self.lengths[-1]


class PausingKillSwitch(Lengths):
    def __init__(self, k, window, threshold, pause):
        self.drafts, self.window, self.threshold, self.pause = k, window, threshold, pause
        self.k, self.shares, self.rest = k, [], 0

    def learn(self, shown, accepted, seconds):
        if self.rest:
            self.rest -= 1
        elif shown:
            self.shares.append(Fraction(accepted, len(shown)))
            last = self.shares[-self.window :]
            if len(last) == self.window and sum(last) / self.window < Fraction(self.threshold):
                self.rest, self.shares = self.pause, []
        self.k = 0 if self.rest else self.drafts
