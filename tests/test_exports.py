"""Exporters: documents that engines read as they were meant, whatever was chosen."""

import json
from dataclasses import replace

import numpy as np
import pytest
import yaml
from export_requests import GAIN, SETTINGS, evidence, request, schedules
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import traces

from simspec import CostModel, policies, replay, synthetic
from simspec.cost.table import CostTable
from simspec.engines import (
    dynamo,
    golden_al,
    hf_transformers,
    llamacpp,
    sglang,
    spec_bench,
    speculation_profile,
    tensorrt_llm,
    vllm,
)
from simspec.engines.choice import TIE, Choice, Evidence, Limits, Schedule, best_length, choose
from simspec.engines.draft_acceptance import acceptance_at
from simspec.engines.formats import EXPORTS
from simspec.engines.request import Request, Settings


@given(schedules(), st.integers(1, 600))
def test_steps_are_the_schedule(schedule, batch):
    found = [k for low, high, k in schedule.steps if low <= batch <= high]
    assert found == ([schedule.at(batch)] if batch <= schedule.batch[-1] else [])
    assert all(a[2] != b[2] for a, b in zip(schedule.steps, schedule.steps[1:]))


@given(schedules(), st.integers(0, 600), st.booleans())
def test_limited_schedule_is_captured(schedule, captured, falling):
    limited = Limits(captured=captured, falling=falling).of(schedule)
    for batch, now, before in zip(limited.batch, limited.length, schedule.length):
        assert now <= before
        assert captured == 0 or now == 0 or batch * (now + 1) <= captured
        assert not falling or now <= limited.length[0]
    assert Limits(captured=captured, falling=falling).of(limited) == limited


@given(schedules(), st.integers(1, 600))
def test_vllm_drafts_what_was_chosen(schedule, batch):
    schedule = Limits(captured=512).of(schedule)
    assume(schedule.longest)
    text = vllm.export(request(schedule))
    vllm.validate(text, SETTINGS)
    config = vllm.read(text)
    assert vllm.length_at(config, batch) == schedule.at(min(batch, schedule.batch[-1]))


@given(schedules(), st.integers(1, 600), st.sets(st.integers(1, 600), max_size=5))
def test_sglang_adaptive_drafts_what_was_chosen(schedule, batch, captured):
    assume(schedule.longest)
    config = sglang.read_adaptive(
        sglang.export_adaptive(request(schedule, drafter="eagle")), sglang.start_steps(schedule)
    )
    padded = min((size for size in captured if size >= batch), default=batch)
    expected = schedule.at(min(padded, schedule.batch[-1]))
    assert sglang.steps_at(config, batch, sorted(captured)) == [expected]


@given(schedules(), st.integers(1, 600), st.sampled_from(["1.2.0", "1.3.0"]))
def test_tensorrt_drafts_what_was_chosen(schedule, batch, version):
    schedule = Limits(falling=True).of(schedule)
    assume(schedule.length[0])
    options = replace(SETTINGS, engine_version=version)
    text = tensorrt_llm.export(request(schedule, options=options))
    tensorrt_llm.validate(text, options)
    config, upper = tensorrt_llm.read(text, version), version == "1.3.0"
    if batch <= schedule.batch[-1]:
        assert tensorrt_llm.length_at(config, batch, upper) == schedule.at(batch)
    elif not schedule.single:
        beyond = 0 if upper else schedule.length[-1]
        assert tensorrt_llm.length_at(config, batch, upper) == beyond


@given(schedules())
def test_tensorrt_never_drafts_more_than_at_batch_1(schedule):
    if schedule.length[0] == 0:
        with pytest.raises(ValueError, match="batch 1 is fastest without drafts"):
            tensorrt_llm.clamped(schedule)
    else:
        assert max(tensorrt_llm.clamped(schedule).length) == schedule.length[0]


@given(st.integers(1, 255), st.text(min_size=1).filter(str.strip))
def test_flags_survive_any_name(length, name):
    assume(not name.startswith("--"))
    options = replace(SETTINGS, model=name)
    asked = request(Schedule((1,), (length,)), options=options)
    assert sglang.read(sglang.export(asked)) == ("STANDALONE", length, 1, length + 1)
    assert llamacpp.read(llamacpp.export(asked)) == ("draft-simple", length, 0.0)


@given(st.floats(0, 1), st.booleans())
def test_thresholds_survive(threshold, inclusive):
    name = policies.confidence(threshold, inclusive=inclusive).name
    asked = replace(request(Schedule((1,), (1,))), choice=Choice((name,), None, (GAIN,)))
    if inclusive:
        config = hf_transformers.read(hf_transformers.export(asked))
        assert config["assistant_confidence_threshold"] == threshold
        with pytest.raises(ValueError, match="which drops the token"):
            llamacpp.export(asked)
    else:
        assert llamacpp.read(llamacpp.export(asked)) == ("draft-simple", 12, threshold)
        with pytest.raises(ValueError, match="which submits the token"):
            hf_transformers.export(asked)


