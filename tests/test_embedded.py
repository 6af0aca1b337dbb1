"""The embedded models in float32 on the bundled recordings: each policy's run and its replay."""

import json
import os
from functools import lru_cache

import pytest
from loaded_pairs import embedded, together
from toy_lm import POLICIES, learn_nothing, policy_from, run_all

from real.decode.features import PREDICTOR_NAMES as NAMES_LEARNT
from real.decode.features import drafter_features
from real.drafters import BUILTIN
from real.model.stored_weights import sha256, weight_files
from real.pair import TINY, check_predictors
from real.record.settings import card
from real.rerun import compare, prompts_of
from simspec import CostModel, Policy, load_trace, policies, replay
from simspec.trace.recordings import CHECKOUT as TRACES
from simspec.trace.recordings import recordings

PROMPTS = 20
SLOW = os.environ.get("SIMSPEC_SLOW")  # `make test-slow`: every policy on every recording's prompts
SHARE = 1 if SLOW else PROMPTS  # else each policy runs one prompt, in turn
BUDGET = 16  # else new tokens at most; recorded are up to 96
# and every policy on one of two recordings, in turn, on the others
WHOLE = ("tiny-model-greedy", "tiny-early_exit-coupled")
FEW = ("fixed:3", "beta_ts:censored", "confidence:0.5")  # these
TASKS = {"math", "code", "dialogue", "summarization", "qa", "sql"}
NAMES = [name for name in recordings() if "hydra" not in name]  # whose weights are not here
DRAFTERS = list(dict.fromkeys(name.split("-")[1] for name in NAMES))


def _surer(params, state, slot, features, u):
    return slot == 0 or features[slot - 1, 0] >= params[0], True


LEARNT = [
    Policy(f"{name}:0.6", _surer, learn_nothing, params=(0.6,), reads=(name,))
    for name in NAMES_LEARNT
]


_pair = lru_cache(maxsize=2)(embedded)


def test_recordings_are_of_built_in_drafters_under_both_rules():
    assert {"model", "early_exit"} <= set(DRAFTERS) <= set(BUILTIN)
    assert (
        set(NAMES)
        == {f"tiny-{drafter}-{rule}" for drafter in DRAFTERS for rule in ("greedy", "coupled")}
        >= set(WHOLE)
    )


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_recordings_have_the_stated_settings(drafter):
    pair = _pair(drafter)
    K = {"model": 16, "early_exit": 16, "prompt_lookup": 16, "medusa": 4, "hydra": 4}.get(
        drafter, 8
    )
    texts = 20 if drafter in ("model", "early_exit") else 10
    for rule in ("greedy", "coupled"):
        name = f"tiny-{drafter}-{rule}"
        trace = load_trace(recordings()[name])
        assert (trace.meta.drafter, trace.meta.rule, trace.K) == (drafter, rule, K)
        assert set(trace.task) == TASKS
        assert min(trace.task.count(task) for task in TASKS) >= texts
        assert (trace.budget == 96).all()
        assert tuple(feature for feature, _ in trace.meta.features) == drafter_features(
            pair.drafter
        )
        assert trace.meta.predictors == {
            feature: p.sha256 for feature, p in pair.drafter.predictors.items()
        }
        assert set(pair.drafter.predictors) == (
            set(NAMES_LEARNT) if drafter in ("model", "early_exit") else set(trace.meta.predictors)
        )
        assert trace.meta.target == pair.name
        assert trace.meta.tokenizer_sha256 == pair.tokenizer_sha256
        assert trace.meta.prefix_only == pair.drafter.prefix_only
        assert CostModel.from_json(TRACES / f"{name}.cost.json").K == K


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
def test_recorded_sequences_agree_between_drafters(rule):
    """Texts of one prompt under the same noise are the same in all recordings."""
    texts, shared = {}, 0
    for drafter in DRAFTERS:
        trace = load_trace(recordings()[f"tiny-{drafter}-{rule}"])
        for s, prompt in enumerate(prompts_of(trace)):
            key = tuple(prompt), int(trace.sequence[s]) if rule == "coupled" else 0
            text = trace.token[trace.offset[s] : trace.offset[s + 1]].tolist()
            shared += key in texts
            assert texts.setdefault(key, text) == text
    assert shared >= 120


@pytest.mark.parametrize("name", NAMES)
def test_cards_equal_todays_results(name):
    path = recordings()[name]
    assert json.loads(path.with_suffix(".json").read_text()) == card(path, load_trace(path))


def test_model_card_lists_the_shipped_files():
    hashes = json.loads((TINY / "card.json").read_text())["sha256"]
    shipped = [p for folder in TINY.iterdir() if folder.is_dir() for p in weight_files(folder)] + [
        TINY / "target" / "tokenizer.json"
    ]
    assert hashes == {str(p.relative_to(TINY)): sha256(p) for p in shipped}


def _wanted(name):
    """The policies of this recording's turn."""
    if SLOW or name not in WHOLE:
        return [*POLICIES, *LEARNT] if SLOW else FEW
    return [*POLICIES, *LEARNT][WHOLE.index(name) :: len(WHOLE)]


def _exam(name, trace):
    """The policies to test on this recording: those that it can replay."""
    known = {feature for feature, _ in trace.meta.features}
    parsed = [
        (policy, policies.parse(policy) if isinstance(policy, str) else policy)
        for policy in _wanted(name)
    ]
    return [
        g
        for g, p in parsed
        if known.issuperset(p.reads) and (getattr(p, "K", None) or 0) <= trace.K
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_run_equals_its_replay(name, record_property):
    trace = load_trace(recordings()[name])
    trace = trace.select([i * trace.sequences // PROMPTS for i in range(PROMPTS)])
    trace = trace if SLOW else trace.shorten(BUDGET)
    cost = CostModel.from_json(TRACES / f"{name}.cost.json")
    pair, total, exam = _pair(trace.meta.drafter), [], _exam(name, trace)
    assert exam == _wanted(name) or (SLOW or name not in WHOLE) and len(exam) >= 2
    check_predictors(pair.drafter, trace, [policy for policy in LEARNT if policy in exam])
    for i, entry in enumerate(exam):
        part = trace.select(range(i % SHARE, PROMPTS, SHARE))
        # the oracle's plan is for these texts
        policy = entry if isinstance(entry, Policy) else policy_from(entry, part, cost)
        results = run_all(pair.target, pair.drafter, part, policy, cost, seed=1)
        total.append(compare(part, policy, replay(part, policy, seed=1, cost=cost), results))
    total = together(total)
    flips = [f"{f.margin:.1e}" for f in total.text_flips]
    record_property(
        "measured",
        f"{name}: {total.rounds} rounds of {len(exam)} policies compared, "
        f"{len(total.exceptions)} exceptions, "
        f"{len(total.failures)} failures, text flips at gaps {flips}",
    )
    # one near-tie may fall into a few rounds
    assert total.equal or (not SLOW and not total.failures and len(total.exceptions) == 1), total
