"""Answers that advice cannot rest on: they end at once, or repeat themselves to their end."""

from collections.abc import Callable, Sequence

from real.engines.rows import Row

FEW = 8
"""Answers after which the first look is taken."""
AT_ONCE = 2
"""Most tokens of an answer that leaves nothing to draft."""
NEARLY_ALL, MOST, MANY = 7 / 8, 1 / 2, 1 / 4
"""Shares of answers: that end at once and stop the command, that end at once and cause a remark,
and that repeat themselves and cause a remark."""
REPEATS, LONGEST_LOOP, LEAST_LOOP = 3, 64, 9
"""A loop is an n-gram of at most LONGEST_LOOP tokens, REPEATS times and over LEAST_LOOP tokens."""


class NothingToDraft(ValueError):
    """Nearly all answers end at once."""


def repeats_itself(tokens: Sequence[int]) -> bool:
    """Whether one n-gram, repeated to the end, is half of the answer or more."""
    n = len(tokens)
    for size in range(1, min(LONGEST_LOOP, n // REPEATS) + 1):
        start = n - size
        while start > 0 and tokens[start - 1] == tokens[start - 1 + size]:
            start -= 1
        if n - start >= max(REPEATS * size, n / 2, LEAST_LOOP):
            return True
    return False


def answer_faults(rows: Sequence[Row], raw: bool = False) -> dict[str, str]:
    """{fault: one line with its remedy}; {} for answers that look well.

    raw: prompts went without the chat template that the model has. NothingToDraft where nearly all
    answers end at once.
    """
    answers, found = [row.finished.tokens for row in rows], {}
    ask = "leave --raw out, so that prompts go through the chat template" if raw else (
        "give prompts whose answers are longer, as those of your users"
    )  # fmt: skip
    short = sum(len(tokens) <= AT_ONCE for tokens in answers)
    ended = f"{short} of {len(answers)} answers end after a token or two"
    if short >= NEARLY_ALL * len(answers):
        raise NothingToDraft(f"{ended}, which leaves nothing to draft or to measure: {ask}")
    if short > MOST * len(answers):
        found["short"] = f"{ended}, which leaves little to draft: {ask}"
    if raw:
        found["raw"] = (
            "prompts go without the model's chat template: leave --raw out, unless your users' do"
        )
    loops = sum(map(repeats_itself, answers))
    if loops >= MANY * len(answers) and loops:
        found["loops"] = (
            f"{loops} of {len(answers)} answers repeat themselves to their end, which is easier to "
            "draft than what users read: lower --budget, or give prompts that the model can answer"
        )
    return found


class AnswerWatch:
    """Tells each fault once, as soon as FEW answers are there: called with all of them so far."""

    def __init__(self, tell: Callable[[str], None], raw: bool = False):
        self.tell, self.raw = tell, raw
        self.told: set[str] = set()

    def __call__(self, rows: Sequence[Row]) -> None:
        faults = answer_faults(rows, self.raw) if len(rows) >= FEW else {}
        for name in faults.keys() - self.told:
            self.tell(faults[name])
        self.told |= faults.keys()
