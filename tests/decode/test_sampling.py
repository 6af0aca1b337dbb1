"""Sampling rules: their draws and laws."""

import math
import os
from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loaded_pairs import embedded
from scipy import stats
from scipy.optimize import brentq
from scipy.stats import chi2, ncx2

from real import sampling
from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.decode.verify import rejection_sample
from real.draft import Draft
from real.model.target import Target
from real.sampling import AddressedDraws, Rule, margin
from simspec import CostModel
from simspec.numerics import rng
from simspec.numerics.rng import DRAFT, RESIDUAL
from simspec.policies import parse

HELD = settings(deadline=None, max_examples=80, derandomize=True)
FALSE_ALARM = 1e-6  # of every statistical test here, were its seed not fixed
SEQUENCES, POSITIONS = 40, 400
LOGITS = torch.tensor([1.5, 0.0, -0.7, 2.0, 0.4, -2.0])
OTHER = torch.tensor([0.0, 1.5, 0.5, 0.0, 1.2, 1.0])


def picks(rule, logits):
    """The rule's picks at all addresses, int `[SEQUENCES, POSITIONS]`, where the model always
    says `logits`."""
    rows = logits.expand(POSITIONS, -1)
    return np.array(
        [rule.scores(rows, s, list(range(POSITIONS))).argmax(-1).numpy() for s in range(SEQUENCES)]
    )


def softmax(logits, temperature=1.0):
    return torch.softmax(logits.double() / temperature, -1).numpy()


