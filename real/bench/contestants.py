"""All contestants of a race: the decode loop with drafters and policies, and transformers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from real.bench.hf_generate import hf_contestant, load_hf_model, parse_hf_method
from real.bench.race import (
    PLAIN,
    PLAIN_AGAIN,
    Contestant,
    ContestantError,
    Generate,
    Request,
    absent,
)
from real.decode.engine import make_passes, passes_for_trace
from real.decode.features import required_predictors
from real.decode.loop import decode
from real.decode.plans import make_plan
from real.draft import Drafter, Silent, check_grows
from real.model.passes import EagerPasses
from real.pair import Pair, load_pair
from real.rerun import prompts_of, recorded_rule
from real.sampling import clear_noise_cache
from simspec import CostModel, Policy, Trace, policies
from simspec.tree.tree import TreePolicy


@dataclass(frozen=True)
class Checkpoints:
    """Sources of a race's models, and the settings that load them.

    | field | meaning |
    | --- | --- |
    | models | model folder: target/, and one folder per drafter |
    | device, dtype | of all models |
    | target | a transformers checkpoint in place of `<models>/target` |
    """

    models: Path
    device: str = "cpu"
    dtype: str = "float32"
    target: str | None = None

    def load(self, drafter: str, passes: EagerPasses) -> Pair:
        """The target with this drafter."""
        return load_pair(self.models, drafter, self.device, self.dtype, self.target, passes=passes)

    def load_hf(self, path: str | Path):
        """A checkpoint as transformers' own model."""
        return load_hf_model(path, self.dtype, self.device)


def requests_of(trace: Trace, max_budget: int | None = None) -> list[Request]:
    """The prompts of a recording, each with at most `max_budget` new tokens."""
    budgets = trace.budget if max_budget is None else np.minimum(trace.budget, max_budget)
    columns = prompts_of(trace), budgets.tolist(), trace.sequence.tolist()
    return [Request(*row) for row in zip(*columns)]


def parse_contestant(text: str) -> tuple[str, str]:
    """(drafter, policy) of `drafter=policy`; ContestantError for another form.

    Policies that know the recorded sequence cannot run, and are refused too.
    """
    drafter, equals, policy = text.partition("=")
    if not (drafter and equals and policy):
        raise ContestantError(
            f"contestant {text!r} is no drafter=policy; expected one such as model=fixed:3"
        )
    if policy.partition(":")[0] in policies.CLAIRVOYANT:
        raise ContestantError(
            f"contestant {text!r} knows the recorded sequence and is only replayed; "
            "expected a policy that can run"
        )
    policies.parse(policy)
    return drafter, policy


def load_pairs(
    checkpoints: Checkpoints, trace: Trace, names: Sequence[str], engine: str = "eager"
) -> dict[str, Pair]:
    """Pairs by drafter of the `drafter=policy` names, and that of plain decoding.

    Each has separate passes on that engine, for sequences as long as the trace's; on "strict"
    all are of one width. Plain decoding reads none of the target's layers.
    """
    parsed = [parse_contestant(name) for name in names]
    rows = {
        drafter: max(policies.parse(p).submitted(trace.K) for d, p in parsed if d == drafter)
        for drafter, _ in parsed
    }
    if engine == "strict":
        widest = max(rows.values(), default=0)
        rows = dict.fromkeys(rows, widest)
        plain = passes_for_trace(engine, trace, widest)
    else:
        longest = int((np.diff(trace.prompt_offset) + trace.budget).max())
        plain = make_passes(engine, 1, longest)  # captures nothing wider than its one row
    return {PLAIN: checkpoints.load("prompt_lookup", plain)} | {
        drafter: checkpoints.load(drafter, passes_for_trace(engine, trace, submitted))
        for drafter, submitted in rows.items()
    }


