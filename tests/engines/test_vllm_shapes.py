"""Costs without weights on a real vLLM: the CPU builds 0.26.0 and 0.32.0 were tried.

`make test-engines` runs it; SIMSPEC_ENGINES names another version's folder.
"""

import pytest
from own_vllm import needs_vllm

from real.engines import EngineError, Worker, find_environment
from real.engines.shapes import Shape, ShapePlan, measure_shape, step_table

SHAPE = Shape("tiny", {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 8, "num_attention_heads": 2, "head_dim": 64,
    "num_key_value_heads": 2, "vocab_size": 40_000, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
})  # fmt: skip


pytestmark = needs_vllm()


def make(engine):
    return Worker(engine, find_environment(engine))


@pytest.mark.parametrize("drafter", ["ngram", "eagle3"])
def test_every_length_is_timed_with_all_drafts_rejected(drafter):
    """A head has 32,000 logits of its own, not the target's 40,000: the worker looks."""
    run = measure_shape(ShapePlan(SHAPE, drafter, 2, (1, 3), (48,), 8), make)
    assert run.alternating
    assert run.settings.get("draft vocabulary", "32000") == "32000"
    table = step_table(run)
    assert (table.batch, table.context, table.K) == ((1, 3), (48,), 2)
    assert all(cell.precision.samples["verify"] == [8, 8, 8] for cell in table.known)


def test_what_does_not_fit_and_what_vllm_does_not_know_are_one_line():
    with pytest.raises(EngineError, match="GB are free: fewer sequences, a shorter context"):
        measure_shape(ShapePlan(SHAPE, "ngram", 2, (4096,), (100_000,), 4), make)
    unknown = Shape("x", SHAPE.config | {"architectures": ["NoSuchForCausalLM"]})
    with pytest.raises(EngineError, match="NoSuchForCausalLM") as caught:
        measure_shape(ShapePlan(unknown, "none", 0, (1,), (48,), 4), make)
    assert "\n" not in str(caught.value)
