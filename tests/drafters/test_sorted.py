"""Sorted drafters (S2D): exits, cascades, thresholds as a replay, sampling and training."""

import json
from dataclasses import fields, replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from branches import output_distribution
from enumerated_world import EXACT, off
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import (
    END,
    RULES,
    VOCAB,
    policy_from,
    run_all,
    taught,
    toy_cost,
    toy_decoder,
    toy_prompts,
    toy_recording,
    toy_sorted,
    toy_target,
    toy_texts,
)
from toy_training import asked, drafter_data

from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.draft import Step
from real.drafters import BUILTIN
from real.drafters.sorted import Cascade, SortedDrafter, sorted_loss, sorted_model
from real.model.checkpoint import WeightsError, save_decoder
from real.model.target import Target
from real.record import Settings
from real.record.exits import record_exits
from real.record.recorder import record_sequence
from real.rerun import compare, prompts_of, rule_of
from real.sampling import Rule
from real.train.train import train_weights
from simspec import CostModel, policies, replay
from simspec.trace.exits import ExitDrafts, cascade, read_exits, write_exits
from simspec.trace.quantization import LOG_ODDS

CODES = st.integers(0, 255)
THRESHOLDS = st.tuples(*[st.one_of(st.floats(0, 1), CODES.map(lambda c: LOG_ODDS[c]))] * 2)


@cache
def exits_of(rule):
    trace, target, drafter = toy_recording("sorted", rule)
    return record_exits(drafter, target.decoder, trace, rule_of(trace))


def recorded_at(threshold, rule, part):
    """Those sequences of the toy recording, recorded anew by a drafter with these thresholds."""
    trace, target, _ = toy_recording("sorted", rule)
    kept = Settings(trace.K, 24, RULES[rule], END, tuple(name for name, _ in trace.meta.features))
    drafter, rows, prompts = toy_sorted(0, threshold), [], prompts_of(trace)
    for s in part:
        rows.append(record_sequence(target, drafter, kept, prompts[s], s, stepwise=True))
    return rows


COLUMNS = ("token", "depth", "run", "feature", "rank", "draft_margin", "feature_margin")


def differing(derived, rows, part):
    """Columns of a derived recording that differ from rows recorded anew."""
    cut = derived.select(list(part))
    return [
        name
        for name in COLUMNS
        if not np.array_equal(
            getattr(cut, name), np.concatenate([getattr(row, name) for row in rows])
        )
    ]


@settings(deadline=None, max_examples=8)
@given(THRESHOLDS, st.sampled_from(list(RULES)), st.integers(0, 9))
def test_derived_recording_equals_a_recorded_one(threshold, rule, sequence):
    derived, _ = cascade(toy_recording("sorted", rule)[0], exits_of(rule), threshold)
    assert differing(derived, recorded_at(threshold, rule, [sequence]), [sequence]) == []


def test_its_own_thresholds_give_the_recording_back():
    for rule in RULES:
        trace, _, drafter = toy_recording("sorted", rule)
        derived, exits = cascade(trace, exits_of(rule), drafter.cascade.threshold)
        for f in COLUMNS:
            np.testing.assert_array_equal(getattr(derived, f), getattr(trace, f), f)
        assert set(np.unique(exits)) == {0, 1, 2, 255}


def test_control_other_thresholds_are_another_recording():
    part = range(2)
    derived, _ = cascade(toy_recording("sorted", "greedy")[0], exits_of("greedy"), (0.0, 0.0))
    assert "depth" in COLUMNS
    assert "feature" in differing(derived, recorded_at((1.0, 1.0), "greedy", part), part)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("threshold", [(0.95, 0.5), (1.0, 1.0), (0.0, 0.3)])
def test_runs_equal_replays_at_derived_thresholds(threshold, rule):
    trace, target, _ = toy_recording("sorted", rule)
    derived, _ = cascade(trace, exits_of(rule), threshold)
    derived = derived.select(range(4))
    for text in ("fixed:4", "confidence:0.6,inclusive=false"):
        policy = policy_from(text, derived, toy_cost())
        results = run_all(target, toy_sorted(0, threshold), derived, policy, toy_cost())
        replayed = replay(derived, policy, seed=0, cost=toy_cost())
        assert compare(derived, policy, replayed, results).exact


