"""A policy inside vLLM: its rounds are those of its replay, whatever else is in the batch."""

import struct
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_engine import END, prompts
from vllm_double import VllmDouble, read_rounds

from real.engines import EngineSettings, PolicyDraft, Request
from real.engines.compare import compare_rows
from real.engines.measure import engine_cost, speedup_table
from real.engines.rows import read_rows
from real.engines.run import Plan, run_on_engine
from simspec import CostModel, PolicyError, replay
from simspec.engines.ngram import ngram_rule
from simspec.engines.text import WrittenText, record_texts
from simspec.engines.vllm_proposer import PolicyProposer, draw_address, served_policy
from simspec.policies import KINDS

K = 4
COST = CostModel.from_ratio(0.2, K)


def reads_nothing(text):
    """Whether a policy runs on n-grams of up to K tokens."""
    try:
        return not served_policy(text, K)[0].reads
    except (PolicyError, ValueError):
        return False


TEXTS = tuple(
    dict.fromkeys(
        text for kind in KINDS.values() if kind.group != "trees" for text in kind.examples
        if reads_nothing(text)
    )
)  # fmt: skip
SETTINGS = EngineSettings(Path("target"), PolicyDraft(K, 1, 2, COST.to_dict()), batch=3, seed=5)


def run(path, double, world, plan, held=SETTINGS):
    """(about, rows) of a run on the double."""
    run_on_engine(lambda: double, held, [request for request, _ in world], plan, path)
    return read_rows(path)


def logging(path):
    """A maker of proposers that write their rounds."""

    def make(config):
        given = config.additional_config["simspec"]
        config.additional_config["simspec"] = given | {"rounds": str(path)}
        return PolicyProposer(config)

    return make


def test_policies_of_every_group_without_features_are_tried():
    groups = {kind.group for kind in KINDS.values() for t in kind.examples if t in TEXTS}
    assert {"outcomes", "costs"} <= groups
    assert len({text.partition(":")[0] for text in TEXTS}) >= 8


@pytest.mark.parametrize("concurrent", [1, 3])
@pytest.mark.parametrize("chunked", [False, True])
def test_every_policy_makes_the_passes_of_its_replay(tmp_path, concurrent, chunked):
    world = prompts(9, budget=20)
    plan = Plan((0, 2, K), 1, 3, concurrent, policies=TEXTS)
    double = VllmDouble(world, PolicyProposer, (END,), chunked)
    about, rows = run(tmp_path / "r.jsonl", double, world, plan)
    result = compare_rows(about, rows)
    assert result.requests == 9 * (3 + len(TEXTS))
    assert not result.differences, result.differences[0]
    assert result.left_out == 0
    assert {*result.counters} == {0, 2, K, *TEXTS}
    assert all(result.counters[text]["num_drafts"][0] for text in TEXTS if text != "fixed:0")


def test_another_seed_cost_or_rule_is_found(tmp_path):
    world = prompts(8, budget=20)
    texts = ("beta_ts:acceptance", "cost_ts")
    plan = Plan((0, K), 1, 4, 1, policies=texts)
    about, rows = run(tmp_path / "r.jsonl", VllmDouble(world, PolicyProposer, (END,)), world, plan)
    assert not compare_rows(about, rows).differences
    dear = CostModel.from_ratio(2.0, K).to_dict()
    for wrong in (
        about | {"seed": 6},
        about | {"draft": about["draft"] | {"cost": dear}},
        about | {"draft": about["draft"] | {"ngram_max": 1}},
    ):
        assert compare_rows(wrong, rows).exceptions


def test_requests_may_take_turns_where_no_state_is_handed_on(tmp_path):
    world = prompts(8, budget=20)
    plan = Plan((0, K), 1, 4, 2, policies=("beta_ts:acceptance",))
    double = VllmDouble(world, PolicyProposer, (END,))
    about, rows = run(tmp_path / "r.jsonl", double, world, plan)
    assert not compare_rows(about, rows).differences
    plan = replace(plan, policies=("beta_ts:acceptance,scope=stream",))
    about, rows = run(tmp_path / "s.jsonl", double, world, plan)
    with pytest.raises(ValueError, match="2 requests took turns.*or with scope=sequence"):
        compare_rows(about, rows)


def test_a_dropped_draft_reaches_the_policy_as_verified(tmp_path):
    world = prompts(6, budget=20)
    double = VllmDouble(world, PolicyProposer, (END,), preempted=3)
    plan = Plan((0, K), 1, 3, 3, policies=("cost_ts", "beta_ts:acceptance"))
    about, rows = run(tmp_path / "r.jsonl", double, world, plan)
    texts = {row.request.id: row.finished.tokens for row in rows if row.name == 0}
    assert all(row.finished.tokens == texts[row.request.id] for row in rows)
    assert compare_rows(about, rows).exceptions  # and the replay, which drops none, says so


def test_a_policy_learns_of_the_draft_that_was_verified(tmp_path):
    world, log = prompts(6, budget=20), tmp_path / "rounds.jsonl"
    double = VllmDouble(world, logging(log), (END,), preempted=3)
    plan = Plan((0, K), 1, 6, 3, policies=("beta_ts:acceptance",))
    _, rows = run(tmp_path / "r.jsonl", double, world, plan)
    dropped, last = 0, {row.request.id: row for row in rows}
    for name, row in last.items():
        rounds = read_rounds(log)[f"{name}-0badcafe"]
        assert [drafted for _, _, drafted, _ in rounds] == [
            drafted for _, drafted, _ in row.finished.passes[1:]
        ]
        dropped += sum(computed > drafted for _, computed, drafted, _ in rounds)
    assert dropped


