"""A race: every contestant on the same prompts, one at a time, in one shuffled order, whole calls by the clock."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from real.progress import Progress, quiet

PLAIN = "plain"

Once = Callable[[Sequence[int], int, int], tuple[list[int], int]]
"""(prompt, budget, the sequence's address) -> (new tokens, passes of the target)."""


@dataclass(frozen=True)
class Contestant:
    """One way to continue prompts.

    | field | meaning |
    | --- | --- |
    | name | `plain`, `drafter=policy`, or a rival's as `check_rival` takes it |
    | begin | gives an `Once` whose state starts anew, as each repeat does |
    | drafts | whether it speculates |
    | remark | what happened that its name does not say; asked once it has run |
    | warm | makes ready what its first calls showed the need of |
    """

    name: str
    begin: Callable[[], Once]
    drafts: bool
    remark: Callable[[], str] = lambda: ""
    warm: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Runs:
    """What a contestant did.

    | field | shape | meaning |
    | --- | --- | --- |
    | name, drafts | | the contestant's |
    | token | [R][S][n] | new tokens of every repeat and prompt |
    | passes | [R][S] | of the target |
    | seconds | [R][S] | of the whole call, prefill included, device synchronised before and after |
    | first | [S] | seconds of a call with a budget of one token |
    | warm | | seconds of the longer of its first two calls, compilation and capture included |
    | remark, error | | what happened; why it could not run ('' where it did) |
    """

    name: str
    drafts: bool
    token: list
    passes: list
    seconds: list
    first: list
    warm: float
    remark: str
    error: str


class _Lane:
    """A contestant while the race goes on."""

    def __init__(
        self, contestant: Contestant, wait: Callable[[], None], timer: Callable[[], float]
    ):
        self.contestant, self.wait, self.timer = contestant, wait, timer
        self.token, self.passes, self.seconds, self.first = [], [], [], []
        self.warm, self.error, self.once = 0.0, "", None

    def call(self, once: Once | None, *asked) -> tuple[list[int], int, float] | None:
        """(tokens, passes, seconds), by an `Once` made for this call where none is given; None where it failed, which ends its race.

        Our plain loop may not fail: all is measured by it.
        """
        try:
            once = once or self.contestant.begin()
            self.wait()
            then = self.timer()
            token, passes = once(*asked)
            self.wait()
            return token, passes, self.timer() - then
        except Exception as error:  # whatever another library raises, the others go on
            if self.contestant.name == PLAIN:
                raise
            self.error = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]

    def runs(self) -> Runs:
        of, columns = self.contestant, (self.token, self.passes, self.seconds, self.first)
        return Runs(
            of.name, of.drafts, *columns, self.warm, "" if self.error else of.remark(), self.error
        )


def race(
    contestants: Sequence[Contestant],
    prompts: Sequence[Sequence[int]],
    budgets: Sequence[int],
    addresses: Sequence[int] | None = None,
    repeats: int = 3,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = quiet,
    timer: Callable[[], float] = perf_counter,
) -> list[Runs]:
    """Every contestant on every prompt, `repeats` times; one call at a time, those of all contestants in one order shuffled by `seed`.

    A contestant meets the prompts in their order, since a stream's state goes from one to the next. Before, each is warmed up by the prompt
    that needs the most room and by the shortest one; the first repeat holds a call with a budget of one token for every prompt as well.
    ValueError for no prompts, no repeats, or contestants of the same name.
    """
    names = [c.name for c in contestants]
    if (
        repeats < 1
        or not len(prompts)
        or len(prompts) != len(budgets)
        or len(set(names)) < len(names)
    ):
        raise ValueError(
            f"{len(prompts)} prompts, {len(budgets)} budgets, {repeats} repeats of {', '.join(names)}; "
            "expected a prompt or more, a budget for each, a repeat or more, and no contestant twice"
        )
    rng, cuda = np.random.default_rng(seed), torch.device(device).type == "cuda"
    wait = torch.cuda.synchronize if cuda else lambda: None
    texts = list(
        zip(
            prompts,
            map(int, budgets),
            range(len(prompts)) if addresses is None else map(int, addresses),
        )
    )
    by_room = sorted(range(len(texts)), key=lambda s: len(texts[s][0]) + texts[s][1])
    lanes = [_Lane(contestant, wait, timer) for contestant in contestants]
    done, of = 0, len(lanes) * len(texts) * (repeats + 1)
    for lane in lanes:
        for s in {by_room[-1]: 0, by_room[0]: 0}:
            warmed = None if lane.error else lane.call(None, *texts[s])
            lane.warm = max(lane.warm, warmed[2] if warmed else 0.0)
        if not lane.error:
            lane.contestant.warm()
    for repeat in range(repeats):
        order = [(i, False) for i in range(len(lanes)) for _ in texts] + [
            (i, True) for i in range(len(lanes)) for _ in texts if not repeat
        ]
        for lane in lanes:
            lane.once = None if lane.error else lane.contestant.begin()
            for column in (lane.token, lane.passes, lane.seconds):
                column.append([])
        for at in rng.permutation(len(order)):
            lane, only_first = lanes[order[at][0]], order[at][1]
            if not lane.error and only_first:
                prompt, _, address = texts[len(lane.first)]
                found = lane.call(None, prompt, 1, address)
                lane.first.append(found[2] if found else 0.0)
            elif not lane.error and (found := lane.call(lane.once, *texts[len(lane.token[-1])])):
                for column, value in zip((lane.token, lane.passes, lane.seconds), found):
                    column[-1].append(value)
            done += 1
            progress("racing", done, of)
    return [lane.runs() for lane in lanes]
