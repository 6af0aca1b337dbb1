"""The acceptance predictor θ_M: the probability that a drafted token is accepted, before
verification (EESD Eq. 5)."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from real.files import replace_json, replacing
from real.model.hf_config import WeightsError
from real.model.stored_weights import read_bytes, sha256, weight_files

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


def drafter_identity(folder: str | Path) -> str:
    """Hex SHA-256 of a drafter's weights without predictors: of its one file, or of its files'
    hashes."""
    files = [path for path in weight_files(folder) if path.stem not in PREDICTOR_NAMES]
    if len(files) == 1:
        return sha256(files[0])
    return hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest()


def save_predictor(
    predictor: AcceptancePredictor,
    folder: Path,
    name: str,
    target: str,
    training: dict | None = None,
) -> None:
    """Writes <name>.safetensors and <name>.json (form, sizes, target, drafter, training) to the
    drafter's folder."""
    with replacing(folder / f"{name}.safetensors") as path:
        path.write_bytes(predictor.to_bytes())
    sizes = {
        key: getattr(predictor, key)
        for key in ("form", "target_width", "drafter_width", "rank", "depths", "sha256")
    }
    models = {"target": target, "drafter": drafter_identity(folder)}
    replace_json(folder / f"{name}.json", sizes | models | {"training": training or {}})


def load_predictor(folder: str | Path, name: str, target: str, device="cpu") -> AcceptancePredictor:
    """The predictor `name` in the drafter's `folder`; WeightsError if damaged, or trained for other
    models."""
    folder = Path(folder)
    both = f"{folder / name}.json and .safetensors"
    try:
        stored = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        weights = read_bytes(folder / f"{name}.safetensors")
        sizes = [stored[key] for key in ("target_width", "drafter_width", "rank", "depths")]
        trained_for = stored["target"], stored["drafter"]
        if 2 * parameter_count(*sizes) > len(
            weights
        ):  # checked before allocation: a .json can claim any size
            raise ValueError(f"{len(weights)} bytes of weights are too few for the sizes {sizes}")
        predictor = AcceptancePredictor(*sizes)
        if stored["form"] != predictor.form:
            raise ValueError(f"form is {stored['form']!r} at rank {predictor.rank}")
        if hashlib.sha256(weights).hexdigest() != stored["sha256"]:
            raise ValueError("the weights differ from those that the .json names")
        state = load(weights)
        if not all(v.dtype == torch.bfloat16 and v.isfinite().all() for v in state.values()):
            raise ValueError("a weight is not a finite bfloat16 number")
        predictor.load_state_dict({k: v.double() for k, v in state.items()})
    except (
        OSError,
        KeyError,
        TypeError,
        ValueError,
        RuntimeError,
        RecursionError,
        SafetensorError,
    ) as error:
        reason = str(error).splitlines()[-1].strip()[:200]
        raise WeightsError(f"{both} are not a predictor: {reason}; train it again") from error
    models = target, drafter_identity(folder)
    for role, wanted, given in zip(("target", "drafter"), trained_for, models):
        if wanted != given:
            raise WeightsError(
                f"{both} were trained for the {role} {str(wanted)[:12]}, this one is {given[:12]}; "
                "train them again"
            )
    return predictor.requires_grad_(False).to(device)


def load_predictors(
    folder: str | Path, target: str, device="cpu"
) -> dict[str, AcceptancePredictor]:
    """All predictors in a drafter's folder, by feature name; empty for a drafter from a hub."""
    return {
        name: load_predictor(folder, name, target, device)
        for name in PREDICTOR_NAMES
        if (Path(folder) / f"{name}.json").exists()
    }
