"""The target: a decoder, its cache, and passes over lines or trees of drafted tokens."""

from dataclasses import dataclass

import torch
from torch import Tensor

from real.block import Decoder, ancestor_mask, branches, depths


@dataclass(frozen=True)
class Resume:
    """Rows of a verification pass that a drafter has already taken through the target's first layers.

    | field | meaning |
    | --- | --- |
    | layer | layers 0 .. layer - 1 are done, their keys lie in the target's cache at the rows' places |
    | hidden `[m, width]` | the residual stream of the pass's first m rows after them |
    """

    layer: int
    hidden: Tensor


@dataclass(frozen=True)
class Verdict:
    """What one pass of the target returns.

    | field | meaning |
    | --- | --- |
    | logits `[n, vocab]` | prediction after each row; None from `prefill` |
    | hidden `[n, width]` | residual stream after the last layer, before the norm |
    | taps | layer -> `[n, width]`: residual stream after that many layers, for the layers asked for |
    """

    logits: Tensor | None
    hidden: Tensor
    taps: dict[int, Tensor]


class Target:
    """A decoder that verifies: batch of one, one cache, `length` committed rows.

    `taps` names the depths (in layers) whose residual stream a drafter wants to read.
    """

    def __init__(self, decoder: Decoder, taps: tuple[int, ...] = (), capacity: int = 512):
        self.decoder = decoder
        self.taps = taps
        self.cache = decoder.cache(capacity=capacity)
        self.length = 0

    @torch.inference_mode()
    def prefill(self, tokens: list[int]) -> Verdict:
        """Starts a text: forgets the old one and fills the cache with `tokens` (all of the prompt but its last)."""
        self.length = 0
        if not tokens:
            empty = torch.zeros(0, self.decoder.shape.width, dtype=self.decoder.dtype, device=self.decoder.device)
            return Verdict(None, empty, {layer: empty for layer in self.taps})
        hidden, taps = self._pass(tokens, list(range(-1, len(tokens) - 1)), None)
        self.length = len(tokens)
        return Verdict(None, hidden, taps)

    @torch.inference_mode()
    def verify(self, tokens: list[int], parent: list[int], resume_from: Resume | None = None) -> Verdict:
        """One pass over the round's rows: the last committed token and what was drafted after it.

        `parent[i]` is the row that row i follows, -1 for the committed prefix. Rows are written behind the committed
        ones and stay tentative until `keep`. With `resume_from`, its rows skip the layers that they have passed.
        """
        hidden, taps = self._pass(tokens, parent, resume_from)
        return Verdict(self.decoder.logits(hidden), hidden, taps)

    @torch.inference_mode()
    def draft_rows(self, tokens: list[int], offset: int, layer: int, parent: list[int] | None = None) -> Tensor:
        """Takes `tokens` (a line) through the first `layer` layers, `offset` rows past the committed ones.

        Their keys go to where `verify` will find them; returns the residual stream `[n, width]`. With `parent`, that of all the
        `offset` + n rows past the committed ones, they are a tree's: each sees its ancestors only.
        """
        start = self.length + offset
        x = self._embed(tokens)
        if parent is None:
            position = torch.arange(start, start + len(tokens), device=x.device)
            mask = ancestor_mask(start, list(range(-1, len(tokens) - 1)), x.device)
        else:
            position, mask = branches(self.length, parent, len(tokens), x.device)
        return self.decoder.run(x, range(layer), self.decoder.rotation(position), mask, self.cache, start)[0]

    @torch.inference_mode()
    def keep(self, path: list[int]) -> None:
        """Commits the rows `path` of the last pass (indices, each the parent of the next), and forgets the others."""
        if path != list(range(len(path))):
            rows = torch.tensor(path, device=self.decoder.device) + self.length
            self.cache.move(rows, self.length)
        self.length += len(path)

    def _embed(self, tokens: list[int]) -> Tensor:
        return self.decoder.embed(torch.tensor([tokens], device=self.decoder.device))

    def _pass(self, tokens, parent, resume) -> tuple[Tensor, dict[int, Tensor]]:
        decoder, start, rows = self.decoder, self.length, len(tokens)
        if len(parent) != rows:
            raise ValueError(f"{len(parent)} parents for {rows} tokens; expected one each")
        position = start + torch.tensor(depths(parent), device=decoder.device)
        rotation = decoder.rotation(position)
        mask = ancestor_mask(start, parent, decoder.device)
        taps: dict[int, Tensor] = {layer: None for layer in self.taps}
        layers = range(len(decoder.layers))
        done = 0 if resume is None else len(resume.hidden)
        if not done:
            x = decoder.run(self._embed(tokens), layers, rotation, mask, self.cache, start, taps)
        else:
            x = resume.hidden[None]
            if done < rows:
                # the rows that the drafter has not seen catch up through the layers it owns
                late = decoder.run(
                    self._embed(tokens[done:]),
                    range(resume.layer),
                    tuple(t[done:] for t in rotation),
                    None if mask is None else mask[done:],
                    self.cache,
                    start + done,
                )
                x = torch.cat((x, late), 1)
            if resume.layer in taps:
                taps[resume.layer] = x
            x = decoder.run(x, range(resume.layer, len(decoder.layers)), rotation, mask, self.cache, start, taps)
        return x[0], {layer: t[0] for layer, t in taps.items()}
