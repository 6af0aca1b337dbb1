"""Answer files of Spec-Bench, which its speed.py reads, and of EAGLE and AngelSlim.

Reference: evaluation/eval.py and evaluation/speed.py of Spec-Bench.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simspec import policies
from simspec.cost.model import CostModel
from simspec.engines.counts import (
    PER_ROUND,
    at_constant_length,
    censored,
    check_means,
    mean_of,
    origin_of,
    without_bonus,
)
from simspec.engines.documents import (
    MAX_JSON,
    Fields,
    check_fields,
    check_integer,
    check_list,
    check_number,
    check_text,
    json_rows,
    parse_json,
    shown,
)
from simspec.engines.import_kinds import CensoredRounds, DepthCounts, PooledCounts
from simspec.engines.request import ExportFormat, Request, Settings
from simspec.engines.source import ImportFormat, ImportOptions, Source
from simspec.policy.policy import Policy
from simspec.replay.replay import replay
from simspec.trace.rounds import committed
from simspec.trace.trace import Trace

KIND = "Spec-Bench answers"
KEYS = ("question_id", "category", "answer_id", "model_id", "choices", "tstamp")
TURNS = ("turns", "decoding_steps", "new_tokens", "wall_time")
"""Lists of a choice with one entry for each turn."""


@dataclass(frozen=True)
class Answer:
    """One question's answer; entry i of each list but the last belongs to turn i.

    | field | type | meaning |
    | --- | --- | --- |
    | question_id | int or str | of the question |
    | category | str | task |
    | answer_id, model_id | str | hash of the answer, name of model and method |
    | turns | (str,) | texts of the answer |
    | decoding_steps | (int,) | rounds |
    | new_tokens | (int,) | tokens committed |
    | wall_time | (float,) | seconds; of a replay they are modelled |
    | accept_lengths | (int,) | tokens committed in each round, bonus included, over all turns |
    | tstamp | float | when, in seconds of Unix time; 0 for a replay |
    """

    question_id: int | str
    category: str
    answer_id: str
    model_id: str
    turns: tuple[str, ...]
    decoding_steps: tuple[int, ...]
    new_tokens: tuple[int, ...]
    wall_time: tuple[float, ...]
    accept_lengths: tuple[int, ...]
    tstamp: float = 0.0


def export(request: Request) -> str:
    """The answer file of the policy's replay; turns are empty, since recordings hold no text."""
    name, answers = request.choice.policies[0], list[Answer]()
    if len(request.evidence.batch) > 1:
        raise ValueError(
            f"batch sizes are {list(request.evidence.batch)}, and Spec-Bench decodes one "
            "sequence at a time: give --batch-sizes 1"
        )
    for recording, trace in request.evidence.traces.items():
        cost = request.evidence.costs[recording][0]
        policy = policies.make(name, trace, cost)
        assert isinstance(policy, Policy)
        answers += joined_turns(replayed_answers(trace, policy, cost))
    return answers_text(_with_numbers(answers))


def replayed_answers(
    trace: Trace, policy: Policy, cost: CostModel, seed: int = 0, texts: Sequence[str] | None = None
) -> list[Answer]:
    """An Answer for each sequence of the trace, from one replay.

    texts: the sequences' texts, which speed.py needs of a baseline; default empty.
    """
    rounds = replay(trace, policy, seed=seed, cost=cost)
    lengths, seconds = committed(rounds, trace), cost.reading(policy.reads).seconds(rounds)
    answers = []
    for s, (start, end) in enumerate(zip(rounds.offset, rounds.offset[1:])):
        accept = tuple(map(int, lengths[start:end]))
        identity = f"{trace.meta.target}|{trace.meta.drafter}|{policy.name}|{trace.meta.ids[s]}"
        answers.append(
            Answer(
                question_id=trace.meta.ids[s],
                category=trace.task[s],
                answer_id=hashlib.sha256(identity.encode()).hexdigest()[:22],
                model_id=f"{trace.meta.target}-{trace.meta.drafter}-{policy.name}",
                turns=("" if texts is None else texts[s],),
                decoding_steps=(len(accept),),
                new_tokens=(sum(accept),),
                wall_time=(float(np.sum(seconds[start:end])),),
                accept_lengths=accept,
            )
        )
    return answers


def joined_turns(answers: Iterable[Answer]) -> list[Answer]:
    """The answers with later turns, named ID#2, ID#3 and so on, appended to the answer ID."""
    joined = dict[int | str, Answer]()
    for answer in answers:
        name, _, turn = str(answer.question_id).rpartition("#")
        first = joined.get(name) if turn.isdecimal() else None
        if first is None or int(turn) != len(first.turns) + 1:
            joined[answer.question_id] = answer
            continue
        lists = (*TURNS, "accept_lengths")
        longer = {field: getattr(first, field) + getattr(answer, field) for field in lists}
        joined[name] = replace(first, **longer)
    return list(joined.values())


def answers_text(answers: Iterable[Answer]) -> str:
    """The answers as JSON lines; `read_answers` returns them again."""
    return "".join(json.dumps(_line(answer)) + "\n" for answer in answers)


