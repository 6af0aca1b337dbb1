"""Skipped sub-layers of a toy target, and its pair with the drafter that skips them."""

from hypothesis import strategies as st
from toy_lm import toy_decoder

from real.drafters.self_skip import SelfSkipDrafter, SkipConfig
from real.model.target import Target

LAYERS = 4
SUBSET = st.sets(st.integers(0, LAYERS - 1)).map(tuple)
SKIPS = st.builds(SkipConfig, SUBSET, SUBSET)
SOME = SkipConfig((1, 3), (2,))
DECODER = toy_decoder(0, spread=0.4)


def pair(skipped, decoder=DECODER):
    return Target(decoder, capacity=32), SelfSkipDrafter(decoder, skipped)
