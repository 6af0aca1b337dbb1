"""n-gram rules against the released code that drafts: transformers here, vLLM where installed."""

import json
import subprocess

import numpy as np
import pytest

from real.engines import RELEASED, find_environment
from simspec.engines.ngram import drafted_text, drafts, ngram_rule

END = 3
CASES = 4000


def contexts(count, seed=0):
    """Random token lists of 2 to 60 tokens, some of them repeating."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        text = rng.integers(0, int(rng.integers(2, 7)), int(rng.integers(2, 61))).tolist()
        made.append((text[: int(rng.integers(1, 9))] * 20)[: len(text)] if i % 3 == 0 else text)
    return made


@pytest.mark.parametrize("most", [1, 2, 4])
def test_transformers_drafts_the_same(most):
    """Its prompt lookup, with drafts cut before an end token."""
    torch = pytest.importorskip("torch")
    from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

    generator = PromptLookupCandidateGenerator(
        eos_token_id=torch.tensor([END]), num_output_tokens=5, max_matching_ngram_size=most,
        max_length=1000,
    )  # fmt: skip
    rule, drafted = ngram_rule(f"transformers:1,{most}"), 0
    for text in contexts(CASES // 4, most):
        ids, _ = generator.get_candidates(torch.tensor([text]))
        released = ids[0, len(text) :].tolist()
        whole = drafts(np.array(text), len(text), 5, rule).tolist()
        ours = whole[: whole.index(END)] if END in whole else whole
        assert released == ours, text
        held, _ = drafted_text(text, [0], rule, 5, 1, [END])
        assert held.tolist() == [len(released)]
        drafted += len(released)
    assert drafted > CASES // 4


VLLM = """
import json, sys
import numpy as np
from vllm.v1.spec_decode.ngram_proposer import _find_longest_matched_ngram_and_propose_tokens as f
out = []
for text, least, most, k in json.load(sys.stdin):
    out.append(f(np.array(text, np.int32), least, most, 10000, k).tolist())
print("DRAFTS" + json.dumps(out))
"""


def test_vllm_drafts_the_same():
    try:
        environment = find_environment(RELEASED["vllm"])
    except ValueError:
        pytest.skip("vLLM's environment is not here")
    rng = np.random.default_rng(0)
    cases = []
    for text in contexts(25 * CASES, 9):
        least = int(rng.integers(1, 4))
        cases.append((text, least, least + int(rng.integers(0, 3)), int(rng.integers(1, 9))))
    answer = subprocess.run(
        [environment.python, "-c", VLLM], input=json.dumps(cases), capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    released = json.loads(answer.split("DRAFTS")[-1])
    drafted = 0
    for (text, least, most, k), theirs in zip(cases, released, strict=True):
        ours = drafts(np.array(text), len(text), k, ngram_rule(f"vllm:{least},{most}"))
        assert ours.tolist() == theirs, (text, least, most, k)
        drafted += len(theirs) > 0
    assert drafted > len(cases) // 2