def test_draws_are_addressed_by_the_prompt_s_crc():
    assert draw_address((1, 70000)) == zlib.crc32(struct.pack("<2i", 1, 70000))
    assert draw_address(np.array([1, 70000], np.int32)) == draw_address([1, 70000])
    assert draw_address((70000, 1)) != draw_address((1, 70000))


def test_predicted_and_measured_speedups_hold_policies(tmp_path):
    world = prompts(12, budget=20)
    double = VllmDouble(world, PolicyProposer, (END,))
    of_cost, of_speed = world[:4], world[4:]
    about, rows = run(tmp_path / "c.jsonl", double, of_cost, Plan((0, 1, 2, 3, K), 2, 2))
    cost = replace(engine_cost(about, rows), precision=None)  # an exact clock has no spread
    plan = Plan((0, 2), 1, 4, policies=("cost_ts", "beta_ts:acceptance"))
    held = replace(SETTINGS, draft=replace(SETTINGS.draft, k=2))
    about, rows = run(tmp_path / "s.jsonl", double, of_speed, plan, held)
    table = speedup_table(about, rows, cost)
    assert [row.name for row in table.rows] == [0, 2, "beta_ts:acceptance", "cost_ts"]
    # the double's passes take 1 + 0.1 d, and the costs say so
    assert [row.predicted for row in table.rows] == pytest.approx(
        [row.measured for row in table.rows]
    )
    assert table.confirmed
    assert table.recommended == max(table.rows, key=lambda row: row.predicted).name


def test_the_file_of_rounds_holds_the_replay_s(tmp_path):
    world, log = prompts(5, budget=20), tmp_path / "rounds.jsonl"

    plan = Plan((0, K), 1, 5, policies=("fixed:3",))
    about, rows = run(tmp_path / "r.jsonl", VllmDouble(world, logging(log), (END,)), world, plan)
    found = read_rounds(log)  # the last run of a request is kept
    last = {row.request.id: row for row in rows}
    for id, rounds in found.items():
        name = id.rpartition("-")[0]
        if name not in last:
            continue  # of the warm-up
        passes = last[name].finished.passes
        assert [(d, a) for _, _, d, a in rounds] == [
            (drafted, min(accepted, len(last[name].finished.tokens) - row))
            for (row, *_), (_, drafted, accepted) in zip(rounds, passes[1:], strict=True)
        ]
    assert not compare_rows(about, rows).differences


def config(k=K, **settings):
    """vLLM's configuration, as far as the proposer reads it."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=k),
        additional_config={"simspec": settings},
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"police": "fixed:2"}, "police.*expected an object of policy, ngram"),
        ({"ngram": 3}, r"expected \[least, most\]"),
        ({"ngram": [3, 1]}, r"expected \[least, most\]"),
        ({"policy": "oracle"}, "reads tokens not yet decoded"),
        ({"policy": "static:2x2"}, "drafts trees"),
        ({"policy": "confidence:0.5"}, "reads 'confidence'"),
        ({"policy": "fixed:9"}, "drafts up to 9"),
        ({"policy": "nothing"}, "no policy is named"),
        ({"seed": "a"}, "seed"),
        ({"cost": {"draft": [0]}}, "verify"),
        ({"cost": "missing.json"}, "missing.json"),
    ],
)
def test_invalid_settings_are_one_line(wrong, said):
    with pytest.raises((ValueError, TypeError, OSError), match=said) as error:
        PolicyProposer(config(**wrong))
    assert "\n" not in str(error.value)


def test_without_settings_all_tokens_are_drafted():
    proposer = PolicyProposer(
        SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=3), additional_config={}
        )
    )
    assert proposer.policy.name == "fixed:3"


def test_another_caller_is_refused():
    with pytest.raises(RuntimeError, match="otherwise than 0.32"):
        PolicyProposer(config()).propose([[1]], np.ones(1, np.int32), np.ones((1, 4), np.int32))


def test_an_ended_request_drafts_nothing_and_frees_its_state(tmp_path):
    world = [(Request("a", (1, 2, 1, 2), 4), [1, 2, 1, 2, 1, 2, 1, 2, 1, 2])]
    double = VllmDouble(world, PolicyProposer, (9,))
    plan = Plan((0, K), 1, 1)
    held = replace(SETTINGS, batch=1)
    _, rows = run(tmp_path / "r.jsonl", double, world, plan, held)
    assert [row.finished.tokens for row in rows] == [(1, 2, 1, 2)] * 2
    assert "a-0badcafe" not in double.drafter.rounds
    assert len(double.drafter.rounds._free) == 1


def test_replay_and_engine_agree_on_the_default_costs():
    policy, cost = served_policy("cost_ts", K)
    assert cost == CostModel.from_ratio(0.1, K)
    text = WrittenText("a", "", np.array([1, 2, 1], np.int32), np.array([2, 1, 2, 1], np.int32), 4)
    trace = record_texts([text], ngram_rule("vllm:1,2"), K)
    assert replay(trace, policy) == replay(trace, policy, cost=cost)
