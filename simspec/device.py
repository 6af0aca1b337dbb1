"""Published figures of devices."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """Figures of a device.

    | field     | unit   | meaning                                                            |
    | --------- | ------ | ------------------------------------------------------------------ |
    | name      |        | label in tables                                                    |
    | bandwidth | B/s    | of its memory                                                      |
    | rate      | FLOP/s | of dense matrix products; a multiplication and an addition are two |
    | memory    | B      | capacity                                                           |
    | tile      | rows   | granularity of matrix products                                     |
    | launch    | s      | per layer, whatever it computes                                    |
    | overhead  | s      | per pass, whatever it computes                                     |

    ValueError unless bandwidth, rate, memory and tile are positive, and launch and overhead finite
    and >= 0.
    """

    name: str
    bandwidth: float
    rate: float
    memory: float
    tile: int = 1
    launch: float = 0.0
    overhead: float = 0.0

    def __post_init__(self) -> None:
        for name in ("bandwidth", "rate", "memory", "tile"):
            value = getattr(self, name)
            if not 0 < value < math.inf or name == "tile" and not isinstance(value, int):
                raise ValueError(
                    f"device {self.name!r}: {name} is {value!r}, "
                    "expected a positive number, tile an integer"
                )
        for name in ("launch", "overhead"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(
                    f"device {self.name!r}: {name} is {value!r}, expected finite seconds >= 0"
                )


# NVIDIA's data sheets: memory, its bandwidth, dense bfloat16 tensor FLOP/s (half of the figure
# printed 'with sparsity' for Hopper). tile: 64 rows, the smaller side of most tiles of cuBLAS
# (cublasLtMatmulTile_t). No data sheet states launch times: 0.
DEVICES: dict[str, Device] = {
    "h100": Device("H100 SXM", 3.35e12, 989.5e12, 80e9, 64),
    "h200": Device("H200 SXM", 4.8e12, 989.5e12, 141e9, 64),
    "a100": Device("A100 80GB SXM", 2.039e12, 312e12, 80e9, 64),
    "l40s": Device("L40S", 0.864e12, 362.05e12, 48e9, 64),
}
