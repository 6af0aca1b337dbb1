"""The acceptance predictor θ_M: the probability that a drafted token is accepted, before
verification (EESD Eq. 5)."""

import hashlib
from typing import Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor, nn

PREDICTOR_NAMES = ("theta", "theta_low_rank")
"""Features that a predictor gives; its files in the drafter's folder have the feature's name."""
FORMS = ("paper", "low_rank")


def parameter_count(target_width: int, drafter_width: int, rank: int | None, depths: int) -> int:
    """The number of parameters of a predictor of these sizes; ValueError for an invalid size."""
    for name, value in (
        ("target_width", target_width),
        ("drafter_width", drafter_width),
        ("rank", rank),
        ("depths", depths),
    ):
        if not (type(value) is int and 1 <= value <= 1 << 16 or name == "rank" and value is None):
            raise ValueError(f"predictor: {name} is {value!r}, expected an integer from 1 to 65536")
    turns = depths * target_width**2 if rank is None else (depths + 1) * target_width * rank
    return turns + target_width + drafter_width + 1


class FoldedPredictor(NamedTuple):
    """θ(t, i) = sigmoid(of_target(H_t^(T))[i] + of_drafter(H_{t+i}^(D))), i counted from 0 and
    capped at depths - 1."""

    target: Tensor
    drafter: Tensor
    bias: Tensor

    def of_target(self, state: Tensor) -> Tensor:
        """The target's part of the log-odds at every depth, float64 `[..., depths]`, of states
        `[..., d_T]`."""
        return state.double() @ self.target.T

    def of_drafter(self, state: Tensor) -> Tensor:
        """The drafter's part with b, float64 `[...]`, of states `[..., d_D]`."""
        return state.double() @ self.drafter + self.bias[0]


class AcceptancePredictor(nn.Module):
    """θ_M(t, i) = Sigmoid(W_p [W^i H_t^(T) ; H_{t+i}^(D)] + b), i capped at `depths` (EESD Eq. 5;
    10 there).

    | symbol | meaning |
    | --- | --- |
    | H_t^(T) `[d_T]` | the target's last hidden state that produced the last committed token, \
before norm and head |
    | H_{t+i}^(D) `[d_D]` | the drafter's, that produced the i-th drafted token |
    | W^i | d_T x d_T (`rank=None`, the paper's form), or A_i B with A_i d_T x rank and a shared B |
    | W_p, b | one row and a scalar; the paper's two rows under a softmax are equivalent to their \
difference |

    Eq. 5 is linear before the sigmoid: `folded` reduces it to two dot products. Computed in
    float64, stored in bfloat16.
    """

    def __init__(
        self, target_width: int, drafter_width: int, rank: int | None = None, depths: int = 10
    ):
        super().__init__()
        parameter_count(target_width, drafter_width, rank, depths)
        self.target_width, self.drafter_width = target_width, drafter_width
        self.rank, self.depths = rank, depths
        wide: dict[str, Any] = {"dtype": torch.float64}
        if rank is None:
            self.turn = nn.Parameter(torch.eye(target_width, **wide).repeat(depths, 1, 1))
        else:
            start = torch.Generator().manual_seed(0)  # a random start, a deterministic result
            self.left = nn.Parameter(
                torch.randn(depths, target_width, rank, generator=start, **wide) / rank**0.5
            )
            self.right = nn.Parameter(
                torch.randn(rank, target_width, generator=start, **wide) / target_width**0.5
            )
        self.judge = nn.Parameter(torch.zeros(target_width + drafter_width, **wide))
        self.bias = nn.Parameter(torch.zeros(1, **wide))

    @property
    def form(self) -> str:
        """One of `FORMS`."""
        return FORMS[self.rank is not None]

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of the weights as stored in the .safetensors file."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def folded(self) -> FoldedPredictor:
        """The predictor reduced to one vector a depth for the target's state, one for the
        drafter's, and b."""
        of_target, of_drafter = self.judge.split((self.target_width, self.drafter_width))
        if self.rank is None:
            return FoldedPredictor(
                torch.einsum("d,nde->ne", of_target, self.turn), of_drafter, self.bias
            )
        low_rank = torch.einsum("d,ndr->nr", of_target, self.left) @ self.right
        return FoldedPredictor(low_rank, of_drafter, self.bias)

    def to_bytes(self) -> bytes:
        """The weights in bfloat16, as safetensors."""
        return save(
            {k: v.detach().bfloat16().contiguous().cpu() for k, v in self.state_dict().items()}
        )
