"""Plans: how each round's draft is made; chains, static trees, CAPE and searched trees."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from real.decode.features import GRIDS, FeatureReader, feature_grids
from real.decode.verify import DRAFTING, POLICY, PhaseTimer, VerifyResult
from real.draft import Draft, Drafter, Step, check_grows
from real.model.target import TargetOutput
from real.sampling import AddressedDraws, Rule
from simspec import CostModel, Policy, Stepper
from simspec.numerics.rng import DRAFT
from simspec.trace.quantization import decode, table
from simspec.tree.replay import sibling_counts
from simspec.tree.tree import MAX_NODES, MAX_RANKS, MAX_SUBMITTED, Tree, TreeError, TreePolicy


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """A sequence that a plan will draft for."""

    drafter: Drafter
    rule: Rule
    sequence: int  # address of its draws
    prefill: TargetOutput  # the target's pass over all tokens of the prompt but the last
    draws: AddressedDraws  # of the rejection rule


@dataclass(frozen=True, slots=True)
class RoundStart:
    """A round that a plan drafts for."""

    last: int  # the last committed token
    position: int  # new tokens committed before the round
    round: int  # its index in the sequence
    cap: int  # most tokens of a path of the draft
    end_tokens: tuple[int, ...]  # a chain drafts nothing after them; () under the rejection rule
    clock: PhaseTimer  # times phases of the round


class Plan(Protocol):
    """How each round's draft is made: a chain that a policy extends, or a tree.

    K is the depth of the deepest draft; reader reads features of drafted tokens from `begin` on.
    """

    @property
    def K(self) -> int: ...

    @property
    def reader(self) -> FeatureReader | None: ...

    def begin(self, start: SequenceStart) -> None:
        """Starts a sequence; ValueError for a drafter or a rule that the plan does not support."""

    def draft(self, start: RoundStart) -> Draft:
        """Drafts at most `cap` deep after `last`."""

    def end(self, draft: Draft, verified: VerifyResult, output: TargetOutput) -> float:
        """Receives the round's outcome; returns its `DecodeResult.gap`."""


INFINITE_GAP = float("inf")
"""The gap of a choice without an alternative."""


def top_tokens(scores: Tensor, width: int) -> tuple[Tensor, list[float]]:
    """The `width` best tokens int64 `[n, width]` of scores `[n, vocab]`, and each row's smallest
    gap.

    Ties go to the smaller token. The gap is the smallest between neighbors among the best
    `width` + 1 scores. TreeError where `width` exceeds the vocabulary.
    """
    vocab = scores.shape[-1]
    if width > vocab:
        raise TreeError(
            f"tree: {width} children of a node are too wide for a vocabulary of {vocab}; "
            "expected at most as many"
        )
    value, token = scores.topk(min(width + 1, vocab), -1)
    # topk does not specify which of equal scores it takes
    if width < vocab and (value[:, width - 1] == value[:, width]).any():
        ranked = scores.sort(dim=-1, descending=True, stable=True)
        value, token = (t[:, : width + 1] for t in ranked)
    else:
        token, by = token.sort(-1)
        value, by = value.gather(-1, by).sort(dim=-1, descending=True, stable=True)
        token = token.gather(-1, by)
    gap = (value[:, :-1] - value[:, 1:]).nan_to_num(nan=INFINITE_GAP, posinf=INFINITE_GAP)
    smallest = gap.amin(-1).tolist() if gap.shape[1] else [INFINITE_GAP] * len(gap)
    return token[:, :width], smallest


@dataclass(frozen=True)
class CandidateTree:
    """All rows of a search; row 0 is the last committed token."""

    token: list[int]
    parent: list[int]
    depth: list[int]
    score: list[float]  # cumulative score: sum of the drafter's log q along the row's path
    last: list[int]  # the best rows of the last level by score
    grown: list[int]  # rows that the drafter has passed, in its order
    gap: float  # smallest between scores that decided which rows exist and which were expanded

    def order(self) -> list[int]:
        """Rows 1 .. by descending score; ties go to the smaller depth, then the smaller row."""
        return sorted(
            range(1, len(self.token)), key=lambda row: (-self.score[row], self.depth[row], row)
        )

    def ends(self) -> list[int]:
        """Rows of the hypotheses with which a beam search of this width ends, in ascending
        order."""
        rows = set()
        for row in self.last:
            while row:
                rows.add(row)
                row = self.parent[row]
        return sorted(rows)


