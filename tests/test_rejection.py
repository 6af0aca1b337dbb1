"""The rejection rule by exact enumeration: over all coins and draws, the committed text follows the target's law. Faults do not."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from branches import law, outcomes
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import at_random, toy_decoder

from real.decode import verify
from real.decode.loop import decode
from real.decode.plan import chain_plan
from real.decode.verify import rejection_sample
from real.draft import Draft, Silent, Step
from real.drafters.model import ModelDrafter
from real.model.target import Target, TargetOutput
from real.model.tree_mask import chain
from real.sampling import AddressedDraws, Rule, _inverse_cdf
from simspec import CostModel, Policy, PolicyError
from simspec.policies import BUILTIN, CLAIRVOYANT, parse
from simspec.rng import ACCEPT, DRAFT, RESIDUAL, uniform

HELD = settings(deadline=None, max_examples=60, derandomize=True)
EXACT = 1e-12
CUTS = st.sampled_from(
    [(0, 1.0), (0, 1.0), (3, 1.0), (2, 1.0), (0, 0.9), (0, 0.7), (3, 0.85), (2, 0.5)]
)  # few leave a single token
rules = st.builds(lambda heat, cut: Rule("rejection", heat, 0, *cut), st.floats(0.6, 2.0), CUTS)
seeds = st.integers(0, 10**6)


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
        return torch.from_numpy(rng.normal(size=self.vocab) * 1.2)

    def true(self, rule: Rule, length: int) -> dict:
        """The target's law of the next `length` tokens."""
        found = {}
        for text in product(range(self.vocab), repeat=length):
            odds = 1.0
            for i, token in enumerate(text):
                odds *= float(rule.probs(self.p(text[:i])[None])[0, token])
            found[text] = odds
        return found


def grown(world: World, rule: Rule, parent, draws, sure=()) -> Draft:
    """A tree drawn from q: children of a row without replacement, one after the other; a row whose q has run dry gets no more.

    Nobody draws the children of the nodes `sure`: they are the best tokens of q, best first.
    """
    texts, token, above, q, left = {0: ()}, [0], [-1], {}, {}
    names = {0: 0}
    for i, p in enumerate(parent[1:], 1):
        if p not in names:
            continue
        row = names[p]
        if row not in left:
            left[row] = rule.probs(world.q(texts[row])[None])[0]
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


def round_law(
    world, rule, parent, length, sure=(), accept_exact=rejection_sample, ends=(), verified=None
) -> dict:
    """The law of the next `length` tokens where one round drafts this tree and p itself goes on behind what it commits.

    `verified` is told in how many ways the coins and draws of the round could fall.
    """
    found, ways = {}, []

    def one(draws):
        draft, texts = grown(world, rule, parent, draws, sure)
        logits = torch.stack([world.p(texts[row]) for row in range(len(draft.token))])
        ways.append(draft)
        return tuple(accept_exact(rule, logits, draft, draws, 0, ends).token)

    for committed, odds in law(one).items():
        more = length - len(committed)
        for rest in product(range(world.vocab), repeat=max(more, 0)):
            then = 1.0
            for i, token in enumerate(rest):
                then *= float(rule.probs(world.p((*committed, *rest[:i]))[None])[0, token])
            text = until((*committed, *rest)[:length], ends)
            found[text] = found.get(text, 0.0) + odds * then
    if verified is not None:
        verified.append(len(ways))
    return found


def until(text: tuple, ends) -> tuple:
    """The text up to its first end token."""
    return text[: next((i + 1 for i, token in enumerate(text) if token in ends), len(text))]


def off(a: dict, b: dict) -> float:
    """Total variation of two laws."""
    return sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a | b) / 2


def tree(seed: int, vocab: int, nodes: int, most: int = 160) -> tuple[list[int], set[int]]:
    """(parents, nodes whose children nobody draws) at random, at most `most` drafts among those that can be drawn."""
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
    """Whether there was something to get wrong: in a third of the examples coins and draws could fall in so many ways or more."""
    return np.mean(np.array(verified) >= ways) > 1 / 3


def test_speculative_sampling_on_a_chain_follows_the_target():
    verified = []

    @HELD
    @given(seeds, rules, st.sampled_from([(5, 2), (4, 2), (3, 3), (3, 2), (2, 3), (4, 3), (5, 1)]))
    def held(seed, rule, size):
        (_, K), world = size, World(seed, size[0])
        assert (
            off(
                round_law(world, rule, chain(K + 1), K + 1, verified=verified),
                world.true(rule, K + 1),
            )
            < EXACT
        )

    held()
    assert busy(verified, 30)


