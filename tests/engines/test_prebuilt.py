"""llama.cpp and transformers on SmolLM2: texts and rounds of the recording.

`make test-engines` runs it: each engine loads 135 M parameters and decodes eight prompts twice.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from test_engine_workers import by_rule

from real.engines import RELEASED, EngineSettings, NgramDraft, Request, Worker, find_environment
from real.engines.convention import clipped
from simspec import load_trace

ROOT = Path(__file__).parents[2]
SMOLLM2 = ROOT / "models" / "smollm2"
BUDGET, PROMPTS, K = 96, (6, 22, 38, 52, 63, 64, 75, 76), 3
SKIPPED = os.environ.get("SIMSPEC_TEST_ENGINES") != "1" or not (SMOLLM2 / "target").is_dir()
pytestmark = pytest.mark.skipif(
    SKIPPED, reason="runs with `make test-engines` and the model of `make smollm2`"
)


@dataclass(frozen=True)
class Case:
    """An engine's n-gram drafts, and their convention and rule."""

    name: str
    draft: NgramDraft
    dtype: str
    rule: tuple


CASES = [
    Case("llamacpp", NgramDraft(K, 2, 2), "float32", ("llamacpp", "llamacpp:2")),
    Case("transformers", NgramDraft(K, 1, 3), "", ("transformers_ngram", "transformers:1,3")),
]


def texts():
    """[(id, prompt, tokens)] of the bundled recording, cut to the budget."""
    trace = load_trace(ROOT / "traces" / "smollm2" / "greedy" / "prompt_lookup.parquet")
    out = []
    for i in PROMPTS:
        prompt = trace.prompt[trace.prompt_offset[i] : trace.prompt_offset[i + 1]].tolist()
        tokens = trace.token[trace.offset[i] : trace.offset[i + 1]][:BUDGET].tolist()
        out.append((str(i), prompt, tokens))
    return out


def model_of(dtype):
    """The target in an engine's format: a folder, or a GGUF file of a number type."""
    path = SMOLLM2 / (f"{dtype}.gguf" if dtype else "target")
    if not path.exists():
        pytest.skip(f"{path} is written by llama.cpp's convert_hf_to_gguf.py")
    return path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_texts_and_rounds_are_those_of_the_recording(case):
    engine = RELEASED[case.name]
    try:
        environment = find_environment(engine)
    except ValueError as error:
        pytest.skip(str(error))
    settings = EngineSettings(model_of(case.dtype), case.draft, longest=400)
    requests = [Request(id, tuple(prompt), BUDGET) for id, prompt, _ in texts()]
    results = {}
    with Worker(engine, environment) as worker:
        assert worker.start(settings).sets_k
        for k in (K, 0):
            found = results[k] = {}
            worker.run(requests, lambda done, to=found: to.__setitem__(done.id, done), k=k)
    for id, prompt, tokens in texts():
        record = {"prompt": prompt, "tokens": tokens}
        drafted, plain = results[K][id], results[0][id]
        assert list(drafted.tokens) == list(plain.tokens) == tokens
        assert clipped(drafted.passes, len(tokens)) == by_rule(record, *case.rule)
        assert plain.passes == ((1, 0, 0),) * len(tokens)
        for done in (drafted, plain):
            assert sum(done.pass_seconds) == pytest.approx(done.seconds, rel=0.1, abs=0.2)
