"""Trace-driven timing: rounds of random models are the replay's, and seconds are those of the work that was done."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shell import command, refused
from test_measure import LAUNCH, ROW, Machine, layers
from toy_lm import POLICIES, reads, toy_cost, toy_recording

from real.bench import trace_driven as driven
from real.bench.trace_driven import END, WRONG, Driven, drive, scripts
from real.drafters import drafter_shapes, random_drafter
from real.model import random_models as shape
from real.model.random_models import check_room, needed, random_decoder, read_shape
from simspec import policies, replay, synthetic
from simspec.model_shape import SHAPES, parameters

TINY = read_shape("4x16x2x24")
NAMES = ("early_exit", "early_exit:3", "model:1x8x1", "eagle", "medusa", "prompt_lookup")


def decoder(dtype=torch.float32):
    return random_decoder(TINY, dtype, "cpu")


def driven_by(trace, name, texts, cost=None, **more) -> Driven:
    target = decoder()
    drafter = random_drafter(name, target, TINY, int(trace.depth.max()))
    return drive(target, drafter, trace, texts, cost, **more)


@pytest.mark.parametrize("name", NAMES)
def test_rounds_of_any_drafter_are_the_replays_under_every_policy(name):
    trace = toy_recording("model", "greedy")[0].select(range(3))
    exam = [text for text in POLICIES if name != "prompt_lookup" or not reads(text)]
    exam = exam[::2] if name == "early_exit" else exam[::5]
    found = driven_by(trace, name, exam, toy_cost(), seed=5)
    assert found.equal
    assert len(found.timings) == len(exam) + 1
    assert [t.policy for t in found.timings][-1] == "plain"
    for text, timing in zip(exam, found.timings):
        policy = policies.make(text, trace, toy_cost())
        assert (timing.policy, timing.rounds) == (
            policy.name,
            len(replay(trace, policy, seed=5, cost=toy_cost())),
        )
    assert found.timings[-1].speedup == 1
    assert found.timings[-1].rounds == trace.rows == found.timings[0].tokens


@given(st.floats(0, 1), st.integers(1, 5), st.integers(0, 3), st.booleans())
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
def test_any_recording_can_drive(draws, K, seed, coupled):
    trace = synthetic.iid(draws, 3, 9, K, seed=seed)
    trace = replace(trace, meta=replace(trace.meta, rule="coupled" if coupled else "synthetic"))
    assert driven_by(trace, "early_exit:1", ["fixed:1", "beta_ts", f"fixed:{K}"], seed=seed).equal


def test_recordings_with_ends_drafted_ends_and_short_offers_can_drive():
    for name in ("model", "prompt_lookup", "medusa"):
        trace = toy_recording(name, "greedy")[0]
        assert np.isin(trace.token[trace.offset[1:] - 1], trace.meta.end_tokens).any()
        assert (trace.depth < trace.K).any()
        assert driven_by(
            trace, "eagle", ["fixed:4", "sampling_only"] if trace.meta.features else ["fixed:4"]
        ).equal


def test_control_a_drafter_that_is_told_wrongly_is_seen(monkeypatch):
    trace = toy_recording("model", "greedy")[0].select(range(4))
    honest = driven.Scripted._token

    def wrong(self, slot):
        return honest(self, slot) if (self.position, slot) != (0, 0) else self.script.text[0] + 1

    monkeypatch.setattr(driven.Scripted, "_token", wrong)
    assert trace.run[trace.offset[:-1]].any()
    assert not driven_by(trace, "early_exit", ["fixed:2"]).equal


def test_control_policies_that_hear_other_features_are_seen(monkeypatch):
    trace = toy_recording("model", "greedy")[0].select(range(4))
    assert driven_by(trace, "early_exit", ["confidence:0.5"]).equal
    monkeypatch.setattr(driven.Told, "read", lambda self, step, slot: self.honest.read(step, slot))
    assert not driven_by(trace, "early_exit", ["confidence:0.5"]).equal


def test_learnt_features_are_read_for_their_time_and_told_from_the_recording():
    trace = toy_recording("model", "greedy")[0].select(range(3))
    feature = np.concatenate((trace.feature, trace.feature[:, :, :1]), 2)
    known = (*trace.meta.features, ("theta", "identity"))
    trace = replace(trace, feature=feature, meta=replace(trace.meta, features=known))
    assert driven_by(trace, "early_exit", ["cali_ts"]).equal


def test_scripts_are_random_texts_of_the_recordings_lengths():
    trace = toy_recording("model", "greedy")[0]
    made, again, other = scripts(trace, 24), scripts(trace, 24), scripts(trace, 24, seed=1)
    assert made[0].text == again[0].text != other[0].text
    for s, script in enumerate(made):
        assert len(script.text) == trace.offset[s + 1] - trace.offset[s]
        assert len(script.prompt) == max(2, trace.prompt_offset[s + 1] - trace.prompt_offset[s])
        ended = trace.token[trace.offset[s + 1] - 1] in trace.meta.end_tokens
        assert (script.text[-1] == END) == ended
        assert END not in script.text[:-1]
        assert WRONG not in script.text + script.prompt
    assert {len(script.prompt) for script in scripts(trace, 24, 40)} == {40}
    for vocab, context in ((3, None), (24, 1)):
        with pytest.raises(ValueError, match="expected at least 4 tokens"):
            scripts(trace, vocab, context)


def test_seconds_are_those_of_the_layers_that_were_passed(monkeypatch):
    """On a clock that only layers move, phases are what the rounds cost to the last row."""
    machine = Machine(monkeypatch)
    trace = toy_recording("model", "greedy")[0].select(range(2))
    found = driven_by(trace, "early_exit:1", ["fixed:2"])
    fixed, plain = found.timings
    rounds = replay(trace, policies.BUILTIN["fixed"](2))
    drawn = np.where(
        rounds.drafted > 0,
        layers(1, 1, 1) + layers(3, 1, 1) + ROW * 3 * rounds.drafted,
        layers(4, 1, 1),
    )
    assert fixed.verification == drawn.sum()
    assert plain.verification == plain.tokens * layers(4, 1, 1)
    assert plain.drafting == plain.policy_time == plain.other == 0
    assert fixed.policy_time == 0
    # two layers a drafted token, and a row of one where rows were owed
    least = rounds.computed.sum() * layers(2, 1, 1)
    assert least <= fixed.drafting <= least + ROW * trace.rows
    spent = fixed.drafting + fixed.verification + fixed.other
    assert fixed.tokens_per_second == pytest.approx(trace.rows / spent)
    assert fixed.speedup == pytest.approx(plain.verification / spent)
    assert machine.time > spent
    assert LAUNCH == 1


def test_shapes_are_read_from_names_files_and_sizes(tmp_path):
    assert read_shape("llama-3-8b") is SHAPES["llama-3-8b"]
    small = read_shape("4x64x4")
    assert (
        small.layers,
        small.width,
        small.heads,
        small.kv_heads,
        small.head_dim,
        small.hidden,
    ) == (4, 64, 4, 4, 16, 176)
    assert small.vocab == 32000
    assert small.tied
    assert read_shape("4x64x4", 99).vocab == 99
    assert read_shape("4x64x4x50", 99).vocab == 50
    sizes = {
        "layers": 2,
        "width": 8,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 4,
        "hidden": 12,
        "vocab": 30,
    }
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(sizes))
    mine = read_shape(str(file))
    assert mine.name == "mine"
    assert mine.kv_heads == 1
    assert not mine.tied
    made = random_decoder(mine, torch.bfloat16, "cpu")
    assert made.dtype == torch.bfloat16
    assert sum(p.numel() for p in made.parameters()) == parameters(mine)
    for text, words in (
        ("4x64x3", "does not split into 3 heads"),
        ("llama-9", "expected one of llama-2-7b"),
        ("4x64", "is unknown"),
    ):
        with pytest.raises(ValueError, match=words):
            read_shape(text)
    bad = (
        {},
        sizes | {"layers": 0},
        sizes | {"more": 1},
        sizes | {"tied": 2},
        [],
        sizes | {"layers": "2"},
        sizes | {"name": 5},
    )
    for data in bad:
        file.write_text(json.dumps(data))
        with pytest.raises(ValueError, match="not a model shape") as caught:
            read_shape(str(file))
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="expected a multiple, an even size"):
        random_decoder(replace(mine, heads=3, kv_heads=2), torch.float32, "cpu")


@pytest.mark.parametrize("tied", [True, False])
def test_random_decoders_are_seeded_finite_and_tied_as_asked(tied):
    a, b, c = (
        random_decoder(replace(TINY, tied=tied), torch.float64, "cpu", seed) for seed in (0, 0, 1)
    )
    assert (a.head.weight is a.embed.weight) == tied
    assert a.frequency.device.type == "cpu"
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))
    assert not torch.equal(a.embed.weight, c.embed.weight)
    assert (a.norm.weight == 1).all()
    logits = a(torch.arange(10)[None])
    assert logits.isfinite().all()
    assert logits.std() > 0
    assert 0.015 < float(a.embed.weight.std()) < 0.025


def test_what_does_not_fit_is_refused_before_anything_is_allocated(monkeypatch):
    big = SHAPES["llama-2-70b"]
    assert needed([big], torch.bfloat16, 0) == 2 * parameters(big)
    assert needed([TINY, TINY], torch.float32, 10) == 2 * needed([TINY], torch.float32, 10)
    monkeypatch.setattr(shape, "free", lambda device: 10e9)
    with pytest.raises(
        ValueError,
        match="llama-2-70b need 138.0 GB in bfloat16, cpu has 9.0 GB to give: take a smaller",
    ):
        check_room([big], torch.bfloat16, 128, "cpu")
    check_room([TINY], torch.float32, 128, "cpu")
    assert drafter_shapes("prompt_lookup", TINY) == []
    target = decoder()
    whole = lambda d: sum(p.numel() for p in torch.nn.Module.parameters(d))  # noqa: E731
    for name, part in (
        ("early_exit:2", "head"),
        ("eagle", "head"),
        ("medusa", "head"),
        ("model:1x8x1", "lm"),
    ):
        made = getattr(random_drafter(name, target, TINY, 4), part)
        assert whole(made) <= sum(map(parameters, drafter_shapes(name, TINY))), name


@pytest.mark.parametrize(
    "name, words",
    [
        ("glide", "cannot be driven; expected model,"), ("model", "expected its shape: model:llama"),
        ("eagle:2", "eagle takes no argument"),
        ("early_exit:4", "an exit after 4 layers of 4; expected 1 to 3"), ("early_exit:x", "expected a number of layers"),
        ("model:1x8x1x9", "has 9 tokens, '4x16x2x24' 24"),
    ],
)  # fmt: skip
def test_drafters_that_cannot_be_made_are_refused(name, words):
    for make in (
        lambda: drafter_shapes(name, TINY),
        lambda: random_drafter(name, decoder(), TINY, 2),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            make()
        assert "\n" not in str(caught.value)


def test_a_drafter_less_deep_than_recorded_is_refused():
    trace = toy_recording("model", "greedy")[0]
    target = decoder()
    with pytest.raises(ValueError, match="'medusa' offers 2 tokens where 3 were recorded"):
        drive(target, random_drafter("medusa", target, TINY, 2), trace, ["fixed:4"])


def test_the_command_labels_what_it_timed(tmp_path):
    given_ = "emulate", "tiny-early_exit-greedy", "--target", "3x16x2x64", "--prompts", 2
    code, out, _ = command(
        tmp_path,
        *given_,
        "--policy",
        "fixed:2",
        "--drafter",
        "early_exit:1",
        "--context",
        8,
        "--json",
    )
    said = json.loads(out)
    assert code == 0
    assert said["replay_equal"]
    assert [row["policy"] for row in said["rows"]] == ["fixed:2", "plain"]
    label = {
        "text": "random",
        "weights": "random",
        "acceptance": "tiny-early_exit-greedy",
        "target": "3x16x2x64",
    }
    assert label.items() <= said["label"].items()
    assert said["label"]["context"] == 8
    assert said["rows"][0]["drafting"] > 0
    refused(tmp_path, *given_[:2], "--target", "llama-9", words="shape 'llama-9' is unknown")
    refused(tmp_path, *given_, "--drafter", "glide", words="cannot be driven")
    refused(tmp_path, *given_, "--device", "gpu", words="device 'gpu' is unknown")
    refused(tmp_path, *given_, "--dtype", "int4", words="dtype 'int4' is unknown")
    refused(
        tmp_path,
        "emulate",
        "tiny-early_exit-greedy",
        "--target",
        "99x65536x256",
        words="GB to give: take a smaller shape",
    )
    refused(tmp_path, *given_, "--context", 1, words="context 1; expected", progress=True)