def test_drafts_equal_whole_forward_passes():
    """The definition: at each exit the model cut there, without a cache."""
    drafter, prompt = toy_sorted(), toy_prompts(1, 4)[0]
    lm, text = drafter.decoder, list(prompt)
    target = Target(toy_target())
    drafter.begin(target, prompt, target.prefill(prompt[:-1]), lambda logits, *_: logits.argmax())
    for _ in range(5):
        step = drafter.next()
        x, expected = lm.embed(torch.tensor([text])), None
        rotation = lm.rotation(torch.arange(len(text)))
        for exit, (first, last) in enumerate([(0, 1), (1, 2), (2, 3)]):
            x = lm.run(x, range(first, last), rotation)
            expected = lm.logits(x[0, -1])
            sure = LOG_ODDS[np.abs(LOG_ODDS - float(expected.softmax(-1).max())).argmin()]
            if exit == 2 or sure >= drafter.cascade.threshold[exit]:
                break
        torch.testing.assert_close(step.logits, expected, rtol=0, atol=1e-12)
        assert drafter.taken[-1] == exit
        text.append(int(expected.argmax()))


WRONG = [
    ((0.5,), "1 thresholds"),
    ((0.5, 1.5), r"in \[0, 1\]"),
    ((0.5, float("nan")), r"in \[0, 1\]"),
]


@pytest.mark.parametrize("threshold, message", WRONG)
def test_unfit_thresholds_are_refused(threshold, message):
    with pytest.raises(ValueError, match=message):
        toy_sorted(0, threshold)
    with pytest.raises(ValueError, match=message):
        cascade(toy_recording("sorted", "greedy")[0], exits_of("greedy"), threshold)


def test_file_of_exits_is_read_back(tmp_path):
    trace, drafts = toy_recording("sorted", "greedy")[0], exits_of("greedy")
    path = tmp_path / "x.exits.parquet"
    write_exits(drafts, trace, path)
    back = read_exits(path, trace)
    assert back.layers == drafts.layers == (1, 2, 3)
    for f in fields(ExitDrafts)[1:]:
        np.testing.assert_array_equal(getattr(back, f.name), getattr(drafts, f.name))
    with pytest.raises(ValueError, match="it belongs to another recording"):
        read_exits(path, trace.select([0, 1]))


def test_damaged_files_of_exits_are_refused(tmp_path):
    trace, drafts = toy_recording("sorted", "greedy")[0], exits_of("greedy")
    path = tmp_path / "x.exits.parquet"
    for name, value in (("child", 0), ("child", len(drafts.token))):
        array = getattr(drafts, name).copy()
        array[-1, 0] = value
        with pytest.raises(ValueError, match="no later node"):
            replace(drafts, **{name: array})
    write_exits(drafts, trace, path)
    whole = path.read_bytes()
    for cut_at in (0, 10, len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:cut_at])
        with pytest.raises(ValueError, match="no exits of this recording") as refused:
            read_exits(path, trace)
        assert "\n" not in str(refused.value)


@settings(deadline=None, max_examples=10)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6))
def test_deeper_layers_catch_up_exactly(rounds):
    """Rows that waited for deeper layers are those of a model that passes every row at once."""
    prompt, target = toy_prompts(1, 6)[0], Target(toy_target())
    drafter, fresh, text = toy_sorted(), toy_sorted(), list(toy_prompts(1, 6)[0])
    drafter.begin(target, prompt, None, lambda logits, *_: int(logits.argmax()))
    for drafted, accepted in rounds:
        token = [drafter.next().token for _ in range(drafted)]
        kept = token[: min(accepted, drafted)]
        drafter.rollback(len(kept))
        drafter.catch_up([*kept, 5], None, [])
        text += [*kept, 5]
    fresh.begin(target, text, None, None)
    logits = [each.grow([text[-1]], [-1]) for each in (drafter, fresh)]
    torch.testing.assert_close(*logits, rtol=0, atol=1e-12)
    assert drafter.rows == fresh.rows == [len(text)] * 3
    for name in ("key", "value"):
        a, b = (getattr(each.cache, name)[:, :, :, : len(text)] for each in (drafter, fresh))
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "stored",
    [
        {}, [], {"exits": [2, 3], "thresholds": [0.5]}, {"exits": [2, 4], "thresholds": []},
        {"exits": [2, 4], "thresholds": [1.5]}, {"exits": [2, 4], "thresholds": [10**400]},
    ],
)  # fmt: skip
def test_exits_that_cannot_be_are_refused_in_one_line(tmp_path, stored):
    target = toy_target()
    save_decoder(target, tmp_path, 3, 64)
    (tmp_path / "sorted.json").write_text(json.dumps(stored))
    with pytest.raises(WeightsError, match="holds no exits of a sorted drafter") as caught:
        SortedDrafter.load(tmp_path, target, {})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def tiny(seed):
    """A target and a sorted drafter of three tokens whose exits disagree."""
    target = toy_decoder(seed, 3, 8, 3, 0.5)
    model = sorted_model(target, (1, 2))
    for i, p in enumerate(model.parameters()):
        generator = torch.Generator().manual_seed(seed + i)
        p.data += 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return target, model.requires_grad_(False)


