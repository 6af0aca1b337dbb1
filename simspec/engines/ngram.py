"""Drafts that copy earlier tokens as engines do it: n-grams by each matching rule, suffix decoding.

Suffix decoding is vLLM's with arctic-inference: the likeliest continuation by counts. The rule was
read in `csrc/suffix_decoding/suffix_tree.cc` of github.com/snowflakedb/ArcticInference and in vLLM
0.32, not compared with a run of either. It counts in a request's own tokens: vLLM's
`suffix_decoding_max_cached_requests` 0. Counts are taken at the occurrences themselves; no tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from simspec.numerics.compile import cached_njit
from simspec.trace import quantization as grid

# mypy: disable-error-code="no-untyped-def"

MOST_NGRAM = 16
"""Longest n-gram: a search tries every length."""
_END_CODES = {"kept": 0, "last": 1, "dropped": 2}


@dataclass(frozen=True)
class NgramRule:
    """A matching rule: a suffix of the context occurred before, and the draft copies what followed.

    ValueError for other values than these, and lengths outside 1 <= least <= most <= MOST_NGRAM.
    """

    name: str  # of the engine
    # least, most: lengths of suffixes tried, longest first
    least: int = 1
    most: int = 3
    # the first or the last occurrence before the suffix itself
    match: Literal["first", "last"] = "first"
    pads: bool = False  # a draft has K tokens always: missing ones repeat the context's last token
    # llama.cpp's ngram-simple: one length, the last token is outside the searched text, drafts
    # below that length are dropped
    simple: bool = False
    # an end token in a draft is kept, is its last token, or is dropped with the rest
    draft_end: Literal["kept", "last", "dropped"] = "kept"
    # a draft that the budget cuts has recorded depth K, as `simspec record` writes it
    at_budget: bool = False

    def __post_init__(self) -> None:
        sizes = self.least, self.most
        if not all(type(n) is int for n in sizes) or not 1 <= self.least <= self.most <= MOST_NGRAM:
            raise ValueError(
                f"n-gram rule {self.name!r}: lengths are {self.least!r} to {self.most!r}, expected "
                f"whole numbers, 1 <= least <= most <= {MOST_NGRAM}"
            )
        if self.simple and self.least != self.most:
            raise ValueError(
                f"n-gram rule {self.name!r}: llama.cpp's ngram-simple has one length, not two"
            )

    @property
    def text(self) -> str:
        """The rule as `ngram_rule` reads it."""
        sizes = str(self.most) if self.simple else f"{self.least},{self.most}"
        return f"{self.name}:{sizes}"


RULES = {
    rule.name: rule
    for rule in (
        NgramRule("prompt_lookup", draft_end="last", at_budget=True),
        NgramRule("vllm", least=5, most=5),
        NgramRule("vllm_v2", least=5, most=5, match="last", pads=True),
        NgramRule("llamacpp", least=2, most=2, match="last", simple=True),
        NgramRule("transformers", most=2, draft_end="dropped"),
    )
}
"""Rules as released: simspec's own drafter, vLLM 0.32 (V1 runner; V2 runner), llama.cpp's
ngram-simple, transformers 5. Lengths are the engine's default, if any."""


def ngram_rule(text: str) -> NgramRule:
    """The rule of a text NAME, NAME:N or NAME:LEAST,MOST; ValueError for another text."""
    name, colon, sizes = text.partition(":")
    if name not in RULES:
        raise ValueError(
            f"n-gram rule {name!r} is unknown, expected one of {', '.join(RULES)}, then lengths "
            "such as :1,3"
        )
    if not colon:
        return RULES[name]
    parts = sizes.split(",")
    if len(parts) > 2 or not all(part.isascii() and part.isdecimal() for part in parts):
        raise ValueError(f"n-gram rule {text!r}: expected lengths such as {name}:3 or {name}:1,3")
    numbers = [int(part) for part in parts]
    least = numbers[0] if len(numbers) == 2 or RULES[name].simple else RULES[name].least
    return replace(RULES[name], least=min(least, numbers[-1]), most=numbers[-1])


def drafts(tokens: np.ndarray, position: int, K: int, rule: NgramRule) -> np.ndarray:
    """int32[d], d <= K: the draft after the context tokens[:position], by a search of the context.

    `draft_end` and `at_budget` belong to a recording and are not applied. ValueError for a position
    outside 0 .. len(tokens), or a negative K.
    """
    tokens = np.ascontiguousarray(tokens, np.int32)
    if not 0 <= position <= len(tokens) or K < 0:
        raise ValueError(
            f"position is {position} and K {K}, expected 0 to {len(tokens)} and at least 0"
        )
    context = tokens[:position]
    source = _search(context, rule.least, rule.most, rule.match == "first", rule.simple)
    offered = _offered(position, source, K, rule.most, rule.simple)
    draft = context[source : source + offered] if offered else context[:0]
    if rule.pads and position:
        draft = np.concatenate((draft, np.repeat(context[-1:], K - offered)))
    return draft


