"""Rounds of the decode loop equal those of transformers' assisted generation and prompt lookup.

Drafted, accepted and committed tokens of each round are compared, recorded at transformers'
candidate generators. Four of its conventions differ, and are avoided:
- Its lookup drafts past the budget: drafts are compared up to what the budget leaves.
- Its lookup stops before an end token, ours behind it: lookup runs without end tokens.
- It counts an accepted end token as the target's own: `accepted` is one less in that round. A
  schedule that carries over would change, so end tokens run with transient schedules only.
- Its assistant takes every pad token for padding: there is no pad token.
"""

import os
from contextlib import contextmanager
from functools import lru_cache

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.candidate_generator import (
    AssistedCandidateGenerator,
    PromptLookupCandidateGenerator,
)

from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.drafters.model import ModelDrafter
from real.drafters.prompt_lookup import PromptLookupDrafter
from real.model.checkpoint import from_transformers
from real.model.target import Target
from real.sampling import Rule
from simspec import CostModel, policies

VOCAB, BUDGET, END = 20, 28, 3
SLOW = os.environ.get("SIMSPEC_SLOW")


def _llama(layers):
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, initializer_range=0.2,
        tie_word_embeddings=True, max_position_embeddings=256, bos_token_id=None,
        eos_token_id=None, pad_token_id=None
    )  # fmt: skip
    return LlamaForCausalLM(config).double().eval()


@lru_cache
def _pair(seed):
    """A random target, and an assistant that lacks its last layer: it agrees often, not always."""
    torch.manual_seed(seed)
    target, assistant = _llama(4), _llama(3)
    assistant.load_state_dict(
        {k: v for k, v in target.state_dict().items() if not k.startswith("model.layers.3.")}
    )
    return target, assistant


@lru_cache
def _prompts(count=20 if SLOW else 8):
    generator = torch.Generator().manual_seed(9)

    def draw(low, high, n):
        return torch.randint(low, high, (n,), generator=generator).tolist()

    return [draw(END + 1, VOCAB, draw(1, 11, 1)[0]) for _ in range(count)]


@contextmanager
def _listening(kind):
    """Yields a list of [tokens before, candidates, accepted] by round of this generator class."""
    rounds, get, update = [], kind.get_candidates, kind.update_candidate_strategy

    def get_candidates(self, input_ids, **rest):
        candidates, logits = get(self, input_ids, **rest)
        rounds.append([input_ids.shape[1], candidates.shape[1] - input_ids.shape[1]])
        return candidates, logits

    def update_candidate_strategy(self, input_ids, scores, num_matches):
        rounds[-1].append(int(num_matches))
        return update(self, input_ids, scores, num_matches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "get_candidates", get_candidates)
        patch.setattr(kind, "update_candidate_strategy", update_candidate_strategy)
        yield rounds


def _theirs(rounds, model, prompt, **how):
    """(new tokens, rounds of (position, drafted, accepted)) of transformers' greedy generation."""
    ids = torch.tensor([prompt])
    rounds.clear()
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=BUDGET, **how
    )
    text = out[0, len(prompt) :].tolist()
    seen = [(before - len(prompt), drafted, accepted) for before, drafted, accepted in rounds]
    return text, [
        (position, min(drafted, BUDGET - position - 1), accepted)
        for position, drafted, accepted in seen
    ]


def _ours(target, drafter, drive, prompt, ends=()):
    result = decode(target, drafter, drive, Rule(), prompt, BUDGET, ends)
    return result.token.tolist(), list(
        zip(result.position.tolist(), result.drafted.tolist(), result.accepted.tolist())
    )


def _drive(policy):
    return chain_plan(policies.parse(policy), BUDGET, 0, CostModel.from_ratio(0.1, BUDGET))


def _mixed(rounds):
    """Whether many drafted tokens were accepted and many rejected."""
    drafted, accepted = (sum(r[i] for rows in rounds for r in rows) for i in (1, 2))
    return drafted > 13 * len(_prompts()) and 0.1 * drafted < accepted < 0.95 * drafted


SCHEDULES = [
    (0, "constant", 4, "fixed:4"),
    (1, "constant", 1, "fixed:1"),
    (1, "heuristic", 5, "hf_heuristic:5"),
    (0, "heuristic", 1, "hf_heuristic:1"),
    (2, "heuristic_transient", 5, "hf_heuristic:5,transient=true"),
]


