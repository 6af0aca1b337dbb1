"""Contestants write the recorded sequences, transformers too; sampled, it draws from the rule."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from contest_clock import save_toys
from scipy import stats
from test_run_sampled import COST
from test_run_sampled import recording as rejection_recording
from toy_lm import END, VOCAB, toy_prompts, toy_recording

import real.sampling
from real.contest import PLAIN, Request, compared, contest, contestants_of, requests_of
from real.decode.engine import make_passes
from real.hf_generate import hf_contestant, load_hf_model
from real.model.checkpoint import WeightsError
from real.pair import load_pair
from real.rerun import rerun_rule
from real.sampling import Rule
from simspec import CostModel, policies, replay

POLICIES = ["fixed:2", "beta_ts", "confidence:0.5", "static:2x1x1"]
LAW = Rule("coupled", 0.8, 3, top_k=6, top_p=0.95)
RISK = 1e-6
DRAWS = 400


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return save_toys(tmp_path_factory.mktemp("models"))


def raced(folder, trace, names, rival=False, dtype="float64", repeats=2, engine="eager"):
    cost = CostModel.from_ratio(0.1, trace.K)
    chosen = [policies.make(name, trace, cost) for name in names]
    submitted = max((p.submitted(trace.K) for p in chosen), default=0)
    passes = make_passes(engine, max(trace.K, submitted) + 1, 128)
    pair = load_pair(folder, "model", "cpu", dtype, passes=passes)
    contestants = contestants_of(trace, pair, pair, chosen, cost, 0)
    if rival:
        model = load_hf_model(folder / "target", dtype, "cpu")
        contestants.append(hf_contestant(model, trace.meta.end_tokens, rerun_rule(trace)))
    return {r.name: r for r in contest(contestants, requests_of(trace), repeats)}


def texts(trace):
    return [trace.token[a:b].tolist() for a, b in zip(trace.offset, trace.offset[1:])]


@pytest.fixture(scope="module")
def greedy(models):
    trace = toy_recording("model", "greedy")[0].select([0, 6])  # the last text ends by itself
    return trace, raced(models, trace, POLICIES, True)


def test_every_contestant_writes_the_recorded_sequences(greedy):
    trace, runs = greedy
    sequences = texts(trace)
    assert [sequence[-1] in END for sequence in sequences].count(True) == 1
    assert len(runs) == 2 + len(POLICIES)
    for r in runs.values():
        assert not r.error, r.name
        assert r.token == [sequences, sequences], r.name
        assert r.passes[0] == r.passes[1], r.name  # every repeat starts anew
        assert (sum(r.passes[0]) < trace.rows) == (r.name not in (PLAIN, "generate")), r.name
    replayed = replay(trace, policies.parse("fixed:2"))
    assert runs["fixed:2"].passes[0] == np.diff(replayed.offset).tolist()


@pytest.mark.parametrize("engine", ["fast", "strict"])
def test_captured_passes_give_equal_texts_and_rounds(models, greedy, engine):
    trace, eager = greedy
    runs = raced(models, trace, ["fixed:2", "static:2x1x1"], repeats=1, engine=engine)
    for name, r in runs.items():
        assert (r.token[0], r.passes[0]) == (eager[name].token[0], eager[name].passes[0])


def test_generation_config_of_the_checkpoint_is_ignored(models, greedy):
    path = models / "target" / "generation_config.json"
    path.write_text(json.dumps({"repetition_penalty": 9.0, "do_sample": True}))
    try:
        runs = raced(models, greedy[0], [], True, repeats=1)
    finally:
        path.unlink()
    assert runs["generate"].token == runs[PLAIN].token


def test_what_transformers_cannot_load_is_refused(tmp_path):
    with pytest.raises(WeightsError, match="cannot be loaded by transformers"):
        load_hf_model(tmp_path, "float32", "cpu")


def test_coupled_policies_write_the_recorded_sequences_and_transformers_its_own(models):
    trace = toy_recording("model", "coupled")[0].select([0, 3, 6]).shorten(12)
    runs = raced(models, trace, ["fixed:2"], True)
    for name in (PLAIN, "fixed:2"):
        assert runs[name].token == [texts(trace)] * 2, name
    theirs = runs["generate"]
    assert not theirs.error
    assert theirs.token[0] == theirs.token[1] != texts(trace)


def test_rejection_draws_its_own_sequences(models):
    trace = rejection_recording("model", 8)[0].select([0, 3, 6])
    runs = raced(models, trace, ["fixed:2"])
    rows = compared(trace, list(runs.values()), {}, COST).set_index("contestant")
    assert rows["equal"].isna().tolist() == [False, True]
    assert runs["fixed:2"].token[0] == runs["fixed:2"].token[1]


@cache
def drawn_tokens(folder):
    """(counts of the new token after one prompt, drawn by LAW; logits there), for every test."""
    model = load_hf_model(folder / "target", "float64", "cpu")
    generate = hf_contestant(model, (), LAW).begin()
    prompt = toy_prompts(1)[0]
    counts = np.zeros(VOCAB)
    for address in range(DRAWS):
        token, _ = generate(Request(prompt, 1, address))
        counts[token[0]] += 1
    with torch.no_grad():
        return counts, model(torch.tensor([prompt])).logits[0, -1:]


def p_value(folder, expected):
    """Chi-square of the new token after one prompt against the rule's distribution."""
    counts, logits = drawn_tokens(folder)
    chance = expected.probs(logits)[0].numpy()
    if counts[chance == 0].any():
        return 0.0
    kept = chance > 0
    return stats.chisquare(counts[kept], DRAWS * chance[kept]).pvalue


def test_transformers_draws_from_the_rule(models):
    assert p_value(models, LAW) > RISK


@pytest.mark.parametrize(
    "other", [replace(LAW, temperature=4.0), replace(LAW, top_k=2), replace(LAW, top_p=0.3)]
)
def test_control_another_rule_is_noticed(models, other):
    assert p_value(models, other) < RISK


def test_every_call_draws_its_own_noise(models, monkeypatch):
    trace = toy_recording("model", "coupled")[0].select([0])
    pair = load_pair(models, "model", "cpu", "float64")
    plain = contestants_of(trace, pair, pair, [], CostModel.from_ratio(0.1, trace.K), 0)[0]
    drawn = []
    gumbel = real.sampling.rng.gumbel

    def counted(*address):
        drawn.append(address)
        return gumbel(*address)

    monkeypatch.setattr(real.sampling.rng, "gumbel", counted)
    request = requests_of(trace)[0]
    first = plain.begin()(request)
    noise = list(drawn)
    assert plain.begin()(request) == first
    assert noise
    assert drawn == noise * 2