def fits(observed, p):
    """Whether counts are a sample of `p`, by chi-square at the stated false-alarm rate."""
    expected = p.ravel() * observed.sum()
    assert expected.min() > 5
    statistic = ((observed.ravel() - expected) ** 2 / expected).sum()
    return statistic < stats.chi2.isf(FALSE_ALARM, len(expected) - 1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_coupled_pick_samples_at_its_temperature(temperature):
    # every token frequent enough to count
    logits = LOGITS * temperature if temperature < 1 else LOGITS
    counts = np.bincount(picks(Rule("coupled", temperature, 11), logits).ravel(), minlength=6)
    assert fits(counts, softmax(logits, temperature))
    assert not fits(counts, softmax(logits, temperature * 1.15))  # control: a wrong temperature
    assert not fits(counts, softmax(OTHER, temperature))  # control: another model


def test_picks_at_different_addresses_are_independent():
    picked = picks(Rule("coupled", 1.0, 5), LOGITS[:3])
    p = np.outer(softmax(LOGITS[:3]), softmax(LOGITS[:3]))

    def pairs(a, b):
        return np.histogram2d(a.ravel(), b.ravel(), (3, 3))[0]

    assert fits(pairs(picked[:, 0::2], picked[:, 1::2]), p)
    assert fits(pairs(picked[0::2], picked[1::2]), p)
    assert fits(pairs(picked, picks(Rule("coupled", 1.0, 6), LOGITS[:3])), p)
    assert not fits(pairs(picked, picked), p)  # control: one draw used twice


@HELD
@given(
    st.lists(st.floats(-6, 6), min_size=2, max_size=9), st.floats(0.2, 3),
    st.integers(0, 2**64 - 1), st.integers(0, 50), st.integers(0, 50)
)  # fmt: skip
def test_coupled_pick_wins_an_exponential_race(values, temperature, seed, sequence, position):
    """The smallest -log(u) / p is a token's with its probability p: the pick's distribution."""
    logits = torch.tensor(values, dtype=torch.float64)
    u = [rng.uniform(seed, sequence, position, v, rng.GUMBEL) for v in range(len(values))]
    clocks = [-math.log(a) / p for a, p in zip(u, softmax(logits, temperature))]
    scores = Rule("coupled", temperature, seed).scores(logits[None], sequence, [position])[0]
    assert clocks[scores.argmax()] <= min(clocks) * (1 + 1e-9)
    assert np.allclose(
        -np.log(clocks) - scores.numpy(), -np.log(clocks[0]) - scores[0].item(), atol=1e-9
    )


def slow_probs(values, temperature, top_k, top_p):
    """By definition: of the tokens, best first (ties go to the smaller index), the first `top_k`;
    of these the fewest that hold `top_p`.

    Also whether an edge of `top_p` is so near that rounding decides.
    """
    order = sorted(range(len(values)), key=lambda v: (-values[v], v))
    weight = [math.exp((values[v] - max(values)) / temperature) for v in range(len(values))]
    kept = order[:top_k] if top_k else order
    whole, held, stay = math.fsum(weight[v] for v in kept), 0.0, []
    for v in kept:
        if stay and held >= top_p * whole:
            break
        stay.append(v)
        held += weight[v]
    near = top_p < 1 and any(
        abs(math.fsum(weight[v] for v in kept[:i]) / whole - top_p) < 1e-9
        for i in range(len(kept) + 1)
    )
    return [
        weight[v] / math.fsum(weight[w] for w in stay) if v in stay else 0.0
        for v in range(len(values))
    ], near


LOGIT = st.floats(-6, 6).map(lambda value: round(value, 9))
"""Of which no two differ by less than a softmax can tell."""
CUTS = st.tuples(st.integers(0, 9), st.one_of(st.just(1.0), st.floats(0.01, 1)))


@HELD
@given(st.lists(LOGIT, min_size=1, max_size=9), st.floats(0.2, 3), CUTS)
def test_truncation_equals_its_definition(values, temperature, cut):
    wanted, near = slow_probs(values, temperature, *cut)
    for name in ("coupled", "rejection"):
        rule = Rule(name, temperature, 0, *cut)
        probabilities = rule.probs(torch.tensor([values]).double())[0].numpy()
        assert near or np.allclose(probabilities, wanted, atol=1e-12), (probabilities, wanted)
        assert abs(probabilities.sum() - 1) < 1e-12


@HELD
@given(
    st.lists(st.floats(-6, 6), min_size=2, max_size=9), st.floats(0.2, 3), CUTS,
    st.integers(0, 2**64 - 1), st.integers(0, 50)
)  # fmt: skip
def test_coupled_pick_is_among_the_kept_tokens(values, temperature, cut, seed, position):
    """The coupled pick under top-k and top-p: first of the clocks -log(u) / p of the processed
    p, so it is drawn from that p, exactly."""
    rule = Rule("coupled", temperature, seed, *cut)
    logits = torch.tensor(values, dtype=torch.float64)[None]
    p, scores = rule.probs(logits)[0].tolist(), rule.scores(logits, 3, [position])[0]
    u = [rng.uniform(seed, 3, position, v, rng.GUMBEL) for v in range(len(values))]
    clocks = [-math.log(a) / b if b else math.inf for a, b in zip(u, p)]
    assert clocks[scores.argmax()] <= min(clocks) * (1 + 1e-9)
    assert [s == -math.inf for s in scores.tolist()] == [b == 0 for b in p]


@pytest.mark.parametrize("cut", [(3, 1.0), (0, 0.8), (4, 0.9)])
def test_coupled_pick_samples_the_truncated_distribution(cut):
    counts = np.bincount(picks(Rule("coupled", 1.0, 11, *cut), LOGITS).ravel(), minlength=6)
    p = np.array(slow_probs(LOGITS.tolist(), 1.0, *cut)[0])
    assert fits(counts[p > 0], p[p > 0])
    assert not counts[p == 0].any()
    assert not fits(counts[p > 0], softmax(LOGITS)[p > 0])  # control: the untruncated distribution


def agreement(p, q):
    """Share of equal picks of p and q under shared noise: the sum over v of 1 / sum over w of
    max(p_w/p_v, q_w/q_v)."""
    return sum(1 / np.maximum(p / p[v], q / q[v]).sum() for v in range(len(p)))


def test_coupled_agreement_equals_its_formula():
    rule = Rule("coupled", 1.0, 3)
    p, q = softmax(LOGITS), softmax(OTHER)
    equal = (picks(rule, LOGITS) == picks(rule, OTHER)).sum()
    two = np.array([equal, SEQUENCES * POSITIONS - equal])
    share = agreement(p, q)
    assert fits(two, np.array([share, 1 - share]))
    assert (p * q).sum() < share < np.minimum(p, q).sum()
    assert not fits(two, np.array([(p * q).sum(), 1 - (p * q).sum()]))  # control: independent draws
    overlap = np.minimum(p, q).sum()
    assert not fits(two, np.array([overlap, 1 - overlap]))  # control: the rejection rule


@HELD
@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 9))
def test_noise_depends_on_the_position_only(position, sequence):
    rule = Rule("coupled", 0.8, 2)
    rows = torch.randn(31, 7, generator=torch.Generator().manual_seed(0))
    together = rule.scores(rows[position], sequence, position)
    for i, p in enumerate(position):
        assert torch.equal(together[i], rule.scores(rows[p : p + 1], sequence, [p])[0])
    elsewhere = rule.scores(rows[position], sequence, [p + 1 for p in position])
    assert not torch.equal(together, elsewhere)
    assert not torch.equal(together, rule.scores(rows[position], sequence + 1, position))
    other = Rule("coupled", 0.8, 3)
    assert not torch.equal(together, other.scores(rows[position], sequence, position))


