"""Recordings equal their definition, and a killed one continues."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_features import read_features
from toy_lm import DRAFTERS, END, RULES, ToyPairs, toy_pair, toy_prompts, toy_recording

from real.decode.features import drafter_features
from real.measure import MeasureSettings
from real.measure.price import measure
from real.record import RecordError, Settings
from real.record.recorder import record_sequence
from real.record.rows import record_stepwise
from real.record.sequences import target_sequence
from real.sampling import Rule, margin
from simspec.trace.quantization import encode_margin

PAIRS = ToyPairs()


def verified(name, record_settings, prompt, text, sequence):
    """Rows from fresh models at each position: a free draft, then one along the sequence."""
    n, K, rule = len(text), record_settings.K, record_settings.rule
    rows = {
        **{name: np.zeros((n, K), np.uint8) for name in ("rank", "draft_margin", "feature_margin")},
        "depth": np.full(n, K, np.uint8),
        "run": np.zeros(n, np.uint8),
        "feature": np.zeros((n, K, len(record_settings.features)), np.uint8),
    }

    def drafted(prefix, pick, most, to_end_token=True):
        target, drafter = toy_pair(name)
        drafter.begin(target, prefix, target.prefill(prefix[:-1]), pick)
        while most and (step := drafter.next()) is not None:
            yield step
            most = 0 if step.token in record_settings.end_tokens and to_end_token else most - 1

    for t in range(n):
        prefix = [*prompt, *text[:t].tolist()]
        limit = min(K, record_settings.budget - t)
        left = min(K, n - t)

        def free(logits, slot, *_, t=t):
            return int(rule.scores(logits[None], sequence, [t + slot]).argmax())

        def along(logits, slot, *_, t=t):
            return int(text[t + slot])

        steps = list(drafted(prefix, free, limit))
        if len(steps) < limit or (steps and steps[-1].token in record_settings.end_tokens):
            rows["depth"][t] = len(steps)
        same = [step.token == token for step, token in zip(steps[:left], text[t:])]
        rows["run"][t] = same.index(False) if False in same else len(same)
        for slot, step in enumerate(steps):
            if step.logits is None:
                rows["draft_margin"][t, slot] = 255
                continue
            logits = step.logits[None]
            best = margin(rule.scores(logits, sequence, [t + slot])).numpy()
            rows["draft_margin"][t, slot] = encode_margin(best)[0]
            code, edge = read_features(record_settings.features, logits, rule.temperature)
            rows["feature"][t, slot] = code[0]
            rows["feature_margin"][t, slot] = encode_margin(edge.min())
        rows["rank"][t, :left] = 255
        silent = not PAIRS[name][1].has_logits  # it follows no text
        followed = steps[:left] if silent else drafted(prefix, along, left, False)
        for slot, step in enumerate(followed):
            if step.logits is None:
                rows["rank"][t, slot] = 0 if step.token == text[t + slot] else 255
            else:
                scores = rule.scores(step.logits[None], sequence, [t + slot])[0]
                rows["rank"][t, slot] = min(255, int((scores > scores[text[t + slot]]).sum()))
    return rows


@pytest.mark.parametrize("name", DRAFTERS)
@settings(deadline=None, max_examples=4)
@given(st.sampled_from(list(RULES)), st.integers(0, 500), st.integers(1, 7), st.integers(1, 14))
def test_stepwise_recording_equals_fresh_models(name, rule, seed, K, budget):
    target, drafter = PAIRS[name]
    prompt = toy_prompts(1, seed)[0]
    record_settings = Settings(K, budget, RULES[rule], END, drafter_features(drafter))
    text, _ = target_sequence(target, record_settings, prompt, seed)
    rows = record_stepwise(target, drafter, record_settings, prompt, text, seed)
    for field, wanted in verified(name, record_settings, prompt, text, seed).items():
        np.testing.assert_array_equal(getattr(rows, field), wanted, err_msg=field)


def test_drafter_without_logits_has_two_ranks_and_no_features():
    target, drafter = PAIRS["prompt_lookup"]
    record_settings = Settings(6, 24, RULES["greedy"], END, drafter_features(drafter))
    prompt = [5, 6, 7, 5, 6, 7]
    rows = record_sequence(target, drafter, record_settings, prompt, 0)
    n, slot = len(rows.token), np.arange(6)
    offers = slot < np.minimum(rows.depth, 24 - np.arange(n))[:, None]
    there = np.arange(n)[:, None] + slot < n
    assert rows.feature.shape == (n, 6, 0)
    assert (rows.draft_margin == np.where(offers, 255, 0)).all()
    assert (rows.feature_margin == 0).all()
    assert set(rows.rank[there & offers].tolist()) == {0, 255}
    assert (rows.rank[there & ~offers] == 255).all()
    assert (rows.rank[~there] == 0).all()
    assert rows.run.sum() > 0
    assert len(set(rows.depth.tolist())) > 1
    asked = replace(record_settings, features=("confidence",))
    with pytest.raises(ValueError, match="'confidence': drafter 'prompt_lookup' has no logits"):
        record_sequence(target, drafter, asked, prompt, 0)


def test_control_late_prompt_lookup_is_detected(monkeypatch):
    from real.drafters.prompt_lookup import PromptLookupDrafter

    target, drafter = PAIRS["prompt_lookup"]
    record_settings, prompt = Settings(4, 12, RULES["greedy"], END, ()), [5, 6, 7, 5, 6, 7]
    text, _ = target_sequence(target, record_settings, prompt, 0)
    read_all = PromptLookupDrafter.catch_up
    late = lambda self, tokens, *rest: read_all(self, tokens[:-1] or [4], *rest)  # noqa: E731
    monkeypatch.setattr(PromptLookupDrafter, "catch_up", late)
    found = record_stepwise(target, drafter, record_settings, prompt, text, 0)
    assert (found.run != verified("prompt_lookup", record_settings, prompt, text, 0)["run"]).any()


@pytest.mark.parametrize("K, budget", [(0, 8), (256, 8), (4, 0)])
def test_invalid_settings_are_refused(K, budget):
    with pytest.raises(RecordError, match="expected"):
        Settings(K, budget, RULES["greedy"], END)


@pytest.mark.parametrize("name", ["model", "eagle", "prompt_lookup"])
def test_margins_are_those_of_the_target_along_its_own_text(name):
    trace, target, _ = toy_recording(name, "greedy", 3)
    decoder = target.decoder
    for s, prompt in enumerate(toy_prompts(3)):
        part = slice(trace.offset[s], trace.offset[s + 1])
        text = torch.tensor([[*prompt, *trace.token[part][:-1].tolist()]])
        with torch.inference_mode():
            expected = encode_margin(margin(decoder(text)[0, len(prompt) - 1 :]).numpy())
        recorded = trace.margin[part].astype(int)
        assert np.abs(recorded - expected.astype(int)).max() <= 1
    assert trace.margin.min() < trace.margin.max()


def must_not_run(*_, **__):
    raise AssertionError("models were loaded")


def test_longer_drafts_than_the_drafters_are_refused(monkeypatch):
    target, drafter = toy_pair("medusa")
    monkeypatch.setattr(type(drafter), "begin", must_not_run)
    with pytest.raises(ValueError, match="drafts at most . tokens a round, asked for 255"):
        measure(target, drafter, Rule(), 255, MeasureSettings())
