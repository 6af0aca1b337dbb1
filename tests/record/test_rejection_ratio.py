"""Recordings of the rejection rule: their ratios, and replays distributed as real rounds."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from branches import output_distribution
from enumerated_world import (
    ALLOWED,
    BUDGET,
    CASES,
    Listener,
    Speaker,
    World,
    case_world,
    columns_of,
    cost_of,
    off,
    policy_of,
    real_rounds,
    whole,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_lm import END, TOYS, recorded, toy_pair, toy_prompts

from real.decode.features import drafter_features
from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.draft import Silent
from real.model.target import Target
from real.record import RecordError, Settings
from real.record.rows import record_rejection
from real.record.sequences import target_sequence
from real.rerun import rule_of
from real.sampling import AddressedDraws, Rule
from simspec import CostModel, PolicyError, Trace, TraceMeta, load_trace, policies, replay, sweep
from simspec.numerics import rng
from simspec.numerics.rng import ACCEPT, DRAFT
from simspec.policies import make
from simspec.reports.drafters import compare_drafters
from simspec.trace.acceptance import by_depth, drawn_trace, expected_accepted_length

RULE = Rule("rejection", 0.9, 3, 0, 0.95)


def ratios_of(world, rule, text, K):
    """q / p of the text's tokens in a draft from each row, float64 `[n, K]`."""
    n = len(text)
    q, p = ([world.probs(rule, text[:i], of)[text[i]] for i in range(n)] for of in "qp")
    ratio = np.array(q) / np.array(p)
    return np.array([[ratio[t + j] if t + j < n else 0.0 for j in range(K)] for t in range(n)])


def chances_of(world, rule, text, K):
    """P(accepted), given that those before are, by the products and least ones of a block."""
    ratio = ratios_of(world, rule, text, K)
    if rule.name == "rejection":
        return np.minimum(1.0, ratio)
    for row in ratio:
        product = least = 1.0
        for j in range(K):
            product *= row[j]
            before, least = least, min(least, product)
            row[j] = least / before if before else 0.0
    return ratio


def runs_of(world, rule, text, K):
    """(accepted lengths of all rows, their probability) of every possible recording of a text."""
    n, ratio = len(text), chances_of(world, rule, text, K)
    ways = []
    for t in range(n):
        alive, row = 1.0, []
        for run in range(min(K, n - t)):
            row.append((run, alive * (1 - ratio[t, run])))
            alive *= ratio[t, run]
        ways.append([*row, (min(K, n - t), alive)])
    for runs in product(*([w for w in row if w[1] > 0] for row in ways)):
        yield [run for run, _ in runs], float(np.prod([odds for _, odds in runs]))


def recording_of(texts, runs, budget, K, ends):
    """A recording of these texts and accepted lengths, all at the draw address 0."""
    count = len(texts)
    token = np.array([token for text in texts for token in text], np.int32)
    names = tuple(map(str, range(count)))
    return Trace(
        np.cumsum([0, *map(len, texts)]),
        np.full(count, budget),
        token,
        np.full(len(token), K, np.uint8),
        np.array([run for row in runs for run in row], np.uint8),
        TraceMeta("synthetic", "t", "q", K, tasks=names, ids=names, end_tokens=ends),
        sequence=np.zeros(count, np.int64),
    )


def replayed(world, rule, policy, budget, K, seed, ends) -> dict:
    """Distribution of (sequence, rounds) by replay: all sequences and accepted lengths."""
    cases = [
        (text, runs, odds * share)
        for text, odds in whole(world, rule, budget, ends).items()
        if odds
        for runs, share in runs_of(world, rule, text, K)
    ]
    # A stream keeps its state from one sequence to the next, so that it replays each alone.
    together = len(cases) if policy.scope == "sequence" else 1
    distribution: dict = {}
    for first in range(0, len(cases), together):
        part = cases[first : first + together]
        texts, runs, odds = zip(*part)
        trace = recording_of(texts, runs, budget, K, ends)
        rounds = replay(trace, policy, seed, cost_of(K))
        position = rounds.row - np.repeat(trace.offset[:-1], np.diff(rounds.offset))
        columns = columns_of(rounds, position)
        for text, share, a, b in zip(texts, odds, rounds.offset, rounds.offset[1:]):
            key = text, columns[a:b]
            distribution[key] = distribution.get(key, 0.0) + share
    return distribution


FREE = [text for text in ALLOWED if not policies.parse(text).reads]


@pytest.mark.parametrize("text", FREE)
def test_replayed_rounds_are_distributed_as_real_ones(text):
    """Sequences and rounds jointly, every draw on either side enumerated."""
    for case in CASES:
        seed, rule, ends = case
        real, _ = real_rounds(text, case)
        policy = policy_of(text)
        simulated = replayed(case_world(case), rule, policy, BUDGET, 2, seed, ends)
        assert off(real, simulated) < 1e-12
        assert len(real) > (10 if text == "fixed:0" else 30)
        mean = [
            sum(odds * sum(r[-1] for r in rounds) for (_, rounds), odds in distribution.items())
            for distribution in (real, simulated)
        ]
        assert mean[0] == pytest.approx(mean[1], abs=1e-12)
        assert mean[0] > 0 or text == "fixed:0"


