"""Declaration of one kind of drafter: how it is loaded, trained, recorded and initialized."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from real.draft.parallel import ParallelFactory
from real.draft.protocol import Drafter
from real.model.decoder import Decoder
from simspec.model_shape import ModelShape


@dataclass(frozen=True)
class TrainingRecipe:
    """How the weights of one kind of drafter are trained.

    | field | meaning |
    | --- | --- |
    | head | (target, **settings) -> nn.Module with an attribute `settings`: what is trained |
    | loss | (head, target, `TrainingBatch`, soft, generator, **settings) -> scalar |
    | drafter | (target, head) -> Drafter |
    | file | its weights are <file>.safetensors |
    | soft | whether the loss is towards the target's distribution by default |
    | rate | peak learning rate |
    | reads | (head, soft) -> names of the features (`read_target`) that the loss asks for |
    | defaults | settings without a default of their own, or better ones for minutes of training |
    """

    head: Callable[..., nn.Module]
    loss: Callable[..., Tensor]
    drafter: Callable[[Decoder, Any], Drafter]
    file: str
    soft: bool
    rate: float = 3e-3
    reads: Callable[[Any, bool], tuple[str, ...]] = lambda head, soft: ()
    defaults: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class RandomInit:
    """A drafter with random weights, for latency measurements on a random target.

    | field | meaning |
    | --- | --- |
    | build | (argument, target, its shape, draft length, seed) -> Drafter |
    | shapes | (argument, target's shape) -> upper bound of the weights it adds |
    | takes_argument | whether a text as early_exit:3 is allowed |
    """

    build: Callable[[str, Decoder, ModelShape, int, int], Drafter]
    shapes: Callable[[str, ModelShape], list[ModelShape]]
    takes_argument: bool = False


@dataclass(frozen=True)
class DrafterKind:
    """All that the project knows of one kind of drafter; an entry of `real.drafters.BUILTIN`.

    | field | meaning |
    | --- | --- |
    | drafter | its class |
    | load | (folder, target, `real.model.fingerprint.made_for` of it) -> Drafter |
    | recipe | how it is trained; None: it has no weights to train |
    | parallel | its parallel form; None: recorded position by position |
    | random_init | random weights for latency measurements; None: not offered |
    """

    drafter: type[Drafter]
    load: Callable[[Path, Decoder, Mapping[str, str]], Drafter]
    recipe: TrainingRecipe | None = None
    parallel: ParallelFactory | None = None
    random_init: RandomInit | None = None
