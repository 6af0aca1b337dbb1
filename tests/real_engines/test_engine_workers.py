"""Workers of llama.cpp and transformers: passes from what each engine reports.

The records are of SmolLM2-135M, float32, n-gram drafts of K = 3 (tests/engine_fixtures).
"""

import json
import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import naive_engine
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_lm import END, VOCAB, toy_decoder
from transformers.generation import candidate_generator

from real.decode.features import GRIDS
from real.drafters.model import ModelDrafter
from real.engines import RELEASED, EngineSettings, ModelDraft, NgramDraft, Request
from real.engines.adapter import WORKERS, start_options
from real.engines.compare import compare_rows, written_text
from real.engines.convention import CONVENTIONS, clipped
from real.engines.rows import Plan, read_rows
from real.engines.run import run_on_engine, with_policies
from real.engines.worker import Ready, read_finished
from real.model.checkpoint import save_decoder
from real.record.texts import record_texts_by_model
from simspec import CostModel
from simspec.engines.ngram import ngram_rule
from simspec.policies.fixed import fixed
from simspec.trace.quantization import TABLES

HERE = Path(__file__).parents[1]
RECORDS = json.loads((HERE / "engine_fixtures" / "worker_records.json").read_text())
K, BUDGET = 3, 96


def worker(name):
    """A worker's file as a module; the engine itself is imported by its functions only."""
    spec = spec_from_file_location(f"{name}_worker", WORKERS / f"{name}_worker.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


llamacpp, transformers = map(worker, ("llamacpp", "transformers"))


def by_rule(record, convention, rule, K=K, budget=BUDGET, **changes):
    """(emitted, drafted, accepted) of each pass of the slow twin, within the text."""
    policy, tokens = fixed(K), record["tokens"]
    rules = replace(CONVENTIONS[convention], **changes)
    chooser = naive_engine.Chooser(policy, K, 0, 0, CostModel.from_ratio(0.1, K), policy.state0)
    given = record["prompt"], [*tokens, *[-1] * (K + 1)], budget, [2], rules, chooser
    text, passes = naive_engine.run_by(ngram_rule(rule), *given)
    assert text == tokens
    return clipped(passes, len(text))


@pytest.mark.parametrize("record", RECORDS["llamacpp"])
def test_passes_of_llamacpp_are_those_of_its_rule(record):
    passes, seconds = llamacpp.passes_of(list(map(tuple, record["chunks"])))
    found = clipped(passes, len(record["tokens"]))
    assert found == by_rule(record, "llamacpp", "llamacpp:2")
    assert sum(drafted > 0 for _, drafted, _ in passes) > 3
    assert sum(seconds) == pytest.approx(record["chunks"][-1][3] / 1000)
    # control: another rule has other passes
    assert found != by_rule(record, "llamacpp", "vllm:1,3")


@pytest.mark.parametrize("record", RECORDS["transformers"])
def test_passes_of_transformers_are_those_of_its_rule(record):
    passes = transformers.passes_of(record["emitted"], record["drafted"])
    found = clipped(passes, len(record["tokens"]))
    assert found == by_rule(record, "transformers_ngram", "transformers:1,3")
    # control: other engines do not draft in the pass over the prompt
    assert found != by_rule(record, "transformers_ngram", "transformers:1,3", first_draft=1)


def test_transformers_passes_without_drafts():
    assert transformers.passes_of([1, 1], []) == [[1, 0, 0]] * 2
    with pytest.raises(ValueError, match="3 passes emit tokens, 2 have a draft"):
        transformers.passes_of([1, 1, 1], [3, 3])


@st.composite
def decoded(draw):
    """Passes [(drafted, accepted)] and their chunks, one a token, as the server sends them."""
    passes = [(0, 0), *draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))]
    passes = [(d, min(a, d)) for d, a in passes]
    chunks, drafts, accepts = [], 0, 0
    for i, (drafted, accepted) in enumerate(passes):
        drafts, accepts = drafts + drafted, accepts + accepted
        for _ in range(accepted + 1):
            chunks.append((len(chunks) + 1, drafts, accepts, 10.0 * (i + 1)))
    return passes, [*chunks, chunks[-1]]


@given(decoded())
def test_any_stream_gives_back_its_passes(case):
    passes, chunks = case
    found, seconds = llamacpp.passes_of(chunks)
    assert found == [[a + 1, d, a] for d, a in passes]
    assert seconds == pytest.approx([0.01] * len(passes))


@given(decoded(), st.data())
def test_a_stream_with_hidden_tokens_gives_its_passes_or_is_refused(case, data):
    passes, chunks = case
    kept = data.draw(st.lists(st.booleans(), min_size=len(chunks) - 1, max_size=len(chunks) - 1))
    left = [chunk for chunk, keep in zip(chunks, kept) if keep] + chunks[-1:]
    try:
        found, _ = llamacpp.passes_of(left)
    except ValueError as error:
        assert "cannot be told apart" in str(error)
        return
    assert found == [[a + 1, d, a] for d, a in passes]


