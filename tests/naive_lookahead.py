"""Lookahead decoding from its definition: whole forward passes, one sequence a guess or candidate.

Fu et al., arXiv 2402.02057, Algorithm 2, with the authors' move of the window by one position. It
shares no code with the package.
"""

import numpy as np


def lookahead(best, prompt, budget, sizes, end_tokens=(), longest=99):
    """(new tokens, accepted length of every round); `best(text)` is the target's next token."""
    W, N, G, follow, seed = (sizes[n] for n in ("window", "ngram", "pool", "follow", "seed"))
    rng = np.random.default_rng(seed)
    window = [[prompt[i] for i in rng.integers(0, len(prompt), W)] for _ in range(N - 1)]
    pool, text, accepted = {}, list(prompt), []

    def new():
        return text[len(prompt) :]

    while len(new()) < budget and not (new() and new()[-1] in end_tokens):
        # lookahead branch: each column continues level 0 up to itself
        behind = []
        first = [text[-1], *window[0][1:]]
        for i in range(W):
            guesses = [window[level][i] for level in range(1, N - 1)]
            behind.append(best([*text, *first[1 : i + 1], *guesses]))
        # verification branch: every n-gram for itself, the longest verified one is taken
        cap = min(longest, budget - len(new()) - 1, N - 1)
        candidates = pool.get(text[-1], [])
        if candidates:  # the newest decides how deep: a drafted end token ends the draft
            newest = candidates[-1][:cap]
            stop = next((n + 1 for n, t in enumerate(newest) if t in end_tokens), cap)
            cap = min(cap, stop)
        found = []
        for gram in candidates:
            verified = []
            for token in gram[:cap]:
                if best([*text, *verified]) != token:
                    break
                verified.append(token)
                if token in end_tokens:
                    break
            if len(verified) > len(found):
                found = verified
        # pool: the n-grams of all columns, the newest last, G for a first token
        for i in range(W):
            gram = (*(window[level][i] for level in range(1, N - 1)), behind[i])
            known = [old for old in pool.get(first[i], []) if old != gram]
            pool[first[i]] = [*known, gram][-G:]
        accepted.append(len(found))
        text += found
        if not (found and found[-1] in end_tokens):
            text.append(best(text))
        committed = len(found) + (not (found and found[-1] in end_tokens))
        # Jacobi step: the oldest level leaves, the newest enters, columns move
        window = [*window[1:], behind]
        moved = committed - 1 if follow else 0
        window = [
            [*row, *(prompt[i] for i in rng.integers(0, len(prompt), moved))][moved:]
            for row in window
        ]
    return new(), accepted
