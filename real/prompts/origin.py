"""Where the prompts of a recording come from, beside their sources."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from real.prompts.left_out import LeftOut


@dataclass(frozen=True)
class PromptOrigin:
    """What a recording states about its prompts.

    | field | meaning |
    | --- | --- |
    | left_out | prompts that were read and left out; None: not known |
    | chat | `ChatTemplate.metadata`; {}: no template |
    """

    left_out: LeftOut | None = None
    chat: Mapping[str, str] = field(default_factory=dict)


UNKNOWN_ORIGIN = PromptOrigin()
