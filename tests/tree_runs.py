"""Recordings of toy pairs with tree orders, and engine runs held against their replays."""

import os
from functools import cache

import numpy as np
from toy_lm import END, RULES, recorded, toy_cost, toy_pair, toy_prompts

from real.decode.features import drafter_features
from real.decode.loop import decode
from real.decode.plans import make_plan
from real.record import Settings
from real.rerun import compare, prompts_of, rounds_of, rule_of
from simspec.tree.replay import replay_tree

SLOW = os.environ.get("SIMSPEC_SLOW")
DRAFTERS = ("model", "early_exit", "eagle", "medusa")
WIDTH, LEVELS = 3, 4
PAIRS = [(drafter, rule) for drafter in DRAFTERS for rule in RULES]


@cache
def recording(drafter_name, rule, count=4, K=6, budget=20):
    """(trace, target, drafter): the toy pair's texts with ranks and the order of dynamic trees."""
    target, drafter = toy_pair(drafter_name)
    record_settings = Settings(
        K, budget, RULES[rule], END, drafter_features(drafter), (WIDTH, LEVELS)
    )
    return recorded(target, drafter, record_settings, toy_prompts(count, 2)), target, drafter


def ran(target, drafter, trace, plan):
    cut = zip(prompts_of(trace), trace.budget.tolist(), trace.sequence.tolist())
    return [
        decode(target, drafter, plan, rule_of(trace), p, budget, trace.meta.end_tokens, s)
        for p, budget, s in cut
    ]


def examined(trace, target, drafter, policy):
    """Runs the policy's plan and holds it against the replay; returns both."""
    results = ran(
        target, drafter, trace, make_plan(policy, trace.K, 0, toy_cost(), trace.meta.tree)
    )
    replayed = replay_tree(trace, policy)
    assert rounds_of(trace, results) == replayed, policy
    assert compare(trace, policy, replayed, results).exact
    assert np.concatenate([r.token for r in results]).tolist() == trace.token.tolist()
    return replayed, results


def logprob_and_scores(name, text, path, rule):
    """log q after `text` and `path`, and the scores that rank children, from fresh models."""
    target, drafter = toy_pair(name)
    drafter.begin(
        target, text, target.prefill(text[:-1]), lambda logits, slot, *_: [*path, 0][slot]
    )
    for _ in path:
        drafter.next()
    logits = drafter.next().logits[None]
    return (logits / rule.temperature).log_softmax(-1)[0], lambda sequence, place: rule.scores(
        logits, sequence, [place]
    )[0]
