"""Walking along a known sequence: a drafter
proposes at each position what it proposes after that prefix."""

import pytest
import toy_lm

from real.decode.loop import along, start
from real.model.target import Target

PROMPT, TOKENS = [5, 9, 2, 11], [7, 7, 1, 20, 4]


@pytest.mark.parametrize("name", ["model", "early_exit", "eagle", "prompt_lookup"])
def test_drafter_proposes_what_it_would_after_that_prefix(name):
    decoder, make = toy_lm.toy_target(), toy_lm.TOYS[name]
    drafter = make(decoder, 0)
    walk = along(Target(decoder, drafter.taps), drafter, PROMPT, TOKENS)
    for t, last, _ in walk:
        fresh = make(decoder, 0)
        prefix = [*PROMPT, *TOKENS[:t]]
        start(Target(decoder, fresh.taps), fresh, prefix)
        assert last == prefix[-1]
        for _ in range(2):
            here, there = drafter.next(), fresh.next()
            assert (here and here.token) == (there and there.token)
    assert t == len(TOKENS) - 1


def test_output_is_the_pass_before_the_last_token():
    decoder = toy_lm.toy_target()
    drafter = toy_lm.TOYS["model"](decoder, 0)
    hidden = [output.hidden[-1] for _, _, output in along(Target(decoder), drafter, PROMPT, TOKENS)]
    whole = Target(decoder).prefill([*PROMPT, *TOKENS[:-1]]).hidden[len(PROMPT) - 2 : -1]
    assert len(hidden) == len(whole)
    for one, other in zip(hidden, whole):
        assert (one - other).abs().max() < 1e-9
