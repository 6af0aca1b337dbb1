"""What the recorder takes from the target's own run."""

import numpy as np
import pytest
import torch
from toy_lm import toy_prompts, toy_recording

from real.sampling import margin
from simspec.trace.quantization import encode_margin


@pytest.mark.parametrize("name", ["model", "eagle", "prompt_lookup"])
def test_margins_are_those_of_the_target_along_its_own_text(name):
    trace, target, _ = toy_recording(name, "greedy", 3)
    decoder = target.decoder
    for s, prompt in enumerate(toy_prompts(3)):
        part = slice(trace.offset[s], trace.offset[s + 1])
        text = torch.tensor([[*prompt, *trace.token[part][:-1].tolist()]])
        with torch.inference_mode():
            expected = encode_margin(margin(decoder(text)[0, len(prompt) - 1 :]).numpy())
        recorded = trace.margin[part].astype(int)
        assert np.abs(recorded - expected.astype(int)).max() <= 1
    assert trace.margin.min() < trace.margin.max()
