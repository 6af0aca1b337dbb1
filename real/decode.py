"""THE loop: one drafter, one policy, one rule; plain decoding is the policy fixed(0)."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from real.draft import Drafter
from real.features import Reader
from real.sampling import Rule
from real.target import Target
from real.verify import Walk, walk
from simspec.policy import Stepper

DRAFTING, VERIFICATION, POLICY, OTHER = range(4)


@dataclass(frozen=True)
class Round:
    """What a listener hears after each round.

    | field | meaning |
    | --- | --- |
    | position | new tokens committed before the round |
    | computed, drafted, accepted | draft tokens paid for, submitted, emitted |
    | walk | the tokens committed, the path through the pass's rows, and the scores it was judged by |
    """

    position: int
    computed: int
    drafted: int
    accepted: int
    walk: Walk


@dataclass(frozen=True)
class DecodeResult:
    """One decoded text.

    | field | shape, dtype | meaning |
    | --- | --- | --- |
    | token | int32 `[L]` | the new text, its end token included |
    | position | int64 `[R]` | new tokens committed before each round |
    | computed, drafted, accepted | int64 `[R]` | as in `simspec.Rounds` |
    | seconds | float64 `[R, 4]` | drafting, verification, policy, other |
    """

    token: np.ndarray
    position: np.ndarray
    computed: np.ndarray
    drafted: np.ndarray
    accepted: np.ndarray
    seconds: np.ndarray


class Clock:
    """Time by phase, of a device that may still be busy: synchronised on CUDA where `exact`, else as issued."""

    def __init__(self, device, exact: bool = True):
        self.wait = torch.cuda.synchronize if exact and device.type == "cuda" else lambda: None
        self.rows: list[list[float]] = []
        self.then = perf_counter()

    def begin(self) -> None:
        self.rows.append([0.0] * 4)
        self.then = perf_counter()

    def lap(self, phase: int) -> None:
        self.wait()
        now = perf_counter()
        self.rows[-1][phase] += now - self.then
        self.then = now


def decode(
    target: Target,
    drafter: Drafter,
    stepper: Stepper,
    rule: Rule,
    prompt: list[int],
    budget: int,
    end_tokens: tuple[int, ...] = (),
    sequence: int = 0,
    listen: Callable[[Round], None] = lambda r: None,
) -> DecodeResult:
    """Decodes up to `budget` new tokens after `prompt`; the text is the target's own, whatever is drafted.

    `sequence` addresses the policy's and the rule's draws. Rounds equal those of `simspec.replay` on a recording of
    the same text: the conventions are one by one those of the trace (see NOTATION.md).
    """
    if not prompt:
        raise ValueError("the prompt is empty; expected at least one token (a prompt's last token is the first input)")
    out: list[int] = []

    def pick(logits, slot: int) -> int:
        return int(rule.scores(logits[None], sequence, [len(out) + slot]).argmax())

    reader = Reader(stepper.policy.reads, rule.temperature, drafter)
    stepper.begin(sequence)
    prefill = target.prefill(prompt[:-1])
    reader.begin(prefill)
    drafter.begin(target, prompt, prefill, pick)
    last = prompt[-1]
    rounds: list[tuple[int, int, int, int]] = []
    clock = Clock(target.decoder.device)

    while len(out) < budget and (not out or out[-1] not in end_tokens):
        clock.begin()
        cap = min(stepper.K, budget - len(out) - 1)
        token, parent = [last], [-1]
        while True:
            computed = len(token) - 1
            go, keep = stepper.ask(computed)
            clock.lap(POLICY)
            if not go or computed >= cap or (computed and token[-1] in end_tokens):
                break
            step = drafter.next()
            clock.lap(DRAFTING)
            if step is None:
                break
            token.append(step.token)
            parent.append(step.parent)
            if reader.names:
                stepper.see(computed, reader.read(step, computed)[0])
                clock.lap(POLICY)
        drafted = computed if keep or not computed else computed - 1

        token, parent = token[: drafted + 1], parent[: drafted + 1]
        resume = drafter.resume()
        verdict = target.verify(token, parent, resume)
        clock.lap(VERIFICATION)
        walked = walk(rule, verdict.logits, token, parent, sequence, len(out), end_tokens)
        target.keep(walked.path)
        drafter.rollback(walked.accepted)
        drafter.catch_up(walked.token, verdict, walked.path)
        reader.learn(verdict, walked.path)
        stepper.end(computed, drafted, walked.accepted)
        heard = Round(len(out), computed, drafted, walked.accepted, walked)
        rounds.append((heard.position, computed, drafted, walked.accepted))
        out += walked.token
        last = out[-1]
        clock.lap(OTHER)
        listen(heard)

    column = np.array(rounds, np.int64).reshape(-1, 4).T
    return DecodeResult(np.array(out, np.int32), *column, np.array(clock.rows).reshape(-1, 4))
