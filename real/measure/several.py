"""Costs of several drafters of one target, from one sitting."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch

from real.measure.price import Entry, LoopPrices
from real.measure.settings import MeasureSettings
from real.measure.sitting import REAL, Clocks, sit
from real.measure.unfinished import UnfinishedSitting
from real.progress import Progress, quiet
from real.provenance import processor_name, versions
from simspec import CostModel
from simspec.tree.tree import MAX_NODES


def measure_several(
    entries: Sequence[Entry],
    settings: MeasureSettings,
    unfinished: Path,
    progress: Progress = quiet,
    clocks: Clocks = REAL,
) -> list[CostModel]:
    """`real.measure.measure` of every entry; plain decoding and verification are timed once a rule.

    All entries' targets share their weights. `unfinished` keeps the rounds until all are done: a
    killed measurement of the same entries continues. ValueError for two entries of one name, two
    rules of one name, a batch or several contexts, and tree nodes outside K .. MAX_NODES.
    """
    names = [entry.name for entry in entries]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"costs of {twice[0]} are asked for twice: name each once")
    if len({entry.rule for entry in entries}) > len({entry.rule.name for entry in entries}):
        raise ValueError("two rules have the same name, expected one temperature and seed in all")
    if settings.batch != (1,) or len(settings.context) > 1:
        raise ValueError(
            f"several drafters are measured at batch 1 and one context, given are batch "
            f"{list(settings.batch)} and context {list(settings.context)}: measure one at a time"
        )
    K, nodes = max(entry.K for entry in entries), settings.tree_nodes
    if nodes and not K <= nodes <= MAX_NODES:
        raise ValueError(f"tree nodes are {nodes}; expected 0, or {K} (the depth) to {MAX_NODES}")
    prices = LoopPrices(entries, settings, np.random.default_rng(settings.seed))
    decoder = entries[0].target.decoder
    key = {
        "entries": [[entry.name, entry.K, repr(entry.rule)] for entry in entries],
        "context": settings.context,
        "nodes": nodes,
        "seed": settings.seed,
        "model": repr(decoder.config),
        "origin": [processor_name(decoder.device), torch.get_num_threads(), str(decoder.dtype)],
        "engines": [entry.target.passes.name for entry in entries],
        "versions": versions(),
    }
    state = UnfinishedSitting(unfinished, key, prices.samples, prices.pace)

    def warm() -> None:
        for entry in entries:
            entry.target.passes.warm()

    def settled() -> bool:
        return all(best.settled for entry in entries for best in prices.best_lengths(entry))

    sitting = sit(
        prices.blocks, settings, state.load(), warm, state.save, progress, clocks, settled=settled
    )
    name = uuid4().hex[:12]
    costs = [prices.cost(entry, settings.context[0], sitting) for entry in entries]
    state.save(sitting)
    return [
        replace(cost, origin=replace(cost.origin, sitting=name)) if cost.origin else cost
        for cost in costs
    ]
