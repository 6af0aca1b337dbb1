"""Draft vocabularies: lossless under every rule, replayed exactly, stored with a map back."""

import json
from functools import lru_cache

import numpy as np
import pytest
import torch
from enumerated_world import EXACT, HELD, World, off, round_distribution, rules, seeds, tree
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from test_medusa import shaken
from test_parallel_drafters import same
from toy_lm import (
    END,
    RULES,
    VOCAB,
    ToySequences,
    at_random,
    part_of,
    policy_from,
    recorded,
    run_all,
    toy_cost,
    toy_decoder,
    toy_prompts,
    toy_target,
)
from toy_training import asked, drafter_data

from real.decode.features import drafter_features
from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.decode.verify import rejection_sample
from real.drafters import BUILTIN, parallel_form
from real.drafters.eagle import EagleHead
from real.drafters.early_exit import EarlyExitHead
from real.drafters.glide import GlideModel
from real.drafters.hydra import HydraHeads
from real.drafters.medusa import MedusaHeads
from real.drafters.model import ModelDrafter
from real.model.checkpoint import WeightsError
from real.model.draft_head import (
    DraftVocabularyHead,
    check_vocabulary,
    load_draft_head,
    save_draft_head,
)
from real.model.target import Target
from real.record import Settings
from real.record.rows import record_parallel, record_prefix_only, record_rejection, record_stepwise
from real.record.sequences import target_sequence
from real.rerun import rounds_of
from real.sampling import Rule
from real.train.train import most_frequent, train_weights
from simspec import replay

TOKENS = torch.tensor([3, 4, 5, 7, 8, 9, 12, 13, 17, 20, 21, 23])
MADE_FOR = {"weights": "w", "config": "c", "tokenizer": "t"}
HEADS = {
    "early_exit": lambda target: EarlyExitHead(target, 2),
    "early_exit, own head": lambda target: shaken(EarlyExitHead, target, depth=2, own_head=True),
    "eagle": lambda target: part_of("eagle"),
    "medusa": lambda target: part_of("medusa"),
    "medusa, own head": lambda target: shaken(MedusaHeads, target, own_head=True),
    "hydra": lambda target: part_of("hydra"),
    "hydra, own head": lambda target: shaken(HydraHeads, target, own_head=True, residual=True),
    "glide": lambda target: part_of("glide"),
    "glide, own embedding": lambda target: shaken(GlideModel, target, shared=False, width=24),
}
KINDS = (*HEADS, "model")


def head_of(kind, token=TOKENS):
    """A draft head of its own, restricted where tokens are given."""
    target, name = toy_target(), kind.split(",")[0]
    torch.manual_seed(0)
    whole = HEADS[kind](target)
    head = BUILTIN[name].recipe.head(target, **whole.settings)
    head.load_state_dict(whole.state_dict())
    if token is not None:
        head.restrict(target, token)
    return head.requires_grad_(False).eval()


def drafter_of(kind, token=TOKENS):
    target, name = toy_target(), kind.split(",")[0]
    if name == "model":
        lm = toy_decoder(0)
        if token is not None:
            lm.head = DraftVocabularyHead(lm.head, token)
        return ModelDrafter(lm)
    return BUILTIN[name].recipe.drafter(target, head_of(kind, token))


@lru_cache
def pair_of(kind):
    drafter = drafter_of(kind)
    return Target(toy_target(), drafter.taps, capacity=32), drafter


def drafted_logits(drafter, prompt=(5, 9, 11, 4)):
    target = Target(toy_target(), drafter.taps, capacity=32)
    prompt = list(prompt)
    drafter.begin(target, prompt, target.prefill(prompt[:-1]), lambda x, *_: int(x.argmax()))
    return torch.stack([drafter.next().logits for _ in range(3)])


@pytest.mark.parametrize("kind", KINDS)
def test_logits_inside_are_those_of_the_whole_head(kind):
    """The first draft: later ones may follow another token."""
    whole, cut = (drafted_logits(drafter_of(kind, token))[0] for token in (None, TOKENS))
    inside = torch.zeros(VOCAB, dtype=torch.bool)
    inside[TOKENS] = True
    assert cut.shape == (VOCAB,)
    assert (cut[inside] - whole[inside]).abs().max() < 1e-12
    assert (cut[~inside] == -torch.inf).all()
    assert whole.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_all_tokens_are_bit_identical_to_none_left_out(kind):
    everything = torch.arange(VOCAB)
    whole, cut = (drafted_logits(drafter_of(kind, token)) for token in (None, everything))
    assert torch.equal(whole, cut)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=8)
