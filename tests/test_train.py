"""Training that was killed ends with the bits of training that was not, and its batches, texts and figures are what they say."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from toy_lm import VOCAB, toy_decoder

import real.train.resume
import real.train.trainer
from real.drafters import trainable
from real.model.config import DecoderConfig
from real.model.decoder import Decoder
from real.model.initialization import initialize
from real.model.losses import next_token_loss
from real.train.config import TrainConfig
from real.train.corpus import windows
from real.train.distillation import heldout_continuations, heldout_count, mixed_batches
from real.train.drafter_training import drafter_training
from real.train.evaluate import agreement, heldout_loss
from real.train.generate import generate_batch
from real.train.optimizers import optimizers
from real.train.pipeline import build
from real.train.schedule import TrainSchedule, learning_rate_factor
from real.train.trainer import fit

HELD = settings(deadline=None, max_examples=60, derandomize=True)
TEXT = np.random.default_rng(0).integers(0, VOCAB, 500)
PLAN = TrainSchedule(steps=23, rows=2, length=6, rate=1e-2, save_every=5)
SMALL = DecoderConfig(VOCAB, 8, 1, heads=1, kv_heads=1, head_dim=8, hidden=12)


class Killed(Exception):
    pass


def trained(folder, plan=PLAN, die_at=None, seed=0, shape=SMALL, at=lambda step: step, judge=None):
    """Fits a small model; returns its log and weights. Dies in the loss of step `die_at`."""
    model = Decoder(shape)
    initialize(model, seed)

    def loss(step):
        if step == die_at:
            raise Killed
        batch = torch.from_numpy(windows(TEXT, plan.rows, plan.length, plan.seed, at(step)))
        return next_token_loss(model(batch[:, :-1]), batch[:, 1:])

    scores = iter(judge) if judge else None

    def validate():
        held = torch.tensor(TEXT[:48].reshape(4, 12))
        with torch.no_grad():
            found = -next_token_loss(model(held[:, :-1]), held[:, 1:]).item()
        return {"score": found if scores is None else next(scores), "part": 1.5}

    log = fit(folder, model, loss, plan, validate=validate)
    return log, model.state_dict()


def same(a, b):
    return a[0] == b[0] and all(torch.equal(v, b[1][k]) for k, v in a[1].items())


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("unbroken"))


def test_the_log_and_the_weights_of_an_unbroken_run(unbroken, tmp_path):
    log, weights = unbroken
    assert [row["step"] for row in log] == [
        3,
        6,
        9,
        10,
        12,
        15,
        18,
        20,
        21,
        23,
    ]  # every tenth, and every 23 / 10, up
    assert [row["step"] for row in log if "valid" in row] == [3, 6, 9, 12, 15, 18, 21, 23]
    assert log[-1]["valid"]["part"] == 1.5
    assert same(unbroken, trained(tmp_path / "again"))
    assert not same(unbroken, trained(tmp_path / "seed", seed=1))
    assert not same(
        unbroken, trained(tmp_path / "windows", at=lambda step: step % 20)
    )  # the last three steps count


@pytest.mark.parametrize(
    "kills", [(0,), (4,), (5,), (6, 9), (14, 14, 15), (19,), (20,), (22,), (3, 8, 13, 18, 22)]
)
def test_a_killed_run_ends_with_the_same_bits(unbroken, tmp_path, kills):
    for die_at in kills:
        with pytest.raises(Killed):
            trained(tmp_path, die_at=die_at)
    assert same(
        unbroken, trained(tmp_path, seed=0 if kills[-1] < 5 else 9)
    )  # after a save the start is forgotten


JUDGED = replace(PLAN, steps=40, every=4)
SCORES = [1.0, 3.0, 3.0, 2.0, 2.5, 1.0, 4.0, 1.0, 1.0, 1.0]


def weights_after(tmp_path, step):
    """The weights of an unbroken run after so many of its 40 steps, with the state that leads there."""

    def stop(now):
        if now == step:
            raise Killed
        return now

    with pytest.raises(Killed):
        trained(
            tmp_path / "until",
            replace(JUDGED, save_every=1),
            at=stop,
            judge=[-float(i) for i in range(10)],
        )
    return {
        n.removeprefix("weight/"): v
        for n, v in load_file(tmp_path / "until" / "checkpoint.safetensors").items()
        if n.startswith("weight/")
    }


@pytest.mark.parametrize(
    "patience, stops, best", [(0, 40, 28), (1, 12, 8), (3, 20, 8), (4, 24, 8), (5, 40, 28)]
)
def test_the_best_weights_stay_and_patience_ends_it(tmp_path, patience, stops, best):
    """Validated every 4 steps: 3.0 at 8 is first beaten by 4.0 at 28; an equal score is no better one."""
    log, found = trained(tmp_path / "it", replace(JUDGED, patience=patience), judge=SCORES)
    assert log[-1]["step"] == stops
    assert [row["valid"]["score"] for row in log if "valid" in row] == SCORES[: stops // 4]
    wanted = weights_after(tmp_path, best)
    assert all(torch.equal(found[n], v) for n, v in wanted.items())
    if stops != best:
        last = (
            weights_after(tmp_path, stops)
            if stops < 40
            else load_file(tmp_path / "it" / "checkpoint.safetensors")
        )
        assert not all(torch.equal(found[n], last.get(n, last.get(f"weight/{n}"))) for n in wanted)
    again = trained(
        tmp_path / "it", replace(JUDGED, patience=patience), judge=SCORES, seed=9, die_at=stops
    )
    assert same((log, found), again)  # ended is ended, and the best weights are there


@pytest.mark.parametrize("die_at", [5, 8, 11, 13, 17, 19])
def test_a_killed_run_keeps_its_best_and_its_patience(tmp_path, die_at):
    plan = replace(JUDGED, patience=3, save_every=6)
    scores = lambda first: SCORES[first:]  # validations before the last save are not made again
    unbroken = trained(tmp_path / "a", plan, judge=scores(0))
    with pytest.raises(Killed):
        trained(tmp_path / "b", plan, die_at=die_at, judge=scores(0))
    saved = die_at // 6 * 6
    assert same(
        unbroken, trained(tmp_path / "b", plan, judge=scores(saved // 4), seed=9 if saved else 0)
    )


def test_a_save_that_dies_half_way_leaves_the_last_one(unbroken, tmp_path, monkeypatch):
    def dies(held, path, head):
        path.write_bytes(b"half")
        raise Killed(head["step"])

    with pytest.raises(Killed):
        trained(tmp_path, die_at=7)
    with monkeypatch.context() as patch, pytest.raises(Killed, match="10"):
        patch.setattr(real.train.resume, "save_file", dies)
        trained(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.safetensors"]
    assert same(unbroken, trained(tmp_path, seed=9))


def test_a_finished_run_is_not_run_again(unbroken, tmp_path):
    trained(tmp_path)
    assert same(unbroken, trained(tmp_path, seed=9, die_at=0))


@pytest.mark.parametrize(
    "changes", [dict(layers=2), dict(hidden=16), dict(width=4), dict(qk_norm=True)]
)
def test_a_checkpoint_of_another_model_is_refused(tmp_path, changes):
    trained(tmp_path)
    with pytest.raises(ValueError, match="belongs to another model") as caught:
        trained(tmp_path, shape=replace(SMALL, **changes))
    assert "\n" not in str(caught.value)
    assert "checkpoint.safetensors" in str(caught.value)


@pytest.mark.parametrize("die_at", [None, 15, 25, 35, 45, 55, 100])
def test_minutes_become_steps_once_and_whenever_it_was_killed(tmp_path, monkeypatch, die_at):
    """At half a second a step, one minute after the first 40 steps is 160 in all; a kill may cost some timing anew."""
    now = [0.0]
    monkeypatch.setattr(real.train.trainer, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def step_takes_time(step):
        assert step < 250, "the plan has lost sight of its minutes"
        now[0] += 0.5
        return step

    plan = replace(PLAN, steps=0, minutes=1.0, save_every=10)
    if die_at:
        with pytest.raises(Killed):
            trained(tmp_path, plan, die_at, at=step_takes_time)
    now[0] += 1e-3
    log, _ = trained(tmp_path, plan, at=step_takes_time)
    assert 150 <= log[-1]["step"] <= (200 if die_at else 161)


@HELD
@given(st.integers(1, 300), st.floats(0, 1))
def test_the_rate_rises_to_its_peak_and_falls_to_zero(steps, warmup):
    rise = max(1, round(warmup * steps))
    shares = [learning_rate_factor(step, steps, warmup) for step in range(steps)]
    assert shares[: rise - 1] == sorted(shares[: rise - 1])
    assert shares[rise - 1 :] == sorted(shares[rise - 1 :], reverse=True)
    assert max(shares) == shares[rise - 1] == 1.0
    assert min(shares) > 0.0
    assert learning_rate_factor(steps, steps, warmup) == 0.0
    assert np.allclose(np.diff(shares[: rise - 1]), 1 / rise)
    assert np.allclose(np.diff(shares[rise:]), -1 / max(1, steps - rise))


def test_every_parameter_has_one_optimiser_and_frozen_ones_stay(tmp_path):
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


def test_write_marks_greedy_rows_and_samples_the_others():
    decoder, prompt = toy_decoder(2, spread=0.8), torch.tensor([[5, 6, 7]] * 4 + [[9, 4, 4]] * 2)
    greedy = torch.tensor([True, False, False, False, True, False])
    made = generate_batch(decoder, prompt, 12, greedy, 3)
    assert made.shape == (6, 15)
    assert torch.equal(made[:, :3], prompt)
    for row in (0, 4):
        text = prompt[row]
        for _ in range(12):
            text = torch.cat((text, decoder(text[None])[0, -1].argmax()[None]))
        assert torch.equal(made[row], text)
    assert len({tuple(made[row].tolist()) for row in range(4)}) == 4
    assert torch.equal(generate_batch(decoder, prompt, 12, greedy, 3), made)
    other = generate_batch(decoder, prompt, 12, greedy, 4)
    assert torch.equal(other[greedy], made[greedy])
    assert not torch.equal(other[~greedy], made[~greedy])


def test_texts_to_judge_by_are_the_targets_own_after_prompts_that_nobody_learns_from():
    decoder = toy_decoder(0)
    own = np.random.default_rng(5).integers(0, VOCAB, (40, 12))
    ends = (23, 0)
    texts, cut = heldout_continuations(decoder, own, 9, ends, prompt=4), 0
    assert [prompt for prompt, _ in texts] == own[40 - heldout_count(own) :, :4].tolist()
    for prompt, text in texts:
        wanted = list(prompt)
        while len(wanted) < 13 and wanted[-1] not in ends or len(wanted) == 4:
            wanted.append(int(decoder(torch.tensor([wanted]))[0, -1].argmax()))
        assert text.tolist() == wanted[4:]
        cut += len(text) < 9
    assert len(texts) == 10
    assert 0 < cut < 10


@pytest.mark.parametrize("blend, written", [(0.0, 0), (0.5, 4), (0.3, 2), (1.0, 8)])
def test_batches_never_draw_texts_that_are_heldout_count(blend, written):
    own = np.repeat(
        np.arange(40)[:, None], 12, 1
    )  # text i says i, i, i; the corpus says 100 and more
    lab = TrainConfig((), blend=blend)
    batch = mixed_batches(lab, np.arange(100, 400), own, TrainSchedule(rows=8, length=10))
    drawn = torch.stack([batch(step) for step in range(100)])
    assert drawn.shape == (100, 8, 11)
    assert torch.equal(batch(7), drawn[7])
    assert (drawn[:, : 8 - written] >= 100).all()
    assert (drawn[:, 8 - written :] < 100).all()
    if written:
        assert heldout_count(own) == 10
        assert set(drawn[:, 8 - written :].flatten().tolist()) == set(range(30))


def test_texts_too_short_for_the_windows_are_refused():
    with pytest.raises(
        ValueError, match="windows of 12; sequences generated by the target have 12"
    ):
        mixed_batches(TrainConfig(()), TEXT, np.zeros((8, 12), int), TrainSchedule(length=12))
    with pytest.raises(ValueError, match="held-out text has 12 tokens"):
        heldout_loss(toy_decoder(0), TEXT[:12], 12)


def test_the_cards_figures():
    target, other = toy_decoder(0), toy_decoder(1)
    own = TEXT[:480].reshape(40, 12)
    agree = target(torch.tensor(own[30:])).argmax(-1) == other(torch.tensor(own[30:])).argmax(-1)
    assert agreement(target, target, own) == 1.0
    assert 0 < agreement(other, target, own) < 1
    assert (
        abs(
            agreement(other, target, own)
            - (agree[:8].float().mean() + agree[8:].float().mean()).item() / 2
        )
        < 1e-6
    )
    rows = torch.tensor(TEXT[:36].reshape(3, 12)), torch.tensor(TEXT[1:37].reshape(3, 12))
    assert (
        abs(heldout_loss(target, TEXT[:40], 12) - next_token_loss(target(rows[0]), rows[1]).item())
        < 1e-6
    )


def toy_lab(folder):
    for name, seed in (("text", 1), ("kept", 2)):
        words = np.random.default_rng(seed).choice(
            ["cats", "sat", "on", "mats", "by", "12", "dogs"], 3000
        )
        (folder / f"{name}.txt").write_text(" ".join(words))
    plan = TrainSchedule(steps=12, rows=2, length=16, rate=1e-2, save_every=5)
    sizes = dict(vocab=280, target=replace(SMALL, vocab=280, layers=2), sample=10)
    small = {"model": dict(width=8, layers=1, heads=1, head_dim=8, hidden=12)}
    drafters = tuple(drafter_training(name, plan, settings=small.get(name)) for name in trainable())
    few = dict(
        evaluation_tokens=7,
        trials=3,
        distil_tokens=64 * 256 + 1,
        predictor_texts=2,
        rank=2,
        mixed=False,
    )
    return TrainConfig(
        (str(folder / "text.txt"),),
        (str(folder / "kept.txt"),),
        target_plan=plan,
        drafters=drafters,
        **sizes,
        **few,
    )


def files(folder):
    """All files below a folder but the pictures: name -> when it was written, and what it holds that a rerun repeats."""
    found = {}
    for p in (p for p in folder.rglob("*") if p.is_file() and p.suffix != ".png"):
        held = p.read_bytes()
        if p.name == "checkpoint.safetensors":
            held = {k: v.tolist() for k, v in load_file(p).items()}  # its header's order is free
        if p.name == "card.json":
            held = json.loads(held) | {"git": None}  # someone may commit meanwhile
            for card in (held, *held.get("drafters", {}).values()):
                for moment in {"git", "seconds_per_batch"} & card.keys():
                    card[moment] = None
        found[str(p.relative_to(folder))] = (p.stat().st_mtime_ns, held)
    return found


def test_a_lab_killed_at_every_stage_makes_what_an_unbroken_one_makes(tmp_path):
    lab, dies = (
        toy_lab(tmp_path),
        {
            "tokenizer": 1,
            "tokens": 0,
            "target": 10,
            "distil": 1,
            "model": 10,
            "evaluating model": 0,
            "early_exit": 10,
        },
    )
    dies |= {"eagle": 10, "glide": 12, "evaluating glide": 0, "self_skip": 2, "card": 0}
    build(lab, tmp_path / "a" / "out", tmp_path / "a" / "work")
    for stage, at in dies.items():

        def progress(label, done, total, note=""):
            if (label, done) == (stage, at):
                raise Killed

        with pytest.raises(Killed):
            build(lab, tmp_path / "b" / "out", tmp_path / "b" / "work", progress)
    build(lab, tmp_path / "b" / "out", tmp_path / "b" / "work")
    before, other = files(tmp_path / "a"), files(tmp_path / "b")
    assert {n: held for n, (_, held) in before.items()} == {
        n: held for n, (_, held) in other.items()
    }
    card = before["out/card.json"][1]
    assert card["steps"] == dict.fromkeys(["target", *trainable()], 12)
    assert card["distilled_tokens"] == 2 * 64 * 256
    assert set(card["heldout_loss_nats"]["model"]) == {"kept"}
    assert len(card["sha256"]) == 8 + len(trainable()) - 2

    assert set(card["drafters"]) == {*trainable(), "self_skip"}

    lost = (
        "out/early_exit/exit.safetensors",
        "out/early_exit/card.json",
        "work/early_exit/checkpoint.safetensors",
        "out/card.json",
    )
    for name in lost:
        (tmp_path / "a" / name).unlink()
    build(lab, tmp_path / "a" / "out", tmp_path / "a" / "work")
    after = files(tmp_path / "a")
    assert {n: held for n, (_, held) in before.items()} == {
        n: held for n, (_, held) in after.items()
    }
    redone = {n for n in after if after[n][0] != before[n][0]}
    assert "out/early_exit/exit.safetensors" in redone
    assert not any(
        "target" in n or "model/" in n or "distilled" in n or "text" in n for n in redone
    )


def test_cards_keep_the_keys_of_earlier_versions():
    stored = TrainConfig(("corpus",)).stored()
    assert {"lessons", "judged"} <= set(stored)
    assert not {"drafters", "evaluation_tokens", "text", "heldout"} & set(stored)
    assert set(stored["lessons"][0]) == {"drafter", "plan", "soft", "settings", "folder"}
