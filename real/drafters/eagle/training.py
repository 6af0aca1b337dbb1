"""How EAGLE's head is trained (EAGLE §4.2, arXiv 2401.15077)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from real.draft import PaperRecipe, TrainingBatch, TrainingRecipe
from real.draft.losses import hard_loss, learned_rows, soft_loss
from real.drafters.eagle.drafter import EagleDrafter
from real.drafters.eagle.head import EagleHead
from real.model.decoder import Decoder


def eagle_loss(
    head: EagleHead,
    target: Decoder,
    batch: TrainingBatch | Tensor,
    soft: bool = True,
    generator: torch.Generator | None = None,
    weight: float = 0.1,
    noise: float = 0.1,
) -> Tensor:
    """SmoothL1(f, f^) + weight CE(softmax(head f), softmax(head f^)), means over rows.

    Row i of 3 tokens or more reads f_i and estimates f_{i+1}; with `soft=False` the CE is towards
    the next token. Input features get uniform noise U(-noise, noise), in absolute terms as
    in the paper; the released code scales it by 512 / sequence length.
    """
    batch = TrainingBatch.of(batch)
    token, learned = batch.token, batch.learning(2)
    if token.shape[1] < 3:
        raise ValueError(
            f"sequences have {token.shape[1]} tokens; "
            "expected at least 3 (two that are read, and the next)"
        )
    with torch.no_grad():
        (feature,) = batch.features(target, "feature")
        inputs, true = feature[:, :-1], feature[:, 1:]
        generator = _on_device(generator, inputs.device)
        draw = torch.rand(inputs.shape, generator=generator, device=inputs.device)
        inputs = inputs + ((2 * draw - 1) * noise).to(inputs)
    estimate = head.teacher_forced(target, inputs, token[:, :-1])
    estimate, true = learned_rows(estimate, learned), learned_rows(true, learned)
    output = head.output(target)
    if soft:
        loss = weight * soft_loss(output, estimate, target, true)
    else:
        loss = weight * hard_loss(output, estimate, learned_rows(token[:, 2:], learned))
    if not len(estimate):
        return loss
    return F.smooth_l1_loss(estimate.float(), true.float()) + loss


def _on_device(generator: torch.Generator | None, device) -> torch.Generator | None:
    """The generator, or one of its seed on the device: drawing on the host would outlast a step."""
    if generator is None or generator.device.type == device.type:
        return generator
    return torch.Generator(device).manual_seed(generator.initial_seed())


RECIPE = TrainingRecipe(
    EagleHead,
    eagle_loss,
    EagleDrafter,
    "eagle",
    soft=True,
    rate=8e-3,
    reads=lambda head, soft: ("feature",),
    defaults={"weight": 1},  # EAGLE's own 0.1 learns more slowly within minutes
    paper=PaperRecipe(
        "EAGLE §4.2 and §5, arXiv 2401.15077",
        soft=True,
        settings={"weight": 0.1, "noise": 0.1},
        rate=3e-5,
        betas=(0.9, 0.95),
        clip=0.5,
        silent=("decay", "warmup", "batch"),
    ),
)