def search_tree(
    drafter: Drafter, rule: Rule, sequence: int, position: int, last: int, width: int, levels: int
) -> CandidateTree | None:
    """Expands `levels` levels: the `width` best children of row 0, then of the `width` best rows of
    each level.

    Children are the best by the rule's ranking, noise included; under the rejection rule nothing is
    drawn. A row's cumulative score sums log q at the rule's temperature, without noise, top-k or
    top-p. None where the drafter proposes nothing.
    """
    token, parent, depth, score, number = [last], [-1], [0], [0.0], {-1: -1}
    rows, gap = [0], INFINITE_GAP
    for level in range(levels):
        logits = drafter.grow([token[row] for row in rows], [number[parent[row]] for row in rows])
        if logits is None:
            return None
        for row in rows:
            number[row] = len(number) - 1
        children, gaps = top_tokens(
            rule.ranking(logits, sequence, [position + level] * len(rows)), width
        )
        log_q = (logits.double() / rule.temperature).log_softmax(-1).gather(-1, children)
        first = len(token)
        for row, tokens, added in zip(rows, children.tolist(), log_q.tolist()):
            token += tokens
            parent += [row] * width
            depth += [level + 1] * width
            score += [score[row] + value for value in added]
        ranked = sorted(range(first, len(token)), key=lambda row: -score[row])
        rows = ranked[:width]
        edge = score[rows[-1]] - score[ranked[width]] if len(ranked) > width else INFINITE_GAP
        gap = min(gap, *gaps, edge)
    return CandidateTree(token, parent, depth, score, rows, list(number)[1:], gap)


class SearchedTree(ABC):
    """Base of the plans that submit some rows of a `CandidateTree` of that width and depth.

    Under the rejection rule, too, its children are chosen, not drawn: `Draft.q` stays empty, and
    `real.decode.verify.rejection_sample` accepts child i with probability p(x_i) / (1 - p(x_1) - ..
    - p(x_{i-1})). So a node is accepted exactly with the probability that the target draws it.
    EAGLE-2 as released does so too: `qx = 1.0` in eagle/model/utils.py of SafeAILab/EAGLE.
    """

    reader = None
    nodes: int
    """Most rows submitted in a round; 0: plain decoding."""

    def __init__(self, width: int, levels: int):
        for name, value, largest in (("width", width, MAX_RANKS), ("levels", levels, 255)):
            if type(value) is not int or not 1 <= value <= largest:
                raise TreeError(
                    f"tree: {name} is {value!r}; expected an integer from 1 to {largest}"
                )
        self.width, self.K = width, levels

    def begin(self, start: SequenceStart) -> None:
        """Starts a sequence; ValueError for a drafter that grows no such tree."""
        self.drafter = check_grows(start.drafter, self.K)
        self.rule, self.sequence = start.rule, start.sequence

    def draft(self, start: RoundStart) -> Draft:
        """The chosen rows of a search after `last`, at most `cap` deep."""
        levels, self.gap = min(start.cap, self.K) if self.nodes else 0, INFINITE_GAP
        tree = None
        if levels:
            behind = start.position, start.last
            tree = search_tree(self.drafter, self.rule, self.sequence, *behind, self.width, levels)
        if tree is None:
            start.clock.lap(DRAFTING)
            return Draft([start.last], [-1], 0, 0)
        rows = [0, *self._chosen(tree)]
        place = {row: i for i, row in enumerate(rows)}
        start.clock.lap(DRAFTING)
        token = [tree.token[row] for row in rows]
        parent = [-1, *(place[tree.parent[row]] for row in rows[1:])]
        grown = tuple(place.get(row, -1) for row in tree.grown)
        return Draft(token, parent, levels, 0, grown=grown)

    def end(self, draft: Draft, verified: VerifyResult, output: TargetOutput) -> float:
        """The smallest gap of the round's decisions."""
        return self.gap

    @abstractmethod
    def _chosen(self, tree: CandidateTree) -> list[int]:
        """Rows to submit, parents before children; sets `gap`."""


