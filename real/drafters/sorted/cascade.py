"""Which exit drafts a token: the first whose confidence reaches its threshold."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from real.model.decoder import Decoder
from simspec.trace.quantization import LOG_ODDS


class Cascade:
    """The first exit whose confidence reaches its threshold, else the last (S2D, Algorithm 1).

    | argument | meaning |
    | --- | --- |
    | exits | layers behind which the exits are, ascending |
    | threshold | of each exit but the last, in [0, 1]; 0 always exits there |

    Confidence is the largest probability at temperature 1, on the grid of recorded confidences, so
    that a recording of all exits decides as a run does. Printed is the probability of the sampled
    token: an exit chosen by the token makes q another law than the token's, and loses the target's
    distribution. S2D's threshold of the last exit is a policy: confidence:T. ValueError for other
    thresholds.
    """

    def __init__(self, exits: Sequence[int], threshold: Sequence[float]):
        self.exits = tuple(exits)
        self.threshold = tuple(float(value) for value in threshold)
        if len(self.threshold) != len(self.exits) - 1:
            raise ValueError(
                f"{len(self.threshold)} thresholds for exits after {self.exits} layers; "
                f"expected {len(self.exits) - 1}, one for each but the last"
            )
        if not all(0 <= value <= 1 for value in self.threshold):
            raise ValueError(f"thresholds are {self.threshold}; expected numbers in [0, 1]")
        # confidence whose grid value is under the threshold stays under this edge
        edges = np.concatenate(([-np.inf], (LOG_ODDS[1:] + LOG_ODDS[:-1]) / 2, [np.inf]))
        codes = np.searchsorted(LOG_ODDS, self.threshold)
        self.edge = [float(edges[code]) for code in codes]

    def leaves(self, exit: int, logits: Tensor) -> bool:
        """Whether a token with logits `[vocab]` is drafted at this exit."""
        return exit == len(self.edge) or bool(confidence(logits) >= self.edge[exit])

    def choose(self, lm: Decoder, hidden: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(logits `[..., vocab]`, hidden `[..., width]`) of the exits that draft, from all exits'
        `hidden [..., width]`."""
        out = hidden[-1]
        logits = lm.logits(out)
        for exit in reversed(range(len(self.edge))):
            own = lm.logits(hidden[exit])
            leaves = (confidence(own) >= self.edge[exit])[..., None]
            logits, out = torch.where(leaves, own, logits), torch.where(leaves, hidden[exit], out)
        return logits, out


def confidence(logits: Tensor) -> Tensor:
    """The largest probability, float64, of logits `[..., vocab]`."""
    return torch.log_softmax(logits.double(), -1).max(-1).values.exp()