@pytest.mark.parametrize("end", [(), (0,)])
def test_trees_of_up_to_seven_nodes_partly_drawn_follow_the_target(end):
    """Recursive rejection; some nodes' children nobody drew; an end token stops the round."""
    verified = []

    @HELD
    @given(seeds, rules, st.sampled_from([7, 6, 5, 4, 2]), st.sampled_from([3, 4, 2]))
    def held(seed, rule, nodes, vocab):
        world, (parent, sure) = World(seed, vocab, 0.4), tree(seed, vocab, nodes)
        assert (
            off(
                round_law(world, rule, parent, 3, sure, ends=end, verified=verified),
                whole(world, rule, 3, end),
            )
            < EXACT
        )

    held()
    assert busy(verified, 50)


@pytest.mark.parametrize("parent", [[-1, 0, 0, 1, 1, 2, 3, 5], [-1, 0, 0, 0, 1, 1, 4, 4]])
def test_trees_of_seven_nodes(parent):
    world, rule = (
        World(11, 2 if parent.count(0) == 2 else 3, 0.3),
        Rule("rejection", 0.8, 0, 0, 0.95),
    )
    assert off(round_law(world, rule, parent, 4), world.true(rule, 4)) < EXACT


def test_children_that_nobody_drew_are_judged_as_certain():
    """Best tokens first, as a silent drafter or a deterministic tree submits them: no q, and the law is still the target's."""
    verified = []

    @HELD
    @given(seeds, rules, st.sampled_from([6, 4, 2, 7]), st.sampled_from([4, 3, 5]))
    def held(seed, rule, nodes, vocab):
        world, (parent, _) = World(seed, vocab), tree(seed, vocab, nodes)
        assert (
            off(
                round_law(world, rule, parent, 3, sure=range(8), verified=verified),
                world.true(rule, 3),
            )
            < EXACT
        )

    held()
    assert busy(verified, 6)


@pytest.mark.parametrize("rule", [Rule("rejection", 1.0, 0, 1), Rule("rejection", 0.3, 0, 0, 0.05)])
def test_a_rule_that_leaves_one_token_decides_the_text(rule):
    world = World(2, 4)
    found = round_law(world, rule, [-1, 0, 0, 1, 1], 3)
    assert off(found, world.true(rule, 3)) < EXACT
    assert max(found.values()) == 1


# ---- coins and draws


@HELD
@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.25, 1.0, 3.0]), min_size=1, max_size=7).filter(any), st.integers(0, 2**64 - 1),
    st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.floats(0, 1),
)  # fmt: skip
def test_a_draw_is_the_token_under_the_uniform_number_of_its_address(
    weights, seed, sequence, round, slot, odds
):
    draws, p = AddressedDraws(seed, sequence), torch.tensor(weights, dtype=torch.float64)
    for role in (DRAFT, RESIDUAL):
        u, below = uniform(seed, sequence, round, slot, role) * sum(weights), np.cumsum(weights)
        token = draws.sample(p, round, slot, role)
        assert weights[token] > 0
        assert token == 0 or below[token - 1] <= u + 1e-12
        assert u <= below[token] + 1e-12
    assert draws.accept(odds, round, slot) == (uniform(seed, sequence, round, slot, ACCEPT) < odds)
    assert draws.accept(1.0, round, slot)
    assert not draws.accept(0.0, round, slot)


def test_the_last_token_is_drawn_up_to_the_edge_and_no_impossible_one():
    p = torch.tensor([0.0, 0.3, 0.0, 0.7, 0.0], dtype=torch.float64)
    assert [_inverse_cdf(p, u) for u in (0.0, 0.2999999, 0.3000001, 1 - 2.0**-33, 1.0)] == [
        1,
        1,
        3,
        3,
        3,
    ]


class Astray:
    """Asks the branches at other addresses than it is asked for."""

    def __init__(self, inner, flip=lambda *at: at, draw=lambda *at: at):
        self.inner, self.at = inner, (flip, draw)

    def accept(self, odds, round, slot):
        return self.inner.accept(odds, *self.at[0](round, slot))

    def sample(self, p, round, slot, role):
        return self.inner.sample(p, *self.at[1](round, slot, role))


ASTRAY = {
    "one coin a round": dict(flip=lambda round, slot: (round, 0)),
    "the same coins in all rounds": dict(flip=lambda round, slot: (0, slot)),
    "the same drafts in all rounds": dict(draw=lambda round, slot, role: (0, slot, role)),
    "the draft's draw for the correction": dict(
        draw=lambda round, slot, role: (round, slot, DRAFT)
    ),
    "the coin for the correction": dict(
        draw=lambda round, slot, role: (round, slot + 1, ACCEPT if role == RESIDUAL else role)
    ),
}