class BeamSearch(SearchedTree):
    """The `width` final hypotheses of `levels` tokens, as a tree of their prefixes (GLIDE, Table
    3)."""

    def __init__(self, width: int, levels: int):
        super().__init__(width, levels)
        self.nodes = width * levels
        if self.nodes > MAX_NODES:
            raise TreeError(
                f"tree: {width} beams of {levels} tokens may have {self.nodes} nodes, over budget; "
                f"expected at most {MAX_NODES}"
            )

    def _chosen(self, tree: CandidateTree) -> list[int]:
        self.gap = tree.gap
        return tree.ends()


class DynamicTree(SearchedTree):
    """The first `nodes` rows by score of a search of that width and depth: EAGLE-2's reranked
    tree."""

    def __init__(self, width: int, levels: int, nodes: int):
        super().__init__(width, levels)
        self.nodes = nodes

    def _chosen(self, tree: CandidateTree) -> list[int]:
        order = tree.order()
        edge = [tree.score[row] for row in order[self.nodes - 1 : self.nodes + 1]]
        self.gap = min(tree.gap, edge[0] - edge[1] if len(edge) > 1 else INFINITE_GAP)
        return order[: self.nodes]


class StaticTree:
    """One tree shape for every round, cut at the round's cap; a node of rank r carries its parent's
    (r + 1)-th best token.

    Best is by the rule's scores at that position. Under the rejection rule a node's children are
    drawn from q without replacement, in row order; ranks are ignored, and children for which q
    has no token left are omitted. The gap is the smallest between scores that decided on
    children of the committed path.
    """

    reader = None

    def __init__(self, tree: Tree):
        self.tree, self.K = tree, tree.levels
        self.cuts = [tree.cut(cap) for cap in range(self.K + 1)]

    def begin(self, start: SequenceStart) -> None:
        """Starts a sequence; ValueError for a drafter that grows no such tree."""
        self.drafter = check_grows(start.drafter, self.K)
        self.rule, self.sequence, self.draws = start.rule, start.sequence, start.draws

    def draft(self, start: RoundStart) -> Draft:
        """The tree after `last`, level by level; drafted end tokens are expanded like any
        other."""
        tree, position = self.cuts[min(start.cap, self.K)], start.position
        children: dict[int, list[int]] = {}
        for node, above in enumerate(tree.parent):
            children.setdefault(above, []).append(node + 1)
        token, number, rows = {0: start.last}, {-1: -1}, [0] if len(tree) else []
        parent, rank, levels = (-1, *tree.parent), (0, *tree.rank), 0
        gap: dict[int, float] = {}
        drawn: dict[int, Tensor] = {}
        while rows:
            logits = self.drafter.grow(
                [token[row] for row in rows], [number[parent[row]] for row in rows]
            )
            if logits is None:
                break
            for row in rows:
                number[row] = len(number) - 1
            if self.rule.sampled:
                for row, q in zip(rows, self.rule.probs(logits)):
                    drawn[row] = q
                    below = children[row]
                    token |= dict(zip(below, _drawn(q.clone(), self.draws, start.round, below)))
            else:
                scores = self.rule.scores(logits, self.sequence, [position + levels] * len(rows))
                width = 1 + max(rank[child] for row in rows for child in children[row])
                best, gaps = top_tokens(scores, width)
                for row, ranked, smallest in zip(rows, best.tolist(), gaps):
                    gap[row] = smallest
                    token |= {child: ranked[rank[child]] for child in children[row]}
            rows = [
                child
                for row in rows
                for child in children[row]
                if child in children and child in token
            ]
            levels += 1
        place = {row: i for i, row in enumerate(sorted(token))}
        self.gap = {place[row]: smallest for row, smallest in gap.items()}
        start.clock.lap(DRAFTING)
        return Draft(
            token=[token[row] for row in place],
            parent=[-1, *(place[parent[row]] for row in place if row)],
            computed=levels,
            line=0,
            q={place[row]: q for row, q in drawn.items()},
            grown=tuple(place[row] for row in list(number)[1:]),
        )

    def end(self, draft: Draft, verified: VerifyResult, output: TargetOutput) -> float:
        """The smallest gap of the round's decisions."""
        return _least_gap(self.gap, verified.path)


