"""How EAGLE's head is trained (EAGLE §4.2, arXiv 2401.15077)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from real.draft import TrainingRecipe
from real.draft.losses import target_features
from real.drafters.eagle.drafter import EagleDrafter
from real.drafters.eagle.head import EagleHead
from real.model.decoder import Decoder
from real.model.losses import distillation_loss, next_token_loss


def eagle_loss(
    head: EagleHead,
    target: Decoder,
    token: Tensor,
    soft: bool = True,
    generator: torch.Generator | None = None,
    weight: float = 0.1,
    noise: float = 0.1,
) -> Tensor:
    """SmoothL1(f, f^) + weight CE(softmax(head f), softmax(head f^)), means over rows.

    `token [b, n + 1]`, n >= 2. Row i reads f_i and estimates f_{i+1}; with `soft=False` the CE is
    towards the next token. Input features get uniform noise U(-noise, noise), in absolute terms as
    in the paper; the released code scales it by 512 / sequence length.
    """
    if token.shape[1] < 3:
        raise ValueError(
            f"sequences have {token.shape[1]} tokens; "
            "expected at least 3 (two that are read, and the next)"
        )
    with torch.no_grad():
        feature = target_features(target, token[:, :-1])
        inputs, true = feature[:, :-1], feature[:, 1:]
        generator = _on_device(generator, inputs.device)
        draw = torch.rand(inputs.shape, generator=generator, device=inputs.device)
        inputs = inputs + ((2 * draw - 1) * noise).to(inputs)
    estimate = head.teacher_forced(target, inputs, token[:, :-1])
    logits = target.head(estimate)
    if soft:
        loss = distillation_loss(logits, target.head(true).detach())
    else:
        loss = next_token_loss(logits, token[:, 2:])
    return F.smooth_l1_loss(estimate.float(), true.float()) + weight * loss


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
    defaults={"weight": 1},  # EAGLE's own 0.1 learns more slowly within minutes
)
