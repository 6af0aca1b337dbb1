"""EAGLE: one decoder layer that extrapolates the target's features, read by the target's own head (EAGLE §4, arXiv 2401.15077)."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from real.draft import Drafter, Pick, Step
from real.model.checkpoint import WeightsError, ours
from real.model.decoder import Decoder
from real.model.draft_head import fill, load_part, read_state
from real.model.kv_cache import KVCache
from real.model.layer import DecoderLayer
from real.model.rotary import frequencies
from real.model.runner import EAGER
from real.model.span import ForwardContext, Span

INPUTS = ("feature&shifted_token", "feature&unshifted_token", "token", "feature")
"""What row i reads (EAGLE §5.3.2, Figure 10): (f_i, t_{i+1}), (f_i, t_i), t_{i+1} alone, f_i alone."""


class Eagle(nn.Module):
    """The learnt part: FC, then decoder layers; row i estimates f_{i+1}, from which the target's head predicts t_{i+2} (EAGLE §4.1).

    A feature f_i is the target's residual stream at token i after its final norm: what its head multiplies. Embedding and head stay
    the target's. FC maps [embedding; feature], in the order of the released code, or the one of them that `inputs` names, to the width
    (the paper has no FC before single inputs; here it stays, so that the four differ in what they read alone). "token" is the shifted
    one: the newest token is read, a text's first never. As released FC has a `bias` and the first layer no norm in front of its
    attention (`first_norm=False`). `norm_eps` is that of the layers' norms, the target's if None. ValueError for other settings.
    """

    def __init__(
        self,
        target: Decoder,
        inputs: str = INPUTS[0],
        layers: int = 1,
        bias: bool = True,
        first_norm: bool = False,
        norm_eps: float | None = None,
    ):
        super().__init__()
        if inputs not in INPUTS:
            raise ValueError(f"inputs is {inputs!r}; expected one of {', '.join(INPUTS)}")
        if type(layers) is not int or layers < 1:
            raise ValueError(f"layers is {layers!r}; expected an integer, 1 or more")
        if norm_eps is not None and not (isinstance(norm_eps, float) and 0 < norm_eps < 1):
            raise ValueError(
                f"norm_eps is {norm_eps!r}; expected a small positive number, or None for the target's"
            )
        self.settings = {
            "inputs": inputs,
            "layers": layers,
            "bias": bias,
            "first_norm": first_norm,
            "norm_eps": norm_eps,
        }
        shape = target.config if norm_eps is None else replace(target.config, norm_eps=norm_eps)
        self.inputs, self.shift = inputs, int("unshifted" not in inputs)
        self.fc = nn.Linear(shape.width * (1 + ("&" in inputs)), shape.width, bias=bias)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(layers))
        for layer in self.layers:
            for writes in (layer.output, layer.down):
                nn.init.normal_(writes.weight, std=0.02)
        # embeddings are an order smaller than features: both shall count at first
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
        cache: KVCache | None = None,
        start: int = 0,
    ) -> Tensor:
        """Estimates of the next features `[b, n, width]` of rows (`feature [b, n, width]`, `token [b, n]`), as paired by `inputs`."""
        read = [target.embed(token)] if "token" in self.inputs else []
        read += [feature] if "feature" in self.inputs else []
        x = self.fc(torch.cat(read, -1))
        for i, layer in enumerate(self.layers):
            x = layer(x, rotation, mask, cache, i, start)
        return x

    def teach(self, target: Decoder, feature: Tensor, token: Tensor) -> Tensor:
        """Estimates `[b, n, width]` of f_1 .. f_n from true `feature [b, n, width]` f_0 .. f_{n-1} and `token [b, n + 1]` t_0 .. t_n."""
        rows = feature.shape[1]
        rotation = target.rotation(torch.arange(rows, device=feature.device))
        return self.estimate(target, feature, token[:, self.shift : self.shift + rows], rotation)


class EagleDrafter(Drafter):
    """Drafts by extrapolated features; what was drafted re-enters with true ones before the next draft.

    With m committed tokens rows 0 .. m - 2 hold true features, and row m - 2 proposes d_1; step k then feeds the estimate behind d_{k-1}.
    Every draft row is forgotten after the verification: the a + 1 rows that it has made known enter in the next round's first step,
    whose price so depends on a. A proposal depends on how far it is from verified text (not `prefix_only`, but for "token", which reads
    no feature), and on nothing else. A text of one token has no feature yet: then nothing is offered.
    """

    name = "eagle"
    taps = ()
    prefix_only = False
    history_free = True
    captures = True

    def __init__(self, target: Decoder, part: Eagle):
        self.decoder, self.part = target, part
        self.prefix_only = part.inputs == "token"
        self.predictors = {}

    @classmethod
    def load(cls, folder: Path, target: Decoder, made_for: Mapping[str, str]) -> "EagleDrafter":
        """From eagle.json and eagle.safetensors, as `save_part` writes them, or from a checkpoint as `published` reads it."""
        folder = Path(folder)
        if (folder / "config.json").exists() and not (folder / "eagle.json").exists():
            return cls(target, published(folder, target))
        return cls(target, load_part(Eagle, folder, "eagle", target, made_for))

    @torch.inference_mode()
    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.pick = pick
        self.cache = self.passes.cache(
            self.name, self.decoder, len(self.part.layers), len(prompt) + 64
        )
        self.text, self.draft, self.parent = list(prompt), [], []
        self.rows = 0
        self.known = self.decoder.norm(
            prefill.hidden
        )  # true features, those of the last committed rows
        if len(prompt) > 2:
            self._feed(self.known[:-1], self.text[self.part.shift :][: len(prompt) - 2], "")

    @torch.inference_mode()
    def next(self) -> Step | None:
        slot, true, shift = len(self.draft), len(self.text) - 1, self.part.shift
        if not true:
            return None
        if slot:
            found = self._feed(
                self.estimate[None], [self.text[-1], *self.draft][slot - 1 + shift :][:1]
            )
        else:
            found = self._first()
        self.estimate, logits = (each[-1] for each in found)
        self.draft.append(self.pick(logits, slot, self.estimate))
        return Step(self.draft[-1], slot, logits, self.estimate)

    @torch.inference_mode()
    def grow(self, token: list[int], parent: list[int]) -> Tensor | None:
        if len(self.text) == 1:
            return None
        if not self.parent:
            estimates, logits = self._first()
            self.tree, self.estimates = list(token), estimates[-1:]
        else:
            read = token if self.part.shift else [self.tree[p] for p in parent]
            made, logits = self._through(
                self.estimates[parent],
                read,
                Span.tree(self.rows - 1, self.parent + parent, len(token)),
                "tree",
            )
            self.tree, self.estimates = self.tree + token, torch.cat((self.estimates, made))
        self.parent = self.parent + parent
        return logits

    def resume(self) -> None:
        return None

    def rollback(self, accepted: int) -> None:
        self.rows = min(
            self.rows, len(self.text) - 1
        )  # rows of accepted drafts go too: they hold estimates
        self.draft, self.parent = [], []

    @torch.inference_mode()
    def catch_up(self, tokens: list[int], output, path: list[int]) -> None:
        self.text += tokens
        self.known = torch.cat((self.known, self.decoder.norm(output.hidden[path])))

    def _first(self) -> tuple[Tensor, ...]:
        """What lies behind the last committed token, whose row is read anew where a draft of it was given up unverified."""
        true, shift = len(self.text) - 1, self.part.shift
        self.rows = min(self.rows, true - 1)
        found = self._feed(
            self.known[self.rows - true :], self.text[self.rows + shift : true + shift]
        )
        self.known = self.known[-1:]
        return found

    def _feed(self, feature: Tensor, token: list[int], head: str = "last") -> tuple[Tensor, ...]:
        """Takes rows through the part, behind the ones it has: their estimates, and with `head` the logits `[1, vocab]` of the last."""
        found = self._through(feature, token, Span(self.rows, len(token)), head)
        self.rows += len(token)
        return found

    def _through(
        self, feature: Tensor, token: list[int], span: Span, head: str
    ) -> tuple[Tensor, ...]:
        target, part = self.decoder, self.part

        def body(feature: Tensor, token: Tensor, at: ForwardContext) -> tuple[Tensor, ...]:
            x = part.estimate(
                target, feature[None], token[None], at.rotation, at.mask, at.cache, at.start
            )[0]
            return x, *([target.head(at.end(x) if head == "last" else x)] if head else ())

        passes = self.passes if head else EAGER  # the prompt's rows, as many as they are
        return passes.run(f"{self.name} {head}", target, body, [feature, token], span, self.cache)


def published(folder: Path, target: Decoder) -> Eagle:
    """An Eagle from the first EAGLE's released form (SafeAILab/EAGLE, `cnets1`): config.json and model.safetensors.

    Tensors fc.weight, fc.bias (unless config.json says "bias": false), layers.N.self_attn.q_proj.weight and so on in transformers' Llama
    names without the leading "model."; layers.0.input_layernorm.weight where a checkpoint has it. embed_tokens.weight is a frozen copy
    of the target's: compared with it, within rounding, and left. WeightsError, one line, for anything else, for sizes or rotary
    frequencies other than the target's, and for the later forms (EAGLE-3), which read other features.
    """
    config = _config(folder, target)
    state = {_ours(name): value for name, value in read_state(folder / "model.safetensors").items()}
    if "fc.weight" not in state:
        raise WeightsError(
            f"{folder} is no EAGLE checkpoint: model.safetensors lacks the tensor fc.weight"
        )
    found = len({name.split(".")[1] for name in state if name.startswith("layers.")})
    if config["num_hidden_layers"] != found:
        raise WeightsError(
            f"{folder} contradicts itself: config.json says {config['num_hidden_layers']} layers, the tensors {found}"
        )
    if "embed.weight" in state:
        copy, own = state.pop("embed.weight").float(), target.embed.weight.detach().float().cpu()
        if copy.shape != own.shape or not (copy - own).norm() <= 0.02 * own.norm():
            raise WeightsError(
                f"{folder} was made for another target: embed_tokens.weight {list(copy.shape)} is not its embedding"
            )
    bias, first_norm = bool(config.get("bias", True)), "layers.0.attention_norm.weight" in state
    try:
        part = Eagle(
            target,
            layers=found,
            bias=bias,
            first_norm=first_norm,
            norm_eps=config.get("rms_norm_eps", 1e-6),
        )
    except ValueError as error:
        raise WeightsError(
            f"{folder / 'config.json'} asks for what this target cannot have: {error}"
        ) from error
    fill(part, state, str(folder))
    return part.requires_grad_(False).eval()


def _config(folder: Path, target: Decoder) -> dict:
    """config.json, its sizes and rotary frequencies those of the target."""
    s = target.config
    try:
        config = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        theta = float(config.get("rope_theta", 10000.0))
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise WeightsError(
            f"{folder / 'config.json'} cannot be read: {' '.join(str(error).split())[:300]}"
        ) from error
    asked = {
        "hidden_size": s.width,
        "intermediate_size": s.hidden,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
    }
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    for key, mine in asked.items():
        if config.get(key) != mine:
            raise WeightsError(
                f"{folder} does not fit this target: config.json says {key} {config.get(key)}, expected {mine}"
            )
    plain = (
        math.isfinite(theta)
        and theta > 0
        and not config.get("rope_scaling")
        and target.scaling == 1
    )
    if not plain or not torch.allclose(
        frequencies(replace(s, rope_theta=theta)),
        target.frequency.double().cpu(),
        rtol=1e-6,
        atol=0,
    ):
        raise WeightsError(
            f"{folder} does not fit this target: its rotary positions (rope_theta {theta:g}) are not those of the target"
        )
    return config


def _ours(name: str) -> str:
    """Our name of a released tensor, or the name itself where there is none (`fill` then refuses it)."""
    try:
        return ours(f"model.{name}")
    except (KeyError, ValueError):
        return name
