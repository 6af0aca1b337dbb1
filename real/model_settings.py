"""Groups of options: which models a command loads and how they run, how tokens are sampled."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from real.files import TINY, check_embedded_models
from simspec import CostModel, Trace, load_trace
from simspec.settings import Settings, option
from simspec.trace.recordings import costs_of, locate
from simspec.tree.tree import MAX_NODES

if TYPE_CHECKING:  # commands declare these options without importing torch
    from real.pair import Pair
    from real.sampling import Rule


@dataclass(frozen=True)
class ModelSettings(Settings):
    """Which models a command loads, and how they run: a group of options, without torch."""

    models: Annotated[
        Path | None,
        option("Folder with target/ and the drafters' folders; default: the embedded models."),
    ] = None
    device: Annotated[str, option("cpu, cuda or cuda:1.")] = "cpu"
    dtype: Annotated[str, option("float32, float64 or bfloat16.")] = "float32"
    engine: Annotated[
        str,
        option(
            "eager; fast: padded passes, captured once (for a GPU); "
            "strict: one width, so that bfloat16 output is equal under every policy."
        ),
    ] = "eager"
    target: Annotated[
        str | None, option("A transformers checkpoint in place of <models>/target.")
    ] = None
    weights: Annotated[
        Path | None, option("The drafter's folder, in place of <models>/<drafter>.")
    ] = None
    threads: Annotated[
        int,
        option("Threads of torch, part of what was measured; 0: torch's own choice.", ge=0, le=256),
    ] = 0

    @property
    def folder(self) -> Path:
        """The model folder."""
        if not (self.models or self.target):
            check_embedded_models()
        return self.models or TINY

    @property
    def target_path(self) -> str | Path:
        """The target's checkpoint."""
        return self.target or self.folder / "target"

    def use_threads(self) -> None:
        """Sets torch's threads, unless 0; a command does so before it loads anything."""
        if self.threads:
            import torch

            torch.set_num_threads(self.threads)

    def context(self, drafter: str) -> int:
        """Most tokens of a sequence of the target; of a smaller model that drafts too."""
        from real.model.checkpoint import load_config, max_context

        paths = [self.target_path]
        if drafter == "model":
            paths.append(self.weights or self.folder / drafter)
        return min(max_context(load_config(path)) for path in paths)

    def load(self, drafter: str, rows: int = 1, capacity: int = 0) -> "Pair":
        """The target with this drafter, for passes of `rows` rows after `capacity` cached rows."""
        return self.load_all([drafter], rows, capacity)[0]

    def load_all(self, drafters: Sequence[str], rows: int = 1, capacity: int = 0) -> list["Pair"]:
        """`load` of several drafters on one copy of the target; `weights` are of one drafter."""
        from real.decode.engine import make_passes
        from real.pair import load_pairs

        if self.weights is not None and len(drafters) > 1:
            raise ValueError(
                f"--weights {self.weights} names one drafter's folder, "
                f"{len(drafters)} drafters are given: use --models"
            )
        folders = {name: self.weights or self.folder / name for name in drafters}
        return load_pairs(
            self.folder,
            folders,
            self.device,
            self.dtype,
            self.target,
            lambda: make_passes(self.engine, rows, capacity),
        )

    def load_for(
        self, trace: Trace, name: str, submitted: int = 0, capacity: int = 0, drafter: str = ""
    ) -> "Pair":
        """The pair of the recording called `name`, for drafts of `submitted` tokens.

        Its caches hold the recording's sequences, and others of `capacity` rows. `drafter` replaces
        the recording's.
        """
        from real.pair import check_drafter, check_pair

        rows = max(trace.K, submitted) + 1
        longest = int((np.diff(trace.prompt_offset) + trace.budget).max())
        pair = self.load(drafter or trace.meta.drafter, rows, max(longest, capacity))
        check_pair(trace, pair, name)
        check_drafter(trace, pair, name)
        return pair


@dataclass(frozen=True)
class RuleSettings(Settings):
    """How target and drafter sample tokens; see `real.sampling.Rule`."""

    rule: Annotated[
        Literal["greedy", "coupled", "rejection", "block"],
        option(
            "greedy; coupled (noise keyed by position: replays exactly); rejection (accept draws: "
            "replays in distribution); block (the same, drafted tokens verified together)."
        ),
    ] = "greedy"
    temperature: Annotated[
        float,
        option("Divides the logits, where the rule is not greedy; 1 is the model's own.", ge=0),
    ] = 0.8
    top_k: Annotated[int, option("Number of best tokens that can be picked; 0: all.", ge=0)] = 0
    top_p: Annotated[
        float, option("Only the fewest best tokens that hold this share can be picked.")
    ] = 1.0
    seed: Annotated[int, option("Of all draws.", ge=0, le=2**63 - 1)] = 0

    def made(self) -> "Rule":
        """The rule; greedy ignores the temperature and the seed."""
        from real.sampling import Rule

        if self.rule == "greedy":
            return Rule(self.rule, top_k=self.top_k, top_p=self.top_p)
        return Rule(self.rule, self.temperature, self.seed, self.top_k, self.top_p)


def evenly_spaced(count: int, wanted: int) -> list[int]:
    """Up to `wanted` indices of `count` prompts, evenly spaced: recordings list tasks one after
    another."""
    wanted = min(wanted, count)
    return [i * count // wanted for i in range(wanted)]


def open_recording(name: str, prompts: int = 0) -> tuple[Path, Trace]:
    """(file, recording) of a file or bundled name; only some `prompts`, evenly spread, unless 0."""
    (path,) = locate([name]).values()
    if prompts < 0:
        raise ValueError(f"--prompts is {prompts}, expected a number of prompts, or 0 for all")
    trace = load_trace(path)
    return path, trace.select(evenly_spaced(trace.sequences, prompts)) if prompts else trace


def policy_cost_of(path: Path, cost: Path | None, K: int) -> CostModel:
    """Costs that policies observe: of `cost`, else next to the recording, else a ratio of 0.1 for
    trees of any size."""
    costs = costs_of({"": path}, None if cost is None else str(cost))[""]
    costs = 0.1 if costs is None else costs
    return costs if isinstance(costs, CostModel) else CostModel.from_ratio(costs, K, MAX_NODES)
