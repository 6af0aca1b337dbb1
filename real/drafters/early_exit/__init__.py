"""EESD: early exit from the target behind its first layers."""

from dataclasses import replace

from real.draft import DrafterKind, RandomInit
from real.draft.parallel import ParallelLanguageModel
from real.drafters.early_exit.drafter import EarlyExitDrafter
from real.drafters.early_exit.head import EarlyExitHead
from real.drafters.early_exit.training import RECIPE
from real.model.decoder import Decoder
from simspec.cost.shapes import ModelShape

__all__ = ["KIND", "EarlyExitDrafter", "EarlyExitHead"]


def _depth(argument: str, layers: int) -> int:
    if argument and not argument.isdecimal():
        raise ValueError(
            f"drafter 'early_exit:{argument}': expected a number of layers, such as early_exit:3"
        )
    depth = int(argument) if argument else max(1, layers // 8)
    if not 1 <= depth < layers:
        raise ValueError(f"an exit after {depth} layers of {layers}; expected 1 to {layers - 1}")
    return depth


def _build(argument: str, target: Decoder, shape: ModelShape, depth: int, seed: int):
    head = EarlyExitHead(target, _depth(argument, shape.layers))
    return EarlyExitDrafter(target, head.requires_grad_(False).eval())


def _shapes(argument: str, target: ModelShape) -> list[ModelShape]:
    _depth(argument, target.layers)
    return [replace(target, name="early_exit", layers=1, vocab=1, tied=True)]


KIND = DrafterKind(
    EarlyExitDrafter,
    EarlyExitDrafter.load,
    RECIPE,
    ParallelLanguageModel,
    RandomInit(_build, _shapes, takes_argument=True),
)
