"""Drafters, one mechanism a file; each loads from a folder: (folder, target decoder, `real.model.checkpoint.made_for` of it) -> Drafter."""

from dataclasses import replace

from real.draft import Drafter
from real.drafters.eagle import Eagle, EagleDrafter
from real.drafters.early_exit import EarlyExitDrafter, Exit
from real.drafters.glide import GlideDrafter
from real.drafters.hydra import HydraDrafter
from real.drafters.medusa import Medusa, MedusaDrafter
from real.drafters.model import ModelDrafter
from real.drafters.prompt_lookup import PromptLookupDrafter
from real.drafters.self_skip import SelfSkipDrafter
from real.model.decoder import Decoder
from real.model.random_models import random_decoder, read_shape
from simspec.roofline import ModelShape

BUILTIN = {
    "model": ModelDrafter.load,
    "early_exit": EarlyExitDrafter.load,
    "self_skip": SelfSkipDrafter.load,
    "prompt_lookup": PromptLookupDrafter.load,
    "eagle": EagleDrafter.load,
    "medusa": MedusaDrafter.load,
    "hydra": HydraDrafter.load,
    "glide": GlideDrafter.load,
}

DRAFTERS = ("model", "early_exit", "eagle", "medusa", "prompt_lookup")


def drafter_shapes(text: str, target: ModelShape) -> list[ModelShape]:
    """What `random_drafter` would add to the target, as shapes to be weighed; ValueError for what it would refuse."""
    name, argument = _parsed(text)
    if name == "model":
        return [_small(argument, target)]
    if name == "early_exit":
        _depth(argument, target.layers)
    layers = {"early_exit": 1, "eagle": 2, "medusa": 2}.get(
        name, 0
    )  # no part is larger than so many of the target's layers
    return [replace(target, name=name, layers=layers, vocab=1, tied=True)] if layers else []


def random_drafter(
    text: str, target: Decoder, shape: ModelShape, depth: int, seed: int = 0
) -> Drafter:
    """A drafter with random weights for a random target, one that can draft `depth` tokens.

    `text` is early_exit[:LAYERS] (an eighth of the target's by default), model:SHAPE, eagle, medusa (`depth` heads) or prompt_lookup.
    ValueError, one line, for anything else.
    """
    name, argument = _parsed(text)
    if name == "model":
        made = ModelDrafter(
            random_decoder(_small(argument, shape), target.dtype, str(target.device), seed + 1)
        )
    elif name == "prompt_lookup":
        made = PromptLookupDrafter()
    else:
        parts = {
            "early_exit": lambda: (EarlyExitDrafter, Exit(target, _depth(argument, shape.layers))),
            "eagle": lambda: (EagleDrafter, Eagle(target)),
            "medusa": lambda: (MedusaDrafter, Medusa(target, heads=max(depth, 1))),
        }
        make, part = parts[name]()
        made = make(target, part.requires_grad_(False).eval())
    return made


def _parsed(text: str) -> tuple[str, str]:
    name, _, argument = text.partition(":")
    if name not in DRAFTERS:
        raise ValueError(
            f"drafter {text!r} cannot be driven; expected {', '.join(DRAFTERS)}, as early_exit:3 or model:llama-3.2-1b"
        )
    if argument and name not in ("model", "early_exit"):
        raise ValueError(f"drafter {text!r}: {name} takes no argument")
    return name, argument


def _small(argument: str, target: ModelShape) -> ModelShape:
    if not argument:
        raise ValueError(
            "drafter 'model' has no size; expected its shape: model:llama-3.2-1b, model:2x256x4 or model:SHAPE.json"
        )
    small = read_shape(argument, target.vocab)
    if small.vocab != target.vocab:
        raise ValueError(
            f"drafter {argument!r} has {small.vocab} tokens, {target.name!r} {target.vocab}: take one with the same tokenizer"
        )
    return small


def _depth(argument: str, layers: int) -> int:
    if argument and not argument.isdecimal():
        raise ValueError(
            f"drafter 'early_exit:{argument}': expected a number of layers, such as early_exit:3"
        )
    depth = int(argument) if argument else max(1, layers // 8)
    if not 1 <= depth < layers:
        raise ValueError(f"an exit after {depth} layers of {layers}; expected 1 to {layers - 1}")
    return depth
