"""Vanilla drafting: a smaller language model with the target's tokenizer."""

from real.draft import DrafterKind, RandomInit
from real.draft.parallel import ParallelLanguageModel
from real.drafters.model.drafter import ModelDrafter
from real.drafters.model.training import RECIPE, small_model
from real.model.decoder import Decoder
from real.model.random_models import random_decoder, read_shape
from simspec.cost.shapes import ModelShape

__all__ = ["KIND", "ModelDrafter", "small_model"]


def _shape(argument: str, target: ModelShape) -> ModelShape:
    if not argument:
        raise ValueError(
            "drafter 'model' has no size; "
            "expected its shape: model:llama-3.2-1b, model:2x256x4 or model:SHAPE.json"
        )
    shape = read_shape(argument, target.vocab)
    if shape.vocab != target.vocab:
        raise ValueError(
            f"drafter {argument!r} has {shape.vocab} tokens, {target.name!r} {target.vocab}; "
            "take one with the same tokenizer"
        )
    return shape


def _build(argument: str, target: Decoder, shape: ModelShape, depth: int, seed: int):
    small = _shape(argument, shape)
    return ModelDrafter(random_decoder(small, target.dtype, str(target.device), seed + 1))


KIND = DrafterKind(
    ModelDrafter,
    ModelDrafter.load,
    RECIPE,
    ParallelLanguageModel,
    RandomInit(_build, lambda argument, target: [_shape(argument, target)], takes_argument=True),
)
