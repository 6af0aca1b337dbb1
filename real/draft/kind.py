"""Declaration of one kind of drafter: how it is loaded, trained, recorded and initialized."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from real.draft.parallel import ParallelFactory
from real.draft.protocol import Drafter
from real.model.decoder import Decoder
from simspec.cost.shapes import ModelShape


@dataclass(frozen=True)
class PaperRecipe:
    """How the authors of a drafter trained it, in place of a recipe for minutes of training.

    | field | meaning |
    | --- | --- |
    | source | where the figures are printed |
    | soft | whether the loss is towards the target's distribution |
    | settings | of the draft head and the loss |
    | rate | peak learning rate; None: not printed, and the recipe's own |
    | betas, decay, clip | of AdamW, its weight decay, and the largest norm of the gradient |
    | warmup | share of the steps in which the rate rises |
    | batch | sequences a step there, for the record |
    | silent | what the source does not print; the values here are then defaults |

    The rate is as printed for models of billions of weights; it does not follow the width.
    """

    source: str
    soft: bool
    settings: Mapping[str, object]
    rate: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    decay: float = 0.0
    clip: float = 1.0
    warmup: float = 0.02
    batch: int = 0
    silent: tuple[str, ...] = ()


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
    | paper | the authors' own recipe; None: none is printed |
    """

    head: Callable[..., nn.Module]
    loss: Callable[..., Tensor]
    drafter: Callable[[Decoder, Any], Drafter]
    file: str
    soft: bool
    rate: float = 3e-3
    reads: Callable[[Any, bool], tuple[str, ...]] = lambda head, soft: ()
    defaults: Mapping[str, object] = field(default_factory=dict)
    paper: PaperRecipe | None = None


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
    """All that the project knows of one kind of drafter: `KIND` of its file in `real.drafters`.

    | field | meaning |
    | --- | --- |
    | drafter | its class |
    | load | (folder, target, `real.model.fingerprint.made_for` of it) -> Drafter |
    | recipe | how it is trained; None: it has no weights to train |
    | parallel | its parallel form; None: recorded position by position |
    | random_init | random weights for latency measurements; None: not offered |
    | declared | folder -> most tokens of a draft that its files declare; None: none, or no limit |
    """

    drafter: type[Drafter]
    load: Callable[[Path, Decoder, Mapping[str, str]], Drafter]
    recipe: TrainingRecipe | None = None
    parallel: ParallelFactory | None = None
    random_init: RandomInit | None = None
    declared: Callable[[Path], int | None] = lambda folder: None
