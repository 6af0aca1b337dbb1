"""What `simspec export` writes, `simspec import` reads back, as far as each format goes."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from export_documents import MORE_RIGHT, RIGHT
from export_requests import GAIN, SETTINGS, request, schedules
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from shell import refused
from strategies import traces

from simspec import CostModel, policies, replay, synthetic
from simspec.engines import spec_bench
from simspec.engines.choice import Choice, Limits, Schedule
from simspec.engines.draft_acceptance import acceptance_at
from simspec.engines.formats import EXPORTS, IMPORTS, read_import
from simspec.engines.import_file import write_summary
from simspec.engines.import_kinds import BatchTier, EngineSettings
from simspec.engines.import_report import depth_counts, import_report, length_at
from simspec.engines.source import ImportOptions

RATES = ("vllm-synthetic", "llamacpp-synthetic", "dynamo")
ENGINES = ("vllm", "sglang", "sglang-adaptive", "tensorrt-llm", "llamacpp", "transformers")
DRAFTER = {"sglang-adaptive": "eagle", "vllm-synthetic": "prompt_lookup"}
MODEL_ONLY = ("llamacpp-synthetic",)
"""The drafter of a recording that a format has a name for, where 'model' is not."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("round_trips")


def exported(folder, name, asked):
    """The path of the document, which passes its validator first."""
    text = EXPORTS[name].export(asked)
    EXPORTS[name].validate(text, asked.settings)
    path = folder / f"{name}.txt"
    path.write_text(text, encoding="utf-8")
    return path


def returned(folder, name, asked, options=None):
    return read_import(name, exported(folder, name, asked), options)


def lengths_at(result, batch):
    """The draft lengths of the tier that holds the batch size."""
    (tier,) = (t for t in result.tiers if t.first <= batch <= (t.last or batch))
    return tier.lengths


def test_every_export_is_imported():
    assert set(EXPORTS) - set(IMPORTS) == set()


@given(schedules(), st.integers(1, 600), st.sampled_from(["vllm", "sglang-adaptive"]))
def test_lengths_by_batch_size_come_back(folder, schedule, batch, name):
    assume(schedule.longest)
    schedule = Limits(captured=512).of(schedule) if name == "vllm" else schedule
    assume(schedule.longest)
    result = returned(folder, name, request(schedule, drafter=DRAFTER.get(name, "model")))
    known = schedule.single or name != "vllm" or batch <= schedule.batch[-1]
    if known:
        expected = schedule.at(min(batch, schedule.batch[-1]))
        assert lengths_at(result, batch) == (expected,)
    assert {t.policy for t in result.tiers} == {f"fixed:{k}" for k in {*schedule.length}}


@given(schedules(), st.integers(1, 600), st.sampled_from(["1.2.0", "1.3.0"]))
def test_lengths_by_bounds_of_either_kind_come_back(folder, schedule, batch, version):
    schedule = Limits(falling=True).of(schedule)
    assume(schedule.length[0])
    asked = request(schedule, options=replace(SETTINGS, engine_version=version))
    result = returned(folder, "tensorrt-llm", asked, ImportOptions(engine_version=version))
    if batch <= schedule.batch[-1]:
        assert lengths_at(result, batch) == (schedule.at(batch),)
    elif not schedule.single:
        assert lengths_at(result, batch) == (0 if version == "1.3.0" else schedule.length[-1],)


def test_control_bounds_of_another_version_come_back_otherwise(folder):
    asked = request(
        Schedule((1, 8, 32), (4, 2, 1)), options=replace(SETTINGS, engine_version="1.2")
    )
    path = exported(folder, "tensorrt-llm", asked)
    older = read_import("tensorrt-llm", path, ImportOptions(engine_version="1.2"))
    newer = read_import("tensorrt-llm", path, ImportOptions(engine_version="1.3"))
    assert (lengths_at(older, 3), lengths_at(newer, 1)) == ((2,), (4,))
    assert lengths_at(newer, 33) != lengths_at(older, 33)
    with pytest.raises(ValueError, match="give --engine-version"):
        read_import("tensorrt-llm", path)


