"""The embedded models in float32 on the bundled recordings: every policy's run against its replay."""

import json
import os
from functools import lru_cache

import pytest
from toy_lm import POLICIES, policy_from, run_all

from real.card import card
from real.demo import TRACES, recordings
from real.equality import NOTHING, compare
from real.pair import TINY, load_pair, same_predictors
from real.predictor import NAMES as NAMES_LEARNT
from real.weights import sha256
from simspec import CostModel, Policy, load_trace, replay

PROMPTS = 20
SHARE = 1 if os.environ.get("SIMSPEC_SLOW") else 4  # each policy runs every so many-th prompt, in turn; `make test-slow` runs all
TASKS = {"math", "code", "dialogue", "summarization", "qa", "sql"}
NAMES = [f"tiny-{drafter}-{rule}" for drafter in ("model", "early_exit") for rule in ("greedy", "coupled")]


def _surer(params, state, slot, features, u):
    return slot == 0 or features[slot - 1, 0] >= params[0], True


def _ignore(params, state, computed, drafted, accepted, features, cost):
    pass


LEARNT = [Policy(f"{name}:0.6", _surer, _ignore, params=(0.6,), reads=(name,)) for name in NAMES_LEARNT]


@lru_cache(maxsize=2)
def _pair(drafter):
    return load_pair(TINY, drafter)


def test_the_recordings_are_what_the_cards_say():
    assert set(recordings()) == set(NAMES)
    texts = {}
    for name, path in recordings().items():
        trace = load_trace(path)
        assert trace.K == 16 and set(trace.task) == TASKS
        assert min(trace.task.count(task) for task in TASKS) >= 20 and (trace.budget == 96).all()
        assert [feature for feature, _ in trace.meta.features] == ["confidence", "entropy", *NAMES_LEARNT]
        assert set(trace.meta.predictors) == set(NAMES_LEARNT)
        assert trace.meta.target == _pair(trace.meta.drafter).name  # made with the weights that are shipped
        assert trace.meta.tokenizer_sha256 == _pair(trace.meta.drafter).tokenizer_sha256
        assert CostModel.from_json(TRACES / f"{name}.cost.json").K == 16
        # the text is the target's own: it does not depend on the drafter
        texts.setdefault(trace.meta.rule, []).append((trace.token.tolist(), trace.prompt.tolist()))
    for rule, (one, other) in texts.items():
        assert one == other, rule


@pytest.mark.parametrize("name", NAMES)
def test_a_card_is_what_todays_code_finds(name):
    path = recordings()[name]
    assert json.loads(path.with_suffix(".json").read_text()) == card(path, load_trace(path))


def test_the_models_card_names_the_files_that_are_shipped():
    hashes = json.loads((TINY / "card.json").read_text())["sha256"]
    shipped = [p for p in TINY.rglob("*") if p.suffix == ".safetensors" or p.name == "tokenizer.json"]
    assert hashes == {str(p.relative_to(TINY)): sha256(p) for p in shipped}


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_runs_as_it_replays(name, record_property):
    trace = load_trace(recordings()[name])
    trace = trace.select([i * trace.sequences // PROMPTS for i in range(PROMPTS)])
    cost = CostModel.from_json(TRACES / f"{name}.cost.json")
    pair, total = _pair(trace.meta.drafter), NOTHING
    same_predictors(pair.drafter, trace, LEARNT)
    for i, given in enumerate([*POLICIES, *LEARNT]):
        part = trace.select(range(i % SHARE, PROMPTS, SHARE))
        policy = given if isinstance(given, Policy) else policy_from(given, part, cost)  # the oracle's plan is for these texts
        results = run_all(pair.target, pair.drafter, part, policy, cost, seed=1)
        total += compare(part, policy, replay(part, policy, seed=1, cost=cost), results)
    flips = [f"{f.margin:.1e}" for f in total.text_flips]
    record_property(
        "measured",
        f"{name}: {total.rounds} rounds of {len(POLICIES) + len(LEARNT)} policies compared, {len(total.exceptions)} exceptions, "
        f"{len(total.failures)} failures, text flips at gaps {flips}",
    )
    assert total.equal, total.failures