def test_scores_leave_their_inputs_unchanged():
    rule, rows = Rule("coupled", 2.0, 1), torch.ones(1, 5)
    first = rule.scores(rows, 0, [4])
    wanted = first.clone()
    first.add_(1.0)  # a caller may write into what it got
    assert torch.equal(rule.scores(rows, 0, [4]), wanted)
    assert torch.equal(rows, torch.ones(1, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_greedy_uses_no_noise(dtype):
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(1)).to(dtype)
    scores = Rule().scores(logits, 3, [7, 8, 9, 9])
    assert scores.dtype == torch.float64
    assert torch.equal(scores, logits.double())


@HELD
@given(st.lists(st.lists(st.floats(-50, 50), min_size=2, max_size=6), min_size=1, max_size=4))
def test_margin_is_best_minus_second(rows):
    for row in rows:
        best, second = sorted(row, reverse=True)[:2]
        assert margin(torch.tensor([row], dtype=torch.float64)).tolist() == [best - second]


@pytest.mark.parametrize(
    "arguments",
    [
        ("nucleus",), ("greedy", 0.7), ("coupled", 0.0), ("coupled", -1.0), ("coupled", math.nan),
        ("greedy", math.nan), ("rejection", 0.0), ("rejection", -0.5), ("rejection", math.inf),
        ("rejection", 1.0, 0, -1), ("rejection", 1.0, 0, 2.0), ("rejection", 1.0, 0, 0, 0.0),
        ("rejection", 1.0, 0, 0, 1.01), ("coupled", 1.0, 0, 0, math.nan), ("greedy", 1.0, 0, 5),
        ("greedy", 1.0, 0, 0, 0.9),
    ],
)  # fmt: skip
def test_invalid_rules_are_refused(arguments):
    with pytest.raises(ValueError, match="expected") as caught:
        Rule(*arguments)
    assert "\n" not in str(caught.value)


def test_rejection_rule_has_no_scores():
    with pytest.raises(ValueError, match="draws tokens and has no scores"):
        Rule("rejection").scores(LOGITS[None], 0, [0])


def test_forgotten_noise_is_drawn_again():
    """On the CPU, and where blocks of a GPU are kept; the values are the same."""
    rule = Rule("coupled", 0.7, 3)
    sampling.clear_noise_cache()
    first = rule.scores(LOGITS[None], 0, [4])
    assert sampling._noise.cache_info().currsize == 1
    sampling._noise_block(3, 0, 0, 6, "cpu")
    assert sampling._noise_block.cache_info().currsize == 1
    sampling.clear_noise_cache()
    assert sampling._noise.cache_info().currsize == 0
    assert sampling._noise_block.cache_info().currsize == 0
    assert torch.equal(rule.scores(LOGITS[None], 0, [4]), first)


SLOW = os.environ.get("SIMSPEC_SLOW")
DRAWS = 34_000 if SLOW else 2_000  # of each of three rules
RUNS = 5_000 if SLOW else 200
ALPHA = 1e-5
PROMPTS = ("def add(a, b):\n    return", "The capital of France is", "Q: 12 + 7 =")
RULES = tuple(Rule("rejection", *cut) for cut in ((1.0, 1), (0.8, 2, 0, 0.9), (1.0, 3, 20)))
# texts few enough for whole runs
FEW = tuple(Rule("rejection", *cut) for cut in ((1.0, 1, 3), (0.8, 2, 4, 0.9), (1.3, 3, 2)))


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
    target = Target(pair.target.decoder, pair.drafter.taps, 64)
    drive = chain_plan(parse(policy), 3, 0, CostModel.from_ratio(0.2, 3))
    with target.repeating_prompt():
        runs = (
            decode(target, pair.drafter, drive, rule, prompt, length, (), n) for n in range(draws)
        )
        return Counter(tuple(run.token.tolist()) for run in runs)


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

    def round(self, n):
        """The first two tokens of a round of two drafts, the second by the target alone where
        the round committed one; and those of a verifier that draws the bonus token from q."""
        rule, (draws, a) = self.rule, self.draft(n)
        draft = Draft([0, a], [-1, 0], 1, 1, {0: self.q0})
        if a not in self.passes:
            self.passes[a] = torch.cat([self.at("p", ()), self.at("p", (a,))])
        x, *bonus = rejection_sample(rule, self.passes[a], draft, draws, 0, ()).token
        if bonus:
            return (x, *bonus), (x, draws.sample(self.probs("q", (a,)), 0, 5, RESIDUAL))
        text = x, draws.sample(self.probs("p", (x,)), 1, 0, RESIDUAL)
        return text, text


@pytest.mark.parametrize("which", range(3))
def test_continuations_follow_the_target_distribution(which, record_property):
    rule, prompt_text, policy = FEW[which], PROMPTS[which], ("fixed:2", "beta_ts", "fixed:1")[which]
    pair = embedded(("early_exit", "eagle", "model")[which])
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
    pair = embedded("model")
    prompt = pair.tokenizer.encode(PROMPTS[which]).ids
    replayed = Replayed(pair, rule, prompt)
    firsts = [(replayed.draft(n)[1],) for n in range(DRAWS)]
    for who in "pq":  # nearly all that the rounds below ask for, in a pass each
        replayed.at(who, *firsts)
    distribution = continuation_distribution(pair.target.decoder, rule, prompt, 2, DRAWS)
    rounds = zip(*(replayed.round(n) for n in range(DRAWS)))
    (value, distance, floor, most), wrong = (
        chi_square(Counter(texts), distribution, DRAWS) for texts in rounds
    )
    cells = sum(DRAWS * odds >= 10 for odds in distribution.values()) + 1
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
