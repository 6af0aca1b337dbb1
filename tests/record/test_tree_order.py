"""Recorded tree orders: equal to a stateless reference, saved, and refused where impossible."""

from dataclasses import replace

import naive_tree
import numpy as np
import pytest
import torch
from toy_lm import END, RULES, toy_pair, toy_prompts
from tree_runs import LEVELS, WIDTH, logprob_and_scores, recording

from real.decode.features import drafter_features
from real.prompts import Prompt
from real.record import RecordError, RecordingFiles, Settings, record
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
                logprob, scores = logprob_and_scores(
                    name, [*prompt, *text[:row]], tokens, RULES[rule]
                )
                ranked = (
                    scores(sequence, row + len(ranks))
                    .sort(descending=True, stable=True)
                    .indices.tolist()
                )
                known[ranks] = tokens, logprob, ranked
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
    recorded = record(target, drafter, record_settings, prompts, files, meta)
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
