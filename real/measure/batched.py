"""Latency of bare batched passes of target and drafter, outside the decode loop."""

from collections import defaultdict
from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from real.decode.along import start
from real.draft import Drafter
from real.measure.job import BACKLOG, MAX_BACKLOG, STEPS, VERIFY, Job
from real.model.decoder import Decoder
from real.model.kv_cache import KVCache
from real.model.runner import ancestor_mask, chain
from real.model.target import Target

Run = Callable[[], list[float]]
"""One run of a job: seconds of each of its passes."""


class BatchedPasses:
    """Times single passes of `batch` sequences behind `context` cached rows of random numbers.

    | job | passes |
    | --- | --- |
    | verify j | the target and its head over j + 1 rows; the first j have passed `shared` layers |
    | steps | the drafter and its head, K steps of one row each |
    | backlog b | the first step, over b + 1 rows |

    Picking tokens, verification and a batched engine's own work are not included.
    """

    def __init__(
        self,
        decoder: Decoder,
        lm: Decoder,
        shared: int,
        K: int,
        batch: int,
        context: int,
        seed: int = 0,
        timer: Callable[[], float] = perf_counter,
    ):
        self.decoder, self.lm, self.shared, self.K = decoder, lm, shared, K
        self.batch, self.context, self.timer = batch, context, timer
        self.random = torch.Generator(decoder.device).manual_seed(seed)
        self.wait = torch.cuda.synchronize if decoder.device.type == "cuda" else lambda: None
        self.times: dict[Job, list[list[float]]] = defaultdict(list)
        self.waiting: list[list[float]] = []
        self.typical = self.reference = 0.0

    def jobs(self) -> list[Job]:
        """Every job that `seconds` needs."""
        return [
            *(Job(VERIFY, j) for j in range(self.K + 1)),
            Job(STEPS),
            *(Job(BACKLOG, b) for b in range(self.backlog + 1)),
        ]

    @property
    def backlog(self) -> int:
        """The longest backlog to time, limited by the context."""
        return min(MAX_BACKLOG, self.context)

    @torch.inference_mode()
    def run(self, job: Job, times: int, counted: bool = True) -> None:
        """Allocates the job's cache, runs it once unmeasured, then `times` times."""
        if job.kind == STEPS:
            once = self._steps()
        else:
            once = {VERIFY: self._verify, BACKLOG: self._catch_up}[job.kind](job.size)
        once()
        for _ in range(times):
            seconds = once()
            if counted:
                self.times[job].append(seconds)
                self.waiting.append(seconds)

    def settle(self, before: float, after: float) -> None:
        """Scales the seconds that wait by the machine's pace, the mean of both, to the first."""
        self.reference = self.reference or before
        scale = 2 * self.reference / (before + after) if before + after else 1.0
        for seconds in self.waiting:
            seconds[:] = [scale * s for s in seconds]
        self.waiting.clear()

    def seconds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Medians at the `typical` pace: verify[0 .. K]; draft[0 .. K], cumulative;
        catch_up[0 .. MAX_BACKLOG]."""
        scale = self.typical / self.reference if self.typical and self.reference else 1.0
        median = {job: np.median(np.array(runs), 0) * scale for job, runs in self.times.items()}
        backlog = [float(median[Job(BACKLOG, b)][0]) for b in range(self.backlog + 1)]
        catch_up = np.array(backlog) - backlog[0]
        return (
            np.array([float(median[Job(VERIFY, j)][0]) for j in range(self.K + 1)]),
            np.concatenate(([0.0], np.cumsum(median[Job(STEPS)]))),
            np.pad(catch_up, (0, MAX_BACKLOG - self.backlog), mode="edge"),
        )

    def _random_cache(self, model: Decoder) -> KVCache:
        cache = model.cache(len(model.layers), self.batch, self.context + self.K + 1)
        for rows in (cache.key, cache.value):
            rows.normal_(generator=self.random)
        return cache

    def _tokens(self, rows: int) -> Tensor:
        return torch.randint(
            self.decoder.config.vocab,
            (self.batch, rows),
            generator=self.random,
            device=self.decoder.device,
        )

    def _verify(self, drafted: int) -> Run:
        decoder, start = self.decoder, self.context
        cache, token = self._random_cache(decoder), self._tokens(drafted + 1)
        done = drafted if self.shared else 0
        hidden = decoder.embed(token[:, :done])

        def once():
            begin = self._now()
            rotation, mask = _positions(decoder, start, drafted + 1)
            x, layers = decoder.embed(token[:, done:]), range(len(decoder.layers))
            if done:  # as Target._pass: the last draft catches up through the shared layers
                last = tuple(t[done:] for t in rotation)
                x = decoder.run(x, layers[: self.shared], last, mask[done:], cache, start + done)
                x, layers = torch.cat((hidden, x), 1), layers[self.shared :]
            decoder.logits(decoder.run(x, layers, rotation, mask, cache, start))
            return [self._now() - begin]

        return once

    def _steps(self) -> Run:
        cache, token = self._random_cache(self.lm), self._tokens(1)

        def once():
            seconds = []
            for i in range(self.K):
                begin = self._now()
                self._step(cache, token, self.context + i, None)
                seconds.append(self._now() - begin)
            return seconds

        return once

    def _catch_up(self, rows: int) -> Run:
        cache, token = self._random_cache(self.lm), self._tokens(rows + 1)
        hidden = self.lm.embed(token[:, :rows])

        def once():
            begin = self._now()
            self._step(cache, token, self.context - rows, hidden)
            return [self._now() - begin]

        return once

    def _step(self, cache: KVCache, token: Tensor, start: int, hidden: Tensor | None) -> None:
        """A draft step; the target's pass has taken the backlog through shared layers."""
        lm, rows = self.lm, token.shape[1]
        skipped = rows - 1 if self.shared else 0
        rotation, mask = _positions(lm, start, rows)
        x = lm.embed(token[:, skipped:])
        if self.shared:
            last = tuple(t[skipped:] for t in rotation)
            last_mask = None if mask is None else mask[skipped:]
            x = lm.run(x, range(self.shared), last, last_mask, cache, start + skipped)
            if skipped and hidden is not None:
                x = torch.cat((hidden, x), 1)
        layers = range(self.shared, len(lm.layers))
        lm.logits(lm.run(x, layers, rotation, mask, cache, start)[:, -1])

    def _now(self) -> float:
        self.wait()
        return self.timer()


def _positions(model: Decoder, start: int, rows: int) -> tuple:
    position = torch.arange(start, start + rows, device=model.device)
    return model.rotation(position), ancestor_mask(start, chain(rows), model.device)


def shared_layers(target: Target, drafter: Drafter) -> int:
    """How many target layers verification skips, because this drafter has run them."""
    start(target, drafter, [0, 0])
    drafter.next()
    resume = drafter.resume()
    return 0 if resume is None else resume.layer
