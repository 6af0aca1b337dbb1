"""The decode loop: plans, features along a text, engines."""

import inspect
from contextlib import redirect_stdout, suppress
from copy import deepcopy
from io import StringIO
from types import SimpleNamespace

import pytest
import torch
import toy_lm
from toy_lm import TOYS, VOCAB, learn_nothing, toy_cost, toy_pair, toy_target

from real.decode import loop
from real.decode.engine import ENGINES, attach_engine, engines_of, make_passes
from real.decode.loop import along, decode, start
from real.decode.plans import BeamSearch, Cape, DynamicTree, Plan, StaticTree, chain_plan, make_plan
from real.decode.verify import rejection_sample
from real.draft import Drafter, Step
from real.measure.blocks import Undrafted, binary_tree
from real.measure.timing import PLAIN, Job, JobPlan
from real.model.target import Target
from real.sampling import Rule
from simspec import Policy, cli, policies
from simspec.cost.table import load_cost

LOGITS = torch.linspace(0, 1, VOCAB, dtype=torch.float64)
PROMPT = [5, 6]


class Turns(Drafter):
    """Samples its tokens in even rounds, and offers token 7 without a draw in odd ones."""

    name, prefix_only, history_free = "turns", False, False

    def begin(self, target, prompt, prefill, pick):
        self.pick, self.round, self.slot = pick, 0, 0

    def next(self):
        token = 7 if self.round % 2 else self.pick(LOGITS, self.slot)
        self.slot += 1
        return Step(token, self.slot - 1, None if self.round % 2 else LOGITS)

    def catch_up(self, tokens, output, path):
        self.round, self.slot = self.round + 1, 0


def run(policy, drafter, rule=None, budget=9, end_tokens=()):
    policy = policies.parse(policy) if isinstance(policy, str) else policy
    plan = chain_plan(policy, 6, 0, toy_cost())
    rule = rule or Rule()
    return decode(Target(toy_target()), drafter, plan, rule, PROMPT, budget, end_tokens)


def test_verification_receives_the_distributions_of_its_own_round(monkeypatch):
    seen = []

    def noted(rule, logits, draft, *rest):
        seen.append(sorted(draft.q))
        return rejection_sample(rule, logits, draft, *rest)

    monkeypatch.setattr(loop, "rejection_sample", noted)
    result = run("fixed:3", Turns(), Rule("rejection", 1.0, 3), budget=12)
    drafted = result.drafted.tolist()
    assert len(drafted) > 2
    assert seen == [list(range(k)) if r % 2 == 0 else [] for r, k in enumerate(drafted)]


def _two(params, state, slot, features, u):
    return slot < 2, False


class Right(Drafter):
    """Offers the target's own tokens, `plain`."""

    name, has_logits = "right", False

    def __init__(self, plain):
        self.plain = plain

    def begin(self, target, prompt, prefill, pick):
        self.done = self.slot = 0

    def next(self):
        token = self.plain[min(self.done + self.slot, len(self.plain) - 1)]
        self.slot += 1
        return Step(token, self.slot - 1, None)

    def catch_up(self, tokens, output, path):
        self.done, self.slot = self.done + len(tokens), 0


@pytest.fixture(scope="module")
def plain():
    """Twenty greedy tokens of the toy target."""
    return run("fixed:0", Drafter(), budget=20).token.tolist()


def test_a_draft_leaves_room_for_the_target_and_a_dropped_token_is_not_submitted(plain):
    result = run("fixed:6", Right(plain), budget=9)
    assert result.token.tolist() == plain[:9]
    assert result.drafted.tolist() == [6, 1]
    assert result.accepted.tolist() == [6, 1]
    result = run(Policy("drops", _two, learn_nothing), Right(plain), budget=9)
    assert result.token.tolist() == plain[:9]
    assert result.computed.tolist()[:2] == [2, 2]
    assert result.drafted.tolist()[:2] == result.accepted.tolist()[:2] == [1, 1]


@pytest.mark.parametrize("policy", ["fixed:0", "fixed:6"])
def test_decoding_ends_at_the_first_end_token(plain, policy):
    place = next(i for i in range(1, 20) if plain[i] not in plain[:i])
    result = run(policy, Right(plain), budget=20, end_tokens=(plain[place],))
    assert result.token.tolist() == plain[: place + 1]


def test_nothing_is_drafted_behind_a_drafted_end_token(plain):
    place = next(i for i in range(1, 5) if plain[i] not in plain[:i])
    result = run("fixed:6", Right(plain), budget=20, end_tokens=(plain[place],))
    assert result.computed.tolist() == [place + 1]


ALONG, TOKENS = [5, 9, 2, 11], [7, 7, 1, 20, 4]


