"""Every built-in drafter keeps the protocol, and no pass of the target hides in its drafting."""

import inspect
from contextlib import contextmanager

import pytest
import torch
from toy_lm import DRAFTERS as RECORDED
from toy_lm import END, NEW, RULES, UNRECORDED, at_random, toy_cost, toy_pair, toy_prompts

from real.decode.features import drafter_features
from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.draft import Drafter
from real.drafters import BUILTIN

DRAFTERS = (*RECORDED, *UNRECORDED, *NEW)
TARGET = 8  # attention and MLP sub-layers of the toy target
SUBLAYERS = {"early_exit": 4, "self_skip": 7}  # of a drafted token; 0 for others


def test_every_builtin_drafter_is_tested():
    """tests/test_suffix.py has the exam of suffix decoding."""
    examined = set(BUILTIN) - {"suffix"}
    assert set(DRAFTERS) >= examined
    assert {toy_pair(name)[1].name for name in DRAFTERS} == examined


@pytest.mark.parametrize("name", DRAFTERS)
def test_attributes_are_declared(name):
    _, drafter = toy_pair(name)
    silent = not drafter.has_logits
    assert isinstance(drafter, Drafter)
    assert drafter.name == name.rstrip("2")
    assert all(type(value) is bool for value in (drafter.prefix_only, drafter.history_free, silent))
    assert isinstance(drafter.taps, tuple)
    assert drafter.predictors == {}
    assert drafter_features(drafter) == (() if silent else ("confidence", "entropy"))
    assert list(inspect.signature(BUILTIN[drafter.name].load).parameters) == [
        "folder",
        "target",
        "made_for",
    ]


@pytest.mark.parametrize("name", RECORDED)  # those offer a token behind any prefix
def test_steps_carry_the_logits_they_were_picked_from(name):
    target, drafter = toy_pair(name)
    prompt, picked = [5, 9, 11, 5, 9], []

    def pick(logits, slot, *_):
        picked.append((slot, logits))
        return int(logits.argmax())

    drafter.begin(target, prompt, target.prefill(prompt[:-1]), pick)
    steps = [drafter.next() for _ in range(3)]
    for slot, step in enumerate(steps):
        assert step.parent == slot
        assert 0 <= step.token < 24
        if not drafter.has_logits:
            assert step.logits is None
            assert not picked
            assert step.hidden is None
        else:
            assert picked[slot][0] == slot
            assert torch.equal(picked[slot][1], step.logits)
            assert step.token == step.logits.argmax()
            assert step.logits.shape == (24,)
            assert step.logits.dtype == torch.float64
            assert step.hidden.shape == (16,)


class Counted:
    """Counts the sub-layers of the target that run, by the call of the loop that they run in."""

    def __init__(self, target, drafter):
        self.where, self.counts, self.steps = "elsewhere", [], []
        for layer in target.decoder.layers:
            for half in ("attend", "mlp"):
                vars(layer)[half] = self._noting(getattr(layer, half))
        self.undo = lambda: [
            vars(layer).pop(half) for layer in target.decoder.layers for half in ("attend", "mlp")
        ]
        for owner, names in (
            (target, ("prefill", "verify")),
            (drafter, ("begin", "next", "resume", "rollback", "catch_up")),
        ):
            for name in names:
                setattr(owner, name, self._within(name, getattr(owner, name)))

    def _noting(self, half):
        def noted(x, *rest, **options):
            self.counts[-1][1] += 1
            return half(x, *rest, **options)

        self.counts.append(["elsewhere", 0])
        return noted

    def _within(self, name, call):
        def marked(*arguments):
            self.counts.append([name, 0])
            result = call(*arguments)
            if name == "next":
                self.steps.append((self.counts[-1][1], result is not None))
            self.counts.append(["elsewhere", 0])
            return result

        return marked

    def counts_of(self, name):
        """Sub-layers of each call of that name, in order."""
        return [count for where, count in self.counts if where == name]


@contextmanager
def counted(target, drafter):
    counter = Counted(target, drafter)
    try:
        yield counter
    finally:
        counter.undo()


def passes(name, rule, spoil=lambda drafter, target: None):
    """Cost of runs of a random policy on the toy target: (sub-layers by call, rounds, prompt)."""
    for seed, prompt in enumerate(toy_prompts(3, 4)):
        target, drafter = toy_pair(name)
        spoil(drafter, target)
        with counted(target, drafter) as counter:
            drive = chain_plan(at_random(0.8, 0.7), 6, seed, toy_cost())
            result = decode(target, drafter, drive, RULES[rule], prompt, 20, END, seed)
        yield counter, result, prompt


def check_passes(name, rule, spoil=lambda drafter, target: None):
    drafted = 0
    for counter, result, prompt in passes(name, rule, spoil):
        assert counter.counts_of("prefill") == [TARGET if len(prompt) > 1 else 0]
        assert len(counter.counts_of("verify")) == len(result.position)
        # a verification may leave out what the drafter has run already, never more
        least = TARGET - (SUBLAYERS["early_exit"] if name == "early_exit" else 0)
        assert all(least <= count <= TARGET for count in counter.counts_of("verify"))
        assert [count for count, offered_one in counter.steps] == [
            SUBLAYERS.get(name, 0) * offered_one for _, offered_one in counter.steps
        ]
        for call in ("begin", "resume", "rollback", "catch_up", "elsewhere"):
            assert sum(counter.counts_of(call)) == 0, call
        drafted += sum(offered_one for _, offered_one in counter.steps)
        assert sum(result.computed) == sum(offered_one for _, offered_one in counter.steps)
    assert drafted > 10


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", DRAFTERS)
def test_drafting_runs_no_hidden_target_pass(name, rule):
    check_passes(name, rule)


def _peeks(call):
    def spoil(drafter, target):
        honest = getattr(drafter, call)

        def peeking(*arguments):
            target.draft_rows([5], 0, 1)
            return honest(*arguments)

        setattr(drafter, call, peeking)

    return spoil


@pytest.mark.parametrize("call", ["next", "catch_up", "rollback", "resume"])
@pytest.mark.parametrize("name", ["model", "self_skip", "medusa"])
def test_control_hidden_target_passes_are_caught(name, call):
    with pytest.raises(AssertionError):
        check_passes(name, "greedy", _peeks(call))
