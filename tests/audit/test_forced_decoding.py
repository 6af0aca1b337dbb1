"""Teacher-forced decoding: rounds equal the replay, and every planted fault is located."""

import json
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from branches import output_distribution
from enumerated_world import CASES, EXACT, Listener, Speaker, World, off, spoken, whole
from shell import command, refused
from test_equality import _lied_about, _thick
from test_run_sampled import COST, Heated, recording
from toy_lm import END, RULES, policy_from, reads, toy_cost, toy_decoder, toy_recording

from real.audit.forced_decoding import (
    ForcedComparison,
    compare_forced,
    compare_forced_sampled,
    decode_forced,
    decode_forced_sampled,
)
from real.decode.loop import DecodeResult, decode
from real.decode.plans import chain_plan, make_plan
from real.decode.verify import accept_exact
from real.draft import Silent
from real.drafters.early_exit import EarlyExitDrafter, EarlyExitHead
from real.model.target import Target
from real.rerun import prompts_of, rule_of
from real.sampling import Rule
from simspec import Trace, policies, replay, synthetic
from simspec.trace.quantization import encode_margin

# others take long to teach, and the loop does not know them apart
FEW = ("model", "early_exit", "prompt_lookup", "medusa")


EXAM = ("fixed:0", "fixed:3", "beta_ts:censored", "confidence:0.5", "cost_ts")


def forced(trace: Trace, target, drafter, text: str, seed: int = 3):
    """The comparison of forced runs of the policy of that text."""
    policy = policy_from(text, trace, toy_cost())
    results, result = decode_forced(
        target, drafter, chain_plan(policy, trace.K, seed, toy_cost()), trace
    )
    return compare_forced(trace, replay(trace, policy, seed=seed, cost=toy_cost()), results, result)


@pytest.mark.parametrize(
    "drafter, rule",
    [*((policy, "greedy") for policy in FEW), ("model", "coupled"), ("prompt_lookup", "coupled")],
)
def test_forced_float64_rounds_equal_the_replay(drafter, rule):
    trace, target, model = toy_recording(drafter, rule)
    part = trace.select(range(0, trace.sequences, 3))
    for text in [text for text in EXAM if part.meta.features or not reads(text)]:
        result = forced(part, target, model, text)
        assert result.rounds == result.equal == result.replayed > 0, text
        assert result.sound, text
        assert result.tokens == part.rows
        assert not result.divergences
        assert not result.draft_flips


def test_forcing_keeps_a_perturbed_target_on_the_sequence():
    trace, target, model = toy_recording("early_exit", "greedy")
    shaken = _shaken(target.decoder)
    exit = EarlyExitDrafter(shaken, EarlyExitHead(shaken, 2).requires_grad_(False))
    result = forced(trace, type(target)(shaken, exit.taps, capacity=32), exit, "fixed:3")
    assert result.tokens == trace.rows
    assert result.rounds > 20
    assert result.divergences
    assert result.draft_flips
    assert result.equal < result.rounds
    assert result.share > 0.3
    for d in result.divergences:
        s = slice(trace.offset[d.sequence], trace.offset[d.sequence + 1])
        assert trace.token[s][d.position] == d.token != d.best
        assert d.gap > 0


def _shaken(decoder):
    """The decoder with its weights a little off: as a coarse dtype has them, only more."""
    other, random = deepcopy(decoder), torch.Generator().manual_seed(0)
    for p in other.parameters():
        p.data += 0.05 * torch.randn(p.shape, dtype=p.dtype, generator=random) * (p.ndim == 2)
    return other


def test_wrong_recorded_accepted_length_is_located():
    trace, target, model = toy_recording("model", "greedy")
    wrong, t = _lied_about(_thick(trace), 0)
    result = forced(wrong, target, model, "fixed:6")
    assert result.equal == result.rounds - 1
    assert result.replayed < result.rounds
    (flip,) = result.draft_flips
    assert (flip.row, flip.slot, flip.accepted - flip.expected) == (t, int(wrong.run[t]), 1)
    assert flip.margin > 0.1
    assert not result.divergences
    assert result.share == 1 - 1 / result.rounds


def of_tokens(trace, token):
    """The recording with other tokens, of which no draft is accepted."""
    meta = replace(trace.meta, prefix_only=False)
    return replace(trace, token=token, run=np.zeros_like(trace.run), rank=None, meta=meta)


def test_wrong_recorded_token_is_not_excused():
    trace, target, model = toy_recording("model", "greedy")
    token = trace.token.copy()
    row = int(trace.offset[2]) + 3
    token[row] = 4 + (token[row] - 3) % 20
    wrong = of_tokens(trace, token)
    result = forced(wrong, target, model, "fixed:0")
    assert result.equal == result.rounds
    assert not result.sound
    first = result.divergences[0]
    assert (first.sequence, first.position, first.token) == (2, 3, token[row])
    assert first.best == trace.token[row]
    assert first in result.failures
    assert first.gap > 1e-9
    assert first.ulps > 3


@pytest.mark.parametrize("rule", RULES)
def test_gaps_use_scores_and_ulps_use_logits(rule):
    trace, target, model = toy_recording("model", rule)
    token = trace.token.copy()
    row = int(trace.offset[4])
    token[row] = 5 if token[row] != 5 else 6
    wrong = of_tokens(trace, token)
    first = forced(wrong, target, model, "fixed:0").divergences[0]
    prompt, sampling = prompts_of(trace)[4], rule_of(trace)
    logits = target.decoder(torch.tensor([prompt]))[0, -1:]
    scores = sampling.scores(logits, int(trace.sequence[4]), [0])[0]
    assert first.gap == pytest.approx(float(scores[first.best] - scores[token[row]]), rel=1e-9)
    largest = float(logits[0, [first.best, int(token[row])]].abs().max())
    ulp = np.spacing(largest)
    assert first.ulps == pytest.approx(first.gap * sampling.temperature / ulp, rel=1e-6)


def test_near_tie_is_excused():
    trace, target, model = toy_recording("model", "greedy")
    # compared at the coarser dtype of the two
    trace = replace(trace, meta=replace(trace.meta, dtype="bfloat16"))
    shaken = type(target)(_shaken(target.decoder), (), capacity=32)
    result = forced(trace, shaken, model, "fixed:2")
    assert result.divergences
    assert all(d.excused == (d.gap <= 0.3 or d.ulps <= 3) for d in result.divergences)
    assert result.failures == tuple(d for d in result.divergences if d.gap > 0.3 and d.ulps > 3)


def test_forced_verification_commits_the_given_tokens():
    logits = torch.eye(5, dtype=torch.float64)[[1, 2, 3]]
    args = Rule(), logits, [0, 4, 2], [-1, 0, 1], 0, 7, ()
    assert accept_exact(*args).token == [1]
    forced_walk = accept_exact(*args, forced=[0] * 7 + [4, 2, 3])
    assert (forced_walk.token, forced_walk.accepted) == ([4, 2, 3], 2)
    assert torch.equal(forced_walk.scores, logits)
    # no token follows the end of the sequence
    assert accept_exact(*args, forced=[0] * 7 + [4]).token == [4, -1]
    ended = accept_exact(Rule(), logits, [0, 4, 2], [-1, 0, 1], 0, 7, (4,), forced=[0] * 7 + [4])
    assert (ended.token, ended.accepted) == ([4], 1)


def test_invalid_forced_tokens_are_refused():
    _, target, _ = toy_recording("model", "greedy")
    drive = chain_plan(policy_from("fixed:0", None, None), 3, 0, toy_cost())
    with pytest.raises(ValueError, match="3 forced tokens without an end token"):
        decode(target, Silent(), drive, Rule(), [5], 4, END, forced=[5, 6, 7])
    assert decode(
        target, Silent(), drive, Rule(), [5], 4, END, forced=[5, 6, 3]
    ).token.tolist() == [5, 6, 3]


def test_command_on_a_bundled_recording(tmp_path):
    asked = "run", "tiny-model-greedy", "--teacher-force", "--prompts"
    code, out, _ = command(tmp_path, *asked, 2, "--policy", "fixed:3", "--json")
    report = json.loads(out)
    assert (code, report["sound"], report["failures"]) == (0, True, 0)
    assert report["share"] >= 0.97
    assert report["rounds"] > 10
    code, out, _ = command(tmp_path, *asked, 1, "--policy", "beta_ts")
    assert code == 0
    assert "rounds accept as recorded" in out
    refused(tmp_path, *asked, 1, "--policy", "fixd:3", words="did you mean fixed?")


def test_flips_have_the_recorded_margins():
    trace, target, model = toy_recording("model", "greedy")
    wrong, t = _lied_about(_thick(trace), 0)
    margin = wrong.draft_margin.copy()
    margin[t, wrong.run[t]] = encode_margin(np.array([0.25]))[0]
    (flip,) = forced(replace(wrong, draft_margin=margin), target, model, "fixed:6").draft_flips
    assert flip.margin == pytest.approx(0.25, rel=0.08)
    (flip,) = forced(replace(wrong, draft_margin=None), target, model, "fixed:6").draft_flips
    assert flip.margin == float("inf")


TRACE = synthetic.iid(0.6, 3, 30, 4)


def ran(rounds):
    """Results with the rounds of a replay."""
    results = []
    for s in range(TRACE.sequences):
        part, token = rounds.select([s]), TRACE.token[TRACE.offset[s] : TRACE.offset[s + 1]]
        results.append(
            DecodeResult(
                token=token, position=part.row - TRACE.offset[s], computed=part.computed,
                drafted=part.drafted, accepted=part.accepted, seconds=np.zeros((len(part), 4)),
                gap=np.full(len(part), np.inf)
            )
        )  # fmt: skip
    return results


def test_rounds_are_equal_where_the_recording_says_so():
    rounds, other = (replay(TRACE, policies.parse(text)) for text in ("fixed:3", "fixed:1"))
    compared = compare_forced(TRACE, other, ran(rounds))
    assert compared.equal == compared.rounds == len(rounds)
    assert compared.draft_flips == ()
    assert compared.replayed < compared.rounds
    assert compare_forced(TRACE, rounds, ran(rounds)).replayed == len(rounds)


@pytest.mark.parametrize("equal, sound", [(97, True), (96, False)])
def test_three_rounds_of_a_hundred_may_differ(equal, sound):
    assert ForcedComparison(100, equal, 0, 200, (), ()).sound == sound


SEED = 7


def some(drafter, rule="rejection"):
    """Ten sequences of the recording under this rule, and its pair."""
    trace, pair = recording(drafter)
    return trace.select(range(0, 40, 4)).under(rule), pair


def forced_sampled(trace, pair, text, seed=SEED, replayed=SEED):
    """The comparison of forced runs with draws of `seed` with the replay of `replayed`."""
    policy = policies.make(text, trace, COST)
    plan = chain_plan(policy, trace.K, SEED, COST)
    results, tested = decode_forced_sampled(pair.target, pair.drafter, plan, trace, seed)
    rounds = replay(trace, policy, seed=replayed, cost=COST)
    return compare_forced_sampled(trace, rounds, results, tested, "float64", replayed)


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("drafter", ["model", "eagle", "prompt_lookup"])
@pytest.mark.parametrize("policy", ["fixed:0", "fixed:3", "beta_ts:scope=stream"])
def test_forced_rounds_are_the_replays_one_by_one(drafter, policy, rule):
    result = forced_sampled(*some(drafter, rule), policy)
    assert result.rounds == result.equal == result.replayed > 0
    assert result.differing == 0
    assert result.largest_gap < (1e-6 if rule == "rejection" else 3 * 2.0**-11)
    assert (result.tested > 20) == (policy != "fixed:0")
    assert result.sound


def test_real_rounds_follow_from_forced_ones_exactly():
    """Sequences and rounds jointly: forced rounds, weighted by the target's probability of the
    sequence, are distributed as real ones; every draw on either side enumerated."""
    policy, budget, ends = policies.parse("fixed:2"), 4, (2,)
    for seed, rule, _ in CASES:
        world = World(seed, 3, 0.4)

        def real(draws, world=world, rule=rule):
            r = spoken(world, rule, policy, budget, 2, draws, 0, ends)
            return tuple(r.token.tolist()), tuple(r.accepted.tolist())

        total = {}
        for text, odds in whole(world, rule, budget, ends).items():
            if not odds:
                continue

            def one(draws, text=text, world=world, rule=rule):
                target, plan = Listener(world), chain_plan(policy, 2, 0, COST)
                models = target, Speaker(world), plan, rule
                heard = target.extend
                r = decode(*models, [0], budget, ends, 0, heard, draws, forced=list(text))
                return tuple(r.token.tolist()), tuple(r.accepted.tolist())

            for key, share in output_distribution(one).items():
                total[key] = total.get(key, 0.0) + odds * share
        assert off(output_distribution(real), total) < EXACT
        assert len({accepted for _, accepted in total}) > 3


def test_control_other_draws_make_other_rounds():
    trace, pair = some("model")
    result = forced_sampled(trace, pair, "fixed:3", seed=SEED + 1)
    assert result.equal < result.rounds
    assert not result.sound
    assert result.differing == 0


def test_control_another_target_is_reported():
    trace, pair = some("model")
    other = replace(pair, target=Target(toy_decoder(5), (), capacity=32))
    result = forced_sampled(trace, other, "fixed:3")
    assert not result.sound
    assert result.differing > 0.5 * result.tested
    assert result.tokens == trace.rows


def test_control_a_drafter_of_another_temperature_is_reported():
    trace, pair = some("model")
    result = forced_sampled(trace, replace(pair, drafter=Heated(pair.drafter.lm)), "fixed:3")
    assert not result.sound
    assert "differ by" in result.describe()
    assert result.summary()["differing"] == result.differing > 0


def test_trees_are_refused():
    trace, pair = some("model")
    plan = make_plan(policies.parse("static:2x1"), trace.K, 0, COST)
    with pytest.raises(ValueError, match="cannot be forced on a tree"):
        decode_forced_sampled(pair.target, pair.drafter, plan, trace)


def test_impossible_tokens_have_a_chance():
    """A token that rounding cuts on either side still has a probability of acceptance."""
    trace, pair = some("model")
    cut = replace(trace, meta=replace(trace.meta, top_k=1, top_p=1.0))
    result = forced_sampled(cut, pair, "fixed:3")
    assert torch.isfinite(torch.tensor(result.largest_gap))
    assert result.tested > 0
