"""A small world whose output distributions can be enumerated: models, rounds and whole
sequences."""

from functools import cache, lru_cache
from itertools import product
from types import SimpleNamespace

import numpy as np
import torch
from branches import output_distribution
from hypothesis import settings
from hypothesis import strategies as st

from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.decode.verify import rejection_sample
from real.draft import Draft, Silent, Step
from real.model.target import TargetOutput
from real.sampling import Rule
from simspec import CostModel, policies
from simspec.numerics.rng import DRAFT

HELD = settings(deadline=None, max_examples=60, derandomize=True)
EXACT = 1e-12
CUTS = st.sampled_from(
    [(0, 1.0), (0, 1.0), (3, 1.0), (2, 1.0), (0, 0.9), (0, 0.7), (3, 0.85), (2, 0.5)]
)  # few leave a single token
rules = st.builds(lambda heat, cut: Rule("rejection", heat, 0, *cut), st.floats(0.6, 2.0), CUTS)
seeds = st.integers(0, 10**6)


class Remembered(Rule):
    """A rule that computes each distribution once: an enumeration asks for few, again and again."""

    def probs(self, logits: torch.Tensor) -> torch.Tensor:
        return _known_probs(Rule(**vars(self)), tuple(map(tuple, logits.tolist()))).clone()


@lru_cache(maxsize=1 << 14)
def _known_probs(rule: Rule, rows: tuple) -> torch.Tensor:
    return rule.probs(torch.tensor(rows, dtype=torch.float64))


@cache
def cost_of(K: int) -> CostModel:
    """What policies observe in these worlds."""
    return CostModel.from_ratio(0.2, K)


class World:
    """A random language of `vocab` tokens: logits of target and drafter behind every text, by
    the text itself."""

    def __init__(self, seed: int, vocab: int, near: float = 0.7):
        self.seed, self.vocab, self.near = seed, vocab, near
        self._drawn: dict = {}  # an enumeration asks for the same text thousands of times
        self._mixed: dict = {}
        self._probs: dict = {}
        self._drafted: dict = {}

    def p(self, text: tuple) -> torch.Tensor:
        return self._logits(0, text).clone()

    def q(self, text: tuple) -> torch.Tensor:
        if text not in self._mixed:
            p, other = self._logits(0, text), self._logits(1, text)
            self._mixed[text] = self.near * p + (1 - self.near) * other
        return self._mixed[text].clone()

    def drafted(self, rule: Rule, text: tuple) -> torch.Tensor:
        """The distribution q of the token behind `text`."""
        if (rule, text) not in self._drafted:
            self._drafted[rule, text] = rule.probs(self.q(text)[None])[0]
        return self._drafted[rule, text].clone()

    def probs(self, rule: Rule, text: tuple, of: str = "p") -> list[float]:
        """The distribution p or q of the token behind `text`."""
        if (rule, text, of) not in self._probs:
            logits = getattr(self, of)(text)
            self._probs[rule, text, of] = rule.probs(logits[None])[0].tolist()
        return self._probs[rule, text, of]

    def _logits(self, who, text):
        if (who, text) not in self._drawn:
            rng = np.random.default_rng([self.seed, who, len(text), *text])
            self._drawn[who, text] = torch.from_numpy(rng.normal(size=self.vocab) * 1.2)
        return self._drawn[who, text]

    def likelihood(self, rule: Rule, text: tuple, start: int = 0) -> float:
        """The target's probability of the tokens text[start:] behind text[:start]."""
        odds = 1.0
        for i in range(start, len(text)):
            odds *= self.probs(rule, text[:i])[text[i]]
        return odds

    def true(self, rule: Rule, length: int) -> dict:
        """The target's distribution of the next `length` tokens."""
        texts = product(range(self.vocab), repeat=length)
        return {text: self.likelihood(rule, text) for text in texts}


def grown(world: World, rule: Rule, parent, draws, sure=()) -> Draft:
    """A tree drawn from q: children of a row without replacement, one after the other; a row
    whose q has run dry gets no more.

    Nobody draws the children of the nodes `sure`: they are the best tokens of q, best first.
    """
    texts, token, above, q, left = {0: ()}, [0], [-1], {}, {}
    names = {0: 0}
    for i, p in enumerate(parent[1:], 1):
        if p not in names:
            continue
        row = names[p]
        if row not in left:
            left[row] = world.drafted(rule, texts[row])
            if p not in sure:
                q[row] = left[row]
        if not float(left[row].sum()) > 0:
            continue
        token.append(
            int(left[row].argmax()) if p in sure else draws.sample(left[row], 0, len(token), DRAFT)
        )
        above.append(row)
        names[i] = len(token) - 1
        texts[len(token) - 1] = (*texts[row], token[-1])
        left[row] = left[row].clone()
        left[row][token[-1]] = 0
    return Draft(token, above, len(token) - 1, 0, q), texts


def round_distribution(
    world, rule, parent, length, sure=(), accept_exact=rejection_sample, ends=(), verified=None
) -> dict:
    """The distribution of the next `length` tokens: one round drafts this tree, then p continues
    after the committed tokens.

    `verified` receives the number of combinations of the round's draws.
    """
    distribution, ways, rule = {}, [], Remembered(**vars(rule))

    def one(draws):
        draft, texts = grown(world, rule, parent, draws, sure)
        logits = torch.stack([world.p(texts[row]) for row in range(len(draft.token))])
        ways.append(draft)
        return tuple(accept_exact(rule, logits, draft, draws, 0, ends).token)

    for committed, odds in output_distribution(one).items():
        remaining = length - len(committed)
        for rest in product(range(world.vocab), repeat=max(remaining, 0)):
            probability = world.likelihood(rule, (*committed, *rest), len(committed))
            text = until((*committed, *rest)[:length], ends)
            distribution[text] = distribution.get(text, 0.0) + odds * probability
    if verified is not None:
        verified.append(len(ways))
    return distribution


