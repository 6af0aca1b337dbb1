"""vLLM's custom proposer over a drafter of ours in the same process, its length by a policy.

It needs this package in vLLM's environment. Each request has its own cache; requests are drafted
for one after another.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from real.decode.features import FeatureReader, feature_grids
from real.draft import Drafter
from real.drafters.eagle import EagleDrafter
from real.drafters.model import ModelDrafter
from real.model.checkpoint import WeightsError, load_decoder, load_tokenizer
from real.model.stored_weights import made_for
from real.model.target import Target, TargetOutput
from simspec.engines.vllm_proposer import SETTINGS, PolicyProposer, Step

NONE = cast(Any, None)
"""The target and its passes: a draft model reads tokens alone."""


class HostedProposer(PolicyProposer):
    """Greedy drafts of a drafter with weights; they end with an end token of the request.

    `setting` names the folder; `held` has a drafter for each request whose prompt was read.
    """

    setting: ClassVar[str]

    def __init__(self, vllm_config: Any):
        super().__init__(vllm_config)
        folder = self.given.get(self.setting)
        if not isinstance(folder, str):
            raise ValueError(
                f'additional_config["simspec"] has the {self.setting} {folder!r}, expected a '
                f'folder in "{self.setting}"'
            )
        self.folder = Path(folder)

    def use(self, policy: str) -> None:
        super().use(policy)
        self.held: dict[str, Drafter] = {}

    def features(self) -> tuple[tuple[str, str], ...]:
        return feature_grids(self.policy.reads)

    def steps(self, id: str, tokens: np.ndarray, ends: Collection[int]) -> Iterator[Step]:
        drafter = self.held.get(id)
        if drafter is None:
            return
        reader = FeatureReader(self.policy.reads, 1.0, drafter)
        for slot in range(self.K):
            step = drafter.next()
            if step is None:
                return
            yield step.token, reader.read(step, slot)[0] if reader.names else None
            if step.token in ends:
                return

    def forget(self, id: str) -> None:
        self.held.pop(id, None)


class ModelProposer(HostedProposer):
    """Drafts of a transformers checkpoint, whose folder is the setting "model".

    WeightsError for one that is no draft model of the target's vocabulary.
    """

    setting = "model"
    known = {**SETTINGS, "model": "folder of the draft model"}

    def __init__(self, vllm_config: Any):
        super().__init__(vllm_config)
        self.lm = ModelDrafter.load_alone(self.folder, vllm_config.model_config.dtype, "cpu").lm
        vocab = vllm_config.model_config.get_vocab_size()
        if self.lm.config.vocab != vocab:
            raise WeightsError(
                f"{self.folder} has {self.lm.config.vocab} tokens, the target {vocab}: take a "
                "model with the same tokenizer"
            )

    def learn(self, id: str, prompt: np.ndarray, accepted: int, tokens: Sequence[int]) -> None:
        if id not in self.held:
            drafter = self.held[id] = ModelDrafter(self.lm)
            drafter.begin(cast(Target, NONE), prompt.tolist(), cast(TargetOutput, NONE), _greedy)
        self.held[id].rollback(accepted)
        self.held[id].catch_up(list(tokens), NONE, NONE)


class EagleProposer(HostedProposer):
    """Drafts of an EAGLE head, whose folder is the setting "eagle", by the target's features.

    vLLM's passes give the features: `rows` holds, for a request, (position of the first, rows). A
    request that is met after its prompt's pass is not drafted for. WeightsError for a head that was
    made for another target.
    """

    setting = "eagle"
    known = {**SETTINGS, "eagle": "folder of an EAGLE head"}

    def __init__(self, vllm_config: Any):
        super().__init__(vllm_config)
        path, dtype = vllm_config.model_config.model, vllm_config.model_config.dtype
        self.target = load_decoder(path, dtype, "cpu")
        hashes = made_for(path, self.target, load_tokenizer(path))
        self.head = EagleDrafter.load(self.folder, self.target, hashes).head
        # vLLM runs the layers, and its features have passed the norm
        self.target.layers, self.target.norm = nn.ModuleList(), cast(Any, nn.Identity())

    def use(self, policy: str) -> None:
        super().use(policy)
        self.rows: dict[str, tuple[int, Tensor]] = {}

    def look(self, variables: Mapping[str, Any]) -> None:
        runner, scheduled = variables["self"], variables["scheduler_output"]
        hidden, end = variables["hidden_states"], 0
        for id in runner.input_batch.req_ids:
            begin, end = end, end + scheduled.num_scheduled_tokens[id]
            place, rows = runner.requests[id].num_computed_tokens, hidden[begin:end].cpu()
            first, held = self.rows.get(id, (place, rows[:0]))
            # parts of a prompt: those before this one, which a preemption may have undone
            if first + len(held) < place:
                first, held = place, rows[:0]
            self.rows[id] = first, torch.cat((held[: max(place - first, 0)], rows))

    def learn(self, id: str, prompt: np.ndarray, accepted: int, tokens: Sequence[int]) -> None:
        first, rows = self.rows.pop(id)
        if id not in self.held:
            if first:
                return
            begun = EagleDrafter(self.target, self.head)
            begun.begin(
                cast(Target, NONE), prompt.tolist(),
                TargetOutput(None, rows[: len(prompt) - 1], {}), _greedy,
            )  # fmt: skip
            self.held[id] = begun
        drafter = cast(EagleDrafter, self.held[id])
        drafter.rollback(accepted)
        row = len(drafter.committed) - 1 - first  # of the last token that the drafter knows
        path = list(range(row, row + len(tokens)))
        drafter.catch_up(list(tokens), TargetOutput(None, rows, {}), path)

    def forget(self, id: str) -> None:
        super().forget(id)
        self.rows.pop(id, None)


def _greedy(logits: Tensor, slot: int, hidden: Tensor | None = None) -> int:
    return int(logits.double().argmax(-1))
