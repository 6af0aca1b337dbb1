"""Which passes a latency grid holds, and how they are run."""

from dataclasses import dataclass

import torch

from real.drafters import drafter_shapes
from real.measure.settings import ascending
from simspec.cost.shapes import ModelShape

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 17, 24, 32)
BATCHES = (1, 4, 16, 64)
CONTEXTS = (128, 1024, 4096)


@dataclass(frozen=True)
class GridAxes:
    """Sizes of the target's passes; all combinations are measured.

    | field | meaning |
    | --- | --- |
    | widths | rows that each sequence passes |
    | batches | sequences |
    | contexts | rows cached before the pass, in each sequence |

    Each size is kept once, ascending. ValueError for none, or one below 1 (contexts: below 0).
    """

    widths: tuple[int, ...] = WIDTHS
    batches: tuple[int, ...] = BATCHES
    contexts: tuple[int, ...] = CONTEXTS

    def __post_init__(self) -> None:
        for name, least in (("widths", 1), ("batches", 1), ("contexts", 0)):
            object.__setattr__(self, name, ascending(name, getattr(self, name), least))


@dataclass(frozen=True)
class GridSettings:
    """How passes are run and timed.

    | field | meaning |
    | --- | --- |
    | dtype, device | of the models |
    | repeats | of every pass |
    | graphs | passes are captured and replayed (`real.model.cuda_graphs`), else run eagerly |
    | compiled | layers are compiled before the capture; None: on CUDA |
    | mode | torch.compile's; None: its default |
    | drafters | `real.drafters.random_drafter` specifications whose step is timed too |
    | seed | of weights, inputs and the order of passes |

    ValueError for no repeat, and for compiled layers without captures on CUDA.
    """

    dtype: torch.dtype = torch.bfloat16
    device: str = "cuda"
    repeats: int = 20
    graphs: bool = True
    compiled: bool | None = None
    mode: str | None = None
    drafters: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ValueError(f"repeats is {self.repeats}, expected at least 1")
        captured_on_cuda = self.graphs and torch.device(self.device).type == "cuda"
        if self.compiled and not captured_on_cuda:
            raise ValueError(
                "layers are compiled for captured passes on a GPU only: "
                "take graphs on cuda, or leave compiled out"
            )
        if self.compiled is None:
            object.__setattr__(self, "compiled", captured_on_cuda)
        object.__setattr__(self, "drafters", tuple(dict.fromkeys(self.drafters)))

    def drafter_shapes(self, shape: ModelShape) -> list[ModelShape]:
        """What the drafters add to the target; ValueError for a drafter without a pass to time."""
        if any(drafter.partition(":")[0] == "prompt_lookup" for drafter in self.drafters):
            raise ValueError(
                "drafter 'prompt_lookup' has no pass to time; "
                "expected early_exit, model:SHAPE, eagle or medusa"
            )
        return [s for drafter in self.drafters for s in drafter_shapes(drafter, shape)]
