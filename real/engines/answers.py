"""Answers that advice cannot rest on: they end at once, or repeat themselves."""

from collections.abc import Sequence

import numpy as np

from real.engines.rows import Row
from simspec.trace.acceptance import repeated_ngrams

AT_ONCE = 2
"""Most tokens of an answer that leaves nothing to draft."""
MOST, MANY = 1 / 2, 1 / 4
"""Shares of answers: that end at once and stop the command, that repeat themselves and cause a
remark."""
REPEATED = 0.5
"""Share of an answer's 8-grams that came before in it, from which on it repeats itself."""


class NothingToDraft(ValueError):
    """Most answers end at once."""


def answer_faults(rows: Sequence[Row], raw: bool = False) -> list[str]:
    """A line for each fault, with its remedy; none for answers that look well.

    raw: prompts went without the chat template that the model has. NothingToDraft where most
    answers end at once.
    """
    answers, found = [row.finished.tokens for row in rows], list[str]()
    ask = "leave --raw out, so that prompts go through the chat template" if raw else (
        "give prompts whose answers are longer, as those of your users"
    )  # fmt: skip
    short = sum(len(tokens) <= AT_ONCE for tokens in answers)
    if short > MOST * len(answers):
        raise NothingToDraft(
            f"{short} of {len(answers)} answers end after a token or two, which leaves too little "
            f"to draft and to measure: {ask}"
        )
    if raw:
        found.append(
            "prompts go without the model's chat template: leave --raw out, unless your users' do"
        )
    loops = sum(repeated_ngrams([np.array(tokens)]) >= REPEATED for tokens in answers)
    if loops >= MANY * len(answers) and loops:
        found.append(
            f"{loops} of {len(answers)} answers repeat themselves, which is easier to draft than "
            "what users read: lower --budget, or give prompts that the model can answer"
        )
    return found
