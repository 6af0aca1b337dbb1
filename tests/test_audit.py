"""Audits pass clean runs, find planted faults, and excuse rounding."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from emitter import SAMPLED, decoded, emitted, tampered
from scipy import stats
from shell import command, refused
from toy_lm import (
    END,
    POLICIES,
    VOCAB,
    chain_plan,
    policy_from,
    run_all,
    toy_cost,
    toy_pair,
    toy_prompts,
    toy_recording,
    toy_target,
)

from real.audit.against_recording import compare_with_recording
from real.audit.auditor import audit, excess_alarms
from real.audit.emitted_run import EmittedSequence, RunError
from real.audit.engine_runs import emitted_sequences, recorded_run
from real.audit.report import report_rows
from real.audit.run_file import load_run, save_run
from real.audit.score_gaps import spacing
from real.audit.tolerance import tolerance_of
from real.decode.loop import decode
from real.demo import TRACES
from real.model.target import Target
from real.sampling import Rule
from simspec.quantization import encode_margin

RULES = [
    Rule(),
    Rule("coupled", 0.8, 5),
    Rule("coupled", 0.8, 5, 6, 0.9),
    SAMPLED,
    Rule("rejection", 1.0, 3, 6, 0.9),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_clean_run_raises_no_alarm(rule):
    for drafter in ("model", "prompt_lookup"):
        run = decoded(rule, drafter=drafter)
        target, made = toy_pair(drafter)
        result = audit(target, run, drafter=made)
        assert result.clean, result.alarms
        assert not result.divergences
        assert not result.impossible
        assert result.tokens == run.tokens == sum(len(t.token) for t in run.sequences)
        assert (result.sampling is None) == (rule.name == "greedy")
        if result.sampling:
            assert (result.sampling.p_bias is not None) == (rule.sampled and drafter == "model")
        json.dumps(result.summary(), allow_nan=False)
        assert all(len(row) == 2 for row in report_rows(result))


# --- planted faults


@pytest.mark.parametrize("rule", RULES[:2], ids=str)
def test_replaced_token_is_detected(rule):
    run, target = decoded(rule), toy_pair("model")[0]
    text = run.sequences[2]
    logits = toy_target()(torch.tensor([[*text.prompt, *text.token[:5]]]))[0, -1]
    second = int(rule.scores(logits[None], text.sequence, [5]).topk(2).indices[0, 1])
    while second in END:
        pytest.skip("an end token cannot stand there")
    result = audit(target, tampered(run, 2, 5, second))
    assert not result.clean
    assert result.failures[0] == result.first[0]
    assert (
        result.first[0].index,
        result.first[0].position,
        result.first[0].token,
        result.first[0].best,
    ) == (2, 5, second, text.token[5])
    assert result.first[0].gap == pytest.approx(result.first[0].margin)
    assert {d.index for d in result.divergences} == {2}


@pytest.mark.parametrize("rule", RULES[:2], ids=str)
def test_perturbed_weight_is_detected(rule):
    broken = copy.deepcopy(toy_target())
    broken.layers[1].up.weight[3, 5] += 3.0
    result = audit(toy_pair("model")[0], decoded(rule, decoder=broken, count=12))
    assert not result.clean
    assert "are not the target's pick" in result.alarms[0]


class StaleCacheTarget(Target):
    """Keeps a stale row of its KV cache in place of a committed one."""

    def commit(self, path):
        super().commit(path)
        if self.length % 7 == 6:
            for t in (self.cache.key, self.cache.value):
                t[:, :, :, self.length - 1] = t[:, :, :, self.length - 2]


def test_stale_cache_row_is_detected():
    target, drafter = StaleCacheTarget(toy_target()), toy_pair("model")[1]
    drive = chain_plan(policy_from("fixed:3", None, None), 6, 0, toy_cost())
    sequences = [
        EmittedSequence(p, decode(target, drafter, drive, Rule(), p, 24, END, s).token.tolist(), s)
        for s, p in enumerate(toy_prompts(12))
    ]
    assert not audit(
        target, emitted(sequences)
    ).clean  # by the target that made it: the audit uses no cache


def test_coupled_run_of_another_seed_or_address_is_detected():
    run, target = decoded(RULES[1]), toy_pair("model")[0]
    assert not audit(target, replace(run, header=replace(run.header, seed=6))).clean
    moved = replace(
        run, sequences=tuple(replace(t, sequence=t.sequence + 1) for t in run.sequences)
    )
    assert not audit(target, moved).clean


# --- rounding


def test_bfloat16_rounding_is_excused():
    narrow = copy.deepcopy(toy_target()).bfloat16()
    run = decoded(Rule(), count=40, decoder=narrow, dtype="bfloat16")
    target = toy_pair("model")[0]
    result = audit(target, run)
    assert result.clean
    assert result.divergences
    assert not result.failures
    assert result.tolerance.dtype == "bfloat16"
    assert result.near_ties >= len(result.divergences)
    assert 0 < max(d.gap for d in result.divergences) <= 0.3
    assert dict(report_rows(result))["not the pick"].startswith(f"{len(result.divergences)}: ")
    honest = audit(target, replace(run, header=replace(run.header, dtype="float64")))
    assert not honest.clean
    assert len(honest.failures) == len(result.divergences)
    assert (
        audit(Target(narrow), decoded(Rule(), dtype="float64")).tolerance.dtype == "bfloat16"
    )  # the coarser of the two


def test_too_many_excused_divergences_raise_an_alarm():
    target, sequences = toy_pair("model")[0], []
    for s, prompt in enumerate(
        toy_prompts(30)
    ):  # a fault that hides in every near-tie: the second best where it is within 0.3
        token = []
        for _ in range(24):
            best = toy_target()(torch.tensor([[*prompt, *token]]))[0, -1].topk(2)
            token.append(
                int(
                    best.indices[
                        1 if best.values[0] - best.values[1] < 0.3 and 3 not in best.indices else 0
                    ]
                )
            )
            if token[-1] in END:
                break
        sequences.append(EmittedSequence(prompt, token, s))
    result = audit(target, emitted(sequences, dtype="bfloat16"))
    assert not result.failures
    assert "each within rounding" in result.alarms[0]


@pytest.mark.parametrize("of", [10, 1000, 20000])
def test_share_of_excused_differences_is_tested_at_its_risk(of):
    class Excused:
        excused = True

    alarm = [bool(excess_alarms([Excused] * n, of, 0.001, 1e-4, "")) for n in range(60)]
    least = alarm.index(True)
    assert stats.binom.sf(least - 1, of, 0.001) < 1e-4 <= stats.binom.sf(least - 2, of, 0.001)
    assert excess_alarms([], of, 0.0, 1e-4, "") == []


def test_tolerances():
    assert [tolerance_of(d).nats for d in ("float64", "float32", "bfloat16")] == [1e-9, 1e-4, 0.3]
    assert tolerance_of("float64", "float32").dtype == "float32"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spacing_is_the_unit_in_the_last_place(dtype):
    x = torch.tensor([1.0, 1.5, 1.9999, 2.0, -3.7, 8.0, 1e-3, 700.0], dtype=dtype)
    assert spacing(x, dtype).tolist() == np.spacing(x.abs().numpy()).tolist()
    assert spacing(torch.tensor([1.0, 8.0, 20.0]), torch.bfloat16).tolist() == [2**-7, 2**-4, 2**-3]


# --- against a recording


def recorded(rule="greedy", policy="beta_ts"):
    trace, target, drafter = toy_recording("model", rule)
    cost = toy_cost()
    sequences = emitted_sequences(
        trace, run_all(target, drafter, trace, policy_from(policy, trace, cost), cost)
    )
    return trace, target, replace(recorded_run(trace), sequences=sequences)


@pytest.mark.parametrize(
    "rule, policy",
    [*(("greedy", p) for p in POLICIES), ("coupled", "fixed:3"), ("coupled", "confidence:0.5")],
)
def test_runs_of_every_policy_equal_the_recording(rule, policy):
    trace, target, run = recorded(rule, policy)
    result = compare_with_recording(run, trace, 1e-9)
    assert (result.sequences, result.equal, result.missing, result.failures) == (
        trace.sequences,
        trace.sequences,
        0,
        (),
    )
    assert result.rounds == sum(len(t.rounds) for t in run.sequences)


@pytest.mark.parametrize("margin, kind", [(1e-6, "target_flips"), (1.0, "failures")])
def test_target_flip_is_excused_by_its_recorded_margin(margin, kind):
    trace, target, run = recorded()
    codes = trace.margin.copy()
    codes[trace.offset[1] + 2] = encode_margin(np.array([margin]))[0]
    trace = replace(trace, margin=codes)
    token = run.sequences[1].token
    other = tampered(run, 1, 2, next(v for v in range(4, VOCAB) if v != token[2]))
    result = compare_with_recording(other, trace, 1e-4)
    (mismatch,) = getattr(result, kind)
    assert (mismatch.index, mismatch.position, mismatch.round) == (1, 2, None)
    assert mismatch.margin == pytest.approx(margin, rel=0.1)
    assert len(result.target_flips) + len(result.failures) == 1
    assert result.equal == result.sequences - 1
    assert not audit(target, other, trace).clean


@pytest.mark.parametrize("margin, kind", [(1e-6, "draft_flips"), (1.0, "failures")])
def test_draft_flip_is_excused_by_its_recorded_margin(margin, kind):
    trace, target, run = recorded(policy="fixed:3")
    s, n, (position, _, drafted, accepted) = next(
        (s, n, r)
        for s, t in enumerate(run.sequences)
        for n, r in enumerate(t.rounds)
        if r[3] == r[2] > 1
    )
    row = int(trace.offset[s]) + position
    codes, runs = np.full_like(trace.draft_margin, 255), trace.run.copy()
    codes[row, 1], runs[row] = encode_margin(np.array([margin]))[0], 1
    trace = replace(
        trace, rank=None, run=runs, draft_margin=codes, meta=replace(trace.meta, prefix_only=False)
    )
    result = compare_with_recording(run, trace, 1e-4)
    (mismatch,) = getattr(result, kind)
    assert (mismatch.index, mismatch.position, mismatch.round) == (s, position, n)
    assert len(result.draft_flips) + len(result.failures) == 1
    assert not result.target_flips
    assert not audit(target, run, trace).clean  # float64 excuses no margin this large
    single = replace(run, header=replace(run.header, dtype="float32"))
    assert audit(target, single, trace).clean == (kind == "draft_flips")


def test_incomparable_recording_is_refused():
    trace, target, run = recorded()
    other = toy_recording("model", "coupled")[0]
    for given, words in (
        (other, "expected the same rule"),
        (replace(trace, margin=None), "holds no margins"),
        (replace(trace, meta=replace(trace.meta, target="else")), "made with target else"),
        (replace(trace, prompt=(trace.prompt + 1) % VOCAB), "holds none of the run's prompts"),
    ):
        with pytest.raises(RunError, match=words):
            audit(target, run, given)
    with pytest.raises(RunError, match="cannot equal a recording"):
        audit(target, decoded(SAMPLED), trace)
    few = compare_with_recording(run, trace.select([0, 4]), 1e-9)
    assert (few.sequences, few.missing) == (2, trace.sequences - 2)
    assert (
        compare_with_recording(
            replace(run, header=replace(run.header, drafter="other")), trace, 1e-9
        ).rounds
        == 0
    )


# --- the command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved run of two bundled prompts."""
    made = tmp_path_factory.mktemp("audit")
    cost = TRACES / "tiny-model-greedy.cost.json"
    code, out, error = command(
        made,
        "run",
        "tiny-model-greedy",
        "--prompts",
        2,
        "--policy",
        "fixed:2",
        "--cost",
        cost,
        "--save",
        "run.jsonl",
        "--json",
    )
    assert code == 0, error
    assert json.loads(out)["lossless"]
    return made


