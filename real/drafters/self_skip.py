"""Self-speculative drafting: the target itself with some attention and MLP sub-layers left out (Draft & Verify, arXiv 2309.08168)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from real.draft import Drafter, Pick, Step
from real.model.checkpoint import WeightsError
from real.model.decoder import Decoder
from real.model.draft_head import settings_of
from real.model.kv_cache import KVCache
from real.model.tree_mask import branches


@dataclass(frozen=True)
class Skips:
    """Which sub-layers a draft leaves out: indices of layers, each list without repeats, kept in order.

    None of them is allowed (the draft is then the target, at its price), and all of them (a table of what follows a token).
    ValueError for anything but distinct integers >= 0; `check` adds the target's number of layers.
    """

    attention: tuple[int, ...] = ()
    mlp: tuple[int, ...] = ()

    def __post_init__(self):
        for kind in ("attention", "mlp"):
            given = getattr(self, kind)
            if (
                not isinstance(given, list | tuple)
                or not all(type(i) is int and i >= 0 for i in given)
                or len(set(given)) < len(given)
            ):
                raise ValueError(
                    f"{kind} is {given!r}; expected a list of different layer indices, each an integer >= 0"
                )
            object.__setattr__(self, kind, tuple(sorted(given)))

    @property
    def settings(self) -> dict[str, list[int]]:
        return {"attention": list(self.attention), "mlp": list(self.mlp)}

    def check(self, layers: int) -> None:
        """ValueError where a layer is skipped that a target of so many `layers` does not have."""
        for kind, given in self.settings.items():
            if given and given[-1] >= layers:
                raise ValueError(
                    f"{kind} skips layer {given[-1]} of {layers}; expected indices 0 to {layers - 1}"
                )

    def count(self, layers: int) -> int:
        """How many of the 2 `layers` sub-layers still run."""
        return 2 * layers - len(self.attention) - len(self.mlp)


def passing(
    decoder: Decoder,
    skips: Skips,
    token: Tensor,
    position: Tensor,
    mask: Tensor | None,
    cache: KVCache,
    start: int,
) -> Tensor:
    """Rows `token [n]` at integer `position [n]` through the sub-layers that are not skipped: residual stream `[n, width]`.

    Their keys and values go to rows `start ...` of the target's own `cache`, which holds those of full passes before them.
    """
    cache.reserve(start + len(token))
    x, rotation = decoder.embed(token[None]), decoder.rotation(position)
    for i, layer in enumerate(decoder.layers):
        if i not in skips.attention:
            x = layer.attend(x, rotation, mask, cache, i, start)
        if i not in skips.mlp:
            x = layer.mlp(x)
    return x[0]


class SelfSkipDrafter(Drafter):
    """Drafts by the target without the sub-layers `skips`, on the target's own cache; nothing is learnt, nothing caught up.

    Step j feeds x_last or d_j as the target's row `length` + j. It sees the committed rows as full passes left them, and the
    draft's own rows as skipped ones: so a proposal depends on how far it is from verified text (not `prefix_only`), and on
    nothing else. What a draft leaves in the cache lies behind the committed rows, and the verification writes over it.
    """

    name = "self_skip"
    taps = ()
    prefix_only = False
    history_free = True

    def __init__(self, target: Decoder, skips: Skips):
        skips.check(target.config.layers)
        self.skips = skips
        self.sublayers = skips.count(target.config.layers)
        self.predictors = {}

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "SelfSkipDrafter":
        """From self_skip.json, as `real.train.skip_search.save` writes it; WeightsError where it is missing, damaged or for another target."""
        settings = settings_of(folder, "self_skip", made_for)
        try:
            return cls(target, Skips(**settings))
        except (TypeError, ValueError) as error:
            raise WeightsError(
                f"{Path(folder) / 'self_skip.json'} asks for what this target cannot have: {error}"
            ) from error

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
        hidden = passing(target.decoder, self.skips, token, position, None, target.cache, row)[0]
        logits = target.decoder.logits(hidden)
        self.draft.append(self.pick(logits, slot))
        return Step(self.draft[-1], slot, logits, hidden)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor:
        target, held, self.parent = self.target, len(self.parent), self.parent + parent
        device = target.decoder.device
        place = branches(target.length, self.parent, len(token), device)
        hidden = passing(
            target.decoder,
            self.skips,
            torch.tensor(token, device=device),
            *place,
            target.cache,
            target.length + held,
        )
        return target.decoder.logits(hidden)

    def resume(self) -> None:
        return None

    def rollback(self, accepted: int) -> None:
        self.draft, self.parent = [], []

    def catch_up(self, tokens: list[int], output, path) -> None:
        self.last = tokens[-1]
