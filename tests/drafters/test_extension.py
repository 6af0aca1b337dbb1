"""A new drafter is one new file: it is trained, recorded in parallel and passes every exam."""

import importlib.util
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import test_drafters
import test_parallel_drafters
import toy_lm
import toy_training
from toy_lm import END, RULES

from real.drafters import BUILTIN, parallel_form, trainable
from real.record import Settings
from real.train.evaluation import accepted_lengths
from real.train.train import new_head, train_weights

DRAFTER = '''
"""Linear drafting: one matrix on the target's last feature and a token's embedding."""

import torch
from torch import nn

from real.draft import Drafter, DrafterKind, Step, TrainingRecipe
from real.draft.losses import learned_rows, next_token_loss
from real.model.draft_head import load_draft_head


class LinearHead(nn.Module):
    """Maps [f_i; embedding of t] to the width; the target's head predicts what follows t."""

    def __init__(self, target, bias=True):
        super().__init__()
        self.settings = {"bias": bias}
        self.linear = nn.Linear(2 * target.config.width, target.config.width, bias=bias)
        self.to(target.device, target.dtype)

    def forward(self, target, feature, token):
        return self.linear(torch.cat((feature, target.embed(token)), -1))


class LinearDrafter(Drafter):
    """Drafts from the last feature and the newest token."""

    name = "linear"
    prefix_only = False

    def __init__(self, target, head):
        self.decoder, self.head = target, head

    @classmethod
    def load(cls, folder, target, made_for):
        return cls(target, load_draft_head(LinearHead, folder, "linear", target, made_for))

    @torch.inference_mode()
    def begin(self, target, prompt, prefill, pick):
        self.pick, self.last, self.draft = pick, prompt[-1], []
        self.feature = self.decoder.norm(prefill.hidden[-1]) if len(prefill.hidden) else None

    @torch.inference_mode()
    def next(self):
        if self.feature is None:
            return None
        slot, token = len(self.draft), torch.tensor([self.last, *self.draft][-1])
        hidden = self.head(self.decoder, self.feature, token)
        logits = self.decoder.head(hidden)
        self.draft.append(self.pick(logits, slot, hidden))
        return Step(self.draft[-1], slot, logits, hidden)

    def rollback(self, accepted):
        self.draft = []

    @torch.inference_mode()
    def catch_up(self, tokens, output, path):
        self.last, self.feature = tokens[-1], self.decoder.norm(output.hidden[path[-1]])


class ParallelLinear:
    """The same from many positions at once."""

    min_context, cached_layers = 2, 0

    def __init__(self, drafter, sequence):
        self.head, self.sequence = drafter.head, sequence
        self.features = sequence.target.norm(sequence.hidden)

    def start(self, position):
        row = position + self.sequence.prompt_length - 2
        self.feature = self.features[row][:, None]
        return self._propose(self.sequence.token[row + 1][:, None])

    def extend(self, parent, token):
        return self._propose(token)

    def _propose(self, token):
        feature = self.feature.expand(-1, token.shape[1], -1)
        hidden = self.head(self.sequence.target, feature, token)
        return self.sequence.target.head(hidden), hidden


def linear_loss(head, target, batch, soft=True, generator=None, scale=1.0):
    token, learned = batch.token, batch.learning(2)
    (feature,) = batch.features(target, "feature")
    hidden = head(target, feature[:, :-1], token[:, 1:-1])
    logits = target.head(learned_rows(hidden, learned))
    if soft:
        p = target.head(learned_rows(feature[:, 1:], learned)).softmax(-1)
        return scale * nn.functional.cross_entropy(logits.flatten(0, -2), p.flatten(0, -2))
    return scale * next_token_loss(logits, learned_rows(token[:, 2:], learned))


RECIPE = TrainingRecipe(
    LinearHead,
    linear_loss,
    LinearDrafter,
    "linear",
    soft=True,
    rate=0.02,
    reads=lambda head, soft: ("feature",),
)
KIND = DrafterKind(LinearDrafter, LinearDrafter.load, RECIPE, ParallelLinear)
'''


def module_from(folder, name, source):
    """The module of a new file."""
    path = folder / f"{name}.py"
    path.write_text(dedent(source).lstrip())
    spec = importlib.util.spec_from_file_location(f"newcomer_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def linear(tmp_path, monkeypatch):
    """The new drafter, registered by its entry; untrained for toy targets."""
    module = module_from(tmp_path, "linear", DRAFTER)
    monkeypatch.setitem(BUILTIN, "linear", module.KIND)
    yield module
    sys.modules.pop(module.__name__)


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """(card, data, folder) of the new drafter after a short training on the toy target."""
    folder, data = tmp_path_factory.mktemp("linear"), toy_training.drafter_data()
    module = module_from(folder, "linear", DRAFTER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BUILTIN, "linear", module.KIND)
        card = train_weights(toy_training.asked("linear", folder, steps=60, rows=16), data)
    sys.modules.pop(module.__name__)
    return card, data, folder / "out" / "linear"


@pytest.fixture
def trained(linear, training, monkeypatch):
    """The `training`; toys of the new drafter load its weights."""
    card, data, folder = training

    def toy(target, seed):
        return BUILTIN["linear"].load(folder, target, data.made_for)

    monkeypatch.setitem(toy_lm.TOYS, "linear", toy)
    return training


def test_new_drafter_is_trained(trained):
    card, data, folder = trained
    assert "linear" in trainable()
    assert card["steps"] == 60
    assert card["evaluation"]["beats_untrained"]["longer"]
    loaded = BUILTIN["linear"].load(folder, data.target, data.made_for)
    lengths = accepted_lengths(data.target, loaded, data.evaluation, card["evaluation"]["K"])
    assert round(lengths.mean(), 4) == card["evaluation"]["trained"]["accepted_length"]["value"]


def test_new_drafter_settings_are_checked(linear):
    target, asked = toy_lm.toy_target(), toy_training.asked
    training = asked("linear", Path("x"), {"bias": False, "scale": 2.0})
    assert new_head(training, target).settings == {"bias": False}
    with pytest.raises(ValueError, match="no setting 'depth'; expected one of bias, scale"):
        new_head(asked("linear", Path("x"), {"depth": 3}), target)


def test_new_drafter_passes_the_drafter_tests(trained):
    test_drafters.test_attributes_are_declared("linear")
    test_drafters.test_steps_carry_the_logits_they_were_picked_from("linear")
    for rule in RULES:
        test_drafters.check_passes("linear", rule)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_new_drafter_is_recorded_in_parallel(trained, rule, seed):
    pair = toy_lm.toy_pair("linear")
    assert parallel_form(pair[1]) is BUILTIN["linear"].parallel
    settings = Settings(5, 18, RULES[rule], END, ("confidence", "entropy"))
    slow, fast = test_parallel_drafters.both(pair, settings, seed)
    assert test_parallel_drafters.same(slow, fast)


def test_control_wrong_parallel_row_is_detected(trained, linear, monkeypatch):
    start = linear.ParallelLinear.start
    monkeypatch.setattr(linear.ParallelLinear, "start", lambda s, p: start(s, (p - 1).clamp(min=1)))
    settings = Settings(5, 18, RULES["greedy"], END)
    with pytest.raises(AssertionError):
        test_parallel_drafters.same(
            *test_parallel_drafters.both(toy_lm.toy_pair("linear"), settings, 9)
        )
