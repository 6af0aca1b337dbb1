"""The commands `simspec engine list`, `run`, `measure` and `compare`; `server` has its own file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from real.cli.engine_options import (
    SMOLLM2,
    Budget,
    Count,
    Draft,
    Dtype,
    Fast,
    Model,
    Name,
    Part,
    Recording,
    Repeats,
    Threads,
    Untested,
    adapter_of,
    engine_settings,
    prompt_choice,
    start,
    with_policies,
)
from real.cli.engine_server import server
from real.cli.options import Json, Seed
from simspec.cli.options import MOST_BATCH, MOST_PROMPTS, Markdown, at_most

if TYPE_CHECKING:
    from simspec import CostModel, Trace

PANEL = "Exchange with engines"
LONGEST = 64
LENGTHS = 0, 1, 2, 3, 5, 8
GROUP = 4

engine = typer.Typer(
    no_args_is_help=True,
    help="Run released engines (vLLM, llama.cpp, OpenVINO GenAI, transformers), measure what their "
    "passes cost, and compare their rounds with the replay.\n\n"
    "Each engine runs in a separate environment, which `make engines` builds.\n\n"
    "Example: simspec engine measure vllm --model models/smollm2/target --out vllm.cost.json; "
    "simspec engine run vllm --model models/smollm2/target --out vllm.rows.jsonl; "
    "simspec engine compare vllm.rows.jsonl --cost vllm.cost.json",
)


@engine.command("list")
def list_engines(as_json: Json = False) -> None:
    """List the engines, whether they are installed here, and what they can do."""
    from real.engines import RELEASED, find_environment
    from simspec.output.table import print_table

    rows = []
    for name, adapter in RELEASED.items():
        try:
            state = find_environment(adapter).version
        except ValueError as error:
            state = f"not here: {error}"
        rows.append(
            {
                "engine": name,
                "installed": state,
                "tested": " to below ".join(adapter.tested),
                "drafters": ", ".join(adapter.methods),
                "longest draft": adapter.longest_draft,
                "batches": adapter.batches,
            }
        )
    if as_json:
        print(json.dumps(rows))
        return
    headings = list(rows[0]) if rows else ["engine"]
    print_table(headings, [[str(cell) for cell in row.values()] for row in rows])


@engine.command("run")
def run(  # noqa: PLR0913
    name: Name,
    model: Model,
    out: Annotated[Path, typer.Option(help="File of rows, .jsonl; one that exists is continued.")],
    recording: Recording = SMOLLM2,
    drafter: Draft = "ngram:1,3",
    k: Annotated[
        list[int] | None,
        typer.Option("-k", "--k", callback=at_most(LONGEST), help="Draft lengths; 0 is plain."),
    ] = None,
    prompts: Count = 24,
    part: Part = "2/2",
    budget: Budget = 96,
    repeats: Repeats = 3,
    group: Annotated[
        int | None,
        typer.Option(
            callback=at_most(MOST_PROMPTS),
            help="Prompts of a timing block; default: 4, or those in flight together.",
        ),
    ] = None,
    concurrent: Annotated[
        int,
        typer.Option(
            callback=at_most(MOST_BATCH),
            help="Requests in flight together: those of a block start in one pass, and prompts are "
            "rounded up to whole batches.",
        ),
    ] = 1,
    schedule: Annotated[
        Path | None,
        typer.Option(
            help="File of `simspec export vllm`: draft lengths by requests in a pass; runs them "
            "and plain decoding."
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy of `simspec policies`, repeatable: simspec's proposer runs inside vLLM, "
            "for every -k too, and drafts up to the longest of them."
        ),
    ] = None,
    cost: Annotated[
        Path | None, typer.Option(help="Costs that policies plan with: `engine measure`.")
    ] = None,
    threads: Threads = 1,
    dtype: Dtype = "float32",
    fast: Fast = False,
    untested: Untested = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Run prompts at several draft lengths, plain decoding among them, in shuffled blocks.

    Every finished request is kept at once; the same command goes on after a kill.

    Example: simspec engine run vllm --model models/smollm2/target -k 0 -k 2 -k 5 --out rows.jsonl

    A schedule: simspec engine run vllm --model models/smollm2/target --schedule vllm.json
    --concurrent 4 --out rows.jsonl

    Policies: simspec engine run vllm --model models/smollm2/target --policy cost_ts --policy
    beta_ts -k 0 -k 5 --cost vllm.cost.json --out rows.jsonl
    """
    from real.engines.run import Plan
    from real.engines.vllm import with_schedule

    ks = tuple(k or LENGTHS)
    settings = engine_settings(model, drafter, max(ks), threads, dtype, not fast, concurrent)
    if schedule is not None:
        if k:
            raise ValueError("--schedule says which lengths run, and plain decoding: leave -k out")
        settings = with_schedule(settings, schedule)
        assert settings.draft is not None
        ks = (0, settings.draft.k)
    policies = tuple(policy or ())
    if policies:
        settings = with_policies(settings, policies, cost, schedule, seed)
    elif cost is not None:
        raise ValueError("--cost is read by policies: give --policy too")
    if group is None:
        group = concurrent if concurrent > 1 else GROUP
    plan = Plan(ks, repeats, group, concurrent, False, seed, policies)
    chosen = prompt_choice(prompts, part, budget, concurrent if group == concurrent else 1)
    ready = start(name, settings, recording, chosen, plan, out, False, untested)
    written = {"path": str(out), "engine": name, "version": ready.version, "device": ready.device}
    print(json.dumps(written) if as_json else f"wrote {out}: {name} {ready.version}")