@cached_njit
def _search(context, least, most, first, llama):
    """Index at which the continuation of the longest matching suffix starts; -1: none."""
    size = len(context)
    for n in range(min(most, size), least - 1, -1):
        # a suffix that ends at the context's end; the match starts before it
        begin, end, step = 0, size - n, 1
        if llama:
            begin, end = 1, size - 1 - n
        if not first:
            begin, end, step = end - 1, begin - 1, -1
        for start in range(begin, end, step):
            i = 0
            while i < n and context[start + i] == context[size - n + i]:
                i += 1
            if i == n:
                return start + n
    return -1


@cached_njit
def _offered(position, source, K, n, llama):
    """Draft tokens that a match at `source` gives to a context of `position` tokens."""
    if source < 0:
        return 0
    if not llama:
        return min(K, position - source)
    searched = position - 1
    if searched <= n + K + 1:
        return 0
    copied = min(K, searched - source)
    return copied if copied >= n else 0


def drafted_text(
    prompt: Sequence[int] | np.ndarray,
    output: Sequence[int] | np.ndarray,
    rule: NgramRule,
    K: int,
    budget: int,
    end_tokens: Sequence[int] = (),
) -> tuple[np.ndarray, np.ndarray]:
    """`drafts` at every position of an output of n tokens: (depth, run).

    uint8[n] draft tokens, uint8[n] leading ones that equal the text, at most what is left of it.
    K 1..255; budget: new tokens allowed, at least len(output).
    """
    tokens = np.concatenate((np.asarray(prompt, np.int32), np.asarray(output, np.int32)))
    depth, run = np.zeros(len(output), np.uint8), np.zeros(len(output), np.uint8)
    search = rule.least, rule.most, rule.match == "first", rule.simple, rule.pads
    record = _END_CODES[rule.draft_end], rule.at_budget, budget
    ends = np.array(sorted(set(end_tokens)), np.int32)
    _draft_text(tokens, len(tokens) - len(output), K, search, record, ends, depth, run)
    return depth, run


@cached_njit
def _draft_text(tokens, first, K, search, record, ends, depth, run):
    """Fills depth and run: a search at every position, and what a recording keeps of its draft."""
    least, most, match_first, llama, pads = search
    draft_end, at_budget, budget = record
    total = tokens.shape[0]
    for position in range(first, total):
        row, context = position - first, tokens[:position]
        source = _search(context, least, most, match_first, llama)
        offered = _offered(position, source, K, most, llama)
        drafted = K if pads and position > 0 else offered
        reach = min(K, budget - row) if at_budget else K
        recorded = K if drafted >= reach else drafted
        agreed, equal = 0, True
        for i in range(min(drafted, reach)):
            token = context[source + i] if i < offered else context[position - 1]
            is_end = draft_end > 0 and _holds(ends, token)
            if is_end and draft_end == 2:
                recorded = i
                break
            equal = equal and position + i < total and token == tokens[position + i]
            agreed += equal
            if is_end:
                recorded = i + 1
                break
        depth[row], run[row] = recorded, agreed


@cached_njit
def _holds(values, value):
    for other in values:  # noqa: SIM110 (numba compiles no generator)
        if other == value:
            return True
    return False


MOST_DEPTH = 1024
FEATURES = (("confidence", "confidence"),)
"""(name, grid) of what a draft shows: each token's share of the counts where it was chosen."""


@dataclass(frozen=True)
class SuffixRule:
    """Settings of suffix decoding, with vLLM's defaults; ValueError outside their ranges."""

    depth: int = 24  # max_tree_depth: most tokens of a match and its draft together
    factor: float = 1.0  # max_spec_factor: a match of m tokens drafts at most int(m factor)
    # min_token_prob: a draft ends where the product of its shares falls below it
    least: float = 0.1
    most: int = 24  # num_speculative_tokens: most tokens of a draft; the best match depends on it

    def __post_init__(self) -> None:
        whole = type(self.depth) is type(self.most) is int
        real = all(type(x) in (int, float) for x in (self.factor, self.least))
        if not (
            whole and real and 1 <= self.depth <= MOST_DEPTH and 1 <= self.most <= MOST_DEPTH
            and 0 <= self.factor <= MOST_DEPTH and 0 <= self.least <= 1
        ):  # fmt: skip
            raise ValueError(
                f"suffix rule has depth {self.depth!r}, factor {self.factor!r}, least "
                f"{self.least!r} and most {self.most!r}, expected whole numbers of 1 to "
                f"{MOST_DEPTH}, a factor of 0 to {MOST_DEPTH} and a probability"
            )

    @property
    def text(self) -> str:
        """The rule as a recording names it."""
        return f"suffix:{self.depth},{self.factor:g},{self.least:g},{self.most}"


