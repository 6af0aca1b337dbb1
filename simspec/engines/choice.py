"""Choice: the draft length of each batch size, chosen by replay, and what it gains."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simspec.cost.gate import no_interval
from simspec.cost.model import CostModel
from simspec.cost.table import CostTable
from simspec.engines import LONGEST_DRAFT
from simspec.numerics.stats import Estimate, estimate, joined, quotient, stacked
from simspec.policies import parse
from simspec.policies.fixed import fixed
from simspec.policy.policy import Policy
from simspec.policy_kind import DeferredPolicy
from simspec.replay.evaluation import DRAWS, evaluate
from simspec.replay.replay import replay
from simspec.replay.sweep import cost_model
from simspec.trace.recordings import check_priced, comparable_costs, cost_beside, whole_costs
from simspec.trace.trace import Rounds, Trace, load_trace

PAIR = ("target", "drafter", "rule", "temperature", "top_k", "top_p")
"""Fields that recordings have to share before their rounds are counted together."""


@dataclass(frozen=True)
class Evidence:
    """Recordings that share all of PAIR, growing batch sizes, and a cost model for each of them.

    ValueError, one line, where recordings differ in PAIR.
    """

    traces: Mapping[str, Trace]
    batch: tuple[int, ...]
    costs: Mapping[str, tuple[CostModel, ...]]

    def __post_init__(self) -> None:
        if not self.traces:
            raise ValueError("no recording was given, expected at least one")
        (first, one), *others = self.traces.items()
        for name, trace in others:
            for field in PAIR:
                ours, theirs = getattr(one.meta, field), getattr(trace.meta, field)
                if ours != theirs:
                    raise ValueError(
                        f"recordings {first} and {name} differ in {field} ({ours!r} and "
                        f"{theirs!r}): export each pair of target and drafter alone"
                    )

    @property
    def drafter(self) -> str:
        return next(iter(self.traces.values())).meta.drafter

    @property
    def target(self) -> str:
        return next(iter(self.traces.values())).meta.target

    @property
    def K(self) -> int:
        """The longest draft that every recording holds and every cost prices."""
        priced = (cost.K for costs in self.costs.values() for cost in costs)
        return min(*(trace.K for trace in self.traces.values()), *priced)


def gather(
    paths: Mapping[str, Path],
    cost: str | None = None,
    batch: Sequence[int] | None = None,
    context: int | None = None,
) -> tuple[Evidence, list[str]]:
    """(Evidence, notes) of recordings at one cost file or ratio for all, else at each one's own.

    batch: default the batch sizes of the cost tables, else 1. ValueError, one line, for several
    batch sizes where a cost prices one only, and for costs of different origins.
    """
    traces = {name: load_trace(path) for name, path in paths.items()}
    held = whole_costs(paths, cost)
    check_priced(held)
    measured = {of.batch if isinstance(of, CostTable) else (1,) for of in held.values()}
    if not batch and len(measured) > 1:
        raise ValueError(
            f"the cost tables have different batch sizes, {sorted(measured)}: say which with "
            "--batch-sizes"
        )
    sizes, costs = tuple(sorted({*(batch or measured.pop())})), dict[str, tuple[CostModel, ...]]()
    for name, of in held.items():
        if isinstance(of, CostTable):
            costs[name] = tuple(of.at(size, context) for size in sizes)
        elif sizes == (1,) and context is None:
            costs[name] = (cost_model(of, traces[name]),)
        else:
            file = Path(cost or cost_beside(paths[name]) or name).name
            raise ValueError(
                f"batch sizes {', '.join(map(str, sizes))} and context {context} were asked for, "
                f"but the cost {file} prices one of each: measure a cost table, or leave out "
                "--batch-sizes and --context"
            )
    try:
        one = sizes[0] if any(isinstance(of, CostTable) for of in held.values()) else None
        _, notes = comparable_costs(paths, cost, one, context)
    except ValueError as error:
        reason = str(error).partition(", or compare")[0]
        raise ValueError(f"{reason}, or export each recording alone") from None
    return Evidence(traces, sizes, costs), notes


class Schedule(NamedTuple):
    """Draft lengths by batch size; batches of batch[i - 1] + 1 to batch[i] draft length[i] tokens.

    Batch sizes grow; those beyond the last are not covered.
    """

    batch: tuple[int, ...]
    length: tuple[int, ...]

    @property
    def longest(self) -> int:
        """The longest draft of any batch size."""
        return max(self.length)

    @property
    def single(self) -> bool:
        """Whether all batch sizes draft alike."""
        return len(set(self.length)) == 1

    @property
    def steps(self) -> list[tuple[int, int, int]]:
        """[(first batch size, last, length)]: neighbours of equal length are one step."""
        steps: list[tuple[int, int, int]] = []
        for low, high, length in zip((1, *(b + 1 for b in self.batch)), self.batch, self.length):
            if steps and steps[-1][2] == length:
                low = steps.pop()[0]
            steps.append((low, high, length))
        return steps


def cap(batch: int, captured: int, shortest: int = 0) -> int:
    """The longest draft of that batch size: batch (k + 1) is at most the captured rows; 0: any."""
    rows = captured // batch - 1 if captured else LONGEST_DRAFT
    return max(shortest, min(rows, LONGEST_DRAFT))


TIE = 0.01
"""Draft lengths within this share of the best throughput tie, and the smallest wins."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Choice:
    """The name of a policy for each batch size of the evidence, and its modelled gain.

    schedule: draft lengths; None where a policy adapts its own. gains: speedups over plain
    decoding, the sum over prompts of plain seconds / sum of modelled seconds, resampled by prompt
    and by replicate of the costs; fewer than 8 prompts, and costs without spread, have no interval.
    chosen: lengths are the
    best by replay, not given.
    """

    policies: tuple[str, ...]
    schedule: Schedule | None
    gains: tuple[Estimate, ...]
    chosen: bool = False