@given(st.integers(1, 255), st.sampled_from(ENGINES))
def test_one_length_comes_back(folder, length, name):
    asked = request(Schedule((1,), (length,)), drafter=DRAFTER.get(name, "model"))
    result = returned(folder, name, asked)
    assert result.tiers == (BatchTier(1, None, (length,), f"fixed:{length}"),)


POLICIES = st.one_of(
    st.floats(0.001, 1).map(lambda p: ("transformers", policies.confidence(p))),
    st.floats(0.001, 1).map(lambda p: ("llamacpp", policies.confidence(p, inclusive=False))),
    st.tuples(st.integers(1, 40), st.booleans()).map(
        lambda pair: ("transformers", policies.hf_heuristic(*pair))
    ),
)


@given(POLICIES)
def test_policies_come_back(folder, named):
    name, policy = named
    choice = Choice((policy.name,), None, (GAIN,))
    (tier,) = returned(folder, name, replace(request(Schedule((1,), (1,))), choice=choice)).tiers
    back = policies.parse(tier.policy)
    assert (back.params, back.state0, back.scope) == (policy.params, policy.state0, policy.scope)
    longest = 12 if policy.name.startswith("confidence") else policy.K
    assert longest == back.K


def measurable(name, asked):
    """The request, of a draft model where the format has no n-grams."""
    if name not in MODEL_ONLY:
        return asked
    (trace,) = asked.evidence.traces.values()
    return request(asked.schedule, trace, "model")


@settings(max_examples=30)
@given(traces(max_K=5, max_sequences=3), st.data())
def test_measured_acceptance_comes_back(folder, trace, data):
    k = data.draw(st.integers(1, trace.K))
    assume((replay(trace, policies.fixed(k)).drafted > 0).any())
    asked = request(Schedule((1,), (k,)), trace, "prompt_lookup")
    measured = {j: acceptance_at([trace], j) for j in range(1, trace.K + 1)}
    for name in RATES:
        result = returned(folder, name, measurable(name, asked))
        assert result.marginals[k] == pytest.approx(measured[k].marginals, abs=2e-5)
        assert length_at(result, k)[""] == pytest.approx(measured[k].mean_length, abs=2e-5)
    profile = returned(folder, "speculation-profile", asked)
    at_least = measured[k].histogram[::-1].cumsum()[::-1]
    (counts,) = depth_counts(profile).values()
    assert counts.accepted.sum(axis=0).tolist() == at_least[1:].tolist()
    assert profile.rounds == at_least[0]
    per_request = measured[k].mean_length_by_sequence
    assert profile.length_per_request == pytest.approx(per_request, abs=1e-6)
    golden = returned(folder, "golden-al", asked)
    for j, acceptance in measured.items():
        assert length_at(profile, j)[""] == pytest.approx(acceptance.mean_length, abs=1e-6)
        assert length_at(golden, j)[""] == pytest.approx(acceptance.mean_length, abs=0.0051)


@pytest.mark.parametrize("name", ["speculation-profile", "golden-al", *RATES])
def test_other_lengths_than_those_measured_are_not_concluded(folder, name):
    asked = request(Schedule((1,), (3,)), synthetic.iid(0.6, 9, 40, 4, 1), "prompt_lookup")
    result = returned(folder, name, measurable(name, asked))
    known = [3] if name in RATES else [1, 2, 3, 4]
    assert [k for k in range(1, 8) if answered(result, k)] == known


def answered(result, k):
    try:
        return length_at(result, k)[""] > 1
    except ValueError as error:
        assert "is unknown" in str(error)
        return False


def test_lengths_of_a_chain_are_computed_and_not_measured(folder):
    """Control: the same file is answered where it says that each K was measured."""
    asked = request(Schedule((1,), (3,)), synthetic.iid(0.6, 9, 40, 4, 1))
    path = exported(folder, "speculation-profile", asked)
    path.write_text(path.read_text().replace("measured_per_k", "chain_analytic"))
    result = read_import("speculation-profile", path)
    assert [k for k in range(1, 8) if answered(result, k)] == [3]
    assert "chain_analytic" in result.withheld["accepted lengths of other K"]


