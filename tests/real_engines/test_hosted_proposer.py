"""A draft model of ours inside vLLM: its rounds are those of its recording, features included."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from toy_lm import VOCAB, toy_decoder
from vllm_double import VllmDouble

from real.drafters.model import ModelDrafter
from real.engines import EngineSettings, PolicyDraft, Request
from real.engines.compare import compare_rows
from real.engines.hosted_proposer import ModelProposer
from real.engines.rows import read_rows
from real.engines.run import Plan, run_on_engine
from real.model.checkpoint import save_decoder
from real.record.texts import record_texts_by_model
from simspec import CostModel
from simspec.engines.text import WrittenText

K, BUDGET = 4, 12
COST = CostModel.from_ratio(0.2, K)
POLICIES = (
    "confidence:0.2", "confidence:0.3,inclusive=false", "entropy:2.5", "beta_ts:acceptance",
    "cost_ts",
    "cali_ts:validated,predictor=scalar/0.2/0.6/-0.3/0.1,sigma_m=0.2,sigma_s=0.7",
)  # fmt: skip


ENDS = (3, 5, 7, 9)


def any_text(lm, seed, budget):
    """(prompt, output): the model's own tokens, every third one another; ENDS only at the end."""
    rng = np.random.default_rng(seed)
    others = np.setdiff1d(np.arange(VOCAB), ENDS)
    context = rng.choice(others, rng.integers(1, 6)).tolist()
    first = len(context)
    while len(context) < first + budget:
        token = int(lm(torch.tensor([context]))[0, -1].argmax())
        if token in ENDS and rng.random() < 0.2:
            return context[:first], [*context[first:], token]
        own = token not in ENDS and rng.random() < 0.7
        context.append(token if own else int(rng.choice(others)))
    return context[:first], context[first:]


def small_model():
    """The draft model, whose argmax the texts follow mostly."""
    return toy_decoder(4, layers=2)


def world(count):
    """([(request, future past the end)], the texts to record, longer than the requests)."""
    rng, made, texts = np.random.default_rng(1), [], []
    for seed in range(count):
        prompt, output = any_text(small_model(), seed, BUDGET + 2 * K)
        budget = len(output) + (output[-1] in ENDS) * K
        texts.append(
            WrittenText(
                f"p{seed}", "toy", np.array(prompt, np.int32), np.array(output, np.int32), budget
            )
        )
        beyond = rng.choice(np.arange(10, VOCAB), 2 * K).tolist()
        made.append((Request(f"p{seed}", tuple(prompt), BUDGET), [*output, *beyond]))
    return made, texts


def make(config):
    config.model_config = SimpleNamespace(dtype=torch.float64, get_vocab_size=lambda: VOCAB)
    return ModelProposer(config)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "draft").mkdir()
    save_decoder(small_model(), tmp_path / "draft", 3, 64, torch.float64)
    return tmp_path / "draft"


def settings_of(folder):
    draft = PolicyDraft(K, cost=COST.to_dict(), model=folder)
    return EngineSettings(Path("target"), draft, batch=3, seed=5)


@pytest.mark.parametrize("concurrent", [1, 3])
def test_policies_over_a_hosted_model_make_the_passes_of_their_replay(tmp_path, folder, concurrent):
    made, texts = world(9)
    plan = Plan((0, 2, K), 1, 3, concurrent, policies=POLICIES)
    requests = [request for request, _ in made]
    run_on_engine(
        lambda: VllmDouble(made, make, ENDS), settings_of(folder), requests, plan,
        tmp_path / "r.jsonl",
    )  # fmt: skip
    about, rows = read_rows(tmp_path / "r.jsonl")
    deeper = ModelDrafter(small_model()), K + 2, ENDS
    recording = record_texts_by_model(texts, *deeper)
    result = compare_rows(about, rows, recording)
    assert result.requests == 9 * (3 + len(POLICIES))
    assert not result.differences, result.differences[0]
    confident = result.counters["confidence:0.2"]
    assert 0 < confident["num_draft_tokens"][0] < result.counters[K]["num_draft_tokens"][0]
    # control: another draft model, and its recording, are found
    other = record_texts_by_model(texts, ModelDrafter(toy_decoder(7, layers=2)), K, ENDS)
    assert compare_rows(about, rows, other).exceptions


def test_a_model_of_another_vocabulary_is_refused(folder):
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=K),
        additional_config={"simspec": {"model": str(folder)}},
        model_config=SimpleNamespace(dtype=torch.float64, get_vocab_size=lambda: VOCAB + 1),
    )
    with pytest.raises(ValueError, match=f"{VOCAB} tokens, the target {VOCAB + 1}"):
        ModelProposer(config)
    config.additional_config = {"simspec": {}}
    with pytest.raises(ValueError, match='expected a folder in "model"'):
        ModelProposer(config)


def test_states_of_ended_requests_are_forgotten(folder):
    made, _ = world(3)
    double = VllmDouble(made, make, ENDS)
    double.start(replace(settings_of(folder), batch=2))
    done = []
    double.run([request for request, _ in made], done.append, 2, K)
    assert len(done) == 3
    assert double.drafter.held == {}
