"""Draft heads: trained weights that belong to one target, and heads cut to a draft vocabulary."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from real.files import replace_json, replacing
from real.model.checkpoint import WeightsError
from real.model.decoder import Decoder
from real.model.stored_weights import from_int8, read_bytes, weights_exist
from simspec.output.files import UNREADABLE, parse_json, reraised
from simspec.output.names import printable


class DraftVocabularyHead(nn.Module):
    """Logits `[..., vocab]` from the rows of N tokens of a vocabulary head, -inf for all others.

    So q is 0 outside under every rule, with temperature, top-k and top-p applied inside. Under the
    coupled rule a token keeps its own noise. Confidence, entropy and margin are those of the N
    tokens; tokens outside rank after all of them, the smaller id first, as do those that top-k
    or top-p cut.
    """

    token: Tensor  # int64 [N]: the draft vocabulary, ascending: row j scores token[j] (d2t)
    place: Tensor  # int64 [vocab]: the row of each token; -1 outside
    # weight [N, width], bias [N]: the rows, gathered once; trained if they are the drafter's own
    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, head: nn.Linear, token: Tensor, trained: bool = False):
        super().__init__()
        vocab = head.weight.shape[0]
        token = check_vocabulary(token, vocab).to(head.weight.device)
        place = token.new_full((vocab,), -1)
        place[token] = torch.arange(len(token), device=token.device)
        self.register_buffer("token", token, persistent=False)
        self.register_buffer("place", place, persistent=False)
        for name, rows in (("weight", head.weight), ("bias", head.bias)):
            value = None if rows is None else rows.detach()[token].clone()
            if trained and value is not None:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value, persistent=False)

    def rows(self) -> tuple[Tensor, Tensor | None]:
        """The weight `[N, width]` and bias `[N]` in use."""
        assert self.weight is not None  # only a tied head gathers later
        return self.weight, self.bias

    def whole(self) -> nn.Linear:
        """A head of all tokens, as engines load it: outside, every row is the mean of the N rows.

        A mean of logits is below the largest, unless all are equal: the argmax stays the restricted
        one for every hidden state. Rows of zeros would need a best logit above 0.
        """
        rows, _ = self.rows()
        weight = rows.detach().double().mean(0).to(rows).repeat(len(self.place), 1)
        weight[self.token] = rows.detach()
        head = nn.Linear(rows.shape[1], len(self.place), bias=False, device="meta")
        head.weight = nn.Parameter(weight, requires_grad=False)
        return head

    def compact(self, x: Tensor) -> Tensor:
        """Logits `[..., N]` of rows `x [..., width]`."""
        return F.linear(x, *self.rows())

    def forward(self, x: Tensor) -> Tensor:
        logits = self.compact(x)
        full = logits.new_full((*logits.shape[:-1], len(self.place)), -torch.inf)
        return full.index_copy(-1, self.token, logits)


class TiedDraftVocabularyHead(DraftVocabularyHead):
    """The same over a drafter's tied embedding: rows are gathered at every call while it trains."""

    def __init__(self, embed: nn.Embedding | nn.Linear, token: Tensor):
        rows = nn.Linear(embed.weight.shape[1], embed.weight.shape[0], bias=False, device="meta")
        rows.weight = embed.weight
        super().__init__(rows, token)
        self.source = [embed]  # in a list: the embedding's parameters are not this module's
        self.weight = None

    def rows(self) -> tuple[Tensor, Tensor | None]:
        weight = self.source[0].weight
        if weight.requires_grad:
            return weight[self.token], None
        if self.weight is None:
            self.weight = weight[self.token]
        return self.weight, None


def check_vocabulary(token: Tensor, vocab: int) -> Tensor:
    """The draft vocabulary as int64 `[N]`; WeightsError unless ascending, within 0 .. vocab - 1.

    At least 2 tokens, so that every pick has a margin.
    """
    integer = not (token.is_floating_point() or token.is_complex() or token.dtype == torch.bool)
    if not integer or token.ndim != 1 or not 2 <= len(token) <= vocab:
        raise WeightsError(
            f"the draft vocabulary is {token.dtype} {list(token.shape)}; "
            f"expected 2 to {vocab} integers; train the drafter again"
        )
    token = token.long()
    if token[0] < 0 or token[-1] >= vocab or not bool((token[1:] > token[:-1]).all()):
        raise WeightsError(
            f"the draft vocabulary is not ascending within 0 to {vocab - 1}; "
            "train the drafter again"
        )
    return token


