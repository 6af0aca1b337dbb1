"""Linear layers with weights in a second layout, in which a CPU verifies a few rows faster."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from real.model.bfloat16 import multiplies_bfloat16
from real.model.runner import EagerPasses

FEWEST_ROWS = 4
"""From so many rows oneDNN's layout is faster on one thread; below it is not."""
DTYPES = (torch.float32, torch.bfloat16)


class PrepackedPasses(EagerPasses):
    """Eager passes of a target with `PrepackedLinear` layers."""

    @property
    def name(self) -> str:
        return "prepacked"


class PrepackedLinear(nn.Linear):
    """The linear layer it is made from, with a second copy of its weight in oneDNN's layout.

    Passes of fewer than `FEWEST_ROWS` rows read the plain weight. Results differ by rounding.
    """

    packed: Tensor

    def __init__(self, linear: nn.Linear):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), FEWEST_ROWS)
        self.register_buffer("packed", packed, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if x[..., 0].numel() < FEWEST_ROWS:
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


@torch.no_grad()
def prepack(model: nn.Module) -> None:
    """Replaces the linear layers of a model on a CPU in float32 or bfloat16, for inference.

    ValueError for another device or number type, and for bfloat16 on a CPU that emulates it.
    """
    weight = next(model.parameters())
    if weight.device.type != "cpu" or weight.dtype not in DTYPES:
        raise ValueError(
            f"engine prepacked: the target is {str(weight.dtype)[6:]} on {weight.device}; expected "
            "float32 or bfloat16 on a CPU; use engine eager, or fast on a GPU"
        )
    if weight.dtype == torch.bfloat16 and not multiplies_bfloat16(weight.device):
        raise ValueError(
            "engine prepacked: this processor only emulates bfloat16; use float32, or engine eager"
        )
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, PrepackedLinear(child))
