"""The acceptance predictor is Eq. 5, is trained, and decodes exactly as it was recorded."""

import hashlib
import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from toy_lm import END, PREFIX, RULES, recorded, run_all, toy_cost, toy_pair, toy_prompts

from real.decode import features
from real.model.checkpoint import WeightsError
from real.model.passes import TargetPass
from real.pair import check_predictors
from real.record import Settings
from real.record.recorder import record_sequence
from real.record.rows import RecordedRows, record_prefix_only, record_stepwise
from real.record.sequences import target_sequence
from real.rerun import rerun, rounds_of
from real.train.predictors import (
    AcceptanceExamples,
    GeneratedSequence,
    acceptance_examples,
    train_predictor,
)
from simspec import Policy, replay
from simspec.trace import quantization as grid

TARGET = "ab" * 32
FORMS = {"theta": None, "theta_low_rank": 3}


def predictor(
    seed: int, rank: int | None, target=16, drafter=16, depths=10, spread=0.15
) -> features.AcceptancePredictor:
    generator = torch.Generator().manual_seed(seed)
    head = features.AcceptancePredictor(target, drafter, rank, depths).requires_grad_(False)
    for p in head.parameters():
        p.copy_(
            (p + spread * torch.randn(p.shape, generator=generator, dtype=torch.float64)).bfloat16()
        )
    return head


def equipped(name: str, seed: int = 0):
    """A toy pair whose drafter has both predictors."""
    target, drafter = toy_pair(name)
    drafter.predictors = {
        feature: predictor(seed + i, rank) for i, (feature, rank) in enumerate(FORMS.items())
    }
    return target, drafter


PAIRS = {name: equipped(name) for name in PREFIX}


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 999), st.sampled_from([None, 1, 3]), st.integers(1, 5), st.integers(1, 6),
    st.integers(1, 10), st.integers(0, 14)
)  # fmt: skip
def test_prediction_equals_equation_5(seed, rank, target, drafter, depths, slot):
    head = predictor(seed, rank, target, drafter, depths)
    rng = np.random.default_rng(seed)
    here, there = rng.normal(size=target), rng.normal(size=drafter)
    i = min(slot, depths - 1)
    turn = (head.turn[i] if rank is None else head.left[i] @ head.right).tolist()
    turned = [sum(turn[r][c] * here[c] for c in range(target)) for r in range(target)]
    wanted = sum(w * x for w, x in zip(head.judge.tolist(), [*turned, *there])) + head.bias.item()
    folded = head.folded()
    computed = folded.of_target(torch.tensor(here))[i] + folded.of_drafter(torch.tensor(there))
    assert abs(computed.item() - wanted) < 1e-9
    assert sum(p.numel() for p in head.parameters()) == features.parameter_count(
        target, drafter, rank, depths
    )


@pytest.mark.parametrize(
    "sizes",
    [(0, 4), (4, -1), (4, 4, 0), (4, 4, None, 0), (4, 4, None, 10.0), (4, 1 << 20), ("4", 4)],
)
def test_invalid_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="expected an integer"):
        features.AcceptancePredictor(*sizes)


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(PREFIX), st.sampled_from(list(RULES)), st.integers(0, 500),
    st.integers(1, 13), st.integers(1, 20),
    st.sampled_from([(), ("theta",), ("theta_low_rank", "confidence", "theta", "entropy")]),
)  # fmt: skip
def test_prefix_only_recording_equals_the_definition(name, rule, seed, K, budget, names):
    target, drafter = PAIRS[name]
    prompt = toy_prompts(1, seed)[0]
    record_settings = Settings(K, budget, RULES[rule], END, names)
    text, _ = target_sequence(target, record_settings, prompt, seed)
    slow, fast = (
        record(target, drafter, record_settings, prompt, text, seed)
        for record in (record_stepwise, record_prefix_only)
    )
    for field in RecordedRows.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(slow, field), getattr(fast, field), err_msg=field)


