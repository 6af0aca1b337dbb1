"""Policies on a stream whose task switches: what carried state costs, and how fast it adapts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.model import CostModel
from simspec.numerics.stats import Estimate, ratio, ratio_difference
from simspec.output.table import Table
from simspec.policies import CLAIRVOYANT, make
from simspec.policies.fixed import fixed
from simspec.policy.policy import Policy, PolicyError
from simspec.replay.metrics import replicate_seconds
from simspec.replay.replay import replay
from simspec.trace.acceptance import drawn_trace
from simspec.trace.rounds import committed
from simspec.trace.trace import Trace

DEFAULT_POLICIES = (
    "beta_ts", "cost_ts", "cost_ts:decay=0.95", "ema_tiers", "goodput", "ucb", "exp3",
    "hf_heuristic",
)  # fmt: skip
STARTS = (0, 8, 16, 32, 64, 128)
"""Rounds since a switch at which the bins of the regret begin."""
WITHIN = 0.05

Floats = NDArray[np.float64]
Order = NDArray[np.int64]


@dataclass(frozen=True)
class Drift:
    """One policy on one recording.

    regret: time over that of the best fixed length of the task on the same tokens, less 1.

    | field | meaning |
    | --- | --- |
    | blocks | Estimate of the speedup: state kept, task after task |
    | mixed | the same with tasks in turn |
    | reset | the same with fresh state for each sequence |
    | switching | Estimate of blocks - mixed, paired by prompt |
    | after_switch | regret by rounds since a switch, in bins from STARTS on; blocks |
    | after_start | the same by rounds since the stream's start |
    | after_text | the same since a text's start, where the task goes on: what no switch explains |
    | settled | rounds since a switch from which the regret stays within 5%; None: never |
    | recovered | the same since the stream's start |
    | idle | share of rounds without a draft, where one was possible; blocks |
    | longest_idle | most such rounds in a row |
    """

    recording: str
    policy: str
    blocks: Estimate
    mixed: Estimate
    reset: Estimate
    switching: Estimate
    after_switch: tuple[float | None, ...]
    after_start: tuple[float | None, ...]
    after_text: tuple[float | None, ...]
    settled: int | None
    recovered: int | None
    idle: float
    longest_idle: int


@dataclass(frozen=True)
class _Stream:
    """A replay of sequences in an order: per round its seconds, those of the best fixed length for
    the same tokens, its sequence, the rounds since its task and its text began; and of rounds
    that could draft, whether they do not. priced [S, R]: each sequence's seconds at the replicates.
    """

    seconds: Floats
    priced: Floats
    due: Floats
    sequence: Order
    since: Order
    since_text: Order
    idle: NDArray[np.bool_]


def drift(
    recording: str,
    trace: Trace,
    policies: Sequence[Any],
    cost: CostModel,
    orders: int = 8,
    seed: int = 0,
) -> list[Drift]:
    """Each policy on streams of the recording's sequences, averaged over orders.

    Order i rotates the tasks by i and permutes the prompts of each; its draws have seed + i. A
    state is kept or reset whatever the policy's own scope is. ValueError for fewer than two
    tasks or 8 prompts, and for oracles, whose plan is of one order.
    """
    tasks = list(dict.fromkeys(trace.meta.tasks))
    if len(tasks) < 2:
        raise ValueError(f"{recording} holds one task, {tasks[0]}: nothing switches, record more")
    if not 1 <= orders <= 1000:
        raise ValueError(f"orders is {orders}, expected 1 to 1000")
    trace = drawn_trace(trace, seed)
    resolved = []
    for policy in policies:
        made = make(policy, trace, cost)
        if not isinstance(made, Policy) or made.name in CLAIRVOYANT:
            raise PolicyError(f"{made.name} cannot follow a stream: expected a policy of chains")
        resolved.append(made)
    pace = best_pace(trace, cost)
    return [_drift(recording, trace, policy, cost, pace, orders, seed) for policy in resolved]


def best_pace(trace: Trace, cost: CostModel) -> Floats:
    """float64[N]: seconds of each row's token at the best fixed length of its sequence's task.

    A round's time is shared equally by the tokens that it commits.
    """
    task, pace = np.array(trace.meta.tasks), np.zeros(trace.rows)
    lengths = [replay(trace, fixed(k), 0, cost) for k in range(trace.K + 1)]
    sequence = np.repeat(np.arange(trace.sequences), np.diff(trace.offset))
    shared = []
    for rounds in lengths:
        tokens = committed(rounds, trace)
        shared.append(np.repeat(cost.seconds(rounds) / tokens, tokens))
    for name in dict.fromkeys(trace.meta.tasks):
        of = (task == name)[sequence]
        pace[of] = min((seconds[of] for seconds in shared), key=np.sum)
    return pace


def blocks_order(tasks: Sequence[str], turn: int, seed: int) -> Order:
    """Sequences task by task, the tasks rotated by `turn`, prompts permuted."""
    return np.concatenate(_groups(tasks, turn, seed))


def mixed_order(tasks: Sequence[str], turn: int, seed: int) -> Order:
    """The same prompts with the tasks in turn, as long as each lasts."""
    groups = _groups(tasks, turn, seed)
    rank = np.concatenate([(np.arange(len(g)) + 0.5) / len(g) for g in groups])
    return np.concatenate(groups)[np.argsort(rank, kind="stable")]


def _groups(tasks: Sequence[str], turn: int, seed: int) -> list[Order]:
    random, names = np.random.default_rng((seed, turn)), list(dict.fromkeys(tasks))
    names = names[turn % len(names) :] + names[: turn % len(names)]
    array = np.array(tasks)
    return [random.permutation(np.flatnonzero(array == name)) for name in names]


def _drift(
    recording: str,
    trace: Trace,
    policy: Policy,
    cost: CostModel,
    pace: Floats,
    orders: int,
    seed: int,
) -> Drift:
    tasks = trace.meta.tasks
    shape = trace.sequences, 1 + len(cost.replicates)
    times = {name: np.zeros(shape) for name in ("blocks", "mixed", "reset")}
    spent, due = np.zeros((3, len(STARTS))), np.zeros((3, len(STARTS)))
    idle = rounds = longest = 0
    for i in range(orders):
        in_blocks, mixed = blocks_order(tasks, i, seed), mixed_order(tasks, i, seed)
        for name, order, scope in (
            ("blocks", in_blocks, "stream"),
            ("mixed", mixed, "stream"),
            ("reset", in_blocks, "sequence"),
        ):
            stream = _stream((trace, pace), order, replace(policy, scope=scope), cost, seed + i)
            measured = np.bincount(stream.sequence, stream.seconds, trace.sequences)
            times[name][:, 0] += measured / orders
            times[name][order, 1:] += stream.priced / orders
            if name != "blocks":
                continue
            start = np.array(tasks)[stream.sequence] == tasks[int(order[0])]
            later = stream.since > stream.since_text
            for row, (of, since) in enumerate(
                ((~start, stream.since), (start, stream.since), (later, stream.since_text))
            ):
                place = np.searchsorted(STARTS, since[of], side="right") - 1
                spent[row] += np.bincount(place, stream.seconds[of], len(STARTS))
                due[row] += np.bincount(place, stream.due[of], len(STARTS))
            idle, rounds = idle + int(stream.idle.sum()), rounds + len(stream.idle)
            longest = max(longest, longest_run(stream.idle))
    plain = np.diff(trace.offset) * cost.baseline
    regrets = [
        tuple(float(s / d - 1) if d > 0 else None for s, d in zip(*row)) for row in zip(spent, due)
    ]
    speedup = {name: ratio(plain, seconds, seed=seed) for name, seconds in times.items()}
    return Drift(
        recording,
        policy.name,
        speedup["blocks"],
        speedup["mixed"],
        speedup["reset"],
        ratio_difference(plain, times["blocks"], plain, times["mixed"], seed=seed),
        *(regrets[0], regrets[1], regrets[2]),
        settled(regrets[0]),
        settled(regrets[1]),
        idle / rounds,
        longest,
    )


def settled(regret: Sequence[float | None]) -> int | None:
    """The first of STARTS from which every regret is within WITHIN; None: there is none."""
    found = None
    for start, value in reversed(list(zip(STARTS, regret))):
        if value is not None and value > WITHIN:
            break
        found = start if value is not None else found
    return found


def longest_run(flags: NDArray[np.bool_]) -> int:
    """The most true values in a row."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(np.int64), [0]))))
    return int(np.max(edges[1::2] - edges[::2], initial=0))


