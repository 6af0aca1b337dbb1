"""Drafts from many positions of one text at once: what each drafter computes for rows that stand beside each other.

A fork is a drafter on a whole text. `roots(at)` is its first step from the text positions `at [m]`, each behind its own true prefix;
`more(parent, token)` takes n rows more at every place through it, `token [m, n]`, each behind the row `parent [m, n]` of the step
before. Both give logits `[m, n, vocab]` and the hidden states they come from; n is 1 for the roots. `chains` in real/record/recorder.py, position
by position through the protocol, has the definition.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from real.draft import Drafter
from real.drafters.eagle import EagleDrafter
from real.drafters.early_exit import EarlyExitDrafter
from real.drafters.glide import GlideDrafter
from real.drafters.hydra import HydraDrafter
from real.drafters.medusa import MedusaDrafter
from real.drafters.model import ModelDrafter
from real.drafters.self_skip import SelfSkipDrafter
from real.model.decoder import Decoder
from real.model.kv_cache import KVCache
from real.model.target import TargetOutput

Both = tuple[Tensor, Tensor]
ROOM = 1 << 30
"""Bytes that the scores of a step, or the keys and values of all places, may take; longer texts are recorded in parts."""


class Fork(Protocol):
    """See above; `least` is how many tokens must be committed for the drafter to offer something, `deep` how many layers keep keys."""

    least: int
    deep: int
    roots: Callable[[Tensor], Both]
    more: Callable[[Tensor, Tensor], Both]


class Known:
    """A text as its target reads it, in one pass: `token [m]`, the prompt and all of the text but its last; the prompt has `first`."""

    def __init__(self, target: Decoder, prompt: list[int], text: list[int]):
        self.target, self.first = target, len(prompt)
        self.token = torch.tensor([*prompt, *text[:-1]], device=target.device)

    @cached_property
    def _pass(self) -> tuple[Tensor, KVCache]:
        return straight(self.target, self.token)

    @property
    def hidden(self) -> Tensor:
        """The target's last hidden states `[m, width]`."""
        return self._pass[0]

    @property
    def cache(self) -> KVCache:
        """The target's cache of these rows."""
        return self._pass[1]

    def before(self, at: Tensor) -> Tensor:
        """States `[n, width]` that produced the last token before the text positions `at [n]`; zeros in front of the prompt's first."""
        row = at + self.first - 2
        return self.hidden[row.clamp(min=0)] * (row >= 0)[:, None]


def causal(rows: int, device) -> Tensor:
    """Each row sees itself and those before it."""
    return torch.ones(rows, rows, dtype=torch.bool, device=device).tril()


def straight(lm: Decoder, token: Tensor) -> tuple[Tensor, KVCache]:
    """Last hidden states `[m, width]` of one pass over `token [m]`, and its cache."""
    m = len(token)
    cache = lm.cache(capacity=m)
    rotation = lm.rotation(torch.arange(m, device=token.device))
    return lm.run(
        lm.embed(token[None]), range(len(lm.layers)), rotation, causal(m, token.device), cache
    )[0], cache


class Beside:
    """Rows of drafts at m places, each behind its own first rows of one text: a `KVCache` to the layers.

    At a place the first `known [m]` rows of the text's cache are seen, and of the drafts those on the way to the newest rows.
    """

    def __init__(self, held: KVCache, rows: int, known: Tensor):
        self.held, self.rows, self.known = held, rows, known
        self.layers: dict[int, list[Tensor]] = {}
        self.own = torch.zeros(len(known), 1, 0, dtype=torch.bool, device=known.device)
        self.depth = -1
        self.text = (torch.arange(rows, device=known.device) < known[:, None])[:, None]

    def step(self, parent: Tensor, decoder: Decoder) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Rotation and mask of the next rows, behind rows `parent [m, n]` of the step before; of the first step's all are 0."""
        (m, n), held = parent.shape, self.own.shape[2]
        above = self.own.gather(1, parent[..., None].expand(m, n, held))
        self.own = torch.cat(
            (above, torch.eye(n, dtype=torch.bool, device=parent.device).expand(m, n, n)), 2
        )
        self.depth += 1
        position = (self.known + self.depth)[:, None].expand(m, n).flatten()
        rotation = tuple(t.view(m, 1, n, -1) for t in decoder.rotation(position))
        return rotation, torch.cat((self.text.expand(m, n, -1), self.own), 2)[:, None]

    def reserve(self, rows: int) -> None:
        """Nothing: rows are put behind those that are there."""

    def put(self, layer: int, start: int, key: Tensor, value: Tensor) -> Both:
        """As `KVCache.put`: rows `[m, kv_heads, n, head_dim]` of a layer, behind the text's and the drafts' before them."""
        stop, new = self.rows + self.own.shape[2], key.shape[2]
        if layer not in self.layers:  # what is seen of the text is copied to every place, once
            text = (
                t[layer, :, :, : self.rows].expand(len(key), -1, -1, -1)
                for t in (self.held.key, self.held.value)
            )
            self.layers[layer] = [F.pad(t, (0, 0, 0, stop - self.rows + 15 * new)) for t in text]
        rows = self.layers[layer]
        if stop > rows[0].shape[2]:
            rows[:] = [F.pad(t, (0, 0, 0, stop)) for t in rows]
        for held, each in zip(rows, (key, value)):
            held[:, :, stop - new : stop] = each
        return tuple(t[:, :, :stop] for t in rows)


