"""Drafters compared by their recordings: acceptance by depth, cost, best K, training."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.cost.gate import no_interval
from simspec.cost.model import CostModel
from simspec.numerics.formulas import depthwise_committed
from simspec.numerics.stats import MIN_PROMPTS, Estimate, estimate, quotient, stacked
from simspec.output.files import read_json
from simspec.output.frames import frame
from simspec.policies.fixed import fixed
from simspec.replay.evaluation import DRAWS, evaluate, priced_recordings
from simspec.trace.acceptance import by_depth
from simspec.trace.file import SAMPLED
from simspec.trace.recordings import CHECKOUT
from simspec.trace.trace import Trace

ALL = "all"
Array = NDArray[np.float64]


@dataclass(frozen=True)
class DrafterRow:
    """A recording's drafter on one task; low and high are NaN where there is no interval.

    Reference: GLIDE with a CAPE, section 5.1, by depth.
    """

    # recording, drafter, rule: what was recorded
    recording: str
    drafter: str
    rule: str
    task: str  # the task; ALL: every prompt of the recording
    # prompts, tokens: counts
    prompts: int
    tokens: int
    # (Estimate,) [K]: n-alpha, see `by_depth`; NaN where no draft reached the depth
    alpha: tuple[Estimate, ...]
    c: float  # draft[1] / baseline: the first draft step over a plain step of the target
    marginal: float  # (draft[K] - draft[1]) / ((K - 1) baseline): a further step; NaN at K = 1
    best_k: int  # the fixed K of the least modelled time in hindsight; 0: plain decoding
    speedup: Estimate  # Estimate at best_k: replayed, at the cost model's seconds
    # Estimate at best_k: depthwise_committed(alpha) / (1 + draft[best_k] / baseline)
    expected: Estimate
    note: str  # why intervals are missing, or ''
    # tokens that the drafter learned, by its card; None where no card says it
    learned: int | None = None


def compare_drafters(
    traces: Mapping[str, Trace | Path | str],
    costs: Any,
    K: int | None = None,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> list[DrafterRow]:
    """A DrafterRow per recording and task, ALL first; intervals by bootstrap over prompts and, of
    speedups, over the replicates of the costs.

    traces {name: Trace or path}; costs as for `score`; K the longest draft, default each
    recording's. best_k is chosen once on all prompts. Fewer than 8 prompts have no interval, nor
    has a depth that some resample never reaches. A recording with ratios above 1 has the rows of
    rejection and of block. ValueError for what cannot run.
    """
    options = {"level": level, "resamples": resamples, "seed": seed}
    rows = []
    for name, trace, cost in _by_rule(priced_recordings(traces, costs)):
        longest = trace.K if K is None else min(K, trace.K)
        lengths = [fixed(k) for k in range(longest + 1)]
        found = evaluate(trace, lengths, cost, 1 if trace.ratio is None else DRAWS, seed)
        times = np.stack(list(found.seconds.values()), axis=1)
        accepted, tried = (counts[:, :longest] for counts in by_depth(trace))
        tasks = np.array(trace.task, dtype=object)
        for task in (ALL, *dict.fromkeys(trace.task)):
            chosen = np.ones(len(tasks), bool) if task == ALL else tasks == task
            parts = accepted[chosen], tried[chosen], times[chosen], found.tokens[chosen]
            figures = _figures(*parts, cost, options)
            rows.append(DrafterRow(name, trace.meta.drafter, trace.meta.rule, task, **figures))
    return rows


def _by_rule(
    recordings: Iterable[tuple[str, Trace, CostModel]],
) -> Iterator[tuple[str, Trace, CostModel]]:
    """The recordings; one with ratios above 1 under each rule that they tell."""
    for name, trace, cost in recordings:
        ruled = map(trace.under, SAMPLED) if trace.meta.largest_ratio > 1 else [trace]
        yield from ((name, each, cost) for each in ruled)


def _figures(
    accepted: Array, tried: Array, times: Array, tokens: NDArray[np.int64], cost: CostModel,
    options: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    K, steps = tried.shape[1], cost.draft / cost.baseline
    best = int(times[..., 0].sum(axis=0).argmin())

    def expected(totals: Array) -> Array:
        # A depth that no draft reached adds nothing.
        alphas = np.nan_to_num(totals[..., :best] / totals[..., best:])
        return depthwise_committed(alphas) / (1 + steps[best])

    unsettled, alone = no_interval(cost), options | {"limits": not no_interval(cost)}
    plain, counts = stacked(tokens * cost.baseline, times[:, best]), zip(accepted.T, tried.T)
    depths = np.concatenate((accepted[:, :best], tried[:, :best]), axis=1)
    few = f"{len(tokens)} prompts, an interval takes {MIN_PROMPTS}"
    return {
        "prompts": len(tokens),
        "tokens": int(tokens.sum()),
        "alpha": tuple(estimate(np.stack(p, -1), quotient, **options) for p in counts),
        "c": float(steps[1]),
        "marginal": float((steps[K] - steps[1]) / (K - 1)) if K > 1 else np.nan,
        "best_k": best,
        "speedup": estimate(plain, quotient, **alone),
        "expected": estimate(depths, expected, **alone),
        "note": few if len(tokens) < MIN_PROMPTS else unsettled,
    }


def drafter_frame(rows: Sequence[DrafterRow], depth: int = 4) -> Any:
    """The rows, acceptance by depth as a1, a2 .. to `depth`; `learned` where a card tells it."""
    alphas = [f"a{j}" for j in range(1, depth + 1)]
    names = ("recording", "drafter", "rule", "task")
    figures = ("prompts", *alphas, "c", "marginal", "best_k", "speedup", "expected")
    if any(row.learned is not None for row in rows):
        figures = (*figures, "learned")
    cells = [vars(row) | dict.fromkeys(alphas) | dict(zip(alphas, row.alpha)) for row in rows]
    few = {row.note: None for row in rows if row.task == ALL and row.note}
    legend = (
        "a1, a2 ..: acceptance by depth, given the tokens before. "
        "c, marginal: the first draft step and a further one, in plain steps.",
        "speedup: at the best K in hindsight, replayed at the recording's costs; "
        "expected: by GLIDE's formula from a1, a2 ..",
    )
    return frame(
        cells, (*names, *figures), names=4, notes=(*legend, *few),
        formats=dict.fromkeys(("c", "marginal", *alphas), ".2f") | {"learned": ","},
        optional=("expected", "marginal", *alphas[:0:-1], "c", "prompts"),
    )  # fmt: skip


def bundled_cards(recording: Path) -> Path | None:
    """The folder with the cards of a checkout's recording; None for another one."""
    path = recording.resolve()
    if path.parent == CHECKOUT:
        return CHECKOUT.parent / "real" / "tiny"
    return CHECKOUT / "smollm2" / "drafters" if CHECKOUT / "smollm2" in path.parents else None


