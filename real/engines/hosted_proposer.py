"""vLLM's custom proposer over a draft model of ours in the same process, its length by a policy.

It needs this package in vLLM's environment. Each request has its own cache; requests are drafted
for one after another.
"""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from real.decode.features import FeatureReader, feature_grids
from real.drafters.model import ModelDrafter
from real.model.hf_config import WeightsError
from real.model.target import Target, TargetOutput
from simspec.engines.vllm_proposer import SETTINGS, PolicyProposer, Step

NONE = cast(Any, None)
"""The target and its passes: a draft model reads tokens alone."""


class ModelProposer(PolicyProposer):
    """Greedy drafts of a transformers checkpoint; they end with an end token of the request.

    The setting "model" names its folder. WeightsError for one that is no draft model of the
    target's vocabulary.
    """

    known = {**SETTINGS, "model": "folder of the draft model"}

    def __init__(self, vllm_config: Any):
        super().__init__(vllm_config)
        if not isinstance(self.given.get("model"), str):
            raise ValueError(
                f'additional_config["simspec"] has the model {self.given.get("model")!r}, '
                'expected a folder in "model"'
            )
        folder, dtype = Path(self.given["model"]), vllm_config.model_config.dtype
        self.lm = ModelDrafter.load_alone(folder, dtype, "cpu").lm
        vocab = vllm_config.model_config.get_vocab_size()
        if self.lm.config.vocab != vocab:
            raise WeightsError(
                f"{folder} has {self.lm.config.vocab} tokens, the target {vocab}: take a model "
                "with the same tokenizer"
            )
        self.held: dict[str, ModelDrafter] = {}

    def use(self, policy: str) -> None:
        super().use(policy)
        self.held = {}

    def features(self) -> tuple[tuple[str, str], ...]:
        return feature_grids(self.policy.reads)

    def steps(self, id: str, tokens: np.ndarray, ends: Collection[int]) -> Iterator[Step]:
        drafter = self.held[id]
        reader = FeatureReader(self.policy.reads, 1.0, drafter)
        for slot in range(self.K):
            step = drafter.next()
            yield step.token, reader.read(step, slot)[0] if reader.names else None
            if step.token in ends:
                return

    def learn(self, id: str, prompt: np.ndarray, accepted: int, tokens: Sequence[int]) -> None:
        if id not in self.held:
            drafter = self.held[id] = ModelDrafter(self.lm)
            drafter.begin(cast(Target, NONE), prompt.tolist(), cast(TargetOutput, NONE), _greedy)
        self.held[id].rollback(accepted)
        self.held[id].catch_up(list(tokens), NONE, NONE)

    def forget(self, id: str) -> None:
        self.held.pop(id, None)


def _greedy(logits: torch.Tensor, slot: int, hidden: torch.Tensor | None = None) -> int:
    return int(logits.double().argmax(-1))
