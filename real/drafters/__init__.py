"""The kinds of drafters: one declaration each, and look-ups over them."""

from real.draft import Drafter, DrafterKind, RandomInit
from real.draft.kind import ParallelFactory
from real.model.decoder import Decoder
from simspec.cost.roofline import ModelShape
from simspec.plugins import plugins

BUILTIN: dict[str, DrafterKind] = {
    name: file.KIND for name, file in plugins(__name__, "KIND").items()
}
"""Every kind of drafter, by the name of its file."""


def trainable() -> tuple[str, ...]:
    """Names of the drafters whose weights are trained."""
    return tuple(name for name, kind in BUILTIN.items() if kind.recipe is not None)


def parallel_form(drafter: Drafter) -> ParallelFactory | None:
    """The parallel form of a drafter; None for one that is recorded position by position.

    The look-up is by its exact class: a subclass may draft otherwise.
    """
    kinds = (kind for kind in BUILTIN.values() if kind.drafter is type(drafter))
    return next((kind.parallel for kind in kinds), None)


def drafter_shapes(text: str, target: ModelShape) -> list[ModelShape]:
    """Upper bound of the weights that `random_drafter` adds; ValueError for what it refuses."""
    init, argument = _random_init(text)
    return init.shapes(argument, target)


def random_drafter(
    text: str, target: Decoder, shape: ModelShape, depth: int, seed: int = 0
) -> Drafter:
    """A drafter with random weights for a random target, for drafts of `depth` tokens.

    `text` is NAME[:ARGUMENT]: early_exit[:LAYERS] (default an eighth of the target's), model:SHAPE,
    eagle, medusa (`depth` heads) or prompt_lookup. ValueError, one line, for anything else.
    """
    init, argument = _random_init(text)
    return init.build(argument, target, shape, depth, seed)


def _random_init(text: str) -> tuple[RandomInit, str]:
    name, _, argument = text.partition(":")
    offered = {key: kind.random_init for key, kind in BUILTIN.items() if kind.random_init}
    if name not in offered:
        raise ValueError(
            f"drafter {text!r} cannot be driven; "
            f"expected {', '.join(offered)}, as early_exit:3 or model:llama-3.2-1b"
        )
    if argument and not offered[name].takes_argument:
        raise ValueError(f"drafter {text!r}: {name} takes no argument")
    return offered[name], argument
