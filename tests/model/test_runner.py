"""Passes of fixed width, captured once, give what eager passes give: rows, caches, texts and
rounds, of every drafter and plan."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy_lm import END, TOYS, VOCAB, toy_cost, toy_pair, toy_prompts, toy_target

from real.decode.engine import attach_engine, make_passes
from real.decode.features import drafter_features
from real.decode.loop import decode
from real.decode.plans import BeamSearch, Cape, DynamicTree, StaticTree, chain_plan
from real.model.captured_passes import CapturedPasses
from real.model.passes import EAGER
from real.model.target import Target
from real.sampling import Rule
from simspec import policies
from simspec.tree.tree import tree_of_widths

RULES = Rule(), Rule("coupled", 0.8, 3), Rule("rejection", 0.8, 3)
CAPACITY = 64


def engaged(name: str, engine: str, rows: int = 9, smallest: int = 16):
    target, drafter = toy_pair(name)
    passes = make_passes(engine, rows, CAPACITY - rows)
    if engine == "fast":
        passes.smallest = smallest
    attach_engine(passes, target.decoder, drafter)
    return Target(target.decoder, drafter.taps, passes=passes), drafter


@pytest.fixture(autouse=True)
def unpacked():
    yield
    toy_target.cache_clear()  # its layers have been packed


def same(a, b) -> bool:
    return a.token.tolist() == b.token.tolist() and all(
        getattr(a, name).tolist() == getattr(b, name).tolist()
        for name in ("position", "computed", "drafted", "accepted")
    )


parents = st.lists(st.integers(0, 7), max_size=7).map(
    lambda above: [-1, *(min(p, i) for i, p in enumerate(above))]
)


@given(
    st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=20),
    st.lists(parents, min_size=1, max_size=3),
    st.sampled_from(["fast", "strict"]),
)
@settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)
def test_captured_passes_equal_eager_passes(prompt, trees, engine):
    decoder = toy_target(0)
    passes = make_passes(engine, 8, CAPACITY - 8)
    if engine == "fast":
        passes.smallest = 16
    plain, fixed = Target(decoder, (2,)), Target(decoder, (2,), passes=passes)
    fixed.cache.key.normal_()  # what other texts have left there
    fixed.cache.value.normal_()
    for target in (plain, fixed):
        target.prefill(prompt)
    for parent in trees:
        token = [(5 * i + len(prompt)) % VOCAB for i in range(len(parent))]
        output, wanted = fixed.verify(token, parent), plain.verify(token, parent)
        for ours, theirs in (
            (output.logits, wanted.logits),
            (output.hidden, wanted.hidden),
            (output.taps[2], wanted.taps[2]),
        ):
            assert ours.shape == theirs.shape
            assert torch.allclose(ours, theirs, rtol=0, atol=1e-11)
        path = [0]
        while (below := [i for i, p in enumerate(parent) if p == path[-1]]) and len(path) < 3:
            path.append(below[-1])
        plain.commit(path)
        fixed.commit(path)
        rows = plain.length
        assert fixed.length == rows
        assert torch.allclose(
            fixed.cache.key[:, :, :, :rows], plain.cache.key[:, :, :, :rows], rtol=0, atol=1e-11
        )


def chains(target, drafter):
    """{(rule, policy, prompt): tokens and rounds} of every rule and policy on one prompt."""
    shown, found, prompts = drafter_features(drafter), {}, toy_prompts(3)
    for rule in RULES:
        confidence = ["confidence:0.5"] if shown and not rule.sampled else []
        plain = ["fixed:0"] if not rule.seed else []  # no draft: one rule shows it
        for text in (*plain, "fixed:3", "beta_ts", *confidence):
            i = len(found) % len(prompts)  # every prompt in turn
            plan = chain_plan(policies.parse(text), 4, 0, toy_cost())
            found[rule, text, i] = decode(target, drafter, plan, rule, prompts[i], 14, END, i)
    return found


@pytest.mark.parametrize("name", [name for name in TOYS if name not in ("hydra", "glide2")])
def test_rounds_of_every_drafter_equal_the_eager_engine(name):
    eager = chains(*toy_pair(name))
    for engine in ("fast", "strict"):
        toy_target.cache_clear()  # the other engine packs its layers
        fixed, drafter = engaged(name, engine)
        for case, run in chains(fixed, drafter).items():
            assert same(eager[case], run), (engine, case)
        assert any("target" in key[0] for key in fixed.passes.captured)


@pytest.mark.parametrize("name", ["model", "early_exit", "eagle", "medusa"])
def test_trees_equal_the_eager_engine(name):
    (target, drafter), (fixed, quick) = toy_pair(name), engaged(name, "fast")
    for plan in (
        StaticTree(tree_of_widths((3, 2))),
        DynamicTree(2, 3, 6),
        BeamSearch(2, 3),
        Cape(2, 3),
    ):
        for i, prompt in enumerate(toy_prompts(2)):
            runs = [
                decode(t, d, plan, RULES[1], prompt, 16, END, i)
                for t, d in ((target, drafter), (fixed, quick))
            ]
            assert same(*runs), type(plan)
    # trees were captured, too
    assert False in {key[3] for key in fixed.passes.captured if len(key) == 4}
    # 13 rows: more than the widest pass, so as they come
    large = StaticTree(tree_of_widths((3, 3)))
    assert same(
        *(
            decode(t, d, large, RULES[0], [5, 6, 7], 12, END)
            for t, d in ((target, drafter), (fixed, quick))
        )
    )


def test_nothing_is_captured_after_warmup():
    fixed, drafter = engaged("early_exit", "fast")
    decode(
        fixed, drafter, chain_plan(policies.parse("fixed:2"), 6, 0, toy_cost()), RULES[0], [5, 6],
        6, ()
    )  # fmt: skip
    before = len(fixed.passes.captured)
    fixed.passes.warm()
    held = dict(fixed.passes.captured)
    assert len(held) > before
    target, twin = toy_pair("early_exit")
    for text in ("fixed:0", "fixed:6", "fixed:1"):
        drives = (chain_plan(policies.parse(text), 6, 0, toy_cost()) for _ in range(2))
        pairs = (target, twin), (fixed, drafter)
        assert same(
            *(
                decode(t, d, drive, RULES[0], [7, 8, 9], 40, ())
                for drive, (t, d) in zip(drives, pairs)
            )
        )
    assert fixed.passes.captured == held
    assert all(torch.isfinite(cache.key).all() for cache in fixed.passes.caches.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strict_rows_are_independent_of_the_draft(dtype):
    decoder = toy_target(0).to(dtype)
    for layer in decoder.layers:
        layer.fuse_projections()
    rows = []
    for drafts in ([], [5], [6, 7, 8], [9] * 8):
        target = Target(decoder, passes=make_passes("strict", 9, 40))
        target.prefill([5, 6, 7, 8])
        rows.append(target.verify([4, *drafts], list(range(-1, len(drafts)))).logits[0])
    assert all(torch.equal(row, rows[0]) for row in rows)


def test_control_mask_of_invalid_rows_is_detected(monkeypatch):
    fixed, wanted = (
        Target(toy_target(0), passes=make_passes("strict", 4, 40)),
        Target(toy_target(0)),
    )
    for target in (fixed, wanted):
        target.prefill([5, 6, 7])
    monkeypatch.setattr(Tensor := torch.Tensor, "masked_fill", lambda self, *_: self.clone())
    assert Tensor is torch.Tensor
    assert not torch.allclose(
        fixed.verify([8], [-1]).logits, wanted.verify([8], [-1]).logits, atol=1e-3
    )


def test_sequence_beyond_capacity_is_refused_in_one_line():
    target = Target(toy_target(0), passes=CapturedPasses((4,), 16))
    with pytest.raises(
        ValueError, match="a sequence of 17 rows is too long for caches of 16"
    ) as error:
        target.prefill([5] * 10)
        for _ in range(7):
            target.verify([5], [-1])
            target.commit([0])
        target.verify([5], [-1])
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="'quick' is unknown; expected one of eager, fast, strict"):
        make_passes("quick", 4, 16)
    assert make_passes("eager", 4, 16) is EAGER


def test_results_are_not_overwritten():
    """What a captured pass gave is not written over by the next one."""
    target = Target(toy_target(0), passes=make_passes("strict", 4, 40))
    target.prefill([5, 6, 7])
    first = target.verify([8], [-1]).logits
    kept = first.clone()
    target.verify([9], [-1])
    assert torch.equal(first, kept)


def test_grown_cache_is_captured_again():
    wanted, fixed = (Target(toy_target(0), passes=p) for p in (EAGER, make_passes("fast", 4, 60)))
    for target in (wanted, fixed):
        target.prefill([5, 6, 7])
        target.verify([8], [-1]), target.commit([0])
    (cache,) = fixed.passes.caches.values()
    cache.reserve(cache.key.shape[3] + 1)
    torch.testing.assert_close(fixed.verify([9], [-1]).logits, wanted.verify([9], [-1]).logits)
    for target in (wanted, fixed):
        target.prefill([9, 8, 7, 6, 5, 4])  # as they come, into the rows that are there now
    torch.testing.assert_close(fixed.verify([4], [-1]).logits, wanted.verify([4], [-1]).logits)


def test_rows_near_the_capacity_run_eagerly():
    wanted, fixed = (Target(toy_target(0), passes=p) for p in (EAGER, CapturedPasses((4,), 16)))
    for target in (wanted, fixed):
        target.prefill([5] * 13)
    for tokens, parent in (
        ([6], [-1]),
        ([7, 8], [-1, 0]),
    ):  # 4 rows would end behind the last of 16
        torch.testing.assert_close(
            fixed.verify(tokens, parent).logits, wanted.verify(tokens, parent).logits
        )
        assert not fixed.passes.captured
