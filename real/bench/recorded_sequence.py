"""A recording's sequences on random tokens, for models of any vocabulary."""

from dataclasses import dataclass

import numpy as np

from simspec import Trace

END, WRONG, FIRST = 0, 1, 2
"""Tokens: the end token, what a rejected draft proposes, and the first of random tokens."""


@dataclass(frozen=True)
class SequenceSettings:
    """How random sequences are drawn.

    | field | meaning |
    | --- | --- |
    | context | tokens of every prompt; None: as many as recorded, at least 2 |
    | seed | of the tokens, and of policies' draws |
    """

    context: int | None = None
    seed: int = 0


RECORDED = SequenceSettings()


@dataclass(frozen=True)
class RecordedSequence:
    """What was recorded of one sequence, with random tokens in place of its own.

    | field | dtype, shape | meaning |
    | --- | --- | --- |
    | prompt | int list | random tokens |
    | tokens | int list `[n]` | random; END last where the recording ends with an end token |
    | depth, run | uint8 `[n]` | as in `Trace` |
    | feature | uint8 `[n, K, F]` | of all features recorded |
    | budget, sequence | int | as in `Trace` |
    """

    prompt: list[int]
    tokens: list[int]
    depth: np.ndarray
    run: np.ndarray
    feature: np.ndarray
    budget: int
    sequence: int


def recorded_sequences(
    trace: Trace, vocab: int, settings: SequenceSettings = RECORDED
) -> list[RecordedSequence]:
    """One RecordedSequence for each of the trace, for a model of `vocab` tokens.

    ValueError for fewer than 4 tokens, or a context under 2.
    """
    context = settings.context
    if vocab <= FIRST + 1 or (context is not None and context < 2):
        raise ValueError(
            f"vocabulary {vocab} and context {context}; "
            f"expected at least {FIRST + 2} tokens, and a context of 2 or more"
        )
    random, sequences = np.random.default_rng(settings.seed), []
    for s in range(trace.sequences):
        rows = slice(int(trace.offset[s]), int(trace.offset[s + 1]))
        length = context or max(2, int(trace.prompt_offset[s + 1] - trace.prompt_offset[s]))
        prompt, tokens = (
            random.integers(FIRST, vocab, n).tolist() for n in (length, rows.stop - rows.start)
        )
        if int(trace.token[rows.stop - 1]) in trace.meta.end_tokens:
            tokens[-1] = END
        sequences.append(
            RecordedSequence(
                prompt=prompt,
                tokens=tokens,
                depth=trace.depth[rows],
                run=trace.run[rows],
                feature=trace.feature[rows],
                budget=int(trace.budget[s]),
                sequence=int(trace.sequence[s]),
            )
        )
    return sequences