@pytest.mark.parametrize("name", ["model", "early_exit", "eagle", "prompt_lookup"])
def test_drafter_proposes_what_it_would_after_that_prefix(name):
    decoder, make = toy_lm.toy_target(), toy_lm.TOYS[name]
    drafter = make(decoder, 0)
    walk = along(Target(decoder, drafter.taps), drafter, ALONG, TOKENS)
    for t, last, _ in walk:
        fresh = make(decoder, 0)
        prefix = [*ALONG, *TOKENS[:t]]
        start(Target(decoder, fresh.taps), fresh, prefix)
        assert last == prefix[-1]
        for _ in range(2):
            here, there = drafter.next(), fresh.next()
            assert (here and here.token) == (there and there.token)
    assert t == len(TOKENS) - 1


def test_output_is_the_pass_before_the_last_token():
    decoder = toy_lm.toy_target()
    drafter = toy_lm.TOYS["model"](decoder, 0)
    hidden = [output.hidden[-1] for _, _, output in along(Target(decoder), drafter, ALONG, TOKENS)]
    whole = Target(decoder).prefill([*ALONG, *TOKENS[:-1]]).hidden[len(ALONG) - 2 : -1]
    assert len(hidden) == len(whole)
    for one, other in zip(hidden, whole):
        assert (one - other).abs().max() < 1e-9


PLANS = {
    "chain": lambda: chain_plan(policies.parse("fixed:2"), 4, 0, toy_cost()),
    "cape": lambda: Cape(1, 3),
    "static": lambda: make_plan(policies.parse("static:2x2"), 4, 0, toy_cost()),
    "dynamic": lambda: DynamicTree(2, 3, 4),
    "beam": lambda: BeamSearch(2, 3),
    "undrafted chain": lambda: Undrafted(list(range(-1, 6)), 24),
    "undrafted tree": lambda: Undrafted([-1, *binary_tree(6).parent], 24),
    "jobs": lambda: JobPlan({Job(PLAIN): Undrafted([-1, 0, 0], 24)}, [[Job(PLAIN)]], 8),
}
MEMBERS = {"K", "reader", "begin", "draft", "end"}


def test_protocol_declares_what_the_loop_uses():
    assert {name for name in vars(Plan) if not name.startswith("_")} == MEMBERS


@pytest.mark.parametrize("name", PLANS)
def test_plan_has_every_member(name):
    plan = PLANS[name]()
    assert isinstance(plan.K, int)
    assert "reader" in {*dir(type(plan)), *getattr(type(plan), "__annotations__", {})}
    for method in ("begin", "draft", "end"):
        wanted = list(inspect.signature(getattr(Plan, method)).parameters)
        assert list(inspect.signature(getattr(type(plan), method)).parameters) == wanted


def test_static_policy_has_a_static_tree():
    assert isinstance(PLANS["static"](), StaticTree)


NOT_CAPTURED = ("medusa", "hydra", "glide", "self_skip", "prompt_lookup")


def pair_on(passes, drafter_name):
    """A toy pair on these passes."""
    target, drafter = deepcopy(toy_pair(drafter_name))
    target = Target(target.decoder, drafter.taps, 64, passes)
    attach_engine(passes, target.decoder, drafter)
    return target, drafter


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("drafter_name", sorted(set(TOYS) - {"glide2"}))
def test_results_report_the_engine_of_each_model(drafter_name, engine):
    target, drafter = pair_on(make_passes(engine, 4, 40), drafter_name)
    captured = drafter_name not in NOT_CAPTURED
    expected = engine if captured else "eager"
    assert drafter.passes.name == expected
    assert engines_of(target, drafter) == {"target": engine, "drafter": expected}


@pytest.mark.parametrize(
    ("drafter_name", "expected"),
    [("hydra", "eager"), ("glide", "eager"), ("self_skip", "eager"), ("model", "fast")],
)
def test_measure_prints_the_engine_of_each_model(
    tmp_path, monkeypatch, few_replicates, drafter_name, expected
):
    def load(folder, names, *rest):
        pairs = (zip(("target", "drafter"), pair_on(rest[-1](), name)) for name in names)
        return [SimpleNamespace(**dict(pair)) for pair in pairs]

    monkeypatch.setattr("real.pair.load_pairs", load)
    arguments = ["-k", 1, "--seconds", 0, "--context", 8, "--engine", "fast"]
    arguments += ["--drafter", drafter_name, "--out", tmp_path / "c.json"]
    out = StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        cli.main(["measure", *map(str, arguments)])
    assert load_cost(tmp_path / "c.json").origin.engines == {"target": "fast", "drafter": expected}