def _stream(
    paced: tuple[Trace, Floats], order: Order, policy: Policy, cost: CostModel, seed: int
) -> _Stream:
    trace, pace = paced
    stream = trace.select(order)
    rows = np.concatenate([np.arange(trace.offset[s], trace.offset[s + 1]) for s in order])
    elapsed = np.concatenate(([0.0], np.cumsum(pace[rows])))
    rounds = replay(stream, policy, seed, cost)
    local = np.repeat(np.arange(len(order)), np.diff(rounds.offset))
    tasks = np.array(stream.meta.tasks)
    begins = np.concatenate(([True], tasks[1:] != tasks[:-1]))
    block = np.maximum.accumulate(np.where(begins, rounds.offset[:-1], 0))
    left = stream.budget[local] - (rounds.row - stream.offset[local]) - 1
    possible = np.minimum(left, stream.depth[rounds.row]) > 0
    charged = cost.reading(policy.reads)
    return _Stream(
        charged.seconds(rounds),
        replicate_seconds(rounds, charged),
        elapsed[rounds.row + committed(rounds, stream)] - elapsed[rounds.row],
        order[local],
        np.arange(len(rounds)) - block[local],
        np.arange(len(rounds)) - rounds.offset[local],
        rounds.computed[possible] == 0,
    )


def drift_tables(rows: Sequence[Drift], covered: str) -> list[Table]:
    """Speedups and spells without drafts, then the regret since switches and new texts."""
    headings = (
        "recording", "policy", "task by task", "in turn", "reset", "by task - in turn [95%]",
        "settled", "from start", "idle", "longest idle",
    )  # fmt: skip
    cells = [
        (
            row.recording, row.policy,
            *(f"{value.value:.3f}" for value in (row.blocks, row.mixed, row.reset)),
            row.switching.text("+.3f"),
            *("-" if count is None else str(count) for count in (row.settled, row.recovered)),
            f"{row.idle:.1%}", str(row.longest_idle),
        )
        for row in rows
    ]  # fmt: skip
    legend = (
        f"settled: rounds since a switch from which the time is within {WITHIN:.0%} of the task's "
        "best fixed length; from start: since a cold start; -: never. idle: rounds without a draft."
    )
    later = [*(f"{a}-{b - 1}" for a, b in zip(STARTS, STARTS[1:])), f"{STARTS[-1]}-"]
    regret = [
        (row.recording, row.policy, since, *("-" if r is None else f"{r:+.1%}" for r in bins))
        for row in rows
        for since, bins in (("switch", row.after_switch), ("text", row.after_text))
    ]
    title = (
        "Time over the task's best fixed length, by rounds since a switch, or since a text of the "
        "same task began"
    )
    optional = "from start", "longest idle", "reset"
    return [
        Table(headings, cells, names=2, notes=(legend, covered), optional=optional),
        Table(("recording", "policy", "since", *later), regret, names=3, title=title),
    ]
