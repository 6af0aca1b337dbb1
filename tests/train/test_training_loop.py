"""The training loop: resumption, best weights, schedule and optimizers."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from toy_lm import VOCAB

import real.train.loop
from real.draft.losses import next_token_loss
from real.model.decoder import Decoder, DecoderConfig, initialize
from real.train.loop import TrainSchedule, fit, learning_rate_factor, optimizers

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
    folder,
    plan=PLAN,
    die_at=None,
    seed=0,
    shape=SMALL,
    window_of=lambda step: step,
    validation=None,
):
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
        unbroken, trained(tmp_path / "windows", window_of=lambda step: step % 20)
    )  # the last three steps count


@pytest.mark.parametrize(
    "kills", [(0,), (4,), (5,), (6, 9), (14, 14, 15), (19,), (20,), (22,), (3, 8, 13, 18, 22)]
)
def test_interrupted_training_ends_with_the_same_bits(unbroken, tmp_path, kills):
    for die_at in kills:
        with pytest.raises(Killed):
            trained(tmp_path, die_at=die_at)
    assert same(
        unbroken, trained(tmp_path, seed=0 if kills[-1] < 5 else 9)
    )  # after a save the start is forgotten


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


def test_finished_training_is_not_repeated(unbroken, tmp_path):
    trained(tmp_path)
    assert same(unbroken, trained(tmp_path, seed=9, die_at=0))


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