@pytest.mark.parametrize(
    "old, new, words",
    [
        ('"1": 1.', '"1": 2.', "expected 1 to K + 1"),
        ('"accept_length_by_k": {', '"accept_length_by_k": {"0": 1.5,', "K in 1..255"),
        ('"accept_length_by_k": {', '"accept_length_by_k": {"x": 1.5,', "keyed by K"),
        ("measured_per_k", "guessed", "expected measured_per_k or chain_analytic"),
        ('"passed": true', '"passed": false', "did not pass"),
        ('"mean_accept_length": ', '"mean_accept_length": 1', "by the counts"),
        ('"marginal_accept_rates": [', '"marginal_accept_rates": [0.999,', "by the histogram"),
    ],
)
def test_profiles_that_contradict_themselves_are_refused(folder, old, new, words):
    asked = request(Schedule((1,), (3,)), synthetic.iid(0.6, 9, 40, 4, 1))
    path = exported(folder, "speculation-profile", asked)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=re.escape(words)):
        read_import("speculation-profile", path)


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("acceptance", [0.3, 0.9])
def test_rounds_of_exported_answers_are_imported(tmp_path, k, acceptance):
    trace = synthetic.iid(acceptance, 7, 30, 5, k)
    path, rounds = answers(tmp_path, trace, k)
    found = read_import("spec-bench", path, ImportOptions(drafted=k))
    assert found.accepted.tolist() == rounds.accepted.tolist()
    assert found.offset.tolist() == rounds.offset.tolist()
    assert len(found.ids) == trace.sequences
    assert (found.drafted == k).all()  # stated by the user: the format holds no draft length
    assert (np.minimum(rounds.drafted, found.drafted) == rounds.drafted).all()


def answers(folder, trace, k):
    cost = CostModel.from_ratio(0.25, trace.K)
    text = spec_bench.answers_text(spec_bench.replayed_answers(trace, policies.fixed(k), cost))
    (folder / "answers.jsonl").write_text(text, encoding="utf-8")
    return folder / "answers.jsonl", replay(trace, policies.fixed(k), 0, cost)


def test_another_recording_is_noticed(tmp_path):
    """Control."""
    path, _ = answers(tmp_path, synthetic.iid(0.6, 7, 30, 5, 1), 3)
    other = replay(synthetic.iid(0.6, 7, 30, 5, 2), policies.fixed(3))
    found = read_import("spec-bench", path, ImportOptions(drafted=3))
    assert found.accepted.tolist() != other.accepted.tolist()


DOCUMENTS = [(name, *right) for name, right in RIGHT.items()] + list(MORE_RIGHT)


@pytest.mark.parametrize("number", range(len(DOCUMENTS)))
def test_right_documents_and_their_summaries_read_alike(tmp_path, number):
    name, text, asked = DOCUMENTS[number]
    (tmp_path / "f").write_text(text, encoding="utf-8")
    version = asked.engine_version if "engine_version" in IMPORTS[name].options else None
    mode = "thinking_on" if name == "golden-al" else None
    result = read_import(name, tmp_path / "f", ImportOptions(engine_version=version, mode=mode))
    report = import_report(result)
    write_summary(result, tmp_path / "s.json")
    assert import_report(read_import("simspec", tmp_path / "s.json")) == report
    json.dumps(report, allow_nan=False)
    if name in ENGINES:
        assert isinstance(result, EngineSettings)
        assert (report["totals"], report["acceptance_by_depth"]) == ([], [])
        with pytest.raises(ValueError, match="nothing about what is accepted"):
            length_at(result, 3)


