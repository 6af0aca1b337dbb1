"""A verification commits the longest drafted path that the target picks itself, and then the
target's own next token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from real.decode.verify import accept_exact
from real.model.passes import chain
from real.sampling import Rule
from simspec.numerics import rng

HELD = settings(deadline=None, max_examples=200, derandomize=True)
VOCAB = 4
RULES = [Rule(), Rule("coupled", 0.6, 9)]


def line(parent, row):
    """The rows from row 0 down to `row`; None where `row` does not descend from row 0."""
    if row == 0:
        return [0]
    above = line(parent, parent[row]) if parent[row] >= 0 else None
    return above and [*above, row]


def slow_scores(rule, logits, parent, sequence, position):
    """Scores of the rows below row 0, each with the noise of its own position."""
    scores = {}
    for row in range(len(parent)):
        if (path := line(parent, row)) is not None:
            noise = (
                rng.gumbel(rule.seed, sequence, position + len(path) - 1, VOCAB)
                if rule.name == "coupled"
                else 0.0
            )
            scores[row] = logits[row].double() / rule.temperature + noise
    return scores


def slow_walk(scores, token, parent, end_tokens):
    """By enumeration: of all lines from row 0 the longest on which every step is picked, first
    of its like, and no end."""
    pick = {row: int(s.argmax()) for row, s in scores.items()}

    def is_accepted(path):
        for above, row in zip(path, path[1:]):
            twins = [i for i in scores if i and parent[i] == above and token[i] == token[row]]
            if token[row] != pick[above] or row != twins[0]:
                return False
        return not any(token[row] in end_tokens for row in path[1:-1])

    path = max((p for p in (line(parent, row) for row in scores) if is_accepted(p)), key=len)
    accepted = [token[row] for row in path[1:]]
    ended = bool(accepted) and accepted[-1] in end_tokens
    return accepted + ([] if ended else [pick[path[-1]]]), path


def logits_of(data, rows):
    """Random logits without ties, sharp enough for both rules to follow them often."""
    order = [data.draw(st.permutations(range(VOCAB))) for _ in range(rows)]
    return torch.tensor(order, dtype=torch.float64) * 0.7


def check(data, rule, token, parent):
    logits = logits_of(data, len(token))
    sequence, position = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 50))
    end_tokens = tuple(data.draw(st.sets(st.integers(0, VOCAB - 1), max_size=2)))
    scores = slow_scores(rule, logits, parent, sequence, position)
    committed, path = slow_walk(scores, token, parent, end_tokens)
    verified = accept_exact(rule, logits, token, parent, sequence, position, end_tokens)
    assert (verified.token, verified.path, verified.accepted) == (committed, path, len(path) - 1)
    assert torch.equal(verified.scores, torch.stack([scores[row] for row in path]))
    return verified


TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9)


@pytest.mark.parametrize("shape", ["tree", "chain"])
@pytest.mark.parametrize("rule", RULES, ids=["greedy", "coupled"])
def test_acceptance_equals_its_definition(rule, shape):
    longest = []

    @HELD
    @given(TOKENS, st.data())
    def held(token, data):
        parent = chain(len(token))
        if shape == "tree":
            parent = [-1, *(data.draw(st.integers(0, i - 1)) for i in range(1, len(token)))]
        longest.append(check(data, rule, token, parent).accepted)

    held()
    assert max(longest) > 1  # the examples do reach below the first draft


def saying(*picks):
    """Logits whose argmax at each row is the pick named."""
    return torch.nn.functional.one_hot(torch.tensor(picks), VOCAB).double()


def greedy(logits, token, parent, end_tokens=()):
    verified = accept_exact(Rule(), logits, token, parent, 0, 0, end_tokens)
    return verified.token, verified.path


def test_first_rejection_is_replaced_by_the_targets_token():
    assert greedy(saying(1, 2, 3, 0), [0, 1, 2, 0], chain(4)) == ([1, 2, 3], [0, 1, 2])
    assert greedy(saying(1, 2, 3, 0), [0, 1, 2, 3], chain(4)) == ([1, 2, 3, 0], [0, 1, 2, 3])
    assert greedy(saying(1), [0], [-1]) == ([1], [0])


def test_accepted_end_token_stops_without_a_bonus():
    assert greedy(saying(1, 2, 3), [0, 1, 2], chain(3), (2,)) == ([1, 2], [0, 1, 2])
    assert greedy(saying(1, 2, 3), [0, 1, 2], chain(3), (1,)) == ([1], [0, 1])
    control = greedy(saying(1, 2, 3), [0, 1, 2], chain(3))
    assert control == ([1, 2, 3], [0, 1, 2])
    # one of the target is committed, one before the round stops nothing
    assert greedy(saying(1, 2), [0, 3], chain(2), (1,)) == ([1], [0])
    assert greedy(saying(1, 2), [3, 1], chain(2), (3,)) == ([1, 2], [0, 1])


def test_ties_of_siblings_go_to_the_first():
    token, parent = [0, 1, 1, 2], [-1, 0, 0, 2]
    assert greedy(saying(1, 3, 2, 0), token, parent) == ([1, 3], [0, 1])
    assert greedy(saying(1, 3, 2, 0), [0, 3, 1, 2], parent) == ([1, 2, 0], [0, 2, 3])


def test_noise_is_addressed_by_position():
    rule, flat = RULES[1], torch.zeros(1, VOCAB)
    one_by_one = [accept_exact(rule, flat, [0], [-1], 2, p, ()).token[0] for p in range(30)]
    for start in range(25):
        token = [0, *one_by_one[start : start + 4]]
        assert (
            accept_exact(rule, torch.zeros(5, VOCAB), token, chain(5), 2, start, ()).token
            == one_by_one[start : start + 5]
        )
    assert len(set(one_by_one)) > 1


def test_invalid_parents_are_refused():
    with pytest.raises(ValueError, match="parent"):
        accept_exact(Rule(), saying(1, 2), [0, 1], [-1, 1], 0, 0, ())