def loop_contestant(
    name: str,
    pair: Pair,
    drafter: Drafter,
    policy: Policy | TreePolicy,
    trace: Trace,
    policy_cost: CostModel,
    seed: int,
) -> Contestant:
    """The decode loop with a drafter and a policy that observes seconds of `policy_cost`.

    Rule, end tokens and the deepest draft are those of the trace.
    ValueError for a policy that needs more than the drafter has: depth, features, trees.
    """
    rule, tree = recorded_rule(trace), _recorded_tree(trace, name)

    def new_plan():
        return make_plan(policy, trace.K, seed, policy_cost, tree)

    plan = new_plan()  # what cannot run is refused before the race
    required_predictors(tuple(policy.reads), drafter)
    if isinstance(policy, TreePolicy) and policy.kind != "cape":
        check_grows(drafter, plan.K)

    def begin() -> Generate:
        plan = new_plan()

        def generate(request: Request) -> tuple[list[int], int]:
            clear_noise_cache()  # contestants share their noise, and each pays for it
            result = decode(
                pair.target,
                drafter,
                plan,
                rule,
                list(request.prompt),
                request.budget,
                tuple(trace.meta.end_tokens),
                request.address,
                exact=False,
            )
            return result.token.tolist(), len(result.position)

        return generate

    plain = name in (PLAIN, PLAIN_AGAIN)
    return Contestant(
        name, begin, not plain, warm=pair.target.passes.warm, writes_plain=plain or not rule.sampled
    )


@dataclass(frozen=True)
class HfModels:
    """Transformers' own copies of the target and of the small model; None where it lacks."""

    target: Any
    assistant: Any
    missing: Path

    @classmethod
    def load(cls, checkpoints: Checkpoints, methods: Sequence[str]) -> "HfModels":
        """The models that these methods need."""
        small = checkpoints.models / "model"
        assisted = any(method.startswith("assisted:") for method in methods)
        found = assisted and (small / "config.json").exists()
        return cls(
            checkpoints.load_hf(checkpoints.target or checkpoints.models / "target"),
            checkpoints.load_hf(small) if found else None,
            small,
        )

    def contestants(self, trace: Trace, methods: Sequence[str]) -> list[Contestant]:
        """Transformers' methods, by the trace's rule.

        A method that lacks its assistant model takes part and fails, so that its row says why.
        """
        contestants = []
        for method in methods:
            if parse_hf_method(method)[0] == "assisted" and self.assistant is None:
                reason = f"{self.missing} holds no small model; expected a checkpoint there"
                contestants.append(absent(method, reason))
            else:
                ends, rule = trace.meta.end_tokens, recorded_rule(trace)
                contestants.append(hf_contestant(method, self.target, self.assistant, ends, rule))
        return contestants


def _recorded_tree(trace: Trace, name: str) -> tuple[int, int] | tuple[()]:
    """Width and depth of the recorded trees, if the contestant drafts by the trace's drafter."""
    return trace.meta.tree if trace.meta.drafter == name.partition("=")[0] else ()


def _made(
    name: str, trace: Trace, policy_costs: Mapping[str, CostModel]
) -> tuple[str, Policy | TreePolicy, CostModel]:
    """(drafter, policy, the costs that it observes: its drafter's, or a ratio of 0.1)."""
    drafter, text = parse_contestant(name)
    cost = policy_costs.get(drafter) or CostModel.from_ratio(0.1, trace.K)
    return drafter, policies.make(text, trace, cost), cost


def check_plans(
    trace: Trace, names: Sequence[str], policy_costs: Mapping[str, CostModel], seed: int
) -> None:
    """ValueError for a policy that only replays, which costs no minute of loading weights."""
    for name in names:
        _, policy, cost = _made(name, trace, policy_costs)
        make_plan(policy, trace.K, seed, cost, _recorded_tree(trace, name))


def our_contestants(
    trace: Trace,
    pairs: Mapping[str, Pair],
    names: Sequence[str],
    policy_costs: Mapping[str, CostModel] | None = None,
    seed: int = 0,
    control: bool = False,
) -> list[Contestant]:
    """Plain decoding and the `drafter=policy` names, by the trace's rule; twice plain to `control`.

    `pairs` come from `load_pairs`; policies observe the cost of their drafter, or a ratio of 0.1.
    ValueError for a contestant that cannot be built.
    """
    ratio = CostModel.from_ratio(0.1, trace.K)
    no_drafts = policies.BUILTIN["fixed"](0)
    contestants = [
        loop_contestant(name, pairs[PLAIN], Silent(), no_drafts, trace, ratio, seed)
        for name in ((PLAIN, PLAIN_AGAIN) if control else (PLAIN,))
    ]
    for name in names:
        drafter, policy, cost = _made(name, trace, policy_costs or {})
        pair = pairs[drafter]
        contestants.append(loop_contestant(name, pair, pair.drafter, policy, trace, cost, seed))
    return contestants
