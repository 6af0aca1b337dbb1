"""Races on a simulated clock that only contestants advance."""

from real.bench.contestants import HfModels, our_contestants
from real.bench.race import Contestant, Request, race
from real.bench.race_rows import race_rows
from real.prompts import ALL


def requests(count, budget):
    """Requests of one-token prompts."""
    return [Request([1], budget, s) for s in range(count)]


class Clock:
    """A clock that only contestants advance."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def contestant(
        self,
        name,
        start,
        seconds,
        commits=1,
        change=lambda token, repeat, s: token,
        factor=(1, 1, 1),
    ):
        """Takes start + seconds * passes, times the repeat's factor; commits tokens a pass."""
        calls = []

        def begin():
            number = len(calls)
            calls.append(0)

            def generate(request):
                passes = -(-request.budget // commits)
                repeat = sum(count > 1 for count in calls[:number])
                calls[number] += 1
                self.now += (start + seconds * passes) * factor[repeat]
                token = TOKENS[request.address][: request.budget]
                return change(token, repeat, request.address), passes

            return generate

        own = "plain" if "=" in name or name == "plain" else "generate"
        return Contestant(name, begin, "=" in name or ":" in name, own_plain=own)


LOOP = [7, 8] * 10


TOKENS = [LOOP, list(range(20)), list(range(20, 40)), [*range(18), 0, 1]]


TASKS = ["code", "math", "math", "code"]


def timed(*contestants, repeats=3, clock=None):
    clock = clock or Clock()
    entries = [
        clock.contestant(*c[:3], **(c[3] if len(c) > 3 else {})) if isinstance(c, tuple) else c
        for c in contestants
    ]
    runs = race(entries, requests(4, 20), repeats=repeats, timer=clock)
    return runs, race_rows(runs, TASKS)


def row(rows, name, group=ALL):
    return next(r for r in rows if (r.contestant, r.group) == (name, group))


def failing(name, after):
    """Fails at its call number `after`."""
    calls = [0]

    def begin():
        def generate(request):
            calls[0] += 1
            if calls[0] > after:
                raise RuntimeError("no\n room")
            return TOKENS[request.address][: request.budget], request.budget

        return generate

    return Contestant(name, begin, True)


def all_contestants(checkpoints, trace, pairs, names, methods):
    """Plain decoding, the `drafter=policy` names, and transformers' methods."""
    ours = our_contestants(trace, pairs, names)
    if not methods:
        return ours
    return ours + HfModels.load(checkpoints, methods).contestants(trace, methods)