def head_rows(head: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight `[N, width]` and bias `[N]` of a vocabulary head, or of a tied embedding."""
    if isinstance(head, DraftVocabularyHead):
        return head.rows()
    assert isinstance(head, (nn.Linear, nn.Embedding))
    return head.weight, getattr(head, "bias", None)


HASHES = ("tokenizer", "config", "weights")
"""Hashes that identify a target (`made_for`), in the order in which differences are reported."""

MAP = "draft_token"
"""The tensor int32 `[N]` of a weights file that maps rows of the vocabulary head to tokens."""

VOCABULARY = "draft_vocabulary.safetensors"

MOST_PARTS = 64
"""Limit of the layers, blocks and heads of a draft head: published ones have up to 5."""
MOST_SETTING = 1024
"""Limit of other settings: they count the target's layers."""

Head = TypeVar("Head", bound=nn.Module)


class DraftHead(nn.Module):
    """Base class of trained weights that belong to a target.

    | attribute | meaning |
    | --- | --- |
    | settings | keywords that make it anew, as JSON |
    | vocabulary | rows of the target's head that it drafts from; None: the whole head, or its own |
    | draft_token int64 `[N]` | the draft vocabulary, ascending; None: all tokens |
    """

    settings: dict

    def __init__(self) -> None:
        super().__init__()
        self.vocabulary: DraftVocabularyHead | None = None
        self.draft_token: Tensor | None = None

    def restrict(self, target: Decoder, token: Tensor) -> None:
        """Drafts from `token [N]` alone; WeightsError unless ascending and in the vocabulary."""
        self.draft_token = check_vocabulary(token, target.config.vocab)
        self.vocabulary = DraftVocabularyHead(target.head, token)

    def shared_output(self, target: Decoder) -> nn.Module:
        """The target's vocabulary head, or the rows of it that are drafted from."""
        return target.head if self.vocabulary is None else self.vocabulary


def save_draft_head(
    head: nn.Module, folder: Path, name: str, made_for: Mapping[str, str], dtype=torch.bfloat16
) -> None:
    """Writes <name>.safetensors, and <name>.json with `head.settings` and the target's hashes.

    A draft vocabulary goes into both: its size, and the tensor `MAP`.
    """
    token = getattr(head, "draft_token", None)
    state = {k: v.to(dtype).contiguous().clone() for k, v in head.state_dict().items()}
    content: dict[str, object] = {"settings": head.settings, "target": dict(made_for)}
    if token is not None:
        state[MAP] = token.int().cpu()
        content["draft_vocab"] = len(token)
    with replacing(folder / f"{name}.safetensors") as path:
        save_file(state, path)
    replace_json(folder / f"{name}.json", content)


def write_published(
    folder: Path, config: Mapping[str, object], state: Mapping[str, Tensor]
) -> None:
    """Writes config.json and model.safetensors, in float32, as other libraries load a head."""
    held = {name: value.float().cpu().contiguous().clone() for name, value in state.items()}
    with replacing(folder / "model.safetensors") as path:
        save_file(held, path, {"format": "pt"})
    replace_json(folder / "config.json", config)


def check_settings(settings: Mapping[str, object]) -> None:
    """ValueError for a setting that is no size of a head: a fraction, or so large that it hangs."""
    for name, value in settings.items():
        most = MOST_PARTS if name in ("layers", "blocks", "heads") else MOST_SETTING
        for item in value if isinstance(value, list) else [value]:
            if item is None or isinstance(item, bool | str):
                continue
            if name == "norm_eps" and isinstance(item, int | float) and 0 <= item <= 1:
                continue
            if not isinstance(item, int) or not -1 <= item <= most:
                raise ValueError(f"{name} is {item!r:.40}, expected an integer of at most {most}")


def stored_settings(
    folder: Path, name: str, made_for: Mapping[str, str]
) -> tuple[dict, int | None]:
    """The settings in <name>.json, and the size of its draft vocabulary.

    WeightsError if missing, damaged or for another target.
    """
    with reraised(WeightsError, f"{folder} holds no drafter {name!r} ({name}.json)"):
        stored = parse_json((folder / f"{name}.json").read_text(encoding="utf-8"))
        settings, target = dict(stored["settings"]), dict(stored["target"])
    for key in HASHES:
        if target.get(key) != made_for.get(key):
            there, here = printable(str(target.get(key))[:12]), str(made_for.get(key))[:12]
            raise WeightsError(
                f"{folder} was made for a target with {key} {there}, this one has {here}; "
                "train it again for this one"
            )
    return settings, stored.get("draft_vocab")


def made(
    make: Callable[..., Head], target: Decoder, settings: Mapping[str, object], source: str
) -> Head:
    """`make(target, **settings)`; WeightsError for settings of `source` that cannot be."""
    what, raised = "has settings that this target cannot have", (RuntimeError, *UNREADABLE)
    with reraised(WeightsError, f"{source} {what}", raised=raised):
        check_settings(settings)
        return make(target, **settings)


def load_draft_head(
    make: Callable[..., Head],
    folder: str | Path,
    name: str,
    target: Decoder,
    made_for: Mapping[str, str],
) -> Head:
    """`make(target, **settings)` with the weights in `folder`, frozen, in the target's dtype.

    WeightsError, one line, for files that are missing or damaged, that were made for another target
    (by tokenizer, config or weights), or whose tensors are missing, unknown, of another shape or
    not finite.
    """
    folder = Path(folder)
    settings, draft_vocab = stored_settings(folder, name, made_for)
    head = made(make, target, settings, f"{folder / name}.json")
    state = read_state(folder / f"{name}.safetensors")
    if draft_vocab is not None:
        restrict(head, target, state.pop(MAP, None), draft_vocab, str(folder))
    fill(head, state, str(folder))
    return head.to(target.device, target.dtype).requires_grad_(False).eval()


def save_vocabulary(token: Tensor, folder: Path) -> None:
    """Writes draft_vocabulary.safetensors: the map of a drafter with a separate checkpoint."""
    with replacing(folder / VOCABULARY) as path:
        save_file({MAP: token.int().cpu()}, path)


def load_vocabulary(folder: Path, vocab: int) -> Tensor | None:
    """The map int64 `[N]` in draft_vocabulary.safetensors, None without; WeightsError if unfit."""
    if not (folder / VOCABULARY).exists():
        return None
    token = read_state(folder / VOCABULARY).get(MAP)
    if token is None:
        raise WeightsError(f"{folder / VOCABULARY} lacks the tensor {MAP}; train the drafter again")
    return check_vocabulary(token, vocab)


def restrict(
    head: nn.Module, target: Decoder, token: Tensor | None, size: object, source: str
) -> None:
    """Restricts a head to a stored map `token`; WeightsError for one of another `size`, or none."""
    if not isinstance(head, DraftHead):
        raise WeightsError(f"{source} has a draft vocabulary, which this drafter does not know")
    if token is None or token.ndim != 1 or len(token) != size:
        there = "none" if token is None else str(list(token.shape))
        raise WeightsError(
            f"{source} has a draft vocabulary of {size} tokens, its map {MAP} is {there}; "
            "fetch or train it again"
        )
    head.restrict(target, token)


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, plain or packed; WeightsError if missing or damaged.

    Matrices stored as int8 are returned in float32. Pickles are never opened.
    """
    if not weights_exist(path):
        siblings = path.parent.glob("*") if path.parent.is_dir() else ()
        pickles = [p.name for p in siblings if p.suffix in (".bin", ".pt", ".pth")]
        hint = (
            f"{pickles[0]} is a pickle, which is never opened: convert it to safetensors"
            if pickles
            else "no such file"
        )
        raise WeightsError(f"{path} cannot be read: {hint}")
    raised = OSError, ValueError, SafetensorError
    with reraised(WeightsError, f"{path} is damaged or no safetensors file", raised=raised):
        state = load_file(path) if path.exists() else load(read_bytes(path))
    return from_int8(state, str(path))


def fill(head: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Copies `state` into `head`; WeightsError naming the first tensor that does not fit.

    A tensor may be missing, unknown, of another shape or not finite.
    """
    expected = head.state_dict()
    for name in sorted(expected.keys() | state.keys()):
        if name not in state:
            raise WeightsError(
                f"{source} lacks the tensor {name} {list(expected[name].shape)}; "
                "fetch or train it again"
            )
        shape = list(state[name].shape)
        if name not in expected:
            raise WeightsError(
                f"{source} has a tensor {name} {shape} that this drafter does not know; "
                "use a matching checkpoint"
            )
        if state[name].shape != expected[name].shape:
            raise WeightsError(
                f"{source} does not fit this target: "
                f"{name} is {shape}, expected {list(expected[name].shape)}"
            )
        if not state[name].is_floating_point() or not state[name].isfinite().all():
            raise WeightsError(
                f"{source} has a tensor {name} that is not of finite numbers; "
                "fetch or train it again"
            )
    head.load_state_dict({name: value.to(expected[name]) for name, value in state.items()})