@lru_cache
def _assisted(seed, schedule, start, ends=()):
    """Theirs, with an assistant model: (new tokens, rounds) of every prompt in turn."""
    model, assistant = _pair(seed)
    options = {
        "num_assistant_tokens": start,
        "num_assistant_tokens_schedule": schedule,
        "assistant_confidence_threshold": 0.0,
    }
    with _listening(AssistedCandidateGenerator) as rounds, pytest.MonkeyPatch.context() as patch:
        for name, value in options.items():
            patch.setattr(assistant.generation_config, name, value)
        return [
            _theirs(rounds, model, p, assistant_model=assistant, eos_token_id=list(ends) or None)
            for p in _prompts()
        ]


def _drafted(seed, policy, ends=()):
    """Ours, with the same model as a drafter; one stepper for all prompts."""
    model, assistant = _pair(seed)
    target = Target(from_transformers(model))
    drafter = ModelDrafter(from_transformers(assistant))
    drive = _drive(policy)
    return [_ours(target, drafter, drive, p, ends) for p in _prompts()]


@pytest.mark.parametrize("seed, schedule, start, policy", SCHEDULES)
def test_rounds_equal_assisted_generation(seed, schedule, start, policy):
    ours = _drafted(seed, policy)
    assert ours == _assisted(seed, schedule, start)
    assert _mixed([rounds for _, rounds in ours])


@pytest.mark.parametrize("policy", ["fixed:5", "hf_heuristic:4", "hf_heuristic:4,transient=true"])
def test_control_other_draft_lengths_are_detected(policy):
    theirs, ours = _assisted(0, "constant", 4), _drafted(0, policy)
    assert [text for text, _ in ours] == [text for text, _ in theirs]
    assert sum(a != b for a, b in zip(ours, theirs)) > 0.6 * len(_prompts())


def test_control_transient_schedule_differs():
    theirs, ours = _assisted(1, "heuristic", 5), _drafted(1, "hf_heuristic:5,transient=true")
    assert ours[0] == theirs[0]
    assert ours != theirs


@pytest.mark.parametrize("seed, schedule, start, policy", [SCHEDULES[0], (0, *SCHEDULES[-1][1:])])
def test_end_tokens_end_both(seed, schedule, start, policy):
    ended = by_draft = 0
    for (their_text, their_rounds), (text, rounds) in zip(
        _assisted(seed, schedule, start, (END,)), _drafted(seed, policy, (END,))
    ):
        assert text == their_text
        position, _, accepted = rounds[-1]
        behind = text[-1] == END and position + accepted == len(text)  # the end token was a draft's
        assert rounds == [*their_rounds[:-1], (*their_rounds[-1][:2], their_rounds[-1][2] + behind)]
        ended, by_draft = ended + (text[-1] == END), by_draft + behind
    assert 0 < by_draft < ended < len(_prompts())


@lru_cache
def _looked_up(seed, count, ngram_max):
    with _listening(PromptLookupCandidateGenerator) as rounds:
        how = {"prompt_lookup_num_tokens": count, "max_matching_ngram_size": ngram_max}
        return [_theirs(rounds, _pair(seed)[0], p, **how) for p in _prompts()]


def _found(seed, count, drafter):
    target, drive = Target(from_transformers(_pair(seed)[0])), _drive(f"fixed:{count}")
    return [_ours(target, drafter, drive, p) for p in _prompts()]


@pytest.mark.parametrize("seed, count, ngram_max", [(0, 4, 2), (0, 10, 3), (1, 3, 1), (2, 6, 4)])
def test_rounds_equal_prompt_lookup_generation(seed, count, ngram_max):
    ours = _found(seed, count, PromptLookupDrafter(ngram_max))
    assert ours == _looked_up(seed, count, ngram_max)
    assert _mixed([rounds for _, rounds in ours])
    assert any(drafted == 0 for _, rounds in ours for _, drafted, _ in rounds)


@pytest.mark.parametrize("settings", [{"match": "last"}, {"ngram_min": 2}, {"ngram_max": 1}])
def test_control_other_lookup_is_detected(settings):
    theirs = _looked_up(0, 4, 2)
    ours = _found(0, 4, PromptLookupDrafter(**{"ngram_max": 2} | settings))
    assert [text for text, _ in ours] == [text for text, _ in theirs]
    assert sum(a != b for a, b in zip(ours, theirs)) > 0.2 * len(_prompts())
