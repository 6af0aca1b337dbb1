"""The rejection rule by exact enumeration: over all coins and draws, the committed text follows the target's law. Faults do not."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from branches import law, outcomes
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from toy_lm import toy_decoder

from real import verify
from real.block import chain
from real.chance import Chance
from real.decode import decode
from real.draft import Draft, Silent, Step
from real.drafters.model import ModelDrafter
from real.pair import stepper
from real.sampling import Rule
from real.target import Target, Verdict
from real.verify import chance_walk
from simspec import CostModel, Policy, PolicyError
from simspec.policies import parse
from simspec.rng import DRAFT

HELD = settings(deadline=None, max_examples=30, derandomize=True)
EXACT = 1e-12
TEMPERATURES, TOP_K, TOP_P = (0.5, 1.0, 1.7), (0, 1, 2, 3), (0.4, 0.8, 1.0)
rules = st.tuples(*map(st.sampled_from, (TEMPERATURES, TOP_K, TOP_P))).map(lambda made: Rule("rejection", made[0], 0, *made[1:]))


class World:
    """A random language of `vocab` tokens: logits of target and drafter behind every text, by the text itself."""

    def __init__(self, seed: int, vocab: int, near: float = 0.7):
        self.seed, self.vocab, self.near = seed, vocab, near

    def p(self, text: tuple) -> torch.Tensor:
        return self._logits(0, text)

    def q(self, text: tuple) -> torch.Tensor:
        return self.near * self._logits(0, text) + (1 - self.near) * self._logits(1, text)

    def _logits(self, who, text):
        rng = np.random.default_rng([self.seed, who, len(text), *text])
        return torch.from_numpy(rng.normal(size=self.vocab) * 1.5)

    def true(self, rule: Rule, length: int) -> dict:
        """The target's law of the next `length` tokens."""
        found = {}
        for text in product(range(self.vocab), repeat=length):
            odds = 1.0
            for i, token in enumerate(text):
                odds *= float(rule.probs(self.p(text[:i])[None])[0, token])
            found[text] = odds
        return found


def grown(world: World, rule: Rule, parent, chance, drawn=True) -> Draft:
    """A tree drawn from q: children of a row without replacement, one after the other; a row whose q has run dry gets no more."""
    texts, token, above, q, left = {0: ()}, [0], [-1], {}, {}
    names = {0: 0}
    for i, p in enumerate(parent[1:], 1):
        if p not in names:
            continue
        row = names[p]
        if row not in left:
            q[row] = left[row] = rule.probs(world.q(texts[row])[None])[0]
        if not float(left[row].sum()) > 0:
            continue
        token.append(chance.draw(left[row], 0, len(token), DRAFT) if drawn else int(left[row].argmax()))
        above.append(row)
        names[i] = len(token) - 1
        texts[len(token) - 1] = (*texts[row], token[-1])
        left[row] = left[row].clone()
        left[row][token[-1]] = 0
    return Draft(token, above, len(token) - 1, 0, q if drawn else {}), texts


def round_law(world, rule, parent, length, drawn=True, walk=chance_walk) -> dict:
    """The law of the next `length` tokens where one round drafts this tree and p itself goes on behind what it commits."""
    found = dict.fromkeys(product(range(world.vocab), repeat=length), 0.0)

    def one(chance):
        draft, texts = grown(world, rule, parent, chance, drawn)
        logits = torch.stack([world.p(texts[row]) for row in range(len(draft.token))])
        return tuple(walk(rule, logits, draft, chance, 0, ()).token)

    for committed, odds in law(one).items():
        more = length - len(committed)
        for rest in product(range(world.vocab), repeat=max(more, 0)):
            then = 1.0
            for i, token in enumerate(rest):
                then *= float(rule.probs(world.p((*committed, *rest[:i]))[None])[0, token])
            found[(*committed, *rest)[:length]] += odds * then
    return found


def off(a: dict, b: dict) -> float:
    """Total variation of two laws."""
    return sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a | b) / 2


def parents(draw, nodes):
    return [-1, *(draw(st.integers(0, i)) for i in range(nodes))]


@HELD
@given(st.data(), st.integers(0, 10**6), rules, st.integers(2, 5), st.integers(1, 3))
def test_speculative_sampling_on_a_chain_follows_the_target(data, seed, rule, vocab, K):
    assume(vocab**K <= 64)
    world = World(seed, vocab)
    assert off(round_law(world, rule, chain(K + 1), K + 1), world.true(rule, K + 1)) < EXACT


@HELD
@given(st.data(), st.integers(0, 10**6), rules, st.integers(2, 3), st.integers(1, 5))
def test_recursive_rejection_on_a_tree_follows_the_target(data, seed, rule, vocab, nodes):
    world, parent = World(seed, vocab), parents(data.draw, nodes)
    assert off(round_law(world, rule, parent, 3), world.true(rule, 3)) < EXACT


