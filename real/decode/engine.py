"""Engines: how a target and its drafter execute their passes."""

from torch import nn

from real.draft import Drafter
from real.model.captured_passes import CapturedPasses
from real.model.decoder import Decoder, DecoderLayer
from real.model.passes import EAGER, EagerPasses
from real.model.target import Target

ENGINES = ("eager", "fast", "strict")
"""
| engine | passes |
| --- | --- |
| eager | any number of rows, every kernel launched from Python |
| fast | padded to 1, 2 or the most rows, each captured once |
| strict | always padded to the most rows, captured once |
"""


def make_passes(engine: str, rows: int, capacity: int) -> EagerPasses:
    """The passes of an engine, for rounds of at most `rows` rows over sequences of `capacity` rows.

    `rows` is K + 1, or the nodes of a tree and 1. Under "strict" the target's numbers for a row
    do not depend on how many tokens were drafted: every policy commits the same tokens, in
    bfloat16 too. Under "fast" rounding may differ between widths. ValueError for another engine.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine {engine!r} is unknown; expected one of {', '.join(ENGINES)}")
    if engine == "eager":
        return EAGER
    capacity = max(64, -(-(capacity + rows) // 64) * 64)  # a multiple that attention kernels prefer
    if engine == "strict":
        return CapturedPasses((rows,), capacity, smallest=capacity)
    return CapturedPasses({1, min(2, rows), rows}, capacity)


def attach_engine(passes: EagerPasses, target: Decoder, drafter: Drafter) -> None:
    """Gives the drafter its passes; captured ones run fewer, joined projections."""
    if drafter.captures:
        drafter.passes = passes
    if passes is EAGER:
        return
    for model in (target, *vars(drafter).values()):
        for layer in model.modules() if isinstance(model, nn.Module) else ():
            if isinstance(layer, DecoderLayer) and not layer.fused:
                layer.fuse_projections()


def engines_of(target: Target, drafter: Drafter) -> dict[str, str]:
    """The engine that each really runs on; "eager" for a drafter whose passes cannot be
    captured."""
    return {"target": target.passes.name, "drafter": drafter.passes.name}
