"""A drafter that was left behind, or drafted past a rejection, stands where a fresh one would stand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import DRAFTERS, RULES, toy_pair, toy_prompts

from real.block import chain
from real.draft import Step
from real.drafters.model import ModelDrafter

PICK = RULES["greedy"]


def _pick(logits, slot):
    return int(PICK.scores(logits[None], 0, [slot]).argmax())


def _begin(drafter, target, prompt):
    drafter.begin(target, prompt, target.prefill(prompt[:-1]), _pick)


def _draft(drafter, k):
    steps = [drafter.next() for _ in range(k)]
    return [s.token for s in steps], torch.stack([s.logits for s in steps])


def _round(target, drafter, text, computed, drafted, accepted, miss):
    """One round whose verification is told to accept so many; returns the tokens committed."""
    token = [drafter.next().token for _ in range(computed)][:drafted]
    verdict = target.verify([text[-1], *token], chain(drafted + 1), drafter.resume())
    path = list(range(accepted + 1))
    target.keep(path)
    drafter.rollback(accepted)
    committed = [*token[:accepted], miss]
    drafter.catch_up(committed, verdict, path)
    return committed


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("rounds", [1, 5, 50])
def test_after_rounds_of_no_draft_the_next_chain_is_a_fresh_one(name, rounds):
    (target, drafter), (other, fresh) = toy_pair(name), toy_pair(name)
    text = list(toy_prompts(1, rounds)[0])
    _begin(drafter, target, text)
    for i in range(rounds):
        text += _round(target, drafter, text, 0, 0, 0, 4 + i % 9)
    tokens, logits = _draft(drafter, 5)
    _begin(fresh, other, text)
    expected_tokens, expected = _draft(fresh, 5)
    assert tokens == expected_tokens
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)


ROUND = st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 5), st.integers(4, 20))


@settings(deadline=None, max_examples=80)
@given(st.sampled_from(DRAFTERS), st.integers(0, 99), st.lists(ROUND, min_size=1, max_size=12))
def test_after_any_rounds_caches_and_chain_are_fresh_ones(name, seed, rounds):
    (target, drafter), (other, fresh) = toy_pair(name), toy_pair(name)
    text = list(toy_prompts(1, seed)[0])
    _begin(drafter, target, text)
    for computed, drop, accepted, miss in rounds:
        drafted = computed - 1 if drop and computed else computed
        text += _round(target, drafter, text, computed, drafted, min(accepted, drafted), miss)
    assert target.length == len(text) - 1
    tokens, logits = _draft(drafter, 4)
    _begin(fresh, other, text)
    expected_tokens, expected = _draft(fresh, 4)
    assert tokens == expected_tokens
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
    rows = len(text) - 1
    for a, b in ((target.cache, other.cache), (drafter.cache, fresh.cache)):
        for x, y in ((a.key, b.key), (a.value, b.value)):
            torch.testing.assert_close(x[:, :, :, :rows], y[:, :, :, :rows], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", DRAFTERS)
def test_control_a_drafter_that_forgets_to_roll_back_is_caught(name, monkeypatch):
    (target, drafter), (other, fresh) = toy_pair(name), toy_pair(name)

    def forgetful(accepted):
        rows = drafter.rows
        type(drafter).rollback(drafter, accepted)
        drafter.rows = rows

    monkeypatch.setattr(drafter, "rollback", forgetful)
    text = list(toy_prompts(1, 3)[0])
    _begin(drafter, target, text)
    text += _round(target, drafter, text, 4, 4, 1, 9)
    with pytest.raises((AssertionError, RuntimeError, IndexError)):
        for _ in range(3):  # the text grows over the rows that should have gone
            text += _round(target, drafter, text, 0, 0, 0, 9)
        _, logits = _draft(drafter, 3)
        _begin(fresh, other, text)
        torch.testing.assert_close(logits, _draft(fresh, 3)[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", DRAFTERS)
def test_declared_history_free_holds(name):
    """The same prefix reached by prompt, by text, by short or long rounds: one proposal."""
    shown = set()
    for cut, computed in ((7, 0), (1, 0), (1, 3), (4, 2)):
        target, drafter = toy_pair(name)
        whole = toy_prompts(1, 8)[0][:1] + [5, 9, 11, 4, 8, 6]
        text = whole[:cut]
        _begin(drafter, target, text)
        while len(text) < len(whole):
            text += _round(target, drafter, text, computed, computed, 0, whole[len(text)])
        tokens, logits = _draft(drafter, 4)
        shown.add((tuple(tokens), tuple(logits.flatten().mul(1e9).round().tolist())))
    assert drafter.history_free and len(shown) == 1


def _shift_gap(target, drafter, accepted):
    """How far a chain's tail is from the chain drafted anew once its first tokens have been verified."""
    text = list(toy_prompts(1, 8)[0])
    _begin(drafter, target, text)
    tokens, logits = _draft(drafter, 6)
    drafter.rollback(0)
    _round(target, drafter, text, accepted, accepted, accepted, tokens[accepted])
    _, anew = _draft(drafter, 5 - accepted)
    return float((logits[accepted + 1 :] - anew).abs().max())


class Weary(ModelDrafter):
    """Less sure the further it is from verified text, as drafters are that read the target's features."""

    def next(self):
        step = super().next()
        return Step(step.token, step.parent, step.logits / (1 + step.parent))


@pytest.mark.parametrize("accepted", [0, 2, 4])
@pytest.mark.parametrize("name", DRAFTERS)
def test_declared_prefix_only_holds(name, accepted):
    target, drafter = toy_pair(name)
    assert drafter.prefix_only and _shift_gap(target, drafter, accepted) < 1e-12


def test_control_a_drafter_that_feels_the_distance_is_not_prefix_only():
    target, drafter = toy_pair("model")
    assert _shift_gap(target, Weary(drafter.lm), 2) > 1e-3
