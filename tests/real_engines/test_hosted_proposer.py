"""A draft model of ours inside vLLM: its rounds are those of its recording, features included."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_text_models import ENDS, any_text
from toy_lm import VOCAB, toy_decoder
from vllm_double import VllmDouble

from real.drafters.model import BatchDrafter, ModelDrafter
from real.engines import EngineSettings, PolicyDraft, Request
from real.engines.compare import compare_rows
from real.engines.hosted_proposer import ModelProposer
from real.engines.rows import read_rows
from real.engines.run import Plan, run_on_engine
from real.model.checkpoint import save_decoder
from real.model.passes import RaggedKVCache
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


def drafted_both_ways(seed):
    """([batch's tokens], [those of a drafter for each request alone], the batch).

    Requests enter, leave, and are out of some passes; each drafts another number of tokens, and
    keeps some of them.
    """
    rng = np.random.default_rng(seed)
    lm, alone = toy_decoder(4, layers=2).float(), toy_decoder(4, layers=2).float()
    lm.pack()
    batch, texts, single, found = BatchDrafter(lm, capacity=4), {}, {}, ([], [])
    for step in range(12):
        if len(texts) < 4 and rng.random() < 0.6:
            prompt = rng.integers(0, VOCAB, rng.integers(1, 20)).astype(np.int32)
            texts[str(step)], drafter = prompt, ModelDrafter(alone)
            drafter.begin(None, prompt.tolist(), None, lambda logits, *_: int(logits.argmax()))
            single[str(step)] = drafter
        depth = {id: int(rng.integers(0, 5)) for id in texts if rng.random() < 0.8}
        drafts = {id: [] for id in depth}
        while going := [id for id in depth if len(drafts[id]) < depth[id]]:
            rows = {id: np.append(texts[id], np.int32(drafts[id])) for id in going}
            for id, token in zip(going, batch.logits(rows).argmax(-1).tolist(), strict=True):
                drafts[id].append(token)
        for id, draft in drafts.items():
            found[0].append(draft)
            found[1].append([single[id].next().token for _ in draft])
            accepted = int(rng.integers(0, len(draft) + 1))
            new = [*found[1][-1][:accepted], int(rng.integers(0, VOCAB))]
            single[id].rollback(accepted)
            single[id].catch_up(new, None, None)
            texts[id] = np.append(texts[id], np.int32(new))
            if rng.random() < 0.15:
                batch.forget(id)
                del texts[id], single[id]
    return *found, batch


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 20))
def test_requests_drafted_together_get_the_drafts_of_each_alone(seed):
    together, alone, batch = drafted_both_ways(seed)
    assert together == alone
    assert batch.cache.length == [len(tokens) for tokens in batch.read]


def unmoved(cache, slot):
    """`RaggedKVCache.drop` without the copy of the last slot."""
    cache.length[slot] = cache.length[-1]
    cache.length.pop()


def unmasked(cache, *given, step=RaggedKVCache.step):
    rotation, mask = step(cache, *given)
    return rotation, torch.ones_like(mask)


@pytest.mark.parametrize(("name", "broken"), [("drop", unmoved), ("step", unmasked)])
def test_rows_of_another_request_or_of_padding_are_found(monkeypatch, name, broken):
    monkeypatch.setattr(RaggedKVCache, name, broken)
    pairs = [drafted_both_ways(seed)[:2] for seed in range(8)]
    assert any(together != alone for together, alone in pairs)


@pytest.mark.parametrize(("policy", "passes"), [("fixed:3", 3), ("fixed:1", 1), ("fixed:0", 0)])
def test_a_round_takes_as_many_passes_as_tokens(folder, monkeypatch, policy, passes):
    """Of the draft model, for all requests together; the rows of ended ones are freed."""
    made, _ = world(9)
    double, counts = VllmDouble(made, make, ENDS), []
    double.start(settings_of(folder))
    step = RaggedKVCache.step

    def counted(cache, *given):
        counts[-1] += 1
        return step(cache, *given)

    monkeypatch.setattr(RaggedKVCache, "step", counted)
    monkeypatch.setattr(double.drafter, "look", lambda variables: counts.append(0))
    double.run([request for request, _ in made], lambda finished: None, 3, policy=policy)
    assert len(counts) > 9
    assert max(counts) == passes
    assert not double.drafter.batch.read