@pytest.mark.parametrize("parent", [[-1, 0, 0, 1, 1, 2, 3, 5], [-1, 0, 0, 0, 1, 1, 4, 4]])
def test_trees_of_seven_nodes(parent):
    world, rule = World(11, 2 if parent.count(0) == 2 else 3, 0.3), Rule("rejection", 0.8, 0, 0, 0.95)
    assert off(round_law(world, rule, parent, 4), world.true(rule, 4)) < EXACT


@HELD
@given(st.data(), st.integers(0, 10**6), rules, st.integers(2, 4), st.integers(1, 6))
def test_children_that_nobody_drew_are_judged_as_certain(data, seed, rule, vocab, nodes):
    """Best tokens first, as a silent drafter or a deterministic tree submits them: no q, and the law is still the target's."""
    world, parent = World(seed, vocab), parents(data.draw, nodes)
    assert off(round_law(world, rule, parent, 3, drawn=False), world.true(rule, 3)) < EXACT


# ---- faults that must be seen


def faulty(rule, logits, draft, chance, round, end_tokens, bonus_from_q=False, clipped=True, updated=True, raw=False, one_coin=False):
    """`chance_walk` written anew, with a fault of choice."""
    p = rule.probs(logits)
    committed, row = [], 0
    coin = None
    while True:
        left, q, chosen = p[row], draft.q.get(row), None
        for child in [i for i, above in enumerate(draft.parent) if above == row]:
            token = draft.token[child]
            judged = q if not raw else Rule("rejection").probs(q.log()[None] * rule.temperature)[0]
            odds = min(1.0, float(left[token] / judged[token]))
            rest = left - q
            rest = rest.clamp(min=0) if clipped else rest.abs()
            if one_coin:  # the first coin's fall decides all later ones of the same row
                coin = chance.flip(odds, round, child) if coin is None else coin
                held = coin
            else:
                held = chance.flip(odds, round, child)
            if held:
                chosen = child
                break
            if updated:
                left = rest / rest.sum() if float(rest.sum()) > 0 else left
            q = q.clone()
            q[token] = 0
            q = q / q.sum()
        if chosen is None:
            last = draft.q.get(row)
            committed.append(chance.draw(last if bonus_from_q and last is not None else left, round, row, 3))
            return verify.Walk(committed, [0], len(committed) - 1, p)
        committed.append(draft.token[chosen])
        row = chosen


FAULTS = {
    "residual not clipped": dict(clipped=False),
    "siblings without the updated residual": dict(updated=False),
    "raw q in place of processed q": dict(raw=True),
    "a reused coin": dict(one_coin=True),
    "correction drawn from q": dict(bonus_from_q=True),
}


def planted(fault):
    return lambda *arguments: faulty(*arguments, **fault)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_changes_the_law(name):
    rule = Rule("rejection", 0.7)

    def worst(fault):
        worlds = [World(seed, 3, 0.3) for seed in range(4)]
        return max(off(round_law(world, rule, [-1, 0, 0, 1], 2, walk=planted(fault)), world.true(rule, 2)) for world in worlds)

    assert worst(FAULTS[name]) > 1e-2
    assert worst({}) < EXACT  # the rewritten walk is right where no fault is planted


def test_a_bonus_from_the_drafter_changes_the_law():
    """The classic slip: behind a full acceptance the next token is drawn from q's row in place of p's."""
    world, rule = World(5, 3, 0.3), Rule("rejection")

    def slip(rule, logits, draft, chance, round, end_tokens):
        texts = (), (draft.token[1],)
        walked = chance_walk(rule, logits, draft, chance, round, end_tokens)
        if walked.accepted < 1:
            return walked
        return replace(walked, token=[draft.token[1], chance.draw(rule.probs(world.q(texts[1])[None])[0], round, 9, 3)])

    assert off(round_law(world, rule, chain(2), 2, walk=slip), world.true(rule, 2)) > 1e-2


# ---- the loop itself, policies included


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

    def catch_up(self, tokens, verdict, path):
        self.text += tokens


class Listener:
    """Stands in for `Target`: judges by a world's p, with no model behind it."""

    def __init__(self, world):
        self.world, self.text, self.decoder = world, [], torch.zeros(1)

    def prefill(self, tokens):
        self.text = []
        return verdict_of(torch.zeros(0, 1))

    def verify(self, token, parent, resume):
        rows = [tuple(self.text)]
        for row in range(1, len(token)):
            rows.append((*rows[parent[row]], token[row]))
        return verdict_of(torch.zeros(len(token), 1), torch.stack([self.world.p(row) for row in rows]))

    def keep(self, path): ...

    def heard(self, r):
        self.text += r.walk.token


def verdict_of(hidden, logits=None):
    return Verdict(logits, hidden, {})


def spoken(world, rule, policy, budget, K, chance, seed, ends=()):
    target = Listener(world)
    drive = stepper(policy, K, seed, CostModel.from_ratio(0.2, K))
    return decode(target, Speaker(world), drive, rule, [0], budget, ends, 0, target.heard, chance)


