"""Drafting by extrapolated features (EAGLE §4, arXiv 2401.15077), and training by such drafts.

In training, draft steps after the first read an estimate in place of a true feature (HASS, arXiv
2408.15766; "training-time test" of EAGLE-3, arXiv 2503.01840 §3.2).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from real.draft import Drafter, PaperRecipe, Pick, Step, TrainingBatch, TrainingRecipe
from real.draft.drafted_logits import DraftedLogits
from real.draft.kind import Proposal
from real.draft.losses import hard_loss, learned_rows, soft_loss
from real.drafters.eagle.head import EagleHead, published
from real.model.decoder import Decoder
from real.model.draft_head import load_draft_head
from real.model.full_pass import BranchCache, TargetPass, causal_mask
from real.model.runner import EAGER, ForwardContext, Span

MOST_UNROLLED = 16
"""Draft steps that a training unrolls: attention's scores are held for each."""


class EagleDrafter(Drafter):
    """Drafts by estimated features; drafted rows re-enter with true ones before the next draft.

    With m committed tokens rows 0 .. m - 2 hold true features, and row m - 2 proposes d_1. Step k
    then feeds the estimate after d_{k-1}. Every draft row is dropped after verification: the a + 1
    rows of committed tokens enter in the next round's first step, whose price depends on a.

    A proposal depends on its distance from verified tokens, so not `prefix_only`; but for inputs
    "token", which reads no feature. A prompt of one token has no feature: nothing is offered.
    """

    name = "eagle"
    history_free = True
    captures = True

    def __init__(self, target: Decoder, head: EagleHead):
        self.decoder, self.head = target, head
        self.prefix_only = head.inputs == "token"
        self.predictors = {}

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "EagleDrafter":
        """From eagle.json and eagle.safetensors, or from a released checkpoint (`published`)."""
        folder = Path(folder)
        if (folder / "config.json").exists() and not (folder / "eagle.json").exists():
            return cls(target, published(folder, target))
        return cls(target, load_draft_head(EagleHead, folder, "eagle", target, made_for))

    @torch.inference_mode()
    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.pick, layers = pick, len(self.head.layers)
        self.cache = self.passes.cache(self.name, self.decoder, layers, len(prompt) + 64)
        self.committed = list(prompt)
        self.estimate: Tensor
        self.draft: list[int] = []
        self.parent: list[int] = []
        self.rows = 0
        # true features of the last committed rows
        self.features = self.decoder.norm(prefill.hidden)
        if len(prompt) > 2:
            tokens = self.committed[self.head.shift :][: len(prompt) - 2]
            self._append(self.features[:-1], tokens, "")

    @torch.inference_mode()
    def next(self) -> Step | None:
        slot, shift = len(self.draft), self.head.shift
        if len(self.committed) == 1:
            return None
        if slot:
            token = [self.committed[-1], *self.draft][slot - 1 + shift :][:1]
            output = self._append(self.estimate[None], token)
        else:
            output = self._first()
        self.estimate, logits = (t[-1] for t in output)
        self.draft.append(self.pick(logits, slot, self.estimate))
        return Step(self.draft[-1], slot, logits, self.estimate)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor | None:
        if len(self.committed) == 1:
            return None
        if not self.parent:
            estimates, logits = self._first()
            self.tree, self.estimates = list(token), estimates[-1:]
        else:
            read = token if self.head.shift else [self.tree[p] for p in parent]
            span = Span.tree(self.rows - 1, self.parent + parent, len(token))
            estimates, logits = self._forward(self.estimates[parent], read, span, "tree")
            self.tree = self.tree + token
            self.estimates = torch.cat((self.estimates, estimates))
        self.parent = self.parent + parent
        return logits

    def rollback(self, accepted: int) -> None:
        # rows of accepted drafts go too: they hold estimates
        self.rows = min(self.rows, len(self.committed) - 1)
        self.draft, self.parent = [], []

    @torch.inference_mode()
    def catch_up(self, tokens: list[int], output, path: list[int]) -> None:
        self.committed += tokens
        self.features = torch.cat((self.features, self.decoder.norm(output.hidden[path])))

    def _first(self) -> tuple[Tensor, ...]:
        """The step after the last committed token, after the backlog; recomputed if need be."""
        true, shift = len(self.committed) - 1, self.head.shift
        self.rows = min(self.rows, true - 1)
        tokens = self.committed[self.rows + shift : true + shift]
        output = self._append(self.features[self.rows - true :], tokens)
        self.features = self.features[-1:]
        return output

    def _append(self, feature: Tensor, token: list[int], head: str = "last") -> tuple[Tensor, ...]:
        """Estimates of a chain after all rows; with `head` also `[1, vocab]` of the last."""
        output = self._forward(feature, token, Span(self.rows, len(token)), head)
        self.rows += len(token)
        return output

    def _forward(
        self, feature: Tensor, token: list[int], span: Span, head: str
    ) -> tuple[Tensor, ...]:
        target, eagle = self.decoder, self.head
        output = eagle.output(target)

        def body(feature: Tensor, token: Tensor, at: ForwardContext) -> tuple[Tensor, ...]:
            x = eagle.estimate(
                target, feature[None], token[None], at.rotation, at.mask, at.cache, at.start
            )[0]
            return x, *([output(at.end(x) if head == "last" else x)] if head else ())

        passes = self.passes if head else EAGER  # a prompt's pass has its own number of rows
        return passes.run(f"{self.name} {head}", target, body, [feature, token], span, self.cache)


