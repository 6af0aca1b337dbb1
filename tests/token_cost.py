"""Costs that are linear in tokens, so that every figure of a batch is known."""

from dataclasses import dataclass

import numpy as np

from simspec import CostModel

ROWS = 64  # of a pass that are listed; more are on the same line


@dataclass(frozen=True)
class TokenCost:
    """Seconds of a pass of the target, its rows and cached tokens; of a draft step, a round that
    drafts, a step's further rows and cached tokens; of a round."""

    fixed: float
    token: float = 0.0
    kv: float = 0.0
    draft: float = 0.0
    draft_round: float = 0.0
    draft_row: float = 0.0
    draft_kv: float = 0.0
    overhead: float = 0.0

    def cost(self, K: int, context: float = 0.0) -> CostModel:
        """The CostModel of one sequence with `context` cached tokens, for drafts of up to K."""
        drafts, rows = np.arange(K + 1), np.arange(max(K, ROWS) + 1)
        plain = self.fixed + self.token + self.kv * context
        return CostModel(
            draft=(self.draft + self.draft_kv * context) * drafts + self.draft_round * (drafts > 0),
            verify=plain + self.token * rows,
            catch_up=np.zeros(1), overhead=self.overhead, baseline=self.overhead + plain,
            node=self.draft_row, kv_verify=self.kv, kv_draft=self.draft_kv, context=context,
        )  # fmt: skip
