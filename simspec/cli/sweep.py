"""simspec sweep: policies, drafters, trees and batches replayed on recordings."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from simspec.cli.options import MOST_BATCH, MOST_CONTEXT
from simspec.cli.replayed import Markdown, Replayed, print_notes, servable_groups
from simspec.output.files import check_output, write_csv
from simspec.output.frames import flat, show
from simspec.settings import Settings, command, option

PANEL = "Decide"

DEFAULT_POLICIES = (
    "fixed:0", "fixed:1", "fixed:2", "fixed:3", "fixed:4", "fixed:6", "fixed:8", "hf_heuristic",
    "beta_ts", "cost_ts", "cali_ts", "confidence:0.5", "entropy", "product", "oracle",
)  # fmt: skip
ONLY = {
    "by": ("gains", "drafters"), "keep": ("gains",), "cluster": ("gains",),
    "against": ("differences",), "nodes": ("trees",), "k": ("trees", "drafters"),
    "batch": ("gains", "trees", "batch"), "context": ("gains", "trees", "batch"),
}  # fmt: skip
"""Options that only some reports read, by field."""


@dataclass(frozen=True)
class Sweep(Settings):
    """Settings of a sweep, see its options."""

    on: Replayed = field(default_factory=Replayed)
    report: Annotated[
        Literal["gains", "oracle", "differences", "drafters", "routers", "trees", "batch"],
        option(
            "gains: what each policy would gain. oracle: its share of the gap from the best fixed "
            "length to the oracle. differences: against one policy, paired by prompt. drafters: "
            "acceptance, cost and best length of each. routers: which of several drafters of "
            "one text drafts each round. trees: chains and trees at equal budgets. "
            "batch: lengths by batch size, and where drafting stops paying."
        ),
    ] = "gains"
    by: Annotated[
        Literal["trace", "task", "prompt"],
        option("gains, drafters: a row for each trace, task or prompt."),
    ] = "trace"
    batch: Annotated[
        tuple[Annotated[int, option("", ge=1, le=MOST_BATCH)], ...],
        option(
            "Sequences decoded together. batch: repeatable, default 1 to 128. gains, trees: one, "
            "of a cost table.",
            "--batch", "-b",
        ),
    ] = ()  # fmt: skip
    context: Annotated[
        tuple[Annotated[int, option("", ge=0, le=MOST_CONTEXT)], ...],
        option("Cached tokens, as --batch; default of batch: each sequence's own."),
    ] = ()
    against: Annotated[
        str, option("differences: the baseline; best_fixed is the best length in hindsight.")
    ] = "best_fixed"
    nodes: Annotated[
        tuple[int, ...], option("trees: node budgets, repeatable; default: 8, 16 and 32.")
    ] = ()
    k: Annotated[
        Annotated[int, option("", ge=1, le=255)] | None,
        option("drafters: longest draft. trees: chain of CAPE; default: chosen.", "--k", "-k"),
    ] = None
    keep: Annotated[
        Path | None, option("gains: keep results in this folder, and go on from those it holds.")
    ] = None
    cluster: Annotated[
        str | None, option("gains: replay on this Dask scheduler's workers, tcp://HOST:PORT.")
    ] = None
    as_markdown: Markdown = False
    out: Annotated[Path | None, option("Write every row to this CSV file.", "--out", "--csv")] = (
        None
    )


@command
def sweep(settings: Sweep) -> None:
    """Replay policies on recordings and print what each would gain, or another --report.

    Example: simspec sweep mine.parquet --policy fixed:3 --policy oracle --cost 0.08

    Example: simspec sweep mine.parquet --report differences --policy cost_ts --against fixed:3

    Example: simspec sweep mine.parquet --report batch -b 1 -b 16 --policy adaptive_verification

    Many settings: simspec sweep --policy=fixed:{0..8} --policy=beta_ts:alpha0={1,2,4,8}
    (the shell expands the braces)
    """
    from simspec.replay.evaluation import covers, covers_text
    from simspec.trace.recordings import check_priced, comparable_costs, cost_notes, locate

    on, unset = settings.on, Sweep()
    for name, reports in ONLY.items():
        if settings.report not in reports and getattr(settings, name) != getattr(unset, name):
            raise ValueError(
                f"--{name} goes with --report {' or '.join(reports)}, not with {settings.report}"
            )
    paths = locate(on.traces or None)
    if settings.out is not None:
        check_output(settings.out, *paths.values(), on.cost or "")
    if settings.report == "batch":
        frames = _batch(settings, paths)
        if settings.out is not None:
            import pandas

            whole = [flat(each).assign(recording=each.attrs["title"]) for each in frames]
            write_csv(pandas.concat(whole), settings.out)
        show(frames, on.as_json, settings.as_markdown, report="batch", seed=on.seed, level=on.level)
        return
    batch, context = _one(settings.batch, "batch"), _one(settings.context, "context")
    costs, notes = comparable_costs(paths, on.cost, batch, context, on.mixed_costs)
    if settings.report != "gains":
        check_priced(costs)
    print_notes(notes)
    table, rows = REPORTS[settings.report](settings, paths, costs)
    if settings.report != "gains":  # whose table has no intervals
        table.attrs["notes"].append(covers_text(costs.values(), on.level))
    table.attrs["notes"] += cost_notes(paths, costs, on.cost)
    about = {"report": settings.report, "seed": on.seed, "level": on.level}
    if settings.out is not None:  # before anything is printed into a pipe that may close
        write_csv(flat(table) if rows is None else rows, settings.out)
    show(table, on.as_json, settings.as_markdown, **about, covers=covers(costs.values()))


def _one(values: Sequence[int], name: str) -> int | None:
    if len(values) > 1:
        raise ValueError(f"--{name} is given {len(values)} times: give one, or --report batch")
    return values[0] if values else None


def _gains(settings: Sweep, paths: Mapping[str, Path], costs: Mapping[str, Any]) -> Any:
    import pandas
    from joblib import cpu_count

    from simspec.replay.evaluation import check_rows, unsettled
    from simspec.replay.sweep import sweep_rows
    from simspec.reports.summaries import gains_frame

    on, policies = settings.on, settings.on.policy
    groups = list(servable_groups(paths, policies or DEFAULT_POLICIES, costs, not policies))
    jobs = 1 if settings.cluster else cpu_count()
    # A list: all input is validated before the first replay.
    results = [
        sweep_rows(
            group, served, {name: costs[name] for name in group}, on.replicates, on.seed,
            settings.by, jobs=jobs, progress=sys.stderr.isatty(), keep=settings.keep,
            cluster=settings.cluster,
        )
        for served, group in groups
    ]  # fmt: skip
    listed = [row for result in results for row in result]
    check_rows(listed, {name: of for _, group in groups for name, of in group.items()}, costs)
    rows = pandas.DataFrame(listed)
    table = gains_frame(rows)
    doubts = dict.fromkeys(filter(None, map(unsettled, costs.values())))
    table.attrs["notes"] += [f"Nothing is settled {doubt}." for doubt in doubts]
    return table, rows


def _oracle(settings: Sweep, paths: Mapping[str, Path], costs: Mapping[str, Any]) -> Any:
    from simspec.reports.oracle_gap import score, score_frame

    on = settings.on
    groups: list[tuple[Any, Any]] = [(None, paths)]
    if on.policy:
        groups = list(servable_groups(paths, on.policy, costs))
    scores = [
        of
        for served, group in groups
        for of in score(group, costs, served, on.replicates, on.seed, level=on.level)
    ]
    return score_frame(scores), None


def _differences(settings: Sweep, paths: Mapping[str, Path], costs: Mapping[str, Any]) -> Any:
    from simspec.reports.comparison import Question, comparison_frame, comparisons, corrected

    on = settings.on
    if not on.policy:
        raise ValueError("no policy is named: give one or more by --policy, such as cost_ts")
    question = Question(on.level, seed=on.seed)
    found = [
        comparison
        for served, group in servable_groups(paths, on.policy, costs)
        for comparison in comparisons(
            group, served, costs, settings.against, on.replicates, question
        )
    ]
    return comparison_frame(corrected(found, question), question), None


def _drafters(settings: Sweep, paths: Mapping[str, Path], costs: Mapping[str, Any]) -> Any:
    from simspec.reports.drafters import ALL, compare_drafters, drafter_frame, with_learned

    on = settings.on
    if on.policy:
        raise ValueError("--policy does not go with --report drafters: it tries fixed lengths")
    rows = compare_drafters(paths, costs, settings.k, on.level, seed=on.seed)
    shown = [row for row in with_learned(rows, paths) if settings.by == "task" or row.task == ALL]
    return drafter_frame(shown, settings.k or 4), None


def _routers(settings: Sweep, paths: Mapping[str, Path], costs: Mapping[str, Any]) -> Any:
    from simspec.reports.routers import compare_routers, router_frame

    on = settings.on
    if len(paths) < 2:
        raise ValueError("--report routers takes recordings of two drafters or more over one text")
    rows = compare_routers(paths, costs, on.policy, on.replicates, on.level, seed=on.seed)
    return router_frame(rows), None


def _trees(settings: Sweep, paths: Mapping[str, Path], costs: Mapping[str, Any]) -> Any:
    from simspec.reports.trees import BUDGETS, compare_trees, tree_frame

    on = settings.on
    rows, notes = compare_trees(
        paths, costs, settings.nodes or BUDGETS, settings.k, on.policy, on.level, seed=on.seed
    )
    print_notes(notes)
    return tree_frame(rows), None


REPORTS = {
    "gains": _gains, "oracle": _oracle, "differences": _differences, "drafters": _drafters,
    "routers": _routers, "trees": _trees,
}  # fmt: skip
"""(the table, every row of a CSV file or None for the table's) by report; all but batch."""


def _batch(settings: Sweep, paths: Mapping[str, Path]) -> list[Any]:
    from simspec.policies import parse_batch
    from simspec.replay.batches import supported_batch_policies
    from simspec.replay.sweep import cost_model
    from simspec.reports.batches import (
        CONVENTIONS,
        BatchPlan,
        batch_frame,
        batch_notes,
        batch_rows,
        crossings,
        speed_frame,
    )
    from simspec.trace.recordings import check_priced, cost_notes, whole_costs
    from simspec.trace.trace import load_trace

    on = settings.on
    costs = whole_costs(paths, on.cost)
    check_priced(costs)
    of_batches = [made for text in on.policy if (made := parse_batch(text)) is not None]
    of_requests = [text for text in on.policy if parse_batch(text) is None]
    groups: list[Any] = [((), {name: load_trace(path) for name, path in paths.items()})]
    if of_requests:
        # what a recording holds is checked here, what is priced below
        groups = list(servable_groups(paths, of_requests, dict.fromkeys(paths, 1.0)))
    frames, speeds = [], []
    for served, group in groups:
        for name, trace in group.items():
            priced = costs[name]
            model = cost_model(priced, trace) if isinstance(priced, float) else priced
            whole, notes = supported_batch_policies(trace, model, of_batches)
            if len(paths) == 1 and notes:
                raise ValueError(notes[0])
            print_notes(f"{name}: {note}" for note in notes)
            plan = BatchPlan(
                settings.batch, settings.context, [*served, *whole],
                on.replicates, on.seed, on.level,
            )  # fmt: skip
            rows = batch_rows(trace, model, plan)
            crossed, below = crossings(trace, model, plan, rows), batch_notes(model, plan)
            frames.append(batch_frame(name, rows, crossed, below))
            speeds += [speed_frame(name, rows)] if rows[0].verified else []
    frames[-1].attrs["notes"] += [*CONVENTIONS, *cost_notes(paths, costs, on.cost)]
    return [*frames, *speeds]
