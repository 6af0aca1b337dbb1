"""Latencies: what drafting j tokens, verifying j, catching up and one plain step cost on this machine."""

from collections.abc import Callable
from time import perf_counter

import numpy as np
import torch

from real.block import chain
from real.draft import Drafter
from real.provenance import device_name
from real.sampling import Rule
from real.target import Target
from real.verify import walk
from simspec import CostModel, Stepper, policies

OWED = 4  # catch-up is measured up to this many rows
BLOCK = 4  # rounds of one length in a row: what the last round left in the processor's caches is part of its cost


def measure(
    target: Target,
    drafter: Drafter,
    rule: Rule,
    K: int,
    context: int = 128,
    repeats: int = 12,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, all: None,
) -> CostModel:
    """A CostModel of the decode loop's own steps: medians in seconds, at `context` tokens before the round.

    Draft lengths are visited in blocks, in a new random order in every repeat: a slow minute of the machine falls on
    all of them alike, and a round follows its like, as in a run (a plain step after a pass over 17 rows was measured a
    fifth slower than after another plain step). draft[j] sums the medians of single steps, the policy's question
    included; verify[j] is the pass over j + 1 rows, resumed where the drafter allows it, and the walk; overhead is
    bookkeeping; baseline is verify[0] and the overhead, a round that drafts nothing. catch_up[b] is what a first step
    with b rows owed takes longer than one with none. Clocks wait for the device. Reading features is not in it.
    """
    device = target.decoder.device
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    rng = np.random.default_rng(seed)
    vocab = target.decoder.shape.vocab
    prompt = rng.integers(0, vocab, context).tolist()
    steps: list[list[float]] = [[] for _ in range(K)]
    passes: list[list[float]] = [[] for _ in range(K + 1)]
    rest: list[float] = []
    stepper = Stepper(policies.BUILTIN["fixed"](K), K, 0, CostModel.from_ratio(0.1, K))
    base = 0

    def pick(logits, slot: int) -> int:
        return int(rule.scores(logits[None], 0, [base + slot]).argmax())

    drafter.begin(target, prompt, target.prefill(prompt[:-1]), pick)
    stepper.begin(0)
    for repeat in range(repeats + 1):
        for j in rng.permutation(K + 1):
            for again in range(BLOCK):
                base += K + 1  # fresh positions: their noise is drawn anew, as in a run
                token, times = [prompt[-1]], []
                for _ in range(j):
                    wait()
                    then = perf_counter()
                    stepper.ask(len(times))
                    token.append(drafter.next().token)
                    wait()
                    times.append(perf_counter() - then)
                then = perf_counter()
                verdict = target.verify(token, chain(j + 1), drafter.resume())
                walk(rule, verdict.logits, token, chain(j + 1), 0, base, ())
                wait()
                passed = perf_counter() - then
                then = perf_counter()
                stepper.ask(int(j))
                stepper.end(int(j), int(j), 0)
                drafter.rollback(0)
                wait()
                other = perf_counter() - then
                if repeat and again:  # the first repeat warms allocators, the first round of a block the caches
                    for slot, seconds in enumerate(times):
                        steps[slot].append(seconds)
                    passes[j].append(passed)
                    rest.append(other)
        progress(repeat + 1, repeats + 1)
    owed = np.zeros((repeats, OWED + 1))
    for repeat in range(repeats):
        drafter.begin(target, prompt, target.prefill(prompt[:-1]), pick)
        last = prompt[-1]
        for b in range(OWED + 1):
            base += K + 1
            wait()
            then = perf_counter()
            drafter.next()
            wait()
            owed[repeat, b] = perf_counter() - then
            # back to before that draft, then b + 1 rounds of k = 0
            drafter.begin(target, prompt, target.prefill(prompt[:-1]), pick)
            for _ in range(b + 1):
                verdict = target.verify([last], [-1])
                target.keep([0])
                drafter.rollback(0)
                drafter.catch_up([last], verdict, [0])
    single = np.array([np.median(s) for s in steps])
    verify = np.array([np.median(p) for p in passes])
    catch_up = np.median(owed, 0)
    catch_up = np.maximum(catch_up - catch_up[0], 0.0)
    overhead = float(np.median(rest))
    return CostModel(
        draft=np.concatenate(([0.0], single.cumsum())),
        verify=verify,
        catch_up=catch_up,
        overhead=overhead,
        baseline=float(verify[0]) + overhead,
        name=f"{drafter.name}-{rule.name}",
        device=device_name(device),
    )
