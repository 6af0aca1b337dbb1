"""A race: contestants on the same prompts, in blocks of one prompt and shuffled order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np
import torch

from real.progress import Progress, quiet

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
    """Runs of a contestant.

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


class Kept:
    """Finished repeats of a race; this one keeps nothing."""

    def load(self) -> list[Runs]:
        """Runs of the finished repeats, [] where none is kept."""
        return []

    def save(self, runs: Sequence[Runs]) -> None:
        """Keeps runs after a finished repeat."""


def race(
    contestants: Sequence[Contestant],
    requests: Sequence[Request],
    repeats: int = 5,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = quiet,
    timer: Callable[[], float] = perf_counter,
    kept: Kept | None = None,
) -> list[Runs]:
    """End-to-end wall-clock time of every contestant on every prompt, `repeats` times.

    A repeat takes the prompts in their order, because a stream's state carries over. For each
    prompt all contestants run back to back, shuffled anew by `seed`: a block, in which the machine
    is about the same for all. Before, each warms up on the longest and the shortest request. The
    first repeat also times one new token after every prompt.
    A contestant that fails takes no further part; plain decoding may not fail.
    Repeats that `kept` holds are not run again.
    ValueError for no prompts, no repeats, or contestants of the same name.
    """
    names = [c.name for c in contestants]
    if repeats < 1 or not requests or len(set(names)) < len(names):
        raise ValueError(
            f"{len(requests)} prompts, {repeats} repeats of {', '.join(names)}; "
            "expected a prompt or more, a repeat or more, and no contestant twice"
        )
    kept = kept or Kept()
    cuda = torch.device(device).type == "cuda"
    wait: Callable[[], None] = torch.cuda.synchronize if cuda else lambda: None
    entries = [_Entry(contestant, requests, wait, timer) for contestant in contestants]
    finished = 0
    if before := kept.load():
        finished = max(len(runs.seconds) for runs in before)
        _check_kept(before, names, finished, len(requests))
        for entry, runs in zip(entries, before):
            entry.runs = runs
    if finished < repeats:
        for entry in entries:
            entry.warm_up()
    done, total = finished * len(requests), repeats * len(requests)
    for repeat in range(finished, repeats):
        order = np.random.default_rng((seed, repeat))  # the same where a race is continued
        for entry in entries:
            entry.begin()
        for _ in requests:
            block = [entries[i] for i in order.permutation(len(entries))]
            for entry in block:
                entry.next()
            for entry in () if repeat else block:
                entry.first_token()
            done += 1
            progress("racing", done, total)
        kept.save([entry.finish() for entry in entries])
    return [entry.finish() for entry in entries]


def _check_kept(before: Sequence[Runs], names: list[str], repeats: int, prompts: int) -> None:
    """ValueError unless finished repeats are those of these contestants on as many prompts."""
    sizes = [list(map(len, runs.seconds)) for runs in before if not runs.error]
    first = [len(runs.first) for runs in before if not runs.error]
    if (
        [runs.name for runs in before] != names
        or any(size != [prompts] * repeats for size in sizes)
        or any(count != prompts for count in first)
    ):
        raise ValueError(
            f"finished repeats are of {', '.join(r.name for r in before):.200}; expected "
            f"{', '.join(names)} on {prompts} prompts, name another file to save to"
        )


class _Entry:
    """A contestant during a race."""

    def __init__(
        self,
        contestant: Contestant,
        requests: Sequence[Request],
        wait: Callable[[], None],
        timer: Callable[[], float],
    ):
        self.contestant, self.requests, self.wait, self.timer = contestant, requests, wait, timer
        self.runs = Runs(
            contestant.name,
            contestant.drafts,
            writes_plain=contestant.writes_plain,
            own_plain=contestant.own_plain,
        )
        self.generate: Generate | None = None

    def warm_up(self) -> None:
        """Continues the longest and the shortest request, then warms what they needed."""
        by_length = sorted(self.requests, key=lambda r: len(r.prompt) + r.budget)
        ends = by_length[-1:] if len(by_length) == 1 else [by_length[-1], by_length[0]]
        for request in ends:
            if timed := self._call(None, request):
                self.runs.warm = max(self.runs.warm, timed[2])
        if not self.runs.error:
            self.contestant.warm()

    def begin(self) -> None:
        """Starts a repeat."""
        self.generate = None if self.runs.error else self.contestant.begin()
        for column in (self.runs.token, self.runs.passes, self.runs.seconds):
            column.append([])

    def next(self) -> None:
        """Continues the next request of the repeat."""
        runs = self.runs
        if runs.error:
            return
        if timed := self._call(self.generate, self.requests[len(runs.token[-1])]):
            for column, value in zip((runs.token, runs.passes, runs.seconds), timed):
                column[-1].append(value)

    def first_token(self) -> None:
        """Times one new token after the next prompt."""
        if self.runs.error:
            return
        request = replace(self.requests[len(self.runs.first)], budget=1)
        timed = self._call(None, request)
        self.runs.first.append(timed[2] if timed else 0.0)

    def finish(self) -> Runs:
        """All finished calls."""
        if not self.runs.error:
            self.runs.remark = self.contestant.remark()
        return self.runs

    def _call(
        self, generate: Generate | None, request: Request
    ) -> tuple[list[int], int, float] | None:
        """(tokens, passes, seconds), with new state where none is given; None where it failed."""
        if self.runs.error:
            return None
        try:
            generate = generate or self.contestant.begin()
            self.wait()
            begin = self.timer()
            token, passes = generate(request)
            self.wait()
            return token, passes, self.timer() - begin
        except Exception as error:  # whatever another library raises, the others go on
            if self.contestant.name == PLAIN:
                raise
            self.runs.error = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            return None
