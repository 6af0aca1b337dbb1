"""Sorted drafters (S2D): sampled distributions, and the training of their exits."""

from itertools import product

import numpy as np
import pytest
import torch
from branches import output_distribution
from enumerated_world import EXACT, off
from toy_lm import VOCAB, taught, toy_decoder, toy_sorted, toy_target, toy_texts
from toy_training import asked, drafter_data

from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.draft import Step
from real.drafters import BUILTIN
from real.drafters.sorted import Cascade, SortedDrafter, sorted_loss, sorted_model
from real.model.checkpoint import WeightsError
from real.model.target import Target
from real.sampling import Rule
from real.train.train import train_weights
from simspec import CostModel, policies


def cut(model, layers):
    """The model whose last exit is after so many layers."""
    small = sorted_model(toy_target(), (layers,))
    own = small.state_dict()
    small.load_state_dict({k: v for k, v in model.state_dict().items() if k in own})
    return small.requires_grad_(False)


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


def test_loss_is_the_mean_of_the_exits():
    target, model = toy_target(), toy_sorted().decoder
    token = toy_texts()[:8]
    each = [float(sorted_loss(cut(model, e), target, token, False, together=False)) for e in (1, 3)]
    model_ = cut(model, 3)
    model_.exits = (1, 3)
    assert float(sorted_loss(model_, target, token, False)) == pytest.approx(np.mean(each), 1e-6)
    assert each[0] != pytest.approx(each[1], 1e-3)