def until(text: tuple, ends) -> tuple:
    """The text up to its first end token."""
    return text[: next((i + 1 for i, token in enumerate(text) if token in ends), len(text))]


def off(a: dict, b: dict) -> float:
    """Total variation of two distributions."""
    return sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a | b) / 2


def tree(seed: int, vocab: int, nodes: int, most: int = 160) -> tuple[list[int], set[int]]:
    """(parents, nodes whose children nobody draws) at random, at most `most` drafts among those
    that can be drawn."""
    rng = np.random.default_rng(seed)
    parent, sure, drafts = [-1], set(np.flatnonzero(rng.random(nodes + 1) < 0.15).tolist()), 1
    for node in range(1, nodes + 1):
        above = int(rng.integers(max(0, node - 4), node))
        drafts *= 1 if above in sure else max(vocab - parent.count(above), 1)
        if drafts > most:
            sure, drafts = sure | {above}, drafts // vocab
        parent.append(above)
    return parent, sure


def busy(verified, ways):
    """Whether the examples are hard enough: a third of them have so many combinations of draws or
    more."""
    return np.mean(np.array(verified) >= ways) > 1 / 3


class Speaker(Silent):
    """Drafts from a world's q, seeing the whole text."""

    name, prefix_only = "speaker", True

    def __init__(self, world):
        self.world = world

    def begin(self, target, prompt, prefill, pick):
        self.pick, self.text, self.draft = pick, [], []

    def next(self):
        logits = self.world.q((*self.text, *self.draft))
        self.draft.append(self.pick(logits, len(self.draft)))
        return Step(self.draft[-1], len(self.draft) - 1, logits)

    def rollback(self, accepted):
        self.draft = []

    def catch_up(self, tokens, output, path):
        self.text += tokens


class Listener:
    """Replaces `Target`: verifies by a world's p, without a model."""

    def __init__(self, world):
        self.world, self.text, self.decoder = world, [], torch.zeros(1)

    def prefill(self, tokens):
        self.text = []
        return output_of(torch.zeros(0, 1))

    def verify(self, token, parent, resume):
        rows = [tuple(self.text)]
        for row in range(1, len(token)):
            rows.append((*rows[parent[row]], token[row]))
        return output_of(
            torch.zeros(len(token), 1), torch.stack([self.world.p(row) for row in rows])
        )

    def commit(self, path): ...

    def extend(self, r):
        self.text += r.verified.token


def output_of(hidden, logits=None):
    return TargetOutput(logits, hidden, {})


def spoken(world, rule, policy, budget, K, draws, seed, ends=()):
    target, rule = Listener(world), Remembered(**vars(rule))
    drive = chain_plan(policy, K, seed, cost_of(K))
    return decode(target, Speaker(world), drive, rule, [0], budget, ends, 0, target.extend, draws)


def whole(world, rule, length, ends):
    """The target's distribution of sequences, cut at an end token or at `length` tokens."""
    distribution = {}
    for text, odds in world.true(rule, length).items():
        distribution[until(text, ends)] = distribution.get(until(text, ends), 0.0) + odds
    return distribution


def columns_of(rounds, position):
    """((position, computed, drafted, accepted), ...) of the rounds of runs or replays."""
    columns = position, rounds.computed, rounds.drafted, rounds.accepted
    return tuple(zip(*(column.tolist() for column in columns)))


CASES = tuple(
    case
    for name in ("rejection", "block")
    for case in ((4, Rule(name), ()), (2, Rule(name, 0.8, 0, 0, 0.95), (2,)))
)
"""(seed of the world and of the policy, rule, end tokens)."""
BUDGET = 4


@cache
def case_world(case) -> World:
    """The world of one of CASES."""
    return World(case[0], 3, 0.4)


@cache
def policy_of(text: str):
    """The policy of a text, for drafts of up to two tokens."""
    return policies.make(text, SimpleNamespace(K=2), cost_of(2))


@cache
def real_rounds(text: str, case) -> tuple[dict, int]:
    """({(sequence, its rounds): probability} of real runs under the policy of this text, number
    of combinations of draws), for every test of the same runs.
    """
    seed, rule, ends = case
    world, ways = case_world(case), []

    def one(draws):
        ways.append(None)
        result = spoken(world, rule, policy_of(text), BUDGET, 2, draws, seed, ends)
        return tuple(result.token.tolist()), columns_of(result, result.position)

    return output_distribution(one), len(ways)


ALLOWED = (
    "fixed:0", "fixed:1", "fixed:2", "beta_ts", "beta_ts:censored",
    "beta_ts:printed,scope=stream", "cost_ts", "cost_ts:depth,decay=0.9", "hf_heuristic:1",
    "hf_heuristic:1,transient=true", "cali_ts:side=sampling", "confidence:0.6",
    "confidence:0.6,inclusive=false", "entropy:0.8", "product:0.5,inclusive=false", "adaedl:0.4",
    "cali_ts:side=model,predictor=confidence", "specdec_pp:0.5,predictor=confidence",
    "cali_ts:draft_share,predictor=confidence",
    "cali_ts:validated,predictor=confidence,sigma_m=0.1", "ema_tiers:0/1/2,interval=1,warmup=0",
    "goodput:window=1", "ucb:arms=1/2", "exp3:arms=0/1/2"
)  # fmt: skip
NAMED = {text.split(":")[0] for text in ALLOWED}
ALLOWED += tuple(
    kind.examples[0]
    for name, kind in policies.KINDS.items()
    if not (name in NAMED or kind.clairvoyant or kind.group == "trees")
)
