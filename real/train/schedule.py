"""How long and how fast a model is trained."""

from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True)
class TrainSchedule:
    """Steps, batch shape and learning rate of one training.

    | field | meaning |
    | --- | --- |
    | steps | optimizer steps; 0 with `minutes`: as many as fit, fixed after a short timing |
    | minutes | wall-clock time aimed at where `steps` is 0 |
    | rows, length | windows in a step, and tokens in a window |
    | rate | peak learning rate; rises over `warmup` of the steps, then falls linearly to zero |
    | decay | decoupled weight decay: of Muon's matrices, or of all weights |
    | seed | addresses the windows of every step |
    | save_every | steps between checkpoints |
    | every | steps between validations; 0 is a tenth of the steps |
    | patience | validations without a better score before it stops; 0 is never |
    | optimizer | muon: Muon for inner matrices, AdamW for the rest; adamw: AdamW for all |
    | betas | of AdamW |
    | clip | largest norm of the gradient of all weights |
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
    optimizer: str = "muon"
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0

    def stored(self) -> dict[str, object]:
        """The fields as a card holds them; those added later only where they differ."""
        later = {field.name: field.default for field in fields(self) if field.name in LATER}
        return {k: v for k, v in asdict(self).items() if k not in later or v != later[k]}


LATER = ("optimizer", "betas", "clip")
"""Fields that cards of earlier trainings lack."""


def learning_rate_factor(step: int, steps: int, warmup: float) -> float:
    """Share of the peak learning rate at `step`: a linear rise, then a linear fall to zero."""
    rise = max(1, round(warmup * steps))
    return min((step + 1) / rise, (steps - step) / max(1, steps - rise))
