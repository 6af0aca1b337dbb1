"""A drafter with a backlog, or after a rejection, proposes what a fresh drafter would."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import DRAFTERS, PREFIX, RULES, taught, toy_pair, toy_prompts

from real.draft import Step
from real.drafters.glide import GlideDrafter, GlideModel, glide_loss
from real.drafters.model import ModelDrafter
from real.model.passes import chain

CACHED = {"model", "early_exit", "eagle", "glide", "glide2", "sorted"}
PICK = RULES["greedy"]


def _pick(logits, slot, *_):
    return int(PICK.scores(logits[None], 0, [slot]).argmax())


def _begin(drafter, target, prompt, pick=_pick):
    drafter.begin(target, prompt, target.prefill(prompt[:-1]), pick)


def _steps(drafter, k):
    """Up to k steps: what the drafter offers."""
    steps = []
    while len(steps) < k and (step := drafter.next()) is not None:
        steps.append(step)
    return steps


def _draft(drafter, k):
    """The tokens of up to k steps and their logits, an empty tensor for a drafter without."""
    steps = _steps(drafter, k)
    rows = [s.logits for s in steps if s.logits is not None]
    assert len(rows) in (0, len(steps))
    assert (not rows) == (not drafter.has_logits or not steps)
    return [s.token for s in steps], torch.stack(rows) if rows else torch.zeros(0)


def _round(target, drafter, text, computed, drafted, accepted, miss):
    """One round that accepts exactly `accepted` drafted tokens; returns the committed tokens."""
    token = [s.token for s in _steps(drafter, computed)][:drafted]
    accepted = min(accepted, len(token))
    output = target.verify([text[-1], *token], chain(len(token) + 1), drafter.resume())
    path = list(range(accepted + 1))
    target.commit(path)
    drafter.rollback(accepted)
    committed = [*token[:accepted], miss]
    drafter.catch_up(committed, output, path)
    return committed


def _same_draft(one, other, k):
    """Whether two drafters draft the same, to 1e-12 in their logits."""
    (tokens, logits), (expected_tokens, expected) = _draft(one, k), _draft(other, k)
    assert tokens == expected_tokens
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)


def _same_rows(one, other, rows):
    """Whether two caches hold the same keys and values of the first rows, to 1e-12."""
    for x, y in ((one.key, other.key), (one.value, other.value)):
        torch.testing.assert_close(x[:, :, :, :rows], y[:, :, :, :rows], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("rounds", [1, 5, 50])
def test_chain_after_rounds_without_drafts_equals_a_fresh_one(name, rounds):
    (target, drafter), (other, fresh) = toy_pair(name), toy_pair(name)
    text = list(toy_prompts(1, rounds)[0])
    _begin(drafter, target, text)
    for i in range(rounds):
        text += _round(target, drafter, text, 0, 0, 0, 4 + i % 9)
    _begin(fresh, other, text)
    _same_draft(drafter, fresh, 5)


ROUND = st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 5), st.integers(4, 20))


@pytest.mark.parametrize("name", DRAFTERS)
@settings(deadline=None, max_examples=25)
@given(st.integers(0, 99), st.lists(ROUND, min_size=1, max_size=10))
def test_cache_and_chain_after_rounds_equal_fresh_ones(name, seed, rounds):
    (target, drafter), (other, fresh) = toy_pair(name), toy_pair(name)
    text = list(toy_prompts(1, seed)[0])
    _begin(drafter, target, text)
    for computed, drop, accepted, miss in rounds:
        drafted = computed - 1 if drop and computed else computed
        text += _round(target, drafter, text, computed, drafted, min(accepted, drafted), miss)
    rows = len(text) - 1
    assert target.length == rows
    _begin(fresh, other, text)
    _same_draft(drafter, fresh, 4)
    _same_rows(target.cache, other.cache, rows)
    # rows of a sorted model reach its deeper layers when a token needs them: see test_sorted.py
    if hasattr(drafter, "cache") and name != "sorted":
        _same_rows(drafter.cache, fresh.cache, rows)


def test_drafters_with_a_kv_cache_are_known():
    """The exam above compares it: none is left out by another name."""
    target, *_ = toy_pair("model")
    for name in DRAFTERS:
        target, drafter = toy_pair(name)
        _begin(drafter, target, [5, 6, 7])
        held = [key for key, value in vars(drafter).items() if type(value).__name__ == "KVCache"]
        assert held == (["cache"] if name in CACHED else []), name
        assert hasattr(drafter, "rows") == (name in CACHED), name


def _forgets_all(drafter):
    drafter.rollback = lambda accepted: None


def _forgets_rows(drafter):
    def forgetful(accepted):
        rows = drafter.rows
        type(drafter).rollback(drafter, accepted)
        drafter.rows = rows

    drafter.rollback = forgetful


CARELESS = [(name, _forgets_all) for name in DRAFTERS]
CARELESS += [(name, _forgets_rows) for name in sorted(CACHED)]


@pytest.mark.parametrize("name, spoil", CARELESS)
def test_control_missing_rollback_is_caught(name, spoil):
    (target, drafter), (other, fresh) = toy_pair(name), toy_pair(name)
    spoil(drafter)
    text = [5, 9, 11, 5, 9, 12, 8, 5, 9]
    _begin(drafter, target, text)
    text += _round(target, drafter, text, 4, 4, 1, 5)
    with pytest.raises((AssertionError, RuntimeError, IndexError)):
        for token in (9, 11, 5):  # the text grows over the rows that should have gone
            text += _round(target, drafter, text, 0, 0, 0, token)
        _begin(fresh, other, text)
        _same_draft(drafter, fresh, 3)


WHOLE = [*toy_prompts(1, 8)[0][:1], 5, 9, 11, 5, 9, 11, 4, 8, 5, 9]
WAYS = ((len(WHOLE), 0), (1, 0), (1, 3), (4, 2), (2, 5))


def _reached(target, drafter, cut, computed):
    """The drafter at WHOLE, from its first `cut` tokens by rounds of `computed` drafted tokens."""
    forced, text = True, WHOLE[:cut]

    def pick(logits, slot, *_):
        return (
            WHOLE[len(text) + slot]
            if forced and len(text) + slot < len(WHOLE)
            else _pick(logits, slot)
        )

    _begin(drafter, target, text, pick)
    while len(text) < len(WHOLE):
        steps = [s.token for s in _steps(drafter, computed)]
        drafter.rollback(0)
        ahead = WHOLE[len(text) : -1]
        held = next(
            (i for i, (a, b) in enumerate(zip(steps, ahead)) if a != b), min(len(steps), len(ahead))
        )
        text += _round(target, drafter, text, computed, computed, held, WHOLE[len(text) + held])
    forced = False
    tokens, logits = _draft(drafter, 4)
    return tuple(tokens), tuple(logits.flatten().mul(1e9).round().tolist())


@pytest.mark.parametrize("name", DRAFTERS)
def test_declared_history_free_holds(name):
    """The proposal depends on the prefix only, not on the rounds that led to it."""
    assert toy_pair(name)[1].history_free
    assert len({_reached(*toy_pair(name), *way) for way in WAYS}) == 1


def test_control_history_is_caught():
    """Two-layer GLIDE keeps accepted rows as drafted, as published: the check detects it."""
    target, _ = toy_pair("glide2")
    part = taught(GlideModel, glide_loss, layers=2, rebuild=False)
    assert not GlideDrafter(target.decoder, part).history_free
    assert len({_reached(target, GlideDrafter(target.decoder, part), *way) for way in WAYS}) > 1


# a lookup of 4 finds "5 6 7 10", one of 5 6 7 finds 8
LOOKED_UP = [5, 6, 7, 8, 9, 4, 5, 6, 7, 10, 11, 4]


def _shift_gap(target, drafter, accepted, prompt):
    """Distance of a chain's tail from its redraft after verification; inf if tokens differ."""
    text = list(prompt)
    _begin(drafter, target, text)
    tokens, logits = _draft(drafter, 6)
    drafter.rollback(0)
    if len(tokens) <= accepted:
        return 0.0
    _round(target, drafter, text, accepted, accepted, accepted, tokens[accepted])
    anew_tokens, anew = _draft(drafter, 5 - accepted)
    tail, both = tokens[accepted + 1 :], slice(0, min(len(tokens) - accepted - 1, len(anew_tokens)))
    if tail[both] != anew_tokens[both]:
        return float("inf")
    return (
        float((logits[accepted + 1 :][both] - anew[both]).abs().max()) if len(anew[both]) else 0.0
    )


def _shift_gaps(target, drafter):
    return [
        _shift_gap(target, drafter, a, prompt)
        for prompt in (*toy_prompts(3, 8), LOOKED_UP)
        for a in (0, 2, 4)
    ]


class Weary(ModelDrafter):
    """A drafter whose confidence falls with its distance from verified tokens."""

    def next(self):
        step = super().next()
        return Step(step.token, step.parent, step.logits / (1 + step.parent))


@pytest.mark.parametrize("name", DRAFTERS)
def test_declared_prefix_only_holds(name):
    """And where it is declared not to hold, it does not."""
    target, drafter = toy_pair(name)
    gap = max(_shift_gaps(target, drafter))
    assert gap < 1e-12 if drafter.prefix_only else gap > 1e-3
    assert drafter.prefix_only == (name in (*PREFIX, "sorted"))


def test_control_distance_dependence_is_not_prefix_only():
    target, drafter = toy_pair("model")
    assert max(_shift_gaps(target, Weary(drafter.lm))) > 1e-3 > max(_shift_gaps(target, drafter))
