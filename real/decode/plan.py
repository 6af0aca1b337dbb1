"""Plans: how a round's draft is made; chains, and the plan of each policy."""

from real.decode.features import FeatureReader, feature_grids
from real.decode.protocol import Plan, RoundStart, SequenceStart
from real.decode.tree_drafting import Cape, StaticTree
from real.decode.tree_search import BeamSearch, DynamicTree
from real.decode.verify import DRAFTING, POLICY, VerifyResult
from real.draft import Draft
from real.model.target import TargetOutput
from simspec import CostModel, Policy, Stepper
from simspec.tree.policy import TreePolicy


class ChainDrafting:
    """Asks the policy of `stepper` before every token whether to draft one more."""

    reader: FeatureReader

    def __init__(self, stepper: Stepper):
        self.stepper, self.K = stepper, stepper.K

    def begin(self, start: SequenceStart) -> None:
        """Starts a sequence; PolicyError for a policy that anticipates under the rejection rule."""
        rule, self.drafter = start.rule, start.drafter
        self.stepper.unforeseeing(rule.sampled)
        self.reader = FeatureReader(self.stepper.policy.reads, rule.temperature, self.drafter)
        self.stepper.begin(start.sequence)
        self.reader.begin(start.prefill)

    def draft(self, start: RoundStart) -> Draft:
        """Drafts at most `cap` tokens after `last`, and none after an end token."""
        stepper, reader, clock = self.stepper, self.reader, start.clock
        token, parent = [start.last], [-1]
        while True:
            computed = len(token) - 1
            go, keep = stepper.ask(computed)
            clock.lap(POLICY)
            ended = computed and token[-1] in start.end_tokens
            if not go or computed >= start.cap or ended:
                break
            step = self.drafter.next()
            clock.lap(DRAFTING)
            if step is None:
                break
            token.append(step.token)
            parent.append(step.parent)
            if reader.names:
                stepper.see(computed, reader.read(step, computed)[0])
                clock.lap(POLICY)
        drafted = computed if keep or not computed else computed - 1
        return Draft(token[: drafted + 1], parent[: drafted + 1], computed, drafted)

    def end(self, draft: Draft, verified: VerifyResult, output: TargetOutput) -> float:
        """Passes the round's outcome to the policy."""
        self.reader.learn(output, verified.path)
        self.stepper.end(draft.computed, len(draft.token) - 1, verified.accepted)
        return float("inf")


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
