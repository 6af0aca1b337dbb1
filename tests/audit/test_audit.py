"""Audits pass clean runs, find planted faults, excuse rounding."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from emitter import SAMPLED, decoded, emitted, tampered
from shell import command, refused
from toy_lm import END, chain_plan, policy_from, toy_cost, toy_pair, toy_prompts, toy_target

from real.audit.auditor import audit, report_rows
from real.audit.checks import spacing
from real.audit.runs import EmittedSequence, load_run, save_run
from real.decode.loop import decode
from real.model.target import Target
from real.sampling import Rule
from simspec.trace.recordings import CHECKOUT as TRACES

RULES = [
    Rule(), Rule("coupled", 0.8, 5), Rule("coupled", 0.8, 5, 6, 0.9), SAMPLED,
    Rule("rejection", 1.0, 3, 6, 0.9), Rule("block", 0.8, 2),
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_clean_run_raises_no_alarm(rule):
    for drafter in ("model", "prompt_lookup"):
        run = decoded(rule, drafter=drafter)
        target, toy_drafter = toy_pair(drafter)
        result = audit(target, run, drafter=toy_drafter)
        assert result.clean, result.alarms
        assert not result.divergences
        assert not result.impossible
        assert result.tokens == sum(len(t.token) for t in run.sequences)
        assert (result.sampling is None) == (rule.name == "greedy")
        if result.sampling:
            assert (result.sampling.p_bias is not None) == (rule.sampled and drafter == "model")
        json.dumps(result.summary(), allow_nan=False)
        assert all(len(row) == 2 for row in report_rows(result))


@pytest.mark.parametrize("rule", RULES[:2], ids=str)
def test_replaced_token_is_detected(rule):
    run, target = decoded(rule), toy_pair("model")[0]
    text = run.sequences[2]
    logits = toy_target()(torch.tensor([[*text.prompt, *text.token[:5]]]))[0, -1]
    ranked = rule.scores(logits[None], text.sequence, [5])[0].argsort(descending=True).tolist()
    second = next(token for token in ranked[1:] if token not in END)
    result = audit(target, tampered(run, 2, 5, second))
    assert not result.clean
    first = result.first[0]
    assert result.failures[0] == first
    assert (first.index, first.position, first.token, first.best) == (2, 5, second, text.token[5])
    assert first.gap == pytest.approx(first.margin)
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
    # by the target that made it: the audit uses no cache
    assert not audit(target, emitted(sequences)).clean


def test_coupled_run_of_another_seed_or_address_is_detected():
    run, target = decoded(RULES[1]), toy_pair("model")[0]
    assert not audit(target, replace(run, header=replace(run.header, seed=6))).clean
    moved = replace(
        run, sequences=tuple(replace(t, sequence=t.sequence + 1) for t in run.sequences)
    )
    assert not audit(target, moved).clean


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
    # the coarser of the two
    assert audit(Target(narrow), decoded(Rule(), dtype="float64")).tolerance.dtype == "bfloat16"


def test_too_many_excused_divergences_raise_an_alarm():
    target, sequences = toy_pair("model")[0], []
    for s, prompt in enumerate(toy_prompts(30)):
        token = []
        for _ in range(24):  # a fault that hides in every near-tie: the second best within 0.3
            best = toy_target()(torch.tensor([[*prompt, *token]]))[0, -1].topk(2)
            near = best.values[0] - best.values[1] < 0.3 and 3 not in best.indices
            token.append(int(best.indices[1 if near else 0]))
            if token[-1] in END:
                break
        sequences.append(EmittedSequence(prompt, token, s))
    result = audit(target, emitted(sequences, dtype="bfloat16"))
    assert not result.failures
    assert "each within rounding" in result.alarms[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spacing_is_the_unit_in_the_last_place(dtype):
    x = torch.tensor([1.0, 1.5, 1.9999, 2.0, -3.7, 8.0, 1e-3, 700.0], dtype=dtype)
    assert spacing(x, dtype).tolist() == np.spacing(x.abs().numpy()).tolist()
    assert spacing(torch.tensor([1.0, 8.0, 20.0]), torch.bfloat16).tolist() == [2**-7, 2**-4, 2**-3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, any_seconds):
    """A saved run of two bundled prompts."""
    directory = tmp_path_factory.mktemp("audit")
    cost = TRACES / "tiny-model-greedy.cost.json"
    asked = "run tiny-model-greedy --prompts 2 --policy fixed:2 --save run.jsonl --json --cost"
    code, out, error = command(directory, *asked.split(), cost)
    assert code == 0, error
    assert json.loads(out)["lossless"]
    return directory


def test_command_audits_a_saved_run(folder):
    code, out, error = command(folder, "audit", "run.jsonl")
    assert code == 0
    assert out.splitlines()[-1] == "clean"
    assert "auditing: 2/2" in error
    code, out, _ = command(folder, "audit", "run.jsonl", "--json", "--dtype", "float64")
    result = json.loads(out)
    assert (code, result["clean"], result["sequences"]) == (0, True, 2)
    assert result["tolerance"]["dtype"] == "float32"


def test_fault_exits_with_code_1(folder):
    run = load_run(folder / "run.jsonl")
    text = tampered(run, 1, 4, 77)
    save_run(folder / "bad.jsonl", text.header, text.sequences)
    code, out, _ = command(folder, "audit", "bad.jsonl")
    assert (code, "FAILED" in out, "NOT CLEAN" in out.splitlines()[-1]) == (1, True, True)
    code, out, _ = command(folder, "audit", "bad.jsonl", "--json")
    assert (code, json.loads(out)["failures"][0]["position"]) == (1, 4)


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
    large = replace(run.sequences[0], token=(2**31 - 1,), rounds=())
    save_run(folder / "large.jsonl", run.header, [large])
    save_run(folder / "other.jsonl", replace(run.header, target="else/123"), run.sequences)
    for arguments, words in (
        (["missing.jsonl"], "missing.jsonl cannot be read"),
        (["broken.jsonl"], "broken.jsonl cannot be read: line 2: sequence: token is 'x'"),
        (["tiny-modl-greedy"], "did you mean tiny-model-greedy?"),
        (["large.jsonl"], "holds token 2147483647"),
        (["other.jsonl"], "was made with target else/123"),
        (["run.jsonl", "--dtype", "int8"], "dtype 'int8' is unknown"),
        (["run.jsonl", "--models", "nowhere"], "nowhere"),
    ):
        refused(folder, "audit", *arguments, words=words, progress=True)
