"""Policies inside vLLM itself, over n-grams, suffixes, a draft model and an EAGLE head of ours."""

from dataclasses import replace

import pytest
from own_vllm import needs_vllm
from test_vllm import BUDGET, REQUESTS, ROOT, TARGET, TEXTS

from real.engines import RELEASED, EngineSettings, PolicyDraft, Worker, find_environment
from real.engines.compare import compare_rows, written_text
from real.engines.rows import read_rows
from real.engines.run import Plan, choose_prompts, run_on_engine
from simspec import CostModel, load_trace

K = 6
COST = CostModel.from_ratio(0.05, K).to_dict()
DRAFT = ROOT / "models" / "smollm2" / "draft"
BLIND = (
    "beta_ts:acceptance", "beta_ts:acceptance,scope=stream", "cost_ts", "goodput", "ema_tiers",
    "fixed:2",
)  # fmt: skip
SEEING = ("confidence:0.4", "cali_ts:validated,predictor=confidence", "cost_ts")

pytestmark = needs_vllm(TARGET)


def ran(tmp_path, draft, concurrent, policies, requests=None, target=TARGET, longest=800):
    """(about, rows) of policies, plain decoding and K on vLLM."""
    engine, path = RELEASED["vllm"], tmp_path / f"b{concurrent}.rows.jsonl"
    environment = find_environment(engine)
    settings = EngineSettings(target, draft, 2, batch=concurrent, longest=longest, seed=3)
    plan = Plan((0, draft.k), 1, 4, concurrent, policies=policies)
    run_on_engine(lambda: Worker(engine, environment), settings, requests or REQUESTS, plan, path)
    return read_rows(path)


@pytest.mark.parametrize("concurrent", [1, 4])
def test_rounds_over_n_grams_are_those_of_the_replay(tmp_path, concurrent):
    about, rows = ran(tmp_path, PolicyDraft(K, 1, 3, COST), concurrent, BLIND)
    assert {row.finished.tokens for row in rows} == {
        tokens[:BUDGET] for _, tokens in TEXTS.values()
    }
    result = compare_rows(about, rows)
    assert result.requests == len(REQUESTS) * (2 + len(BLIND))
    assert not result.differences, result.differences[0]
    assert all(result.counters[text]["num_drafts"][0] for text in BLIND)
    assert compare_rows(about | {"seed": 4}, rows).exceptions  # control


def test_rounds_over_suffixes_are_those_of_the_replay(tmp_path):
    draft = PolicyDraft(K, cost=COST, suffix={})
    policies = "beta_ts:acceptance", "cost_ts", "confidence:0.6"
    about, rows = ran(tmp_path, draft, 4, policies, REQUESTS[:4])
    result = compare_rows(about, rows)
    assert not result.differences, result.differences[0]
    assert all(result.counters[name]["num_drafts"][0] for name in (K, *policies))


def test_rounds_over_an_eagle_head_are_those_of_its_recording(tmp_path):
    recording = load_trace(ROOT / "traces" / "tiny-eagle-greedy.parquet")
    requests = choose_prompts(recording, 8, budget=24)
    tiny = ROOT / "real" / "tiny"
    draft, policies = PolicyDraft(3, cost=COST, eagle=tiny / "eagle"), ("confidence:0.4",)
    about, rows = ran(tmp_path, draft, 4, policies, requests, tiny / "target", 440)
    result = compare_rows(about, rows, recording)
    assert result.requests == 8 * 3
    assert not result.exceptions, result.exceptions[0]
    assert result.counters[3]["num_accepted_tokens"][0] > 0
    less = result.counters["confidence:0.4"]["num_draft_tokens"][0]
    assert 0 < less < result.counters[3]["num_draft_tokens"][0]


@pytest.mark.skipif(not DRAFT.is_dir(), reason=f"no draft model at {DRAFT}")
def test_confidence_over_a_hosted_model_makes_the_rounds_of_its_recording(tmp_path):
    import torch

    from real.drafters.model import ModelDrafter
    from real.record.texts import record_texts_by_model

    requests = [replace(request, max_tokens=BUDGET - K) for request in REQUESTS[:4]]
    about, rows = ran(tmp_path, PolicyDraft(K, cost=COST, model=DRAFT), 4, SEEING, requests)
    drafter = ModelDrafter.load_alone(DRAFT, torch.float32, "cpu")
    longer = [
        replace(row, finished=replace(row.finished, tokens=TEXTS[row.request.id][1]))
        for row in rows
        if row.name == 0
    ]
    texts = [
        written_text(replace(row, request=replace(row.request, max_tokens=BUDGET)))
        for row in longer
    ]
    recording = record_texts_by_model(texts, drafter, K, [2])
    result = compare_rows(about, rows, recording)
    assert result.requests == 4 * (2 + len(SEEING))
    assert not result.exceptions, result.exceptions[0]
    drafted = {name: held["num_draft_tokens"][0] for name, held in result.counters.items()}
    assert 0 < drafted["confidence:0.4"] < drafted[K]