def with_learned(rows: Sequence[DrafterRow], paths: Mapping[str, Path]) -> list[DrafterRow]:
    """The rows with the tokens that bundled drafters learned, by their cards."""
    return [
        replace(row, learned=tokens_learned(bundled_cards(path), str(path), row.drafter))
        for row in rows
        for path in [paths[row.recording]]
    ]


def tokens_learned(folder: Path | None, recording: str, drafter: str) -> int | None:
    """The tokens that a drafter learned, repetitions included, by its card; None without one.

    folder None: there are no cards.

    The first that exists of FOLDER/NAME/card.json and FOLDER/NAME.json, where NAME is the
    recording's file without its ending, then the drafter's name. None too for a card without
    training. ValueError, one line, for a damaged card, or one of another drafter.
    """
    if folder is None:
        return None
    for name in (Path(recording).stem, drafter):
        for path in (folder / name / "card.json", folder / f"{name}.json"):
            if path.is_file():
                return read_json(path, lambda data: _tokens(data, drafter), "drafter's card")
    return None


def _tokens(data: Any, drafter: str) -> int | None:
    if not isinstance(data, dict):
        raise ValueError(f"a {type(data).__name__}, expected an object")
    if data.get("drafter") != drafter:
        raise ValueError(f"drafter is {data.get('drafter')!r}, expected {drafter!r}")
    tokens = data.get("tokens")
    if tokens is None:
        return None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise ValueError(f"tokens is {tokens!r}, expected a number of tokens")
    return tokens
