"""EAGLE: a decoder layer extrapolates the target's features, read by the target's own head."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from real.draft import Drafter, DrafterKind, PaperRecipe, Pick, Step, TrainingBatch, TrainingRecipe
from real.draft.heads import filled, head_loader, new_layers
from real.draft.kind import DraftedLogits, Proposal
from real.draft.losses import hard_loss, learned_rows, soft_loss
from real.model.checkpoint import WeightsError, from_hf_name, llama_config, to_hf_name
from real.model.decoder import MAX_THETA, Decoder, KVCache, Linear, StaticKVCache, frequencies
from real.model.draft_head import DraftHead, read_state, write_published
from real.model.passes import EAGER, BranchCache, ForwardContext, Span, TargetPass, causal_mask
from simspec.output.files import reraised

INPUTS = ("feature&shifted_token", "feature&unshifted_token", "token", "feature")
"""What row i reads (EAGLE §5.3.2, Figure 10): (f_i, t_{i+1}), (f_i, t_i), t_{i+1} or f_i."""

MOST_POSITIONS = 1 << 15
"""Positions of an exported head whose target states no context."""


class EagleHead(DraftHead):
    """FC, then decoder layers: row i estimates f_{i+1}, from which the target predicts t_{i+2}.

    A feature f_i is the target's residual stream at token i after its final norm: what its head
    multiplies. Embedding and head stay the target's (EAGLE §4.1, arXiv 2401.15077).

    The paper has no FC for single inputs; here it stays, so that the four differ in inputs alone.
    ValueError for other settings.
    """

    def __init__(
        self,
        target: Decoder,
        inputs: str = INPUTS[0],  # FC maps [embedding; feature], or one of them, to the width
        layers: int = 1,  # decoder layers
        bias: bool = True,  # of FC, as released
        first_norm: bool = False,  # in front of the first attention; the released head has none
        norm_eps: float | None = None,  # of the layers' norms; None: the target's
    ):
        super().__init__()
        if inputs not in INPUTS:
            raise ValueError(f"inputs is {inputs!r}; expected one of {', '.join(INPUTS)}")
        if type(layers) is not int or layers < 1:
            raise ValueError(f"layers is {layers!r}; expected an integer, 1 or more")
        if norm_eps is not None and not (isinstance(norm_eps, float) and 0 < norm_eps < 1):
            raise ValueError(
                f"norm_eps is {norm_eps!r}; "
                "expected a small positive number, or None for the target's"
            )
        self.settings = {
            "inputs": inputs,
            "layers": layers,
            "bias": bias,
            "first_norm": first_norm,
            "norm_eps": norm_eps,
        }
        config = target.config if norm_eps is None else replace(target.config, norm_eps=norm_eps)
        self.inputs, self.shift = inputs, int("unshifted" not in inputs)
        self.fc = Linear(config.width * (1 + ("&" in inputs)), config.width, bias=bias)
        self.layers = new_layers(config, layers)
        # embeddings are an order of magnitude smaller than features: both shall count at first
        sizes = [target.embed.weight.std()] if "token" in inputs else []
        sizes += [target.norm.weight.square().mean().sqrt()] if "feature" in inputs else []
        for columns, size in zip(self.fc.weight.data.chunk(len(sizes), 1), sizes):
            columns /= size.to(columns)
        if not first_norm:
            self.layers[0].attention_norm = nn.Identity()
        self.to(target.device, target.dtype)

    def estimate(
        self,
        target: Decoder,
        feature: Tensor,
        token: Tensor,
        rotation,
        mask: Tensor | None = None,
        cache: KVCache | StaticKVCache | None = None,
        start: int = 0,
    ) -> Tensor:
        """Estimated next features `[b, n, width]` of rows `feature [b, n, width]`, `token [b, n]`.

        Features and tokens are paired as `inputs` says.
        """
        inputs = [target.embed(token)] if "token" in self.inputs else []
        inputs += [feature] if "feature" in self.inputs else []
        x = self.fc(torch.cat(inputs, -1))
        for i, layer in enumerate(self.layers):
            x = layer(x, rotation, mask, cache, i, start)
        return x

    def teacher_forced(self, target: Decoder, feature: Tensor, token: Tensor) -> Tensor:
        """Estimates `[b, n, width]` of f_1 .. f_n from true features f_0 .. f_{n-1}.

        `feature [b, n, width]`, `token [b, n + 1]` t_0 .. t_n.
        """
        rows = feature.shape[1]
        rotation = target.rotation(torch.arange(rows, device=feature.device))
        return self.estimate(target, feature, token[:, self.shift : self.shift + rows], rotation)


def published(folder: Path, target: Decoder) -> EagleHead:
    """An EagleHead from a checkpoint of SafeAILab/EAGLE (`cnets1`): config.json, model.safetensors.

    | tensor | meaning |
    | --- | --- |
    | fc.weight, fc.bias | FC; no bias where config.json has "bias": false |
    | layers.N.self_attn.q_proj.weight, .. | transformers' Llama names without "model." |
    | layers.0.input_layernorm.weight | optional |
    | embed_tokens.weight | frozen copy of the target's: compared within rounding, then dropped |

    WeightsError for anything else, for sizes or rotary frequencies other than the target's, and for
    later forms (EAGLE-3), which read other features.
    """
    config = _config(folder, target)
    state = {_ours(name): value for name, value in read_state(folder / "model.safetensors").items()}
    if "fc.weight" not in state:
        raise WeightsError(
            f"{folder} is no EAGLE checkpoint: model.safetensors lacks the tensor fc.weight"
        )
    layers = len({name.split(".")[1] for name in state if name.startswith("layers.")})
    if (stated := config.get("num_hidden_layers")) != layers:
        raise WeightsError(
            f"{folder} contradicts itself: config.json says {stated} layers, the tensors {layers}"
        )
    if "embed.weight" in state:
        copy = state.pop("embed.weight").float()
        embedding = target.embed.weight.detach().float().cpu()
        same_shape = copy.shape == embedding.shape
        if not same_shape or not (copy - embedding).norm() <= 0.02 * embedding.norm():
            raise WeightsError(
                f"{folder} was made for another target: "
                f"embed_tokens.weight {list(copy.shape)} is not its embedding"
            )
    form = {
        "layers": layers,
        "bias": bool(config.get("bias", True)),
        "first_norm": "layers.0.attention_norm.weight" in state,
        "norm_eps": config.get("rms_norm_eps", 1e-6),
    }
    return filled(EagleHead, target, form, state, folder)


def publish(head: EagleHead, target: Decoder, folder: Path) -> None:
    """Writes config.json and model.safetensors of vLLM's method `eagle`; `published` reads them.

    vLLM 0.32 (model_executor/models/llama_eagle.py) has an FC without a bias, no norm in front of
    the first layer, Llama layers, and the target's own embedding and head; any tensor `.bias` is
    dropped without a word. WeightsError, one line, naming what else this head needs.
    """
    s, settings = target.config, head.settings
    unserved = {
        f"inputs={head.inputs}": (head.inputs != INPUTS[0], f"train with --set inputs={INPUTS[0]}"),
        "a bias of FC": (head.fc.bias is not None, "train with --set bias=false"),
        "a first norm": (settings["first_norm"], "train with --set first_norm=false"),
        "a draft vocabulary": (
            head.draft_token is not None and len(head.draft_token) < s.vocab,
            f"simspec train eagle --from FOLDER --steps 0 --draft-vocab {s.vocab} keeps the "
            "weights, and drafts from all tokens",
        ),
        "layers with biases or head norms": (
            s.qkv_bias or s.output_bias or s.qk_norm,
            "expected a target of the Llama family",
        ),
        "scaled rotary positions": (
            target.scaling != 1 or not torch.equal(target.frequency, frequencies(s)),
            "expected a target with plain ones",
        ),
    }
    for what, (given, remedy) in unserved.items():
        if given:
            raise WeightsError(f"vLLM's method eagle takes no head with {what}: {remedy}")
    norm_eps = settings["norm_eps"] or s.norm_eps
    form = replace(s, layers=len(head.layers), norm_eps=norm_eps, tied=False)
    config = llama_config(form, target.context or MOST_POSITIONS, torch.float32)
    state = {
        to_hf_name(name).removeprefix("model.") if name.startswith("layers.") else name: value
        for name, value in head.state_dict().items()
    }
    write_published(folder, config | {"bias": False}, state)


def _config(folder: Path, target: Decoder) -> dict:
    """config.json, checked: its sizes and rotary frequencies are those of the target."""
    s = target.config
    with reraised(WeightsError, f"{folder / 'config.json'} cannot be read"):
        config = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        theta = float(config.get("rope_theta", 10000.0))
    expected = {
        "hidden_size": s.width,
        "intermediate_size": s.hidden,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
    }
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    for key, size in expected.items():
        if config.get(key) != size:
            raise WeightsError(
                f"{folder} does not fit this target: "
                f"config.json says {key} {config.get(key)}, expected {size}"
            )
    unscaled = (
        math.isfinite(theta)
        and 0 < theta <= MAX_THETA
        and not config.get("rope_scaling")
        and target.scaling == 1
    )
    if not unscaled or not torch.allclose(
        frequencies(replace(s, rope_theta=theta)),
        target.frequency.double().cpu(),
        rtol=1e-6,
        atol=0,
    ):
        raise WeightsError(
            f"{folder} does not fit this target: "
            f"its rotary positions (rope_theta {theta:g}) are not those of the target"
        )
    return config


def _ours(name: str) -> str:
    """Our name of a released tensor, or the name itself, which `fill` then refuses."""
    try:
        return from_hf_name(f"model.{name}")
    except (KeyError, ValueError):
        return name


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
        output = eagle.shared_output(target)

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
        return self._proposed()

    def extend(self, parent: Tensor, token: Tensor) -> Proposal:
        read = token if self.head.shift else self.token.gather(1, parent)
        width = self.estimate.shape[2]
        feature = self.estimate.gather(1, parent[..., None].expand(*parent.shape, width))
        rotation, mask = self.branches.step(parent, self.target)
        self.estimate = self._forward(feature, read, rotation, mask, self.branches)
        self.token = token
        return self._proposed()

    def _proposed(self) -> Proposal:
        output = self.head.shared_output(self.target)
        return DraftedLogits.from_head(output, self.estimate), self.estimate

    def _forward(self, feature, token, rotation, mask, cache) -> Tensor:
        return self.head.estimate(self.target, feature, token, rotation, mask, cache)


def eagle_loss(
    head: EagleHead,
    target: Decoder,
    batch: TrainingBatch,
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
    are trained, step s with weight fade^(s - 1) (`real.drafters.eagle`); ValueError for
    less than one.
    """
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
    output = head.shared_output(target)
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


KIND = DrafterKind(EagleDrafter, head_loader(RECIPE, published), RECIPE, ParallelEagle)
