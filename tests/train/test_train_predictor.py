"""Examples and training of acceptance predictors."""

from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from test_predictor import FORMS, PAIRS, predictor
from toy_lm import END, PREFIX, RULES, toy_prompts

from real.record import Settings
from real.record.recorder import record_sequence
from real.record.rows import hidden_states
from real.record.sequences import target_sequence
from real.train.predictors import (
    AcceptanceExamples,
    GeneratedSequence,
    acceptance_examples,
    train_predictor,
)
from simspec.trace import quantization as grid


@pytest.mark.parametrize("name", PREFIX)
def test_examples_equal_recorded_acceptance(name):
    target, drafter = PAIRS[name]
    record_settings = [Settings(12, 20, rule, END, ("theta",)) for rule in RULES.values()]
    prompts = toy_prompts(5, 3)
    before = partial(hidden_states, target.decoder, ahead=-1)
    generated = []
    for i, (given, prompt) in enumerate(product(record_settings, prompts)):
        new, _ = target_sequence(target, given, prompt, 100 + i)
        generated.append(GeneratedSequence(given, 100 + i, prompt, new, before(prompt, new)))
    examples = acceptance_examples(generated, drafter.lm)
    folded = drafter.predictors["theta"].folded()
    odds = (
        folded.of_target(examples.of_target)[examples.row, examples.slot.clamp(max=9)]
        + folded.of_drafter(examples.of_drafter)[examples.position]
    )
    code, _ = grid.encode(odds.sigmoid().numpy(), grid.IDENTITY)
    wanted, start, number = [], 0, 100
    for settings_ in record_settings:
        for prompt in prompts:
            rows = record_sequence(target, drafter, settings_, prompt, number)
            n = len(rows.token)
            for t in range(n):
                for slot in range(min(int(rows.run[t]) + 1, int(rows.depth[t]), n - t)):
                    wanted.append(
                        (start + t, start + t + slot, slot < rows.run[t], rows.feature[t, slot, 0])
                    )
            start, number = start + n, number + 1
    got = list(
        zip(
            examples.row.tolist(),
            examples.position.tolist(),
            examples.label.tolist(),
            code.tolist(),
        )
    )
    assert sorted(got) == sorted(wanted)
    assert 0.1 < examples.label.double().mean() < 0.9


def planted(seed: int, lie: bool = False) -> tuple[AcceptanceExamples, float]:
    """Examples of 40 sequences labeled by a known predictor or at random, and the true loss."""
    rng = torch.Generator().manual_seed(seed)
    rows, count = 2000, 12000
    # widths and spreads apart by far, as the states of two models are
    of_target, of_drafter = (
        torch.randn(rows, width, generator=rng, dtype=torch.float64) * s
        for width, s in ((6, 30.0), (4, 0.2))
    )
    row, slot = (
        torch.randint(0, rows - 12, (count,), generator=rng),
        torch.randint(0, 12, (count,), generator=rng),
    )
    truth = (
        predictor(seed, None, 6, 4, spread=0.02)
        .folded()
        ._replace(drafter=torch.tensor([6.0, -6.0, 3.0, 0.0]).double())
    )
    odds = (
        0.4 * truth.of_target(of_target)[row, slot.clamp(max=9)]
        + truth.of_drafter(of_drafter)[row + slot]
    )
    draws = torch.full_like(odds, 0.5) if lie else odds.sigmoid()
    label = torch.rand(count, generator=rng, dtype=torch.float64) < draws
    loss = torch.nn.functional.binary_cross_entropy(draws, label.double()).item()
    return AcceptanceExamples(
        of_target, of_drafter, row, row + slot, label, torch.arange(rows) // 50
    ), loss


@pytest.mark.parametrize("rank", FORMS.values())
def test_training_finds_a_planted_predictor_and_no_other(rank):
    examples, best = planted(1)
    trained, card = train_predictor(examples, rank, steps=80)
    again, _ = train_predictor(examples, rank, steps=80)
    assert trained.sha256 == again.sha256
    assert card["examples"] == 12000
    assert card["texts"] == 40
    assert (
        best - 0.02 < card["heldout_loss"] < best + 0.03
    )  # the truth scores `best` on all, a random guess 0.69
    random_labels, best = planted(1, lie=True)
    _, card = train_predictor(random_labels, rank, steps=80)
    assert abs(best - 0.693) < 0.005
    assert 0.68 < card["heldout_loss"] < 0.71


def test_first_steps_on_wide_states_are_short():
    """With nothing to learn, a model's width costs little; at the rate of toys it does."""
    rng, rows = torch.Generator().manual_seed(1), 1000
    states = (torch.randn(rows, 200, generator=rng, dtype=torch.float64) for _ in range(2))
    row, label = torch.arange(rows - 1), torch.rand(rows - 1, generator=rng) < 0.5
    examples = AcceptanceExamples(*states, row, row + 1, label, torch.arange(rows) // 50)
    _, card = train_predictor(examples, 8, steps=20)
    _, fast = train_predictor(examples, 8, steps=20, rate=0.02)
    assert card["heldout_loss"] < 0.70 < 0.71 < fast["heldout_loss"]  # a guess: 0.693


def test_training_needs_two_sequences():
    examples, _ = planted(2)
    with pytest.raises(ValueError, match="needs two"):
        train_predictor(replace(examples, sequence=torch.zeros_like(examples.sequence)), None)
    _, card = train_predictor(replace(examples, label=torch.ones_like(examples.label)), 2)
    assert card["heldout_accepted"] == 1.0
    assert card["heldout_loss"] < 0.2
