"""Verification of a tree behind the layers that a drafter has run for some of its rows."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from test_decoder import DECODER, HELD, RICH, VOCAB, ancestry, close, trees

from real.model.target import Resume, Target


@HELD
@given(trees(), st.integers(1, RICH.layers - 1), st.integers(0, VOCAB - 1), st.data())
def test_verify_resumes_behind_any_part_of_a_tree(tree, layer, following, data):
    prefix, tokens, parent = tree
    chosen = data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=4))
    passed = list(dict.fromkeys(above for row in chosen for above in ancestry(parent, row)))
    extra = data.draw(st.integers(0, len(passed)))  # one that the drafter passes in vain
    whole, resumed = (Target(DECODER, (layer, 4), capacity=4) for _ in range(2))
    for target in (whole, resumed):
        target.prefill(prefix)
    rows = [*passed[:extra], -1, *passed[extra:]] if passed else []
    number, above, hidden = {}, [], []
    for i, row in enumerate(rows):
        above.append(number.get(parent[row], -1) if row >= 0 else -1)
        if row >= 0:
            number[row] = i
        token = [tokens[row] if row >= 0 else following]
        hidden.append(resumed.draft_rows(token, i, layer, above))
    behind = Resume(layer, torch.cat(hidden), tuple(rows)) if rows else None
    plain, short = whole.verify(tokens, parent), resumed.verify(tokens, parent, behind)
    assert close(plain.logits, short.logits)
    assert close(plain.hidden, short.hidden)
    assert all(close(plain.taps[t], short.taps[t]) for t in (layer, 4))
    path = ancestry(parent, data.draw(st.integers(0, len(tokens) - 1)))
    resumed.commit(path)
    whole.prefill([*prefix, *(tokens[row] for row in path)])
    assert close(whole.verify([following], [-1]).logits, resumed.verify([following], [-1]).logits)


def test_control_rows_in_another_order_are_detected():
    target = Target(DECODER)
    target.prefill([5, 6])
    tokens, parent = [7, 8, 9], [-1, 0, 0]
    hidden = torch.cat([target.draft_rows([7], 0, 2), target.draft_rows([9], 1, 2, [-1, 0])])
    right = target.verify(tokens, parent, Resume(2, hidden, (0, 2))).logits
    assert not close(right, target.verify(tokens, parent, Resume(2, hidden, (0, 1))).logits)
