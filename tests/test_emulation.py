"""Emulation: rounds are the replay's, and seconds those of the computed layers."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shell import command, refused
from simulated_machine import LAUNCH, ROW, Machine, layers
from toy_lm import POLICIES, reads, toy_cost, toy_recording

from real.bench import recorded_drafter
from real.bench.emulation import Emulation, emulate
from real.bench.recorded_drafter import END, WRONG, SequenceSettings, recorded_sequences
from real.drafters import random_drafter
from real.model.random_models import random_decoder, read_shape
from simspec import policies, replay, synthetic

TINY = read_shape("4x16x2x24")

NAMES = ("early_exit", "early_exit:3", "model:1x8x1", "eagle", "medusa", "prompt_lookup")


def decoder(dtype=torch.float32):
    return random_decoder(TINY, dtype, "cpu")


def emulated(trace, name, names, cost=None, **options) -> Emulation:
    target = decoder()
    drafter = random_drafter(name, target, TINY, int(trace.depth.max()))
    return emulate(target, drafter, trace, names, cost, SequenceSettings(**options))


@pytest.mark.parametrize("name", NAMES)
def test_rounds_equal_the_replay_for_every_drafter_and_policy(name):
    trace = toy_recording("model", "greedy")[0].select(range(3))
    exam = [text for text in POLICIES if name != "prompt_lookup" or not reads(text)]
    exam = exam[NAMES.index(name) % 5 :: 5]  # the first five drafters run every policy
    emulation = emulated(trace, name, exam, toy_cost(), seed=5)
    assert emulation.equal
    assert len(emulation.timings) == len(exam) + 1
    assert [t.policy for t in emulation.timings][-1] == "plain"
    for text, timing in zip(exam, emulation.timings):
        policy = policies.make(text, trace, toy_cost())
        assert (timing.policy, timing.rounds) == (
            policy.name,
            len(replay(trace, policy, seed=5, cost=toy_cost())),
        )
    assert emulation.timings[-1].speedup == 1
    assert emulation.timings[-1].rounds == trace.rows == emulation.timings[0].tokens


@given(st.floats(0, 1), st.integers(1, 5), st.integers(0, 3), st.booleans())
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
def test_any_recording_can_be_emulated(draws, K, seed, coupled):
    trace = synthetic.iid(draws, 3, 9, K, seed=seed)
    trace = replace(trace, meta=replace(trace.meta, rule="coupled" if coupled else "synthetic"))
    assert emulated(trace, "early_exit:1", ["fixed:1", "beta_ts", f"fixed:{K}"], seed=seed).equal


def test_end_tokens_and_short_drafts_can_be_emulated():
    for name in ("model", "prompt_lookup", "medusa"):
        trace = toy_recording(name, "greedy")[0]
        assert np.isin(trace.token[trace.offset[1:] - 1], trace.meta.end_tokens).any()
        assert (trace.depth < trace.K).any()
        assert emulated(
            trace, "eagle", ["fixed:4", "sampling_only"] if trace.meta.features else ["fixed:4"]
        ).equal


def test_control_wrong_draft_tokens_are_detected(monkeypatch):
    trace = toy_recording("model", "greedy")[0].select(range(4))
    honest = recorded_drafter.RecordedDrafter._token

    def wrong(self, slot):
        return (
            honest(self, slot) if (self.position, slot) != (0, 0) else self.recorded.tokens[0] + 1
        )

    monkeypatch.setattr(recorded_drafter.RecordedDrafter, "_token", wrong)
    assert trace.run[trace.offset[:-1]].any()
    assert not emulated(trace, "early_exit", ["fixed:2"]).equal


def test_control_other_features_are_detected(monkeypatch):
    trace = toy_recording("model", "greedy")[0].select(range(4))
    assert emulated(trace, "early_exit", ["confidence:0.5"]).equal
    monkeypatch.setattr(
        recorded_drafter.RecordedReader,
        "read",
        lambda self, step, slot: self.measured.read(step, slot),
    )
    assert not emulated(trace, "early_exit", ["confidence:0.5"]).equal


def test_learned_features_come_from_the_recording():
    trace = toy_recording("model", "greedy")[0].select(range(3))
    feature = np.concatenate((trace.feature, trace.feature[:, :, :1]), 2)
    known = (*trace.meta.features, ("theta", "identity"))
    trace = replace(trace, feature=feature, meta=replace(trace.meta, features=known))
    assert emulated(trace, "early_exit", ["cali_ts"]).equal


def test_recorded_sequences_are_random_and_of_recorded_length():
    trace = toy_recording("model", "greedy")[0]
    sequences, again, other = (
        recorded_sequences(trace, 24),
        recorded_sequences(trace, 24),
        recorded_sequences(trace, 24, SequenceSettings(seed=1)),
    )
    assert sequences[0].tokens == again[0].tokens != other[0].tokens
    for s, sequence in enumerate(sequences):
        assert len(sequence.tokens) == trace.offset[s + 1] - trace.offset[s]
        assert len(sequence.prompt) == max(2, trace.prompt_offset[s + 1] - trace.prompt_offset[s])
        ended = trace.token[trace.offset[s + 1] - 1] in trace.meta.end_tokens
        assert (sequence.tokens[-1] == END) == ended
        assert END not in sequence.tokens[:-1]
        assert WRONG not in sequence.tokens + sequence.prompt
    assert {
        len(sequence.prompt) for sequence in recorded_sequences(trace, 24, SequenceSettings(40))
    } == {40}
    for vocab, context in ((3, None), (24, 1)):
        with pytest.raises(ValueError, match="expected at least 4 tokens"):
            recorded_sequences(trace, vocab, SequenceSettings(context))


def test_phase_seconds_equal_the_layers_computed(monkeypatch):
    """On a clock that only layers move, phases are what the rounds cost to the last row."""
    machine = Machine(monkeypatch)
    trace = toy_recording("model", "greedy")[0].select(range(2))
    emulation = emulated(trace, "early_exit:1", ["fixed:2"])
    fixed, plain = emulation.timings
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
    # two layers a drafted token, and a row of one where there was a backlog
    least = rounds.computed.sum() * layers(2, 1, 1)
    assert least <= fixed.drafting <= least + ROW * trace.rows
    spent = fixed.drafting + fixed.verification + fixed.other
    assert fixed.tokens_per_second == pytest.approx(trace.rows / spent)
    assert fixed.speedup == pytest.approx(plain.verification / spent)
    assert machine.time > spent
    assert LAUNCH == 1


def test_drafter_shallower_than_recorded_is_refused():
    trace = toy_recording("model", "greedy")[0]
    target = decoder()
    with pytest.raises(ValueError, match="'medusa' offers 2 tokens where 3 were recorded"):
        emulate(target, random_drafter("medusa", target, TINY, 2), trace, ["fixed:4"])


def test_emulate_command_labels_its_result(tmp_path):
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
    report = json.loads(out)
    assert code == 0
    assert report["replay_equal"]
    assert [row["policy"] for row in report["rows"]] == ["fixed:2", "plain"]
    label = {
        "text": "random",
        "weights": "random",
        "acceptance": "tiny-early_exit-greedy",
        "target": "3x16x2x64",
    }
    assert label.items() <= report["label"].items()
    assert report["label"]["context"] == 8
    assert report["rows"][0]["drafting"] > 0
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
        words="GB free: use a smaller shape",
    )
    refused(tmp_path, *given_, "--context", 1, words="context 1; expected", progress=True)
