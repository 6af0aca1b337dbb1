"""Suffix decoding: drafts equal counting by definition; recorded and replayed as proposed."""

import json

import numpy as np
import pytest
from fake_engine import END, prompts
from hypothesis import given, settings
from hypothesis import strategies as st
from shell import simspec
from test_checkpoint import refused
from test_vllm_proposer import COST, SETTINGS, K, config, run
from toy_lm import RULES, policy_from, recorded, run_all, toy_cost, toy_prompts, toy_target
from vllm_double import VllmDouble

from real.drafters.suffix import SuffixDrafter
from real.engines import EngineSettings, PolicyDraft
from real.engines.compare import compare_rows
from real.engines.run import Plan
from real.model.target import Target
from real.record import Settings
from real.rerun import compare
from simspec import load_trace, replay
from simspec.engines.ngram import SuffixRule, suffix_draft, suffix_text
from simspec.engines.text import WrittenText, record_texts
from simspec.engines.vllm_proposer import PolicyProposer
from simspec.trace import quantization as grid

TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=24)
RULE = st.builds(
    SuffixRule, st.integers(1, 12), st.sampled_from([0.0, 0.3, 0.5, 1.0, 1.7, 4.0]),
    st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]), st.integers(1, 9)
)  # fmt: skip


def count(text, part):
    """Occurrences of a part in a text, overlapping ones too."""
    return sum(text[i : i + len(part)] == part for i in range(len(text) - len(part) + 1))


def naive(text, rule):
    """(draft, shares, match): every match length, each string counted in the whole text."""
    best = 0.0, [], [], 0
    for m in range(1, min(len(text), rule.depth)):
        path, draft, shares = text[-m:], [], []
        product, total = np.float32(1), np.float32(0)
        while len(path) < rule.depth and len(draft) < min(rule.most, int(m * rule.factor + 1e-6)):
            counts = {c: count(text, [*path, c]) for c in sorted({*text})}
            token = max(counts, key=counts.get)
            share = np.float32(counts[token]) / np.float32(count(text, path))
            product = product * share
            if not counts[token] or product < np.float32(rule.least):
                break
            draft, shares, total = [*draft, token], [*shares, share], total + product
            path = [*path, token]
        if draft and total >= best[0]:
            best = total, draft, shares, m
    return best[1:]


@settings(max_examples=80, deadline=None)
@given(TEXT, RULE)
def test_a_draft_is_that_of_counting_every_string(text, rule):
    found = suffix_draft(text, rule)
    draft, shares, match = naive(text, rule)
    assert found.token.tolist() == draft
    assert found.share.tolist() == shares
    assert found.match == match
    assert len(draft) <= min(rule.most, rule.depth - match, match * rule.factor + 1e-6)


def test_shares_and_matches_by_hand():
    text = [1, 2, 3, 4, 9, 1, 2, 3, 4, 8, 1, 2, 3]
    found = suffix_draft(text, SuffixRule())
    assert (found.token.tolist(), found.match) == ([4, 8, 1], 3)  # 8 and 9 once each: the lower
    assert found.share == pytest.approx([2 / 3, 1 / 2, 1])  # the text's own end counts
    assert suffix_draft(text, SuffixRule(least=0.5)).token.tolist() == [4]
    assert suffix_draft(text, SuffixRule(factor=0.7)).token.tolist() == [4, 8]
    assert suffix_draft(text, SuffixRule(depth=3)).match == 2
    assert suffix_draft([1, 2, 3], SuffixRule()).token.tolist() == []
    assert suffix_draft([], SuffixRule()).match == 0
    # the most tokens of a draft decide which match is best
    text = [5, 2, 3, 4, 7, 6, 3, 4, 7, 2, 3, 4, 8, 2, 3]
    drafts = [suffix_draft(text, SuffixRule(most=most)) for most in (1, 9)]
    assert [draft.match for draft in drafts] == [1, 2]


def started(prompt, **given):
    drafter = SuffixDrafter(**given)
    drafter.begin(None, prompt, None, None)
    return drafter


def offer(drafter, limit=99):
    steps = [step for step in (drafter.next() for _ in range(limit)) if step]
    assert [step.parent for step in steps] == list(range(len(steps)))
    return [step.token for step in steps]


@settings(max_examples=20, deadline=None)
@given(RULE, TEXT, st.lists(st.tuples(st.integers(0, 5), TEXT), max_size=4))
def test_the_drafter_offers_the_rule_s_draft_after_any_rounds(rule, text, rounds):
    drafter = started(text, **vars(rule))
    for drafted, committed in rounds:
        offer(drafter, drafted)
        drafter.rollback(min(drafted, len(committed) - 1))
        drafter.catch_up(committed, None, [0])
        text = text + committed
    assert offer(drafter) == naive(text, rule)[0]


def test_it_is_not_prefix_only():
    """The second token of a draft is not the first one after it is verified."""
    text = [1, 2, 4, 1, 2, 4, *(t for i in range(10, 20) for t in (i, 2, 6)), 9, 1]
    drafter = started(text, factor=2.0, least=0.6)
    first = offer(drafter)
    drafter.rollback(1)
    drafter.catch_up(first[:1], None, [0])
    assert not drafter.prefix_only
    assert first == [2, 4]  # 4 follows each 1 2
    assert offer(drafter)[0] == 6  # which follows ten of twelve 2


