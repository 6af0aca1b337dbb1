"""TokenCost: seconds of passes and rounds that are linear in their tokens."""

from dataclasses import dataclass, fields

import numpy as np

from simspec.cost import CostModel

ROWS = 64
"""Rows of a pass that a stated cost lists; more are on the same line."""


@dataclass(frozen=True)
class TokenCost:
    """Seconds of the parts of a round; all >= 0, `fixed` + `token` > 0.

    | field | name in a text | meaning |
    | --- | --- | --- |
    | fixed | pass | a pass of the target |
    | token | token | each row of it |
    | kv | kv | each cached token that it reads |
    | step | step | a pass in which a sequence has several rows: another kernel |
    | draft | draft | each draft step |
    | draft_round | draft_round | each round that drafts |
    | draft_row | draft_row | each further row of a draft step |
    | draft_kv | draft_kv | each cached token that a draft step reads |
    | overhead | overhead | each round, and each plain step |
    """

    fixed: float
    token: float = 0.0
    kv: float = 0.0
    step: float = 0.0
    draft: float = 0.0
    draft_round: float = 0.0
    draft_row: float = 0.0
    draft_kv: float = 0.0
    overhead: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (np.isfinite(value) and 0 <= value <= 1e6):
                raise ValueError(f"{_text_name(field.name)} is {value}, expected a time >= 0")
        if not self.fixed + self.token > 0:
            raise ValueError("pass and token are 0, expected a pass to take time")

    def plain(self, batch: int = 1, context: float = 0.0) -> float:
        """Seconds of a plain step of so many sequences, `context` cached tokens each."""
        return self.overhead + self.fixed + (self.token + self.kv * context) * batch

    def round(self, K: int, batch: int = 1, context: float = 0.0) -> float:
        """Seconds of a round in which every sequence drafts K tokens."""
        read = (self.draft_row * (batch - 1) + self.draft_kv * batch * context) * K
        drafting = self.step + self.draft_round if K else 0.0
        rows = self.token * batch * K
        return self.plain(batch, context) + rows + drafting + self.draft * K + read

    def cost(self, K: int, context: float = 0.0, name: str = "cost") -> CostModel:
        """The CostModel of one sequence behind `context` cached tokens, for drafts of up to K."""
        drafts, rows = np.arange(K + 1), np.arange(max(K, ROWS) + 1)
        steps = (self.draft + self.draft_kv * context) * drafts
        return CostModel(
            draft=steps + self.draft_round * (drafts > 0),
            verify=self.fixed
            + self.token * (rows + 1)
            + self.kv * context
            + self.step * (rows > 0),
            catch_up=np.zeros(1),
            overhead=self.overhead,
            baseline=self.plain(1, context),
            name=name,
            node=self.draft_row,
            kv_verify=self.kv,
            kv_draft=self.draft_kv,
            step=self.step,
            context=context,
        )


def parse_terms(text: str) -> TokenCost:
    """The costs of a text such as 'pass=5.9,token=0.02,draft=0.4', in milliseconds.

    ValueError for unknown, repeated or missing names, and for values that are no times.
    """
    known = {_text_name(field.name): field.name for field in fields(TokenCost)}
    terms: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in known:
            raise ValueError(f"{name[:40]!r} is no term, expected some of {', '.join(known)}")
        if known[name] in terms:
            raise ValueError(f"{name} is given twice, expected once")
        try:
            terms[known[name]] = float(value) / 1000
        except ValueError:
            raise ValueError(f"{name} is {value[:40]!r}, expected milliseconds") from None
    if "fixed" not in terms:
        raise ValueError("pass is missing, expected the milliseconds of a pass of the target")
    return TokenCost(**terms)


def _text_name(field: str) -> str:
    return "pass" if field == "fixed" else field