class LanguageModel:
    """Drafters that are a language model of their own, `lm`."""

    least = 1

    def __init__(self, drafter: ModelDrafter | EarlyExitDrafter, known: Known):
        self.lm, self.first, self.rows = drafter.lm, known.first, len(known.token)
        self.hidden, self.cache = straight(self.lm, known.token)
        self.deep = len(self.lm.layers)

    def roots(self, at: Tensor) -> Both:
        self.beside = Beside(self.cache, self.rows, at + self.first)
        hidden = self.hidden[at + self.first - 1][:, None]
        return self.lm.logits(hidden), hidden

    def more(self, parent: Tensor, token: Tensor) -> Both:
        lm = self.lm
        hidden = lm.run(
            lm.embed(token), range(len(lm.layers)), *self.beside.step(parent, lm), self.beside
        )
        return lm.logits(hidden), hidden


class Eagle:
    """Rows of true features once over the text; then at each place estimates, which feed on those before them."""

    least = 2

    def __init__(self, drafter: EagleDrafter, known: Known):
        self.part, self.target, self.known = drafter.part, known.target, known
        self.rows, self.deep = len(known.token) - 1, len(self.part.layers)
        self.cache = self.target.cache(layers=len(self.part.layers), capacity=self.rows)
        place = torch.arange(self.rows, device=known.token.device)
        read = known.token[self.part.shift :][: self.rows]
        feature = self.target.norm(known.hidden)[: self.rows]
        self.true = self._through(
            feature[None],
            read[None],
            self.target.rotation(place),
            causal(self.rows, place.device),
            self.cache,
        )[0]

    def roots(self, at: Tensor) -> Both:
        row = at + self.known.first - 2
        self.beside = Beside(self.cache, self.rows, row + 1)
        self.token, self.estimate = self.known.token[row + 1][:, None], self.true[row][:, None]
        return self.target.head(self.estimate), self.estimate

    def more(self, parent: Tensor, token: Tensor) -> Both:
        read = token if self.part.shift else self.token.gather(1, parent)
        feature = self.estimate.gather(
            1, parent[..., None].expand(*parent.shape, self.estimate.shape[2])
        )
        self.estimate = self._through(
            feature, read, *self.beside.step(parent, self.target), self.beside
        )
        self.token = token
        return self.target.head(self.estimate), self.estimate

    def _through(self, feature, token, rotation, mask, cache) -> Tensor:
        return self.part.estimate(self.target, feature, token, rotation, mask, cache)


class Medusa:
    """Heads on the feature behind the last committed token; no head sees a draft."""

    least = 2
    deep = 0

    def __init__(self, drafter: MedusaDrafter, known: Known):
        self.part, self.target, self.first = drafter.part, known.target, known.first
        self.features = self.target.norm(known.hidden)

    def roots(self, at: Tensor) -> Both:
        self.head, self.feature = 0, self.features[at + self.first - 2]
        return self._seen(1)

    def more(self, parent: Tensor, token: Tensor) -> Both:
        self.head += 1
        return self._seen(token.shape[1])

    def _seen(self, rows: int) -> Both:
        hidden = self.part.stacks[self.head](self.feature)
        return tuple(
            t[:, None].expand(-1, rows, -1)
            for t in (self.part.logits(self.target, self.head, hidden), hidden)
        )


class Hydra:
    """Heads on that feature, on the last committed token and on the drafts before theirs."""

    least = 2
    deep = 0

    def __init__(self, drafter: HydraDrafter, known: Known):
        self.part, self.target, self.known = drafter.part, known.target, known
        self.features = self.target.norm(known.hidden)

    def roots(self, at: Tensor) -> Both:
        row = at + self.known.first - 2
        self.feature, self.path = self.features[row], self.known.token[row + 1].view(-1, 1, 1)
        return self._behind()

    def more(self, parent: Tensor, token: Tensor) -> Both:
        above = self.path.gather(1, parent[..., None].expand(*parent.shape, self.path.shape[2]))
        self.path = torch.cat((above, token[..., None]), 2)
        return self._behind()

    def _behind(self) -> Both:
        seen = self.target.embed(self.path).flatten(2)
        head = self.path.shape[2] - 1
        hidden = self.part.stacks[head](
            torch.cat((self.feature[:, None].expand(-1, seen.shape[1], -1), seen), -1)
        )
        return self.part.logits(self.target, head, hidden), hidden


