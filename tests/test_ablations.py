"""The papers' ablations: each is lossless and replays exactly; one command trains them all."""

import json

import pytest
import torch
from toy_lm import END, RULES, VOCAB, run_all, toy_cost, toy_prompts, toy_target
from toy_training import PLAN
from train_ablations import ablations, main

from real.decode.features import drafter_features
from real.drafters import BUILTIN
from real.equality import rounds_of
from real.model.target import Target
from real.prompts import Prompt
from real.record import Settings
from real.record.assembly import assemble
from real.record.metadata import describe
from real.record.recorder import record_sequence
from real.train.drafter_training import drafter_training, new_head
from simspec import policies, replay

LAYERS = 4
NAMED = ablations(LAYERS)


def drafter_of(name):
    """The ablation's drafter on the toy target, its weights moved at random."""
    ablation, target = NAMED[name], toy_target()
    training = drafter_training(
        ablation.drafter, PLAN, settings=ablation.settings, recipe_name=ablation.recipe
    )
    head = new_head(training, target).requires_grad_(False).eval()
    generator = torch.Generator().manual_seed(0)
    for p in head.parameters():
        p.add_(0.05 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return BUILTIN[ablation.drafter].recipe.drafter(target, head)


def test_ablations_cover_the_papers_and_have_one_name_each():
    drafters = [NAMED[name].drafter for name in NAMED]
    assert drafters.count("early_exit") == 3 * 3 + 1 + 1
    assert drafters.count("eagle") == 4 + 1
    assert drafters.count("glide") == 1 + 3 + 1
    assert drafters.count("medusa") == 3
    assert {"glide-layer0", "glide-layer2", "glide-layer3"} <= set(NAMED)
    assert NAMED["early_exit-text"].blend == 0


@pytest.mark.parametrize("name", NAMED)
def test_ablations_are_lossless_and_replay_exactly(name):
    drafter = drafter_of(name)
    target = Target(toy_target(), drafter.taps, 32)
    settings = Settings(4, 16, RULES["greedy"], END, drafter_features(drafter))
    prompts = [Prompt(str(i), "toy", "random", p) for i, p in enumerate(toy_prompts(2, 5))]
    rows = [record_sequence(target, drafter, settings, p.token, i) for i, p in enumerate(prompts)]
    meta = describe("toy", drafter, settings, prompts, "", "cpu", torch.float64)
    trace = assemble(rows, prompts, 0, settings, meta)
    for text in ("fixed:3", "confidence:0.2"):
        policy = policies.parse(text)
        results = run_all(target, drafter, trace, policy, toy_cost(4))
        assert [t for r in results for t in r.token.tolist()] == trace.token.tolist()
        assert rounds_of(trace, results) == replay(trace, policy, cost=toy_cost(4))


def test_exits_without_a_layer_train_a_head():
    for name in ("early_exit-n1-x0", "early_exit-n3-x0"):
        head = drafter_of(name).head
        assert len(head.layers) == 0
        assert head.head.weight.shape == (VOCAB, toy_target().config.width)


def test_one_command_trains_cards_of_equal_budget(trained_folder, tmp_path, capsys):
    only = ("early_exit-n1-x0", "early_exit-text", "eagle-feature", "medusa-recipe")
    arguments = [
        str(trained_folder / "text.txt"),
        *("--out", str(tmp_path / "cards"), "--target", str(trained_folder / "models" / "target")),
        *("--steps", "2", "--toy"),
        *(word for name in only for word in ("--only", name)),
    ]
    cards = main(arguments)
    printed = capsys.readouterr().out
    assert list(cards) == list(only)
    assert len({card["tokens"] for card in cards.values()}) == 1
    assert cards["early_exit-text"]["asked"]["blend"] == 0
    assert cards["medusa-recipe"]["asked"]["recipe"] == "paper"
    for name, card in cards.items():
        assert json.loads((tmp_path / "cards" / name / "card.json").read_text()) == card
        assert f"| `{name}` | 2 | {card['tokens']:,} |" in printed
    assert main(arguments) == cards
    with pytest.raises(SystemExit, match="none is no ablation"):
        main([*arguments, "--only", "none"])
