"""The slow twin of engines: n-gram rules by search, and each engine's loop token by token.

It imports nothing of the package but reads conventions and policies by attribute; the loop works on
tokens and never on a recording.
"""

import math

import numpy as np
from naive import Clock, uniform


def lookup(context, least, most, match):
    """The tokens after the first or last earlier occurrence of the longest suffix."""
    for n in range(min(most, len(context) - 1), least - 1, -1):
        starts = [i for i in range(len(context) - n) if context[i : i + n] == context[-n:]]
        if starts:
            return context[(starts[0] if match == "first" else starts[-1]) + n :]
    return []


def ngram_simple(context, n, m):
    """llama.cpp: the last token is not part of the searched text, and short copies are dropped."""
    searched, pattern = context[:-1], context[-n:]
    if len(searched) <= n + m + 1:
        return []
    starts = [j for j in range(1, len(searched) - n) if searched[j : j + n] == pattern]
    copied = searched[starts[-1] + n :][:m] if starts else []
    return copied if len(copied) >= n else []


def draft(context, K, rule):
    """What a rule drafts behind this context, before any end token is looked at."""
    if rule.simple:
        return ngram_simple(context, rule.most, K)
    found = lookup(context, rule.least, rule.most, rule.match)[:K]
    if rule.pads and context:
        found = found + [context[-1]] * (K - len(found))
    return found


def ended_draft(tokens, ends, at_end):
    """A draft up to its first end token, with it (last) or without it (dropped)."""
    for i, token in enumerate(tokens):
        if token in ends and at_end != "kept":
            return tokens[: i + (at_end == "last")]
    return tokens


class Chooser:
    """A policy asked token by token, with draws addressed by round and slot."""

    def __init__(self, policy, K, seed, address, cost, state):
        self.policy, self.K, self.seed, self.address = policy, K, seed, address
        self.params, self.state = np.array(policy.params, float), np.array(state, float)
        self.clock, self.round = Clock(cost), 0

    def choose(self, allowed):
        """(computed, drafted) of this round."""
        shown, computed = np.full((self.K, 0), np.nan), 0
        while True:
            u = math.nan
            if self.policy.random:
                u = uniform(self.seed, self.address, self.round, computed, 0)
            more, keeps = self.policy.draft_more(self.params, self.state, computed, shown, u)
            if not (more and computed < allowed):
                break
            computed += 1
        drafted = computed if more or keeps or computed == 0 else computed - 1
        return computed, drafted

    def observe(self, computed, drafted, accepted):
        seconds = self.clock.price(computed, drafted, accepted)
        shown = np.full((self.K, 0), np.nan)
        self.policy.observe(self.params, self.state, computed, drafted, accepted, shown, seconds)
        self.round += 1


def run_by(rule, prompt, future, budget, ends, rules, chooser):
    """`run` with drafts of an n-gram rule."""

    def offer(context):
        return ended_draft(draft(context, chooser.K, rule), ends, rule.draft_end)

    return run(prompt, future, budget, ends, offer, rules, chooser)


def run(prompt, future, budget, ends, offer, rules, chooser):
    """(text, [(emitted, drafted, accepted), ..]) of an engine; future: the target's greedy tokens,
    which go on behind the end of the text.

    offer(context) is the drafter's proposal. emitted and accepted are as the engine reports them.
    """
    K, text, passes = chooser.K, [], []
    if rules.first_draft == 1:
        text.append(future[0])
        passes.append((1, 0, 0))
    while len(text) < budget and not (text and text[-1] in ends):
        left = budget - len(text)
        cap = {"tokens_left": left - 1, "none": K, "one_left": K if left > 1 else 0}[rules.cap]
        offered = offer(prompt + text)
        if not rules.drafts_end:
            offered = ended_draft(offered, ends, "dropped")
        computed, drafted = chooser.choose(min(cap, K, len(offered)))
        target = future[len(text) :]
        raw = 0
        while raw < drafted and offered[raw] == target[raw]:
            raw += 1
        new = target[: raw + 1][:left]
        for i, token in enumerate(new):
            if token in ends:
                new = new[: i + 1]
                break
        inside = min(raw, len(new))
        took_end = inside == len(new) and new[-1] in ends
        accepted = {
            "accepted": raw if rules.past_end else inside,
            "last_only": inside - (took_end and inside < drafted),
            "bonus": min(inside, len(new) - 1),
        }[rules.end_token]
        passes.append((raw + 1 if rules.past_end else len(new), drafted, accepted))
        chooser.observe(computed, drafted, inside)
        text += new
    return text, passes


def run_wave(requests, ends, propose, length_of, late=False):
    """[(text, passes)] of vLLM on requests [(prompt, future, budget)] that start in one pass.

    propose(context, K) is a draft of at most K tokens, K = length_of(requests in the pass), which
    the next pass verifies. late: by the requests of that next pass, which vLLM does not do.
    """
    texts, passes = [[] for _ in requests], [[] for _ in requests]
    drafts = [[] for _ in requests]
    running = list(range(len(requests)))
    while running:
        for i in running:
            _, future, budget = requests[i]
            target, right = future[len(texts[i]) :], 0
            while right < len(drafts[i]) and drafts[i][right] == target[right]:
                right += 1
            passes[i].append((right + 1, len(drafts[i]), right))
            for token in target[: right + 1]:
                if len(texts[i]) < budget and not (texts[i] and texts[i][-1] in ends):
                    texts[i].append(token)
        count = len(running)
        running = [
            i for i in running if len(texts[i]) < requests[i][2] and texts[i][-1] not in ends
        ]
        for i in running:
            drafts[i] = propose(
                requests[i][0] + texts[i], length_of(len(running) if late else count)
            )
    return list(zip(texts, passes))


def length_at(ranges, requests):
    """K of the range that holds this number of requests; beyond the last, that of the last."""
    return [K for first, _, K in ranges if first <= requests][-1]
