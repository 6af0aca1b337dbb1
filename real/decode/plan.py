"""How a round's draft is made: the protocol, and the plan of each policy."""

from typing import Protocol

from real.decode.cape import Cape
from real.decode.chain import ChainDrafting
from real.decode.features import FeatureReader, feature_grids
from real.decode.static_tree import StaticTree
from real.decode.tree_search import BeamSearch, DynamicTree
from real.decode.verify import PhaseTimer, VerifyResult
from real.draft import Draft, Drafter
from real.model.target import TargetOutput
from real.sampling import AddressedDraws, Rule
from simspec import CostModel, Policy, Stepper
from simspec.tree.policy import TreePolicy


class Plan(Protocol):
    """How each round's draft is made: a chain that a policy extends, or a tree.

    | member | meaning |
    | --- | --- |
    | K | depth of the deepest draft |
    | reader | reads the features of drafted tokens, from `begin` on; None where the plan reads \
none |
    """

    @property
    def K(self) -> int: ...

    @property
    def reader(self) -> FeatureReader | None: ...

    def begin(
        self,
        drafter: Drafter,
        rule: Rule,
        sequence: int,
        prefill: TargetOutput,
        draws: AddressedDraws,
    ) -> None:
        """Starts a sequence; ValueError for a drafter or a rule that the plan does not support."""

    def draft(
        self,
        last: int,
        position: int,
        round: int,
        cap: int,
        end_tokens: tuple[int, ...],
        clock: PhaseTimer,
    ) -> Draft:
        """Drafts at most `cap` deep behind `last`, the last of `position` new tokens."""

    def end(self, draft: Draft, verified: VerifyResult, output: TargetOutput) -> float:
        """Receives the round's outcome; returns its `DecodeResult.gap`."""


def chain_plan(policy: Policy, K: int, seed: int, cost: CostModel) -> ChainDrafting:
    """The plan of a chain policy; `cost` is the cost model that the policy observes."""
    return ChainDrafting(Stepper(policy, K, seed, cost, feature_grids(policy.reads)))


def make_plan(
    policy: Policy | TreePolicy | BeamSearch,
    K: int,
    seed: int,
    cost: CostModel,
    tree: tuple[int, int] | tuple[()] = (),
) -> Plan:
    """The plan of a policy at depth K; `tree` is the width and depth of dynamic trees
    (`TraceMeta.tree`).

    ValueError for a policy that only replays (tree_oracle), TreeError for a tree deeper than K.
    """
    if isinstance(policy, Policy):
        return chain_plan(policy, K, seed, cost)
    if isinstance(policy, BeamSearch):
        return policy
    if policy.kind == "static":
        return StaticTree(policy.tree.within(K))
    if policy.kind == "cape":
        return Cape(policy.sets, policy.longest(K))
    if policy.kind == "dynamic" and tree:
        return DynamicTree(*tree, policy.nodes)
    if policy.kind == "beam" and tree:
        return BeamSearch(*tree)
    raise ValueError(
        f"{policy.name} is only replayed; run a static tree, CAPE's sets, "
        "or a policy with its width and depth recorded"
    )
