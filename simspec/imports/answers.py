"""Answer files of Spec-Bench, EAGLE and AngelSlim: JSON lines of questions with choices."""

import numpy as np

from simspec.imports.kinds import CensoredRounds, DepthCounts, PooledCounts
from simspec.imports.options import ImportFormat, ImportOptions
from simspec.imports.source import Fields, Source, json_rows
from simspec.imports.totals import (
    PER_ROUND,
    at_constant_length,
    censored,
    check_means,
    mean_of,
    origin_of,
    without_bonus,
)

TOOL = "acceptance_rate_pos_"


def read_spec_bench(source: Source, options: ImportOptions) -> CensoredRounds:
    """Rounds of `accept_lengths`, which count the bonus token; turns follow each other."""
    return _rounds(source, options, "accept_lengths", bonus=True)


def read_angelslim(source: Source, options: ImportOptions) -> CensoredRounds | PooledCounts:
    """Rounds of `accept_length` lists; or the sums of AngelSlim's vLLM tool."""
    rows = json_rows(source.text)
    if rows and "num_drafts" in rows[0]:
        return _tool(source, rows)
    return _rounds(source, options, "accept_length", bonus=False)


def read_eagle(source: Source, options: ImportOptions) -> PooledCounts:
    """Sums of turns: new tokens in `idxs` + 1 rounds, since idxs holds the last round's index.

    `alpha` and `alpha_num`, where there, count accepted and tried drafts by depth.
    """
    names, choices = _choices(source)
    rounds = [int((choice.wholes("idxs") + 1).sum()) for choice in choices]
    tokens = [int(choice.wholes("new_tokens").sum()) for choice in choices]
    counts = np.array([rounds, tokens], np.int64)
    if (counts[1] < counts[0]).any():
        raise ValueError("new_tokens are fewer than rounds in some choice, expected 1 a round")
    withheld, by_depth = {}, {}
    if all("alpha" in choice for choice in choices):
        accepted = np.array([choice.wholes("alpha") for choice in choices])
        tried = np.array([choice.wholes("alpha_num") for choice in choices])
        by_depth[accepted.shape[1]] = DepthCounts(tried, accepted)
        notes = ["alpha is measured on a chain along the target's text, not on these rounds' trees"]
    else:
        withheld["acceptance by depth"] = "EAGLE's answers give rounds and tokens only"
        notes = ["a plain run has one token a round"]
    total = int(counts[0].sum()), int((counts[1] - counts[0]).sum())
    return PooledCounts(
        origin_of(source), len(names), total[0], None, total[1], mean_of(*total),
        "new tokens / rounds (bonus token included)", mean_of(counts[0], counts[1] - counts[0]),
        by_depth, None, withheld, notes=tuple(notes),
    )  # fmt: skip


def _choices(source: Source) -> tuple[list[str], list[Fields]]:
    names, choices = [], []
    for row in json_rows(source.text):
        for i, choice in enumerate(row.inners("choices")):
            names.append(f"{row.name('question_id')}.{i}")
            choices.append(choice)
    if not choices:
        raise ValueError("the file holds no choices, expected one JSON line a question")
    return names, choices


def _rounds(source: Source, options: ImportOptions, key: str, bonus: bool) -> CensoredRounds:
    names, choices = _choices(source)
    lengths = [choice.wholes(key) for choice in choices]
    if bonus:
        for choice, length in zip(choices, lengths):
            if (length == 0).any():
                raise choice.error(key, 0, "at least 1: the bonus token is counted there")
        accepted, notes = [length - 1 for length in lengths], []
    else:
        emitted = sum(int(choice.wholes("new_tokens").sum()) for choice in choices)
        accepted, note = without_bonus(lengths, emitted, key)
        notes = [note]
    deepest = max((int(right.max(initial=0)) for right in accepted), default=0)
    if options.drafted is None and deepest == 0:
        raise ValueError(
            "no draft is accepted, as in a plain run: state --drafted if there were drafts"
        )
    K = options.drafted or deepest
    if deepest > K:
        raise ValueError(f"{deepest} drafted tokens are accepted in a round, --drafted is {K}")
    if options.drafted is None:
        notes.append(
            f"the file gives no draft length: every round is taken as {K} deep, its most accepted; "
            "state --drafted"
        )
    return censored(source, names, [np.full_like(right, K) for right in accepted], accepted, notes)


def _tool(source: Source, rows: list[Fields]) -> PooledCounts:
    if len(rows) != 1:
        raise ValueError(f"{len(rows)} objects with num_drafts, expected one run")
    (row,) = rows
    rounds, drafted = row.whole("num_drafts", 1), row.whole("num_draft_tokens")
    accepted = row.whole("num_accepted_tokens")
    if drafted:
        check_means(row, "mean_acceptance_length", "acceptance_rate", rounds, drafted, accepted)
    names = [f"{TOOL}{i}" for i in range(255) if f"{TOOL}{i}" in row]
    at_least = np.rint(np.array([row.number(name) for name in names]) * rounds).astype(np.int64)
    by_depth, withheld, notes = at_constant_length(rounds, drafted, accepted, at_least)
    return PooledCounts(
        origin_of(source), None, rounds, drafted, accepted, mean_of(rounds, accepted), PER_ROUND,
        None, by_depth, max(by_depth, default=None), withheld, notes=tuple(notes),
    )  # fmt: skip


FORMATS = (
    ImportFormat("spec-bench", read_spec_bench, ("drafted",)),
    ImportFormat("eagle", read_eagle),
    ImportFormat("angelslim", read_angelslim, ("drafted",)),
)