class ParallelEagle:
    """Rows of true features once over the sequence; then estimates, branching at each position."""

    min_context = 2

    def __init__(self, drafter: EagleDrafter, sequence: TargetPass):
        self.head, self.target, self.sequence = drafter.head, sequence.target, sequence
        self.rows, self.cached_layers = len(sequence.token) - 1, len(self.head.layers)
        self.cache = self.target.cache(layers=self.cached_layers, capacity=self.rows)
        place = torch.arange(self.rows, device=sequence.token.device)
        token = sequence.token[self.head.shift :][: self.rows][None]
        feature = self.target.norm(sequence.hidden)[: self.rows][None]
        rotation, mask = self.target.rotation(place), causal_mask(self.rows, place.device)
        self.true = self._forward(feature, token, rotation, mask, self.cache)[0]

    def start(self, position: Tensor) -> Proposal:
        row = position + self.sequence.prompt_length - 2
        self.branches: Any = BranchCache(self.cache, self.rows, row + 1)
        self.token = self.sequence.token[row + 1][:, None]
        self.estimate = self.true[row][:, None]
        return DraftedLogits.from_head(self.head.output(self.target), self.estimate), self.estimate

    def extend(self, parent: Tensor, token: Tensor) -> Proposal:
        read = token if self.head.shift else self.token.gather(1, parent)
        width = self.estimate.shape[2]
        feature = self.estimate.gather(1, parent[..., None].expand(*parent.shape, width))
        rotation, mask = self.branches.step(parent, self.target)
        self.estimate = self._forward(feature, read, rotation, mask, self.branches)
        self.token = token
        return DraftedLogits.from_head(self.head.output(self.target), self.estimate), self.estimate

    def _forward(self, feature, token, rotation, mask, cache) -> Tensor:
        return self.head.estimate(self.target, feature, token, rotation, mask, cache)


def eagle_loss(
    head: EagleHead,
    target: Decoder,
    batch: TrainingBatch | Tensor,
    soft: bool = True,
    generator: torch.Generator | None = None,
    weight: float = 0.1,
    noise: float = 0.1,
    unroll: int = 1,
    fade: float = 0.8,
    regression: float = 1.0,
) -> Tensor:
    """regression SmoothL1(f, f^) + weight CE(softmax(head f), softmax(head f^)), means over rows.

    Row i of 3 tokens or more reads f_i and estimates f_{i+1}; with `soft=False` the CE is towards
    the next token. Input features get uniform noise U(-noise, noise), in absolute terms as
    in the paper; the released code scales it by 512 / sequence length. `unroll` steps of a draft
    are trained, step s with weight fade^(s - 1) (`real.drafters.eagle.drafter`); ValueError for
    less than one.
    """
    batch = TrainingBatch.of(batch)
    token = batch.token
    if not 1 <= unroll <= MOST_UNROLLED:
        raise ValueError(f"unroll is {unroll}; expected 1 to {MOST_UNROLLED} draft steps")
    if token.shape[1] < 2 + unroll:
        raise ValueError(
            f"sequences have {token.shape[1]} tokens; "
            f"expected at least {2 + unroll} (two that are read, and those drafted)"
        )
    with torch.no_grad():
        (feature,) = batch.features(target, "feature")
        inputs = feature[:, :-1]
        generator = _on_device(generator, inputs.device)
        draw = torch.rand(inputs.shape, generator=generator, device=inputs.device)
        inputs = inputs + ((2 * draw - 1) * noise).to(inputs)
    if unroll == 1:
        estimates = [head.teacher_forced(target, inputs, token[:, :-1])]
    else:
        estimates = unrolled_estimates(head, target, inputs, token[:, :-1], unroll)
    total = feature.new_zeros((), dtype=torch.float32)
    for step, estimate in enumerate(estimates):
        known = inputs.shape[1] - step
        parts = estimate[:, :known], feature[:, 1 + step :], token[:, 2 + step :]
        loss = _step_loss(head, target, parts, batch.learning(2 + step), soft, (weight, regression))
        total = total + fade**step * loss
    return total


