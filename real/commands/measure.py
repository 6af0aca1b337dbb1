"""simspec measure: what drafting and verification cost on a device."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from real.commands.options import DRAFTERS, check_recordings, describe_engines, show_progress
from real.measure import MeasureSettings, max_new_tokens
from real.model_settings import ModelSettings, RuleSettings
from real.progress import Progress, quiet, relabel
from simspec.cli.options import LONGEST_DRAFT
from simspec.output.files import check_output
from simspec.output.frames import DataFrame, frame, show
from simspec.output.terminal import print_text
from simspec.settings import Settings, command, option

if TYPE_CHECKING:
    from real.sampling import Rule
    from simspec import Trace
    from simspec.cost.table import CostTable

PANEL = "Record and train"
SHOWN = 0, 1, 2, 4, 8, 16, 32, 48
"""Lengths of verification that are printed."""
UNFINISHED = ".unfinished.costs.json"
"""File of an unfinished measurement of several drafters, next to the first cost file."""


@dataclass(frozen=True)
class CostSettings(Settings):
    """Whose costs are measured, how, and where they are written."""

    out: Annotated[
        Path | None,
        option(
            "The cost model, .json; a table where several contexts are given; a folder for "
            "several drafters."
        ),
    ] = None
    drafter: Annotated[
        tuple[str, ...], option(f"{DRAFTERS}; repeatable, then --out is a folder; default: model.")
    ] = ()
    rule: Annotated[
        tuple[Literal["greedy", "coupled", "rejection", "block"], ...],
        option("greedy, coupled, rejection or block; repeatable; default: greedy."),
    ] = ()
    recordings: Annotated[
        tuple[str, ...],
        option(
            "A recording, file or bundled name: its drafter, rule and depth; repeatable. Written "
            "next to it, or into the folder --out.",
            "--for",
        ),
    ] = ()
    depth: Annotated[
        int, option("Longest draft to price.", "--depth", "-k", ge=1, le=LONGEST_DRAFT)
    ] = 16
    sizes: MeasureSettings = MeasureSettings()
    models: ModelSettings = ModelSettings()


@dataclass(frozen=True)
class Asked:
    """A cost file to measure; `recording` is whose costs they are, None for nobody's."""

    out: Path
    drafter: str
    rule: "Rule"
    K: int
    recording: "Trace | None" = None


@command
def measure(settings: CostSettings) -> None:
    """Measure what drafting and verification cost on this device, for `simspec sweep --cost`.

    One sequence is timed in the decode loop, all draft lengths in turn, every round between two
    one-row passes: costs are ratios of passes of the same moment. Engines measure those of batches:
    simspec engine measure.

    The last lines say which draft length is best, whether the costs settle it, and which pass
    decides. Exit status 1: the costs, which are written, are not fit to publish: a wider pass is
    faster than a narrower one, or a speedup at them is above tokens a round.

    Several drafters share one sitting: what belongs to the target is timed once for all. Killed,
    it continues.

    Example: simspec measure --drafter early_exit --context 128 --context 512 --out costs.json

    Example: simspec measure --drafter eagle --drafter medusa --rule coupled --threads 1 --out .
    """
    check_recordings(*settings.recordings)
    if settings.recordings and (settings.drafter or settings.rule):
        raise ValueError("--for names recordings, which have a drafter and a rule: drop those")
    if settings.out is None and not settings.recordings:
        raise ValueError("--out is missing: name the cost file, or recordings by --for")
    settings.models.use_threads()
    with show_progress() as progress:
        tables = measure_costs(settings, progress)
    from real.measure.estimate import faster_wider_warning
    from real.measure.price import best_length, tokens_per_round
    from simspec.cost.gate import Claim, PriceError, check_claims, no_interval

    show(cost_frame([table for _, table in tables]))
    warnings = dict.fromkeys(text for _, table in tables for text in table.warnings)
    unfit = any(faster_wider_warning(cost) for _, table in tables for cost in table.known)
    for asked, table in tables:
        cost = table.known[0]
        assert cost.precision is not None
        if alone := no_interval(cost):
            warnings[f"{cost.name} has no intervals: {alone}"] = None
        for acceptance, tokens in tokens_per_round(asked.recording, cost.K).items():
            best = best_length(acceptance, tokens, cost)
            claim = Claim(f"K = {best.K} at acceptance {acceptance}", best.speedup, tokens[best.K])
            try:
                check_claims([claim], cost, cost.name)
            except PriceError as error:
                unfit, warnings[str(error)] = True, None
            else:
                print_text(f"{cost.name}, {best.describe()}")
        precision = cost.precision
        print_text(f"{precision.blocks} timing blocks, {precision.disturbed} left out as disturbed")
    for warning in warnings:
        print_text(f"warning: {warning}")
    files, table = ", ".join(str(asked.out) for asked, _ in tables), tables[0][1]
    engines = table.origin.engines if table.origin else {}
    print_text(f"wrote {files}, measured on {table.device}; {describe_engines(engines)}")
    if unfit:
        raise typer.Exit(1)


