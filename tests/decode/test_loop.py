"""The decode loop's own rules: caps, end tokens, and whose distributions verification receives."""

import pytest
import torch
from toy_lm import VOCAB, toy_cost, toy_target

from real.decode import loop
from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.decode.verify import rejection_sample
from real.draft import Drafter, Step
from real.model.target import Target
from real.sampling import Rule
from simspec import Policy, policies

LOGITS = torch.linspace(0, 1, VOCAB, dtype=torch.float64)
PROMPT = [5, 6]


class Turns(Drafter):
    """Samples its tokens in even rounds, and offers token 7 without a draw in odd ones."""

    name, prefix_only, history_free = "turns", False, False

    def begin(self, target, prompt, prefill, pick):
        self.pick, self.round, self.slot = pick, 0, 0

    def next(self):
        token = 7 if self.round % 2 else self.pick(LOGITS, self.slot)
        self.slot += 1
        return Step(token, self.slot - 1, None if self.round % 2 else LOGITS)

    def catch_up(self, tokens, output, path):
        self.round, self.slot = self.round + 1, 0


def run(policy, drafter, rule=None, budget=9, end_tokens=()):
    policy = policies.parse(policy) if isinstance(policy, str) else policy
    plan = chain_plan(policy, 6, 0, toy_cost())
    rule = rule or Rule()
    return decode(Target(toy_target()), drafter, plan, rule, PROMPT, budget, end_tokens)


def test_verification_receives_the_distributions_of_its_own_round(monkeypatch):
    seen = []

    def noted(rule, logits, draft, *rest):
        seen.append(sorted(draft.q))
        return rejection_sample(rule, logits, draft, *rest)

    monkeypatch.setattr(loop, "rejection_sample", noted)
    result = run("fixed:3", Turns(), Rule("rejection", 1.0, 3), budget=12)
    drafted = result.drafted.tolist()
    assert len(drafted) > 2
    assert seen == [list(range(k)) if r % 2 == 0 else [] for r, k in enumerate(drafted)]


def _two(params, state, slot, features, u):
    return slot < 2, False


def _nothing(params, state, computed, drafted, accepted, features, cost):
    pass


class Right(Drafter):
    """Offers the target's own tokens, `plain`."""

    name, has_logits = "right", False

    def __init__(self, plain):
        self.plain = plain

    def begin(self, target, prompt, prefill, pick):
        self.done = self.slot = 0

    def next(self):
        token = self.plain[min(self.done + self.slot, len(self.plain) - 1)]
        self.slot += 1
        return Step(token, self.slot - 1, None)

    def catch_up(self, tokens, output, path):
        self.done, self.slot = self.done + len(tokens), 0


@pytest.fixture(scope="module")
def plain():
    """Twenty greedy tokens of the toy target."""
    return run("fixed:0", Drafter(), budget=20).token.tolist()


def test_a_draft_leaves_room_for_the_target_token(plain):
    result = run("fixed:6", Right(plain), budget=9)
    assert result.token.tolist() == plain[:9]
    assert result.drafted.tolist() == [6, 1]
    assert result.accepted.tolist() == [6, 1]


@pytest.mark.parametrize("policy", ["fixed:0", "fixed:6"])
def test_decoding_ends_at_the_first_end_token(plain, policy):
    place = next(i for i in range(1, 20) if plain[i] not in plain[:i])
    result = run(policy, Right(plain), budget=20, end_tokens=(plain[place],))
    assert result.token.tolist() == plain[: place + 1]


def test_nothing_is_drafted_behind_a_drafted_end_token(plain):
    place = next(i for i in range(1, 5) if plain[i] not in plain[:i])
    result = run("fixed:6", Right(plain), budget=20, end_tokens=(plain[place],))
    assert result.computed.tolist() == [place + 1]


def test_a_dropped_token_is_computed_and_not_submitted(plain):
    result = run(Policy("drops", _two, _nothing), Right(plain), budget=9)
    assert result.token.tolist() == plain[:9]
    assert result.computed.tolist()[:2] == [2, 2]
    assert result.drafted.tolist()[:2] == result.accepted.tolist()[:2] == [1, 1]