def test_command_audits_a_saved_run(folder):
    code, out, error = command(folder, "audit", "run.jsonl", "--against", "tiny-model-greedy")
    assert code == 0
    assert out.splitlines()[-1] == "clean"
    assert "2 equal" in out
    assert "auditing: 2/2" in error
    code, out, _ = command(folder, "audit", "run.jsonl", "--json", "--dtype", "float64")
    result = json.loads(out)
    assert code == 0
    assert result["clean"]
    assert result["sequences"] == 2
    assert result["tolerance"]["dtype"] == "float32"


def test_fault_exits_with_code_1(folder):
    run = load_run(folder / "run.jsonl")
    text = tampered(run, 1, 4, 77)
    save_run(folder / "bad.jsonl", text.header, text.sequences)
    code, out, _ = command(folder, "audit", "bad.jsonl")
    assert code == 1
    assert "sequence 1 " in out
    assert "FAILED" in out
    assert "NOT CLEAN" in out.splitlines()[-1]
    code, out, _ = command(folder, "audit", "bad.jsonl", "--json")
    result = json.loads(out)
    assert code == 1
    assert not result["clean"]
    assert result["failures"][0]["position"] == 4


def test_sampled_run_is_tested_for_drafter_bias(folder):
    run = load_run(folder / "run.jsonl")
    header = replace(run.header, rule="rejection", temperature=0.8)
    sequences = [replace(t, token=t.token[:3], rounds=()) for t in run.sequences]
    save_run(folder / "sampled.jsonl", header, sequences)
    code, out, _ = command(folder, "audit", "sampled.jsonl", "--json")
    assert code == 0
    assert json.loads(out)["sampling"]["bias_z"] is not None
    assert json.loads(out)["sampling"]["detectable_bias"] is None
    save_run(folder / "unknown.jsonl", replace(header, drafter="mine"), sequences)
    code, out, _ = command(folder, "audit", "unknown.jsonl")
    assert code == 0
    assert "not tested" in out


