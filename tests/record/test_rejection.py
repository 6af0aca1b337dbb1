"""Recordings of the rejection rule, and what is made of them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from branches import outcomes
from documents import ROOT
from enumerated_world import (
    EXACT,
    HELD,
    World,
    busy,
    off,
    round_distribution,
    rules,
    seeds,
    tree,
    whole,
)
from hypothesis import given
from hypothesis import strategies as st
from shell import refused, simspec
from test_check import quick

from real.decode.verify import block_sample, rejection_sample
from real.model.passes import chain
from real.model.stored_weights import sha256
from real.sampling import Rule
from simspec import CostModel, replay
from simspec.numerics.rng import RESIDUAL
from simspec.policies.fixed import fixed
from simspec.trace.acceptance import expected_accepted_length
from simspec.trace.file import SAMPLED
from simspec.trace.trace import load_trace

pytestmark = pytest.mark.usefixtures("any_seconds")


@pytest.mark.parametrize("sample", [rejection_sample, block_sample])
def test_speculative_sampling_on_a_chain_follows_the_target(sample):
    verified = []

    @HELD
    @given(seeds, rules, st.sampled_from([(5, 2), (4, 2), (3, 3), (3, 2), (2, 3), (4, 3), (5, 1)]))
    def held(seed, rule, size):
        (_, K), world = size, World(seed, size[0])
        found = round_distribution(world, rule, chain(K + 1), K + 1, (), sample, verified=verified)
        assert off(found, world.true(rule, K + 1)) < EXACT

    held()
    assert busy(verified, 20)


def unchained(rule, logits, draft, draws, round, end_tokens):
    """Planted: behind a block that is cut, as behind a token, from max(0, p - q)."""
    found = block_sample(rule, logits, draft, draws, round, end_tokens)
    if found.accepted == len(draft.token) - 1:
        return found
    rest = (rule.probs(logits)[found.accepted] - draft.q[found.accepted]).clamp(min=0)
    return replace(found, token=[*found.token[:-1], draws.sample(rest, round, 9, RESIDUAL)])


def test_control_the_residual_of_a_token_changes_the_distribution():
    world, rule = World(1, 3), Rule("block")
    found = round_distribution(world, rule, chain(4), 4, (), unchained)
    assert off(found, world.true(rule, 4)) > 1e-3


def test_a_block_is_a_chain_and_tokens_nobody_drew_are_certain():
    world, rule = World(1, 3), Rule("block")
    known = world, rule, chain(4), 4
    found = round_distribution(*known, range(4), block_sample)
    assert off(found, world.true(rule, 4)) < EXACT
    assert off(found, round_distribution(*known, range(4))) < EXACT
    with pytest.raises(ValueError, match="verified together on a tree under rule 'block'"):
        round_distribution(world, rule, [-1, 0, 0], 2, (), block_sample)


@pytest.mark.parametrize("end", [(), (0,)])
def test_trees_of_up_to_seven_nodes_partly_drawn_follow_the_target(end):
    """Recursive rejection; some nodes' children nobody drew; an end token stops the round."""
    verified = []

    @HELD
    @given(seeds, rules, st.sampled_from([7, 7, 6, 6, 5, 4, 2]), st.sampled_from([4, 3, 4, 3, 2]))
    def held(seed, rule, nodes, vocab):
        world, (parent, sure) = World(seed, vocab, 0.4), tree(seed, vocab, nodes, 100)
        found = round_distribution(world, rule, parent, 3, sure, ends=end, verified=verified)
        assert off(found, whole(world, rule, 3, end)) < EXACT

    held()
    assert busy(verified, 30)


def test_undrawn_children_are_verified_as_certain():
    """Best tokens first, as a drafter without logits or a deterministic tree submits them: no q,
    and the distribution is still the target's."""
    verified = []

    @HELD
    @given(seeds, rules, st.sampled_from([6, 4, 2, 7]), st.sampled_from([4, 3, 5]))
    def held(seed, rule, nodes, vocab):
        world, (parent, _) = World(seed, vocab), tree(seed, vocab, nodes)
        assert (
            off(
                round_distribution(world, rule, parent, 3, sure=range(8), verified=verified),
                world.true(rule, 3),
            )
            < EXACT
        )

    held()
    assert busy(verified, 6)


@pytest.mark.parametrize("rule", [Rule("rejection", 1.0, 0, 1), Rule("rejection", 0.3, 0, 0, 0.05)])
def test_truncation_to_one_token_is_deterministic(rule):
    world = World(2, 4)
    distribution = round_distribution(world, rule, [-1, 0, 0, 1, 1], 3)
    assert off(distribution, world.true(rule, 3)) < EXACT
    assert max(distribution.values()) == 1


def test_every_outcome_is_enumerated_once():
    walked = list(
        outcomes(
            lambda c: (
                c.sample(torch.tensor([0.5, 0.0, 0.5]), 0, 0, 0),
                c.accept(0.25, 0, 0),
                c.accept(1.0, 0, 0),
            )
        )
    )
    assert sorted(walked) == [
        ((0, False, True), 0.375),
        ((0, True, True), 0.125),
        ((2, False, True), 0.375),
        ((2, True, True), 0.125),
    ]