engine.command("server")(server)


@engine.command("measure")
def measure(  # noqa: PLR0913
    name: Name,
    model: Model,
    out: Annotated[
        Path,
        typer.Option(help="The cost file; its rows stay in OUT.rows.jsonl, or OUT.bB.rows.jsonl."),
    ],
    recording: Recording = SMOLLM2,
    drafter: Draft = "ngram:1,3",
    depth: Annotated[
        int, typer.Option("--depth", callback=at_most(LONGEST), help="Longest draft priced.")
    ] = 8,
    prompts: Count = 12,
    part: Part = "1/2",
    budget: Budget = 64,
    repeats: Repeats = 3,
    concurrent: Annotated[
        list[int] | None,
        typer.Option(
            callback=at_most(MOST_BATCH),
            help="Requests in a pass; repeated: a cost table by batch size. Prompts are rounded up "
            "to whole batches.",
        ),
    ] = None,
    threads: Threads = 1,
    dtype: Dtype = "float32",
    fast: Fast = False,
    untested: Untested = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Measure what the engine's passes of 0 to DEPTH draft tokens cost, as a cost file.

    Costs are in units of the plain passes timed next to them. If the engine can force drafts, junk
    tokens of every length are verified; otherwise, and with a draft model, whose passes count, its
    own drafts are timed. Every --cost reads the file.

    Example: simspec engine measure vllm --model models/smollm2/target --out vllm.cost.json

    By batch size: simspec engine measure vllm --model models/smollm2/target --concurrent 1
    --concurrent 4 --out vllm.cost.json
    """
    from dataclasses import replace

    from real.engines.measure import cost_table, engine_cost
    from real.engines.rows import read_rows
    from real.engines.run import Plan
    from simspec.cost.table import CostTable
    from simspec.output.files import check_output
    from simspec.output.terminal import print_note

    check_output(out)
    sizes, runs = sorted({*(concurrent or [1])}), []
    settings = engine_settings(model, drafter, depth, threads, dtype, not fast, sizes[-1])
    adapter_of(name, settings)
    for size in sizes:
        alone = sizes == [1]
        rows = out.with_name(
            f"{out.name}.rows.jsonl" if alone else f"{out.name}.b{size}.rows.jsonl"
        )
        plan = Plan(tuple(range(depth + 1)), repeats, 2 if alone else size, size, False, seed)
        chosen = prompt_choice(prompts, part, budget, size)
        of_size = replace(settings, batch=size)
        start(name, of_size, recording, chosen, plan, rows, None, untested)
        runs.append(read_rows(rows))
    cost = engine_cost(*runs[0], seed=seed) if sizes == [1] else cost_table(runs, seed)
    cost.to_json(out)
    if as_json:
        print(json.dumps(cost.to_dict()))
        return
    for warning in cost.warnings:
        print_note(warning)
    for cell in [cost.at(size) for size in sizes] if isinstance(cost, CostTable) else [cost]:
        show_costs(cell, out)


def show_costs(cost: "CostModel", out: Path) -> None:
    """Prints the costs of one batch size."""
    from simspec.output.table import print_table

    assert cost.precision is not None
    widths = cost.precision.half_width["verify"]
    print_table(
        ("draft tokens", "plain passes", "+-", "blocks"),
        [
            (
                str(j),
                f"{seconds / cost.baseline:.3f}",
                "-" if widths[j] is None else f"{widths[j] / cost.baseline:.3f}",
                str(cost.precision.samples["verify"][j]),
            )
            for j, seconds in enumerate(cost.verify.tolist())
        ],
        title=f"{cost.name}: a plain pass takes {1000 * cost.baseline:.2f} ms; wrote {out}",
    )


@engine.command("compare")
def compare(  # noqa: PLR0913
    rows: Annotated[
        list[Path],
        typer.Argument(
            help="Rows of `simspec engine run`; several NAME.rows.jsonl: a line each, with the "
            "costs in NAME.cost.json next to it, or of passes alone where none has one."
        ),
    ],
    cost: Annotated[
        Path | None, typer.Option(help="Costs of `simspec engine measure`: speedups too.")
    ] = None,
    recording: Annotated[
        str | None,
        typer.Option(
            help="Recording of the same prompts: its margins explain near-ties, and it "
            "predicts the drafts of a model."
        ),
    ] = None,
    shown: Annotated[int, typer.Option(help="Exceptions listed.")] = 20,
    plot: Annotated[
        Path | None, typer.Option(help="Write a PNG of several runs: speedups by draft length.")
    ] = None,
    as_json: Json = False,
    markdown: Markdown = False,
) -> None:
    """Compare every pass of a run with its replay, and predicted with measured speedups.

    The exit code is 1 where a pass differs and no near-tie explains it.

    Example: simspec engine compare vllm.rows.jsonl --cost vllm.cost.json

    Example: simspec engine compare vllm.rows.jsonl llamacpp.rows.jsonl
    """
    from real.engines.compare import compare_rows
    from real.engines.measure import speedup_table
    from real.engines.rows import read_rows
    from real.engines.summary import arm_text, length_name, speedups_shown
    from simspec import load_trace
    from simspec.cost.table import load_cost
    from simspec.output.table import markdown_table, print_table
    from simspec.output.terminal import print_text
    from simspec.trace.recordings import locate

    trace = None
    if recording is not None:
        (path,) = locate([recording]).values()
        trace = load_trace(path)
    if len(rows) > 1:
        compare_several(rows, (cost, trace, plot), as_json, markdown)
    if plot is not None:
        raise ValueError("--plot draws several runs: name two or more files of rows")
    about, held = read_rows(rows[0])
    result = compare_rows(about, held, trace)
    table = None
    if cost is not None:
        table = speedup_table(about, held, load_cost(cost), trace)
    if as_json:
        speedups = None if table is None else table.to_dict()
        print(json.dumps({"about": about, "passes": result.to_dict(), "speedups": speedups}))
        raise typer.Exit(0 if result.equal else 1)
    scheduled = bool(about.get("schedule"))
    counted = [
        (
            length_name(k, scheduled),
            *(f"{a}" if a == b else f"{a}, predicted {b}" for a, b in counters.values()),
        )
        for k, counters in result.counters.items()
    ]
    headings = ("K", "passes", "with a draft", "drafted", "accepted")
    title = (
        f"{about['engine']} {about['version']}: {result.requests} requests, {result.passes} "
        f"passes; {len(result.exceptions)} exceptions, {result.explained}, "
        f"{result.left_out} left out"
    )
    parts: list[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = [(title, headings, counted)]
    if table is not None:
        parts.append(speedups_shown(table))
    for heading, names, cells in parts:
        if markdown:
            print(f"{heading}\n\n{markdown_table(names, cells)}\n")
        else:
            print_table(names, cells, title=heading)
    for difference in result.exceptions[: max(shown, 0)]:
        print_text(
            f"{difference.id} {arm_text(difference.k)}: {difference.kind} {difference.place}, "
            f"engine {difference.engine}, predicted {difference.predicted}"
        )
    raise typer.Exit(0 if result.equal else 1)


def compare_several(
    rows: list[Path],
    given: tuple[Path | None, "Trace | None", Path | None],
    as_json: bool,
    markdown: bool,
) -> NoReturn:
    """A line for each run; the exit code is 1 where one has an exception.

    given: the options --cost, --recording and --plot.
    """
    from real.engines.summary import draw_runs, has_cost, passes_table, run_summary, summary_table
    from simspec.output.files import check_output

    cost, trace, plot = given
    if cost is not None:
        raise ValueError("--cost is for one file of rows; several have their costs next to them")
    if plot is not None:
        check_output(plot)
    if not any(has_cost(path) for path in rows):
        if plot is not None:
            raise ValueError(
                "--plot draws speedups: these runs have no NAME.cost.json next to them"
            )
        table, values = passes_table(rows, trace)
        if as_json:
            print(json.dumps(values))
        elif markdown:
            print(table.markdown())
        else:
            table.print()
        raise typer.Exit(0 if all(value["passes"]["equal"] for value in values) else 1)
    summaries = [run_summary(path, trace) for path in rows]
    if plot is not None:
        draw_runs(summaries, plot)
    table = summary_table(summaries)
    if as_json:
        print(json.dumps([summary.to_dict() for summary in summaries]))
    elif markdown:
        print(table.markdown())
    else:
        table.print()
    raise typer.Exit(1 if any(summary.exceptions for summary in summaries) else 0)
