"""Measuring what drafting and verification cost on a device."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from real.drafters import BUILTIN
from real.measure import MeasureSettings, max_new_tokens, measure_table
from real.measure.cost_table import check_offered
from real.measure.price import BestLength, Entry, best_length, measure_several, tokens_per_round
from real.model_settings import ModelSettings
from real.pair import check_pair
from real.progress import Progress, quiet, relabel
from real.rerun import recorded_rule
from real.sampling import Rule
from simspec import CostModel, load_trace
from simspec.cost.table import CostTable
from simspec.output.files import check_output
from simspec.trace.recordings import locate

UNFINISHED = ".unfinished.costs.json"
"""File of an unfinished measurement of several drafters, next to the first cost file."""


@dataclass(frozen=True)
class CostRequest:
    """A cost file to measure.

    | field | meaning |
    | --- | --- |
    | out | the file |
    | drafter, rule, K | the drafter's name, the rule, and the longest draft |
    | recording | whose costs they are, to check the target; "": nobody's |
    """

    out: Path
    drafter: str
    rule: Rule
    K: int
    recording: str = ""


def measure_costs(
    out: Path,
    models: ModelSettings,
    drafter: str,
    rule: Rule,
    K: int,
    settings: MeasureSettings,
    progress: Progress = quiet,
) -> CostTable:
    """Measures drafts of up to K tokens, and writes `out`.

    ValueError, before models are loaded, where the drafter's files declare shorter drafts.
    """
    check_output(out)
    _check_depth(K)
    if drafter in BUILTIN:
        folder = models.weights or models.folder / drafter
        check_offered(drafter, BUILTIN[drafter].declared(folder), K)
    pair = models.load(
        drafter, max(K, settings.tree_nodes) + 1, settings.context[-1] + max_new_tokens(K)
    )
    table = measure_table(
        pair.target, pair.drafter, rule, K, settings, relabel(progress, f"measuring {out.stem}")
    )
    table.simplest().to_json(out)
    return table


def measure_together(
    requests: Sequence[CostRequest],
    models: ModelSettings,
    settings: MeasureSettings,
    progress: Progress = quiet,
) -> list[CostModel]:
    """Measures all requests in one sitting, and writes their files.

    Costs stop at the drafter's own maximum draft length. A killed measurement resumes.
    """
    outputs = [request.out for request in requests]
    for i, request in enumerate(requests):
        check_output(request.out, *outputs[:i])
        _check_depth(request.K)
    longest = max(request.K for request in requests)
    rows, capacity = max(longest, settings.tree_nodes) + 1, settings.context[-1]
    names = list(dict.fromkeys(request.drafter for request in requests))
    pairs = dict(zip(names, models.load_all(names, rows, capacity + max_new_tokens(longest))))
    entries = []
    for request in requests:
        pair, trace = pairs[request.drafter], None
        if request.recording:
            trace = load_trace(locate([request.recording])[request.recording])
            check_pair(trace, pair, request.recording)
        K = pair.drafter.longest(request.K)
        entries.append(Entry(pair.target, pair.drafter, request.rule, K, trace))
    unfinished = outputs[0].parent / UNFINISHED
    costs = measure_several(entries, settings, unfinished, progress)
    for cost, out in zip(costs, outputs):
        cost.to_json(out)
    unfinished.unlink(missing_ok=True)
    return costs


def requests_for(recordings: Sequence[str], out: Path | None = None) -> list[CostRequest]:
    """Requests of the costs of recordings: their drafter, rule and K, each file next to its
    recording, or in the folder `out`."""
    requests = []
    for name, path in locate(recordings).items():
        trace = load_trace(path)
        file = (out or path.parent) / f"{path.stem}.cost.json"
        requests.append(CostRequest(file, trace.meta.drafter, recorded_rule(trace), trace.K, name))
    return requests


def best_lengths(request: CostRequest, cost: CostModel) -> list[BestLength]:
    """The best draft length at these costs and the recording's acceptance, or some assumed ones."""
    trace = (
        load_trace(locate([request.recording])[request.recording]) if request.recording else None
    )
    emitted = tokens_per_round(trace, cost.K)
    return [best_length(acceptance, tokens, cost) for acceptance, tokens in emitted.items()]


def _check_depth(K: int) -> None:
    if not 1 <= K <= 255:
        raise ValueError(f"depth is {K}, expected 1 to 255")
