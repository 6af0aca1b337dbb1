"""Whether a device multiplies in bfloat16 by instructions of its own."""

import torch


def multiplies_bfloat16(device: str | torch.device) -> bool:
    """False where bfloat16 is emulated: a CPU without AVX-512 takes some 30 times as long."""
    kind = torch.device(device).type
    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return kind != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
