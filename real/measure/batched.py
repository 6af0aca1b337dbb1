"""Bare batched passes: what target and drafter cost at a batch size and context, outside the decode loop."""

from collections import defaultdict
from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch

from real.draft import Drafter
from real.model.decoder import Decoder
from real.model.kv_cache import KVCache
from real.model.target import Target
from real.model.tree_mask import ancestor_mask, chain

OWED = 4  # catch-up is measured up to this many rows


class Isolated:
    """Times of single passes of `batch` sequences behind `context` cached rows of random numbers.

    Jobs, for `run`: ("verify", j), the target's pass over a round of j drafts and its head, where the drafter has taken the
    first j rows through the first `shared` layers already; ("draft",), K steps of one row each through the drafter and
    its head; ("owed", b), the first step with b rows owed. Each job allocates its cache, passes once unmeasured, and frees it.
    Picking tokens, the walk and whatever a batched engine does between passes are not in these times.
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
        timer=perf_counter,
    ):
        self.decoder, self.lm, self.shared, self.K = decoder, lm, shared, K
        self.batch, self.context, self.timer = batch, context, timer
        self.random = torch.Generator(decoder.device).manual_seed(seed)
        self.wait = torch.cuda.synchronize if decoder.device.type == "cuda" else lambda: None
        self.found: dict[tuple, list[float]] = defaultdict(list)

    def jobs(self) -> list[tuple]:
        """Every job that a cell needs."""
        return [
            *(("verify", j) for j in range(self.K + 1)),
            ("draft",),
            *(("owed", b) for b in range(self.owed + 1)),
        ]

    @property
    def owed(self) -> int:
        """Rows that can be owed: not more than the context holds."""
        return min(OWED, self.context)

    @torch.inference_mode()
    def run(self, job: tuple, times: int, keep: bool = True) -> None:
        """Does a job `times` times; `keep` says whether its seconds count."""
        name, *sizes = job
        made = {"verify": self._verify, "draft": self._draft, "owed": self._owe}[name](*sizes)
        made()
        for _ in range(times):
            laps = made()
            if keep:
                for i, seconds in enumerate(laps):
                    self.found[(*job, i) if name == "draft" else job].append(seconds)

    def seconds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Medians: verify[j] for j = 0 .. K, draft[j] cumulative, catch_up[b] (a first step with b rows less one with none)."""
        at = {job: float(np.median(seconds)) for job, seconds in self.found.items()}
        step = [at["draft", i] for i in range(self.K)]
        owed = np.array([at["owed", b] - at["owed", 0] for b in range(self.owed + 1)])
        return (
            np.array([at["verify", j] for j in range(self.K + 1)]),
            np.concatenate(([0.0], np.cumsum(step))),
            np.pad(owed, (0, OWED - self.owed), mode="edge"),
        )

    def _filled(self, model: Decoder) -> KVCache:
        cache = model.cache(len(model.layers), self.batch, self.context + self.K + 1)
        for rows in (cache.key, cache.value):
            rows.normal_(generator=self.random)
        return cache

    def _tokens(self, rows: int) -> torch.Tensor:
        device = self.decoder.device
        return torch.randint(
            self.decoder.config.vocab, (self.batch, rows), generator=self.random, device=device
        )

    def _verify(self, drafted: int) -> Callable[[], list[float]]:
        decoder, start, layers = self.decoder, self.context, len(self.decoder.layers)
        cache, token, done = (
            self._filled(decoder),
            self._tokens(drafted + 1),
            drafted if self.shared else 0,
        )
        hidden = decoder.embed(token[:, :done])

        def once():
            then = self._now()
            rotation, mask = _places(decoder, start, drafted + 1)
            if done:
                # as Target._pass: the last draft catches up through the drafter's layers
                last = tuple(t[done:] for t in rotation)
                late = decoder.run(
                    decoder.embed(token[:, done:]),
                    range(self.shared),
                    last,
                    mask[done:],
                    cache,
                    start + done,
                )
                x = torch.cat((hidden, late), 1)
            else:
                x = decoder.embed(token)
            decoder.logits(
                decoder.run(
                    x, range(self.shared if done else 0, layers), rotation, mask, cache, start
                )
            )
            return [self._now() - then]

        return once

    def _draft(self) -> Callable[[], list[float]]:
        cache, token = self._filled(self.lm), self._tokens(1)

        def once():
            laps = []
            for i in range(self.K):
                then = self._now()
                self._step(cache, token, self.context + i, None)
                laps.append(self._now() - then)
            return laps

        return once

    def _owe(self, rows: int) -> Callable[[], list[float]]:
        cache, token = self._filled(self.lm), self._tokens(rows + 1)
        held = self.lm.embed(token[:, :rows])

        def once():
            then = self._now()
            self._step(cache, token, self.context - rows, held)
            return [self._now() - then]

        return once

    def _step(self, cache: KVCache, token, start: int, held) -> None:
        """A draft step: owed rows pass the whole drafter, or its own layers only where the target's pass took them through the others."""
        lm, rows, skipped = self.lm, token.shape[1], token.shape[1] - 1 if self.shared else 0
        rotation, mask = _places(lm, start, rows)
        x = lm.embed(token[:, skipped:])
        if self.shared:
            last = tuple(t[skipped:] for t in rotation)
            x = lm.run(
                x,
                range(self.shared),
                last,
                None if mask is None else mask[skipped:],
                cache,
                start + skipped,
            )
            x = torch.cat((held, x), 1) if skipped else x
        lm.logits(
            lm.run(x, range(self.shared, len(lm.layers)), rotation, mask, cache, start)[:, -1]
        )

    def _now(self) -> float:
        self.wait()
        return self.timer()


def _places(model: Decoder, start: int, rows: int):
    position = torch.arange(start, start + rows, device=model.device)
    return model.rotation(position), ancestor_mask(start, chain(rows), model.device)


def shared_layers(target: Target, drafter: Drafter) -> int:
    """How many of the target's layers the verification of a draft need not run again: asked of the drafter itself."""
    prompt = [0, 0]
    drafter.begin(
        target, prompt, target.prefill(prompt[:-1]), lambda logits, *_: int(logits.argmax())
    )
    drafter.next()
    resume = drafter.resume()
    return 0 if resume is None else resume.layer
