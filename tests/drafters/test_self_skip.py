"""Self-speculative drafts: the target without some of its sub-layers."""

import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_checkpoint import refused
from toy_lm import END, RULES, policy_from, run_all, toy_cost, toy_prompts, toy_target
from toy_skips import DECODER, LAYERS, MADE_FOR, SKIPS, SOME, pair

from real.drafters.self_skip import SelfSkipDrafter, SkipConfig
from real.model.passes import chain
from real.model.target import Target
from real.prompts import Prompt
from real.record import Settings
from real.record.recorder import record_sequence
from real.record.rows import assemble
from real.record.settings import describe
from real.rerun import compare
from simspec import replay


def begin(drafter, target, text):
    greedy = RULES["greedy"]
    drafter.begin(
        target,
        text,
        target.prefill(text[:-1]),
        lambda logits, slot, *_: int(greedy.scores(logits[None], 0, [slot]).argmax()),
    )


def draft(drafter, count):
    steps = [drafter.next() for _ in range(count)]
    assert [s.parent for s in steps] == list(range(count))
    return (
        [s.token for s in steps],
        torch.stack([s.logits for s in steps]),
        torch.stack([s.hidden for s in steps]),
    )


def round_of(target, drafter, text, computed, drafted, accepted, miss):
    """One round in which so many drafted tokens are accepted; returns the tokens committed."""
    token = [drafter.next().token for _ in range(computed)][:drafted]
    output = target.verify([text[-1], *token], chain(drafted + 1), drafter.resume())
    path = list(range(accepted + 1))
    target.commit(path)
    drafter.rollback(accepted)
    committed = [*token[:accepted], miss]
    drafter.catch_up(committed, output, path)
    return committed


def muted(decoder, skipped):
    """A decoder whose skipped sub-layers add nothing: the same function, by another way."""
    silenced = copy.deepcopy(decoder)
    for i in skipped.attention:
        silenced.layers[i].output.weight.zero_()
    for i in skipped.mlp:
        silenced.layers[i].down.weight.zero_()
    return silenced


@settings(deadline=None, max_examples=40)
@given(SKIPS, st.integers(0, 99))
def test_drafts_skip_sublayers_on_the_full_cache(skipped, seed):
    text = toy_prompts(1, seed)[0] + [5, 9, 11]
    target, drafter = pair(skipped)
    begin(drafter, target, text)
    tokens, logits, hidden = draft(drafter, 5)
    other = Target(DECODER, capacity=64)
    other.prefill(text[:-1])
    other.decoder = muted(DECODER, skipped)
    for token, wanted, state in zip([text[-1], *tokens], logits, hidden):
        output = other.verify([token], [-1])
        other.commit([0])
        torch.testing.assert_close(output.logits[0], wanted, rtol=0, atol=1e-12)
        torch.testing.assert_close(output.hidden[0], state, rtol=0, atol=1e-12)


def test_control_cache_of_skipped_passes_differs():
    text = toy_prompts(1, 3)[0] + [5, 9, 11]
    target, drafter = pair(SOME)
    begin(drafter, target, text)
    other = Target(muted(DECODER, SOME))
    other.prefill(text[:-1])
    assert (other.verify([text[-1]], [-1]).logits[0] - draft(drafter, 1)[1][0]).abs().max() > 1e-3


def test_no_skips_draft_the_targets_sequence():
    target, drafter = pair(SkipConfig())
    for rule in RULES.values():
        assert_own(target, drafter, Settings(6, 24, rule, END, ()))


def assert_own(target, drafter, how):
    for i, prompt in enumerate(toy_prompts(6)):
        rows = record_sequence(target, drafter, how, prompt, i)
        left = len(rows.token) - np.arange(len(rows.token))
        assert (rows.run == np.minimum(np.minimum(left, how.K), rows.depth)).all()
        assert (rows.rank == 0).all()


ROUND = st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 5), st.integers(4, 20))


@settings(deadline=None, max_examples=40)
@given(SKIPS, st.integers(0, 99), st.lists(ROUND, min_size=1, max_size=10))
def test_cache_and_chain_after_rounds_equal_fresh_ones(skipped, seed, rounds):
    (target, drafter), (other, fresh) = pair(skipped), pair(skipped)
    text = list(toy_prompts(1, seed)[0])
    begin(drafter, target, text)
    for computed, drop, accepted, miss in rounds:
        drafted = computed - 1 if drop and computed else computed
        for _ in range(2):  # given up unverified, as the recorder does
            draft(drafter, computed) if computed else None
            drafter.rollback(0)
        text += round_of(target, drafter, text, computed, drafted, min(accepted, drafted), miss)
    got = draft(drafter, 4)
    begin(fresh, other, text)
    expected = draft(fresh, 4)
    assert got[0] == expected[0]
    torch.testing.assert_close(got[1:], expected[1:], rtol=0, atol=1e-12)
    rows = len(text) - 1
    for x, y in ((target.cache.key, other.cache.key), (target.cache.value, other.cache.value)):
        torch.testing.assert_close(x[:, :, :, :rows], y[:, :, :, :rows], rtol=0, atol=1e-12)


