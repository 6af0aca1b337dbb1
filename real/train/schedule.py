"""How long and how fast a model is trained."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainSchedule:
    """Steps, batch shape and learning rate of one training.

    | field | meaning |
    | --- | --- |
    | steps | optimizer steps; 0 with `minutes`: as many as fit, fixed after a short timing |
    | minutes | wall-clock time aimed at where `steps` is 0 |
    | rows, length | windows in a step, and tokens in a window |
    | rate | peak learning rate; rises over `warmup` of the steps, then falls linearly to zero |
    | decay | decoupled weight decay of the matrices |
    | seed | addresses the windows of every step |
    | save_every | steps between checkpoints |
    | every | steps between validations; 0 is a tenth of the steps |
    | patience | validations without a better score before it stops; 0 is never |
    """

    steps: int = 0
    minutes: float = 0.0
    rows: int = 16
    length: int = 256
    rate: float = 3e-3
    warmup: float = 0.02
    decay: float = 0.1
    seed: int = 0
    save_every: int = 100
    every: int = 0
    patience: int = 0


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Share of the peak learning rate at `step`: a linear rise, then a linear fall to zero."""
    rise = max(1, round(warmup * steps))
    return min((step + 1) / rise, (steps - step) / max(1, steps - rise))