@settings(max_examples=40)
@given(traces(max_K=5, max_sequences=3), st.data())
def test_acceptance_is_counted_in_rounds(trace, data):
    k = data.draw(st.integers(1, trace.K))
    rounds = replay(trace, policies.fixed(k))
    kept = [(d, a) for d, a in zip(rounds.drafted, rounds.accepted) if d > 0]
    if not kept:
        with pytest.raises(ValueError, match="no round"):
            acceptance_at([trace], k)
        return
    found = acceptance_at([trace], k)
    accepted = [int(a) for _, a in kept]
    assert found.mean_length == pytest.approx(1 + np.mean(accepted))
    for i in range(k):
        reached = [a for a in accepted if a >= i]
        assert found.marginals[i] == pytest.approx(np.mean([a > i for a in accepted]))
        given_all = np.mean([a > i for a in reached]) if reached else 0
        assert found.conditionals[i] == pytest.approx(given_all)


@settings(max_examples=40)
@given(traces(max_K=5, max_sequences=3), st.data())
def test_measured_documents_pass_their_validators(trace, data):
    k = data.draw(st.integers(1, trace.K))
    assume((replay(trace, policies.fixed(k)).drafted > 0).any())
    asked = request(Schedule((1,), (k,)), trace, "prompt_lookup")
    shares = vllm.read_synthetic(vllm.export_synthetic(asked))["synthetic_acceptance_rates"]
    assert shares == pytest.approx(acceptance_at([trace], k).marginals, abs=1e-6)
    assert dynamo.read(dynamo.export(asked))[0] == k
    profile = speculation_profile.read(speculation_profile.export(asked))
    assert profile["marginal_accept_rates"] == shares
    _, modes = golden_al.read(golden_al.export(asked))
    curve = [profile["accept_length_by_k"][str(j)] for j in range(1, trace.K + 1)]
    assert [*modes["thinking_off"].values()] == pytest.approx(curve, abs=0.0051)


@settings(max_examples=40)
@given(traces(max_K=5, max_sequences=3), st.data())
def test_answers_are_the_replay(trace, data):
    policy = policies.fixed(data.draw(st.integers(0, trace.K)))
    cost = CostModel.from_ratio(0.25, trace.K)
    answers = spec_bench.replayed_answers(trace, policy, cost)
    text = spec_bench.answers_text(answers)
    spec_bench.validate(text, SETTINGS)
    assert spec_bench.read_answers(text) == answers
    rounds = replay(trace, policy, cost=cost)
    assert [sum(a.new_tokens) for a in answers] == np.diff(trace.offset).tolist()
    assert [a.decoding_steps[0] for a in answers] == np.diff(rounds.offset).tolist()
    times = sum(a.wall_time[0] for a in answers)
    assert times == pytest.approx(cost.seconds(rounds).sum())


def test_later_turns_join_their_question():
    trace = synthetic.iid(0.6, 3, 20, 4, seed=1)
    trace = replace(trace, meta=replace(trace.meta, ids=("81", "82", "81#2")))
    cost = CostModel.from_ratio(0.25, 4)
    single = spec_bench.replayed_answers(trace, policies.fixed(2), cost)
    first, second = spec_bench.joined_turns(single)
    assert first.question_id == "81"
    assert first.new_tokens == single[0].new_tokens + single[2].new_tokens
    assert first.accept_lengths == single[0].accept_lengths + single[2].accept_lengths
    assert second == single[1]


def test_profile_round_trips():
    trace = synthetic.iid(0.6, 9, 40, 4, seed=1)
    text = speculation_profile.export(request(Schedule((1,), (2,)), trace))
    data = speculation_profile.read(text)
    assert speculation_profile.profile_text(data) == text


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=9), st.integers(0, 9), st.integers(0, 2))
def test_best_length_is_the_smallest_of_the_best(seconds, longest, shortest):
    assume(shortest < len(seconds) and shortest <= longest)
    allowed = range(shortest, min(longest, len(seconds) - 1) + 1)
    best = max(1 / seconds[k] for k in allowed)
    chosen = best_length(seconds, longest, shortest)
    assert chosen in allowed
    assert 1 / seconds[chosen] >= (1 - TIE) * best * (1 - 1e-12)
    assert all(1 / seconds[k] < (1 - TIE) * best * (1 + 1e-12) for k in allowed if k < chosen)


@pytest.mark.parametrize("slower, length", [(0.9, 1), (0.989, 1), (0.991, 0), (1.0, 0), (1.2, 0)])
def test_ties_go_to_the_smaller_length(slower, length):
    assert best_length([1.0, slower]) == length


