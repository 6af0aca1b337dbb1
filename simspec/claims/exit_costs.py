"""Costs of an early exit of other layers than the measured one, and targets by name."""

from dataclasses import dataclass, replace

import numpy as np

from simspec.cost.model import CostModel


@dataclass(frozen=True)
class ExitForm:
    """An early exit: the target's first `depth` layers, and `new` ones behind them."""

    depth: int
    new: int

    @property
    def layers(self) -> int:
        return self.depth + self.new


def layer_and_head(cost: CostModel, form: ExitForm, target_layers: int) -> tuple[float, float]:
    """(seconds of a layer, seconds of the rest of a step, its head) of a measured early exit.

    A plain step runs all of the target's layers and a head, a draft step those of `form` and a
    head. Where that leaves less than nothing for a head, all of a draft step is its layers.
    """
    step = float(cost.draft[1])
    layer = (cost.baseline - step) / (target_layers - form.layers)
    layer = min(layer, step / form.layers)
    return layer, step - form.layers * layer


def exit_cost(cost: CostModel, form: ExitForm, other: ExitForm, target_layers: int) -> CostModel:
    """The costs measured for one early exit, scaled to another of the same target.

    | part | scaled |
    | --- | --- |
    | draft | by its layers and head, `layer_and_head` |
    | verify | further rows skip the first `depth` layers, which drafting has run |
    """
    layer, head = layer_and_head(cost, form, target_layers)
    factor = (head + other.layers * layer) / float(cost.draft[1])
    skipped = (other.depth - form.depth) / (target_layers - form.depth)
    verify = cost.verify - skipped * np.maximum(cost.verify - cost.verify[0], 0.0)
    return replace(cost, draft=factor * cost.draft, verify=verify, precision=None)


@dataclass(frozen=True)
class BundledTarget:
    """A target of bundled recordings: its name, layers, and the early exit that was measured."""

    name: str
    layers: int
    exit: ExitForm


TARGETS = {
    "3f3badec853498770317b723278334157ccfd0808eb8557b6d0c41f9f19ad5de": BundledTarget(
        "tiny", 10, ExitForm(1, 1)
    ),
    "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd": BundledTarget(
        "smollm2", 30, ExitForm(4, 1)
    ),
}


def target_of(weights: str) -> BundledTarget | None:
    """The bundled target with these weights; None for another."""
    return TARGETS.get(weights)
