"""Training: one resumable loop for the target and for every drafter; what is learnt is an argument."""

import json
import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from real.files import replace_json, replacing
from real.progress import Progress, quiet


@dataclass(frozen=True)
class Plan:
    """How long and how fast to learn.

    | field | meaning |
    | --- | --- |
    | steps | optimiser steps; 0 with `minutes` set: as many as fit, fixed after a short timing and kept on resuming |
    | minutes | wall clock aimed at where `steps` is 0 |
    | rows, length | windows in a step, and tokens in a window |
    | rate | peak learning rate; rises over `warmup` of the steps, then falls linearly to zero |
    | decay | decoupled weight decay of the matrices |
    | seed | addresses the windows of every step |
    | save_every | steps between checkpoints |
    | every | steps between validations; 0 is a tenth of the steps |
    | patience | validations in a row without a better score after which it stops; 0 is never |
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


class Paused(Exception):
    """Raised by a progress callback to stop here: what was learnt is saved first, and a second call goes on."""


OUTER = re.compile(r"(^|\.)(\w*embed\w*|\w*head)\.")
"""Names of matrices over the vocabulary: embed, embed_tokens, head, lm_head, own_head; not the blocks of `heads`."""


def optimisers(parameters: dict[str, nn.Parameter], plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside layers and blocks, AdamW for embeddings, vocabulary heads, norms and biases."""
    inner = [p for n, p in parameters.items() if p.ndim == 2 and not OUTER.search(n)]
    chosen = {id(p) for p in inner}
    outer = [p for p in parameters.values() if id(p) not in chosen]
    made = []
    if inner:
        made.append(
            torch.optim.Muon(
                inner, lr=plan.rate, weight_decay=plan.decay, adjust_lr_fn="match_rms_adamw"
            )
        )
    if outer:
        fused = all(
            p.is_cuda for p in outer
        )  # one kernel for all; on a CPU the plain loop stays, bit for bit
        made.append(
            torch.optim.AdamW(outer, lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)
        )
    return made


def compiled(
    layers: Iterable[nn.Module], trial: Callable[[], Tensor], backend: str = "inductor"
) -> str:
    """Compiles each of `layers` in place and tries `trial().backward()`; returns "" or, the layers being plain again, what was in the way.

    Layers of one kind share one compiled graph: seconds, where a whole model takes minutes.
    """
    layers = list(layers)
    for layer in layers:
        layer.compile(backend=backend)
    try:
        trial().backward()
        return ""
    except Exception as error:  # compilers raise what they like, and training goes on without them
        for layer in layers:
            layer._compiled_call_impl = None
        return f"not compiled: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    finally:
        for layer in layers:
            layer.zero_grad(set_to_none=True)


def factor(step: int, steps: int, warmup: float) -> float:
    """Share of the peak learning rate at `step`: a linear rise, then a linear fall to zero."""
    rise = max(1, round(warmup * steps))
    return min((step + 1) / rise, (steps - step) / max(1, steps - rise))


@dataclass
class Best:
    """The validation that counts: its score and step, how many followed without a better one, and the weights then."""

    score: float = -math.inf
    step: int = 0
    since: int = 0
    stopped: bool = False
    weights: dict[str, Tensor] = field(default_factory=dict)

    def hear(self, score: float, step: int, patience: int, learnt: dict[str, nn.Parameter]) -> None:
        """Takes the score of the weights `learnt` after `step` steps."""
        if score > self.score:
            self.score, self.step, self.since = score, step, 0
            self.weights = {n: p.detach().clone() for n, p in learnt.items()}
        else:
            self.since += 1
        self.stopped = bool(patience) and self.since >= patience