def test_recorded_codes_equal_full_passes():
    """θ by the definition: hidden states of uncached passes over the prefix and the draft."""
    target, drafter = PAIRS["model"]
    record_settings = Settings(12, 14, RULES["coupled"], END, ("theta",))
    prompt, sequence = toy_prompts(1, 12)[0], 3
    rows = record_sequence(target, drafter, record_settings, prompt, sequence)
    head, text, seen = drafter.predictors["theta"], rows.token.tolist(), 0

    def last(lm, prefix):
        with torch.inference_mode():
            token = torch.tensor([prefix])
            return lm.run(
                lm.embed(token), range(len(lm.layers)), lm.rotation(torch.arange(token.shape[1]))
            )[0, -1]

    for t in range(len(text)):
        draft: list[int] = []
        prefix = [*prompt, *text[:t]]
        here = (
            last(target.decoder, prefix[:-1])
            if len(prefix) > 1
            else torch.zeros(16, dtype=torch.float64)
        )
        while len(draft) < min(12, 14 - t) and (not draft or draft[-1] not in END):
            there, slot = last(drafter.lm, [*prefix, *draft]), len(draft)
            turned = head.turn[min(slot, 9)] @ here
            theta = torch.sigmoid(head.judge @ torch.cat((turned, there)) + head.bias).item()
            code, _ = grid.encode(np.array([theta]), grid.TABLES[features.GRIDS["theta"]])
            assert rows.feature[t, slot, 0] == code[0]
            scores = RULES["coupled"].scores(drafter.lm.logits(there)[None], sequence, [t + slot])
            draft.append(int(scores.argmax()))
            seen += 1
    assert seen > 40
    assert len(np.unique(rows.feature)) > 20


def _more(params, state, slot, shown, u):
    return slot == 0 or shown[slot - 1, 0] >= params[0], slot == 0 or shown[slot - 1, 0] >= params[
        1
    ]


def _observe(params, state, computed, drafted, accepted, shown, cost):
    state[0] = accepted


def reads(name: str, stop: float, drop: float = 0.0) -> Policy:
    """Stops at θ under `stop`, and drops a token with θ under `drop`."""
    return Policy(f"{name}:{stop},{drop}", _more, _observe, (stop, drop), (0.0,), reads=(name,))


def recording(rule: str, target, drafter, count=4):
    settings = Settings(12, 20, RULES[rule], END, features.drafter_features(drafter))
    return recorded(target, drafter, settings, count)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", PREFIX)
def test_policy_reading_theta_runs_as_it_replays(name, rule, monkeypatch):
    target, drafter = PAIRS[name]
    trace = recording(rule, target, drafter)
    assert trace.meta.features[2:] == (("theta", "identity"), ("theta_low_rank", "identity"))
    assert trace.meta.predictors == {feature: p.sha256 for feature, p in drafter.predictors.items()}
    for policy in (
        reads("theta", 0.5),
        reads("theta", 0.6, 0.4),
        reads("theta_low_rank", 0.45, 0.45),
    ):
        replayed = replay(trace, policy, seed=3, cost=toy_cost(12))
        assert len(np.unique(replayed.computed)) > 1
        assert (
            rounds_of(trace, run_all(target, drafter, trace, policy, toy_cost(12), seed=3))
            == replayed
        )

    honest = features.FeatureReader.read
    monkeypatch.setattr(
        features.FeatureReader, "read", lambda self, step, slot: honest(self, step, slot + 1)
    )
    policy = reads("theta", 0.5)
    late = run_all(target, drafter, trace, policy, toy_cost(12))
    # another depth's W is noticed
    assert rounds_of(trace, late) != replay(trace, policy, cost=toy_cost(12))
    monkeypatch.setattr(features.FeatureReader, "read", honest)
    monkeypatch.setattr(features.FeatureReader, "learn", lambda self, output, path: None)
    stale = run_all(target, drafter, trace, policy, toy_cost(12))
    # and so is the state of an earlier round
    assert rounds_of(trace, stale) != replay(trace, policy, cost=toy_cost(12))


def test_predictor_of_another_recording_is_refused():
    target, drafter = PAIRS["model"]
    trace = recording("greedy", target, drafter, count=2)
    _, other = equipped("model", seed=7)
    check_predictors(drafter, trace, [reads("theta", 0.5)])

    class Pair:
        pass

    pair = Pair()
    pair.target, pair.drafter = target, other
    with pytest.raises(ValueError, match="reads 'theta' by predictor") as caught:
        rerun(pair, trace, reads("theta", 0.5), 0, toy_cost(12))
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="the recording by none"):
        check_predictors(
            drafter, replace(trace, meta=replace(trace.meta, predictors={})), [reads("theta", 0.5)]
        )
    bare = toy_pair("model")[1]
    for ask in (
        lambda: check_predictors(bare, trace, [reads("theta", 0.5)]),
        lambda: features.FeatureReader(("theta",), 1.0, bare),
    ):
        with pytest.raises(ValueError, match="'theta' needs a predictor, drafter 'model' has none"):
            ask()
    assert features.drafter_features(bare) == ("confidence", "entropy")
    assert features.required_predictors(("confidence",), bare) == {}


