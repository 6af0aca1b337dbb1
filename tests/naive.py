"""The slow twin: everything from its definition, in plain Python; it imports nothing of the package
and shares no logic.

Traces, policies and costs are read by attribute only. Where the package computes with arrays or by
recursion on rows, this file walks tokens, enumerates outcomes or tries every schedule.
"""

import math
from fractions import Fraction
from itertools import product

WORD = 1 << 32


def philox(counter, key):
    """Philox-4x32-10 on Python integers, from the paper's definition."""
    c, k = list(counter), list(key)
    for _ in range(10):
        hi0, lo0 = divmod(0xD2511F53 * c[0], WORD)
        hi1, lo1 = divmod(0xCD9E8D57 * c[2], WORD)
        c = [hi1 ^ c[1] ^ k[0], lo1, hi0 ^ c[3] ^ k[1], lo0]
        k = [(k[0] + 0x9E3779B9) % WORD, (k[1] + 0xBB67AE85) % WORD]
    return c


def uniform(seed, sequence, round_, slot, role):
    words = philox((sequence, round_, slot // 4, role), (seed % WORD, seed // WORD))
    return (words[slot % 4] + 0.5) / WORD


class Clock:
    """Prices rounds one after the other, remembering which rows the drafter has not read."""

    def __init__(self, cost):
        self.cost, self.unread = cost, 0

    def price(self, computed, drafted, accepted):
        c = self.cost
        seconds = float(c.overhead) + float(c.draft[computed]) + float(c.verify[drafted])
        if computed == 0:
            self.unread += 1
            return seconds
        seconds += float(c.catch_up[min(self.unread, len(c.catch_up) - 1)])
        # The drafter reads its input and each draft but the last computed one, to propose the next.
        self.unread = 1 if accepted >= computed else 0
        return seconds


def replay(trace, policy, seed, cost, tables):
    """[(row, computed, drafted, accepted), ...] per sequence; tables: one 256-entry grid per
    feature of the trace.
    """
    import numpy as np

    names = [name for name, _ in trace.meta.features]
    longest = trace.meta.K if policy.K is None else policy.K
    params, state = np.array(policy.params, dtype=float), np.array(policy.state0, dtype=float)
    everything = []
    for s in range(len(trace.budget)):
        if policy.scope == "sequence":
            state = np.array(policy.state0, dtype=float)
        text_left = [int(token) for token in trace.token[trace.offset[s] : trace.offset[s + 1]]]
        row, spent, clock, rounds = int(trace.offset[s]), 0, Clock(cost), []
        while text_left:
            shown = np.full((longest, len(policy.reads)), np.nan)
            allowed = min(longest, int(trace.budget[s]) - spent - 1, int(trace.depth[row]))
            computed, submit_last = 0, True
            while True:
                u = (
                    uniform(seed, int(trace.sequence[s]), len(rounds), computed, 0)
                    if policy.random
                    else math.nan
                )
                wants_more, keeps = policy.draft_more(params, state, computed, shown, u)
                if wants_more and computed < allowed:
                    for column, name in enumerate(policy.reads):
                        f = names.index(name)
                        shown[computed, column] = tables[f][int(trace.feature[row, computed, f])]
                    computed += 1
                    continue
                submit_last = bool(wants_more or keeps)
                break
            drafted = computed if submit_last or computed == 0 else computed - 1
            accepted = 0
            while accepted < drafted and accepted < int(trace.run[row]):
                accepted += 1
            policy.observe(
                params, state, computed, drafted, accepted, shown,
                clock.price(computed, drafted, accepted)
            )  # fmt: skip
            rounds.append((row, computed, drafted, accepted))
            emitted = text_left[: accepted + 1]
            text_left = text_left[accepted + 1 :]
            row, spent = row + len(emitted), spent + len(emitted)
        everything.append(rounds)
    return everything


def seconds(rounds, cost):
    """Seconds of all rounds of one sequence."""
    clock = Clock(cost)
    return [clock.price(computed, drafted, accepted) for _, computed, drafted, accepted in rounds]


def best_time(trace, cost, s):
    """The least time of sequence s, by trying every schedule (exponential: a handful of rows
    only).
    """
    first, last = int(trace.offset[s]), int(trace.offset[s + 1])

    def rest(row, unread):
        if row >= last:
            return 0.0
        times = []
        cap = min(
            int(trace.meta.K), int(trace.budget[s]) - (row - first) - 1, int(trace.depth[row])
        )
        for computed in range(cap + 1):
            for drafted in {computed, max(computed - 1, 0)}:
                clock = Clock(cost)
                clock.unread = unread
                accepted = min(drafted, int(trace.run[row]))
                now = clock.price(computed, drafted, accepted)
                times.append(now + rest(row + accepted + 1, clock.unread))
        return min(times)

    return rest(first, 0)


def committed_distribution(alphas):
    """{committed tokens: probability} of one round, by enumerating all accept/reject outcomes of
    len(alphas) drafts.
    """
    distribution = {}
    for outcome in product((False, True), repeat=len(alphas)):
        probability = math.prod(a if hit else 1 - a for a, hit in zip(alphas, outcome))
        committed = 1
        for hit in outcome:
            if not hit:
                break
            committed += 1
        distribution[committed] = distribution.get(committed, 0.0) + probability
    return distribution


def metrics(rounds, trace, cost):
    """Totals of all sequences as a dict, counting token by token; rounds as `replay` above
    returns them.
    """
    flat = [r for sequence in rounds for r in sequence]
    K = int(trace.meta.K)
    tried, taken = [0] * K, [0] * K
    for _, _, drafted, accepted in flat:
        for depth in range(drafted):
            if accepted < depth:
                break
            tried[depth] += 1
            taken[depth] += accepted > depth
    cut = 0
    for s, sequence in enumerate(rounds):
        for row, computed, _, _ in sequence:
            left = int(trace.budget[s]) - (row - int(trace.offset[s]))
            cut += (
                computed == int(trace.depth[row])
                and int(trace.depth[row]) < K
                and int(trace.depth[row]) < left - 1
            )
    time = sum(sum(seconds(sequence, cost)) for sequence in rounds)
    paid, drafted = sum(max(r[1], r[2]) for r in flat), sum(r[2] for r in flat)
    accepted, tokens = sum(r[3] for r in flat), len(trace.token)
    return {
        "rounds": len(flat), "tokens": tokens, "computed": sum(r[1] for r in flat),
        "drafted": drafted, "accepted": accepted, "v_d": accepted / paid if paid else math.nan,
        "acceptance_rate": accepted / drafted if drafted else math.nan, "r_d": accepted / tokens,
        "committed_per_round": tokens / len(flat),
        "accept_by_depth": [y / n if n else math.nan for y, n in zip(taken, tried)],
        "seconds": time, "speedup": tokens * cost.baseline / time, "cut_share": cut / len(flat),
    }  # fmt: skip


def best_rate(trace, cost, s, row, unread):
    """The shortest draft of most committed tokens per second of one round, knowing the future;
    exact in fractions.
    """
    best, choice = None, 0
    spent = row - int(trace.offset[s])
    for k in range(
        min(int(trace.meta.K), int(trace.budget[s]) - spent - 1, int(trace.depth[row])) + 1
    ):
        clock = Clock(cost)
        clock.unread = unread
        tokens = min(min(k, int(trace.run[row])) + 1, int(trace.offset[s + 1]) - row)
        rate = Fraction(tokens) / Fraction(clock.price(k, k, 0))
        if best is None or rate > best:
            best, choice = rate, k
    return choice


def beta_counts(reading, k, a):
    """(successes, failures) that a round of k drafted and a accepted tokens adds, token by
    token.
    """
    seen = a + 1 if a < k else k  # tokens that the target verified
    if reading == "acceptance":
        return sum(1 for j in range(1, seen + 1) if j <= a), sum(
            1 for j in range(1, seen + 1) if j > a
        )
    if reading == "censored":
        # Going on after token j was right if token j + 1 was accepted, wrong if it was rejected; j
        # itself must be accepted.
        went_on = [j for j in range(1, k) if j <= a and j + 1 <= seen]
        return sum(1 for j in went_on if j + 1 <= a), sum(1 for j in went_on if j + 1 > a)
    verified = a if reading == "printed" else seen
    successes, trials = max(verified - 1, 0), min(verified + 1, k)
    return successes, trials - successes


def theta_hat(reading, theta0, outcomes):
    """Eq. 8's recursion over rounds (k, a), one pseudo-observation theta0, in whatever numbers
    theta0 is.
    """
    theta, t = theta0, 0
    for k, a in outcomes:
        step = {"draft_share": a + 1, "validated": min(a + 1, k), "literal": a}[reading]
        t += step
        theta = (theta * (t - step + 1) + a) / (t + 1)
    return theta


def clipped_normal(mean, sigma, steps=20001):
    """E[clip(N(mean, sigma^2), 0, 1)] = integral over 0..1 of P(X > x), by Simpson's rule."""
    total = 0.0
    for i in range(steps):
        weight = 1 if i in (0, steps - 1) else 4 if i % 2 else 2
        total += weight * 0.5 * math.erfc((i / (steps - 1) - mean) / (sigma * math.sqrt(2)))
    return total / (3 * (steps - 1))


def draft_length_moments(rounds, K, acceptance, go, learn, state, ignore=0.0):
    """[(mean, variance) of the draft length in round 1, 2, ...] by enumerating every state a policy
    can be in.

    go(state): the probability to continue after each token (the first one is always drafted);
    learn(state, k, a): the next state, hashable. Each draft token is accepted with the same
    probability, given that those before it were. States of probability up to `ignore` are left out.
    """
    distribution, moments = {state: 1.0}, []
    for _ in range(rounds):
        distribution = {
            state: probability
            for state, probability in distribution.items()
            if probability > ignore
        }
        after, first, second = {}, 0.0, 0.0
        for state, probability in distribution.items():
            s = go(state)
            for k in range(1, K + 1):
                length = probability * s ** (k - 1) * (1 - s if k < K else 1)
                first, second = first + length * k, second + length * k * k
                for a in range(k + 1):
                    outcome = length * acceptance**a * (1 - acceptance if a < k else 1)
                    if outcome > 0:
                        new = learn(state, k, a)
                        after[new] = after.get(new, 0.0) + outcome
        distribution = after
        moments.append((first, second - first * first))
    return moments


def geometric_distribution(alpha, stay, K):
    """{(drafted, accepted): probability} of one round: the first token always drafted, after
    each one draw for continuing, up to K.
    """
    distribution = {}
    for answers in product((False, True), repeat=K - 1):
        drafted = 1
        for go_on in answers:
            if not go_on:
                break
            drafted += 1
        probability = math.prod(stay if go_on else 1 - stay for go_on in answers)
        for committed, p in committed_distribution([alpha] * drafted).items():
            key = drafted, committed - 1
            distribution[key] = distribution.get(key, 0.0) + probability * p
    return distribution
