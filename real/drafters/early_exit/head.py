"""EESD's draft head: new decoder layers, a norm and a head behind the target's first layers."""

from typing import Any

from torch import Tensor, nn

from real.model.decoder import Decoder
from real.model.draft_head import DraftHead
from real.model.draft_vocabulary import DraftVocabularyHead, check_vocabulary
from real.model.layer import DecoderLayer, RMSNorm


class EarlyExitHead(DraftHead):
    """Trained weights behind the target's first `depth` layers (EESD §3.1).

    | setting | meaning |
    | --- | --- |
    | depth | target layers that run before the exit |
    | own_head | a vocabulary head of its own; False: the target's, neither trained nor stored; \
None: its own where there is no new layer |
    | layers | new decoder layers: 1 in EESD §3.1, 0 in its Table 4 |

    New layers and head start as copies of the target's last layer and head. ValueError for a depth
    that leaves no target layer out, a negative number of layers, and neither layer nor head of its
    own.
    """

    head: Any

    def __init__(self, target: Decoder, depth: int, own_head: bool | None = None, layers: int = 1):
        super().__init__()
        if not 1 <= depth < target.config.layers:
            raise ValueError(
                f"exit after {depth} layers of {target.config.layers}; "
                f"expected 1 to {target.config.layers - 1}"
            )
        if layers < 0:
            raise ValueError(f"{layers} new layers; expected 0 (the head alone) or more")
        if own_head is None:
            own_head = not layers
        if not (layers or own_head):
            raise ValueError(
                "layers=0 and own_head=false leave a norm alone to train; "
                "expected a new layer, or a head of its own (EESD Table 4)"
            )
        self.depth, self.own_head = depth, own_head
        self.settings = {"depth": depth, "own_head": own_head, "layers": layers}
        self.layers = nn.ModuleList(DecoderLayer(target.config) for _ in range(layers))
        for layer in self.layers:
            layer.load_state_dict(target.layers[-1].state_dict())
        self.norm = RMSNorm(target.config.width, target.config.norm_eps)
        self.norm.load_state_dict(target.norm.state_dict())
        if own_head:
            self.head = nn.Linear(target.config.width, target.config.vocab, bias=False)
            self.head.weight.data.copy_(target.head.weight.data)
        self.to(target.device, target.dtype)

    def restrict(self, target: Decoder, token: Tensor) -> None:
        """As `DraftHead.restrict`; a head of its own keeps the rows of these tokens."""
        if not self.own_head:
            return super().restrict(target, token)
        self.draft_token = check_vocabulary(token, target.config.vocab)
        own: Any = DraftVocabularyHead(self.head, token, trained=True)
        self.head = own

    def as_language_model(self, target: Decoder) -> Decoder:
        """A decoder of the target's first layers and these; it shares all modules with both."""
        lm = Decoder.__new__(Decoder)
        nn.Module.__init__(lm)
        lm.config, lm.frequency, lm.scaling = target.config, target.frequency, target.scaling
        lm.embed = target.embed
        lm.layers = nn.ModuleList([*target.layers[: self.depth], *self.layers])
        lm.norm = self.norm
        lm.head = self.head if self.own_head else self.shared_output(target)
        return lm