def _drawn(left: Tensor, draws: AddressedDraws, round: int, rows: Sequence[int]) -> Iterator[int]:
    """Tokens for `rows`, drawn without replacement from `left [vocab]`, which loses them."""
    for row in rows:
        if not bool((left > 0).any()):
            return
        token = draws.sample(left, round, row, DRAFT)
        left[token] = 0
        yield token


def _least_gap(gap: Mapping[int, float], path: Sequence[int]) -> float:
    """The smallest gap of those rows of a committed path that have one."""
    return min((gap[row] for row in path if row in gap), default=INFINITE_GAP)


class Cape:
    """A chain of at most `k` tokens, then siblings of each: `simspec.tree.replay.sibling_counts`.

    The confidence that sets the count is quantized as in a recording. At most 32 tokens are
    submitted: the whole chain, then siblings from slot 0 on. Under the rejection rule siblings
    are drawn from q without replacement. The gap is as of `real.decode.tree_drafting.StaticTree`.
    """

    reader: FeatureReader
    gap: dict[int, float]  # of the round's sibling sets, by slot

    def __init__(self, sets: str | int = "section", k: int = MAX_SUBMITTED):
        TreePolicy("cape", "cape", k=k, sets=sets)  # validates both
        self.sets, self.K = sets, k

    def begin(self, start: SequenceStart) -> None:
        """Starts a sequence; ValueError for a drafter without logits."""
        drafter, rule = start.drafter, start.rule
        if self.sets != 0 and not drafter.has_logits:
            raise ValueError(
                f"drafter {drafter.name!r} has no logits, so no next best tokens; "
                "use a policy of chains"
            )
        self.drafter, self.rule = drafter, rule
        self.sequence, self.draws = start.sequence, start.draws
        names = ("confidence",) if isinstance(self.sets, str) else ()
        self.reader = FeatureReader(names, rule.temperature, drafter)
        self.reader.begin(start.prefill)

    def draft(self, start: RoundStart) -> Draft:
        """The chain after `last`, then its sets."""
        token, confidence, clock = [start.last], [], start.clock
        steps: list[Step] = []
        grid = table(GRIDS["confidence"])
        longest = min(start.cap, self.K)
        while len(steps) < longest and not (steps and token[-1] in start.end_tokens):
            step = self.drafter.next()
            clock.lap(DRAFTING)
            if step is None:
                break
            token.append(step.token)
            if self.reader.names:
                confidence.append(decode(self.reader.read(step, len(steps))[0], grid)[0])
                clock.lap(POLICY)
            steps.append(step)
        k = len(steps)
        values = np.array(confidence) if self.reader.names else np.zeros(k)
        counts = sibling_counts(values, self.sets)
        parent, left, self.gap = list(range(-1, k)), MAX_SUBMITTED - k, {}
        for slot, (step, wanted) in enumerate(zip(steps, counts.tolist())):
            width = min(wanted, left)
            left -= width
            if width:
                siblings = self._siblings(step, slot, start, width, len(token))
                token += siblings
                parent += [slot] * len(siblings)
        clock.lap(DRAFTING)
        return Draft(token, parent, k, k)

    def _siblings(
        self, step: Step, slot: int, start: RoundStart, width: int, row: int
    ) -> list[int]:
        """Up to `width` tokens other than the step's own, for rows `row`, `row` + 1, ..."""
        assert step.logits is not None  # checked by begin
        if not self.rule.sampled:
            scores = self.rule.scores(step.logits[None], self.sequence, [start.position + slot])
            ranked, gap = top_tokens(scores, width + 1)
            self.gap[slot] = gap[0]
            return [token for token in ranked[0].tolist() if token != step.token][:width]
        left = self.rule.probs(step.logits[None])[0]
        left[step.token] = 0
        return list(_drawn(left, self.draws, start.round, range(row, row + width)))

    def end(self, draft: Draft, verified: VerifyResult, output: TargetOutput) -> float:
        """The smallest gap of the round's decisions."""
        self.reader.learn(output, verified.path)
        return _least_gap(self.gap, verified.path)


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
        return INFINITE_GAP


def chain_plan(policy: Policy, K: int, seed: int, cost: CostModel) -> ChainDrafting:
    """The plan of a chain policy; `cost` is the cost model that the policy observes."""
    return ChainDrafting(Stepper(policy, K, seed, cost, feature_grids(policy.reads)))


def make_plan(
    policy: Policy | TreePolicy,
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