def test_invalid_input_exits_with_code_2(folder):
    run = load_run(folder / "run.jsonl")
    (folder / "broken.jsonl").write_text(
        '{"simspec": "run", "rule": "greedy"}\n{"prompt": [1], "token": "x"}\n'
    )
    save_run(
        folder / "large.jsonl",
        run.header,
        [replace(run.sequences[0], token=(2**31 - 1,), rounds=())],
    )
    save_run(folder / "other.jsonl", replace(run.header, target="else/123"), run.sequences)
    for arguments, words in (
        (["missing.jsonl"], "missing.jsonl cannot be read"),
        (["broken.jsonl"], "broken.jsonl: line 2: token is not a list"),
        (["tiny-modl-greedy"], "did you mean tiny-model-greedy?"),
        (["large.jsonl"], "holds token 2147483647"),
        (["other.jsonl"], "was made with target else/123"),
        (["run.jsonl", "--risk", 2], "--risk is 2.0"),
        (["run.jsonl", "--dtype", "int8"], "dtype 'int8' is unknown"),
        (["run.jsonl", "--against", "tiny-model-coupled"], "expected the same rule"),
        (["run.jsonl", "--models", "nowhere"], "nowhere"),
    ):
        refused(folder, "audit", *arguments, words=words, progress=True)
    refused(
        folder, "run", "tiny-model-greedy", "--save", "no/run.jsonl", words="there is no folder no"
    )


def test_help_shows_an_example(tmp_path):
    code, out, _ = command(tmp_path, "audit", "--help")
    assert code == 0
    assert "Example: simspec run" in " ".join(out.split())
    assert "--against" in out
    assert "--json" in out