@pytest.mark.parametrize("name", ["", *ASTRAY])
def test_each_number_is_used_once_and_a_second_use_changes_the_law(name):
    rule, policy, K = Rule("rejection"), parse("fixed:2"), 2
    asked, found, worst = [], {}, 0.0
    for seed in range(4):
        world, found = World(seed, 3, 0.2), {}

        def run(inner):
            asked.append(inner)
            draws = Astray(inner, **ASTRAY[name]) if name else inner
            return tuple(spoken(world, rule, policy, 4, K, draws, 0).token.tolist())  # noqa: B023

        found = law(run)
        worst = max(worst, off(found, world.true(rule, 4)))
    twice = sum(branches.again for branches in asked)
    assert (twice > 0 and worst > 1e-3) if name else (twice == 0 and worst < EXACT), worst


# ---- faults that must be seen


def faulty(
    rule,
    logits,
    draft,
    draws,
    round,
    end_tokens,
    bonus_from_q=False,
    clipped=True,
    updated=True,
    raw=False,
    one_coin=False,
):
    """`rejection_sample` written anew, with a fault of choice."""
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
                coin = draws.accept(odds, round, child) if coin is None else coin
                held = coin
            else:
                held = draws.accept(odds, round, child)
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
            committed.append(
                draws.sample(last if bonus_from_q and last is not None else left, round, row, 3)
            )
            return verify.VerifyResult(committed, [0], len(committed) - 1, p)
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
        return max(
            off(
                round_law(world, rule, [-1, 0, 0, 1], 2, accept_exact=planted(fault)),
                world.true(rule, 2),
            )
            for world in worlds
        )

    assert worst(FAULTS[name]) > 1e-2
    assert worst({}) < EXACT  # the rewritten walk is right where no fault is planted


def test_a_bonus_from_the_drafter_changes_the_law():
    """The classic slip: behind a full acceptance the next token is drawn from q's row in place of p's."""
    world, rule = World(5, 3, 0.3), Rule("rejection")

    def slip(rule, logits, draft, draws, round, end_tokens):
        texts = (), (draft.token[1],)
        verified = rejection_sample(rule, logits, draft, draws, round, end_tokens)
        if verified.accepted < 1:
            return verified
        return replace(
            verified,
            token=[
                draft.token[1],
                draws.sample(rule.probs(world.q(texts[1])[None])[0], round, 9, 3),
            ],
        )

    assert off(round_law(world, rule, chain(2), 2, accept_exact=slip), world.true(rule, 2)) > 1e-2


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

    def catch_up(self, tokens, output, path):
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
        return verdict_of(
            torch.zeros(len(token), 1), torch.stack([self.world.p(row) for row in rows])
        )

    def commit(self, path): ...

    def heard(self, r):
        self.text += r.verified.token


def verdict_of(hidden, logits=None):
    return TargetOutput(logits, hidden, {})


def spoken(world, rule, policy, budget, K, draws, seed, ends=()):
    target = Listener(world)
    drive = chain_plan(policy, K, seed, CostModel.from_ratio(0.2, K))
    return decode(target, Speaker(world), drive, rule, [0], budget, ends, 0, target.heard, draws)


def whole(world, rule, length, ends):
    """The target's law of whole texts of at most `length` tokens that end at an end token."""
    found = {}
    for text, odds in world.true(rule, length).items():
        found[until(text, ends)] = found.get(until(text, ends), 0.0) + odds
    return found


ALLOWED = (
    "fixed:0", "fixed:1", "fixed:2", "beta_ts", "beta_ts:censored", "beta_ts:printed,scope=stream", "cost_ts", "cost_ts:depth,decay=0.9",
    "hf_heuristic:1", "hf_heuristic:1,transient=true", "sampling_only",
    "confidence:0.6", "confidence:0.6,inclusive=false", "entropy:0.8", "product:0.5,inclusive=false", "draft_verify:0.5", "adaedl:0.4",
    "model_only:confidence", "cali_ts:draft_share,predictor=confidence", "cali_ts:validated,predictor=confidence,sigma_m=0.1",
)  # fmt: skip


def test_every_built_in_policy_is_in_the_exam():
    assert {text.split(":")[0] for text in ALLOWED} == set(BUILTIN) - set(CLAIRVOYANT)