def test_control_missing_rollback_is_caught(monkeypatch):
    (target, drafter), (other, fresh) = pair(SOME), pair(SOME)
    text = toy_prompts(1, 3)[0] + [7]
    begin(drafter, target, text)
    monkeypatch.setattr(drafter, "rollback", lambda accepted: None)
    text += round_of(target, drafter, text, 3, 3, 1, 9)
    begin(fresh, other, text)
    assert (draft(fresh, 1)[1] - torch.stack([drafter.next().logits])).abs().max() > 1e-3


def test_not_prefix_only():
    """A chain's tail depends on drafted rows: it is not the chain redrafted after verification."""
    target, drafter = pair(SOME)
    text = toy_prompts(1, 8)[0] + [5]
    begin(drafter, target, text)
    tokens, logits, _ = draft(drafter, 6)
    drafter.rollback(0)
    round_of(target, drafter, text, 2, 2, 2, tokens[2])
    assert not drafter.prefix_only
    assert drafter.history_free
    assert (draft(drafter, 3)[1] - logits[3:]).abs().max() > 1e-3


@pytest.mark.parametrize("rule", RULES)
def test_runs_are_lossless_and_equal_their_replays(rule):
    target, drafter = pair(SOME, toy_target())
    how = Settings(6, 24, RULES[rule], END)
    prompts = [Prompt(str(i), "toy", "random", p) for i, p in enumerate(toy_prompts(8))]
    rows = [record_sequence(target, drafter, how, p.token, i) for i, p in enumerate(prompts)]
    trace, cost = (
        assemble(
            rows, prompts, 0, how, describe("toy", drafter, how, prompts, "", "cpu", torch.float64)
        ),
        toy_cost(),
    )
    assert not trace.meta.prefix_only
    assert 0.1 < trace.run.sum() / trace.depth.sum() < 0.9
    whole = trace
    for i, text in enumerate(
        (
            "fixed:0",
            "fixed:1",
            "fixed:6",
            "beta_ts",
            "confidence:0.5",
            "entropy:1.5",
            "cost_ts",
            "hf_heuristic:3",
            "oracle",
        )
    ):
        trace = whole.select(range(i % 3, whole.sequences, 3))  # three policies run every text
        policy = policy_from(text, trace, cost)
        results = run_all(target, drafter, trace, policy, cost)
        assert np.concatenate([r.token for r in results]).tolist() == trace.token.tolist()
        assert compare(trace, policy, replay(trace, policy, 0, cost=cost), results).exact, text


def test_settings_of_another_target_are_refused(tmp_path):
    (tmp_path / "self_skip.json").write_text(
        json.dumps({"settings": {"attention": [1], "mlp": []}, "target": MADE_FOR})
    )
    assert SelfSkipDrafter.load(tmp_path, DECODER, MADE_FOR).skips == SkipConfig((1,))
    for what, digest in MADE_FOR.items():
        other = MADE_FOR | {what: "b" * 64}
        refused(
            f"{what} {digest[:12]}, this one has bbbbbbbbbbbb",
            SelfSkipDrafter.load,
            tmp_path,
            DECODER,
            other,
        )
    refused(
        "holds no drafter 'self_skip'",
        SelfSkipDrafter.load,
        tmp_path / "nowhere",
        DECODER,
        MADE_FOR,
    )


@pytest.mark.parametrize(
    "skip_settings, words",
    [
        ({"attention": [LAYERS], "mlp": []}, f"attention skips layer {LAYERS} of {LAYERS}"),
        ({"attention": [], "mlp": [0, 9]}, "mlp skips layer 9"),
        ({"attention": [-1]}, "integer >= 0"),
        ({"attention": [1, 1]}, "different"),
        ({"attention": [[]]}, "integer"),
        ({"attention": [True]}, "integer"),
        ({"mlp": 3}, "list"),
        ({"depth": 2}, "depth"),
    ],
)
def test_invalid_settings_are_refused(tmp_path, skip_settings, words):
    (tmp_path / "self_skip.json").write_text(
        json.dumps({"settings": skip_settings, "target": MADE_FOR})
    )
    refused(f"cannot have.*{words}", SelfSkipDrafter.load, tmp_path, DECODER, MADE_FOR)


@pytest.mark.parametrize(
    "text", ["{", "[1, 2]", '{"settings": {"attention": []}}', '{"settings": 3, "target": {}}']
)
def test_broken_settings_are_refused(tmp_path, text):
    (tmp_path / "self_skip.json").write_text(text)
    refused("holds no drafter 'self_skip'", SelfSkipDrafter.load, tmp_path, DECODER, MADE_FOR)
