"""Inputs that tests damage or misuse: a recording, its costs, a line of prompts."""

import os
from functools import lru_cache

from real.drafters.eagle import EagleHead
from real.drafters.glide import GlideModel
from real.drafters.hydra import HydraHeads
from real.drafters.medusa import MedusaHeads
from simspec import Trace, load_trace
from simspec.trace.recordings import CHECKOUT as TRACES

HEADS = {"eagle": EagleHead, "medusa": MedusaHeads, "hydra": HydraHeads, "glide": GlideModel}
RECORDING, COSTS = TRACES / "tiny-model-greedy.parquet", TRACES / "tiny-model-greedy.cost.json"


def with_fields(trace, **parts):
    """The trace with some fields replaced, unvalidated ones included."""
    return Trace(**({name: getattr(trace, name) for name in trace.__dataclass_fields__} | parts))


@lru_cache(maxsize=1)
def small_recording():
    return load_trace(RECORDING).select([0, 1, 2])


class PickleBomb:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("exploded",)


RECORD_COMMAND = [
    "record", "p.jsonl", "--out", "x.parquet", "-k", 2, "--budget", 4, "--per-task", 1,
]  # fmt: skip
PROMPT_LINE = b'{"task": "t", "text": "some words"}\n'