@pytest.fixture
def folder(tmp_path):
    save_file({"w": torch.ones(3)}, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize("rank", FORMS.values())
def test_saved_predictor_loads(folder, rank):
    head, before = predictor(3, rank, 5, 7), features.drafter_identity(folder)
    features.save_predictor(head, folder, "theta", TARGET, {"heldout_loss": 0.5})
    assert (
        features.drafter_identity(folder)
        == before
        == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    )
    back = features.load_predictor(folder, "theta", TARGET)
    for key, value in head.state_dict().items():
        assert torch.equal(value, back.state_dict()[key])
    assert (
        back.sha256
        == head.sha256
        == hashlib.sha256((folder / "theta.safetensors").read_bytes()).hexdigest()
    )
    assert list(features.load_predictors(folder, TARGET)) == ["theta"]
    assert features.load_predictors("some/hub-name", TARGET) == {}
    assert back.sha256 != predictor(4, rank, 5, 7).sha256
    saved = json.loads((folder / "theta.json").read_text())
    assert saved["form"] == ("paper" if rank is None else "low_rank")
    assert saved["training"] == {"heldout_loss": 0.5}


def _rewrite(folder, **changes):
    path = folder / "theta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _not_finite(folder):
    head = predictor(3, None, 5, 7)
    head.judge[2] = float("nan")
    features.save_predictor(head, folder, "theta", TARGET)


BROKEN = {
    "not a predictor: form is 'low_rank'": lambda f: _rewrite(f, form="low_rank"),
    "expected an integer": lambda f: _rewrite(f, depths="ten"),
    "rank is .0, 0": lambda f: _rewrite(f, rank=[0] * 20_000),
    "too few for the sizes": lambda f: _rewrite(f, target_width=1 << 16),
    "size mismatch": lambda f: _rewrite(f, drafter_width=8),
    "differ from those that the .json names": lambda f: (f / "theta.safetensors").write_bytes(
        (f / "theta.safetensors").read_bytes()[:-1] + b"x"
    ),
    "finite bfloat16": _not_finite,
    "trained for the target cdcdcdcdcdcd": lambda f: _rewrite(f, target="cd" * 32),
    "trained for the drafter": lambda f: save_file({"w": torch.zeros(3)}, f / "model.safetensors"),
    "train it again": lambda f: (f / "theta.safetensors").unlink(),
    "not a predictor: Expecting": lambda f: (f / "theta.json").write_text("{"),
    "not a predictor": lambda f: (f / "theta.json").write_text("[1]"),
    "predictor: it is nested too deeply": lambda f: (f / "theta.json").write_text("[" * 100_000),
}


@pytest.mark.parametrize("words", BROKEN)
def test_invalid_predictor_files_are_refused_in_one_line(folder, words):
    features.save_predictor(predictor(3, None, 5, 7), folder, "theta", TARGET)
    features.load_predictors(folder, TARGET)
    BROKEN[words](folder)
    with pytest.raises(WeightsError, match=words) as caught:
        features.load_predictors(folder, TARGET)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", PREFIX)
def test_examples_equal_recorded_acceptance(name):
    target, drafter = PAIRS[name]
    record_settings = [Settings(12, 20, rule, END, ("theta",)) for rule in RULES.values()]
    prompts = toy_prompts(5, 3)
    generated = []
    for i, (asked, prompt) in enumerate(product(record_settings, prompts)):
        new, _ = target_sequence(target, asked, prompt, 100 + i)
        full = TargetPass(target.decoder, prompt, new.tolist())
        before = full.before(torch.arange(len(new)))
        generated.append(GeneratedSequence(asked, 100 + i, prompt, new, before))
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
    # the truth scores `best` on all, a random guess 0.69
    assert best - 0.02 < card["heldout_loss"] < best + 0.03
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
