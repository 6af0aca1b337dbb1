"""Training of one drafter: settings, recipes, card, evaluation, and the loop that resumes."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.optim.optimizer import register_optimizer_step_pre_hook
from toy_lm import VOCAB, toy_target
from toy_training import LENGTH, asked, drafter_data

import real.train.loop
from real.draft.losses import next_token_loss
from real.drafters import BUILTIN, trainable
from real.model.decoder import Decoder, DecoderConfig, initialize
from real.train.evaluation import accepted_lengths, card_lines, compare, evaluate_drafter, summary
from real.train.loop import TrainSchedule, fit, learning_rate_factor, optimizers
from real.train.settings import Training, check_drafter
from real.train.train import new_head, paper_of, recipe_of, schedule_of, settings_of, train_weights

HERE = Path("nowhere")
SIZES = dict(width=8, layers=1, heads=1, head_dim=8, hidden=12)
DRAFTERS = ["early_exit", "eagle", "medusa", "hydra", "glide"]


def test_every_trainable_drafter_has_default_settings():
    assert set(trainable()) >= {*DRAFTERS, "model", "sorted"}
    for name in trainable():
        part, again = (new_head(asked(name, HERE), toy_target()) for _ in range(2))
        assert json.loads(json.dumps(part.settings)) == part.settings
        assert all(p.requires_grad for p in part.parameters())
        pairs = zip(part.state_dict().values(), again.state_dict().values())
        assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"settings": ("layers",)}, "is no setting; expected key=value"),
        ({"settings": ("=2",)}, "is no setting; expected key=value"),
        ({"settings": ("a=1", "a=2")}, "is no setting; expected key=value"),
        ({"name": "a/b"}, "--name is 'a/b'"),
        ({"name": ".."}, "--name is '..'"),
        ({"name": "target"}, "--name is 'target'"),
        ({"rate": 1.5}, "--rate is 1.5"),
        ({"rows": 0}, "--rows is 0"),
        ({"steps": -1}, "--steps is -1"),
        ({"minutes": float("nan")}, "--minutes is nan"),
        ({"distil_tokens": 10**30}, "--distil-tokens is 1000000000000000000000000000000"),
        ({"seed": -1}, "seed is -1"),
        ({"recipe": "theirs"}, "--recipe is 'theirs', expected one of ours, paper"),
        ({"dtype": "int8"}, "--dtype is 'int8', expected one of float32"),
        ({"steps": 0}, "name it by --from"),
        ({"start": "none"}, "--from names nowhere/none, which does not exist"),
        ({"learn_text": 5}, "--learn-text takes text to learn, and --prompts to continue"),
        ({"prompts": (Path("no.jsonl"),)}, "no.jsonl does not exist"),
        ({"work": Path(__file__)}, "is a file, expected a folder"),
    ],
)
def test_settings_that_cannot_be_are_refused(given, words):
    with pytest.raises(ValueError) as error:
        Training("eagle", HERE, **given)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name, chosen, words",
    [
        ("eagle", {"inpts": "token"}, "no setting 'inpts'; expected one of inputs, layers"),
        ("eagle", {"target": 1}, "no setting 'target'"),
        ("eagle", {"generator": 1}, "no setting 'generator'"),
        ("eagle", {"soft": 1}, "soft is 1, expected true or false"),
        ("early_exit", {"depth": "deep"}, "early_exit cannot be made with"),
        ("model", {"layers": 0}, "sizes are"),
        ("model", {"head_dim": 3}, "sizes are"),
    ],
)
def test_settings_of_a_drafter_are_checked(name, chosen, words):
    with pytest.raises(ValueError, match=words):
        new_head(asked(name, HERE, chosen), toy_target())


def test_drafters_without_weights_and_unknown_ones_are_refused():
    known = trainable(), tuple(BUILTIN)
    for name in (*trainable(), "self_skip", "predictors"):
        check_drafter(name, *known)
    for name, words in (("hidra", "did you mean hydra"), ("suffix", "has nothing to learn")):
        with pytest.raises(ValueError, match=words):
            check_drafter(name, *known)


def test_a_recipes_rate_falls_with_the_width_and_a_given_one_stays():
    recipe = BUILTIN["eagle"].recipe.rate
    for width, rate in ((16, recipe), (160, recipe), (640, recipe / 4)):
        assert schedule_of(asked("eagle", HERE), width, LENGTH).rate == rate
        assert schedule_of(asked("eagle", HERE, rate=8e-3), width, LENGTH).rate == 8e-3
    own = asked("model", HERE, {"width": 320})
    assert schedule_of(own, 640, LENGTH).rate == BUILTIN["model"].recipe.rate / 2


# (peak rate, betas, clip, towards the target's distribution, settings), and where it is printed
PRINTED = {
    # EESD §3.2 (hard labels), §3.1 (one layer, head initialised from the target's), Table 9 (1e-3)
    "early_exit": (1e-3, (0.9, 0.999), 1.0, False, {"layers": 1, "own_head": True}),
    # EAGLE §4.2 (w_cls 0.1, noise U(-0.1, 0.1)), §5 (3e-5, betas, clip 0.5)
    "eagle": (3e-5, (0.9, 0.95), 0.5, True, {"weight": 0.1, "noise": 0.1}),
    # Medusa §2.2.1 (0.8^k), train_vicuna_7b.sh (1e-3, one block), EESD Table 9 (1e-3)
    "medusa": (1e-3, (0.9, 0.999), 1.0, False, {"blocks": 1, "own_head": True, "decay": 0.8}),
    # README of zankner/Hydra (5e-4, teacher loss alone, heads summed)
    "hydra": (
        5e-4,
        (0.9, 0.999),
        1.0,
        True,
        {"blocks": 1, "own_head": True, "residual": True, "decay": 1.0},
    ),
    # GLIDE §4.1 (block 5), Appendix B (5e-4, AdamW), C (no distillation)
    "glide": (5e-4, (0.9, 0.999), 1.0, False, {"layers": 1, "shared": False, "block": 5}),
    # S2D §3.3; no rate is printed
    "sorted": (1e-3, (0.9, 0.999), 1.0, False, {"together": True}),
}


@pytest.mark.parametrize("name", PRINTED)
def test_recipes_hold_the_printed_figures(name):
    rate, betas, clip, soft, settings = PRINTED[name]
    training = asked(name, HERE, recipe="paper")
    plan = schedule_of(training, 160, LENGTH)
    assert (plan.rate, plan.betas, plan.clip, plan.optimizer) == (rate, betas, clip, "adamw")
    head, loss, learns_soft = settings_of(training)
    assert learns_soft is soft
    assert settings.items() <= (head | loss).items()
    printed = paper_of(training).rate is not None
    assert schedule_of(training, 640, LENGTH).rate == (rate if printed else rate / 4)


@pytest.mark.parametrize("clip", [0.5, 2.0])
def test_gradients_are_clipped_at_the_schedules_norm(tmp_path, clip):
    model, norms = torch.nn.Linear(3, 2), []

    def look(optimizer, *_):
        grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
        norms.append(float(torch.cat([g.flatten() for g in grads]).norm()))

    handle = register_optimizer_step_pre_hook(look)
    try:
        plan = TrainSchedule(steps=3, optimizer="adamw", clip=clip)
        fit(tmp_path, model, lambda step: 1e3 * model(torch.ones(1, 3)).square().sum(), plan)
    finally:
        handle.remove()
    assert norms == pytest.approx([clip] * 3, rel=1e-4)


def test_a_card_names_the_recipe_and_refuses_another(tmp_path):
    data = drafter_data()
    card = train_weights(asked("medusa", tmp_path, recipe="paper"), data)
    assert card["asked"]["recipe"] == "paper"
    assert "Medusa §2.2.1" in card["recipe"]["source"]
    assert card["recipe"]["not_printed"] == ["betas", "clip"]
    assert card["asked"]["plan"]["optimizer"] == "adamw"
    assert card == json.loads((tmp_path / "out" / "medusa" / "card.json").read_text())
    with pytest.raises(ValueError, match="medusa was made with"):
        train_weights(asked("medusa", tmp_path), data)


@pytest.mark.parametrize("name", DRAFTERS)
def test_training_saves_a_drafter_and_a_reproducible_card(tmp_path, name):
    data, training = drafter_data(), asked(name, tmp_path)
    card = train_weights(training, data)
    folder = tmp_path / "out" / name
    assert json.loads((folder / "card.json").read_text()) == card
    assert card_lines(card)
    assert card["steps"] == 6
    assert card["tokens"] == 6 * 4 * 15
    assert card["parameters"]["trained"] > 0
    assert card["seconds_per_batch"] > 0
    assert card["validation"]["step"] in range(1, 7)
    lengths = evaluate_drafter(name, folder, data)
    assert card["evaluation"]["trained"] == json.loads(
        json.dumps(summary(lengths) | {"by_sequence": lengths.by_sequence()})
    )
    assert card["evaluation"]["texts"] == 12
    drafter = recipe_of(name).drafter(data.target, new_head(training, data.target))
    untrained = accepted_lengths(data.target, drafter, data.evaluation, lengths.K)
    # what it never offers is not held against it
    assert lengths.K == card["evaluation"]["K"] == (4 if name in ("medusa", "hydra") else 5)
    assert card["evaluation"]["beats_untrained"] == compare(lengths, untrained)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert train_weights(training, data) == card
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}


def test_other_settings_need_another_folder(tmp_path):
    data = drafter_data()
    train_weights(asked("eagle", tmp_path), data)
    for other, words in (
        (
            asked("eagle", tmp_path, {"inputs": "token"}),
            "made with settings inputs 'feature&shifted_token', now 'token'",
        ),
        (asked("eagle", tmp_path, {"noise": 0.0}), "made with loss noise None, now 0.0"),
        (asked("eagle", tmp_path, {"soft": False}), "made with soft True, now False"),
        (asked("eagle", tmp_path, steps=7), "made with plan steps 6, now 7"),
        (asked("medusa", tmp_path, name="eagle"), "made with drafter 'eagle', now 'medusa'"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            train_weights(other, data)
        assert "\n" not in str(caught.value)
        assert "--name" in str(caught.value)
    folder, store = tmp_path / "out" / "eagle", tmp_path / "work" / "eagle"
    (folder / "card.json").unlink()
    (folder / "eagle.safetensors").unlink()
    # a checkpoint of other settings is not continued
    with pytest.raises(ValueError, match="work.*made with soft True"):
        train_weights(asked("eagle", tmp_path, {"soft": False}), data)
    (store / "asked.json").write_text("[[")
    with pytest.raises(ValueError, match="asked.json is damaged"):
        train_weights(asked("eagle", tmp_path), data)


def test_weights_without_a_card_are_evaluated_not_trained(tmp_path):
    data, folder = drafter_data(), tmp_path / "out" / "early_exit"
    first = train_weights(asked("early_exit", tmp_path), data)
    (folder / "card.json").unlink()
    held = (folder / "exit.safetensors").read_bytes()
    again = train_weights(asked("early_exit", tmp_path, seed=5, work=tmp_path / "other"), data)
    assert (folder / "exit.safetensors").read_bytes() == held
    assert again["evaluation"]["trained"] == first["evaluation"]["trained"]
    assert again["steps"] == 0
    assert again["seconds_per_batch"] is None


@pytest.mark.parametrize(
    "name, half",
    [("eagle", "eagle.json"), ("eagle", "eagle.safetensors"), ("model", "config.json")],
)
def test_incomplete_saves_are_repeated(tmp_path, name, half):
    data, folder = drafter_data(), tmp_path / "out" / name
    training = asked(name, tmp_path, SIZES if name == "model" else {})
    first = train_weights(training, data)
    whole = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "card.json"}
    for gone in ("card.json", half):
        (folder / gone).unlink()
    again = train_weights(training, data)
    assert {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "card.json"} == whole
    assert again["evaluation"] == first["evaluation"]
    assert again["steps"] == first["steps"]


@pytest.mark.parametrize("name", ["early_exit", "eagle"])
def test_best_validated_weights_are_saved(tmp_path, name):
    card = train_weights(asked(name, tmp_path, rate=0.02, steps=60, rows=16), drafter_data())
    log = json.loads((tmp_path / "work" / f"{name}.json").read_text())
    scores = {row["step"]: row["valid"]["score"] for row in log if "valid" in row}
    assert len(scores) == 10
    assert card["validation"]["score"] == max(scores.values()) >= scores[60]
    assert card["learning_curve"] == [[step, score] for step, score in scores.items()]
    best = min(step for step, score in scores.items() if score == max(scores.values()))
    assert card["validation"]["step"] == best
    if name == "eagle":
        assert card["evaluation"]["beats_untrained"]["longer"]
        assert log[-1]["loss"] < log[0]["loss"]


HELD = settings(deadline=None, max_examples=60, derandomize=True)
TEXT = np.random.default_rng(0).integers(0, VOCAB, 500)
PLAN = TrainSchedule(steps=23, rows=2, length=6, rate=1e-2, save_every=5)
SMALL = DecoderConfig(VOCAB, 8, 1, heads=1, kv_heads=1, head_dim=8, hidden=12)


def windows(token, rows, length, seed, step):
    """Random windows int64 `[rows, length + 1]`, addressed by (seed, step)."""
    start = np.random.default_rng([seed, step]).integers(0, len(token) - length - 1, rows)
    return token[start[:, None] + np.arange(length + 1)]


class Killed(Exception):
    pass


def trained(
    folder, plan=PLAN, die_at=None, seed=0, shape=SMALL, window_of=lambda step: step,
    validation=None
):  # fmt: skip
    """Fits a small model; returns its log and weights. Dies in the loss of step `die_at`."""
    model = Decoder(shape)
    initialize(model, seed)

    def loss(step):
        if step == die_at:
            raise Killed
        batch = torch.from_numpy(windows(TEXT, plan.rows, plan.length, plan.seed, window_of(step)))
        return next_token_loss(model(batch[:, :-1]), batch[:, 1:])

    scores = iter(validation) if validation else None

    def validate():
        held = torch.tensor(TEXT[:48].reshape(4, 12))
        with torch.no_grad():
            score = -next_token_loss(model(held[:, :-1]), held[:, 1:]).item()
        return {"score": score if scores is None else next(scores), "part": 1.5}

    log = fit(folder, model, loss, plan, validate=validate)
    return log, model.state_dict()


def same(a, b):
    return a[0] == b[0] and all(torch.equal(v, b[1][k]) for k, v in a[1].items())


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("unbroken"))


def test_log_and_weights_of_an_uninterrupted_training(unbroken, tmp_path):
    log, weights = unbroken
    steps = [3, 6, 9, 10, 12, 15, 18, 20, 21, 23]  # every tenth, and every 23 / 10, up
    assert [row["step"] for row in log] == steps
    assert [row["step"] for row in log if "valid" in row] == [3, 6, 9, 12, 15, 18, 21, 23]
    assert log[-1]["valid"]["part"] == 1.5
    assert same(unbroken, trained(tmp_path / "again"))
    assert not same(unbroken, trained(tmp_path / "seed", seed=1))
    # the last three steps count
    assert not same(unbroken, trained(tmp_path / "windows", window_of=lambda step: step % 20))


@pytest.mark.parametrize(
    "kills", [(0,), (4,), (5,), (6, 9), (14, 14, 15), (19,), (20,), (22,), (3, 8, 13, 18, 22)]
)
def test_interrupted_training_ends_with_the_same_bits(unbroken, tmp_path, kills):
    for die_at in kills:
        with pytest.raises(Killed):
            trained(tmp_path, die_at=die_at)
    # after a save the start is forgotten
    assert same(unbroken, trained(tmp_path, seed=0 if kills[-1] < 5 else 9))


def test_slow_steps_are_saved_by_the_clock(unbroken, tmp_path, monkeypatch):
    monkeypatch.setattr(real.train.loop, "SAVE_SECONDS", 0)
    steps = []

    def seen(step):
        steps.append(step)
        return step

    with pytest.raises(Killed):
        trained(tmp_path, die_at=3)  # before the first save by number
    assert same(unbroken, trained(tmp_path, seed=9, window_of=seen))
    assert steps == [*range(3, PLAN.steps)]


JUDGED = replace(PLAN, steps=40, every=4)
SCORES = [1.0, 3.0, 3.0, 2.0, 2.5, 1.0, 4.0, 1.0, 1.0, 1.0]


def weights_after(tmp_path, step):
    """Weights of an uninterrupted run after `step` of its 40 steps."""

    def stop(now):
        if now == step:
            raise Killed
        return now

    with pytest.raises(Killed):
        trained(
            tmp_path / "until",
            replace(JUDGED, save_every=1),
            window_of=stop,
            validation=[-float(i) for i in range(10)],
        )
    return {
        n.removeprefix("weight/"): v
        for n, v in load_file(tmp_path / "until" / "checkpoint.safetensors").items()
        if n.startswith("weight/")
    }


@pytest.mark.parametrize(
    "patience, stops, best", [(0, 40, 28), (1, 12, 8), (3, 20, 8), (4, 24, 8), (5, 40, 28)]
)
def test_patience_stops_and_best_weights_are_restored(tmp_path, patience, stops, best):
    """Validated every 4 steps, 3.0 at 8 is first beaten by 4.0 at 28; a tie is no improvement."""
    log, weights = trained(tmp_path / "it", replace(JUDGED, patience=patience), validation=SCORES)
    assert log[-1]["step"] == stops
    assert [row["valid"]["score"] for row in log if "valid" in row] == SCORES[: stops // 4]
    wanted = weights_after(tmp_path, best)
    assert all(torch.equal(weights[n], v) for n, v in wanted.items())
    if stops != best:
        last = (
            weights_after(tmp_path, stops)
            if stops < 40
            else load_file(tmp_path / "it" / "checkpoint.safetensors")
        )
        assert not all(
            torch.equal(weights[n], last.get(n, last.get(f"weight/{n}"))) for n in wanted
        )
    again = trained(
        tmp_path / "it", replace(JUDGED, patience=patience), validation=SCORES, seed=9, die_at=stops
    )
    assert same((log, weights), again)  # ended is ended, and the best weights are there


@pytest.mark.parametrize("die_at", [5, 8, 11, 13, 17, 19])
def test_interrupted_training_keeps_best_weights_and_patience(tmp_path, die_at):
    plan = replace(JUDGED, patience=3, save_every=6)

    def scores(first):
        return SCORES[first:]  # validations before the last save are not repeated

    unbroken = trained(tmp_path / "a", plan, validation=scores(0))
    with pytest.raises(Killed):
        trained(tmp_path / "b", plan, die_at=die_at, validation=scores(0))
    saved = die_at // 6 * 6
    assert same(
        unbroken,
        trained(tmp_path / "b", plan, validation=scores(saved // 4), seed=9 if saved else 0),
    )


def test_interrupted_save_leaves_the_previous_state(unbroken, tmp_path, monkeypatch):
    def dies(held, path, head):
        path.write_bytes(b"half")
        raise Killed(head["step"])

    with pytest.raises(Killed):
        trained(tmp_path, die_at=7)
    with monkeypatch.context() as patch, pytest.raises(Killed, match="10"):
        patch.setattr(real.train.loop, "save_file", dies)
        trained(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.safetensors"]
    assert same(unbroken, trained(tmp_path, seed=9))


@pytest.mark.parametrize(
    "changes", [dict(layers=2), dict(hidden=16), dict(width=4), dict(qk_norm=True)]
)
def test_state_of_another_model_is_refused(tmp_path, changes):
    trained(tmp_path)
    with pytest.raises(ValueError, match="belongs to another model") as caught:
        trained(tmp_path, shape=replace(SMALL, **changes))
    assert "\n" not in str(caught.value)
    assert "checkpoint.safetensors" in str(caught.value)


@pytest.mark.parametrize("die_at", [None, 15, 25, 35, 45, 55, 100])
def test_minutes_become_steps_once(tmp_path, monkeypatch, die_at):
    """At 0.5 s a step, one minute after the first 40 steps is 160 in all; a kill repeats timing."""
    now = [0.0]
    monkeypatch.setattr(real.train.loop, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def step_takes_time(step):
        assert step < 250, "the plan has lost sight of its minutes"
        now[0] += 0.5
        return step

    plan = replace(PLAN, steps=0, minutes=1.0, save_every=10)
    if die_at:
        with pytest.raises(Killed):
            trained(tmp_path, plan, die_at, window_of=step_takes_time)
    now[0] += 1e-3
    log, _ = trained(tmp_path, plan, window_of=step_takes_time)
    assert 150 <= log[-1]["step"] <= (200 if die_at else 161)


@pytest.mark.parametrize(("slow", "seconds"), [(40, 0.125), (60, 0.3), (25, 2.0), (0, 0.05)])
def test_slow_first_steps_do_not_shorten_a_training(tmp_path, monkeypatch, slow, seconds):
    """An H200's first 40 steps took 0.125 s, the others 0.05: it stopped in half of its time."""
    now, after = [0.0], []
    monkeypatch.setattr(real.train.loop, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.ones(1))

    def loss(step):
        now[0] += seconds if step < slow else 0.05
        after.append(now[0])
        return model.weight.sum()

    plan = replace(PLAN, steps=0, minutes=2.0, save_every=1000)
    log = fit(tmp_path, model, loss, plan)
    assert log[-1]["step"] == len(after)
    assert after[-1] - after[39] == pytest.approx(120, abs=1)