@pytest.fixture
def gguf(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    return file


REFUSED = [
    ("llamacpp", NgramDraft(3, 1, 3), "n-grams of one length"),
    ("llamacpp", NgramDraft(1, 2, 2), "never drafts with draft length 1"),
    ("transformers", NgramDraft(3, 2, 3), "down to 1, not to 2"),
]


@pytest.mark.parametrize("name, draft, words", REFUSED)
def test_ngrams_that_an_engine_does_not_match_are_refused(gguf, name, draft, words):
    with pytest.raises(ValueError, match=words):
        RELEASED[name].start(EngineSettings(gguf, draft))


def test_folders_are_refused_where_gguf_files_are_read(tmp_path, gguf):
    name = "llamacpp"
    with pytest.raises(ValueError, match="expected GGUF"):
        RELEASED[name].start(EngineSettings(tmp_path))
    with pytest.raises(ValueError, match="expected GGUF"):
        RELEASED[name].start(EngineSettings(gguf, ModelDraft(3, tmp_path)))
    assert RELEASED[name].start(EngineSettings(gguf))["draft"] is None


@contextmanager
def vllm_worker(name):
    """A worker of vLLM; its environment variables and modules' folder are taken back."""
    with patch.dict(os.environ), patch.object(sys, "path", [str(WORKERS), *sys.path]):
        yield worker(name)


@pytest.fixture
def vllm():
    with vllm_worker("vllm") as found:
        yield found


def lengths_set(vllm, options, k, force=None):
    """dynamic_sd_lookup of a run; with a schedule vLLM has made [0, 3, 1, 1] of it."""
    made = [0, 3, 1, 1] if "schedule" in options else [0, 3, 3, 3]
    engine = vllm.VllmEngine.__new__(vllm.VllmEngine)
    engine.draft, engine.options = {"method": "ngram", "k": 3, "min": 1, "max": 3}, options
    engine.most, engine.lengths, engine.drafter = 3, made, SimpleNamespace()
    engine.scheduler = SimpleNamespace(dynamic_sd_lookup=made)
    engine._set_draft_length(k, force)
    assert engine.lengths == made
    return engine.scheduler.dynamic_sd_lookup


def test_vllm_s_longest_length_stands_for_its_schedule(vllm):
    options = {"seed": 0, "batch": 3, "schedule": [[1, 1, 3], [2, 3, 1]]}
    assert lengths_set(vllm, options, 3) == [0, 3, 1, 1]
    assert lengths_set(vllm, options, 0) == [0] * 4
    assert lengths_set(vllm, options, 3, force=3) == [3] * 4
    plain = {key: value for key, value in options.items() if key != "schedule"}
    assert lengths_set(vllm, plain, 3) == [3] * 4
    assert lengths_set(vllm, plain, 2) == [2] * 4


def test_vllm_reads_k_by_the_requests_of_a_pass(vllm):
    engine = vllm.VllmEngine.__new__(vllm.VllmEngine)
    engine.draft = {"method": "ngram", "k": 3, "min": 1, "max": 3}
    key = "num_speculative_tokens_per_batch_size"
    engine.options = {"batch": 8}
    assert engine._speculation()[key] == [(1, 8, 3)]
    engine.options["schedule"] = [[1, 2, 3], [3, 8, 0]]
    assert engine._speculation()[key] == [[1, 2, 3], [3, 8, 0]]
    assert engine._speculation()["num_speculative_tokens"] == 3


class InProcess:
    """The worker of transformers without its process."""

    def start(self, settings):
        self.engine = transformers.Transformers(start_options(settings))
        return Ready(seconds=0.0, **self.engine.ready())

    def run(self, requests, keep, concurrent, k, force, policy):
        asked = {r.id: r for r in requests}
        for found in self.engine.run([vars(r) for r in requests], concurrent, k, force, policy):
            keep(read_finished(found, asked))

    def close(self):
        """Nothing to end."""


def test_transformers_own_threshold_drafts_as_its_policy_does(tmp_path, vllm, monkeypatch):
    monkeypatch.setattr(candidate_generator, "is_sklearn_available", lambda: True)
    values = TABLES[GRIDS["confidence"]]
    edges = [values[i : i + 2].mean() for i in np.searchsorted(values, (0.2, 0.3))]
    # between two recorded values
    policies = f"confidence:threshold={edges[0]}", f"confidence:{edges[1]}"
    for name, model in (("target", toy_decoder(0)), ("draft", toy_decoder(4, layers=2))):
        (tmp_path / name).mkdir()
        save_decoder(model, tmp_path / name, END[0], 64, torch.float64)
    given = EngineSettings(tmp_path / "target", ModelDraft(4, tmp_path / "draft"), dtype="float64")
    settings = with_policies(RELEASED["transformers"], given, policies, None)
    rng = np.random.default_rng(1)
    requests = [Request(f"p{i}", tuple(rng.integers(4, VOCAB, 6).tolist()), 20) for i in range(12)]
    rows = tmp_path / "r.jsonl"
    run_on_engine(InProcess, settings, requests, Plan((0, 4), 1, policies=policies), rows)
    about, held = read_rows(rows)
    texts = [written_text(row) for row in held if not row.k]
    recording = record_texts_by_model(texts, ModelDrafter(toy_decoder(4, layers=2)), 4, END)
    result = compare_rows(about, held, recording)
    assert (result.requests, result.differences) == (48, ())
    drafted = [result.counters[name]["num_draft_tokens"][0] for name in (4, *policies)]
    assert drafted[0] > drafted[1] > drafted[2] > 0
    # control: another threshold drafts otherwise
    other = [replace(row, policy=policies[0] if row.policy else "") for row in held]
    assert compare_rows(about, [r for r in other if r.policy][-12:], recording).exceptions
    for name, policy, words in (
        ("transformers", "confidence:0.5,inclusive=false", "which submits the token below"),
        ("transformers", "cost_ts", "no setting that drafts as policy 'cost_ts'"),
        ("llamacpp", "confidence:0.5", "which drops the token below"),
        ("transformers", "confidence:0.5,K=3", "below the longest -k, 4: leave K out"),
    ):
        with pytest.raises(ValueError, match=words):
            with_policies(RELEASED[name], given, [policy], None)
    ngram = replace(given, draft=NgramDraft(4))
    with pytest.raises(ValueError, match="a threshold for draft models alone"):
        with_policies(RELEASED["transformers"], ngram, policies, None)