@given(
    st.sampled_from(list(RULES)), st.integers(0, 200), st.floats(0.3, 0.95), st.floats(0, 1),
    st.integers(1, 24)
)  # fmt: skip
def test_runs_give_the_targets_text(kind, rule, seed, go, keep, budget):
    target, drafter = pair_of(kind)
    prompt = toy_prompts(1, seed)[0]
    own, _ = ToySequences(Settings(6, budget, RULES[rule], END)).find(seed, prompt)
    drive = chain_plan(at_random(go, keep), 6, seed, toy_cost())
    result = decode(target, drafter, drive, RULES[rule], prompt, budget, END, seed)
    assert result.token.tolist() == own.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", [*RULES.values(), Rule("coupled", 1.3, 2, top_k=6, top_p=0.9)])
def test_fast_recordings_equal_the_definition(kind, rule):
    target, drafter = pair_of(kind)
    asked = Settings(5, 12, rule, END, drafter_features(drafter))
    fast = record_prefix_only if drafter.prefix_only else record_parallel
    assert parallel_form(drafter) is not None
    outside = 0
    for seed in range(2):
        prompt = toy_prompts(1, seed)[0]
        tokens, _ = ToySequences(asked).find(seed, prompt)
        slow = record_stepwise(target, drafter, asked, prompt, tokens, seed)
        assert same(slow, fast(target, drafter, asked, prompt, tokens, seed))
        left_out = ~np.isin(tokens, TOKENS)
        outside += left_out.sum()
        offered = slow.depth > 0
        if rule.top_k:  # tokens that top-k cuts rank among those outside
            continue
        assert (slow.rank[left_out & offered, 0] >= len(TOKENS)).all()
        assert (slow.rank[~left_out & offered, 0] < len(TOKENS)).all()
    assert outside > 2


@pytest.mark.parametrize("kind", KINDS)
def test_rejection_ratios_are_zero_outside(kind):
    target, drafter = pair_of(kind)
    asked = Settings(4, 14, Rule("rejection", 0.9, 3), END, ())
    outside = 0
    for seed in range(3):
        prompt = toy_prompts(1, seed)[0]
        written = target_sequence(target, asked, prompt, seed)
        rows = record_rejection(target, drafter, asked, prompt, written)
        left_out, offered = ~np.isin(rows.token, TOKENS), rows.depth > 0
        assert (rows.ratio[left_out, 0] == 0).all()
        assert (rows.ratio[~left_out & offered, 0] > 0).all()
        outside += left_out.sum()
    assert outside > 2


@lru_cache
def recording(kind, rule):
    target, drafter = pair_of(kind)
    asked = Settings(6, 20, RULES[rule], END, drafter_features(drafter))
    return recorded(target, drafter, asked, 4), target, drafter


TEXTS = "fixed:3", "confidence:0.5", "entropy:1.5", "beta_ts:acceptance"


@pytest.mark.parametrize(
    "kind", ["early_exit", "eagle", "medusa, own head", "hydra", "glide", "model"]
)
@pytest.mark.parametrize("rule", RULES)
def test_runs_equal_their_replays(kind, rule):
    """Each policy on two of the sequences, streams among them."""
    whole, target, drafter = recording(kind, rule)
    for i, text in enumerate(TEXTS):
        trace = whole.select([i % whole.sequences, (i + 1) % whole.sequences])
        policy = policy_from(text, trace, toy_cost())
        expected = replay(trace, policy, seed=3, cost=toy_cost())
        assert rounds_of(trace, run_all(target, drafter, trace, policy, toy_cost(), 3)) == expected
        assert expected.accepted.sum() > 0


class Narrow(World):
    """A drafter whose head scores some tokens only."""

    def __init__(self, seed, vocab, kept):
        super().__init__(seed, vocab)
        self.head = torch.nn.Linear(vocab, vocab, bias=False, dtype=torch.float64)
        self.head.weight.data.copy_(torch.eye(vocab))
        self.cut = DraftVocabularyHead(self.head, torch.tensor(sorted(kept)))

    def q(self, text):
        with torch.inference_mode():
            return self.cut(super().q(text))


@HELD
@given(seeds, rules, st.integers(2, 3), st.integers(1, 4), st.data())
def test_the_rejection_rule_keeps_the_targets_distribution(seed, rule, size, nodes, data):
    """Enumerated over all draws: a chain or a tree whose drafter cannot say some tokens."""
    kept = data.draw(st.sets(st.integers(0, 3), min_size=size, max_size=size))
    world = Narrow(seed, 4, kept)
    parent, _ = tree(seed, 4, nodes)
    length = 2
    assert off(round_distribution(world, rule, parent, length), world.true(rule, length)) < EXACT


