"""The origin of measured costs."""

from datetime import UTC, datetime

import torch

from real.decode.engine import engines_of, models_of
from real.draft import Drafter
from real.model.prepacked import ways_of
from real.model.target import Target
from real.provenance import processor_name, versions
from simspec.cost.provenance import CostOrigin


def cost_origin(target: Target, drafter: Drafter, sitting: str = "") -> CostOrigin:
    """The origin of costs that are measured now; `sitting` is shared by one measurement's files."""
    decoder = target.decoder
    return CostOrigin(
        device=processor_name(decoder.device),
        threads=torch.get_num_threads(),
        dtype=str(decoder.dtype).removeprefix("torch."),
        engines=engines_of(target, drafter),
        versions=versions(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        sitting=sitting,
        products=ways_of(models_of(decoder, drafter)),
    )
