"""Contests on a simulated clock that only contestants advance, and toy checkpoints for them."""

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from toy_lm import END, VOCAB, toy_recording

from real.contest import Contestant, Request, contest
from real.model.checkpoint import save_decoder


def requests(count, budget):
    """Requests of one-token prompts."""
    return [Request([1], budget, s) for s in range(count)]


class Clock:
    """A clock that only contestants advance."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def contestant(self, name, start, seconds, commits=1, change=None, factor=(1,) * 9):
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
                return change(token, repeat, request.address) if change else token, passes

            return generate

        return Contestant(name, begin)


TOKENS = [[7, 8] * 10, list(range(20)), list(range(20, 40)), [*range(18), 0, 1]]


def timed(*contestants, repeats=3, clock=None):
    """{name: runs} on four prompts of 20 new tokens."""
    clock = clock or Clock()
    entries = [
        clock.contestant(*c[:3], **(c[3] if len(c) > 3 else {})) if isinstance(c, tuple) else c
        for c in contestants
    ]
    return {r.name: r for r in contest(entries, requests(4, 20), repeats=repeats, timer=clock)}


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

    return Contestant(name, begin)


def save_toys(folder):
    """The toy pair as checkpoints that transformers reads."""
    _, target, drafter = toy_recording("model", "greedy")
    for name, decoder in (("target", target.decoder), ("model", drafter.lm)):
        (folder / name).mkdir()
        save_decoder(decoder, folder / name, END[0], 64, torch.float64)
    words = Tokenizer(WordLevel({str(i): i for i in range(VOCAB)}, unk_token="0"))
    words.save(str(folder / "target" / "tokenizer.json"))
    return folder