class SelfSkip:
    """The target without some sub-layers: the last committed token is the first row that it reads so, behind rows of full passes."""

    least = 1

    def __init__(self, drafter: SelfSkipDrafter, known: Known):
        self.skips, self.target, self.known = drafter.skips, known.target, known
        self.deep = len(self.target.layers)

    def roots(self, at: Tensor) -> Both:
        row = at + self.known.first - 1
        self.beside = Beside(self.known.cache, len(self.known.token), row)
        token = self.known.token[row][:, None]
        return self.more(torch.zeros_like(token), token)

    def more(self, parent: Tensor, token: Tensor) -> Both:
        x, (rotation, mask) = self.target.embed(token), self.beside.step(parent, self.target)
        for i, layer in enumerate(self.target.layers):
            if i not in self.skips.attention:
                x = layer.attend(x, rotation, mask, self.beside, i)
            if i not in self.skips.mlp:
                x = layer.mlp(x)
        return self.target.logits(x), x


class Glide:
    """Rows of the text see the target's keys before their own place, drafts those before the last committed token's."""

    least = 1

    def __init__(self, drafter: GlideDrafter, known: Known):
        self.part, self.target, self.known = drafter.part, known.target, known
        self.rows, self.deep, device = len(known.token), len(self.part.layers), known.token.device
        self.cache = KVCache(
            self.part.config, len(self.part.layers), 1, self.rows, self.target.dtype, device
        )
        before = causal(self.rows, device).tril(-1)
        rotation = self.target.rotation(torch.arange(self.rows, device=device))
        self.true = self._through(
            known.token[None], rotation, causal(self.rows, device), before, self.cache
        )[0]

    def roots(self, at: Tensor) -> Both:
        row = at + self.known.first - 1
        self.beside = Beside(self.cache, self.rows, row + 1)
        self.sees = (torch.arange(self.rows, device=row.device) < row[:, None])[:, None, None]
        hidden = self.true[row][:, None]
        return self.part.logits(self.target, hidden), hidden

    def more(self, parent: Tensor, token: Tensor) -> Both:
        hidden = self._through(
            token, *self.beside.step(parent, self.target), self.sees, self.beside
        )
        return self.part.logits(self.target, hidden), hidden

    def _through(self, token, rotation, mask, sees, cache) -> Tensor:
        part, held = self.part, self.known.cache if self.part.cross else None
        x = (self.target if part.shared else part).embed(token)
        for i, layer in enumerate(part.layers):
            x = layer.attend(x, rotation, mask, cache, i)
            if part.cross:
                keys = (
                    t[part.reads[i]].expand(len(token), -1, -1, -1) for t in (held.key, held.value)
                )
                x = part.glimpses[i](x, rotation, *keys, sees)
            x = layer.mlp(x)
        return x


FORKS: dict[type, Callable[[Drafter, Known], Fork]] = {
    ModelDrafter: LanguageModel,
    EarlyExitDrafter: LanguageModel,
    EagleDrafter: Eagle,
    MedusaDrafter: Medusa,
    HydraDrafter: Hydra,
    SelfSkipDrafter: SelfSkip,
    GlideDrafter: Glide,
}
"""By the drafter's class itself: one that derives from it may draft otherwise."""


class Still:
    """A target whose passes compute nothing, for a drafter that reads nothing of them."""

    def __init__(self, decoder: Decoder):
        self.decoder = decoder
        self.nothing = TargetOutput(None, torch.zeros(1, 1), {})

    def prefill(self, tokens: list[int]) -> TargetOutput:
        return self.nothing

    def verify(self, tokens: list[int], parent: list[int], resume_from=None) -> TargetOutput:
        return self.nothing

    def commit(self, path: list[int]) -> None:
        """Nothing is kept."""


def at_once(
    places: Tensor, rows: int, known: Known, fork: Fork, drafts: int = 1
) -> tuple[Tensor, ...]:
    """The places cut into parts that take no more than ROOM: so many `drafts` at each, of so many `rows` in a step."""
    s = known.target.config
    keys = (
        2
        * drafts
        * fork.deep
        * len(known.token)
        * s.kv_heads
        * s.head_dim
        * known.target.embed.weight.element_size()
    )
    return places.split(max(1, ROOM // max(8 * drafts * rows * s.vocab, keys)))
