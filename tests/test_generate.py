"""Generation of training sequences: batched equals one by one."""

import torch
from toy_lm import toy_decoder

from real.model.target import Target
from real.record import Settings
from real.sampling import Rule
from real.train.generate import generate_together
from real.train.train_predictor import generate_one_by_one


def test_batched_generation_equals_one_by_one():
    target = Target(toy_decoder(0))
    vocab = target.decoder.config.vocab
    record_settings = [
        Settings(3, 12, rule, (vocab - 1,)) for rule in (Rule(), Rule("coupled", 0.8, 3))
    ]
    prompts = [[1, 2, 3], [3, 2, 1], [2, 2, 4]]
    a, b = (
        generate_one_by_one(target, record_settings, prompts, 7),
        generate_together(target, record_settings, prompts, 7),
    )
    assert [(w.sequence, w.prompt, w.new_tokens.tolist()) for w in a] == [
        (w.sequence, w.prompt, w.new_tokens.tolist()) for w in b
    ]
    assert all(torch.allclose(x.of_target, y.of_target) for x, y in zip(a, b))
    assert len({tuple(w.new_tokens.tolist()) for w in a}) > 1
    other = generate_together(
        target, record_settings, prompts, 8
    )  # other draw addresses: other sampled texts
    assert [w.new_tokens.tolist() for w in a[3:]] != [w.new_tokens.tolist() for w in other[3:]]
