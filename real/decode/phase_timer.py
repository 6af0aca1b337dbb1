"""Time by phase of a round."""

from time import perf_counter

import torch

DRAFTING, VERIFICATION, POLICY, OTHER = range(4)


class PhaseTimer:
    """Time by phase, of a device that may still be busy: synchronised on CUDA where `exact`, else
    as issued."""

    def __init__(self, device, exact: bool = True):
        self.wait = torch.cuda.synchronize if exact and device.type == "cuda" else lambda: None
        self.rows: list[list[float]] = []
        self.then = perf_counter()

    def begin(self) -> None:
        self.rows.append([0.0] * 4)
        self.then = perf_counter()

    def lap(self, phase: int) -> None:
        self.wait()
        now = perf_counter()
        self.rows[-1][phase] += now - self.then
        self.then = now
