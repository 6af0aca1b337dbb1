"""The learned predictor θ_M: how likely a drafted token is the target's, before the target has looked (EESD Eq. 5)."""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from real.files import replace_json, replacing
from real.model.checkpoint import WeightsError, sha256
from real.model.compressed import content, weights_in

NAMES = ("theta", "theta_low_rank")
"""Features that are read through a predictor, which lies in the drafter's folder under the feature's name."""
FORMS = ("paper", "low_rank")


def numbers(target_width: int, drafter_width: int, rank: int | None, depths: int) -> int:
    """How many parameters a predictor of these sizes has; ValueError for sizes that are none."""
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


class Folded(NamedTuple):
    """θ(t, i) = sigmoid(of_target(H_t^(T))[i] + of_drafter(H_{t+i}^(D))), i counted from 0 and capped at depths - 1."""

    target: Tensor
    drafter: Tensor
    bias: Tensor

    def of_target(self, state: Tensor) -> Tensor:
        """The target's part of the log-odds at every depth, float64 `[..., depths]`, of states `[..., d_T]`."""
        return state.double() @ self.target.T

    def of_drafter(self, state: Tensor) -> Tensor:
        """The drafter's part with b, float64 `[...]`, of states `[..., d_D]`."""
        return state.double() @ self.drafter + self.bias[0]


class Predictor(nn.Module):
    """θ_M(t, i) = Sigmoid(W_p [W^i H_t^(T) ; H_{t+i}^(D)] + b), i capped at `depths` (EESD Eq. 5; 10 there).

    H_t^(T) is the target's last hidden state that produced the last committed token, H_{t+i}^(D) the drafter's that
    produced the i-th draft token, both before norm and head. W^i is d_T x d_T (`rank=None`, the paper's form) or
    A_i B with A_i d_T x rank and one B, rank x d_T, for all depths. The paper's two rows of W_p under a softmax are
    one row under a sigmoid: their difference; the scalar b is ours.

    Eq. 5 is linear before the sigmoid, so of each W^i only the vector W_p's left half times W^i is ever seen: `folded`
    keeps these, and reading costs two dot products whatever the form. Both forms hold the same functions, but that
    the `depths` vectors of the low-rank one span `rank` dimensions. Kept and read in float64, stored in bfloat16.
    """

    def __init__(
        self, target_width: int, drafter_width: int, rank: int | None = None, depths: int = 10
    ):
        super().__init__()
        numbers(target_width, drafter_width, rank, depths)
        self.target_width, self.drafter_width, self.rank, self.depths = (
            target_width,
            drafter_width,
            rank,
            depths,
        )
        wide = {"dtype": torch.float64}
        if rank is None:
            self.turn = nn.Parameter(torch.eye(target_width, **wide).repeat(depths, 1, 1))
        else:
            start = torch.Generator().manual_seed(0)  # what starts is random, what comes out is not
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
        return FORMS[self.rank is not None]

    @property
    def sha256(self) -> str:
        """Of the weights as stored: of the .safetensors file, if there is one."""
        return hashlib.sha256(self._bytes()).hexdigest()

    def folded(self) -> "Folded":
        """What Eq. 5 comes down to: one vector a depth for the target's state, one for the drafter's, and b."""
        here, there = self.judge.split((self.target_width, self.drafter_width))
        if self.rank is None:
            return Folded(torch.einsum("d,nde->ne", here, self.turn), there, self.bias)
        return Folded(torch.einsum("d,ndr->nr", here, self.left) @ self.right, there, self.bias)

    def _bytes(self) -> bytes:
        return save(
            {k: v.detach().bfloat16().contiguous().cpu() for k, v in self.state_dict().items()}
        )


def drafter_identity(folder: str | Path) -> str:
    """Hex SHA-256 of a drafter's own weights: of its folder's one file, or the hash of several files' hashes; predictors apart."""
    files = [path for path in weights_in(folder) if path.stem not in NAMES]
    if len(files) == 1:
        return sha256(files[0])
    return hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest()


def save_predictor(
    predictor: Predictor, folder: Path, name: str, target: str, training: dict | None = None
) -> None:
    """Writes <name>.safetensors and <name>.json (form, widths, whose it is, how it was trained) beside its drafter."""
    with replacing(folder / f"{name}.safetensors") as path:
        path.write_bytes(predictor._bytes())
    sizes = {
        key: getattr(predictor, key)
        for key in ("form", "target_width", "drafter_width", "rank", "depths", "sha256")
    }
    whose = {"target": target, "drafter": drafter_identity(folder)}
    replace_json(folder / f"{name}.json", sizes | whose | {"training": training or {}})


def load_predictor(folder: str | Path, name: str, target: str, device="cpu") -> Predictor:
    """The predictor `name` of the drafter in `folder` on the target of that identity; WeightsError, one line, if it is not."""
    folder = Path(folder)
    both = f"{folder / name}.json and .safetensors"
    try:
        said = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        held = content(folder / f"{name}.safetensors")
        sizes = [said[key] for key in ("target_width", "drafter_width", "rank", "depths")]
        made_for = said["target"], said["drafter"]
        if 2 * numbers(*sizes) > len(held):  # asked before memory is: a .json can claim anything
            raise ValueError(f"{len(held)} bytes of weights are too few for the sizes {sizes}")
        predictor = Predictor(*sizes)
        if said["form"] != predictor.form:
            raise ValueError(f"form is {said['form']!r} at rank {predictor.rank}")
        if hashlib.sha256(held).hexdigest() != said["sha256"]:
            raise ValueError("the weights are not those that the .json names")
        state = load(held)
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
        reason = str(error).splitlines()[-1].strip()
        raise WeightsError(f"{both} are not a predictor: {reason}; train it again") from error
    for what, wanted, here in zip(
        ("target", "drafter"), made_for, (target, drafter_identity(folder))
    ):
        if wanted != here:
            raise WeightsError(
                f"{both} were trained for the {what} {str(wanted)[:12]}, this one is {here[:12]}; train them again"
            )
    return predictor.requires_grad_(False).to(device)


def load_predictors(folder: str | Path, target: str, device="cpu") -> dict[str, Predictor]:
    """All predictors that lie in a drafter's folder, by feature name; {} for one from a hub."""
    return {
        name: load_predictor(folder, name, target, device)
        for name in NAMES
        if (Path(folder) / f"{name}.json").exists()
    }