@HELD
@given(st.integers(1, 300), st.floats(0, 1))
def test_learning_rate_rises_to_its_peak_and_falls_to_zero(steps, warmup):
    rise = max(1, round(warmup * steps))
    shares = [learning_rate_factor(step, steps, warmup) for step in range(steps)]
    assert shares[: rise - 1] == sorted(shares[: rise - 1])
    assert shares[rise - 1 :] == sorted(shares[rise - 1 :], reverse=True)
    assert max(shares) == shares[rise - 1] == 1.0
    assert min(shares) > 0.0
    assert learning_rate_factor(steps, steps, warmup) == 0.0
    assert np.allclose(np.diff(shares[: rise - 1]), 1 / rise)
    assert np.allclose(np.diff(shares[rise:]), -1 / max(1, steps - rise))


def test_every_parameter_has_one_optimizer_and_frozen_ones_stay(tmp_path):
    model = Decoder(replace(SMALL, tied=False, qkv_bias=True))
    learnt = dict(model.named_parameters())
    held = [
        [id(p) for group in o.param_groups for p in group["params"]]
        for o in optimizers(learnt, PLAN)
    ]
    assert sorted(sum(held, [])) == sorted(map(id, learnt.values()))
    assert {n for n, p in learnt.items() if id(p) in held[0]} == {
        n for n in learnt if "layers" in n and learnt[n].ndim == 2
    }
    model.embed.weight.requires_grad_(False)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    fit(
        tmp_path,
        model,
        lambda step: model(torch.arange(4)[None]).square().mean(),
        replace(PLAN, steps=2, warmup=0.0),
    )
    moved = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert "embed.weight" not in moved
    assert {"head.weight", "layers.0.query.weight"} <= moved