def distribution_of(target, drafter, rule, length):
    plan = chain_plan(policies.parse("fixed:2"), 2, 0, CostModel.from_ratio(0.2, 2))
    verifier = Target(target)

    def one(draws):
        return tuple(
            decode(verifier, drafter, plan, rule, [0], length, (), draws=draws).token.tolist()
        )

    return output_distribution(one)


def true_distribution(target, rule, length):
    distribution = {}
    with torch.inference_mode():
        for text in product(range(3), repeat=length):
            p = rule.probs(target(torch.tensor([[0, *text[:-1]]]))[0])
            distribution[text] = float(np.prod([float(p[i, t]) for i, t in enumerate(text)]))
    return distribution


class Literal(SortedDrafter):
    """S2D's Algorithm 1 as printed: samples at each exit, and leaves by that token's confidence."""

    def next(self):
        slot = len(self.draft)
        self._embed(self.draft[-1:] if slot else self._backlog())
        for exit in range(len(self.rows)):
            hidden = self._segment(exit)[-1]
            logits = self.decoder.logits(hidden)
            token = self.pick(logits, slot, hidden)
            if exit == len(self.rows) - 1 or logits.softmax(-1)[token] >= 0.5:
                break
        self.draft.append(token)
        self.taken.append(exit)
        return Step(token, slot, logits, hidden)


@pytest.mark.parametrize("seed", [2])
def test_sampled_distribution_is_the_targets(seed):
    """Every outcome of the draws: an exit chosen by q alone keeps the target's law to 1e-12."""
    target, model = tiny(seed)
    rule, used = Rule("rejection", 1.1), set()
    drafter = SortedDrafter(model, Cascade((1, 2), (0.55,)))
    honest = drafter.rollback
    drafter.rollback = lambda accepted: (used.update(drafter.taken), honest(accepted))
    assert off(distribution_of(target, drafter, rule, 3), true_distribution(target, rule, 3)) < (
        EXACT
    )
    assert used == {0, 1}


def test_control_exit_chosen_by_the_sampled_token_is_biased():
    target, model = tiny(1)
    rule = Rule("rejection", 1.0)
    literal = Literal(model, Cascade((1, 2), (0.5,)))
    assert off(distribution_of(target, literal, rule, 3), true_distribution(target, rule, 3)) > 1e-3


@pytest.mark.parametrize("together", [True, False])
def test_short_training_is_saved_and_loaded(together, tmp_path):
    chosen = {"exits": [1, 3], "thresholds": [0.6], "together": together}
    data = drafter_data()
    card = train_weights(asked("sorted", tmp_path, chosen, out=tmp_path), data)
    assert card["asked"]["loss"] == {"together": together}
    loaded = BUILTIN["sorted"].load(tmp_path / "sorted", data.target, {})
    assert loaded.cascade.exits == (1, 3)
    assert loaded.cascade.threshold == (0.6,)
    other = BUILTIN["sorted"].load(tmp_path / "sorted", toy_decoder(7, 2), {"weights": "another"})
    assert other.decoder.config.layers == 3  # one drafter for several targets
    with pytest.raises(WeightsError, match="use the same tokenizer"):
        BUILTIN["sorted"].load(tmp_path / "sorted", toy_decoder(7, 2, vocab=VOCAB + 1), {})


def exit_losses(model):
    target = toy_target()
    position = torch.arange(15)
    text = toy_texts()[:64, :16]
    rows = model.through_exits(model.embed(text[:, :-1]), model.rotation(position))
    goal = target(text[:, :-1]).log_softmax(-1).exp()
    return [float(-(goal * model.logits(x).log_softmax(-1)).sum(-1).mean()) for x in rows]


@torch.no_grad()
def losses_after(together):
    def loss(part, target, batch, soft, generator):
        with torch.enable_grad():
            return sorted_loss(part, target, batch, soft, generator, together)

    with torch.enable_grad():
        part = taught(sorted_model, loss, steps=25, exits=(1, 2, 3))
    return exit_losses(part)


def test_training_together_serves_the_early_exits():
    soft, alone = losses_after(True), losses_after(False)
    assert soft[0] < alone[0] - 0.05
    assert soft[1] < alone[1]


def test_control_run_at_other_thresholds_differs():
    trace, target, _ = toy_recording("sorted", "greedy")
    derived, _ = cascade(trace, exits_of("greedy"), (0.0, 0.0))
    policy = policy_from("fixed:4", derived, toy_cost())
    results = run_all(target, toy_sorted(0, (1.0, 1.0)), derived, policy, toy_cost())
    assert not compare(derived, policy, replay(derived, policy, cost=toy_cost()), results).exact