class Stop(Exception):
    """Ends a run behind its first round."""


@pytest.mark.parametrize("K", [1, 2, 3])
def test_expected_accepted_equals_the_enumerated_mean(K):
    """Expected lengths over the target's sequences, against every draw of a real first round."""
    means = []
    for seed, rule, _ in CASES:
        world, budget = World(seed, 3, 0.4), 4
        policy = policies.parse(f"fixed:{K}")

        def first_round(draws, world=world, rule=rule, budget=budget, policy=policy):
            def stop(r):
                raise Stop(r.accepted)

            plan = chain_plan(policy, 3, 0, cost_of(3))
            models = Listener(world), Speaker(world), plan, rule
            with pytest.raises(Stop) as stopped:
                decode(*models, [0], budget, (), 0, stop, draws)
            return stopped.value.args[0]

        distribution = output_distribution(first_round)
        meta = TraceMeta(
            rule.name, "t", "q", 3, temperature=rule.temperature, tasks=("x",), ids=("x",),
            top_p=rule.top_p, largest_ratio=1e9
        )  # fmt: skip
        mean = 0.0
        for text, odds in world.true(rule, budget).items():
            if odds:
                ratio = ratios_of(world, rule, text, 3).astype(np.float32)
                n = np.full(budget, 3, np.uint8)
                trace = Trace(
                    np.array([0, budget]), np.array([budget]), np.array(text, np.int32), n, 0 * n,
                    meta, ratio=ratio
                )  # fmt: skip
                mean += odds * expected_accepted_length(trace, K)[0]
        assert mean == pytest.approx(
            sum(accepted * odds for accepted, odds in distribution.items()), rel=1e-6
        )
        assert mean > 0.3
        means.append(mean)
    for tokens, block in zip(means[:2], means[2:]):  # a block of one is a token
        assert block > tokens + 1e-3 if K > 1 else block == pytest.approx(tokens, rel=1e-6)


def overlap(world, rule, text, K):
    """Σ min(p, q): the acceptance probability before the sequence is known, not given it."""
    n = len(text)
    both = [[world.probs(rule, text[:i], of) for of in "qp"] for i in range(n)]
    ratio = [np.minimum(*pair).sum() for pair in both]
    return np.array([[ratio[t + j] if t + j < n else 0.0 for j in range(K)] for t in range(n)])


def capped(*known):
    """What recordings of ratios up to 1 tell of a block: token verification."""
    return np.minimum(1.0, ratios_of(*known))


@pytest.mark.parametrize("case, wrong", [(CASES[0], overlap), (CASES[2], capped)])
def test_control_other_chances_are_detected(case, wrong):
    seed, rule, ends = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "chances_of", wrong)
        wrong = replayed(case_world(case), rule, policy_of("fixed:2"), BUDGET, 2, seed, ends)
        assert off(real_rounds("fixed:2", case)[0], wrong) > 1e-2


# ---- what is recorded


class Dictated(AddressedDraws):
    """Drafts and accepts a given sequence, and notes q of each drafted token."""

    def __init__(self, text):
        super().__init__(0, 0)
        self.text, self.at, self.q = text, 0, {}

    def accept(self, odds, round, slot):
        return True

    def sample(self, p, round, slot, role):
        place = self.at + slot
        token = int(self.text[place]) if place < len(self.text) else 0
        if role == DRAFT:
            self.q[self.at, slot] = float(p[token] / p.sum())
        return token

    def hear(self, r):
        self.at += len(r.verified.token)


def plain_run(target, K, prompt, budget, sequence):
    """Plain decoding and the probability of each of its tokens."""
    p: list[float] = []

    def listen(r):
        p.append(float(r.verified.scores[0, r.verified.token[0]].exp()))

    plain = chain_plan(policies.parse("fixed:0"), K, 0, CostModel.from_ratio(0, K))
    result = decode(target, Silent(), plain, RULE, prompt, budget, END, sequence, listen)
    return result, p


