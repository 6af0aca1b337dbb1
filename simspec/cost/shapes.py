"""Sizes of decoders, and published figures of devices."""

import math
from dataclasses import dataclass, fields
from typing import TypeVar


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


T = TypeVar("T")


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder: RMSNorm, grouped-query attention without biases, SwiGLU (Llama).

    | field        | meaning                             |
    | ------------ | ----------------------------------- |
    | name         | label in tables                     |
    | layers       | decoder layers                      |
    | width        | hidden size, of the residual stream |
    | heads        | query heads                         |
    | kv_heads     | key and value heads                 |
    | head_dim     | size of a head                      |
    | hidden       | intermediate size of the SwiGLU, of one expert where there are several |
    | vocab        | tokens                              |
    | tied         | the head is the embedding           |
    | weight_bytes | bytes of a stored weight            |
    | cache_bytes  | bytes of a cached value             |
    | experts      | in each layer; 0: one dense SwiGLU  |
    | topk         | experts that a row passes           |

    ValueError unless all sizes are positive, and 0 <= topk <= experts with both or neither 0.
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    tied: bool = False
    weight_bytes: float = 2.0
    cache_bytes: float = 2.0
    experts: int = 0
    topk: int = 0

    def __post_init__(self) -> None:
        routed = type(self.experts) is int and type(self.topk) is int
        if not routed or not 0 <= self.topk <= self.experts or (self.topk > 0) != (self.experts > 0):
            raise ValueError(
                f"model {self.name!r}: {self.topk!r} of {self.experts!r} experts, expected 0 of 0, "
                "or at least one of them"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("name", "tied", "experts", "topk"):
                continue
            kinds = (int, float) if field.name in ("weight_bytes", "cache_bytes") else (int,)
            valid = isinstance(value, kinds) and not isinstance(value, bool)
            if not valid or not 0 < value < math.inf:
                expected = "number" if float in kinds else "integer"
                raise ValueError(
                    f"model {self.name!r}: {field.name} is {value!r}, expected a positive "
                    f"{expected}"
                )


SHAPES: dict[str, ModelShape] = {
    "llama-2-7b": ModelShape("llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000),
    "llama-2-13b": ModelShape("llama-2-13b", 40, 5120, 40, 40, 128, 13824, 32000),
    "llama-2-70b": ModelShape("llama-2-70b", 80, 8192, 64, 8, 128, 28672, 32000),
    "llama-3-8b": ModelShape("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256),
    "llama-3.1-8b": ModelShape("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256),
    "llama-3.1-70b": ModelShape("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256),
    "llama-3.2-1b": ModelShape("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, tied=True),
    "tinyllama-1.1b": ModelShape("tinyllama-1.1b", 22, 2048, 32, 4, 64, 5632, 32000),
    "llama-68m": ModelShape("llama-68m", 2, 768, 12, 12, 64, 3072, 32000),
    "qwen3-0.6b": ModelShape("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, tied=True),
    "qwen3-8b": ModelShape("qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936),
    "qwen3-30b-a3b": ModelShape(
        "qwen3-30b-a3b", 48, 2048, 32, 4, 128, 768, 151936, experts=128, topk=8
    ),
    "qwen3-235b-a22b": ModelShape(
        "qwen3-235b-a22b", 94, 4096, 64, 4, 128, 1536, 151936, experts=128, topk=8
    ),
    "mixtral-8x7b": ModelShape(
        "mixtral-8x7b", 32, 4096, 32, 8, 128, 14336, 32000, experts=8, topk=2
    ),
}
"""From config.json, as published with the weights; 16-bit weights and caches."""


def matrix_weights(shape: ModelShape, layers: int | None = None, head: bool = True) -> int:
    """Weights in the matrices that every row is multiplied by; all experts of a sparse model.

    2 d h e + 2 d g e + 3 d f a layer, and d V for the head: d = width, h, g = query and key heads,
    e = head_dim, f = hidden, V = vocab. X experts: 3 d f X + d X in place of 3 d f.
    """
    s = shape
    mlp = 3 * s.width * s.hidden * max(s.experts, 1) + s.width * s.experts
    layer = 2 * s.width * s.head_dim * (s.heads + s.kv_heads) + mlp
    return layer * (s.layers if layers is None else layers) + s.width * s.vocab * head


def parameters(shape: ModelShape) -> int:
    """All weights: matrices, two norms a layer and a final one, and the embedding unless it is
    the head.
    """
    return (
        matrix_weights(shape)
        + (2 * shape.layers + 1) * shape.width
        + shape.width * shape.vocab * (not shape.tied)
    )


def cache_bytes(shape: ModelShape, layers: int | None = None) -> float:
    """Bytes that a token's keys and values take: 2 g e b a layer, b = bytes of a number."""
    return (
        2
        * shape.kv_heads
        * shape.head_dim
        * shape.cache_bytes
        * (shape.layers if layers is None else layers)
    )


def memory(shape: ModelShape, batch: int, context: int) -> float:
    """Bytes of all weights and of the caches of `batch` sequences of `context` tokens."""
    return parameters(shape) * shape.weight_bytes + batch * context * cache_bytes(shape)


def look_up(table: dict[str, T], kind: str, name: str) -> T:
    """The entry of SHAPES or DEVICES; ValueError that lists the names."""
    if name not in table:
        raise ValueError(f"{kind} {name!r} is unknown, expected one of {', '.join(table)}")
    return table[name]