def test_candidates_are_sglangs_own_policy(tmp_path):
    text = RIGHT["sglang-adaptive"][0]
    (tmp_path / "f").write_text(text)
    first, second = read_import("sglang-adaptive", tmp_path / "f").tiers
    assert (first.first, first.last, first.lengths) == (1, 7, (1, 3, 5))
    assert policies.parse(first.policy) == policies.ema_tiers("1/3/5")
    assert policies.parse(second.policy) == policies.ema_tiers("0/2")
    (tmp_path / "f").write_text(text.replace('"ceiling_coeff": 0', '"ceiling_coeff": 1'))
    first, second = read_import("sglang-adaptive", tmp_path / "f").tiers
    assert (first.policy != "", second.policy) == (True, "")
    (tmp_path / "f").write_text(text.replace('"ema_alpha": 0.2', '"down_hysteresis": 0.5'))
    first, second = read_import("sglang-adaptive", tmp_path / "f").tiers
    assert policies.parse(first.policy) == policies.ema_tiers("1/3/5")  # its own value wins
    assert policies.parse(second.policy) == policies.ema_tiers("0/2", down=0.5)


@pytest.mark.parametrize(
    "lines, tiers",
    [
        ("max_concurrency: 32", [(1, 32, (4,), "fixed:4"), (33, None, (0,), "fixed:0")]),
        (
            "acceptance_rate_window_size: 50\n  acceptance_rate_threshold: 0.4",
            [(1, None, (4,), "fixed:4")],
        ),
        ("acceptance_rate_threshold: 0.4", [(1, None, (4,), "fixed:4")]),
    ],
)
def test_limits_of_tensorrt_are_tiers_or_its_gate(tmp_path, lines, tiers):
    head = "speculative_config:\n  decoding_type: MTP\n  max_draft_len: 4\n  "
    (tmp_path / "f").write_text(f"{head}{lines}\n")
    result = read_import("tensorrt-llm", tmp_path / "f")
    found = [
        (t.first, t.last, t.lengths, t.policy and policies.parse(t.policy)) for t in result.tiers
    ]
    assert found == [(*tier, policies.parse(policy)) for *tier, policy in tiers]
    assert bool(result.notes) is (tiers[0][3] == "fixed:4" and "threshold" in lines)


@pytest.mark.parametrize(
    "name, text, options, words",
    [
        ("golden-al", RIGHT["golden-al"][0], [], "choose with --thinking or --no-thinking"),
        ("golden-al", "m: {thinking_on: {1: 1.5}}", ["--no-thinking"], "has no thinking_off"),
        ("dynamo", RIGHT["dynamo"][0], ["--at", "2"], "K = 2 is unknown from rounds of 3"),
        ("dynamo", RIGHT["dynamo"][0], ["--out", "x.parquet"], "cannot be replayed"),
        ("vllm", RIGHT["vllm"][0], ["--at", "5"], "nothing about what is accepted"),
        ("vllm", RIGHT["vllm"][0], ["--out", "x.parquet"], "nothing about what is accepted"),
        ("vllm", '{"method": "mtp", "num_speculative_tokens": 300}', [], "k is 300"),
        ("sglang", RIGHT["sglang"][0], ["--drafted", "5"], "leave it out"),
        ("vllm", RIGHT["vllm"][0].replace("[9, 32", "[10, 32"), [], "a gap takes"),
        ("tensorrt-llm", '{"choices": []}', ["--engine-version", "1.3"], "leave it out"),
    ],
)
def test_command_refuses_what_a_document_cannot_answer(tmp_path, name, text, options, words):
    (tmp_path / "f").write_text(text)
    refused(tmp_path, "import", name, "f", *options, words=words)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"tiers": []}, "no draft length"),
        ({"tiers": [{"first": 2, "lengths": [1], "policy": ""}]}, "without a gap"),
        ({"tiers": [{"first": 1, "lengths": [3, 1], "policy": ""}]}, "growing ones"),
        ({"tiers": [{"first": 1, "lengths": [256], "policy": ""}]}, "in 0..255"),
        ({"tiers": [{"first": 1, "lengths": [], "policy": ""}]}, "growing ones"),
    ],
)
def test_wrong_summaries_of_settings_are_refused(tmp_path, change, words):
    (tmp_path / "f").write_text(RIGHT["vllm"][0])
    write_summary(read_import("vllm", tmp_path / "f"), tmp_path / "s.json")
    data = json.loads((tmp_path / "s.json").read_text()) | change
    (tmp_path / "s.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=words):
        read_import("simspec", tmp_path / "s.json")