@pytest.mark.parametrize("name", sorted(set(TOYS) - {"prompt_lookup"}))
def test_ratios_equal_those_of_the_engine(name):
    """q of every drafted token along the sequence, p of plain decoding."""
    K, budget, prompt = 4, 14, toy_prompts(3)[2]
    target, drafter = toy_pair(name)
    record_settings = Settings(K, budget, RULE, END, ())
    written = target_sequence(target, record_settings, prompt, 7)
    rows = record_rejection(target, drafter, record_settings, prompt, written)
    plain, p = plain_run(target, K, prompt, budget, 7)
    assert plain.token.tolist() == rows.token.tolist()
    assert len(rows.token) > 4
    seen = []
    for k in range(1, K + 1):
        draws = Dictated(rows.token)
        drive = chain_plan(policies.parse(f"fixed:{k}"), K, 0, CostModel.from_ratio(0, K))
        decode(target, drafter, drive, RULE, prompt, len(rows.token) + K, (), 7, draws.hear, draws)
        for (row, slot), q in draws.q.items():
            if row + slot < len(rows.token):
                ratio = q / p[row + slot]
                near = 1e-5 if ratio <= 1 else 2.0**-11
                assert rows.ratio[row, slot] == pytest.approx(ratio, rel=near), (row, slot)
                seen.append(ratio)
    assert len(seen) > 20
    assert max(seen) > 1
    assert rows.depth.max() == K
    assert not rows.run.any()
    assert rows.rank is None


@pytest.fixture(scope="module")
def recording():
    target, drafter = toy_pair("model")
    record_settings = Settings(4, 12, RULE, END, ())
    return recorded(target, drafter, record_settings, 16, tasks="ab")


def test_recording_round_trips(recording, tmp_path):
    recording.save(tmp_path / "r.parquet")
    loaded = load_trace(tmp_path / "r.parquet")
    assert loaded == recording
    meta = loaded.meta
    assert (meta.rule, meta.temperature, meta.top_p) == ("rejection", 0.9, 0.95)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.integers(0, 2**64 - 1))
def test_drawn_lengths_use_addressed_draws(recording, seed):
    drawn = drawn_trace(recording, seed)
    for s in range(recording.sequences):
        first, end = recording.offset[s : s + 2]
        for t in range(first, end):
            held = 0
            while held < min(recording.depth[t], end - t):
                u = rng.uniform(seed, int(recording.sequence[s]), int(t - first), held, ACCEPT)
                if u >= recording.ratio[t, held]:
                    break
                held += 1
            assert drawn.run[t] == held
    chosen = [3, 1, 7]  # a selection draws what the whole drew
    assert (
        drawn_trace(recording.select(chosen), seed).run.tolist()
        == drawn.select(chosen).run.tolist()
    )


def test_expected_lengths_equal_the_mean_of_many_draws(recording):
    """Means over 4,000 draws within 5 standard errors: one false alarm in a million per figure."""
    runs = np.stack([drawn_trace(recording, seed).run for seed in range(4000)]).astype(float)
    mean, error = expected_accepted_length(recording), runs.std(0) / np.sqrt(len(runs))
    assert (np.abs(runs.mean(0) - mean) <= 5 * error + 1e-12).all()
    held, tried = by_depth(recording)
    counts = np.mean([by_depth(drawn_trace(recording, seed)) for seed in range(1500)], axis=0)
    assert np.allclose(counts[0], held, atol=0.4)
    assert np.allclose(counts[1], tried, atol=0.4)


def test_sweeps_draw_again_for_each_replicate(recording):
    table = sweep(recording, ["fixed:2", "beta_ts", "fixed:0"], 0.2, replicates=3, progress=False)
    assert table.random.all()
    assert table[table.policy == "fixed:2"].accepted.nunique() > 1
    assert table[table.policy == "fixed:0"].accepted.nunique() == 1
    rows = [row for row in compare_drafters({"r": recording}, 0.1) if row.task == "all"]
    assert [row.rule for row in rows] == ["rejection", "block"]
    assert rows[1].expected.value > rows[0].expected.value


@pytest.mark.parametrize("text", ["confidence:0.5", "oracle", "greedy_oracle"])
def test_policies_that_need_exact_replay_are_refused(recording, text):
    with pytest.raises(PolicyError, match="replays in distribution only|nobody can know it"):
        replay(recording, make(text, recording, CostModel.from_ratio(0.1, 4)))


def test_exact_comparison_is_refused(recording):
    with pytest.raises(ValueError, match="replay in distribution, not one by one"):
        rule_of(recording)
    target, drafter = toy_pair("model")
    with pytest.raises(RecordError, match="holds no features"):
        Settings(4, 12, RULE, END, drafter_features(drafter))


def test_truncated_tokens_are_never_sampled():
    """Under the coupled and the rejection rule, top-k leaves as many candidates as it names."""
    target, _ = toy_pair("model")
    for rule in (replace(RULE, top_k=2, top_p=1.0), Rule("coupled", 0.9, 3, 2)):
        ranks: list[int] = []

        def hear(r):
            ranks.append(int((r.verified.scores[0] > -torch.inf).sum()))  # noqa: B023

        drive = chain_plan(policies.parse("fixed:0"), 1, 0, CostModel.from_ratio(0, 1))
        decode(Target(target.decoder), Silent(), drive, rule, [5, 9], 20, (), 0, hear)
        assert ranks == [2] * 20
