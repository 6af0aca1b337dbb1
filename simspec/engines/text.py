"""Recordings from text alone: drafts along texts that an engine or a log has written.

At temperature 0 a draft token is accepted if and only if it is the text's token. A text sampled at
a temperature accepts a draft without probabilities with the same frequency as the engine does: the
target's token equals the draft with probability p(draft). So such a recording has rule "coupled".
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from simspec.engines.ngram import FEATURES, NgramRule, SuffixRule, drafted_text, suffix_text
from simspec.output.files import parse_json, read_lines, reraised
from simspec.trace.file import TraceMeta
from simspec.trace.trace import Trace

MOST_BYTES = 1 << 30
"""Bytes of a file of texts."""
MOST_LINE = 16 << 20
"""Bytes of a line."""
MOST_TEXT = 1 << 21
"""Characters of a text that is encoded: a tokenizer takes 300 bytes of memory for each."""
MOST_TOKENS = 1 << 17
"""Tokens of a prompt with its output."""
MOST_TOKEN_ID = (1 << 31) - 1

Encode = Callable[[str], Sequence[int]]
TokenId = Annotated[int, Meta(ge=0, le=MOST_TOKEN_ID)]


@dataclass(frozen=True, eq=False)
class WrittenText:
    """A prompt and the output that an engine wrote for it."""

    # id, task: names; the line's number and "text" where it gives none
    id: str
    task: str
    # prompt, output: int32 token ids; the output has at least one
    prompt: np.ndarray
    output: np.ndarray
    budget: int  # new tokens that were allowed, at least the output's
    temperature: float = 0.0  # of the sampling; 0: greedy


class Line(msgspec.Struct):
    """A line of a file of texts."""

    prompt: list[TokenId] | str
    output: list[TokenId] | str
    max_tokens: TokenId | None = None
    temperature: Annotated[float, Meta(ge=0, le=sys.float_info.max)] = 0.0
    id: str | int | None = None
    task: str = "text"


def read_texts(path: str | Path, encode: Encode | None = None) -> list[WrittenText]:
    """Reads JSON lines {"prompt", "output", "id"?, "task"?, "max_tokens"?, "temperature"?}.

    prompt and output are lists of token ids, or strings for `encode`; lines with an empty output
    are left out. ValueError with the line for anything else, and where no text is left.
    """
    texts = []
    with reraised(ValueError, f"{path} cannot be read"):
        for number, line in read_lines(path, MOST_LINE, MOST_BYTES):
            with reraised(ValueError, f"line {number}"):
                parse_json(line.decode("utf-8"))  # which refuses a key twice
                text = _text(msgspec.json.decode(line, type=Line), number, encode)
            if len(text.output):
                texts.append(text)
    if not texts:
        raise ValueError(f'{path} holds no text, expected JSON lines with "prompt" and "output"')
    return texts


def _text(line: Line, number: int, encode: Encode | None) -> WrittenText:
    prompt, output = _tokens(line.prompt, encode), _tokens(line.output, encode)
    if len(prompt) + len(output) > MOST_TOKENS:
        raise ValueError(
            f"it has {len(prompt) + len(output):,} tokens, expected at most {MOST_TOKENS:,}"
        )
    budget = max(len(output), 1) if line.max_tokens is None else line.max_tokens
    if budget < len(output):
        raise ValueError(f"max_tokens is {budget}, expected at least {len(output)}, the output's")
    name = str(number if line.id is None else line.id)
    return WrittenText(name, line.task, prompt, output, budget, line.temperature)


def _tokens(value: list[int] | str, encode: Encode | None) -> np.ndarray:
    if isinstance(value, str):
        if encode is None:
            raise ValueError("a text is a string: give token ids, or --tokenizer FOLDER")
        if len(value) > MOST_TEXT:
            raise ValueError(
                f"a text has {len(value):,} characters, expected at most {MOST_TEXT:,}: cut it"
            )
        value = list(encode(value))
    return np.array(value, np.int32)


def text_budgets(
    texts: Sequence[WrittenText], K: int, end_tokens: Sequence[int], sampled: bool
) -> list[int]:
    """New tokens that were allowed after each prompt, of texts that can be recorded to depth K.

    end_tokens end a text: one before its last token is an error, and a text that ends with none
    was cut at its length. sampled allows texts of one temperature above 0. ValueError for such
    texts without it, for several temperatures, and for K outside 1..255.
    """
    if not 1 <= K <= 255:
        raise ValueError(f"the depth is {K}, expected 1 to 255")
    temperatures = sorted({text.temperature for text in texts})
    if temperatures[-1] > 0 and not sampled:
        raise ValueError(
            f"texts were sampled at temperature {temperatures[-1]:g}, and a recording of them "
            "holds for it alone: give sampled=True to label it so, or texts of temperature 0"
        )
    if len(temperatures) > 1:
        raise ValueError(
            f"texts have {len(temperatures)} temperatures, {temperatures[0]:g} to "
            f"{temperatures[-1]:g}, expected one: split the file"
        )
    return [_budget(text, end_tokens) for text in texts]


def record_texts(
    texts: Sequence[WrittenText],
    rule: NgramRule | SuffixRule,
    K: int = 16,
    end_tokens: Sequence[int] = (),
    sampled: bool = False,
    source: str = "",
) -> Trace:
    """A recording of this rule along these texts; no target runs. Errors of `text_budgets`.

    Suffix decoding shows each token's share of the counts as its confidence.
    """
    budgets = text_budgets(texts, K, end_tokens, sampled)
    more: dict[str, Any] = {}
    features: tuple[tuple[str, str], ...] = ()
    if isinstance(rule, SuffixRule):
        drafted: Any = [suffix_text(text.prompt, text.output, rule, K) for text in texts]
        depth, run, more["feature"] = map(np.concatenate, zip(*drafted))
        features, name, note = FEATURES, rule.text, ""
    else:
        drafted = [
            drafted_text(text.prompt, text.output, rule, K, budget, end_tokens)
            for text, budget in zip(texts, budgets)
        ]
        depth, run = map(np.concatenate, zip(*drafted))
        name = rule.name if rule.name == "prompt_lookup" else f"ngram {rule.text}"
        note = "; holds for draft length K = depth alone" if rule.simple else ""
    meta = TraceMeta(
        rule="coupled" if texts[0].temperature else "greedy",
        temperature=texts[0].temperature,
        target=source or "text",
        drafter=name,
        K=K,
        features=features,
        end_tokens=tuple(end_tokens),
        tasks=tuple(text.task for text in texts),
        ids=tuple(text.id for text in texts),
        notes=f"recorded from text alone by the rule {rule.text}{note}",
    )
    return Trace(
        offset=_offsets([len(text.output) for text in texts]),
        budget=np.array(budgets, np.int64),
        token=np.concatenate([text.output for text in texts]),
        depth=depth,
        run=run,
        prompt_offset=_offsets([len(text.prompt) for text in texts]),
        prompt=np.concatenate([text.prompt for text in texts]),
        meta=meta,
        **more,
    )


def _budget(text: WrittenText, end_tokens: Sequence[int]) -> int:
    """New tokens allowed; the text's length where it does not end with an end token."""
    ends = np.flatnonzero(np.isin(text.output, end_tokens))
    if len(ends) and ends[0] < len(text.output) - 1:
        raise ValueError(
            f"text {text.id!r} holds end token {text.output[ends[0]]} at {ends[0] + 1} of "
            f"{len(text.output)} tokens: leave --end-token {text.output[ends[0]]} out, or cut it"
        )
    return text.budget if len(ends) else len(text.output)


def _offsets(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
