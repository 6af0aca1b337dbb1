"""vLLM's custom proposer over a drafter of ours in the same process, its length by a policy.

It needs this package in vLLM's environment. A draft model drafts for the requests of a pass
together, an EAGLE head for one after another.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from real.decode import features
from real.draft import Drafter
from real.drafters.eagle import KIND, EagleDrafter
from real.drafters.model import BatchDrafter, ModelDrafter
from real.model.checkpoint import WeightsError, load_decoder, load_tokenizer
from real.model.stored_weights import made_for
from real.model.target import Target, TargetOutput
from simspec.engines.vllm_proposer import SETTINGS, Going, PolicyProposer, Step


class HostedProposer(PolicyProposer):
    """Greedy drafts of a drafter with weights; they end with an end token of the request."""

    setting: ClassVar[str]  # that names its folder

    def __init__(self, vllm_config: Any):
        super().__init__(vllm_config)
        folder = self.given.get(self.setting)
        if not isinstance(folder, str):
            raise ValueError(
                f'additional_config["simspec"] has the {self.setting} {folder!r}, expected a '
                f'folder in "{self.setting}"'
            )
        self.folder = Path(folder)

    def features(self) -> tuple[tuple[str, str], ...]:
        features.required_predictors(self.policy.reads, Drafter())  # none is loaded here
        return features.feature_grids(self.policy.reads)


class ModelProposer(HostedProposer):
    """Drafts of a transformers checkpoint, whose folder is the setting "model".

    WeightsError for one that is no draft model of the target's vocabulary.
    """

    setting = "model"
    known = {**SETTINGS, "model": "folder of the draft model"}

    def __init__(self, vllm_config: Any):
        super().__init__(vllm_config)
        lm = ModelDrafter.load_alone(self.folder, vllm_config.model_config.dtype, "cpu").lm
        vocab = vllm_config.model_config.get_vocab_size()
        if lm.config.vocab != vocab:
            raise WeightsError(
                f"{self.folder} has {lm.config.vocab} tokens, the target {vocab}: take a "
                "model with the same tokenizer"
            )
        lm.pack()
        self.batch = BatchDrafter(lm)

    def draft_all(self, requests: Sequence[Going]) -> list[list[int]]:
        going, texts = list(requests), {id: tokens.copy() for id, tokens, _ in requests}
        while going := [
            asked for asked in going
            if self.rounds.asks(id := asked[0]) and texts[id][-1] not in asked[2]
        ]:  # fmt: skip
            logits = self.batch.logits({id: texts[id] for id, _, _ in going})
            token, reads, codes = logits.argmax(-1), self.policy.reads, cast(Any, repeat(None))
            if reads:
                values = features.feature_values(reads, logits, 1.0, token=token)
                codes = features.encode_features(reads, values.numpy())[0]
            for (id, *_), drafted, code in zip(going, token.tolist(), codes):
                self.rounds.take(id, (drafted, code))
                texts[id] = np.append(texts[id], np.int32(drafted))
        return [self.rounds.submit(id) for id, _, _ in requests]

    def forget(self, id: str) -> None:
        self.batch.forget(id)


class EagleProposer(HostedProposer):
    """Drafts of an EAGLE head, whose folder is the setting "eagle", by the target's features.

    vLLM's passes give the features: `rows` holds, for a request, (position of the first, rows), and
    `held` a drafter for each one whose prompt was read. A request that is met after its prompt's
    pass is not drafted for. WeightsError for a head that was made for another target.
    """

    setting = "eagle"
    known = {**SETTINGS, "eagle": "folder of an EAGLE head"}

    def __init__(self, vllm_config: Any):
        super().__init__(vllm_config)
        path, dtype = vllm_config.model_config.model, vllm_config.model_config.dtype
        self.target = load_decoder(path, dtype, "cpu")
        hashes = made_for(path, self.target, load_tokenizer(path))
        loaded = cast(EagleDrafter, KIND.load(self.folder, self.target, hashes))
        self.head = loaded.head
        # vLLM runs the layers, and its features have passed the norm
        self.target.layers, self.target.norm = nn.ModuleList(), cast(Any, nn.Identity())

    def use(self, policy: str) -> None:
        super().use(policy)
        self.held: dict[str, Drafter] = {}
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
                cast(Target, None), prompt.tolist(),
                TargetOutput(None, rows[: len(prompt) - 1], {}), _greedy,
            )  # fmt: skip
            self.held[id] = begun
        drafter = cast(EagleDrafter, self.held[id])
        drafter.rollback(accepted)
        row = len(drafter.committed) - 1 - first  # of the last token that the drafter knows
        path = list(range(row, row + len(tokens)))
        drafter.catch_up(list(tokens), TargetOutput(None, rows, {}), path)

    def steps(self, id: str, tokens: np.ndarray, ends: Collection[int]) -> Iterator[Step]:
        drafter = self.held.get(id)
        if drafter is None:
            return
        reader = features.FeatureReader(self.policy.reads, 1.0, drafter)
        for slot, step in enumerate(iter(drafter.next, None)):
            yield step.token, reader.read(step, slot)[0] if reader.names else None
            if step.token in ends:
                return

    def forget(self, id: str) -> None:
        self.held.pop(id, None)
        self.rows.pop(id, None)


def _greedy(logits: Tensor, slot: int, hidden: Tensor | None = None) -> int:
    return int(logits.double().argmax(-1))
