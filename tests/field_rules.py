"""Slow twins of the field's draft-length rules, from their definitions: lists and fractions.

They import nothing of the package and share no logic with it. `play` walks a recording with one.
"""

import math
from fractions import Fraction

import naive


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


class ThroughputAware(Lengths):
    def __init__(self, geometric, lengths, start, window, interval, cost):
        self.geometric, self.lengths, self.k = geometric, lengths, start
        self.window, self.interval, self.cost = window, interval, cost
        self.seen, self.rounds = [[] for _ in range(max(lengths))], 0

    def learn(self, shown, accepted, seconds):
        for j in range(len(shown)):
            self.seen[j].append(j < accepted)
        self.rounds += 1
        if self.rounds % self.interval or any(
            len(self.seen[j]) < self.window for j in range(self.k)
        ):
            return
        rates = []
        for j in range(max(self.lengths)):
            last = self.seen[j][-self.window :]
            if last:
                rates.append(sum(last) / len(last))
            elif j == 1:
                rates.append(rates[0] * rates[0] if self.geometric else rates[0])
            elif rates[0] <= 0:
                rates.append(0.0)
            else:
                rates.append(
                    min(rates[-1], rates[-1] * (rates[-1] / rates[0]) ** (1 / (len(rates) - 1)))
                )
        scores = []
        for k in self.lengths:
            scores.append((1.0 + sum(rates[:k], 0.0)) / seconds_of(self.cost, k))
        best = self.lengths[scores.index(max(scores))]
        if best < self.k:
            for j in range(best, max(self.lengths)):
                self.seen[j] = []
        self.k = best


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


class KillSwitch(Lengths):
    def __init__(self, k, window, threshold):
        self.k, self.window, self.threshold, self.shares = k, window, threshold, []

    def learn(self, shown, accepted, seconds):
        if not shown:
            return
        self.shares.append(Fraction(accepted, len(shown)))
        last = self.shares[-self.window :]
        if len(last) == self.window and sum(last) / self.window < Fraction(self.threshold):
            self.k = 0


class InARow(Lengths):
    def __init__(self, n, shortest, longest, bias):
        self.n, self.shortest, self.longest, self.bias = n, shortest, longest, bias
        self.k, self.streak = shortest, []

    def learn(self, shown, accepted, seconds):
        success = accepted >= self.k - self.bias
        self.streak = [*self.streak, success] if success in self.streak else [success]
        if len(self.streak) == self.n:
            self.streak = []
            if success and self.k < self.longest:
                self.k += 1
            elif not success and self.k > self.shortest:
                self.k -= 1


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


class AdaptiveConfidence:
    def __init__(self, threshold, weight, samples):
        self.threshold, self.weight, self.samples = threshold, weight, samples
        self.history = []

    def begin(self, u):
        pass

    def more(self, shown):
        return not shown or shown[-1][0] >= self.threshold

    def learn(self, shown, accepted, seconds):
        self.history += [(q[0], True) for q in shown[:accepted]]
        self.history += [(q[0], False) for q in shown[accepted : accepted + 1]]
        right = [q for q, match in self.history if match]
        wrong = [q for q, match in self.history if not match]
        if len(self.history) <= self.samples or not right or not wrong:
            return
        losses = {}
        for t in {q for q, _ in self.history}:
            false_positives = sum(q >= t for q in wrong) / len(wrong)
            true_positives = sum(q >= t for q in right) / len(right)
            losses[t] = false_positives + self.weight * (1.0 - true_positives)
        self.threshold = max(t for t in losses if losses[t] == min(losses.values()))


class TapOut:
    def __init__(self, confidence, exploration, blend, K):
        self.rules = [
            lambda q, H: q >= confidence,
            lambda q, H: math.sqrt(0.15 * H) <= 0.3,
            lambda q, H: 1 - math.sqrt(0.2 * H) >= self.level,
        ]
        self.exploration, self.blend, self.K = exploration, blend, K
        self.level, self.average, self.history = 0.8, 0.0, []

    def begin(self, u):
        bounds = []
        for i in range(3):
            rewards = [r for rule, r in self.history if rule == i]
            bonus = self.exploration * math.log(max(len(self.history), 1))
            bounds.append(
                math.fsum(rewards) / len(rewards) + math.sqrt(bonus / len(rewards))
                if rewards
                else math.inf
            )
        self.rule = next(i for i in range(3) if bounds[i] >= max(bounds) - 1e-12)

    def more(self, shown):
        return not shown or self.rules[self.rule](*shown[-1])

    def learn(self, shown, accepted, seconds):
        if not shown:
            return
        share = accepted / len(shown)
        if self.rule == 2:
            self.average = (self.average + share) / 2
            step = 0.01 if self.average < 0.9 else -0.01 if len(shown) < self.K else 0.0
            self.level = 0.9 * self.level + 0.1 * (self.level + step)
        self.history.append((self.rule, self.blend * accepted / self.K + (1 - self.blend) * share))


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