def test_length_falls_where_a_batch_makes_verification_dear():
    trace = synthetic.iid(0.8, 12, 60, 6, seed=2)
    cheap = CostModel.from_ratio(0.02, 6)
    dear = replace(cheap, verify=1.0 + 0.45 * np.arange(7))
    costs = CostTable((1, 64), (0,), ((cheap,), (dear,)), "two")
    sample = Evidence({"t": trace}, costs.batch, {"t": (costs.at(1), costs.at(64))})
    chosen = choose(sample)
    assert chosen.schedule.length[0] > chosen.schedule.length[1] > 0
    assert choose(sample, limits=Limits(captured=128)).schedule.length[1] == 1
    for size, k in zip((0, 1), chosen.schedule.length):
        speed = [choose(sample, f"fixed:{j}").gains[size].value for j in range(7)]
        assert speed[k] >= (1 - TIE) * max(speed)
        assert chosen.gains[size].value == pytest.approx(speed[k])
    text = vllm.export(Request(sample, chosen, Settings(method="mtp")))
    assert [vllm.length_at(json.loads(text), b) for b in (1, 2, 64)] == [
        chosen.schedule.length[0],
        chosen.schedule.length[1],
        chosen.schedule.length[1],
    ]


def test_fewer_than_eight_prompts_have_no_interval():
    gain = choose(evidence(synthetic.iid(0.6, 7, 20, 4, seed=1)), "fixed:2").gains[0]
    assert gain.value > 1
    assert np.isnan(gain.low)


def test_yaml_is_what_another_reader_reads():
    asked = request(Schedule((4, 8, 32, 64), (4, 2, 1, 0)))
    config = yaml.safe_load(tensorrt_llm.export(asked))["speculative_config"]
    assert config["draft_len_schedule"] == {4: 4, 8: 2, 32: 1}


@pytest.mark.parametrize("name", [n for n in EXPORTS if n not in ("golden-al", "spec-bench")])
def test_plain_decoding_is_not_exported(name):
    drafter = "eagle" if name == "sglang-adaptive" else "model"
    asked = request(Schedule((1,), (0,)), drafter=drafter)
    with pytest.raises(ValueError, match="plain decoding is the fastest"):
        EXPORTS[name].export(asked)


@pytest.mark.parametrize("name", ["vllm-synthetic", "sglang", "llamacpp", "dynamo"])
def test_one_length_is_not_made_of_several(name):
    with pytest.raises(ValueError, match="this format holds one length"):
        EXPORTS[name].export(request(Schedule((1, 8), (3, 1))))


@given(st.integers(1, 254), st.integers(1, 40))
def test_prompt_lookup_becomes_the_engines_ngrams(length, ngram):
    options = replace(SETTINGS, model=None, ngram=ngram)
    asked = request(Schedule((1,), (length,)), drafter="prompt_lookup", options=options)
    assert llamacpp.read(llamacpp.export(asked)) == ("ngram-simple", length, 0.0)
    assert f"size-n {ngram} " in llamacpp.export(asked)
    assert sglang.read(sglang.export(asked)) == ("NGRAM", length, 1, length + 1)


def test_prompt_lookup_has_no_threshold_in_llamacpp():
    name = policies.confidence(0.5, inclusive=False).name
    asked = request(Schedule((1,), (2,)), drafter="prompt_lookup")
    asked = replace(asked, choice=Choice((name,), None, (GAIN,)))
    with pytest.raises(ValueError, match="ngram-simple has no threshold"):
        llamacpp.export(asked)


@pytest.mark.parametrize("method", ["DFLASH", "DSPARK", "NEXTN", "FROZEN_KV_MTP"])
@given(length=st.integers(1, 254))
def test_sglangs_algorithms_keep_the_draft_length(method, length):
    asked = request(Schedule((1,), (length,)), options=replace(SETTINGS, method=method))
    assert sglang.read(sglang.export(asked)) == (method, length, 1, length + 1)


def test_methods_whose_weights_are_in_the_target_need_no_model():
    for method, model in (("mtp", None), ("dspark", None), ("dspark", "D"), ("mtp", "D")):
        asked = request(Schedule((1,), (2,)), options=replace(SETTINGS, method=method, model=model))
        assert vllm.read(vllm.export(asked)).get("model") == model


def test_llamacpp_simulates_shares_of_one_length_alone():
    asked = request(Schedule((1,), (2,)), drafter="prompt_lookup")
    with pytest.raises(ValueError, match="needs drafts of one length"):
        llamacpp.export_synthetic(asked)
    length, rates = llamacpp.read_synthetic(llamacpp.export_synthetic(request(asked.schedule)))
    assert length == 2
    assert rates == pytest.approx(acceptance_at(asked.evidence.traces.values(), 2).marginals)