def measure_costs(
    settings: CostSettings, progress: Progress = quiet
) -> "list[tuple[Asked, CostTable]]":
    """Measures all costs in one sitting, and writes their files.

    A killed measurement of several drafters, or of recordings, resumes. Costs of several stop at
    each drafter's own longest draft. ValueError where one drafter drafts less, and for a recording
    of another target.
    """
    from real.measure.price import Entry, measure_several
    from real.pair import check_pair

    asked, models, sizes = _asked(settings), settings.models, settings.sizes
    several = len(asked) > 1 or bool(settings.recordings)
    outputs = [each.out for each in asked]
    for i, out in enumerate(outputs):
        check_output(out, *outputs[:i])
    longest = max(each.K for each in asked)
    rows, capacity = max(longest, sizes.tree_nodes) + 1, sizes.context[-1] + max_new_tokens(longest)
    names = list(dict.fromkeys(each.drafter for each in asked))
    pairs = dict(zip(names, models.load_all(names, rows, capacity)))
    entries = []
    for each in asked:
        pair = pairs[each.drafter]
        if each.recording is not None:
            check_pair(each.recording, pair, each.out.name.removesuffix(".cost.json"))
        K = pair.drafter.longest(each.K) if several else each.K
        entries.append(Entry(pair.target, pair.drafter, each.rule, K, each.recording))
    unfinished = outputs[0].parent / UNFINISHED if several else None
    sizes = replace(sizes, seconds=sizes.seconds * len(asked))
    progress = progress if several else relabel(progress, f"measuring {outputs[0].stem}")
    tables = measure_several(entries, sizes, unfinished, progress)
    for table, out in zip(tables, outputs):
        table.simplest().to_json(out)
    if unfinished is not None:
        unfinished.unlink(missing_ok=True)
    return list(zip(asked, tables))


def _asked(settings: CostSettings) -> list[Asked]:
    """The cost files: one for each recording, or for each drafter and rule."""
    from real.rerun import recorded_rule
    from simspec import load_trace
    from simspec.trace.recordings import locate

    out, asked = settings.out, []
    for path in locate(settings.recordings).values() if settings.recordings else ():
        trace = load_trace(path)
        file = (out or path.parent) / f"{path.stem}.cost.json"
        asked.append(Asked(file, trace.meta.drafter, recorded_rule(trace), trace.K, trace))
    if asked:
        return asked
    assert out is not None  # the command checks it
    rules = [RuleSettings(rule).made() for rule in settings.rule or ("greedy",)]
    drafters = settings.drafter or ("model",)
    if len(rules) * len(drafters) == 1:
        return [Asked(out, drafters[0], rules[0], settings.depth)]
    return [
        Asked(out / f"{name}-{rule.name}.cost.json", name, rule, settings.depth)
        for name in drafters
        for rule in rules
    ]


def cost_frame(tables: "list[CostTable]") -> DataFrame:
    """A row of every context: milliseconds of a plain step, and other parts in plain steps."""
    rows = []
    for table in tables:
        for context, cost in zip(table.context, table.known):
            plain = cost.baseline
            row = {"cost": table.name, "context": context}
            row |= {"plain ms": 1e3 * plain, "draft 1": cost.draft[1] / plain}
            row |= {f"verify {j}": cost.verify[j] / plain for j in SHOWN if j <= cost.nodes}
            rows.append(row)
    return frame(rows, names=2)