def read_answers(text: str, complete: bool = False) -> list[Answer]:
    """The answers of a file; ValueError, one line with the line's number, for an invalid one.

    complete: accept_lengths account for every step and token, as in a replay; measured files of
    some methods cut the last round.
    """
    if not isinstance(text, str) or len(text) > MAX_JSON:
        raise ValueError(f"{KIND}: expected text of at most {MAX_JSON} characters")
    answers, seen = list[Answer](), set[Any]()
    for number, line in enumerate(text.splitlines(), 1):
        try:
            answer = _answer(parse_json(line, "line"), complete)
            if answer.question_id in seen:
                raise ValueError(f"question_id {shown(answer.question_id)} comes twice")
            if answers and type(answer.question_id) is not type(answers[0].question_id):
                raise ValueError(
                    f"question_id {shown(answer.question_id)} is of another type than those "
                    "before, and files are sorted by it"
                )
        except ValueError as error:
            raise ValueError(f"{KIND}: line {number}: {error}") from None
        seen.add(answer.question_id)
        answers.append(answer)
    if not answers:
        raise ValueError(f"{KIND}: the file is empty, expected one answer a line")
    return answers


def validate(text: str, settings: Settings) -> None:
    """ValueError, one line, for what speed.py fails on, or leaves out without a word.

    | Spec-Bench would | refused here |
    | --- | --- |
    | fail | missing keys, no choice, no seconds at all, text for numbers |
    | read the first alone | several choices |
    | keep the last | a question_id that comes twice |
    | fail to sort | question_ids of different types |
    | average over other rounds | accept_lengths that are not steps in number and tokens in sum |
    | count a round without a token | an accepted length of 0: the bonus is included |
    """
    read_answers(text, complete=True)


def _answer(data: Any, complete: bool) -> Answer:
    check_fields(data, "the answer", KEYS)
    choices = check_list(data["choices"], "choices", 1)
    choice = check_fields(choices[0], "choices[0]", ("index", *TURNS, "accept_lengths"))
    check_integer(choice["index"], "index", 0)
    identity = data["question_id"]
    if type(identity) is not int:
        check_text(identity, "question_id")
    for name in ("category", "answer_id", "model_id"):
        check_text(data[name], name)
    turns = check_list(choice["turns"], "turns")
    if not all(isinstance(turn, str) for turn in turns):
        raise ValueError(f"turns are {shown(turns)}, expected texts")
    steps, tokens = (_integers(choice[name], name, len(turns), 0) for name in TURNS[1:3])
    times = tuple(
        check_number(value, f"wall_time[{i}]", 0)
        for i, value in enumerate(check_list(choice["wall_time"], "wall_time", len(turns)))
    )
    if not math.fsum(times) > 0:
        raise ValueError("wall_time sums to 0, and speed.py divides by it")
    lengths = _integers(choice["accept_lengths"], "accept_lengths", None, 1)
    if complete and (len(lengths), sum(lengths)) != (sum(steps), sum(tokens)):
        raise ValueError(
            f"accept_lengths are {len(lengths)} rounds of {sum(lengths)} tokens, expected "
            f"{sum(steps)} decoding_steps and {sum(tokens)} new_tokens"
        )
    return Answer(
        identity,
        data["category"],
        data["answer_id"],
        data["model_id"],
        tuple(turns),
        steps,
        tokens,
        times,
        lengths,
        check_number(data["tstamp"], "tstamp", 0),
    )


def _integers(values: Any, name: str, length: int | None, low: int) -> tuple[int, ...]:
    listed = check_list(values, name, length)
    return tuple(check_integer(value, f"{name}[{i}]", low) for i, value in enumerate(listed))


def _line(answer: Answer) -> dict[str, Any]:
    choice = {name: list(getattr(answer, name)) for name in (*TURNS, "accept_lengths")}
    held = {name: getattr(answer, name) for name in KEYS if name != "choices"}
    line = held | {"choices": [{"index": 0} | choice]}
    return {name: line[name] for name in KEYS}


def _with_numbers(answers: list[Answer]) -> list[Answer]:
    """Ids of digits as integers, as Spec-Bench's questions have them, if all are."""
    ids = [str(answer.question_id) for answer in answers]
    if not all(name.isascii() and name.isdecimal() and name == str(int(name)) for name in ids):
        return answers
    return [replace(answer, question_id=int(name)) for answer, name in zip(answers, ids)]


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


EXPORTS = (
    ExportFormat(
        "spec-bench",
        export,
        validate,
        (
            "texts: turns are empty, so that the file serves speed.py as a method, not as the "
            "baseline, whose tokens it counts in the text",
            "wall-clock time: wall_time is modelled",
        ),
    ),
)
IMPORTS = (
    ImportFormat("spec-bench", read_spec_bench, ("drafted",)),
    ImportFormat("eagle", read_eagle),
    ImportFormat("angelslim", read_angelslim, ("drafted",)),
)
