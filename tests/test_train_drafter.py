"""What the trainer says of a drafter: accepted lengths by their definition, the trigram to beat, honest comparisons, and cards."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import TOYS, VOCAB, toy_prompts, toy_target, toy_texts

from real.drafters import BUILTIN, trainable
from real.model.config import DecoderConfig
from real.model.target import Target
from real.record import Settings
from real.record.stepwise import record_stepwise
from real.record.target_sequence import target_sequence
from real.sampling import Rule
from real.train.accepted_length import (
    AcceptedLengths,
    accepted_lengths,
    compare,
    lengths_of_hits,
    longest_offer,
    summary,
)
from real.train.arguments import read_settings, split_arguments, train_choices
from real.train.config import TrainConfig, with_objective
from real.train.drafter_card import card_lines, compare_with, loaded_parameters
from real.train.drafter_data import DrafterData, K
from real.train.drafter_training import drafter_training, loss_settings, new_head, recipe_of
from real.train.evaluate import evaluate_drafter
from real.train.schedule import TrainSchedule
from real.train.search_skips import SkipSearch, configured_search
from real.train.train_drafter import train_drafter
from real.train.trigram import TrigramDrafter, TrigramTable, count_trigrams

HELD = settings(deadline=None, max_examples=80, derandomize=True)
PLAN = TrainSchedule(steps=6, rows=4, length=15, save_every=4)


def written(count=3, length=14):
    """Toy prompts, and what the toy target writes after them."""
    asked, target = Settings(5, length, Rule(), ()), Target(toy_target())
    return [
        (prompt, target_sequence(target, asked, prompt, 0)[0].astype(np.int64))
        for prompt in toy_prompts(count)
    ]


# ---- accepted lengths


@pytest.mark.parametrize("name", TOYS)
def test_runs_are_those_that_the_recorder_would_record(name):
    target, texts = toy_target(), written()
    drafter, K = TOYS[name](target, 0), 5
    found, shifted = accepted_lengths(target, drafter, texts, K), False
    for i, (prompt, text) in enumerate(texts):
        engine = Target(target, drafter.taps)
        rows = record_stepwise(
            engine,
            drafter,
            Settings(K, len(text), Rule(), (), ()),
            prompt,
            text.astype(np.int32),
            0,
        )
        assert found.accepted[i].tolist() == rows.run.tolist()
        reached = found.accepted[i] == np.minimum(
            found.offered[i], K
        )  # room is known where a draft came to its end
        assert (found.offered[i] <= np.minimum(K, len(text) - np.arange(len(text)))).all()
        assert (found.offered[i][reached] <= rows.depth[reached]).all()
        shifted |= found.accepted[i][1:].tolist() != rows.run[:-1].tolist()
    assert shifted  # the control: one position off is another recording


hits = st.lists(st.booleans(), min_size=1, max_size=30)


@HELD
@given(hits, st.integers(1, 7))
def test_runs_behind_true_prefixes_are_runs_of_hits(hit, K):
    run, room = lengths_of_hits(np.array(hit), K)
    for t in range(len(hit)):
        ahead = [*hit[t : t + K], False]
        assert run[t] == ahead.index(False)
        assert room[t] == min(K, len(hit) - t)


@HELD
@given(st.lists(hits, min_size=1, max_size=4), st.integers(1, 5))
def test_acceptance_by_depth_counts_drafts_that_came_so_far(texts, K):
    found = AcceptedLengths(K, *zip(*(lengths_of_hits(np.array(t), K) for t in texts)))
    for j, alpha in enumerate(found.by_depth(), 1):
        fates = [
            t[i + j - 1] for t in texts for i in range(len(t) - j + 1) if all(t[i : i + j - 1])
        ]
        assert alpha == (round(sum(fates) / len(fates), 4) if fates else None)
    whole = [sum((*t[i : i + K], False).index(False) for i in range(len(t) - K + 1)) for t in texts]
    drafts = [max(0, len(t) - K + 1) for t in texts]
    assert found.mean() == sum(whole) / max(1, sum(drafts))


def random_accepted(seed, texts=20, rate=0.5, K=5):
    draw = np.random.default_rng(seed)
    return AcceptedLengths(
        K, *zip(*(lengths_of_hits(draw.random(30) < rate, K) for _ in range(texts)))
    )


@pytest.mark.parametrize(
    "name", sorted(set(TOYS) - {"prompt_lookup"})
)  # that one's drafts differ from prompt to prompt
def test_what_a_drafter_offers_is_found_whatever_of_it_holds(name):
    """Heads end a draft at their number; a miss does not."""
    found = {
        K: longest_offer(toy_target(), TOYS[name](toy_target(), 0), written(), K) for K in (3, 6)
    }
    assert found == ({3: 3, 6: 4} if name in ("medusa", "hydra") else {3: 3, 6: 6})


def test_comparisons_are_paired_and_say_when_they_cannot_know():
    low, high = random_accepted(0), random_accepted(1, rate=0.8)
    assert compare(high, low)["longer"] is True
    assert compare(low, high)["longer"] is False
    assert compare(low, low) == {
        "value": 0.0,
        "low": 0.0,
        "high": 0.0,
        "texts": 20,
        "longer": False,
    }
    assert (
        compare(high, low)["value"]
        == -compare(low, high)["value"]
        == round(high.mean() - low.mean(), 4)
    )
    few = [random_accepted(i, texts=7) for i in range(2)]
    assert compare(*few)["low"] is None
    assert compare(*few)["longer"] is None
    assert summary(few[0])["accepted_length"]["high"] is None
    short = AcceptedLengths(5, *zip(*(lengths_of_hits(np.ones(3, bool), 5) for _ in range(9))))
    assert short.mean() == 0.0
    assert compare(short, short)["texts"] == 0
    for other in (random_accepted(0, texts=19), random_accepted(0, K=4)):
        with pytest.raises(ValueError, match="expected the same texts and K"):
            compare(low, other)


# ---- the trigram


def naive_pick(rows, before, last, vocab):
    """The definition: counts in dictionaries, the smallest of the commonest."""
    follow = lambda size, key: Counter(
        r[i + size] for r in rows for i in range(len(r) - size) if tuple(r[i : i + size]) == key
    )
    for found in (
        follow(2, (before, last)),
        follow(1, (last,)),
        Counter(x for r in rows for x in r),
    ):
        if found:
            return min(found, key=lambda token: (-found[token], token))


rows_of = st.integers(1, 12).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, 4), min_size=n, max_size=n), min_size=1, max_size=5)
)


@HELD
@given(st.lists(rows_of, min_size=1, max_size=2))
def test_the_table_is_what_most_often_followed(parts):
    table, rows = count_trigrams([np.array(p) for p in parts], 5), sum(parts, [])
    for before in range(-1, 5):
        for last in range(5):
            assert table.picks(np.array([before]), np.array([last])) == naive_pick(
                rows, before, last, 5
            )


def test_rows_are_not_joined_and_counting_stops_at_its_limit():
    joined, apart = (
        count_trigrams([np.array([[0, 1, 2, 3]])], 5),
        count_trigrams([np.array([[0, 1], [2, 3]])], 5),
    )
    assert (
        joined.picks(np.array([0]), np.array([1]))
        == 2
        != apart.picks(np.array([0]), np.array([1]))
        == 0
    )
    text = np.array([0, 1, 2, 0, 1, 3, 0, 1, 3])
    assert count_trigrams([text], 5).picks(np.array([0]), np.array([1])) == 3
    assert count_trigrams([text], 5, most=4).picks(np.array([0]), np.array([1])) == 2
    with pytest.raises(ValueError, match="no tokens to count"):
        count_trigrams([], 5)


def test_the_trigram_drafter_does_what_its_table_says():
    target, texts = toy_target(), written()
    table = count_trigrams([toy_texts().numpy()], VOCAB)
    drafter = TrigramDrafter(table)
    found = accepted_lengths(target, drafter, texts, 5)
    for (prompt, text), run, room in zip(texts, found.accepted, found.offered):
        assert run.tolist() == lengths_of_hits(table.hits(prompt, text), 5)[0].tolist()
    assert 0.2 < found.mean() < 4.8
    assert isinstance(table, TrigramTable)
    assert not drafter.has_logits
    assert drafter.prefix_only


# ---- lessons


def test_every_learnt_drafter_can_be_loaded_and_has_settings_with_defaults():
    assert set(trainable()) <= set(BUILTIN)
    assert set(train_choices()) == set(BUILTIN) - {"prompt_lookup"}
    for name in trainable():
        part = new_head(drafter_training(name, PLAN), toy_target())
        assert json.loads(json.dumps(part.settings)) == part.settings
        assert all(p.requires_grad for p in part.parameters())
        again = new_head(drafter_training(name, PLAN), toy_target())
        assert all(
            torch.equal(a, b)
            for a, b in zip(part.state_dict().values(), again.state_dict().values())
        )


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"inpts": "token"}, "no setting 'inpts'; expected one of inputs, layers"),
        ({"target": 1}, "no setting 'target'"),
        ({"generator": 1}, "no setting 'generator'"),
    ],
)
def test_a_setting_that_a_drafter_does_not_know_is_named(settings, says):
    with pytest.raises(ValueError, match=says):
        drafter_training("eagle", PLAN, settings=settings)


def test_settings_of_the_loss_are_told_from_those_of_the_part():
    asked = drafter_training("eagle", PLAN, settings={"layers": 2, "noise": 0.0})
    assert loss_settings(asked) == {"weight": 1, "noise": 0.0}
    assert new_head(asked, toy_target()).settings["layers"] == 2
    with pytest.raises(ValueError, match="early_exit cannot be made with"):
        new_head(drafter_training("early_exit", PLAN, settings={"depth": "deep"}), toy_target())


def test_what_is_typed_becomes_settings():
    given = read_settings(
        ["inputs=token", "layers=2", "cross=false", "reads=[8, 9]", "noise=0.5", "name=a=b"]
    )
    assert given == {
        "inputs": "token",
        "layers": 2,
        "cross": False,
        "reads": [8, 9],
        "noise": 0.5,
        "name": "a=b",
    }
    for odd in (["layers"], ["=2"], ["a=1", "a=2"]):
        with pytest.raises(ValueError, match="is no setting; expected key=value"):
            read_settings(odd)


def test_the_first_word_is_a_drafter_unless_a_path_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert split_arguments(["eagle", "corpus"]) == ("eagle", ("corpus",))
    assert split_arguments(["corpus"]) == (None, ("corpus",))
    (tmp_path / "eagle").mkdir()
    assert split_arguments(["eagle", "corpus"]) == (None, ("eagle", "corpus"))
    with pytest.raises(ValueError, match="did you mean hydra"):
        split_arguments(["hidra", "corpus"])
    with pytest.raises(ValueError, match="prompt_lookup has nothing to learn"):
        split_arguments(["prompt_lookup", "corpus"])
    for name in ("a/b", "..", "target"):
        with pytest.raises(ValueError, match="--name is"):
            drafter_training("eagle", PLAN, folder=name)


def test_searches_know_their_settings():
    lab = TrainConfig((), trials=7, seed=3)
    assert configured_search(lab, {"texts": 9}, None) == SkipSearch(7, 3, 9, "self_skip")
    assert configured_search(lab, {"seed": 0}, "s").place == "s"
    for odd in ({"trials": 0}, {"rate": 1}, {"seed": True}, {"texts": "many"}):
        with pytest.raises(ValueError, match="self_skip cannot be searched with"):
            configured_search(lab, odd, None)
    both = with_objective(lab, False, 4)
    assert all(not each.soft and each.plan.patience == 4 for each in both.drafters)
    assert with_objective(lab, None, 0) == lab


# ---- teaching


def material(texts=12):
    target, held = toy_target(), written(texts + 4, 12)
    own = toy_texts().numpy()

    def batches(plan):
        def batch(step):
            return torch.from_numpy(
                own[
                    np.random.default_rng([plan.seed, step]).integers(0, len(own), plan.rows),
                    : plan.length + 1,
                ]
            )

        return batch

    hashes = {"tokenizer": "t", "config": "c", "weights": "w"}
    return DrafterData(
        target, hashes, (3,), 32, batches, held[:4], held[4:], mixed=False, blend=1.0
    )


def test_what_training_must_hold_in_memory():
    """EESD's TrigramTable 6: the early exit needs the first layers and the head, unless it learns from the target's distribution."""
    target, token = toy_target(), toy_texts()[:2]
    size = lambda *modules: sum(
        {id(p): p.numel() for m in modules for p in m.parameters()}.values()
    )

    def held(name, soft):
        part = new_head(drafter_training(name, PLAN), target)
        return loaded_parameters(
            part, target, lambda: recipe_of(name).loss(part, target, token, soft, torch.Generator())
        ), part

    count, part = held("model", False)
    assert count == size(part)
    count, part = held("model", True)
    assert count == size(part, target)
    count, part = held("early_exit", False)
    assert count == size(part, target.embed, target.layers[0], target.head) < size(part, target)
    for name, soft in (
        ("early_exit", True),
        ("eagle", True),
        ("eagle", False),
        ("medusa", True),
        ("hydra", False),
    ):
        count, part = held(name, soft)
        assert count == size(part, target), name


@pytest.mark.parametrize("name", ["early_exit", "eagle", "medusa", "hydra", "glide"])
def test_a_lesson_ends_with_a_drafter_and_a_card_that_can_be_checked(tmp_path, name):
    given, asked = material(), drafter_training(name, PLAN)
    card = train_drafter(asked, given, tmp_path / "out", tmp_path / "work")
    folder = tmp_path / "out" / name
    assert json.loads((folder / "card.json").read_text()) == card
    assert card_lines(card)
    assert card["steps"] == 6
    assert card["tokens"] == 6 * 4 * 15
    assert card["parameters"]["trained"] < card["parameters"]["loaded"]
    assert card["seconds_per_batch"] > 0
    assert card["validation"]["step"] in range(1, 7)
    found = evaluate_drafter(name, folder, given)
    assert card["evaluation"]["trained"] == json.loads(json.dumps(summary(found)))
    assert card["evaluation"]["texts"] == 12
    untrained = accepted_lengths(
        given.target,
        recipe_of(name).drafter(given.target, new_head(asked, given.target)),
        given.evaluation,
        found.K,
    )
    assert (
        found.K == card["evaluation"]["K"] == (4 if name in ("medusa", "hydra") else K)
    )  # what it never offers is not held against it
    assert card["evaluation"]["beats_untrained"] == compare(found, untrained)
    windows = [given.batches(PLAN)(step).numpy() for step in range(6)]
    trigram = accepted_lengths(
        given.target, TrigramDrafter(count_trigrams(windows, VOCAB)), given.evaluation, found.K
    )
    assert card["evaluation"]["beats_trigram"] == compare(found, trigram)

    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert train_drafter(asked, given, tmp_path / "out", tmp_path / "work") == card
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}


def test_other_settings_are_refused_and_another_folder_takes_them(tmp_path):
    given, places = material(), (tmp_path / "out", tmp_path / "work")
    train_drafter(drafter_training("eagle", PLAN), given, *places)
    for other, says in (
        (
            drafter_training("eagle", PLAN, settings={"inputs": "token"}),
            "made with settings inputs 'feature&shifted_token', now 'token'",
        ),
        (
            drafter_training("eagle", PLAN, settings={"noise": 0.0}),
            "made with loss noise None, now 0.0",
        ),
        (drafter_training("eagle", PLAN, soft=False), "made with soft True, now False"),
        (drafter_training("eagle", replace(PLAN, steps=7)), "made with plan steps 6, now 7"),
        (
            drafter_training("medusa", PLAN, folder="eagle"),
            "made with drafter 'eagle', now 'medusa'",
        ),
    ):
        with pytest.raises(ValueError, match=says) as caught:
            train_drafter(other, given, *places)
        assert "\n" not in str(caught.value)
        assert "--name" in str(caught.value)
    (places[0] / "eagle" / "card.json").unlink()
    (places[0] / "eagle" / "eagle.safetensors").unlink()
    with pytest.raises(
        ValueError, match="work.*made with soft True"
    ):  # a checkpoint of another lesson is not continued
        train_drafter(drafter_training("eagle", PLAN, soft=False), given, *places)
    train_drafter(
        drafter_training("eagle", PLAN, settings={"inputs": "token"}, folder="token"),
        given,
        *places,
    )
    (places[1] / "eagle" / "asked.json").write_text("[[")
    with pytest.raises(ValueError, match="asked.json is damaged"):
        train_drafter(drafter_training("eagle", PLAN), given, *places)
    (places[1] / "eagle" / "asked.json").unlink()
    train_drafter(drafter_training("eagle", PLAN), given, *places)
    said = compare_with(places[0] / "token" / "card.json", given, places[0], "eagle")
    mine, theirs = (
        evaluate_drafter("eagle", places[0] / name, given) for name in ("token", "eagle")
    )
    assert said["against"]["eagle"]["difference"] == compare(mine, theirs)
    assert any("longer than eagle by" in line for line in card_lines(said))
    assert json.loads((places[0] / "token" / "card.json").read_text()) == json.loads(
        json.dumps(said)
    )
    for other, says in (
        ("token", "compared with itself"),
        ("nothing", "holds no drafter that is known"),
    ):
        with pytest.raises(ValueError, match=says):
            compare_with(places[0] / "token" / "card.json", given, places[0], other)


def test_weights_that_came_without_a_card_are_judged_and_not_trained(tmp_path):
    given, places = material(), (tmp_path / "out", tmp_path / "work")
    first = train_drafter(drafter_training("early_exit", PLAN), given, *places)
    (places[0] / "early_exit" / "card.json").unlink()
    held = (places[0] / "early_exit" / "exit.safetensors").read_bytes()
    again = train_drafter(
        drafter_training("early_exit", replace(PLAN, seed=5)),
        given,
        places[0],
        tmp_path / "elsewhere",
    )
    assert (places[0] / "early_exit" / "exit.safetensors").read_bytes() == held
    assert again["evaluation"]["trained"] == first["evaluation"]["trained"]
    assert again["steps"] == 0
    assert again["seconds_per_batch"] is None


@pytest.mark.parametrize(
    "name, half",
    [("eagle", "eagle.json"), ("eagle", "eagle.safetensors"), ("model", "config.json")],
)
def test_half_of_what_is_saved_is_not_taken_for_all_of_it(tmp_path, name, half):
    given, places = material(), (tmp_path / "out", tmp_path / "work")
    sizes = dict(width=8, layers=1, heads=1, head_dim=8, hidden=12) if name == "model" else {}
    first = train_drafter(drafter_training(name, PLAN, settings=sizes), given, *places)
    whole = {p.name: p.read_bytes() for p in (places[0] / name).iterdir() if p.name != "card.json"}
    for gone in ("card.json", half):
        (places[0] / name / gone).unlink()
    again = train_drafter(drafter_training(name, PLAN, settings=sizes), given, *places)
    assert {
        p.name: p.read_bytes() for p in (places[0] / name).iterdir() if p.name != "card.json"
    } == whole
    assert again["evaluation"] == first["evaluation"]
    assert again["steps"] == first["steps"]


@pytest.mark.parametrize("name", ["early_exit", "eagle"])
def test_validation_sees_the_drafter_learn_and_the_best_is_saved(tmp_path, name):
    given = material()
    plan = replace(PLAN, steps=60, rows=16, length=19)
    card = train_drafter(
        drafter_training(name, plan, rate=0.02), given, tmp_path / "out", tmp_path / "work"
    )
    log = json.loads((tmp_path / "work" / f"{name}.json").read_text())
    scores = {row["step"]: row["valid"]["score"] for row in log if "valid" in row}
    assert len(scores) == 10
    assert card["validation"]["score"] == max(scores.values()) >= scores[60]
    assert card["validation"]["step"] == min(
        s for s, v in scores.items() if v == max(scores.values())
    )
    if name == "eagle":
        assert card["evaluation"]["beats_untrained"]["longer"]
        assert log[-1]["loss"] < log[0]["loss"]


def test_a_model_keeps_the_sizes_that_it_was_asked_for(tmp_path):
    sizes = dict(width=8, layers=1, heads=2, kv_heads=1, head_dim=4, hidden=12)
    made = new_head(drafter_training("model", PLAN, settings=sizes), toy_target())
    assert made.settings == sizes
    assert made.config == DecoderConfig(VOCAB, **sizes)
    for odd in ({"layers": 0}, {"head_dim": 3}):
        with pytest.raises(ValueError, match="sizes are"):
            new_head(drafter_training("model", PLAN, settings=odd), toy_target())
