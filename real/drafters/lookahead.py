"""Lookahead decoding: n-grams of the target's own Jacobi iterations (arXiv 2402.02057)."""

import numpy as np

from real.draft import Draft, DrafterKind, Pick, Step
from real.draft.protocol import ConfiguredDrafter

MAX_ROWS = 2048
"""Rows that window and n-grams may add to a pass."""


class LookaheadDrafter(ConfiguredDrafter):
    """Verifies n-grams that Jacobi iterations in the same passes have collected (arXiv 2402.02057).

    Level l of column i holds a guess for position i + l after the last committed token. Level 0
    is a chain, each other guess follows the one above it in its column. The target's best tokens
    after the last level complete W n-grams and become the next level. `follow` False is the
    authors' default (ALWAYS_FWD_ONE, github.com/hao-ai-lab/LookaheadDecoding). The sizes are
    theirs for a 7B model; docs/results.md compares the rest.

    The pool depends on the rounds before: not `history_free`, so that it runs but is not recorded.
    Guesses are best tokens, never drawn: a drafted token has q = 1, and any rule stays lossless.
    A policy sets the depth: no n-gram is verified deeper than the chain that the policy drafted.
    ValueError for sizes out of range.
    """

    name = "lookahead"
    prefix_only = False
    history_free = False

    def __init__(
        self,
        window: int = 15,  # W: columns of the window, positions that are iterated in parallel
        ngram: int = 5,  # N: tokens of an n-gram; the window holds N - 1 iterations
        pool: int = 15,  # G: n-grams kept for a first token, and verified in a round
        follow: bool = False,  # the window moves with all committed tokens, not by one position
        seed: int = 0,  # of the tokens that fill the window, drawn from the prompt
    ):
        least = {"window": (window, 1), "ngram": (ngram, 2), "pool": (pool, 1), "seed": (seed, 0)}
        for name, (value, lowest) in least.items():
            if type(value) is not int or value < lowest:
                raise ValueError(f"{name} is {value!r}; expected an integer of at least {lowest}")
        if type(follow) is not bool:
            raise ValueError(f"follow is {follow!r}; expected true or false")
        if (rows := (window + pool) * (ngram - 1)) > MAX_ROWS:
            raise ValueError(
                f"a window of {window} and {pool} {ngram}-grams are {rows} rows a pass; "
                f"expected at most {MAX_ROWS}"
            )
        self.settings = {
            "window": window, "ngram": ngram, "pool": pool, "follow": follow, "seed": seed,
        }  # fmt: skip
        self.W, self.N, self.G, self.follow, self.seed = window, ngram, pool, follow, seed
        self.max_draft_length = ngram - 1

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.fill, self.prompt = np.random.default_rng(self.seed), list(prompt)
        self.grams: dict[int, list[tuple[int, ...]]] = {}
        self.levels = [self._filling(self.W) for _ in range(self.N - 1)]
        self.last, self.drafted, self.first = prompt[-1], 0, -1

    def next(self) -> Step | None:
        grams = self.grams.get(self.last, ())
        if not grams or self.drafted == self.N - 1:
            return None
        self.drafted += 1
        return Step(grams[-1][self.drafted - 1], self.drafted - 1, None)

    def complete(self, draft: Draft) -> Draft:
        """Adds the pool's other n-grams, merged by their prefixes, and the rows of the window."""
        token, parent, depth = list(draft.token), list(draft.parent), draft.line
        row_of = {tuple(token[1 : row + 1]): row for row in range(depth + 1)}
        for gram in reversed(self.grams.get(self.last, [])):
            for n in range(1, depth + 1):
                if gram[:n] not in row_of:
                    row_of[gram[:n]] = len(token)
                    parent.append(row_of[gram[: n - 1]])
                    token.append(gram[n - 1])
        self.first = len(token) - 1  # column i of level 0 is row first + i, but for column 0
        token += self.levels[0][1:]
        parent += [0, *range(self.first + 1, self.first + self.W - 1)][: self.W - 1]
        rows = [0, *range(self.first + 1, self.first + self.W)]
        for level in self.levels[1:]:
            token, parent = token + level, parent + rows
            rows = list(range(len(token) - self.W, len(token)))
        self.end = rows
        own = len(token) - self.first - 1
        return Draft(token, parent, draft.computed, draft.line, draft.q, own)

    def rollback(self, accepted: int) -> None:
        self.drafted = 0

    def catch_up(self, tokens: list[int], output, path: list[int]) -> None:
        if self.first >= 0:  # the pass held the window
            self._iterate(output.logits[self.end].argmax(-1).tolist(), len(tokens))
        self.last, self.first = tokens[-1], -1

    def _iterate(self, best: list[int], committed: int) -> None:
        """Keeps the n-grams that the best tokens after the last level complete; moves on."""
        self.levels[0][0] = self.last
        for gram in zip(*self.levels, best):
            known = self.grams.setdefault(gram[0], [])
            if gram[1:] in known:
                known.remove(gram[1:])
            known.append(gram[1:])
            del known[: -self.G]
        moved = committed - 1 if self.follow else 0
        self.levels = [(level + self._filling(moved))[moved:] for level in (*self.levels[1:], best)]

    def _filling(self, count: int) -> list[int]:
        """Tokens drawn from the prompt."""
        return [self.prompt[i] for i in self.fill.integers(0, len(self.prompt), count)]


KIND = DrafterKind(LookaheadDrafter, LookaheadDrafter.load)
