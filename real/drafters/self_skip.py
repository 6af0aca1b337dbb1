"""Self-speculative drafting: the target without some sub-layers (arXiv 2309.08168)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from real.draft import Drafter, DrafterKind, Pick, Step
from real.model.checkpoint import WeightsError
from real.model.decoder import Decoder, KVCache
from real.model.draft_head import stored_settings
from real.model.passes import BranchCache, TargetPass, branches
from simspec.output.files import reraised


@dataclass(frozen=True)
class SkipConfig:
    """Layer indices of the attention and MLP sub-layers that a draft leaves out, ascending.

    Skipping none (the draft is the target) or all (a bigram table) is allowed. ValueError for
    anything but distinct integers >= 0; `check` adds the target's number of layers.
    """

    attention: tuple[int, ...] = ()
    mlp: tuple[int, ...] = ()

    def __post_init__(self):
        for kind in ("attention", "mlp"):
            layers = getattr(self, kind)
            if (
                not isinstance(layers, list | tuple)
                or not all(type(i) is int and i >= 0 for i in layers)
                or len(set(layers)) < len(layers)
            ):
                raise ValueError(
                    f"{kind} is {layers!r}; "
                    "expected a list of different layer indices, each an integer >= 0"
                )
            object.__setattr__(self, kind, tuple(sorted(layers)))

    @property
    def settings(self) -> dict[str, list[int]]:
        return {"attention": list(self.attention), "mlp": list(self.mlp)}

    def check(self, layers: int) -> None:
        """ValueError for a skipped layer that a target of `layers` layers does not have."""
        for kind, skipped in self.settings.items():
            if skipped and skipped[-1] >= layers:
                raise ValueError(
                    f"{kind} skips layer {skipped[-1]} of {layers}; "
                    f"expected indices 0 to {layers - 1}"
                )


def skipping_pass(
    decoder: Decoder,
    skips: SkipConfig,
    token: Tensor,
    position: Tensor,
    mask: Tensor | None,
    cache: KVCache,
    start: int,
) -> Tensor:
    """Residual stream `[n, width]` of rows `token [n]` at `position [n]`, some sub-layers skipped.

    Keys and values go to rows `start ...` of the target's `cache`, after those of full passes.
    """
    cache.reserve(start + len(token))
    rotation = decoder.rotation(position)
    return _layers(decoder, skips, decoder.embed(token[None]), rotation, mask, cache, start)[0]


def _layers(decoder, skips, x, rotation, mask, cache, start) -> Tensor:
    for i, layer in enumerate(decoder.layers):
        if i not in skips.attention:
            x = layer.attend(x, rotation, mask, cache, i, start)
        if i not in skips.mlp:
            x = layer.mlp(x)
    return x


class SelfSkipDrafter(Drafter):
    """Drafts by the target without the sub-layers `skips`, on the target's own KV cache.

    Step j feeds x_last or d_j as the target's row `length` + j. Committed rows are those of full
    passes, the draft's own rows skip sub-layers: so a proposal depends on its distance from
    verified tokens (not `prefix_only`). Verification overwrites the draft's rows. No training, no
    backlog.
    """

    name = "self_skip"
    prefix_only = False
    history_free = True

    def __init__(self, target: Decoder, skips: SkipConfig):
        skips.check(target.config.layers)
        self.skips = skips

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "SelfSkipDrafter":
        """From self_skip.json, as `real.train.skip_search.save` writes it.

        WeightsError where it is missing, damaged or for another target.
        """
        settings, _ = stored_settings(Path(folder), "self_skip", made_for)
        what = f"{Path(folder) / 'self_skip.json'} has settings that this target cannot have"
        with reraised(WeightsError, what):
            return cls(target, SkipConfig(**settings))

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.target, self.pick = target, pick
        self.last = prompt[-1]
        self.draft: list[int] = []
        self.parent: list[int] = []

    @torch.inference_mode()
    def next(self) -> Step:
        target, slot = self.target, len(self.draft)
        row = target.length + slot
        token, position = torch.tensor(
            [[self.draft[-1] if slot else self.last], [row]], device=target.decoder.device
        )
        hidden = skipping_pass(
            target.decoder, self.skips, token, position, None, target.cache, row
        )[0]
        logits = target.decoder.logits(hidden)
        self.draft.append(self.pick(logits, slot))
        return Step(self.draft[-1], slot, logits, hidden)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor:
        target, start, self.parent = self.target, len(self.parent), self.parent + parent
        device = target.decoder.device
        position, mask = branches(target.length, self.parent, len(token), device)
        rows, start = torch.tensor(token, device=device), target.length + start
        hidden = skipping_pass(
            target.decoder, self.skips, rows, position, mask, target.cache, start
        )
        return target.decoder.logits(hidden)

    def rollback(self, accepted: int) -> None:
        self.draft, self.parent = [], []

    def catch_up(self, tokens: list[int], output, path) -> None:
        self.last = tokens[-1]


class ParallelSelfSkip:
    """Drafts from many positions at once; the last committed token is the first row that skips."""

    min_context = 1

    def __init__(self, drafter: SelfSkipDrafter, sequence: TargetPass):
        self.skips, self.target, self.sequence = drafter.skips, sequence.target, sequence
        self.cached_layers = len(self.target.layers)

    def start(self, position: Tensor) -> tuple[Tensor, Tensor]:
        row = position + self.sequence.prompt_length - 1
        self.branches: Any = BranchCache(self.sequence.cache, len(self.sequence.token), row)
        token = self.sequence.token[row][:, None]
        return self.extend(torch.zeros_like(token), token)

    def extend(self, parent: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        rotation, mask = self.branches.step(parent, self.target)
        x = self.target.embed(token)
        x = _layers(self.target, self.skips, x, rotation, mask, self.branches, 0)
        return self.target.logits(x), x


KIND = DrafterKind(SelfSkipDrafter, SelfSkipDrafter.load, parallel=ParallelSelfSkip)
