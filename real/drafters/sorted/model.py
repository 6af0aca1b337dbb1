"""A language model with exits that share its norm and head, cut from a target's first layers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from real.model.decoder import Decoder


class SortedModel(Decoder):
    """A decoder with exits behind some of its layers; the last exit is the whole decoder."""

    exits: tuple[int, ...]
    settings: dict

    @classmethod
    def of(cls, lm: Decoder, exits: Sequence[int]) -> "SortedModel":
        """The decoder with these exits; it shares all modules with `lm`."""
        model = cls.__new__(cls)
        model.__dict__.update(lm.__dict__)
        model.exits = tuple(exits)
        return model

    def restrict(self, target: Decoder, token: Tensor) -> None:
        """ValueError: a draft vocabulary is not stored for it."""
        raise ValueError(
            "sorted: its exits draft from the whole vocabulary; leave --draft-vocab out"
        )

    def through_exits(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None = None,
        cache: Any = None,
    ) -> list[Tensor]:
        """Rows behind each exit; the arguments are those of `Decoder.run`."""
        taps: dict[int, Tensor | None] = dict.fromkeys(self.exits)
        self.run(x, range(len(self.layers)), rotation, mask, cache, tap=taps)
        return [rows for rows in taps.values() if rows is not None]


def sorted_model(
    target: Decoder, exits: Sequence[int] = (), thresholds: Sequence[float] = ()
) -> SortedModel:
    """A copy of the target's first layers, norm, embedding and head, to be trained (S2D §3.3).

    | setting | meaning |
    | --- | --- |
    | exits | layers behind which it exits; default as 6, 9 and 12 of 32 |
    | thresholds | of all exits but the last; default 0.75 each |

    It is a model of its own: it drafts for any target with the same tokenizer. ValueError for exits
    that are not ascending layers of the target.
    """
    layers = target.config.layers
    if not exits:
        exits = sorted({max(1, round(layers * share)) for share in (3 / 16, 9 / 32, 3 / 8)})
    check_exits(exits, layers)
    model = SortedModel(replace(target.config, layers=exits[-1]), target.frequency, target.scaling)
    model.to(target.device, target.dtype)
    own = model.state_dict()
    model.load_state_dict({k: v for k, v in target.state_dict().items() if k in own})
    model.context, model.window = target.context, target.window
    model.exits = tuple(exits)
    thresholds = list(thresholds) or [0.75] * (len(exits) - 1)
    model.settings = {"exits": list(exits), "thresholds": thresholds}
    return model


def check_exits(exits: object, layers: int) -> tuple[int, ...]:
    """The exits; ValueError unless they are ascending numbers of the layers."""
    if (
        not isinstance(exits, (list, tuple))
        or not exits
        or not all(type(layer) is int for layer in exits)
        or list(exits) != sorted(set(exits))
        or not 1 <= exits[0] <= exits[-1] <= layers
    ):
        raise ValueError(f"exits are {exits!r}; expected ascending layers of 1 to {layers}")
    return tuple(exits)
