"""The papers' ablations: each is lossless and replays exactly; one command trains them all."""

import json
import signal

import pytest
import torch
import train_ablations
from documents import ROOT
from toy_lm import END, RULES, VOCAB, run_all, toy_cost, toy_prompts, toy_target
from toy_training import PLAN
from train_ablations import ablations, main

from real.decode.features import drafter_features
from real.drafters import BUILTIN
from real.equality import rounds_of
from real.model.target import Target
from real.prompts import Prompt
from real.record import Settings
from real.record.recorder import record_sequence
from real.record.rows import assemble
from real.record.settings import describe
from real.train.config import drafter_training, new_head
from real.train.training_loop import Paused
from simspec import policies, replay

pytestmark = pytest.mark.usefixtures("bare_axes")
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
    assert drafters.count("eagle") == 4 + 3 + 1 + 1
    assert drafters.count("glide") == 1 + 3 + 1 + 1
    assert drafters.count("medusa") == 3
    assert drafters.count("sorted") == 2 + 1
    assert drafters.count("model") == 1
    assert {"glide-layer0", "glide-layer2", "glide-layer3"} <= set(NAMED)
    for name in ("early_exit-text", "eagle-text", "glide-text"):
        assert NAMED[name].blend == 0
    assert NAMED["glide-text"].settings == NAMED["glide-layer3"].settings


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


ONLY = ("early_exit-n1-x0", "early_exit-text", "eagle-feature", "medusa-recipe")


def words_of(trained_folder, out, *more, only=ONLY):
    return [
        str(trained_folder / "text.txt"),
        *("--out", str(out), "--target", str(trained_folder / "models" / "target"), "--toy"),
        *("--cards", str(out / "kept"), *more),
        *(word for name in only for word in ("--only", name)),
    ]


def test_one_command_trains_cards_of_equal_budget(trained_folder, tmp_path, capsys):
    arguments = words_of(
        trained_folder,
        tmp_path / "cards",
        "--steps",
        "2",
        "--threads",
        str(torch.get_num_threads()),
    )
    cards = main(arguments)
    printed = capsys.readouterr().out
    assert list(cards) == list(ONLY)
    assert len({card["tokens"] for card in cards.values()}) == 1
    assert cards["early_exit-text"]["asked"]["blend"] == 0
    assert cards["medusa-recipe"]["asked"]["recipe"] == "paper"
    for name, card in cards.items():
        assert json.loads((tmp_path / "cards" / name / "card.json").read_text()) == card
        assert json.loads((tmp_path / "cards" / "kept" / f"{name}.json").read_text()) == card
        assert f"| `{name}` | 2 | {card['tokens']:,} |" in printed
    assert not (tmp_path / "cards-work" / "features").exists()
    assert main(arguments) == cards
    with pytest.raises(SystemExit, match="none is no ablation"):
        main([*arguments, "--only", "none"])


def test_a_stopped_training_continues_to_the_same_weights(trained_folder, tmp_path, monkeypatch):
    only, steps = ("eagle-feature",), ("--steps", "20")
    whole = main(words_of(trained_folder, tmp_path / "whole", *steps, only=only))
    train = train_ablations.Stopwatch.__call__

    def stop(self, label, done, total, note=""):
        train(self, label, done, total, note)
        if label == "eagle-feature" and done == 10:
            raise Paused

    with monkeypatch.context() as patch:
        patch.setattr(train_ablations.Stopwatch, "__call__", stop)
        with pytest.raises(SystemExit, match="stopped with 0 of 1 cards: the same call continues"):
            main(words_of(trained_folder, tmp_path / "parts", *steps, only=only))
    assert (tmp_path / "parts-work" / "eagle-feature" / "checkpoint.safetensors").exists()
    parts = main(words_of(trained_folder, tmp_path / "parts", *steps, only=only))
    assert parts["eagle-feature"]["sha256"] == whole["eagle-feature"]["sha256"]


def test_no_time_stops_before_anything_is_trained(trained_folder, tmp_path):
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="stopped with 0 of 4 cards"):
        main(words_of(trained_folder, tmp_path / "none", "--minutes", "0"))
    assert not list((tmp_path / "none" / "kept").iterdir())
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_recording_of_another_target_is_refused(trained_folder, tmp_path):
    along = str(ROOT / "traces" / "tiny-model-coupled.parquet")
    with pytest.raises(ValueError, match="is of target 3f3badec8534; name one of this target"):
        main(words_of(trained_folder, tmp_path / "other", "--steps", "2", "--along", along))