def best_length(
    seconds: Sequence[float] | Array, longest: int | None = None, shortest: int = 0
) -> int:
    """The smallest length whose throughput is within TIE of the best; seconds[k] for length k.

    Lengths from shortest to longest count. All produce the same tokens, so throughput is 1 / time.
    """
    times = np.asarray(seconds, np.float64)[shortest : None if longest is None else longest + 1]
    return shortest + int(np.flatnonzero(times.min() >= (1 - TIE) * times)[0])


def choose(
    evidence: Evidence, policy: str | None = None, captured: int = 0, shortest: int = 0
) -> Choice:
    """The given policy, or the best fixed length at each batch size by modelled throughput.

    A given fixed length is cut to the captured rows like a chosen one. shortest: of the lengths to
    choose from. ValueError, one line, for a policy that cannot run, and a tree.
    """
    caps = [cap(batch, captured, shortest) for batch in evidence.batch]
    parsed = None if policy is None else parse(policy)
    if parsed is None:
        lengths, wanted = [fixed(k) for k in range(evidence.K + 1)], []
        for i, most in enumerate(caps):
            _, spent = _times(evidence, i, lengths)
            wanted.append(best_length(spent[..., 0].sum(axis=1), most, shortest))
    elif not isinstance(parsed, Policy | DeferredPolicy) or parsed.submitted(evidence.K):
        raise ValueError(f"policy {policy!r} submits trees, expected one of chains: fixed:3")
    elif not (isinstance(parsed, Policy) and parsed.name.startswith("fixed:")):
        adaptive = [parsed] * len(evidence.batch)
        return Choice((parsed.name,) * len(adaptive), None, _gains(evidence, adaptive))
    else:
        assert parsed.K is not None
        wanted = [parsed.K] * len(evidence.batch)
    schedule = Schedule(evidence.batch, tuple(map(min, wanted, caps)))
    lengths = [fixed(k) for k in schedule.length]
    gains = _gains(evidence, lengths)
    return Choice(tuple(p.name for p in lengths), schedule, gains, parsed is None)


def _times(
    evidence: Evidence, size: int, policies: Sequence[Policy | DeferredPolicy]
) -> tuple[Array, Array]:
    """(plain seconds [P], modelled seconds [policies, P, 1 + R]) of all recordings' prompts."""
    plain, spent = [], list[list[Array]]()
    for name, trace in evidence.traces.items():
        random = any(isinstance(policy, Policy) and policy.random for policy in policies)
        cost, draws = evidence.costs[name][size], DRAWS if random or trace.ratio is not None else 1
        found = evaluate(trace, policies, cost, draws)
        plain.append(found.plain)
        spent.append(list(found.seconds.values()))
    return np.concatenate(plain), np.stack([joined(of_policy) for of_policy in zip(*spent)])


def _gains(evidence: Evidence, policies: Sequence[Policy | DeferredPolicy]) -> tuple[Estimate, ...]:
    """The speedup of each batch size's policy."""
    times = [_times(evidence, i, [policy]) for i, policy in enumerate(policies)]
    settled = [not any(map(no_interval, of_size)) for of_size in zip(*evidence.costs.values())]
    return tuple(
        estimate(stacked(plain, spent[0]), quotient, limits)
        for (plain, spent), limits in zip(times, settled)
    )


def _rounds(trace: Trace, k: int) -> Iterator[Rounds]:
    """The rounds of `fixed(k)`: of one replay, of DRAWS under the rejection rule."""
    for seed in range(1 if trace.ratio is None else DRAWS):
        yield replay(trace, fixed(k), seed=seed)


def acceptance_by_depth(traces: Iterable[Trace], k: int) -> list[float]:
    """P(the first i + 1 drafted tokens are accepted), [k], of rounds of `fixed(k)` with a draft.

    A recording of the rejection rule is replayed with 16 draws. ValueError where no round has a
    draft.
    """
    histogram = np.zeros(k + 1, np.int64)
    for rounds in (rounds for trace in traces for rounds in _rounds(trace, k)):
        histogram += np.bincount(rounds.accepted[rounds.drafted > 0], minlength=k + 1)
    if not histogram.any():
        raise ValueError(f"no round of the recordings drafts a token at K = {k}: record others")
    at_least = histogram[::-1].cumsum()[::-1]
    return [float(n / at_least[0]) for n in at_least[1:]]


def accepted_drafts(traces: Iterable[Trace], k: int) -> Estimate:
    """Accepted drafts a round of `fixed(k)`, rounds without a draft counted, with its interval."""
    columns = []
    for trace in traces:
        sums = np.zeros((trace.sequences, 2))
        for rounds in _rounds(trace, k):
            prompt = np.repeat(np.arange(trace.sequences), np.diff(rounds.offset))
            counts = np.column_stack((rounds.accepted, np.ones(len(rounds))))
            np.add.at(sums, prompt, counts)
        columns.append(sums)
    return estimate(np.concatenate(columns), quotient)