def whole(world, rule, length, ends):
    """The target's law of whole texts of at most `length` tokens that end at an end token."""
    found = {}
    for text, odds in world.true(rule, length).items():
        cut = next((i + 1 for i, token in enumerate(text) if token in ends), length)
        found[text[:cut]] = found.get(text[:cut], 0.0) + odds
    return found


ALLOWED = (
    "fixed:0", "fixed:1", "fixed:2", "beta_ts", "beta_ts:censored", "cost_ts", "hf_heuristic:1", "sampling_only",
    "confidence:0.6", "confidence:0.6,inclusive=false", "entropy:0.8", "product:0.5", "draft_verify:0.5", "adaedl:0.4",
    "cali_ts:validated,predictor=confidence,sigma_m=0.1",
)  # fmt: skip


@pytest.mark.parametrize("text", ALLOWED)
def test_whole_texts_follow_the_target_whatever_the_policy(text):
    """Adaptive and random policies too: the law holds for each way in which the policy's own draws fall."""
    for seed, rule in ((1, Rule("rejection")), (2, Rule("rejection", 0.7, 0, 0, 0.8))):
        world, budget, ends = World(seed, 3, 0.4), 3, (2,) if seed == 2 else ()
        policy = parse(text)
        policy = policy if isinstance(policy, Policy) else policy(SimpleNamespace(K=2), CostModel.from_ratio(0.2, 2))
        found = law(lambda chance: tuple(spoken(world, rule, policy, budget, 2, chance, seed, ends).token.tolist()))
        assert off(found, whole(world, rule, budget, ends)) < EXACT


def _drops_the_unlikely(params, state, slot, features, u):
    return slot < 2 and (slot == 0 or features[slot - 1, 0] >= params[0]), slot == 0 or features[slot - 1, 0] >= params[0]


def _stops_at_the_unlikely(params, state, slot, features, u):
    return slot < 2 and (slot == 0 or features[slot - 1, 0] >= params[0]), True


def _ignore(params, state, computed, drafted, accepted, features, cost):
    pass


ANTICIPATING = Policy("drops", _drops_the_unlikely, _ignore, (0.4,), reads=("probability",))


def test_an_anticipating_policy_would_change_the_law_and_is_refused(monkeypatch):
    world, rule = World(3, 3, 0.2), Rule("rejection")
    with pytest.raises(PolicyError, match="drops a drawn token by which token it is"):
        law(lambda chance: tuple(spoken(world, rule, ANTICIPATING, 3, 2, chance, 0).token.tolist()))
    with pytest.raises(PolicyError, match="drops a drawn token by which token it is"):
        spoken(world, rule, replace(ANTICIPATING, anticipates=True), 3, 2, Chance(0, 0), 0)
    monkeypatch.setattr("simspec.policy.Stepper._refuse", lambda self: None)
    found = law(lambda chance: tuple(spoken(world, rule, ANTICIPATING, 3, 2, chance, 0).token.tolist()))
    assert off(found, world.true(rule, 3)) > 1e-2  # why it is refused


def test_a_policy_may_stop_behind_the_token_that_it_saw():
    """HuggingFace's confidence threshold reads q of the drawn token and submits it: nothing is dropped."""
    policy = Policy("stops", _stops_at_the_unlikely, _ignore, (0.4,), reads=("probability",))
    world, rule = World(3, 3, 0.2), Rule("rejection")
    assert off(law(lambda chance: tuple(spoken(world, rule, policy, 3, 2, chance, 0).token.tolist())), world.true(rule, 3)) < EXACT


def test_real_decoders_with_caches_follow_the_target():
    """The same through a decoder and a drafter with a cache each, end tokens included."""
    decoder, small = (toy_decoder(seed, layers=2, vocab=3, spread=0.6) for seed in (0, 1))
    rule, ends = Rule("rejection", 1.3, 0, 0, 0.9), (2,)

    def one(chance):
        drive = stepper(parse("fixed:2"), 2, 0, CostModel.from_ratio(0.2, 2))
        return tuple(decode(Target(decoder, (), 16), ModelDrafter(small), drive, rule, [0, 1], 3, ends, 0, chance=chance).token.tolist())

    true = {}
    for text in product(range(3), repeat=3):
        odds = 1.0
        for i, token in enumerate(text):
            odds *= float(rule.probs(decoder(torch.tensor([[0, 1, *text[:i]]]))[0, -1:])[0, token])
        cut = next((i + 1 for i, token in enumerate(text) if token in ends), 3)
        true[text[:cut]] = true.get(text[:cut], 0.0) + odds
    assert off(law(one), true) < EXACT


def test_all_outcomes_are_walked_once():
    found = list(outcomes(lambda c: (c.draw(torch.tensor([0.5, 0.0, 0.5]), 0, 0, 0), c.flip(0.25, 0, 0), c.flip(1.0, 0, 0))))
    assert sorted(found) == [((0, False, True), 0.375), ((0, True, True), 0.125), ((2, False, True), 0.375), ((2, True, True), 0.125)]
