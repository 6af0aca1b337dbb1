"""A race under sampling: ours writes what plain decoding writes; transformers draws alike."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from race_clock import all_contestants
from scipy import stats
from test_hf_generate import models  # noqa: F401
from test_run_sampled import recording as rejection_recording
from toy_lm import VOCAB, toy_prompts, toy_recording

import real.sampling
from real.bench.contestants import Checkpoints, load_pairs, our_contestants, requests_of
from real.bench.hf_generate import hf_contestant, load_hf_model
from real.bench.race import PLAIN, Request, race
from real.bench.race_rows import race_rows
from real.prompts import ALL
from real.sampling import Rule

LAW = Rule("coupled", 0.8, 3, top_k=6, top_p=0.95)
RISK = 1e-6
DRAWS = 400


def raced(folder, trace, methods):
    checkpoints = Checkpoints(folder, dtype="float64")
    names = ["model=fixed:2", "prompt_lookup=fixed:3"]
    pairs = load_pairs(checkpoints, trace, names)
    runs = race(
        all_contestants(checkpoints, trace, pairs, names, methods), requests_of(trace), repeats=2
    )
    return {run.name: run for run in runs}


def recording(rule):
    return toy_recording("model", rule)[0].select([0, 3, 6]).shorten(12)


def texts(trace):
    return [trace.token[a:b].tolist() for a, b in zip(trace.offset, trace.offset[1:])]


def test_our_contestants_write_the_recorded_sequences(models):  # noqa: F811
    methods = ["generate", "assisted:constant", "prompt_lookup:3"]
    trace = recording("coupled")
    runs = raced(models, trace, methods)
    sequences = texts(trace)
    assert sequences != texts(recording("greedy"))
    for name in (PLAIN, "model=fixed:2", "prompt_lookup=fixed:3"):
        assert runs[name].token == [sequences, sequences], name
    for name in methods:
        assert not runs[name].error
        assert runs[name].token[0] == runs[name].token[1], name  # seeded by request
        assert runs[name].token[0] != sequences
    rows = race_rows(list(runs.values()), trace.meta.tasks)
    equal = {row.contestant: row.equal for row in rows if row.group == ALL}
    assert equal == {PLAIN: 3, "model=fixed:2": 3, "prompt_lookup=fixed:3": 3} | dict.fromkeys(
        methods
    )


def test_rejection_draws_its_own_sequences(models):  # noqa: F811
    trace = rejection_recording("model", 8)[0].select([0, 3, 6])
    runs = raced(models, trace, [])
    rows = {row.contestant: row for row in race_rows(list(runs.values()), trace.meta.tasks)}
    assert rows[PLAIN].equal is not None
    assert rows["model=fixed:2"].equal is None
    assert runs["model=fixed:2"].token[0] == runs["model=fixed:2"].token[1]


@cache
def drawn_tokens(folder, method):
    """(counts of the new token after one prompt, drawn by LAW; logits there), for every test."""
    model = load_hf_model(folder / "target", "float64", "cpu")
    assistant = load_hf_model(folder / "model", "float64", "cpu")
    generate = hf_contestant(method, model, assistant, (), LAW).begin()
    prompt = toy_prompts(1)[0]
    counts = np.zeros(VOCAB)
    for address in range(DRAWS):
        token, _ = generate(Request(prompt, 1, address))
        counts[token[0]] += 1
    with torch.no_grad():
        return counts, model(torch.tensor([prompt])).logits[0, -1:]


def p_value(folder, method, expected):
    """Chi-square of the new token after one prompt against the rule's distribution."""
    counts, logits = drawn_tokens(folder, method)
    chance = expected.probs(logits)[0].numpy()
    if counts[chance == 0].any():
        return 0.0
    kept = chance > 0
    return stats.chisquare(counts[kept], DRAWS * chance[kept]).pvalue


def test_transformers_draws_from_the_rule(models):  # noqa: F811
    for method in ("generate", "assisted:constant"):
        assert p_value(models, method, LAW) > RISK, method


@pytest.mark.parametrize(
    "other", [replace(LAW, temperature=4.0), replace(LAW, top_k=2), replace(LAW, top_p=0.3)]
)
def test_control_another_rule_is_noticed(models, other):  # noqa: F811
    assert p_value(models, "generate", other) < RISK


def test_every_call_draws_its_own_noise(models, monkeypatch):  # noqa: F811
    trace = toy_recording("model", "coupled")[0].select([0])
    checkpoints = Checkpoints(models, dtype="float64")
    plain = our_contestants(trace, load_pairs(checkpoints, trace, []), [])[0]
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
