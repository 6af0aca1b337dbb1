"""Whether a device multiplies in bfloat16 by instructions of its own."""

import torch


def multiplies_bfloat16(device: str | torch.device) -> bool:
    """False where bfloat16 is emulated: a CPU without AVX-512 takes some 30 times as long."""
    on_cpu = torch.device(device).type == "cpu"
    return not on_cpu or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