def test_control_a_verifier_that_forgets_the_tokens_outside_is_noticed():
    world, rule = Narrow(3, 4, {0, 1}), Rule("rejection")

    def careless(rule, logits, draft, draws, position, ends):
        inside = torch.full_like(logits, -torch.inf)
        inside[:, :2] = logits[:, :2]
        return rejection_sample(rule, inside, draft, draws, position, ends)

    found = round_distribution(world, rule, [-1, 0], 2, accept_exact=careless)
    assert off(found, world.true(rule, 2)) > 0.1


@pytest.mark.parametrize("kind", HEADS)
def test_heads_are_stored_with_their_map(kind, tmp_path):
    name, target = kind.split(",")[0], toy_target()
    head, file = head_of(kind), BUILTIN[name].recipe.file
    save_draft_head(head, tmp_path, file, MADE_FOR, torch.float64)
    loaded = load_draft_head(BUILTIN[name].recipe.head, tmp_path, file, target, MADE_FOR)
    assert torch.equal(loaded.draft_token, TOKENS)
    drafters = [BUILTIN[name].recipe.drafter(target, h) for h in (head, loaded)]
    assert torch.equal(*map(drafted_logits, drafters))
    assert json.loads((tmp_path / f"{file}.json").read_text())["draft_vocab"] == len(TOKENS)
    whole = head_of(kind, None)
    save_draft_head(whole, tmp_path / "whole", file, MADE_FOR, torch.float64)
    assert "draft_vocab" not in json.loads((tmp_path / "whole" / f"{file}.json").read_text())


def test_damaged_maps_are_refused(tmp_path):
    head, path = head_of("eagle"), tmp_path / "eagle.safetensors"
    save_draft_head(head, tmp_path, "eagle", MADE_FOR)
    held = load_file(path)
    for token, says in (
        (None, "its map draft_token is none"),
        (torch.arange(5), r"its map draft_token is \[5\]"),
        (TOKENS.flip(0), "not ascending"),
        (TOKENS + 4, "not ascending within 0 to 23"),
        (TOKENS.double(), "expected 2 to 24 integers"),
        (TOKENS[:, None], "its map draft_token is"),
    ):
        state = {k: v for k, v in held.items() if k != "draft_token"}
        save_file(state | ({} if token is None else {"draft_token": token.contiguous()}), path)
        with pytest.raises(WeightsError, match=says) as caught:
            load_draft_head(EagleHead, tmp_path, "eagle", toy_target(), MADE_FOR)
        assert "\n" not in str(caught.value)
    for odd in (torch.tensor([4]), torch.tensor([True, True]), torch.tensor([4, 4])):
        with pytest.raises(WeightsError, match="draft vocabulary is"):
            check_vocabulary(odd, 24)


def test_most_frequent_tokens_with_ties_to_the_smaller():
    counts = np.array([1, 5, 2, 5, 0, 2, 2])
    assert most_frequent(counts, 2).tolist() == [1, 3]
    assert most_frequent(counts, 4).tolist() == [1, 2, 3, 5]
    assert most_frequent(counts, 7).tolist() == list(range(7))
    for size in (0, 1, 8, -3):
        with pytest.raises(ValueError, match=f"--draft-vocab is {size}; expected 2 to 7"):
            most_frequent(counts, size)


@pytest.mark.parametrize("name", ["model", "early_exit", "eagle", "medusa", "glide"])
def test_training_restricts_saves_and_loads(name, tmp_path):
    data = drafter_data()
    sizes = dict(width=8, layers=1, heads=1, head_dim=8, hidden=12) if name == "model" else {}
    chosen = sizes | ({"shared": False} if name == "glide" else {})
    card = train_weights(asked(name, tmp_path, chosen, draft_vocab=9), data)
    assert card["asked"]["draft_vocab"] == 9
    assert card["draft_vocabulary"]["tokens"] == 9
    assert 0 < card["draft_vocabulary"]["coverage"] < 1
    loaded = BUILTIN[name].load(tmp_path / "out" / name, data.target, data.made_for)
    inside = drafted_logits(loaded).isfinite()
    assert torch.equal(
        inside, torch.isin(torch.arange(VOCAB), most_frequent(data.counts, 9)).expand(3, -1)
    )
    with pytest.raises(ValueError, match="made with draft_vocab 9, now None"):
        train_weights(asked(name, tmp_path, chosen), data)
    whole = train_weights(asked(name, tmp_path, chosen, draft_vocab=VOCAB, name="whole"), data)
    assert "draft_vocabulary" not in whole
    with pytest.raises(ValueError, match="--draft-vocab is 25; expected 2 to 24"):
        train_weights(asked(name, tmp_path, chosen, draft_vocab=25, name="x"), data)
