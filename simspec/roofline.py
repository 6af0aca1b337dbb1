"""Costs from a model's shape and a card's figures: each pass takes its bytes or its arithmetic,
whichever is longer.

A bound from below, for choosing before there is a machine to measure on: real passes reach a part
of either figure, and what data sheets do not say (launches, sampling, the host) counts as 0 unless
a Card is given it. Measured costs replace it.
"""

import math

from simspec.cost import CostModel
from simspec.cost_table import CostTable
from simspec.device import Device
from simspec.model_shape import ModelShape, cache_bytes, matrix_weights, memory
from simspec.pass_cost import pass_seconds

MAX_BACKLOG = 4  # catch_up is priced up to this many rows


def roofline_cost(
    target: ModelShape,
    drafter: "ModelShape | float",
    card: Device,
    K: int,
    batch: int = 1,
    context: int = 1024,
    nodes: int = 0,
) -> CostModel:
    """A CostModel for a card: verify[j] is the target's pass over j + 1 rows, draft[j] the
    drafter's j passes over one.

    drafter is another model, or the fraction of the target's layers behind which an early exit of
    one more layer and the target's head drafts; its rounds of j >= 1 verify j rows in the layers
    left, as the decode loop does (EESD section 3.1). Owed rows enter with the first draft step, for
    an early exit through its own layer only. nodes > 0 prices trees too: verify up to so many
    submitted tokens, and node, what a second row adds to a draft pass. ValueError where sizes make
    no sense, and where weights and caches exceed the card's memory.
    """
    needed = roofline_memory(target, drafter, K, batch, context)
    label, shared = _label(target, drafter), _shared(target, drafter)
    if needed > card.memory:
        raise ValueError(
            f"{label} needs {needed / 1e9:.1f} GB at batch {batch} and context {context}, "
            f"{card.name} has {card.memory / 1e9:.0f}: "
            "take fewer bytes a weight, less of either, or another card"
        )

    def verify(drafted: int) -> float:
        if not shared or not drafted:
            return pass_seconds(target, card, drafted + 1, batch, context)
        # the last draft token alone has not passed the shared layers; one pass still, with one
        # overhead
        late = (
            pass_seconds(target, card, 1, batch, context + drafted, shared, False) - card.overhead
        )
        return late + pass_seconds(
            target, card, drafted + 1, batch, context, target.layers - shared
        )

    lm, layers = (target, shared + 1) if shared else (drafter, drafter.layers)
    step = [pass_seconds(lm, card, 1, batch, context + i, layers) for i in range(K)]
    entered = (1, False) if shared else (layers, True)
    first = pass_seconds(lm, card, 1, batch, context, *entered)
    owed = [
        pass_seconds(lm, card, 1 + b, batch, context - b, *entered) - first
        for b in range(1, MAX_BACKLOG + 1)
    ]
    return CostModel(
        draft=[math.fsum(step[:j]) for j in range(K + 1)],
        verify=[verify(j) for j in range(max(K, nodes) + 1)],
        catch_up=[0.0, *(max(b, 0.0) for b in owed)],
        overhead=0.0,
        baseline=pass_seconds(target, card, 1, batch, context),
        name=f"{label}-b{batch}-c{context}",
        device=f"roofline of {card.name}",
        node=max(pass_seconds(lm, card, 2, batch, context, layers) - step[0], 0.0)
        if nodes and K
        else 0.0,
    )


def roofline_table(
    target: ModelShape,
    drafter: "ModelShape | float",
    card: Device,
    K: int,
    batches,
    contexts,
    nodes: int = 0,
) -> CostTable:
    """`roofline_cost` over both axes; cells that exceed the card's memory are None. ValueError for
    a size that never fits.
    """
    batches, contexts = sorted(set(batches)), sorted(set(contexts))
    if not batches or not contexts:
        raise ValueError(
            f"batch sizes are {batches} and contexts {contexts}, expected at least one of each"
        )
    roofline_cost(
        target, drafter, card, K, batches[0], contexts[0], nodes
    )  # says what is wrong if nothing fits

    def cell(batch, context):
        fits = roofline_memory(target, drafter, K, batch, context) <= card.memory
        return roofline_cost(target, drafter, card, K, batch, context, nodes) if fits else None

    cells = [[cell(b, c) for c in contexts] for b in batches]
    return CostTable(
        tuple(batches), tuple(contexts), cells, f"{_label(target, drafter)} on {card.name}"
    )


def roofline_memory(
    target: ModelShape, drafter: "ModelShape | float", K: int, batch: int, context: int
) -> float:
    """Bytes that target and drafter hold at the end of a round of K: all weights, and caches of
    context + K + 1 rows each.
    """
    if (
        isinstance(K, bool)
        or not isinstance(K, int)
        or not 1 <= K <= 255
        or batch < 1
        or context < MAX_BACKLOG
    ):
        raise ValueError(
            f"K is {K}, batch {batch} and context {context}, expected 1 to 255, at least 1 and at "
            f"least {MAX_BACKLOG}"
        )
    rows = context + K + 1
    if not _shared(target, drafter):
        return memory(target, batch, rows) + memory(drafter, batch, rows)
    extra = (
        matrix_weights(target, 1, False) + 3 * target.width
    )  # the exit's layer with its norms, and the exit's norm
    return (
        memory(target, batch, rows)
        + extra * target.weight_bytes
        + batch * rows * cache_bytes(target, 1)
    )


def _shared(target, drafter) -> int:
    """Layers of the target that the drafter runs: 0 for a model of its own."""
    if isinstance(drafter, ModelShape):
        if drafter.vocab != target.vocab:
            raise ValueError(
                f"drafter {drafter.name!r} has {drafter.vocab} tokens, {target.name!r} "
                f"{target.vocab}: take one with the same tokenizer"
            )
        return 0
    if isinstance(drafter, bool) or not isinstance(drafter, (int, float)) or not 0 < drafter < 1:
        raise ValueError(
            f"drafter is {drafter!r}, expected a model, or an early exit's share of the layers, "
            "between 0 and 1"
        )
    if target.layers < 2:
        raise ValueError(
            f"model {target.name!r} has {target.layers} layer, expected at least 2 for an early "
            "exit"
        )
    return min(max(round(drafter * target.layers), 1), target.layers - 1)


def _label(target, drafter) -> str:
    return f"{target.name} {drafter.name if isinstance(drafter, ModelShape) else f'exit {_shared(target, drafter)}'}"
