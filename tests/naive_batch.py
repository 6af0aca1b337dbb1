"""The slow twin of lock steps: slots walked one round at a time, with plain lists."""

from math import exp, log, log1p
from struct import pack, unpack


def slots(counts, batch):
    """[slots][(sequence, its round's number), ...] of sequences with these many rounds."""
    sequences = len(counts)
    orders = [
        [(i * sequences // batch + n) % sequences for n in range(sequences)] for i in range(batch)
    ]
    return [[(s, r) for s in order for r in range(counts[s])] for order in orders]


def price(steps_of, tokens, catch_up):
    """Seconds of one step, from its [(computed, drafted, backlog, context)]."""
    longest = max(computed for computed, _, _, _ in steps_of)
    seconds = tokens.overhead + tokens.fixed
    for computed, drafted, backlog, context in steps_of:
        seconds += tokens.kv * context
        seconds += tokens.token * (drafted + 1)
        if computed:
            seconds += catch_up[min(backlog, len(catch_up) - 1)]
    if longest:
        seconds += tokens.draft_round
    for j in range(1, longest + 1):
        rows = [item for item in steps_of if item[0] >= j]
        seconds += tokens.draft + tokens.draft_row * (len(rows) - 1)
        seconds += tokens.draft_kv * sum(context for _, _, _, context in rows)
    return seconds


def lock_step(rounds, prompts, tokens, catch_up, batch, context=None):
    """(seconds of each step, seconds of each sequence) of rounds [[(row, computed, drafted,
    accepted)]], rows counted from the sequence's start.
    """
    described = []
    for s, of_sequence in enumerate(rounds):
        backlog, facts = 0, []
        for row, computed, drafted, accepted in of_sequence:
            cached = prompts[s] + row if context is None else context
            facts.append((computed, drafted, backlog, cached))
            if computed == 0:
                backlog += 1
            else:
                backlog = 1 if accepted == computed else 0
        described.append(facts)
    times, shares = [], [0.0] * len(rounds)
    for now in zip(*slots([len(facts) for facts in described], batch)):
        doing = [described[s][r] for s, r in now]
        seconds = price(doing, tokens, catch_up)
        times.append(seconds)
        plain = price([(0, 0, 0, item[3]) for item in doing], tokens, [0.0])
        total = sum(item[0] for item in doing)
        for (s, _), (computed, *_) in zip(now, doing):
            part = computed / total if total else 1 / batch
            shares[s] += plain / batch + (seconds - plain) * part
    return times, shares


def batch_rounds(texts, K, batch, choose):
    """([plays][(row, computed, drafted, accepted)], sequence of each play, steps) of one rule.

    texts: [(budget, [(depth, run, [confidence])])] a sequence; choose(step) -> tokens to verify of
    each (slot, new, computed, confidences), and is told the outcome by step["accepted"]. Slots that
    are ready go on until all are; those plays are left out. steps: [(rows)] as lists of (sequence,
    row, computed, drafted), one entry a step.
    """
    sequences, steps, finished = len(texts), [], []
    orders = [
        [(i * sequences // batch + n) % sequences for n in range(sequences)] for i in range(batch)
    ]
    lanes = [{"n": 0, "row": 0, "plays": [[]]} for _ in orders]
    while any(lane["n"] < sequences for lane in lanes):
        step, doing = [], []
        for slot, (lane, order) in enumerate(zip(lanes, orders)):
            s = order[lane["n"] % sequences]
            budget, rows = texts[s]
            depth, run, confidence = rows[lane["row"]]
            computed = min(K, budget - lane["row"] - 1, depth)
            step.append((slot, lane["row"] == 0, computed, confidence[:computed]))
            doing.append((lane, s, computed, run))
        request = {"step": step}
        drafted = choose(request)
        accepted = [min(d, run) for d, (_, _, _, run) in zip(drafted, doing)]
        request["outcome"](accepted)
        steps.append([(s, lane["row"], c, d) for d, (lane, s, c, _) in zip(drafted, doing)])
        for d, a, (lane, s, computed, _) in zip(drafted, accepted, doing):
            lane["plays"][-1].append((lane["row"], computed, d, a))
            lane["row"] += a + 1
            if lane["row"] >= len(texts[s][1]):
                lane["n"], lane["row"] = lane["n"] + 1, 0
                lane["plays"].append([])
    for lane, order in zip(lanes, orders):
        finished += list(zip(order, lane["plays"]))
    return [rounds for _, rounds in finished], [s for s, _ in finished], steps


class Adaptive:
    """vLLM's adaptive verification, from its description: dictionaries, loops, and one dense
    solve of the ridge's normal equations.
    """

    def __init__(self, K, seconds, lag=1, interval=100, damping=50.0, ridge=1e-3):
        self.K, self.seconds, self.lag = K, seconds, lag
        self.interval, self.damping, self.ridge = interval, damping, ridge
        self.w, self.b = 0.5, [-0.2] * K
        self.history, self.seen, self.steps = {}, [], 0
        self.budgets = []

    def choose(self, request):
        step, stale, today, features = request["step"], [], [], []
        for slot, new, computed, confidence in step:
            f = [round_to_single(max(-40.0, min(40.0, log(q) - log1p(-q)))) for q in confidence]
            p = [round_to_single(1 / (1 + exp(-(self.w * x + self.b[k])))) for k, x in enumerate(f)]
            if new:
                self.history[slot] = []
            past = self.history[slot]
            past.append(p)
            held = past[-1 - self.lag] if len(past) > self.lag else []
            held = (held + [1.0] * self.K)[:computed]
            stale += products(held)
            today += [(-s, k, len(features)) for k, s in enumerate(products(p))]
            features.append((f, p))
        scores = sorted(stale, reverse=True)
        rates = [
            (len(step) + sum(scores[:x])) / self.seconds(len(step), x)
            for x in range(len(scores) + 1)
        ]
        budget = rates.index(max(rates))
        self.budgets.append(budget)
        chosen = [0] * len(step)
        for _, _, i in sorted(today)[:budget]:
            chosen[i] += 1
        request["outcome"] = lambda accepted: self.learn(features, chosen, accepted)
        return chosen

    def learn(self, features, verified, accepted):
        for (f, p), d, a in zip(features, verified, accepted):
            for k in range(min(d, a + 1)):
                self.seen.append((k, f[k], p[k], float(k < a)))
        self.steps += 1
        if self.steps % self.interval:
            return
        size, seen, self.seen = self.K + 1, self.seen, []
        matrix = [[self.ridge * (i == j) for j in range(size)] for i in range(size)]
        right, counts = [0.0] * size, [0] * self.K
        for k, f, p, y in seen:
            design = [0.0] * size
            design[0], design[1 + k] = f, 1.0
            counts[k] += 1
            for i in range(size):
                right[i] += (y - p) * design[i]
                for j in range(size):
                    matrix[i][j] += p * (1 - p) * design[i] * design[j]
        dw = solve(matrix, right)[0] * len(seen) / (len(seen) + self.damping)
        dw = dw if self.w + dw >= 0 else 0.0
        for k, n in enumerate(counts):
            rest = (right[1 + k] - matrix[0][1 + k] * dw) / matrix[1 + k][1 + k]
            self.b[k] += rest * n / (n + self.damping)
        self.w += dw


def round_to_single(x):
    return unpack("f", pack("f", x))[0]


def products(values):
    found, product = [], 1.0
    for value in values:
        product *= value
        found.append(product)
    return found


def solve(matrix, right):
    """Gaussian elimination with pivoting."""
    rows = [[*line, value] for line, value in zip(matrix, right)]
    for i in range(len(rows)):
        pivot = max(range(i, len(rows)), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(i + 1, len(rows)):
            share = rows[r][i] / rows[i][i]
            rows[r] = [x - share * y for x, y in zip(rows[r], rows[i])]
    found = [0.0] * len(rows)
    for i in reversed(range(len(rows))):
        known = sum(rows[i][j] * found[j] for j in range(i + 1, len(rows)))
        found[i] = (rows[i][-1] - known) / rows[i][i]
    return found
