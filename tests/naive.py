"""The slow twin: everything from its definition, in plain Python; it imports nothing of the package and shares no logic.

Traces, policies and costs are read by attribute only. Where the package computes with arrays or by recursion on rows,
this file walks tokens, enumerates outcomes or tries every schedule.
"""

import math
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
    """[(row, computed, drafted, accepted), ...] per sequence; tables: one 256-entry grid per feature of the trace."""
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
                u = uniform(seed, int(trace.sequence[s]), len(rounds), computed, 0) if policy.random else math.nan
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
            policy.observe(params, state, computed, drafted, accepted, shown, clock.price(computed, drafted, accepted))
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
    """The least time of sequence s, by trying every schedule (exponential: a handful of rows only)."""
    first, last = int(trace.offset[s]), int(trace.offset[s + 1])

    def rest(row, unread):
        if row >= last:
            return 0.0
        times = []
        cap = min(int(trace.meta.K), int(trace.budget[s]) - (row - first) - 1, int(trace.depth[row]))
        for computed in range(cap + 1):
            for drafted in {computed, max(computed - 1, 0)}:
                clock = Clock(cost)
                clock.unread = unread
                accepted = min(drafted, int(trace.run[row]))
                now = clock.price(computed, drafted, accepted)
                times.append(now + rest(row + accepted + 1, clock.unread))
        return min(times)

    return rest(first, 0)


def committed_law(alphas):
    """{committed tokens: probability} of one round, by enumerating all accept/reject outcomes of len(alphas) drafts."""
    law = {}
    for outcome in product((False, True), repeat=len(alphas)):
        chance = math.prod(a if hit else 1 - a for a, hit in zip(alphas, outcome))
        committed = 1
        for hit in outcome:
            if not hit:
                break
            committed += 1
        law[committed] = law.get(committed, 0.0) + chance
    return law


def metrics(rounds, trace, cost):
    """Totals of all sequences as a dict, counting token by token; rounds as `replay` above returns them."""
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
            cut += computed == int(trace.depth[row]) and int(trace.depth[row]) < K and int(trace.depth[row]) < left - 1
    time = sum(sum(seconds(sequence, cost)) for sequence in rounds)
    drafted, accepted, tokens = sum(r[2] for r in flat), sum(r[3] for r in flat), len(trace.token)
    return {
        "rounds": len(flat),
        "tokens": tokens,
        "computed": sum(r[1] for r in flat),
        "drafted": drafted,
        "accepted": accepted,
        "v_d": accepted / drafted if drafted else math.nan,
        "r_d": accepted / tokens,
        "committed_per_round": tokens / len(flat),
        "accept_by_depth": [y / n if n else math.nan for y, n in zip(taken, tried)],
        "seconds": time,
        "speedup": tokens * cost.baseline / time,
        "cut_share": cut / len(flat),
    }
