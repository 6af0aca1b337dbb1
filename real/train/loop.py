"""One resumable training loop for every drafter; the loss of a step is an argument."""

import json
import math
import re
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from real.files import replacing
from real.progress import Progress, quiet


@dataclass(frozen=True)
class TrainSchedule:
    """Steps, batch shape and learning rate of one training."""

    steps: int = 0  # optimizer steps; 0 with minutes: as many as fit, fixed after a short timing
    minutes: float = 0.0  # wall-clock time aimed at where steps is 0
    # rows, length: windows in a step, and tokens in a window
    rows: int = 16
    length: int = 256
    # peak learning rate; rises over warmup of the steps, then falls linearly to zero
    rate: float = 3e-3
    warmup: float = 0.02
    decay: float = 0.1  # decoupled weight decay: of Muon's matrices, or of all weights
    seed: int = 0  # addresses the windows of every step
    save_every: int = 100  # steps between checkpoints
    every: int = 0  # steps between validations; 0 is a tenth of the steps
    patience: int = 0  # validations without a better score before it stops; 0 is never
    # muon: Muon for inner matrices, AdamW for the rest; adamw: AdamW for all
    optimizer: str = "muon"
    betas: tuple[float, float] = (0.9, 0.95)  # of AdamW
    clip: float = 1.0  # largest norm of the gradient of all weights

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


VOCABULARY = re.compile(r"(^|\.)(\w*embed\w*|\w*head)\.")
"""Names of matrices over the vocabulary: embed, embed_tokens, head, lm_head; not `heads`."""


def optimizers(
    parameters: dict[str, nn.Parameter], schedule: TrainSchedule
) -> list[torch.optim.Optimizer]:
    """Muon for matrices inside layers and blocks; AdamW for embeddings, heads, norms and biases.

    With `schedule.optimizer` "adamw" that for all, and weight decay of all.
    """
    if schedule.optimizer == "adamw":
        return [_adamw(list(parameters.values()), schedule, schedule.decay)]
    inner = [p for n, p in parameters.items() if p.ndim == 2 and not VOCABULARY.search(n)]
    inner_ids = {id(p) for p in inner}
    outer = [p for p in parameters.values() if id(p) not in inner_ids]
    built: list[torch.optim.Optimizer] = []
    if inner:
        given: Any = {"lr": schedule.rate, "weight_decay": schedule.decay}
        built.append(torch.optim.Muon(inner, adjust_lr_fn="match_rms_adamw", **given))
    if outer:
        built.append(_adamw(outer, schedule, 0.0))
    return built


def _adamw(weights: list[nn.Parameter], schedule: TrainSchedule, decay: float) -> torch.optim.AdamW:
    # one kernel for all on a GPU; on a CPU the plain loop stays, bit for bit
    fused = all(p.is_cuda for p in weights)
    return torch.optim.AdamW(
        weights, lr=schedule.rate, betas=schedule.betas, weight_decay=decay, fused=fused
    )


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


WARM_UP, TIMED = 20, 20
"""First steps that are not timed, and steps at least whose times say how many fit."""
TIMED_SHARE, TIMED_SECONDS = 0.2, 30.0
"""Share of a training that they take, and seconds at most: a GPU's first steps are slow."""
SAVE_SECONDS = 120
"""Most seconds of work that a killed training loses, in addition to its current step."""


def fit(
    folder: Path,
    model: nn.Module,
    loss: Callable[[int], Tensor],
    schedule: TrainSchedule,
    progress: Progress = quiet,
    validate: Callable[[], dict] | None = None,
) -> list[dict]:
    """Minimizes `loss(step)` over the trainable parameters of `model`; returns the log.

    `validate()` returns figures, "score" among them, every `schedule.every` steps and at the end.
    They enter the log as "valid"; the weights of the highest score (ties: the first) are restored
    at the end. Without it the last weights stay.

    State is saved under `folder` every `schedule.save_every` steps, every two minutes where these
    are slow, and at the end. A second call continues from there on the same path, since windows
    are addressed by step.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer_list = optimizers(parameters, schedule)
    state = load_state(folder, parameters, optimizer_list)
    if state.steps and schedule.steps not in (0, state.steps):
        raise ValueError(
            f"{folder} was planned for {state.steps} steps, now {schedule.steps} are given; "
            "choose another folder"
        )
    state.steps = state.steps or schedule.steps
    best, first = state.best, state.step
    times: list[float] = []
    saved = time.perf_counter()
    while not best.stopped and (not state.steps or state.step < state.steps):
        if not state.steps and state.step >= first + WARM_UP:
            times.append(time.perf_counter())
            left = _steps_left(times, 60 * schedule.minutes)
            state.steps = state.step + left if left else 0
        share = learning_rate_factor(state.step, state.steps or 1000, schedule.warmup)
        rate = schedule.rate * share
        value = _optimize(optimizer_list, parameters, loss(state.step), rate, schedule.clip)
        state.step += 1
        last = state.step == state.steps
        every = schedule.every or -(-state.steps // 10)
        validates = validate is not None and state.steps and (last or state.step % every == 0)
        if state.step % 10 == 0 or last or validates:
            state.log.append({"step": state.step, "loss": round(value.item(), 4)})
            total = state.steps or state.step + 1
            progress("training", state.step, total, f"loss {value.item():.3f}")
        if validate is not None and validates:
            state.log[-1] |= {"valid": validate()}
            best.update(state.log[-1]["valid"]["score"], state.step, schedule.patience, parameters)
        ended = last or best.stopped
        due = bool(state.steps) and time.perf_counter() - saved >= SAVE_SECONDS
        if state.step % schedule.save_every == 0 or due or ended:
            save_state(folder, parameters, optimizer_list, state)
            saved = time.perf_counter()
    with torch.no_grad():
        for n, weights in best.weights.items():
            parameters[n].copy_(weights)
    return state.log


def _steps_left(times: list[float], seconds: float) -> int:
    """How many steps fit into the rest of `seconds`, by the later half of the `times` of steps.

    0: more are to be timed. The time of `TIMED` steps is not counted.
    """
    steps, passed = len(times) - 1, times[-1] - times[0]
    if steps < TIMED or passed < min(TIMED_SHARE * seconds, TIMED_SECONDS):
        return 0
    half = min(bisect_left(times, times[0] + passed / 2), steps - 1)
    step = max((times[-1] - times[half]) / (steps - half), 1e-9)
    return max(1, int((seconds - (times[-1] - times[TIMED])) / step))


def _optimize(
    optimizer_list: list[torch.optim.Optimizer],
    parameters: dict[str, nn.Parameter],
    loss: Tensor,
    rate: float,
    clip: float,
) -> Tensor:
    """One optimizer step down the gradient of `loss`, cut to norm `clip`; returns `loss`."""
    for optimizer in optimizer_list:
        for group in optimizer.param_groups:
            group["lr"] = rate
    loss.backward()
    nn.utils.clip_grad_norm_(parameters.values(), clip)
    for optimizer in optimizer_list:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss
