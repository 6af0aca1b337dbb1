"""The audit passes clean runs and finds planted faults; its figures against their definitions."""

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from shell import command, refused
from toy_lm import (
    END, POLICIES, VOCAB, policy_from, run_all, stepper, toy_cost, toy_pair, toy_prompts, toy_recording, toy_target,
)  # fmt: skip

from real.audit import audit, tolerance_of, too_many
from real.decode import decode
from real.demo import TRACES
from real.draft import Silent
from real.emitted import Emitted, Header, RunError, Text, emitted_of, load_run, save_run, texts_of
from real.finding import figures
from real.floor import floor
from real.forced import TILTS, gaps, kept, odds, spacing
from real.lean import STEPS, lean, offered
from real.reference import refer
from real.sampling import Rule
from real.target import Target
from simspec import rng
from simspec.grid import encode_margin

HELD = settings(deadline=None, max_examples=60, derandomize=True)
PROMPT = 4
SAMPLED = Rule("rejection", 0.8)


def emitted(texts, rule=Rule(), dtype="float64", end_tokens=END):
    return Emitted(Header(rule.name, rule.temperature, rule.top_k, rule.top_p, rule.seed, dtype, end_tokens=end_tokens), tuple(texts))


def decoded(rule, count=6, budget=24, decoder=None, dtype="float64", policy="fixed:3", drafter="model", seed=0):
    """A run of the engine itself on random prompts, by a target of its own or by `decoder`."""
    target, made = toy_pair(drafter)
    target = target if decoder is None else Target(decoder)
    made = made if decoder is None else Silent()
    drive = stepper(policy_from(policy, None, None), 6, 0, toy_cost())
    texts = []
    for s, prompt in enumerate(toy_prompts(count, seed)):
        found = decode(target, made, drive, rule, prompt, budget, END, s)
        rounds = zip(*(c.tolist() for c in (found.position, found.computed, found.drafted, found.accepted)))
        texts.append(Text(prompt, found.token.tolist(), s, tuple(rounds)))
    return emitted(texts, rule, dtype)


def drawn(law, count=100, length=40, seed=1, rule=SAMPLED):
    """Texts whose next token is drawn from law(logits of the target, logits of the drafter), no engine about."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(4, VOCAB, (count, PROMPT), generator=generator)
    for _ in range(length):
        p, q = toy_target()(text)[:, -1], toy_pair("model")[1].lm(text)[:, -1]
        text = torch.cat((text, torch.multinomial(law(p, q), 1, generator=generator)), 1)
    return emitted([Text(t[:PROMPT].tolist(), t[PROMPT:].tolist(), s) for s, t in enumerate(text)], rule, end_tokens=())


def tampered(run, text, position, token):
    """The run with one token exchanged; what followed it stays."""
    changed = list(run.texts[text].token)
    changed[position] = token
    texts = list(run.texts)
    texts[text] = replace(texts[text], token=tuple(changed), rounds=())
    return replace(run, texts=tuple(texts))


RULES = [Rule(), Rule("coupled", 0.8, 5), Rule("coupled", 0.8, 5, 6, 0.9), SAMPLED, Rule("rejection", 1.0, 3, 6, 0.9)]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_clean_run_is_clean(rule):
    for drafter in ("model", "prompt_lookup"):
        run = decoded(rule, drafter=drafter)
        target, made = toy_pair(drafter)
        found = audit(target, run, drafter=made)
        assert found.clean and not found.divergences and not found.impossible, found.alarms
        assert found.tokens == run.tokens == sum(len(t.token) for t in run.texts)
        assert (found.floor is None) == (rule.name == "greedy")
        if found.floor:
            assert (found.floor.p_lean is not None) == (rule.sampled and drafter == "model")
        json.dumps(found.summary(), allow_nan=False)
        assert all(len(row) == 2 for row in figures(found))


# --- planted faults


@pytest.mark.parametrize("rule", RULES[:2], ids=str)
def test_one_token_replaced_by_the_second_best_is_found(rule):
    run, target = decoded(rule), toy_pair("model")[0]
    text = run.texts[2]
    logits = toy_target()(torch.tensor([[*text.prompt, *text.token[:5]]]))[0, -1]
    second = int(rule.scores(logits[None], text.sequence, [5]).topk(2).indices[0, 1])
    while second in END:
        pytest.skip("an end token cannot stand there")
    found = audit(target, tampered(run, 2, 5, second))
    assert not found.clean and found.failures[0] == found.first[0]
    assert (found.first[0].text, found.first[0].position, found.first[0].token, found.first[0].best) == (2, 5, second, text.token[5])
    assert found.first[0].gap == pytest.approx(found.first[0].margin) and {d.text for d in found.divergences} == {2}


@pytest.mark.parametrize("rule", RULES[:2], ids=str)
def test_one_perturbed_weight_is_found(rule):
    broken = copy.deepcopy(toy_target())
    broken.layers[1].up.weight[3, 5] += 3.0
    found = audit(toy_pair("model")[0], decoded(rule, decoder=broken, count=12))
    assert not found.clean and "are not the target's pick" in found.alarms[0]


class Stale(Target):
    """Leaves a row of the round before where a committed one should be."""

    def keep(self, path):
        super().keep(path)
        if self.length % 7 == 6:
            for t in (self.cache.key, self.cache.value):
                t[:, :, :, self.length - 1] = t[:, :, :, self.length - 2]


def test_a_stale_cache_row_is_found():
    target, drafter = Stale(toy_target()), toy_pair("model")[1]
    drive = stepper(policy_from("fixed:3", None, None), 6, 0, toy_cost())
    texts = [Text(p, decode(target, drafter, drive, Rule(), p, 24, END, s).token.tolist(), s) for s, p in enumerate(toy_prompts(12))]
    assert not audit(target, emitted(texts)).clean  # by the very target that made it: the audit uses no cache


def law(rule):
    return lambda p, q: rule.probs(p)


def blended(clip):
    """What single-draft rejection emits if the residual is handled so."""

    def made(p, q):
        p, q = SAMPLED.probs(p), SAMPLED.probs(q)
        both = torch.minimum(p, q)
        rest = clip(p, q)
        return both + (1 - both.sum(-1, keepdim=True)) * rest / rest.sum(-1, keepdim=True)

    return made


FAULTS = {
    "temperature": (law(Rule("rejection", 0.9)), "temperature"),
    "bonus from q": (blended(lambda p, q: q), "drafter"),
    "residual not clipped": (blended(lambda p, q: (p - q).abs()), "drafter"),
    "accepts whatever is drafted": (lambda p, q: SAMPLED.probs(q), "drafter"),
}


def test_draws_from_the_target_pass_and_so_does_the_right_residual():
    target, drafter = toy_pair("model")
    for made in (law(SAMPLED), blended(lambda p, q: (p - q).clamp(min=0))):
        found = audit(target, drawn(made), drafter=drafter)
        assert found.clean and found.floor.tokens == 4000, found.alarms
        assert found.floor.finds_heat < 0.13 and found.floor.finds_distance < 0.08 and found.floor.finds_lean < 0.2


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_sampling_is_found(fault):
    target, drafter = toy_pair("model")
    made, sign = FAULTS[fault]
    found = audit(target, drawn(made), drafter=drafter)
    assert not found.clean and sign in found.floor.alarms
    if fault == "temperature":
        assert found.floor.heat == pytest.approx(0.9 / 0.8, rel=0.05)


@pytest.mark.parametrize("rule", [Rule("rejection", 0.8, 0, 0, 0.9), Rule("rejection", 0.8, 0, 3)], ids=str)
def test_top_k_or_top_p_left_out_shows_tokens_of_probability_0(rule):
    target = toy_pair("model")[0]
    assert audit(target, drawn(law(rule), 30, rule=rule)).clean
    found = audit(target, drawn(law(SAMPLED), 30, rule=rule))
    assert not found.clean and "have probability 0" in found.alarms[0] and not any(d.excused for d in found.impossible)


def test_top_p_that_the_header_does_not_name_is_found():
    found = audit(toy_pair("model")[0], drawn(law(Rule("rejection", 0.8, 0, 0, 0.9))))
    assert not found.clean and not found.impossible and "temperature" in found.floor.alarms


def test_a_coupled_run_of_another_seed_or_sequence_is_found():
    run, target = decoded(RULES[1]), toy_pair("model")[0]
    assert not audit(target, replace(run, header=replace(run.header, seed=6))).clean
    moved = replace(run, texts=tuple(replace(t, sequence=t.sequence + 1) for t in run.texts))
    assert not audit(target, moved).clean


# --- rounding


def test_rounding_to_bfloat16_is_excused_and_reported():
    narrow = copy.deepcopy(toy_target()).bfloat16()
    run = decoded(Rule(), count=40, decoder=narrow, dtype="bfloat16")
    target = toy_pair("model")[0]
    found = audit(target, run)
    assert found.clean and found.divergences and not found.failures
    assert found.tolerance.dtype == "bfloat16" and found.near_ties >= len(found.divergences)
    assert 0 < max(d.gap for d in found.divergences) <= 0.3
    assert dict(figures(found))["not the pick"].startswith(f"{len(found.divergences)}: ")
    honest = audit(target, replace(run, header=replace(run.header, dtype="float64")))
    assert not honest.clean and len(honest.failures) == len(found.divergences)
    assert audit(Target(narrow), decoded(Rule(), dtype="float64")).tolerance.dtype == "bfloat16"  # the coarser of the two


def test_many_excused_divergences_are_no_rounding():
    target, texts = toy_pair("model")[0], []
    for s, prompt in enumerate(toy_prompts(30)):  # a fault that hides in every near-tie: the second best where it is within 0.3
        token = []
        for _ in range(24):
            best = toy_target()(torch.tensor([[*prompt, *token]]))[0, -1].topk(2)
            token.append(int(best.indices[1 if best.values[0] - best.values[1] < 0.3 and 3 not in best.indices else 0]))
            if token[-1] in END:
                break
        texts.append(Text(prompt, token, s))
    found = audit(target, emitted(texts, dtype="bfloat16"))
    assert not found.failures and "each within rounding" in found.alarms[0]


@pytest.mark.parametrize("of", [10, 1000, 20000])
def test_the_share_of_excused_differences_is_tested_at_its_risk(of):
    class Excused:
        excused = True

    alarm = [bool(too_many([Excused] * n, of, 0.001, 1e-4, "")) for n in range(60)]
    least = alarm.index(True)
    assert stats.binom.sf(least - 1, of, 0.001) < 1e-4 <= stats.binom.sf(least - 2, of, 0.001)
    assert too_many([], of, 0.0, 1e-4, "") == []


def test_tolerances():
    assert [tolerance_of(d).nats for d in ("float64", "float32", "bfloat16")] == [1e-9, 1e-4, 0.3]
    assert tolerance_of("float64", "float32").dtype == "float32"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_unit_in_the_last_place(dtype):
    x = torch.tensor([1.0, 1.5, 1.9999, 2.0, -3.7, 8.0, 1e-3, 700.0], dtype=dtype)
    assert spacing(x, dtype).tolist() == np.spacing(x.abs().numpy()).tolist()
    assert spacing(torch.tensor([1.0, 8.0, 20.0]), torch.bfloat16).tolist() == [2**-7, 2**-4, 2**-3]


# --- figures against their definitions


def logits_like(data, rows=3, vocab=6):
    row = st.lists(st.floats(-4, 4).map(lambda x: round(x, 1)), min_size=vocab, max_size=vocab)
    return torch.tensor(data.draw(st.lists(row, min_size=rows, max_size=rows)), dtype=torch.float64)


CUTS = st.tuples(st.integers(0, 6), st.sampled_from([1.0, 0.95, 0.7, 0.3, 0.05]))


@HELD
@given(data=st.data(), cuts=CUTS, temperature=st.sampled_from([0.5, 1.0, 1.7]))
def test_gaps_by_definition(data, cuts, temperature):
    rule, logits = Rule("coupled", temperature, 7, *cuts), logits_like(data)
    token = tuple(data.draw(st.lists(st.integers(0, 5), min_size=3, max_size=3)))
    found = gaps(rule, logits, token, 4, 10, torch.float64, 1e-9)
    for i, y in enumerate(token):
        p = rule.probs(logits)[i].numpy()
        with np.errstate(divide="ignore"):
            score = np.log(p) + rng.gumbel(7, 4, 10 + i, 6)
        assert found.best[i] == score.argmax()
        assert found.gap[i] == (pytest.approx(score.max() - score[y], abs=1e-9) if p[y] else math.inf)
        assert found.near[i] <= found.gap[i]
        if math.isfinite(found.near[i]):
            unit = float(spacing(logits[i, [y, int(found.best[i])]].abs().max(), torch.float64))
            assert found.ulps[i] == pytest.approx(found.near[i] * temperature / unit)


@HELD
@given(data=st.data(), cuts=CUTS)
def test_odds_by_definition(data, cuts):
    rule, logits = Rule("rejection", 0.8, 7, *cuts), logits_like(data)
    token = tuple(data.draw(st.lists(st.integers(0, 5), min_size=3, max_size=3)))
    found = odds(rule, logits, token, 4, 10, 1e-9)
    for i, y in enumerate(token):
        p = rule.probs(logits)[i].numpy()
        some = p[p > 0]
        assert found.entropy[i] == pytest.approx(-(some * np.log(some)).sum(), abs=1e-12)
        for power, moment in ((2, found.variance), (3, found.skew)):
            assert moment[i] == pytest.approx((some * (-np.log(some) - found.entropy[i]) ** power).sum(), abs=1e-9)
        if not p[y]:
            assert found.surprise[i] == math.inf
            continue
        ahead = sum(p[v] for v in range(6) if p[v] > p[y] or (p[v] == p[y] and v < y))
        assert found.place[i] == pytest.approx(ahead + rng.uniform(7, 4, 10 + i, 0, 1 << 16) * p[y], abs=1e-12)
        for h, tilt in zip(TILTS, found.tilt[i]):
            assert tilt == pytest.approx(math.log(p[y] ** (1 - h) / (some ** (1 - h)).sum() / p[y]), abs=1e-9)


@HELD
@given(data=st.data(), cuts=CUTS, slack=st.sampled_from([1e-9, 0.05, 0.5]))
def test_what_top_k_and_top_p_may_keep(data, cuts, slack):
    rule, logits = Rule("rejection", 0.8, 0, *cuts), logits_like(data)
    stays, may, must = rule.probs(logits) > 0, kept(rule, logits, slack), kept(rule, logits, -slack)
    assert (may | ~stays).all() and (stays | ~must).all()
    for _ in range(5):  # whatever the rounding, between the two
        noise = torch.from_numpy(np.random.default_rng(data.draw(st.integers(0, 99))).uniform(-1, 1, logits.shape)) * slack * 0.8 / 4
        moved = rule.probs(logits + noise) > 0
        assert (may | ~moved).all() and (moved | ~must).all()


def test_a_token_at_the_edge_of_top_p_is_excused_in_the_dtype_that_may_have_kept_it():
    rule = Rule("rejection", 1.0, 0, 0, 0.75)
    logits = torch.tensor([[0.5, 0.25, 0.25 - 1e-6, 1e-6]], dtype=torch.float64).log() + 1
    p = rule.probs(logits)
    assert (p > 0).tolist() == [[True, True, False, False]] or (p > 0).tolist() == [[True, True, True, False]]
    logits[0, 0] += 1e-5  # now 0.75 is reached by two
    assert odds(rule, logits, (2,), 0, 0, 1e-4).edge.all() and not odds(rule, logits, (2,), 0, 0, 1e-9).edge.any()
    assert not odds(rule, logits, (3,), 0, 0, 1e-4).edge.any()
    coupled = Rule("coupled", 1.0, 1, 0, 0.75)
    found = gaps(coupled, logits, (2,), 0, 0, torch.float32, 1e-4)
    assert found.gap[0] in (0, math.inf) and math.isfinite(found.near[0])


@HELD
@given(data=st.data())
def test_leaning_laws_are_laws(data):
    p, q = (Rule("rejection", 1.0, 0, *data.draw(CUTS)).probs(logits_like(data)) for _ in range(2))
    columns = [lean(p, q, (v, v, v)) for v in range(6)]
    for i in range(3):
        score = np.array([c.score[i] for c in columns])
        own, theirs = p[i].numpy(), q[i].numpy()
        assert own @ score == pytest.approx(0, abs=1e-12) and own @ score**2 == pytest.approx(columns[0].variance[i])
        assert theirs @ score == pytest.approx(columns[0].pull[i]) and columns[0].pull[i] > -1e-12
        assert theirs @ score**2 == pytest.approx(columns[0].square[i])
        assert own @ np.exp(np.array([c.step[i] for c in columns])) == pytest.approx(np.ones(len(STEPS)))


@pytest.mark.parametrize("drafter", ["model", "early_exit", "eagle", "medusa", "glide", "self_skip"])
def test_what_a_drafter_offers_along_a_text_is_what_its_first_step_shows(drafter):
    target, made = toy_pair(drafter)
    (text,) = decoded(SAMPLED, 1, 6).texts
    q = offered(target, made, SAMPLED, text)
    for n in range(len(text.token)):
        shown = []
        decode(
            target, made, stepper(policy_from("fixed:1", None, None), 1, 0, toy_cost()), SAMPLED, [*text.prompt, *text.token[:n]], 2,
            listen=lambda r: None, chance=Peek(shown),
        )  # fmt: skip
        assert torch.allclose(q[n], shown[0], atol=1e-9), n
    assert offered(*toy_pair("prompt_lookup"), SAMPLED, text) is None


class Peek:
    """Chance that keeps what the drafter draws from first."""

    def __init__(self, shown):
        self.shown = shown

    def draw(self, p, round, slot, role):
        self.shown.append(p)
        return int(p.argmax())

    def flip(self, odds, round, slot):
        return True


# --- error rates


def fixed_law(tokens=200):
    """Logits of the toy target and its drafter at some texts' positions."""
    text = torch.tensor([[*t.prompt, *t.token] for t in drawn(law(SAMPLED), tokens // 40 + 1).texts])
    return (m(text)[:, PROMPT - 1 : -1].flatten(0, 1)[:tokens] for m in (toy_target(), toy_pair("model")[1].lm))


def alarm_share(draws, risk, repeats=300, tokens=200):
    """Share of samples of `draws(p, q)` that raise an alarm at this risk."""
    p, q = fixed_law(tokens)
    own, theirs, generator = SAMPLED.probs(p), SAMPLED.probs(q), torch.Generator().manual_seed(3)
    count = 0
    for s in range(repeats):
        token = tuple(torch.multinomial(draws(own, theirs), 1, generator=generator)[:, 0].tolist())
        count += bool(floor(odds(SAMPLED, p, token, s, 0, 1e-9), lean(own, theirs, token), risk).alarms)
    return count / repeats


def test_false_alarms_are_as_rare_as_stated():
    share = alarm_share(lambda p, q: p, 0.2)
    assert 0 < share < 0.2 + 4 * math.sqrt(0.2 * 0.8 / 300)  # not all tests are tight; chi-square is


def test_control_a_share_of_draws_from_q_is_found_as_often_as_stated():
    p, q = fixed_law()
    token = tuple(SAMPLED.probs(p).argmax(-1).tolist())
    told = floor(odds(SAMPLED, p, token, 0, 0, 1e-9), lean(SAMPLED.probs(p), SAMPLED.probs(q), token), 0.05)
    assert 0 < told.finds_lean < 1
    found = alarm_share(lambda p, q: p + told.finds_lean * (q - p), 0.05)
    assert found > 0.99 - 4 * math.sqrt(0.01 * 0.99 / 300)
    assert alarm_share(lambda p, q: p + told.finds_lean / 10 * (q - p), 0.05) < 0.5


@pytest.mark.parametrize("side", [1, -1])
def test_control_a_temperature_error_is_found_as_often_as_stated(side):
    p, q = fixed_law(2000)
    told = floor(odds(SAMPLED, p, tuple(p.argmax(-1).tolist()), 0, 0, 1e-9), None, 0.01)
    power = 1 - side * told.finds_heat
    found = alarm_share(lambda p, q: p**power / (p**power).sum(-1, keepdim=True), 0.01, 100, 2000)
    assert 0 < told.finds_heat < 0.3 and found > 0.99 - 4 * math.sqrt(0.01 * 0.99 / 100)


def test_too_few_tokens_say_so():
    run = decoded(SAMPLED, 1, 3)
    found = audit(toy_pair("model")[0], run)
    assert found.clean and found.floor.bins == 1 and math.isinf(found.floor.finds_heat) and math.isinf(found.floor.finds_distance)
    assert "too few tokens" in dict(figures(found))["temperature"]
    with pytest.raises(ValueError, match="risk is 1.5"):
        audit(toy_pair("model")[0], run, risk=1.5)


# --- against a recording


def recorded(rule="greedy", policy="beta_ts"):
    trace, target, drafter = toy_recording("model", rule)
    cost = toy_cost()
    texts = texts_of(trace, run_all(target, drafter, trace, policy_from(policy, trace, cost), cost))
    return trace, target, replace(emitted_of(trace), texts=texts)


@pytest.mark.parametrize("rule, policy", [*(("greedy", p) for p in POLICIES), ("coupled", "fixed:3"), ("coupled", "confidence:0.5")])
def test_runs_of_every_policy_are_as_the_recording_says(rule, policy):
    trace, target, run = recorded(rule, policy)
    found = refer(run, trace, 1e-9)
    assert (found.texts, found.equal, found.missing, found.failures) == (trace.sequences, trace.sequences, 0, ())
    assert found.rounds == sum(len(t.rounds) for t in run.texts)


@pytest.mark.parametrize("margin, kind", [(1e-6, "target_flips"), (1.0, "failures")])
def test_a_text_that_parts_is_judged_by_the_targets_recorded_margin(margin, kind):
    trace, target, run = recorded()
    codes = trace.margin.copy()
    codes[trace.offset[1] + 2] = encode_margin(np.array([margin]))[0]
    trace = replace(trace, margin=codes)
    token = run.texts[1].token
    other = tampered(run, 1, 2, next(v for v in range(4, VOCAB) if v != token[2]))
    found = refer(other, trace, 1e-4)
    (parting,) = getattr(found, kind)
    assert (parting.text, parting.position, parting.round) == (1, 2, None) and parting.margin == pytest.approx(margin, rel=0.1)
    assert len(found.target_flips) + len(found.failures) == 1 and found.equal == found.texts - 1
    assert not audit(target, other, trace).clean


@pytest.mark.parametrize("margin, kind", [(1e-6, "draft_flips"), (1.0, "failures")])
def test_a_round_that_accepts_otherwise_is_judged_by_the_drafters_margin(margin, kind):
    trace, target, run = recorded(policy="fixed:3")
    s, n, (position, _, drafted, accepted) = next(
        (s, n, r) for s, t in enumerate(run.texts) for n, r in enumerate(t.rounds) if r[3] == r[2] > 1
    )
    row = int(trace.offset[s]) + position
    codes, runs = np.full_like(trace.draft_margin, 255), trace.run.copy()
    codes[row, 1], runs[row] = encode_margin(np.array([margin]))[0], 1
    trace = replace(trace, rank=None, run=runs, draft_margin=codes, meta=replace(trace.meta, prefix_only=False))
    found = refer(run, trace, 1e-4)
    (parting,) = getattr(found, kind)
    assert (parting.text, parting.position, parting.round) == (s, position, n)
    assert len(found.draft_flips) + len(found.failures) == 1 and not found.target_flips
    assert not audit(target, run, trace).clean  # nothing that thick flips in float64
    single = replace(run, header=replace(run.header, dtype="float32"))
    assert audit(target, single, trace).clean == (kind == "draft_flips")


def test_a_recording_that_cannot_judge_is_refused():
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
    with pytest.raises(RunError, match="texts of its own"):
        audit(target, decoded(SAMPLED), trace)
    few = refer(run, trace.select([0, 4]), 1e-9)
    assert (few.texts, few.missing) == (2, trace.sequences - 2)
    assert refer(replace(run, header=replace(run.header, drafter="other")), trace, 1e-9).rounds == 0


# --- the command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved run of two bundled prompts."""
    made = tmp_path_factory.mktemp("audit")
    cost = TRACES / "tiny-model-greedy.cost.json"
    code, out, error = command(
        made, "run", "tiny-model-greedy", "--prompts", 2, "--policy", "fixed:2", "--cost", cost, "--save", "run.jsonl", "--json"
    )
    assert code == 0 and json.loads(out)["lossless"], error
    return made


def test_a_run_saved_and_audited(folder):
    code, out, error = command(folder, "audit", "run.jsonl", "--against", "tiny-model-greedy")
    assert code == 0 and out.splitlines()[-1] == "clean" and "2 equal" in out and "auditing: 2/2" in error
    code, out, _ = command(folder, "audit", "run.jsonl", "--json", "--dtype", "float64")
    found = json.loads(out)
    assert code == 0 and found["clean"] and found["texts"] == 2 and found["tolerance"]["dtype"] == "float32"


def test_a_fault_gives_exit_code_1(folder):
    run = load_run(folder / "run.jsonl")
    text = tampered(run, 1, 4, 77)
    save_run(folder / "bad.jsonl", text.header, text.texts)
    code, out, _ = command(folder, "audit", "bad.jsonl")
    assert code == 1 and "text 1" in out and "FAILED" in out and "NOT CLEAN" in out.splitlines()[-1]
    code, out, _ = command(folder, "audit", "bad.jsonl", "--json")
    found = json.loads(out)
    assert code == 1 and not found["clean"] and found["failures"][0]["position"] == 4


def test_a_sampled_run_names_its_drafter_and_is_tried_for_leaning(folder):
    run = load_run(folder / "run.jsonl")
    header = replace(run.header, rule="rejection", temperature=0.8)
    texts = [replace(t, token=t.token[:3], rounds=()) for t in run.texts]
    save_run(folder / "sampled.jsonl", header, texts)
    code, out, _ = command(folder, "audit", "sampled.jsonl", "--json")
    assert code == 0 and json.loads(out)["floor"]["lean_z"] is not None and json.loads(out)["floor"]["finds_lean"] is None
    save_run(folder / "unknown.jsonl", replace(header, drafter="mine"), texts)
    code, out, _ = command(folder, "audit", "unknown.jsonl")
    assert code == 0 and "not tested whether the text leans to it" in out


def test_what_cannot_be_audited_gives_exit_code_2(folder):
    run = load_run(folder / "run.jsonl")
    (folder / "broken.jsonl").write_text('{"simspec": "run", "rule": "greedy"}\n{"prompt": [1], "token": "x"}\n')
    save_run(folder / "large.jsonl", run.header, [replace(run.texts[0], token=(2**31 - 1,), rounds=())])
    save_run(folder / "other.jsonl", replace(run.header, target="else/123"), run.texts)
    for arguments, words in (
        (["missing.jsonl"], "missing.jsonl cannot be read"),
        (["broken.jsonl"], "broken.jsonl: line 2: token is not a list"),
        (["tiny-modl-greedy"], "did you mean tiny-model-greedy?"),
        (["large.jsonl"], "holds token 2147483647"),
        (["other.jsonl"], "was made with target else/123"),
        (["run.jsonl", "--risk", 2], "--risk is 2.0"),
        (["run.jsonl", "--dtype", "int8"], "dtype 'int8' is unknown"),
        (["run.jsonl", "--against", "tiny-model-coupled"], "expected the same rule"),
        (["run.jsonl", "--bundle", "nowhere"], "nowhere"),
    ):
        refused(folder, "audit", *arguments, words=words, progress=True)
    refused(folder, "run", "tiny-model-greedy", "--save", "no/run.jsonl", words="there is no folder no")


def test_help_teaches_with_an_example(tmp_path):
    code, out, _ = command(tmp_path, "audit", "--help")
    assert code == 0 and "Example: simspec run" in " ".join(out.split()) and "--against" in out and "--json" in out