@dataclass(frozen=True, eq=False)
class SuffixDraft:
    """A draft and its evidence."""

    token: np.ndarray  # int32[d]: the draft
    # float32[d]: occurrences that go on with the token, among those of what is before it
    share: np.ndarray
    match: int  # tokens of the suffix that it continues; 0 without a draft

    @property
    def codes(self) -> np.ndarray:
        """uint8[d, 1]: FEATURES of each token, on their grid."""
        return grid.encode(self.share, grid.TABLES[FEATURES[0][1]])[0][:, None]


def suffix_draft(context: Sequence[int] | np.ndarray, rule: SuffixRule) -> SuffixDraft:
    """The draft after these tokens: that of the match with the largest sum of products of shares.

    A match of m tokens follows the most frequent next token, the lowest id among equals (in the
    released code a hash table's order decides). Shares are count(s c) / count(s) over the context,
    the end of the context included, in float32 as released. Equal sums: the longer match. Time is
    linear in the context, times `depth` and `most` at worst.
    """
    context = np.ascontiguousarray(context, np.int32)
    token, share = np.zeros(rule.most, np.int32), np.zeros(rule.most, np.float32)
    settings = rule.depth, rule.most, float(rule.factor), np.float32(rule.least)
    length, match = _best_match(context, *settings, token, share)
    return SuffixDraft(token[:length], share[:length], match)


def suffix_text(
    prompt: Sequence[int] | np.ndarray, output: Sequence[int] | np.ndarray, rule: SuffixRule, K: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Drafts at every position of an output of n tokens, cut to K: (depth, run, codes).

    uint8[n] draft tokens, uint8[n] leading ones that equal the text, uint8[n, K, 1] codes.
    """
    tokens = np.concatenate((np.asarray(prompt, np.int32), np.asarray(output, np.int32)))
    first, n = len(prompt), len(output)
    depth, run, codes = np.zeros(n, np.uint8), np.zeros(n, np.uint8), np.zeros((n, K, 1), np.uint8)
    for row in range(n):
        draft = suffix_draft(tokens[: first + row], rule)
        token, ahead = draft.token[:K], tokens[first + row :][:K]
        depth[row], codes[row, : len(token)] = len(token), draft.codes[:K]
        equal = token[: len(ahead)] == ahead[: len(token)]
        run[row] = np.logical_and.accumulate(equal).sum()
    return depth, run, codes


@cached_njit
def _best_match(context, depth, most, factor, least, token, share):
    """(length, match) of the best draft, which goes to `token` and `share`."""
    n = context.shape[0]
    longest = min(n, depth) - 1
    place, common = np.empty(n, np.int64), np.empty(n, np.int64)
    found = 0
    for end in range(1, n + 1):  # an occurrence of the context's last tokens ends here
        m = 0
        while m < min(end, longest) and context[end - 1 - m] == context[n - 1 - m]:
            m += 1
        if m:
            place[found], common[found] = end, m
            found += 1
    held, following = np.empty(found, np.int64), np.empty(found, np.int32)
    tried, shares = np.empty(most, np.int32), np.empty(most, np.float32)
    best, length, match = np.float32(0), 0, 0
    for m in range(longest, 0, -1):
        limit = min(most, int(m * factor + 1e-6), depth - m)
        if best >= limit:  # no sum of shares is larger
            continue
        size = 0
        for i in range(found):
            if common[i] >= m:
                held[size] = place[i]
                size += 1
        d, total, product = 0, np.float32(0), np.float32(1)
        while d < limit:
            chosen, count = _most_frequent(context, held[:size], following)
            ratio = np.float32(count) / np.float32(size)
            product *= ratio
            if count == 0 or product < least:
                break
            tried[d], shares[d] = chosen, ratio
            total += product
            d += 1
            before, size = size, 0
            for i in range(before):
                if held[i] < n and context[held[i]] == chosen:
                    held[size] = held[i] + 1
                    size += 1
        if total > best:
            best, length, match = total, d, m
            token[:d], share[:d] = tried[:d], shares[:d]
    return length, match


@cached_njit
def _most_frequent(context, places, following):
    """(token, count) of what stands most often at these places, the lowest token among equals."""
    inside = 0
    for place in places:
        if place < context.shape[0]:
            following[inside] = context[place]
            inside += 1
    ordered = following[:inside]
    ordered.sort()
    chosen, count, begin = np.int32(-1), 0, 0
    for i in range(1, inside + 1):
        if i == inside or ordered[i] != ordered[begin]:
            if i - begin > count:
                chosen, count = ordered[begin], i - begin
            begin = i
    return chosen, count