FOLDER = ROOT / "traces" / "tiny-rejection"
FILES = sorted(FOLDER.glob("*.parquet"))
NAMES = [path.stem for path in FILES]
MOST_BYTES = 300_000


def shifted(trace, ratio):
    """Share of rows whose later slots are the next row's: what a reader of the prefix gives."""
    longest = int(np.median(trace.depth))  # Medusa has fewer heads than K
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    whole = (trace.depth >= longest) & (left > trace.K)
    whole = whole[:-1] & whole[1:]
    here, there = ratio[:-1, 1:longest], ratio[1:, : longest - 1]
    return float(np.isclose(here, there, atol=1e-4).all(axis=1)[whole].mean())


def test_there_are_several_and_they_are_small():
    assert len(FILES) >= 4
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= MOST_BYTES


def test_all_hold_the_same_text():
    traces = [load_trace(path) for path in FILES]
    for trace in traces[1:]:
        assert np.array_equal(trace.token, traces[0].token)
        assert np.array_equal(trace.prompt, traces[0].prompt)
    assert len(traces[0].prompt) > 0


@pytest.mark.parametrize("name", NAMES)
def test_each_is_of_the_rejection_rule_and_its_card_says_so(name):
    trace = load_trace(FOLDER / f"{name}.parquet")
    card = json.loads((FOLDER / f"{name}.json").read_text())
    assert (trace.meta.rule, trace.meta.temperature) == ("rejection", 1.0)
    assert trace.meta.target == "tiny/3f3badec8534"
    expected = expected_accepted_length(trace)
    assert card["mean_accepted_length"] == pytest.approx(float(expected.mean()), abs=1e-4)
    assert card["repeated_8grams"] < 0.2


@pytest.mark.parametrize("name", [name for name in NAMES if name != "prompt_lookup"])
def test_acceptance_of_a_reader_of_the_prefix_moves_with_it(name):
    trace = load_trace(FOLDER / f"{name}.parquet")
    share = shifted(trace, trace.ratio)
    if trace.meta.prefix_only:
        assert share == 1
        assert shifted(trace, trace.ratio[::-1]) < 0.5  # the control
    else:
        assert share < 0.9


@pytest.mark.parametrize("name", NAMES)
def test_a_block_accepts_more_of_what_was_drawn(name):
    """Medusa drafts four tokens at most, and prompt lookup draws none."""
    trace = load_trace(FOLDER / f"{name}.parquet")
    token, block = (expected_accepted_length(trace.under(rule)).mean() for rule in SAMPLED)
    low, high = {"prompt_lookup": (0, 0), "medusa": (0.1, 0.101)}.get(name, (0.15, 0.17))
    assert low - 1e-9 < block / token - 1 < high + 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_replays_accept_what_the_ratios_expect(name):
    """Mean accepted length of the first round of each prompt; 400 draws, six standard errors."""
    trace = load_trace(FOLDER / f"{name}.parquet")
    first = trace.offset[:-1]
    K = np.minimum(trace.depth[first], 3)
    ratio = np.minimum(trace.ratio[first, :3], 1)
    chance = np.where(np.arange(3) < K[:, None], ratio, 0).cumprod(axis=1)
    drawn = np.array([
        [rounds.accepted[rounds.offset[:-1]].sum() for rounds in [replay(trace, fixed(3), seed)]]
        for seed in range(400)
    ])  # fmt: skip
    error = drawn.std() / np.sqrt(400)
    assert abs(drawn.mean() - chance.sum()) < 6 * error + 1e-9


__all__ = ["quick"]


