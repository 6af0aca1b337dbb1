"""Parallel recordings equal the stepwise definition: rows, tree orders and noise."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_eagle import part_of
from test_medusa import shaken
from toy_lm import (
    DRAFTERS,
    END,
    RULES,
    TOYS,
    VOCAB,
    ToyPairs,
    ToySequences,
    toy_pair,
    toy_prompts,
    toy_target,
)

from real import sampling
from real.decode.features import AcceptancePredictor, drafter_features
from real.draft import kind as parallel
from real.draft.kind import DraftedLogits
from real.drafters import parallel_form
from real.drafters.eagle import INPUTS, EagleDrafter
from real.drafters.glide import GlideDrafter, GlideModel
from real.drafters.hydra import HydraDrafter, HydraHeads
from real.drafters.medusa import MedusaDrafter, MedusaHeads
from real.drafters.self_skip import SelfSkipDrafter, SkipConfig
from real.model import passes as full_pass
from real.model.passes import BranchCache
from real.model.target import Target
from real.record import Settings
from real.record import tree_order as parallel_tree_order
from real.record.recorder import record_sequence
from real.record.rows import (
    RecordedRows,
    SequenceScores,
    _stepwise,
    record_parallel,
    record_prefix_only,
    record_rejection,
    record_stepwise,
)
from real.record.sequences import target_sequence
from real.record.tree_order import NOT_IN_TREE, tree_order_parallel, tree_order_stepwise
from real.sampling import Rule, gumbel, uniforms
from simspec.numerics import rng
from simspec.trace.quantization import coarse_ratio

FORKED = [name for name in DRAFTERS if name != "prompt_lookup"]
PAIRS = ToyPairs()
EARLY = (3, 5, 7, 9, 11, 20)
ALL_RULES = RULES | {"cut": Rule("coupled", 1.3, 2, top_k=6, top_p=0.9)}
KINDS = {
    "hydra, residual, own head": (
        HydraDrafter,
        lambda t: shaken(HydraHeads, t, heads=3, blocks=2, own_head=True, residual=True),
    ),
    "medusa, own head": (
        MedusaDrafter,
        lambda t: shaken(MedusaHeads, t, heads=2, blocks=2, own_head=True),
    ),
    "glide, blind": (GlideDrafter, lambda t: shaken(GlideModel, t, cross=False)),
    "glide, its own embedding": (
        GlideDrafter,
        lambda t: shaken(GlideModel, t, layers=2, reads=[0, 3], shared=False, width=24),
    ),
    "self_skip, attention": (SelfSkipDrafter, lambda t: SkipConfig((1,), (2,))),
    "eagle, two layers": (EagleDrafter, lambda t: part_of(t, layers=2, first_norm=True)),
    **{
        f"eagle, {inputs}": (EagleDrafter, lambda t, inputs=inputs: part_of(t, inputs))
        for inputs in INPUTS
    },
}


def same(slow: RecordedRows, fast: RecordedRows) -> bool:
    for name in RecordedRows.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(slow, name), getattr(fast, name), err_msg=name)
    return True


def both(pair, record_settings, seed, fast=record_parallel):
    target, drafter = pair
    prompt = toy_prompts(1, seed)[0]
    text, _ = ToySequences(record_settings).find(seed, prompt)
    return record_stepwise(target, drafter, record_settings, prompt, text, seed), fast(
        target, drafter, record_settings, prompt, text, seed
    )


@pytest.mark.parametrize("name", FORKED)
@settings(deadline=None, max_examples=8)
@given(
    st.sampled_from(list(ALL_RULES)), st.integers(0, 500), st.integers(1, 7), st.integers(1, 14),
    st.sampled_from([END, EARLY, ()])
)  # fmt: skip
def test_parallel_rows_equal_stepwise_rows(name, rule, seed, K, budget, ends):
    features = (*drafter_features(PAIRS[name][1]), *(("probability",) if seed % 2 else ()))
    chosen = Settings(K, budget, ALL_RULES[rule], ends, features if seed % 3 else ())
    same(*both(PAIRS[name], chosen, seed))


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=3)
@given(st.sampled_from(list(RULES)), st.integers(0, 500), st.integers(2, 6))
def test_parallel_rows_equal_stepwise_rows_for_all_settings(kind, rule, seed, K):
    make, part = KINDS[kind]
    target = toy_target()
    pair = Target(target, capacity=32), make(target, part(target))
    record_settings = Settings(K, 12, RULES[rule], END)
    same(*both(pair, record_settings, seed))
    record_settings = replace(record_settings, tree=(3, min(3, K, pair[1].max_draft_length or 3)))
    prompt = toy_prompts(1, seed)[0]
    text, _ = target_sequence(pair[0], record_settings, prompt, seed)
    for slow, fast in zip(
        tree_order_stepwise(*pair, record_settings, prompt, text, seed),
        tree_order_parallel(*pair, record_settings, prompt, text, seed),
    ):
        np.testing.assert_array_equal(slow, fast)


@contextmanager
def predicting(drafter):
    width = drafter.decoder.config.width
    torch.manual_seed(1)
    predictors = {
        name: AcceptancePredictor(width, width, rank, 3).requires_grad_(False)
        for name, rank in (("theta", None), ("theta_low_rank", 2))
    }
    for predictor in predictors.values():
        predictor.judge.add_(0.3 * torch.randn_like(predictor.judge))
    drafter.predictors = predictors
    try:
        yield ("theta", "entropy", "theta_low_rank")
    finally:
        drafter.predictors = {}


@pytest.mark.parametrize("name", ["eagle", "medusa"])
def test_predictors_read_the_same_states_in_parallel(name):
    with predicting(PAIRS[name][1]) as features:
        for seed in (3, 4):  # prompts of one token and of more
            slow, fast = both(PAIRS[name], Settings(5, 16, RULES["greedy"], END, features), seed)
            assert same(slow, fast)
            assert len(np.unique(fast.feature[..., 0])) > 5


def test_position_batches_do_not_change_rows(monkeypatch):
    for name in ("eagle", "self_skip"):
        record_settings = Settings(5, 18, RULES["coupled"], END, tree=(3, 3))
        prompt = toy_prompts(1, 9)[0]
        whole = record_sequence(*PAIRS[name], record_settings, prompt, 9)
        with monkeypatch.context() as patch:
            patch.setattr(parallel, "MAX_BYTES", 8 * 3 * VOCAB * 4)
            known = full_pass.TargetPass(toy_target(), prompt, whole.token.tolist())
            form = parallel_form(PAIRS[name][1])(PAIRS[name][1], known)
            assert len(parallel.position_batches(torch.arange(18), 3, known, form)) > 2
            assert same(whole, record_sequence(*PAIRS[name], record_settings, prompt, 9))


@pytest.mark.parametrize("name", ["eagle", "self_skip", "glide2", "model"])
def test_control_wrong_visible_rows_are_caught(name, monkeypatch):
    record_settings = Settings(5, 18, RULES["greedy"], END)
    assert same(*both(PAIRS[name], record_settings, 9))
    step = BranchCache.step

    def late(self, parent, decoder):
        if self.depth < 0:
            self.visible = self.visible.roll(1, 0)
        return step(self, parent, decoder)

    monkeypatch.setattr(BranchCache, "step", late)
    with pytest.raises(AssertionError):
        same(*both(PAIRS[name], record_settings, 9))


@pytest.mark.parametrize("name", ["medusa", "hydra"])
def test_control_features_of_the_next_row_are_caught(name, monkeypatch):
    record_settings, kind = Settings(4, 18, RULES["greedy"], END), parallel_form(PAIRS[name][1])
    start = kind.start

    def late(self, positions):
        return start(self, (positions + 1).clamp(max=int(positions[-1])))

    monkeypatch.setattr(kind, "start", late)
    with pytest.raises(AssertionError):
        same(*both(PAIRS[name], record_settings, 9))


@pytest.mark.parametrize("name", FORKED)
@settings(deadline=None, max_examples=4)
@given(
    st.sampled_from(list(ALL_RULES)), st.integers(0, 500), st.integers(1, 4), st.integers(1, 6),
    st.integers(1, 18)
)  # fmt: skip
def test_parallel_tree_orders_equal_stepwise_ones(name, rule, seed, levels, width, budget):
    target, drafter = PAIRS[name]
    record_settings = Settings(5, budget, ALL_RULES[rule], END, (), (width, levels))
    prompt = toy_prompts(1, seed)[0]
    text, _ = ToySequences(record_settings).find(seed, prompt)
    slow = tree_order_stepwise(target, drafter, record_settings, prompt, text, seed)
    fast = tree_order_parallel(target, drafter, record_settings, prompt, text, seed)
    for a, b in zip(slow, fast):
        np.testing.assert_array_equal(a, b)


def test_control_orders_by_the_last_token_are_caught(monkeypatch):
    target, drafter = PAIRS["eagle"]
    record_settings = Settings(5, 18, RULES["greedy"], END, (), (4, 3))
    prompt = toy_prompts(1, 9)[0]
    text, _ = target_sequence(target, record_settings, prompt, 9)
    grow = parallel_tree_order._grow
    stepwise = tree_order_stepwise(target, drafter, record_settings, prompt, text, 9)[0]
    assert (stepwise < NOT_IN_TREE).sum() > 10

    def flat(*arguments):
        return [
            level._replace(score=level.score - level.score.amax(1, keepdim=True))
            for level in grow(*arguments)
        ]

    monkeypatch.setattr(parallel_tree_order, "_grow", flat)
    assert (
        tree_order_parallel(target, drafter, record_settings, prompt, text, 9)[0] != stepwise
    ).any()


def test_parallel_recording_takes_one_pass_and_k_steps(monkeypatch):
    target, drafter = PAIRS["eagle"]
    passes, steps = [], []
    one_pass, estimate = full_pass.full_pass, type(drafter.head).estimate
    monkeypatch.setattr(full_pass, "full_pass", lambda *a: passes.append(1) or one_pass(*a))
    monkeypatch.setattr(type(drafter.head), "estimate", lambda *a: steps.append(1) or estimate(*a))
    record_settings, prompt = Settings(5, 18, RULES["coupled"], ()), toy_prompts(1, 9)[0]
    text, _ = target_sequence(target, record_settings, prompt, 9)
    record_parallel(target, drafter, record_settings, prompt, text, 9)
    assert len(text) == 18
    assert len(passes) == 1
    assert len(steps) == record_settings.K


def test_subclasses_are_recorded_stepwise():
    class Other(EagleDrafter):
        def next(self):
            return None

    target, eagle = PAIRS["eagle"]
    rows = record_sequence(
        target, Other(eagle.decoder, eagle.head), Settings(4, 8, RULES["greedy"], END), [5, 6], 0
    )
    assert (rows.depth == 0).all()


def test_prefetched_noise_is_that_of_its_position():
    for position in (0, 31, 32, 77):
        row = sampling._noise_block(5, 3, position // sampling.NOISE_BLOCK, VOCAB, "cpu")[
            position % sampling.NOISE_BLOCK
        ]
        torch.testing.assert_close(
            row, sampling.gumbel_noise(5, 3, [position], VOCAB, "cpu")[0], rtol=0, atol=0
        )


@settings(deadline=None)
@given(
    st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**31),
    st.integers(1, 5), st.integers(1, 13)
)  # fmt: skip
def test_noise_is_equal_on_host_and_device(seed, sequence, first, count, vocab):
    host = rng.gumbel_rows(seed, sequence, np.arange(first, first + count), vocab)
    places = [sequence] * count, range(first, first + count)
    np.testing.assert_array_equal(gumbel(seed, *places, vocab, "cpu").numpy(), host)
    address = torch.tensor(places[0]), torch.tensor(places[1])
    drawn = uniforms(seed, *address, vocab).numpy()
    np.testing.assert_array_equal(-np.log(-np.log(drawn)), host)
    assert (uniforms(seed, address[0], address[1] + 1, vocab).numpy() != drawn).any()  # control


@pytest.mark.parametrize("rule", ALL_RULES)
def test_scores_draw_noise_once(rule, monkeypatch):
    drawn, whole = [], rng.gumbel_rows
    monkeypatch.setattr(rng, "gumbel_rows", lambda *a: drawn.append(a) or whole(*a))
    scored, logits = SequenceScores(ALL_RULES[rule], 4, 300), torch.randn(200, VOCAB)
    for shift in (0, 7, 100):
        place = torch.arange(200) + shift
        result = scored(DraftedLogits.of(logits), place)
        if shift == 0:
            once = len(drawn)
        assert len(drawn) == once == int(rule != "greedy")
        with monkeypatch.context() as patch:
            patch.setattr(rng, "gumbel_rows", whole)
            torch.testing.assert_close(
                result, ALL_RULES[rule].scores(logits, 4, place.tolist()), rtol=0, atol=0
            )


@pytest.mark.parametrize("name", ["model", "eagle"])
def test_parallel_recordings_agree_on_long_sequences(name):
    fast = record_prefix_only if name == "model" else record_parallel
    assert same(*both(PAIRS[name], Settings(4, 150, RULES["coupled"], ()), 21, fast))


@pytest.mark.parametrize("name", ["model", "self_skip", "glide"])
def test_parallel_recordings_agree_on_deep_drafts(name):
    """They outgrow the rows that are made room for at first."""
    same(*both(PAIRS[name], Settings(20, 24, RULES["greedy"], ()), 5))


RULE = Rule("rejection", 0.8, 5)


@pytest.mark.parametrize("name", sorted(set(TOYS) - {"prompt_lookup"}))
@settings(deadline=None, max_examples=8)
@given(st.integers(0, 500), st.integers(1, 7), st.integers(1, 14))
def test_ratios_of_all_positions_at_once_equal_the_definition(name, seed, K, budget):
    target, drafter = toy_pair(name)
    record_settings, prompt = Settings(K, budget, RULE, END, ()), toy_prompts(1, seed)[0]
    written = target_sequence(target, record_settings, prompt, seed)
    quick = record_rejection(target, drafter, record_settings, prompt, written)
    ratio, depth = _stepwise(target, drafter, record_settings, prompt, *written)
    assert np.allclose(coarse_ratio(ratio), quick.ratio, rtol=1e-6, atol=1e-9)
    assert depth.tolist() == quick.depth.tolist()
