"""The text of a run is the target's own, token for token, whatever is drafted."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import DRAFTERS as RECORDED
from toy_lm import END, RULES, UNRECORDED, VOCAB, ToyPairs, at_random, toy_cost, toy_prompts

from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.draft import Silent, Step
from real.record import Settings
from real.record.sequences import target_sequence
from real.sampling import Rule
from simspec import policies

DRAFTERS = (*RECORDED, *UNRECORDED)
PAIRS = ToyPairs()
RULES = RULES | {
    "warm": Rule("coupled", 1.0, 6),
    "top_k": Rule("coupled", 1.0, 7, 4),
    "top_p": Rule("coupled", 1.3, 8, 0, 0.7),
}


@settings(deadline=None, max_examples=90)
@given(
    st.sampled_from(DRAFTERS), st.sampled_from(list(RULES)), st.integers(0, 200),
    st.floats(0, 0.95), st.floats(0, 1), st.integers(1, 16)
)  # fmt: skip
def test_any_draft_length_commits_the_targets_sequence(drafter, rule, seed, go, keep, budget):
    target, model = PAIRS[drafter]
    prompt = toy_prompts(1, seed)[0]
    expected, _ = target_sequence(target, Settings(6, budget, RULES[rule], END), prompt, seed)
    drive = chain_plan(at_random(go, keep), 6, seed, toy_cost())
    result = decode(target, model, drive, RULES[rule], prompt, budget, END, seed)
    assert result.token.tolist() == expected.tolist()
    # no bonus after an accepted end token
    assert result.accepted.sum() + len(result.accepted) - len(expected) in (0, 1)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 100), st.sampled_from(list(RULES)))
def test_target_sequence_equals_full_forward_passes(seed, rule):
    """The loop's plain decoding against whole forward passes and the rule written out."""
    target, _ = PAIRS["model"]
    prompt, budget = toy_prompts(1, seed)[0], 10
    text = list(prompt)
    with torch.inference_mode():
        while len(text) < len(prompt) + budget and (
            len(text) == len(prompt) or text[-1] not in END
        ):
            logits = target.decoder(torch.tensor([text]))[0, -1:]
            text.append(int(RULES[rule].scores(logits, seed, [len(text) - len(prompt)]).argmax()))
    expected, _ = target_sequence(target, Settings(6, budget, RULES[rule], END), prompt, seed)
    assert expected.tolist() == text[len(prompt) :]


class Stubborn(Silent):
    """Proposes one token for ever."""

    name = "stubborn"

    def begin(self, target, prompt, prefill, pick):
        self.slot = 0

    def next(self):
        self.slot += 1
        return Step(7, self.slot - 1, torch.zeros(VOCAB, dtype=torch.float64))

    def rollback(self, accepted):
        self.slot = 0


def test_bad_drafter_changes_only_the_speed():
    target, _ = PAIRS["model"]
    for seed, prompt in enumerate(toy_prompts(8)):
        expected, _ = target_sequence(target, Settings(6, 16, Rule(), END), prompt, seed)
        drive = chain_plan(policies.BUILTIN["fixed"](4), 6, 0, toy_cost())
        assert (
            decode(target, Stubborn(), drive, Rule(), prompt, 16, END, seed).token.tolist()
            == expected.tolist()
        )


def test_control_unverified_drafts_are_detected(monkeypatch):
    from real.decode import loop as module
    from real.decode.verify import VerifyResult

    def trusting(rule, logits, token, parent, sequence, position, end_tokens, forced):
        scores = rule.scores(logits, sequence, [position + i for i in range(len(token))])
        return VerifyResult(
            [*token[1:], int(scores[-1].argmax())], list(range(len(token))), len(token) - 1, scores
        )

    target, model = PAIRS["model"]
    differing = 0
    for seed, prompt in enumerate(toy_prompts(8)):
        expected, _ = target_sequence(target, Settings(6, 16, Rule(), END), prompt, seed)
        drive = chain_plan(policies.BUILTIN["fixed"](4), 6, 0, toy_cost())
        with monkeypatch.context() as patch:
            patch.setattr(module, "accept_exact", trusting)
            result = decode(target, model, drive, Rule(), prompt, 16, (), seed)
        differing += not np.array_equal(result.token[: len(expected)], expected)
    assert differing > 0
