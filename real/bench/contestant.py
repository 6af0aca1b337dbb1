"""A contestant of a race: one way to continue prompts, and what it did."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

PLAIN = "plain"
PLAIN_AGAIN = "plain_again"
"""Plain decoding under a second name: its ratio to plain decoding shows the noise of a race."""


class ContestantError(ValueError):
    """A contestant that cannot be built."""


@dataclass(frozen=True)
class Request:
    """One prompt to continue.

    | field | meaning |
    | --- | --- |
    | prompt | its tokens |
    | budget | new tokens allowed |
    | address | the sequence's address of random draws |
    """

    prompt: Sequence[int]
    budget: int
    address: int = 0


Generate = Callable[[Request], tuple[list[int], int]]
"""Continues one prompt: (new tokens, passes of the target)."""


@dataclass(frozen=True)
class Contestant:
    """One way to continue prompts.

    | field | meaning |
    | --- | --- |
    | name | "plain", "drafter=policy", or a method of `real.bench.hf_generate` |
    | begin | returns a `Generate` with new state; called in every repeat |
    | drafts | whether it speculates |
    | remark | what its name does not say; called after the race |
    | warm | prepares what its first calls showed to be needed |
    | writes_plain | whether its sequences must be those of plain decoding; false where it draws \
its own tokens |
    | own_plain | the contestant that decodes without drafts on the same engine |
    """

    name: str
    begin: Callable[[], Generate]
    drafts: bool
    remark: Callable[[], str] = lambda: ""
    warm: Callable[[], None] = lambda: None
    writes_plain: bool = True
    own_plain: str = PLAIN


def absent(name: str, reason: str) -> Contestant:
    """A contestant that cannot run, and why."""

    def begin() -> Generate:
        raise ContestantError(reason)

    return Contestant(name, begin, True)


@dataclass
class Runs:
    """What a contestant did.

    | field | shape | meaning |
    | --- | --- | --- |
    | name, drafts, writes_plain, own_plain | | the contestant's |
    | token | [R][S][n] | new tokens of every repeat and prompt |
    | passes | [R][S] | of the target |
    | seconds | [R][S] | end to end, prefill included, device synchronized before and after |
    | first | [S] | seconds of a call for one new token |
    | warm | | seconds of the longer of its first two calls, compilation and capture included |
    | remark, error | | its remark; why it failed ("" if it did not) |
    """

    name: str
    drafts: bool
    token: list = field(default_factory=list)
    passes: list = field(default_factory=list)
    seconds: list = field(default_factory=list)
    first: list = field(default_factory=list)
    warm: float = 0.0
    remark: str = ""
    error: str = ""
    writes_plain: bool = True
    own_plain: str = PLAIN