def fit(
    folder: Path,
    model: nn.Module,
    loss: Callable[[int], Tensor],
    plan: Plan,
    progress: Progress = quiet,
    validate: Callable[[], dict] | None = None,
) -> list[dict]:
    """Minimises `loss(step)` over the parameters of `model` that require gradients; returns the log.

    `validate()` gives figures, "score" among them, every `plan.every` steps and at the end; they go into the log as "valid", and the
    weights of the highest score (of equals the first) are those the model ends with. Without it the last weights stay.

    State is saved under `folder` every `plan.save_every` steps and at the end, each file atomically; a second call
    continues where the last save was and, windows being addressed by step, takes the same path as an unbroken run. A `progress` that
    raises Paused stops it after a save, once the number of steps is fixed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    learnt = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimiser = optimisers(learnt, plan)
    step, steps, log, best = _resume(folder, learnt, optimiser)
    if steps and plan.steps not in (0, steps):
        raise ValueError(
            f"{folder} was planned for {steps} steps, now {plan.steps} are asked; choose another folder"
        )
    steps = steps or plan.steps
    first, began, paused = step, 0.0, None
    while not best.stopped and (not steps or step < steps):
        if not steps and step == first + 20:  # the first steps warm up
            began = time.perf_counter()
        if not steps and step == first + 40:
            steps = step + max(1, int(plan.minutes * 60 / ((time.perf_counter() - began) / 20)))
        share = factor(step, steps or 1000, plan.warmup)
        for o in optimiser:
            for group in o.param_groups:
                group["lr"] = plan.rate * share
        value = loss(step)
        value.backward()
        nn.utils.clip_grad_norm_(learnt.values(), 1.0)
        for o in optimiser:
            o.step()
            o.zero_grad(set_to_none=True)
        step += 1
        judged = (
            validate is not None
            and steps
            and (step == steps or step % (plan.every or -(-steps // 10)) == 0)
        )
        if step % 10 == 0 or step == steps or judged:
            log.append({"step": step, "loss": round(value.item(), 4)})
            try:
                progress("training", step, steps or step + 1, f"loss {value.item():.3f}")
            except Paused as stop:
                paused = stop
        if judged:
            log[-1] |= {"valid": validate()}
            best.hear(log[-1]["valid"]["score"], step, plan.patience, learnt)
        ended = step == steps or best.stopped
        stops = paused is not None and bool(steps) and not ended
        if step % plan.save_every == 0 or ended or stops:
            _save(folder, learnt, optimiser, step, steps, log, best)
        if stops:
            raise paused
    with torch.no_grad():
        for n, value in best.weights.items():
            learnt[n].copy_(value)
    return log


def _save(folder, learnt, optimiser, step, steps, log, best) -> None:
    held = {f"weight/{n}": p.detach() for n, p in learnt.items()} | {
        f"best/{n}": p for n, p in best.weights.items()
    }
    for o in optimiser:
        for n, p in learnt.items():
            held |= {f"state/{n}/{k}": torch.as_tensor(v) for k, v in o.state.get(p, {}).items()}
    held = {k: v.contiguous().cpu() for k, v in held.items()}
    said = [best.score, best.step, best.since, best.stopped] if best.weights else []
    with replacing(folder / "checkpoint.safetensors") as path:
        save_file(
            held,
            path,
            {
                "step": str(step),
                "steps": str(steps),
                "log": json.dumps(log),
                "best": json.dumps(said),
            },
        )


def _resume(folder, learnt, optimiser) -> tuple[int, int, list[dict], Best]:
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        return 0, 0, [], Best()
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        head = file.metadata()
    held = load_file(path)
    shapes = {
        k.split("/", 1)[1]: tuple(v.shape) for k, v in held.items() if k.startswith("weight/")
    }
    wanted = {n: tuple(p.shape) for n, p in learnt.items()}
    if shapes != wanted:
        odd = min(n for n in shapes | wanted if shapes.get(n) != wanted.get(n))
        there, here = shapes.get(odd), wanted.get(odd)
        raise ValueError(
            f"{path} belongs to another model ({odd} is {there} there, {here} here); choose another folder"
        )
    with torch.no_grad():
        for n, p in learnt.items():
            p.copy_(held[f"weight/{n}"])
    for o in optimiser:
        mine = {id(p) for group in o.param_groups for p in group["params"]}
        for n, p in learnt.items():
            keys = [k for k in held if k.startswith(f"state/{n}/")] if id(p) in mine else []
            if keys:
                fused = any(
                    group.get("fused") for group in o.param_groups
                )  # one kernel reads its count of steps, too
                state = {k.rsplit("/", 1)[1]: held[k] for k in keys}
                o.state[p] = {
                    name: value.to(p.device) if fused or value.ndim else value
                    for name, value in state.items()
                }
    best = Best(*json.loads(head.get("best", "[]")))
    best.weights = {
        n: held[f"best/{n}"].to(p.device) for n, p in learnt.items() if f"best/{n}" in held
    }
    return int(head["step"]), int(head["steps"]), json.loads(head["log"]), best


def curve(log: Iterable[dict], path: Path, title: str) -> None:
    """Draws the loss of a log over its steps to a picture."""
    from matplotlib.figure import Figure

    log = list(log)
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([r["step"] for r in log], [r["loss"] for r in log], lw=0.8)
    axes.set(xlabel="step", ylabel="loss, nats per token", title=title)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    replace_json(path.with_suffix(".json"), log)
