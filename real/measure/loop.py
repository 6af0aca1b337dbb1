"""Latencies: what drafting j tokens, verifying j, catching up and one plain step cost, as the decode loop itself spends.

The loop decodes one text at a time. What it spends is measured there, at every context; what a batch adds is measured on bare
batched passes (real/measure/batched.py) and laid on top. Passes are issued kernel by kernel, as the loop does; nothing is captured.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

import numpy as np
import torch

from real.decode.along import start
from real.decode.features import shown
from real.decode.loop import DecodeResult, decode
from real.decode.phase_timer import DRAFTING, OTHER, POLICY, VERIFICATION, PhaseTimer
from real.decode.trees import Static
from real.draft import Draft, Drafter, Silent
from real.measure.batched import OWED, Isolated, shared_layers
from real.model.target import Target
from real.progress import Progress, quiet
from real.provenance import device_name
from real.sampling import AddressedDraws, Rule
from simspec import CostModel, Policy, Stepper, policies
from simspec.cost import next_backlog
from simspec.cost_table import CostTable
from simspec.tree import MOST, full

READ = 4  # what reading features costs is measured on drafts of so many
TIMES = 4  # passes of a job of Isolated in each repeat
WIDE = 1, 4, 8  # rows of a drafter's pass, to price one more
PLAIN, READING = -1, -2


def _now_and_then(params, state, slot, features, u):
    return slot < 1 and state[0] >= params[0], True


def _count(params, state, computed, drafted, accepted, features, cost):
    state[0] = 0.0 if computed > 0 else state[0] + 1.0


def after(owed: int) -> Policy:
    """Drafts one token after every `owed` rounds without a draft: its first steps have rows to catch up."""
    return Policy(f"after:{owed}", _now_and_then, _count, params=(float(owed),), state0=(0.0,))


def longest_run(K: int, rounds: int = 24) -> int:
    """Tokens behind its context that a measured text may have: what caches that do not grow need room for."""
    return 2 * rounds + max(2 * K, 16)


def measure(
    target: Target,
    drafter: Drafter,
    rule: Rule,
    K: int,
    context: int = 128,
    rounds: int = 24,
    repeats: int = 4,
    seed: int = 0,
    progress: Progress = quiet,
    rows: int = 0,
) -> CostModel:
    """A CostModel from runs of the decode loop at every fixed draft length: medians of its own clock, in seconds.

    draft[j] is drafting and asking the policy where nothing is owed, verify[j] the pass over j + 1 rows with the walk
    and the bookkeeping, overhead asking once, catch_up[b] what a draft of one takes longer when b rows are owed,
    baseline a whole round of plain decoding without a drafter. Texts start from `context` random tokens and go on for
    about `rounds` rounds; lengths come in a new random order in each of `repeats`, so that a slow minute of the machine
    falls on all alike. A text's first round counts only for a length that no later one drafted. feature is what a policy that
    reads the confidence pays for each token. For a drafter without logits it is 0, and the second half of the
    `context` tokens repeats the first: one that looks back then has up to `context` / 2 to offer in the first round.

    With `rows` >= K trees are priced too: verify[j] for K < j <= rows is the pass over a tree of j rows that nobody drafted (where the
    drafter shares layers with the target none is done beforehand, as for any tree), and node the slope of drafting time over the 1,
    4 or 8 rows of a pass; 0 for a drafter that grows no tree of two levels. ValueError where the drafter never offers some length.
    """
    return measure_table(
        target, drafter, rule, K, (1,), (context,), rounds, repeats, seed, progress, rows=rows
    ).at()


def measure_table(
    target: Target,
    drafter: Drafter,
    rule: Rule,
    K: int,
    batch: Sequence[int] = (1,),
    context: Sequence[int] = (128,),
    rounds: int = 24,
    repeats: int = 4,
    seed: int = 0,
    progress: Progress = quiet,
    timer: Callable[[], float] = perf_counter,
    rows: int = 0,
) -> CostTable:
    """`measure` at every batch size B and context C, in seconds of a round of the whole batch.

    cell(1, C) is what `measure` finds at C. cell(B, C) = isolated(B, C) + [cell(1, C) - isolated(1, C)], entry by entry for draft,
    verify, catch_up and baseline, the bracket (what the loop does around a pass) not below 0, as catch_up itself; isolated is the
    median of bare passes of B sequences behind C rows each, all B owing the same rows where any are owed. overhead, feature, the
    walk and the bookkeeping stay those of one text: a batched engine's own are not known here. All jobs of all cells share one
    random order in each of `repeats`; the first is not counted. A cell that does not fit the device's memory is None. ValueError
    for sizes below 1, for a drafter without a language model of its own (`lm`) where B > 1, for one that never offers some
    length, and where not even one text fits.
    """
    batches, contexts = _sizes("batch", batch), _sizes("context", context)
    if rows and not K <= rows <= MOST:
        raise ValueError(
            f"rows is {rows}; expected 0, or {K} (the depth) to {MOST} submitted tokens"
        )
    if rows and batches != [1]:
        raise ValueError(
            "trees are priced for one text at a time: measure with batch 1 only, or without rows"
        )
    rng = np.random.default_rng(seed)
    loops = {
        c: _Loop(
            target,
            drafter,
            rule,
            K,
            _prompt(rng, target.decoder.config.vocab, c, drafter),
            rounds,
            rows,
        )
        for c in contexts
    }
    cells: dict[tuple[int, int], Isolated] = {}
    if batches != [1]:
        lm = drafter.lm
        if lm is None:
            raise ValueError(
                f"drafter {drafter.name!r} has no language model of its own to batch: measure it with batch 1 only"
            )
        shared = shared_layers(target, drafter)
        cells = {
            (b, c): Isolated(target.decoder, lm, shared, K, b, c, seed, timer)
            for b in sorted({1, *batches})
            for c in contexts
        }
    jobs = [partial(loop.run, name) for loop in loops.values() for name in loop.jobs]
    jobs += [partial(_try, cells, at, job) for at, cell in cells.items() for job in cell.jobs()]
    done = 0
    for repeat in range(repeats + 1):
        for i in rng.permutation(len(jobs)):
            jobs[i](repeat > 0)  # the first repeat warms caches and allocators
            done += 1
            progress("measuring", done, (repeats + 1) * len(jobs))
        if not repeat:
            target.passes.warm()
    lost = [c for c in contexts if cells and (1, c) not in cells]
    if lost:
        raise ValueError(
            f"one text of context {lost[0]} does not fit the device: measure a shorter one"
        )
    one = {c: loop.cost(f"{drafter.name}-{rule.name}") for c, loop in loops.items()}
    single = len(batches) == len(contexts) == 1

    def cell(b: int, c: int) -> CostModel | None:
        name = one[c].name if single and b == 1 else f"{one[c].name}-b{b}-c{c}"
        if b == 1:
            return replace(one[c], name=name)
        return _batched(one[c], cells[1, c], cells[b, c], name) if (b, c) in cells else None

    return CostTable(
        tuple(batches),
        tuple(contexts),
        [[cell(b, c) for c in contexts] for b in batches],
        f"{drafter.name}-{rule.name}",
    )


def _sizes(name: str, values) -> list[int]:
    found = sorted(set(values))
    if not found or found[0] < 1:
        raise ValueError(f"{name} is {list(values)}, expected sizes of at least 1")
    return found


def _prompt(rng, vocab: int, context: int, drafter: Drafter) -> list[int]:
    different = (context + 1) // 2 if not drafter.has_logits else context
    return np.resize(rng.integers(0, vocab, different), context).tolist()


def _try(cells: dict, at: tuple[int, int], job: tuple, keep: bool) -> None:
    """A job of a cell, which is given up for good when the device has no room for it."""
    if at not in cells:
        return
    try:
        cells[at].run(job, TIMES, keep)
    except torch.OutOfMemoryError:
        del cells[at]


def _batched(one: CostModel, alone: Isolated, many: Isolated, name: str) -> CostModel:
    def on_top(loop, alone, many):
        return many + np.maximum(loop - alone, 0.0)

    (verify, draft, catch_up), (verifies, drafts, caught_up) = alone.seconds(), many.seconds()
    return replace(
        one,
        draft=on_top(one.draft, draft, drafts),
        verify=on_top(one.verify, verify, verifies),
        catch_up=np.maximum(one.catch_up + caught_up - catch_up, 0.0),
        baseline=float(on_top(one.baseline, verify[0], verifies[0])),
        name=name,
    )


class Undrafted:
    """Submits a tree of `nodes` rows, two children a row, that carry the last token and that no drafter made."""

    def __init__(self, nodes: int):
        self.parent = [-1, *((row - 1) // 2 for row in range(1, nodes + 1))]
        self.K = (nodes + 1).bit_length() - 1

    def begin(self, drafter, rule, sequence, prefill, draws) -> None: ...

    def draft(
        self, last: int, position: int, round: int, cap: int, end_tokens, clock: PhaseTimer
    ) -> Draft:
        parent = self.parent if cap >= self.K else [-1]
        return Draft([last] * len(parent), parent, 0, 0)

    def end(self, draft, verified, output) -> float:
        return float("inf")


class _Loop:
    """Runs of the decode loop at one context, and what its clock said in them."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        rule: Rule,
        K: int,
        prompt: list[int],
        rounds: int,
        rows: int = 0,
    ):
        self.target, self.drafter, self.rule, self.K, self.prompt, self.rounds = (
            target,
            drafter,
            rule,
            K,
            prompt,
            rounds,
        )
        self.unit = CostModel.from_ratio(0.1, K)
        self.jobs = {PLAIN: policies.BUILTIN["fixed"](0)} | {
            j: policies.BUILTIN["fixed"](j) for j in range(K + 1)
        }
        self.jobs |= {(b,): after(b) for b in range(1, OWED + 1)}
        if drafter.has_logits:
            self.jobs[READING] = policies.BUILTIN["confidence"](0.0, K=min(READ, K))
        # trees, by what is told apart: how many rows the target passes, or the drafter in its second pass
        self.trees = {("rows", j): Undrafted(j) for j in range(K + 1, rows + 1)}
        if rows and drafter.grows and drafter.max_draft_length != 1 and K > 1:
            self.trees |= {
                ("wide", w): Static(full((w, 1))) for w in WIDE if w <= target.decoder.config.vocab
            }
        self.jobs |= self.trees
        self.treed = defaultdict(list)
        self.plain: list[float] = []
        self.asked: list[float] = []
        self.read: list[tuple[float, int]] = []
        # (computed, rows owed) -> seconds; drafted -> seconds
        self.drafting, self.passing = defaultdict(list), defaultdict(list)
        self.first = defaultdict(list), defaultdict(list)  # the same of first rounds
        self.runs = 0

    def run(self, name, keep: bool) -> None:
        """Decodes one text under the policy of that name; `keep` says whether its seconds count."""
        if name in self.trees and name[0] == "wide":
            return self._grow(name, keep)
        model = Silent() if name == PLAIN else self.drafter
        budget = 2 * self.rounds + (
            2 * max(name, 0) if isinstance(name, int) else 16 if name in self.trees else 0
        )  # up to `longest_run`
        policy = self.jobs[name]
        drive = (
            policy
            if name in self.trees
            else Stepper(policy, self.K, 0, self.unit, shown(policy.reads))
        )
        # a new sequence each time: its noise is drawn anew, as in a run
        result = decode(self.target, model, drive, self.rule, self.prompt, budget, (), self.runs)
        self.runs += 1
        if name in self.trees:
            whole = result.drafted[1:] == result.drafted.max()
            self.treed[name] += (
                result.seconds[1:][whole][:, (VERIFICATION, OTHER)].sum(1).tolist() if keep else []
            )
            return
        for i, (computed, owed, seconds) in enumerate(_rounds(result) if keep else ()):
            if name == PLAIN:
                self.plain += [seconds.sum()] if i else []
            elif name == READING:
                self.read += [(seconds[POLICY] / computed, computed)] if i and computed else []
            else:
                drafting, passing = (self.drafting, self.passing) if i else self.first
                drafting[computed, owed].append(seconds[DRAFTING] + seconds[POLICY])
                passing[computed].append(seconds[VERIFICATION] + seconds[OTHER])
                self.asked += [seconds[POLICY]] if i and not computed else []

    def _grow(self, name, keep: bool) -> None:
        """Drafts the tree of that name for several rounds, of which nothing is verified: nothing is owed either, but in the first."""
        plan, prompt, clock = self.trees[name], self.prompt, PhaseTimer(self.target.decoder.device)
        prefill = start(self.target, self.drafter, prompt)
        draws = AddressedDraws(self.rule.seed, self.runs)
        plan.begin(self.drafter, self.rule, self.runs, prefill, draws)
        for i in range(self.rounds):
            clock.begin()
            plan.draft(prompt[-1], i, i, plan.K, (), clock)
            self.drafter.rollback(0)
        self.runs += 1
        self.treed[name] += [row[DRAFTING] for row in clock.rows[1:]] if keep else []

    def cost(self, name: str) -> CostModel:
        """The medians as a CostModel."""
        overhead = float(np.median(self.asked))
        later = {j for j, _ in self.drafting}
        drafting = self.drafting | {
            at: seconds for at, seconds in self.first[0].items() if at[0] not in later
        }
        passing = self.first[1] | self.passing
        draft = [0.0, *(max(_median(drafting, j) - overhead, 0.0) for j in range(1, self.K + 1))]
        # of the policy's time on a round of j tokens, j + 1 questions are priced elsewhere
        extra = [each - overhead * (j + 1) / j for each, j in self.read]
        return CostModel(
            draft=draft,
            verify=[
                *(_median({(j, 0): passing.get(j, [])}, j) for j in range(self.K + 1)),
                *(float(np.median(self.treed[at])) for at in self.trees if at[0] == "rows"),
            ],
            catch_up=_catch_up(drafting),
            overhead=overhead,
            baseline=float(np.median(self.plain)),
            name=name,
            device=device_name(self.target.decoder.device),
            feature=max(float(np.median(extra)), 0.0) if READING in self.jobs else 0.0,
            node=self._node(),
        )

    def _node(self) -> float:
        wide = {at[1]: float(np.median(self.treed[at])) for at in self.trees if at[0] == "wide"}
        return (
            max(float(np.polyfit(list(wide), list(wide.values()), 1)[0]), 0.0)
            if len(wide) > 1
            else 0.0
        )


def _rounds(result: DecodeResult):
    """(computed, rows owed before it, seconds [4]) of each round."""
    owed = 0
    for computed, accepted, seconds in zip(
        result.computed.tolist(), result.accepted.tolist(), result.seconds
    ):
        yield computed, owed, seconds
        owed = next_backlog(owed, computed, accepted)


def _median(found, j: int) -> float:
    """Median for drafts of j with nothing owed, or of all drafts of j where each followed a full acceptance."""
    every = [s for (computed, _), seconds in found.items() if computed == j for s in seconds]
    if not every:
        raise ValueError(
            f"the drafter never drafted {j} tokens in a round; measure with a smaller depth, or a longer context"
        )
    return float(np.median(found.get((j, 0)) or every))


def _catch_up(drafting) -> list[float]:
    """catch_up[0 .. OWED] from drafts of one token; a backlog that never came up costs as much as the one before."""
    base, longer = _median(drafting, 1), [0.0]
    for owed in range(1, OWED + 1):
        seen = drafting.get((1, owed))
        longer.append(max(float(np.median(seen)) - base, 0.0) if seen else longer[-1])
    return longer