@pytest.mark.parametrize("rule", RULES)
def test_recorded_is_proposed_and_runs_equal_their_replays(rule):
    decoder = toy_target()
    target, drafter = Target(decoder, capacity=32), SuffixDrafter(least=0.3)
    asked = Settings(6, 24, RULES[rule], (3,), features=())
    trace, cost = recorded(target, drafter, asked, 6), toy_cost()
    assert trace.run.max() > 0
    assert (trace.run < trace.depth).any()
    for s, prompt in enumerate(toy_prompts(6)):
        own = slice(trace.offset[s], trace.offset[s + 1])
        depth, run, _ = suffix_text(prompt, trace.token[own], drafter.rule, 6)
        whole = np.arange(len(depth)) < trace.budget[s] - 6  # the recorder stops at the budget
        assert run.tolist() == trace.run[own].tolist()
        ended = trace.depth[own] < depth  # and at an end token
        assert (trace.depth[own] == depth)[whole & ~ended].all()
        assert ended.sum() < len(depth) / 2
    for text in ("fixed:6", "beta_ts", "oracle"):
        policy = policy_from(text, trace, cost)
        results = run_all(target, drafter, trace, policy, cost)
        assert compare(trace, policy, replay(trace, policy, 0, cost=cost), results).exact, text


POLICIES = "beta_ts:acceptance", "cost_ts", "confidence:0.6", "confidence:0.6,inclusive=false"
DRAFT = PolicyDraft(K, cost=COST.to_dict(), suffix={"least": 0.05})


@pytest.mark.parametrize("concurrent", [1, 3])
def test_policies_over_suffix_decoding_make_the_passes_of_their_replay(tmp_path, concurrent):
    world = prompts(9, budget=20)
    plan = Plan((0, 2, K), 1, 3, concurrent, policies=POLICIES)
    held = EngineSettings(SETTINGS.model, DRAFT, batch=3, seed=5)
    double = VllmDouble(world, PolicyProposer, (END,), chunked=True)
    about, rows = run(tmp_path / "r.jsonl", double, world, plan, held)
    result = compare_rows(about, rows)
    assert result.requests == 9 * (3 + len(POLICIES))
    assert not result.differences, result.differences[0]
    drafted = {name: held["num_draft_tokens"][0] for name, held in result.counters.items()}
    assert 0 < drafted["confidence:0.6,inclusive=false"] < drafted["confidence:0.6"] < drafted[K]
    # controls: n-grams, another probability, and a draft of other length are found
    blind = [row for row in rows if not row.policy.startswith("confidence")]
    ngram = {name: value for name, value in about["draft"].items() if name != "suffix"}
    for wrong in (ngram, about["draft"] | {"suffix": {"least": 0.6}}):
        assert compare_rows(about | {"draft": wrong}, blind).exceptions


def test_a_recording_along_texts_shows_shares_as_confidence():
    text = WrittenText("a", "", np.array([1, 2, 1], np.int32), np.array([2, 1, 2, 1], np.int32), 4)
    trace = record_texts([text], SuffixRule(), 3).validate()
    assert (trace.meta.drafter, trace.depth.tolist()) == ("suffix:24,1,0.1,24", [1, 2, 2, 2])
    assert trace.run.tolist() == [1, 2, 2, 1]
    shown = grid.decode(trace.feature[:, :, 0], grid.TABLES["confidence"])
    assert shown[0, 0] == pytest.approx(1 / 2, abs=0.01)  # of two 1s one goes on


def test_the_command_records_it_along_texts(tmp_path):
    line = {"id": "a", "prompt": [1, 2, 1], "output": [2, 1, 2, 1]}
    (tmp_path / "t.jsonl").write_text(json.dumps(line) + "\n")
    asked = "record", "--from-text", "t.jsonl", "--drafter", "suffix", "-k", 3, "--out", "t.parquet"
    simspec(*asked, cwd=tmp_path)
    trace = load_trace(tmp_path / "t.parquet")
    assert (trace.meta.drafter, trace.depth.tolist()) == ("suffix:24,1,0.1,3", [1, 2, 2, 2])


WRONG = [
    {"depth": 0}, {"depth": 2.0}, {"factor": -1}, {"factor": float("nan")}, {"least": 1.5},
    {"least": "a"}, {"most": 0}, {"most": True}, {"depth": 1 << 20},
]  # fmt: skip


@pytest.mark.parametrize("given", WRONG)
def test_invalid_settings_are_refused(tmp_path, given):
    with pytest.raises(ValueError, match="expected whole numbers"):
        SuffixRule(**given)
    (tmp_path / "suffix.json").write_text("[]")
    refused("suffix.json holds no settings", SuffixDrafter.load, tmp_path, None, {})
    if "most" not in given:
        with pytest.raises(ValueError, match="expected whole numbers"):
            PolicyProposer(config(suffix=given))


@pytest.mark.parametrize("given", [3, [1], {"depht": 3}, {"most": 3}, "a", {"factor": [1]}])
def test_settings_of_another_form_are_one_line(given):
    with pytest.raises(ValueError, match="expected") as error:
        PolicyProposer(config(suffix=given))
    assert "\n" not in str(error.value)
