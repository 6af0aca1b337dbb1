"""Draft vocabularies: vocabulary heads cut to N tokens, with a map back (EAGLE-3, FR-Spec)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from real.model.hf_config import WeightsError


class DraftVocabularyHead(nn.Module):
    """Logits `[..., vocab]` from the rows of N tokens of a vocabulary head, -inf for all others.

    | attribute | meaning |
    | --- | --- |
    | token int64 `[N]` | the draft vocabulary, ascending: row j scores `token[j]` (EAGLE-3's d2t) |
    | place int64 `[vocab]` | the row of each token; -1 outside |
    | weight `[N, width]`, bias `[N]` | the rows, gathered once; trained if the head is the \
drafter's own |

    So q is 0 outside under every rule, with temperature, top-k and top-p applied inside. Under the
    coupled rule a token keeps its own noise. Confidence, entropy and margin are those of the N
    tokens; tokens outside rank after all of them, the smaller id first, as do those that top-k
    or top-p cut.
    """

    token: Tensor
    place: Tensor
    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, head: nn.Linear, token: Tensor, trained: bool = False):
        super().__init__()
        self.product: nn.Module | None = None  # in the place of the plain product, for timed runs
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

    def linear(self) -> nn.Linear:
        """The rows in use as a linear layer, without a bias where the head has none."""
        weight, bias = self.rows()
        rows, width = weight.shape
        linear = nn.Linear(width, rows, bias=bias is not None, device="meta")
        linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
        if bias is not None:
            linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
        return linear

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
        return F.linear(x, *self.rows()) if self.product is None else self.product(x)

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