def test_rejection_recordings_from_the_command_line(model_folder, quick):
    """Rejection recordings are swept and described; what cannot replay them fails in one line."""
    drawn = (
        "prompts.jsonl", "--models", "models", "--drafter", "model", "--longest", 400, "--rule",
        "rejection", "-k", 3, "--budget", 8
    )  # fmt: skip
    out, _ = simspec(
        "record", *drawn, "--temperature", 1, "--top-p", 0.9, "--out", "drawn.parquet", "--json",
        cwd=model_folder
    )  # fmt: skip
    assert json.loads(out)["rule"] == "rejection"
    assert json.loads(out)["mean_accepted_length"] > 0
    assert json.loads(out)["drafter_sha256"] == sha256(model_folder / "models" / "model")
    out, _ = simspec(
        "sweep", "drawn.parquet", "--cost", 0.1, "--policy", "fixed:2", "--replicates", 3,
        "--json", cwd=model_folder
    )  # fmt: skip
    assert [row["policy"] for row in json.loads(out)["rows"]] == ["fixed:2"]
    # of the usual policies those that can be answered
    out, _ = simspec("sweep", "drawn.parquet", "--cost", 0.1, "--json", cwd=model_folder)
    assert {"fixed:3", "hf_heuristic:5"} & {row["policy"] for row in json.loads(out)["rows"]}
    out, _ = simspec("report", "--show", "drawn.parquet", "--json", cwd=model_folder)
    (shown,) = json.loads(out)["rows"]
    assert (shown["top_p"], shown["recorded"]) == (0.9, ["ratio"])
    simspec("check", "drawn.parquet", "--json", cwd=model_folder)
    drafters = ("sweep", "--report", "drafters", "drawn.parquet", "--cost", 0.1, "--json")
    out, _ = simspec(*drafters, cwd=model_folder)
    assert [row["rule"] for row in json.loads(out)["rows"]] == ["rejection", "block"]
    assert json.loads(out)["rows"][0]["speedup"]["value"] > 0
    price = "--models", "models", "-k", 2, "--seconds", 0, "--rule", "rejection"
    simspec("measure", *price, "--out", "drawn.cost.json", cwd=model_folder)
    priced = json.loads((model_folder / "drawn.cost.json").read_text())
    assert (priced["name"], len(priced["draft"])) == ("model-rejection", 3)
    for words, *arguments in (
        (
            "replays in distribution only", "sweep", "drawn.parquet", "--policy",
            "confidence:0.5", "--cost", 0.1,
        ),
        ("nobody can know it", "sweep", "drawn.parquet", "--policy", "oracle", "--cost", 0.1),
        (
            "of the rejection rule", "sweep", "drawn.parquet", "--policy", "static:2x1", "--cost",
            0.1,
        ),
        (
            "temperature is -1.0, expected",
            "record",
            *drawn,
            "--temperature",
            -1,
            "--out",
            "x.parquet",
        ),
        ("temperature 0.0", "record", *drawn, "--temperature", 0, "--out", "x.parquet"),
        ("6 prompts are too few", "sweep", "--report", "oracle", "drawn.parquet", "--cost", 0.1),
        ("top_p is 0.0", "record", *drawn, "--top-p", 0, "--out", "x.parquet"),
        ("top_p is 1.5", "record", *drawn, "--top-p", 1.5, "--out", "x.parquet"),
        ("--top-k is -1", "record", *drawn, "--top-k", -1, "--out", "x.parquet"),
        (
            "expected WIDTHxLEVELS", "record", *drawn[:-6], "-k", 3, "--tree", "2by2", "--out",
            "x.parquet",
        ),
        (
            "levels from 1 to K", "record", *drawn[:-6], "-k", 3, "--tree", "2x9", "--out",
            "x.parquet",
        ),
    ):  # fmt: skip
        refused(model_folder, *arguments, words=words)


@pytest.mark.parametrize("rule", SAMPLED)
def test_sampled_recordings_are_run_forced_scored_and_audited(model_folder, rule):
    """Six prompts: too few for the comparison with the recording, prompt by prompt."""
    models = ("--models", "models")
    record = ("prompts.jsonl", *models, "--drafter", "model", "--longest", 400, "-k", 3)
    drawn = ("--rule", rule, "--temperature", 1, "--budget", 16, "--out", "again.parquet")
    simspec("record", *record, *drawn, cwd=model_folder)
    CostModel.from_ratio(0.2, 3).to_json(model_folder / "ratio.json")
    run = ("run", "again.parquet", *models, "--policy", "fixed:2", "--cost", "ratio.json")
    out, _ = simspec(*run, "--save", "run.jsonl", "--json", cwd=model_folder)
    report = json.loads(out)
    assert report["replay_equal"]
    assert report["rule"] == rule
    assert list(report["tests"]["p_values"]) == ["rounds", "accepted lengths", "rounds by prompt"]
    assert report["tests"]["replays"] == 3000
    assert report["committed_per_round"] >= 1
    out, _ = simspec(*run, cwd=model_folder)
    assert "no alarm" in out
    out, _ = simspec("audit", "run.jsonl", *models, "--json", cwd=model_folder)
    assert json.loads(out)["clean"]
    assert json.loads(out)["sampling"]["p_bias"] is not None
    out, _ = simspec("audit", "again.parquet", *models, "--json", cwd=model_folder)
    assert json.loads(out)["clean"]
    force = ("run", "again.parquet", "--teacher-force", *models, "--policy", "beta_ts")
    out, _ = simspec(*force, "--json", cwd=model_folder)
    assert json.loads(out)["sound"]
    assert json.loads(out)["equal"] == json.loads(out)["rounds"] == json.loads(out)["replayed"]
    out, _ = simspec(*force, cwd=model_folder)
    assert "accept as the replay does (100.00%)" in out
    compare = (*run, "--compare", "--repeats", 1, "--rival", "none", "--json")
    out, _ = simspec(*compare, cwd=model_folder)
    plain, row = json.loads(out)["rows"]
    assert row["predicted"]["value"] > 0
    assert plain["equal"] is not None
    assert row["equal"] is None
    for words, *arguments in (
        ("replays in distribution only", *run[:-4], "--policy", "confidence:0.5"),
        ("nobody can know it", *run[:-4], "--policy", "oracle"),
        ("depends on earlier rounds", *run, "--drafter", "lookahead"),
    ):
        refused(model_folder, *arguments, words=words, progress=True)
