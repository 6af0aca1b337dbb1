"""Features that policies read after each drafted token, and the predictors of acceptance."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from real.decode.verify import DRAFTING, POLICY, PhaseTimer
from real.draft import Drafter, Step
from real.files import replace_json, replacing
from real.model.checkpoint import WeightsError
from real.model.stored_weights import read_bytes, sha256, weight_files
from real.model.target import TargetOutput
from simspec.output.files import UNREADABLE, parse_json, reraised
from simspec.policy.policy import TOKEN_FEATURES
from simspec.trace import quantization as grid

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
    raised = *UNREADABLE, RuntimeError, SafetensorError
    with reraised(WeightsError, f"{both} are not a predictor", "train it again", raised):
        stored = parse_json((folder / f"{name}.json").read_text(encoding="utf-8"))
        weights = read_bytes(folder / f"{name}.safetensors")
        sizes = [stored[key] for key in ("target_width", "drafter_width", "rank", "depths")]
        trained_for = stored["target"], stored["drafter"]
        # checked before allocation: a .json can claim any size
        if 2 * parameter_count(*sizes) > len(weights):
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


FEATURES = {
    "confidence": lambda logprob: logprob.max(-1).values.exp(),
    "entropy": lambda logprob: torch.special.entr(logprob.exp()).sum(-1),
}
# A policy compares θ with a running mean: even steps (errors up to 0.002) suit it better than
# log-odds (0.01).
GRIDS = {
    "confidence": "confidence",
    "entropy": "entropy",
    "probability": "confidence",
    **dict.fromkeys(PREDICTOR_NAMES, "identity"),
}


def feature_grids(reads: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The (name, grid) pairs of the features that a policy reads; ValueError for an unknown
    feature."""
    unknown = [name for name in reads if name not in GRIDS]
    if unknown:
        raise ValueError(
            f"feature {unknown[0]!r} is unknown; drafters here expose {', '.join(GRIDS)}"
        )
    return tuple((name, GRIDS[name]) for name in reads)


def drafter_features(drafter: Drafter) -> tuple[str, ...]:
    """Names of the features that a drafter exposes; none without logits."""
    return () if not drafter.has_logits else (*FEATURES, *drafter.predictors)


def required_predictors(names: tuple[str, ...], drafter: Drafter) -> dict[str, AcceptancePredictor]:
    """The drafter's predictors that the features `names` need; ValueError where the drafter cannot
    expose one."""
    if names and not drafter.has_logits:
        raise ValueError(
            f"feature {names[0]!r}: drafter {drafter.name!r} has no logits and exposes none; "
            "use a policy that reads none"
        )
    required = [name for name in names if name in PREDICTOR_NAMES]
    for name in required:
        if name not in drafter.predictors:
            raise ValueError(
                f"feature {name!r} needs a predictor, drafter {drafter.name!r} has none here; "
                "train one (simspec train)"
            )
    return {name: drafter.predictors[name] for name in required}


def feature_values(
    names: tuple[str, ...],
    logits: Tensor | None,
    temperature: float,
    log_odds: Mapping[str, Tensor] = {},
    token: Tensor | None = None,
) -> Tensor:
    """Features of logits `[n, vocab]`, float64 `[n, F]` on their device.

    | argument | needed by |
    | --- | --- |
    | logits | all but predicted features |
    | log_odds, name -> `[n]` | features that a predictor gives |
    | token `[n]` | "probability", q of the drafted token: the only feature that depends on it \
(`TOKEN_FEATURES`) |
    """
    if any(name in FEATURES or name in TOKEN_FEATURES for name in names):
        assert logits is not None  # checked by required_predictors
        logprob = torch.log_softmax(logits.double() / temperature, -1)
    columns = []
    for name in names:
        if name in FEATURES:
            columns.append(FEATURES[name](logprob))
        elif name in TOKEN_FEATURES:
            assert token is not None
            columns.append(logprob.gather(-1, token.to(logprob.device)[:, None])[:, 0].exp())
        else:
            columns.append(log_odds[name].sigmoid().double())
    return torch.stack(columns, -1)


def encode_features(names: tuple[str, ...], values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Grid codes uint8 `[n, F]` of feature values float64 `[n, F]`, and each value's distance to
    its bin's edge."""
    columns = [grid.encode(values[:, i], grid.TABLES[GRIDS[name]]) for i, name in enumerate(names)]
    code, edge = (np.stack(column, -1) for column in zip(*columns))
    return code, edge


class FeatureReader:
    """Reads the features `names` of drafted steps: `begin` a sequence, `read` each step, `learn`
    after each pass.

    Between passes it stores the target's part of each prediction, of the last committed token.
    """

    def __init__(self, names: tuple[str, ...], temperature: float, drafter: Drafter):
        self.names, self.temperature = names, temperature
        predictors = required_predictors(names, drafter)
        self._folded = {name: predictor.folded() for name, predictor in predictors.items()}
        self._target_log_odds: dict[str, Tensor] = {}
        self._fetched: tuple[int, list[float]] | None = None

    def begin(self, prefill: TargetOutput) -> None:
        """Starts a sequence; without a row in `prefill` (a prompt of one token) the target's state
        is zero."""
        rows = prefill.hidden
        self._update(rows[-1] if len(rows) else rows.new_zeros(rows.shape[1]))

    def fetch(
        self, best: Tensor, logits: Tensor, hidden: Tensor | None, slot: int, clock: PhaseTimer
    ) -> int:
        """The token `best [1]` picked from logits `[vocab]`, copied to the host together with its
        features."""
        if not self.names or (self._folded and hidden is None):
            return int(best)
        clock.lap(DRAFTING)
        token, *values = torch.cat(
            (best.double(), self._values(logits, hidden, slot, best)[0])
        ).tolist()
        self._fetched = slot, values
        clock.lap(POLICY)
        return int(token)

    def read(self, step: Step, slot: int) -> tuple[np.ndarray, np.ndarray]:
        """Codes uint8 `[F]` of the step drafted at `slot`, and each value's distance to its bin's
        edge `[F]`."""
        fetched, self._fetched = self._fetched, None
        if fetched is None or fetched[0] != slot:
            assert step.logits is not None  # checked by required_predictors
            token = torch.tensor([step.token])
            fetched = slot, self._values(step.logits, step.hidden, slot, token)[0].tolist()
        code, edge = encode_features(self.names, np.array([fetched[1]]))
        return code[0], edge[0]

    def learn(self, output: TargetOutput, path: list[int]) -> None:
        """After a pass: the last row of the committed `path` produced the last committed token."""
        self._update(output.hidden[path[-1]])

    def _values(self, logits: Tensor, hidden: Tensor | None, slot: int, token: Tensor) -> Tensor:
        log_odds = {}
        for name, folded in self._folded.items():
            assert hidden is not None  # a drafter with predictors has hidden states
            of_target = self._target_log_odds[name]
            of_depth = of_target[min(slot, len(of_target) - 1)]
            log_odds[name] = (of_depth + folded.of_drafter(hidden))[None]
        return feature_values(self.names, logits[None], self.temperature, log_odds, token)

    @torch.inference_mode()
    def _update(self, state: Tensor) -> None:
        self._target_log_odds = {
            name: folded.of_target(state) for name, folded in self._folded.items()
        }
