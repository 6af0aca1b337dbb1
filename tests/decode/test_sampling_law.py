"""Sampling on the embedded models, by statistics: short continuations against their exact
distribution, both error rates stated.

The exact distribution of the next tokens comes from the target's own passes. Rare sequences are
pooled so that each cell expects 10 or more. Under the null the chi-square test rejects with
probability ALPHA, and total variation exceeds `limit` with probability ALPHA at most; the control,
a bonus token drawn from q, must be rejected. The smallest detectable fault: with n draws and m
cells chi-square has power 0.99 against a chi-square distance of `detectable(n, m)`. Total
variation, the blunter of the two, shows the control at the size of `make test-slow` alone.
"""

import os
from functools import cache

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2

from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.decode.verify import VerifyResult, rejection_sample
from real.draft import Draft
from real.model.target import Target
from real.pair import TINY, load_pair
from real.sampling import AddressedDraws, Rule
from simspec import CostModel
from simspec.numerics.rng import DRAFT, RESIDUAL
from simspec.policies import parse

SLOW = os.environ.get("SIMSPEC_SLOW")
DRAWS = 34_000 if SLOW else 2_000  # of each of three rules
RUNS = 5_000 if SLOW else 200
ALPHA = 1e-5
PROMPTS = ("def add(a, b):\n    return", "The capital of France is", "Q: 12 + 7 =")
RULES = (
    Rule("rejection", 1.0, 1),
    Rule("rejection", 0.8, 2, 0, 0.9),
    Rule("rejection", 1.0, 3, 20),
)
FEW = (
    Rule("rejection", 1.0, 1, 3),
    Rule("rejection", 0.8, 2, 4, 0.9),
    Rule("rejection", 1.3, 3, 2),
)  # texts few enough for whole runs


def detectable(n: int, cells: int) -> float:
    """The chi-square distance sum((p' - p)^2 / p) that n draws show with power 0.99 at level
    ALPHA."""
    bound = chi2.isf(ALPHA, cells - 1)
    return brentq(lambda d: ncx2.sf(bound, cells - 1, n * d) - 0.99, 1e-9, 100) if n else np.inf


def limit(odds: np.ndarray, n: int) -> float:
    """What the total variation of n draws from `odds` exceeds with probability ALPHA at most.

    Its mean is at most sum(sqrt(p (1 - p) / n)) / 2 (Cauchy-Schwarz), and a draw moves it by
    1 / n at most (McDiarmid).
    """
    return float(np.sqrt(odds * (1 - odds) / n).sum() / 2 + np.sqrt(np.log(1 / ALPHA) / (2 * n)))


def chi_square(counts: dict, distribution: dict, n: int) -> tuple[float, float, float, float]:
    """(p-value of chi-square, total variation, its expectation at n draws from the distribution,
    its limit) over cells that expect 10."""
    common = [key for key, odds in distribution.items() if n * odds >= 10]
    odds = np.array([distribution[key] for key in common])
    seen = np.array([counts.get(key, 0) for key in common], float)
    if n * (1 - odds.sum()) > 1e-6:
        odds, seen = np.append(odds, 1 - odds.sum()), np.append(seen, n - seen.sum())
    elif n - seen.sum():
        return 0.0, 1.0, 0.0, 0.0  # what cannot be was seen
    statistic = ((seen - n * odds) ** 2 / (n * odds)).sum()
    floor = np.sqrt(2 * odds * (1 - odds) / (np.pi * n)).sum() / 2
    return (
        float(chi2.sf(statistic, len(odds) - 1)),
        float(np.abs(seen / n - odds).sum() / 2),
        float(floor),
        limit(odds, n),
    )


@torch.inference_mode()
def next_logits(decoder, prompt, texts):
    """Logits `[n, vocab]` after the prompt and each of n texts of one length, in one pass."""
    text = torch.tensor([[*prompt, *text] for text in texts])
    rotation = decoder.rotation(torch.arange(text.shape[1]))
    hidden = decoder.run(decoder.embed(text), range(len(decoder.layers)), rotation)
    return decoder.logits(hidden[:, -1])


@torch.inference_mode()
def continuation_distribution(decoder, rule, prompt, length, draws) -> dict:
    """The exact distribution of the next `length` tokens, likely ones alone (`chi_square` pools the
    rest)."""
    distribution = {(): 1.0}
    for _ in range(length):
        longer = {}
        after = next_logits(decoder, prompt, list(distribution))
        for (text, odds), p in zip(distribution.items(), rule.probs(after)):
            for token in (p * odds > 2 / draws).nonzero()[:, 0].tolist():
                longer[(*text, token)] = odds * float(p[token])
        distribution = longer
    return distribution


def continuations(pair, rule, prompt, policy, length, draws):
    """How often each text of `length` tokens came out of the loop, every draw at its own
    sequence's addresses."""
    counts: dict = {}
    target = Target(pair.target.decoder, pair.drafter.taps, 64)
    drive = chain_plan(parse(policy), 3, 0, CostModel.from_ratio(0.2, 3))
    with target.repeating_prompt():
        for n in range(draws):
            result = decode(target, pair.drafter, drive, rule, prompt, length, (), n)
            text = tuple(result.token.tolist())
            counts[text] = counts.get(text, 0) + 1
    return counts


class Remembered(Rule):
    """A rule that processes a tensor of logits once, however often it is asked."""

    def probs(self, logits):
        return _processed(Rule(**vars(self)), logits).clone()


@cache
def _processed(rule, logits):  # a tensor is its own key, and is kept
    return rule.probs(logits)