def _step_loss(
    head: EagleHead,
    target: Decoder,
    parts: tuple[Tensor, Tensor, Tensor],
    learned: Tensor | None,
    soft: bool,
    weights: tuple[float, float],
) -> Tensor:
    """The loss of one draft step: estimates, true features and next tokens of the same rows."""
    weight, regression = weights
    estimate, true, token = (learned_rows(part, learned) for part in parts)
    output = head.output(target)
    if soft:
        loss = weight * soft_loss(output, estimate, target, true)
    else:
        loss = weight * hard_loss(output, estimate, token)
    if not len(estimate):
        return loss
    return regression * F.smooth_l1_loss(estimate.float(), true.float()) + loss


def _on_device(generator: torch.Generator | None, device) -> torch.Generator | None:
    """The generator, or one of its seed on the device: drawing on the host would outlast a step."""
    if generator is None or generator.device.type == device.type:
        return generator
    return torch.Generator(device).manual_seed(generator.initial_seed())


RECIPE = TrainingRecipe(
    EagleHead,
    eagle_loss,
    EagleDrafter,
    "eagle",
    soft=True,
    rate=8e-3,
    reads=lambda head, soft: ("feature",),
    defaults={"weight": 1},  # EAGLE's own 0.1 learns more slowly within minutes
    paper=PaperRecipe(
        "EAGLE §4.2 and §5, arXiv 2401.15077",
        soft=True,
        settings={"weight": 0.1, "noise": 0.1},
        rate=3e-5,
        betas=(0.9, 0.95),
        clip=0.5,
        silent=("decay", "warmup", "batch"),
    ),
)


class UnrolledCache:
    """A `KVCache` to the layers in training: draft steps from every row of a batch, with gradients.

    The row of step s that belongs to row i attends to the true rows 0 .. i, and to its own rows of
    steps 2 .. s: what a draft that starts after row i sees.
    """

    def __init__(self) -> None:
        self.layers: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def put(self, layer: int, start: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keeps a step's rows `[batch, kv_heads, n, head_dim]` of a layer, and returns them."""
        self.layers.setdefault(layer, []).append((key, value))
        return key, value

    def attention(
        self, layer: int, q: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Attention of `q [batch, heads, n, head_dim]`, the rows of the newest step."""
        (batch, heads, n, width), kv_heads = q.shape, key.shape[1]
        (true_key, true_value), *drafted = self.layers[layer]
        grouped = q.view(batch, kv_heads, -1, n, width) * width**-0.5
        scores = [grouped @ true_key[:, :, None].transpose(-1, -2)]
        later = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
        scores[0] = scores[0].masked_fill(later, -torch.inf)
        scores += [(grouped * k[:, :, None]).sum(-1, keepdim=True) for k, _ in drafted]
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        weight = torch.cat(scores, -1).softmax(-1, dtype=wide).to(q.dtype)
        mixed = weight[..., :n] @ true_value[:, :, None]
        for s, (_, v) in enumerate(drafted):
            mixed = mixed + weight[..., n + s, None] * v[:, :, None]
        return mixed.view(batch, heads, n, width)


def unrolled_estimates(
    head: EagleHead, target: Decoder, feature: Tensor, token: Tensor, steps: int
) -> list[Tensor]:
    """Estimates `[b, n, width]` of `steps` draft steps from every row, along the true tokens.

    Entry s - 1, row i estimates f_{i+s}: the first from the true f_i, later ones from the estimate
    of the step before. `feature [b, n, width]` f_0 .. f_{n-1}, `token [b, n + 1]` t_0 .. t_n. Rows
    i + s > n have no token to read; they read token 0.
    """
    rows = feature.shape[1]
    cache: Any = UnrolledCache()
    read = torch.nn.functional.pad(token[:, head.shift :], (0, steps))
    estimates = []
    for step in range(steps):
        place = torch.arange(step, step + rows, device=feature.device)
        tokens = read[:, step : step + rows]
        feature = head.estimate(target, feature, tokens, target.rotation(place), cache=cache)
        estimates.append(feature)
    return estimates
