"""State of an interrupted training: weights, optimizers, log and the best validation."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from real.files import replacing

FILE = "checkpoint.safetensors"


@dataclass
class BestWeights:
    """The best validation: score and step, how many followed without a better one, and weights."""

    score: float = -math.inf
    step: int = 0
    since: int = 0
    stopped: bool = False
    weights: dict[str, Tensor] = field(default_factory=dict)

    def update(
        self, score: float, step: int, patience: int, parameters: dict[str, nn.Parameter]
    ) -> None:
        """Takes the score of `parameters` after `step` steps; stops after `patience` worse ones."""
        if score > self.score:
            self.score, self.step, self.since = score, step, 0
            self.weights = {n: p.detach().clone() for n, p in parameters.items()}
        else:
            self.since += 1
        self.stopped = bool(patience) and self.since >= patience


@dataclass
class TrainState:
    """How far a training is: steps done, steps in all (0: not yet known), log and best weights."""

    step: int = 0
    steps: int = 0
    log: list[dict] = field(default_factory=list)
    best: BestWeights = field(default_factory=BestWeights)


def save_state(
    folder: Path,
    parameters: dict[str, nn.Parameter],
    optimizers: list[torch.optim.Optimizer],
    state: TrainState,
) -> None:
    """Writes everything that training needs to continue, atomically."""
    best = state.best
    tensors = {f"weight/{n}": p.detach() for n, p in parameters.items()}
    tensors |= {f"best/{n}": p for n, p in best.weights.items()}
    for optimizer in optimizers:
        for n, p in parameters.items():
            moments = optimizer.state.get(p, {})
            tensors |= {f"state/{n}/{k}": torch.as_tensor(v) for k, v in moments.items()}
    tensors = {k: v.contiguous().cpu() for k, v in tensors.items()}
    scores = [best.score, best.step, best.since, best.stopped] if best.weights else []
    metadata = {
        "step": str(state.step),
        "steps": str(state.steps),
        "log": json.dumps(state.log),
        "best": json.dumps(scores),
    }
    with replacing(folder / FILE) as path:
        save_file(tensors, path, metadata)


def load_state(
    folder: Path, parameters: dict[str, nn.Parameter], optimizers: list[torch.optim.Optimizer]
) -> TrainState:
    """Restores parameters and optimizers from `folder`; ValueError for another model's state."""
    path = folder / FILE
    if not path.exists():
        return TrainState()
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    _check_shapes(path, tensors, parameters)
    with torch.no_grad():
        for n, p in parameters.items():
            p.copy_(tensors[f"weight/{n}"])
    for optimizer in optimizers:
        _restore(optimizer, tensors, parameters)
    best = BestWeights(*json.loads(metadata.get("best", "[]")))
    best.weights = {
        n: tensors[f"best/{n}"].to(p.device)
        for n, p in parameters.items()
        if f"best/{n}" in tensors
    }
    log = json.loads(metadata["log"])
    return TrainState(int(metadata["step"]), int(metadata["steps"]), log, best)


def _check_shapes(
    path: Path, tensors: dict[str, Tensor], parameters: dict[str, nn.Parameter]
) -> None:
    stored = {
        k.split("/", 1)[1]: tuple(v.shape) for k, v in tensors.items() if k.startswith("weight/")
    }
    expected = {n: tuple(p.shape) for n, p in parameters.items()}
    if stored != expected:
        name = min(n for n in stored | expected if stored.get(n) != expected.get(n))
        raise ValueError(
            f"{path} belongs to another model "
            f"({name} is {stored.get(name)} there, {expected.get(name)} here); "
            "choose another folder"
        )


def _restore(
    optimizer: torch.optim.Optimizer,
    tensors: dict[str, Tensor],
    parameters: dict[str, nn.Parameter],
) -> None:
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    # a fused kernel reads its count of steps on the device, too
    fused = any(group.get("fused") for group in optimizer.param_groups)
    for n, p in parameters.items():
        keys = [k for k in tensors if k.startswith(f"state/{n}/")] if id(p) in own else []
        if keys:
            moments = {k.rsplit("/", 1)[1]: tensors[k] for k in keys}
            optimizer.state[p] = {
                name: value.to(p.device) if fused or value.ndim else value
                for name, value in moments.items()
            }
