"""One resumable training loop for the target and for every drafter; the loss is an argument."""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from real.progress import Progress, quiet
from real.train.optimizers import optimizers
from real.train.resume import load_state, save_state
from real.train.schedule import TrainSchedule, learning_rate_factor

SAVE_SECONDS = 120
"""What a killed training loses at most, with the step that it is in."""


class Paused(Exception):
    """Raised by a progress callback to pause: state is saved first, and a second call continues."""


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
    are addressed by step. A `progress` that raises Paused stops it after a save, once the number
    of steps is fixed.
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
    best, first, began, paused = state.best, state.step, 0.0, None
    saved = time.perf_counter()
    while not best.stopped and (not state.steps or state.step < state.steps):
        if not state.steps and state.step == first + 20:  # the first steps warm up
            began = time.perf_counter()
        if not state.steps and state.step == first + 40:
            seconds = (time.perf_counter() - began) / 20
            state.steps = state.step + max(1, int(schedule.minutes * 60 / seconds))
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
            try:
                progress("training", state.step, total, f"loss {value.item():.3f}")
            except Paused as stop:
                paused = stop
        if validate is not None and validates:
            state.log[-1] |= {"valid": validate()}
            best.update(state.log[-1]["valid"]["score"], state.step, schedule.patience, parameters)
        ended = last or best.stopped
        pauses = paused is not None and bool(state.steps) and not ended
        due = bool(state.steps) and time.perf_counter() - saved >= SAVE_SECONDS
        if state.step % schedule.save_every == 0 or due or ended or pauses:
            save_state(folder, parameters, optimizer_list, state)
            saved = time.perf_counter()
        if paused is not None and pauses:
            raise paused
    with torch.no_grad():
        for n, weights in best.weights.items():
            parameters[n].copy_(weights)
    return state.log


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
