"""Suffix decoding as vLLM does it with arctic-inference: the likeliest continuation by counts.

The rule was read in `csrc/suffix_decoding/suffix_tree.cc` of github.com/snowflakedb/ArcticInference
and in vLLM 0.32, not compared with a run of either. It counts in a request's own tokens: vLLM's
`suffix_decoding_max_cached_requests` 0. Counts are taken at the occurrences themselves; no tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simspec.numerics.compile import cached_njit
from simspec.trace import quantization as grid

# mypy: disable-error-code="no-untyped-def"

MOST_DEPTH = 1024
FEATURES = (("confidence", "confidence"),)
"""(name, grid) of what a draft shows: each token's share of the counts where it was chosen."""


@dataclass(frozen=True)
class SuffixRule:
    """Settings of suffix decoding, with vLLM's defaults; ValueError outside their ranges.

    | field | vLLM's suffix_decoding_ | meaning |
    | --- | --- | --- |
    | depth | max_tree_depth | most tokens of a match and its draft together |
    | factor | max_spec_factor | a match of m tokens drafts at most int(m factor) |
    | least | min_token_prob | a draft ends where the product of its shares falls below it |
    | most | num_speculative_tokens | most tokens of a draft; the best match depends on it |
    """

    depth: int = 24
    factor: float = 1.0
    least: float = 0.1
    most: int = 24

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
    """A draft and its evidence.

    | field | dtype, shape | meaning |
    | --- | --- | --- |
    | token | int32[d] | the draft |
    | share | float32[d] | occurrences that go on with the token, among those of what is before it |
    | match | int | tokens of the suffix that it continues; 0 without a draft |
    """

    token: np.ndarray
    share: np.ndarray
    match: int

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
