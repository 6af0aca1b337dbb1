"""Engines: how a target and its drafter run their passes."""

import numpy as np
from torch import nn

from real.draft import Drafter
from real.model.captured_passes import CapturedPasses
from real.model.decoder import Decoder
from real.model.layer import DecoderLayer
from real.model.runner import EAGER, EagerPasses
from real.model.target import Target
from simspec import Trace

ENGINES = ("eager", "fast", "strict")
"""eager: every kernel from Python, any number of rows. fast: padded to 1, 2 or all rows, each captured once. strict: to all rows always."""


def passes_of(
    engine: str, rows: int, capacity: int, compiled: dict | bool | None = None
) -> EagerPasses:
    """The passes of that engine, for rounds of at most `rows` rows (K + 1, or a tree's and the last token) over texts of `capacity` rows.

    With "strict" what the target says of a row does not depend on how many were drafted, nor where the text stands: in bfloat16, too, one
    text comes out under every policy. "fast" is quicker, and rounding may differ between widths. ValueError for another engine.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine {engine!r} is unknown; expected one of {', '.join(ENGINES)}")
    if engine == "eager":
        return EAGER
    capacity = max(64, -(-(capacity + rows) // 64) * 64)  # what attention kernels like
    if engine == "strict":
        return CapturedPasses((rows,), capacity, compiled, smallest=capacity)
    return CapturedPasses({1, min(2, rows), rows}, capacity, compiled)


def passes_for(engine: str, trace: Trace, submitted: int = 0) -> EagerPasses:
    """`passes_of` that engine for runs on the prompts of a recording, drafts as deep as it or of so many `submitted` tokens."""
    longest = int((np.diff(trace.prompt_offset) + trace.budget).max())
    return passes_of(engine, max(trace.K, submitted) + 1, longest)


def engage(passes: EagerPasses, target: Decoder, drafter: Drafter) -> None:
    """Gives the drafter its passes; unless they are eager the layers of both are packed, too (`DecoderLayer.fuse_projections`)."""
    if drafter.captures:
        drafter.passes = passes
    if passes is EAGER:
        return
    for whole in (
        target,
        *(each for each in vars(drafter).values() if isinstance(each, nn.Module)),
    ):
        for layer in whole.modules():
            if isinstance(layer, DecoderLayer) and not layer.fused:
                layer.fuse_projections()


def engines_of(target: Target, drafter: Drafter) -> dict[str, str]:
    """The engine that each really runs on; "eager" for a drafter whose passes cannot be captured."""
    return {"target": target.passes.name, "drafter": drafter.engine}
