"""Orders of dynamic trees are recorded, and continue."""

from dataclasses import replace

import naive_tree
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_decoder import DECODER, HELD, RICH, VOCAB, ancestry, close, trees
from toy_lm import END, RULES, toy_pair, toy_prompts
from tree_runs import LEVELS, WIDTH, logprob_and_scores, recording

from real.decode.features import drafter_features
from real.model.target import Resume, Target
from real.prompts import Prompt
from real.record import RecordError, Recording, RecordingFiles, Settings, record_all
from real.record.recorder import record_sequence
from real.record.settings import describe
from real.record.tree_order import tree_order_stepwise
from real.rerun import prompts_of
from real.sampling import Rule
from simspec import load_trace


@pytest.mark.parametrize("name, rule", [("eagle", "coupled"), ("model", "greedy")])
def test_recorded_order_equals_a_stateless_twin(name, rule):
    trace, *_ = recording(name, rule)
    part, sequence = trace.select([1]), 1
    (prompt,), text = prompts_of(part), part.token.tolist()
    for row in (0, 3, 7, len(text) - 2, len(text) - 1):
        known = {}

        def behind(ranks, row=row, known=known):
            """(tokens of this path of ranks, log q behind it, tokens by rank behind it)."""
            if ranks not in known:
                tokens = []
                if ranks:
                    before, _, ranked = behind(ranks[:-1])
                    tokens = [*before, ranked[ranks[-1]]]
                before = [*prompt, *text[:row]]
                logprob, scores = logprob_and_scores(name, before, tokens, RULES[rule])
                best = scores(sequence, row + len(ranks)).sort(descending=True, stable=True)
                known[ranks] = tokens, logprob, best.indices.tolist()
            return known[ranks]

        def score(ranks):
            _, logprob, ranked = behind(ranks[:-1])
            return float(logprob[ranked[ranks[-1]]])

        assert naive_tree.order_of(part, 0, row, score, WIDTH, LEVELS) == part.order[row].tolist()


def test_order_is_recorded_saved_and_joined_where_requested(tmp_path):
    trace, target, drafter = recording("eagle", "greedy")
    record_settings = Settings(
        6, 20, RULES["greedy"], END, drafter_features(drafter), (WIDTH, LEVELS)
    )
    prompts = [Prompt(str(i), "toy", "random", p) for i, p in enumerate(toy_prompts(4, 2))]
    meta = describe("toy", drafter, record_settings, prompts, "", "cpu", torch.float64)
    files = RecordingFiles(tmp_path / "t.parquet", shard_size=3)
    recorded = record_all([Recording(target, drafter, record_settings, files, meta)], prompts)[0]
    assert recorded == load_trace(tmp_path / "t.parquet")
    assert recorded.meta.tree == (WIDTH, LEVELS)
    assert recorded.order.tolist() == trace.order.tolist()
    plain = record_sequence(target, drafter, replace(record_settings, tree=()), prompts[0].token, 0)
    assert plain.order is None
    assert plain.rank.tolist() == trace.rank[: len(plain.token)].tolist()


@pytest.mark.parametrize("tree", [(0, 3), (33, 3), (3, 0), (3, 7), (3,), [3, 3], (3.0, 3)])
def test_invalid_tree_settings_are_refused(tree):
    with pytest.raises(RecordError, match="tree is .* expected a width from 1 to 32"):
        Settings(6, 8, Rule(), (), tree=tree)


def test_unsupported_tree_orders_are_refused():
    target, lookup = toy_pair("prompt_lookup")
    record_settings, text = Settings(6, 8, Rule(), END, (), (2, 2)), np.array([4, 5, 6], np.int32)
    with pytest.raises(ValueError, match="it grows no trees"):
        tree_order_stepwise(target, lookup, record_settings, [5, 6], text, 0)
    target, model = toy_pair("medusa")
    with pytest.raises(ValueError, match="too deep for drafter 'medusa'"):
        tree_order_stepwise(target, model, replace(record_settings, tree=(2, 5)), [5, 6], text, 0)


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