class Replayed:
    """One drafted tree of the real models, drawn and judged again and again on the distributions
    of a single pass."""

    def __init__(self, pair, rule, prompt):
        _processed.cache_clear()  # of another rule
        self.rule, self.prompt = Remembered(**vars(rule)), prompt
        self.known, self.passes = {}, {}
        self.models = {"p": pair.target.decoder, "q": pair.drafter.lm}
        self.q0 = self.probs("q", ())

    def at(self, who, *texts):
        """Logits `[1, vocab]` after the first of the texts, which have one length; those that are
        not known take one pass."""
        new = [text for text in dict.fromkeys(texts) if (who, text) not in self.known]
        if new:
            rows = next_logits(self.models[who], self.prompt, new)
            self.known |= {(who, text): row[None] for text, row in zip(new, rows)}
        return self.known[who, texts[0]]

    def probs(self, who, text):
        """The processed distribution `[vocab]` after the text."""
        return self.rule.probs(self.at(who, text))[0]

    def draft(self, n):
        """The draws of round n, and its first drafted token."""
        draws = AddressedDraws(self.rule.seed, n)
        return draws, draws.sample(self.q0, 0, 0, DRAFT)

    def round(self, n, accept_exact):
        """The first two tokens of a round of two drafts, the second by the target alone where
        the round committed one."""
        rule, (draws, a) = self.rule, self.draft(n)
        draft = Draft([0, a], [-1, 0], 1, 1, {0: self.q0})
        if a not in self.passes:
            self.passes[a] = torch.cat([self.at("p", ()), self.at("p", (a,))])
        verified = accept_exact(rule, self.passes[a], draft, draws, 0, ())
        if len(verified.token) == 2:
            return tuple(verified.token)
        x = verified.token[0]
        return x, draws.sample(self.probs("p", (x,)), 1, 0, RESIDUAL)


@pytest.mark.parametrize("which", range(3))
def test_continuations_follow_the_target_distribution(which, record_property):
    rule, prompt_text, policy = FEW[which], PROMPTS[which], ("fixed:2", "beta_ts", "fixed:1")[which]
    pair = load_pair(TINY, ("early_exit", "eagle", "model")[which])
    prompt = pair.tokenizer.encode(prompt_text).ids
    counts = continuations(pair, rule, prompt, policy, 2, RUNS)
    value, distance, floor, most = chi_square(
        counts, continuation_distribution(pair.target.decoder, rule, prompt, 2, RUNS), RUNS
    )
    message = (
        f"p {value:.3f}, total variation {distance:.3f}, of noise alone {floor:.3f}, "
        f"alarm over {most:.3f}"
    )
    record_property("measured", f"sampling {which}: {RUNS} runs, {message}")
    assert value > ALPHA
    assert distance <= most


@pytest.mark.parametrize("which", range(3))
def test_rounds_follow_the_target_distribution_and_a_fault_does_not(which, record_property):
    rule = RULES[which]
    pair = load_pair(TINY, "model")
    prompt = pair.tokenizer.encode(PROMPTS[which]).ids
    replayed, values = Replayed(pair, rule, prompt), {}
    firsts = [(replayed.draft(n)[1],) for n in range(DRAWS)]
    for who in "pq":  # nearly all that the rounds below ask for, in a pass each
        replayed.at(who, *firsts)
    distribution = continuation_distribution(pair.target.decoder, rule, prompt, 2, DRAWS)
    for name, accept_exact, draws in (
        ("sound", rejection_sample, DRAWS),
        ("wrong bonus", wrong_bonus_of(replayed), DRAWS),
    ):
        counts: dict = {}
        for n in range(draws):
            text = replayed.round(n, accept_exact)
            counts[text] = counts.get(text, 0) + 1
        values[name] = chi_square(counts, distribution, draws)
    cells = sum(DRAWS * odds >= 10 for odds in distribution.values()) + 1
    (value, distance, floor, most), wrong = values["sound"], values["wrong bonus"]
    power = detectable(DRAWS, cells)
    message = (
        f"p {value:.3f}, total variation {distance:.3f}, of noise alone {floor:.3f}, "
        f"alarm over {most:.3f}; power 0.99 at {power:.4f}"
    )
    record_property(
        "measured",
        f"rounds {which}: n {DRAWS}, {message}; wrong bonus {wrong[1]:.3f}, p {wrong[0]:.0e}",
    )
    assert value > ALPHA > wrong[0]
    assert distance <= most
    assert most < wrong[1] or not SLOW


def wrong_bonus_of(replayed):
    def accept_exact(rule, logits, draft, draws, round, end_tokens):
        verified = rejection_sample(rule, logits, draft, draws, round, end_tokens)
        if len(verified.token) < 2:
            return verified
        token = draws.sample(replayed.probs("q", (draft.token[1],)), round, 5, RESIDUAL)
        return VerifyResult(
            [verified.token[0], token], verified.path, verified.accepted, verified.scores
        )

    return accept_exact


def test_false_alarm_rate_is_the_stated_one():
    """False alarms of `chi_square` on draws from a known distribution: level 0.05, 300 tries,
    within a binomial at 1e-5; distances never."""
    rng, odds = np.random.default_rng(0), np.array([0.5, 0.2, 0.15, 0.1, 0.04, 0.01])
    distribution = {(i,): float(o) for i, o in enumerate(odds)}
    tries = [
        chi_square(
            {(i,): int(c) for i, c in enumerate(rng.multinomial(2000, odds))}, distribution, 2000
        )
        for _ in range(300)
    ]
    assert 2 <= sum(value < 0.05 for value, *_ in tries) <= 36
    assert all(distance <= most for _, distance, _, most in tries)
    assert np.mean([distance for _, distance, _, _ in tries]) == pytest.approx(tries[0][2], rel=0.1)