@pytest.mark.parametrize("text", ALLOWED)
def test_whole_texts_follow_the_target_whatever_the_policy(text):
    """Adaptive and random policies too: the law holds for each way in which the policy's own draws fall."""
    for seed, rule, ends in (
        (1, Rule("rejection"), ()),
        (2, Rule("rejection", 0.8, 0, 0, 0.95), (2,)),
    ):
        world, budget, verified = World(seed, 3, 0.4), 4, []
        policy = parse(text)
        policy = (
            policy
            if isinstance(policy, Policy)
            else policy(SimpleNamespace(K=2), CostModel.from_ratio(0.2, 2))
        )

        def one(draws):
            verified.append(spoken(world, rule, policy, budget, 2, draws, seed, ends))  # noqa: B023
            return tuple(verified[-1].token.tolist())

        assert off(law(one), whole(world, rule, budget, ends)) < EXACT
        assert text == "fixed:0" or (
            len(verified) > 40 and len({len(r.position) for r in verified}) > 1
        )


@pytest.mark.parametrize("seed", range(3))
def test_a_policy_that_drops_blindly_keeps_the_law(seed):
    """It drops tokens, by its own draws: which token was drawn plays no part."""
    world, rule = World(seed, 3, 0.4), Rule("rejection", 0.9, 0, 0, 0.9)
    found = law(
        lambda draws: tuple(
            spoken(world, rule, at_random(0.7, 0.4), 3, 2, draws, seed).token.tolist()
        )
    )
    assert off(found, world.true(rule, 3)) < EXACT


def _drops_the_unlikely(params, state, slot, features, u):
    return slot < 2 and (slot == 0 or features[slot - 1, 0] >= params[0]), slot == 0 or features[
        slot - 1, 0
    ] >= params[0]


def _stops_at_the_unlikely(params, state, slot, features, u):
    return slot < 2 and (slot == 0 or features[slot - 1, 0] >= params[0]), True


def _ignore(params, state, computed, drafted, accepted, features, cost):
    pass


ANTICIPATING = Policy("drops", _drops_the_unlikely, _ignore, (0.4,), reads=("probability",))


def test_an_anticipating_policy_would_change_the_law_and_is_refused(monkeypatch):
    world, rule = World(3, 3, 0.2), Rule("rejection")
    with pytest.raises(PolicyError, match="drops a drawn token by which token it is"):
        law(lambda draws: tuple(spoken(world, rule, ANTICIPATING, 3, 2, draws, 0).token.tolist()))
    with pytest.raises(PolicyError, match="drops a drawn token by which token it is"):
        spoken(world, rule, replace(ANTICIPATING, anticipates=True), 3, 2, AddressedDraws(0, 0), 0)
    monkeypatch.setattr("simspec.stepper.Stepper._refuse", lambda self: None)
    found = law(
        lambda draws: tuple(spoken(world, rule, ANTICIPATING, 3, 2, draws, 0).token.tolist())
    )
    assert off(found, world.true(rule, 3)) > 1e-2  # why it is refused


def test_a_policy_may_stop_behind_the_token_that_it_saw():
    """HuggingFace's confidence threshold reads q of the drawn token and submits it: nothing is dropped."""
    policy = Policy("stops", _stops_at_the_unlikely, _ignore, (0.4,), reads=("probability",))
    world, rule = World(3, 3, 0.2), Rule("rejection")
    assert (
        off(
            law(lambda draws: tuple(spoken(world, rule, policy, 3, 2, draws, 0).token.tolist())),
            world.true(rule, 3),
        )
        < EXACT
    )


def test_real_decoders_with_caches_follow_the_target():
    """The same through a decoder and a drafter with a cache each, end tokens included."""
    decoder, small = (toy_decoder(seed, layers=2, vocab=3, spread=0.6) for seed in (0, 1))
    rule, ends = Rule("rejection", 1.3, 0, 0, 0.9), (2,)

    def one(draws):
        drive = chain_plan(parse("fixed:2"), 2, 0, CostModel.from_ratio(0.2, 2))
        return tuple(
            decode(
                Target(decoder, (), 16),
                ModelDrafter(small),
                drive,
                rule,
                [0, 1],
                3,
                ends,
                0,
                draws=draws,
            ).token.tolist()
        )

    true = {}
    for text in product(range(3), repeat=3):
        odds = 1.0
        for i, token in enumerate(text):
            odds *= float(rule.probs(decoder(torch.tensor([[0, 1, *text[:i]]]))[0, -1:])[0, token])
        cut = next((i + 1 for i, token in enumerate(text) if token in ends), 3)
        true[text[:cut]] = true.get(text[:cut], 0.0) + odds
    assert off(law(one), true) < EXACT


def test_all_outcomes_are_walked_once():
    found = list(
        outcomes(
            lambda c: (
                c.sample(torch.tensor([0.5, 0.0, 0.5]), 0, 0, 0),
                c.flip(0.25, 0, 0),
                c.flip(1.0, 0, 0),
            )
        )
    )
    assert sorted(found) == [
        ((0, False, True), 0.375),
        ((0, True, True), 0.125),
        ((2, False, True), 0.375),
        ((2, True, True), 0.125),
    ]
