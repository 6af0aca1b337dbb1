"""The commands `simspec engine list`, `run`, `measure` and `compare`."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from real.cli.options import MOST_TOKENS, Json, Seed, show_progress
from simspec.cli.options import (
    MOST_BATCH,
    MOST_PROMPTS,
    MOST_REPEATS,
    MOST_THREADS,
    Markdown,
    at_most,
)

if TYPE_CHECKING:
    from real.engines import EngineSettings
    from real.engines.measure import SpeedupTable
    from real.engines.run import Plan, Prompts

PANEL = "Exchange with engines"
LONGEST = 64

engine = typer.Typer(
    no_args_is_help=True,
    help="Run released engines (vLLM, llama.cpp, OpenVINO GenAI, transformers), measure what their "
    "passes cost, and compare their rounds with the replay.\n\n"
    "Each engine runs in a separate environment, which `make engines` builds.\n\n"
    "Example: simspec engine measure vllm --model models/smollm2/target --out vllm.cost.json; "
    "simspec engine run vllm --model models/smollm2/target --out vllm.rows.jsonl; "
    "simspec engine compare vllm.rows.jsonl --cost vllm.cost.json",
)

Name = Annotated[str, typer.Argument(help="An engine of `simspec engine list`.")]
Model = Annotated[
    Path, typer.Option(help="The target: a folder of safetensors, or a GGUF file for llama.cpp.")
]
Recording = Annotated[
    str, typer.Option(help="Recording whose prompts run; its texts are the target's own.")
]
Draft = Annotated[
    str, typer.Option("--drafter", help="ngram:LEAST,MOST, model:PATH, or none for plain decoding.")
]
Count = Annotated[
    int,
    typer.Option(
        "--prompts", callback=at_most(MOST_PROMPTS), help="Prompts to run, evenly spaced; 0: all."
    ),
]
Budget = Annotated[
    int, typer.Option(callback=at_most(MOST_TOKENS), help="New tokens; 0: as the recording allows.")
]
Part = Annotated[
    str,
    typer.Option(
        help="PART/PARTS: every PARTS-th prompt; 1-3/4: three of four parts. Costs and speedups "
        "need different parts."
    ),
]
Repeats = Annotated[
    int, typer.Option(callback=at_most(MOST_REPEATS), help="Runs of every prompt and length.")
]
Threads = Annotated[
    int, typer.Option(callback=at_most(MOST_THREADS), help="Threads of the engine.")
]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
Fast = Annotated[
    bool,
    typer.Option("--fast", help="The engine's fast settings, where its texts depend on K or not."),
]
Untested = Annotated[
    bool, typer.Option("--untested", help="Accept a version of the engine that was not tested.")
]
SMOLLM2 = "traces/smollm2/greedy/prompt_lookup.parquet"


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
        int, typer.Option(callback=at_most(MOST_PROMPTS), help="Prompts of a timing block.")
    ] = 4,
    concurrent: Annotated[
        int, typer.Option(callback=at_most(MOST_BATCH), help="Requests in flight together.")
    ] = 1,
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
    """
    from real.engines.run import Plan

    ks = tuple(k or (0, 1, 2, 3, 5, 8))
    plan = Plan(ks, repeats, group, concurrent, False, seed)
    settings = engine_settings(model, drafter, max(ks), threads, dtype, not fast, concurrent)
    chosen = prompt_choice(prompts, part, budget)
    ready = start(name, settings, recording, chosen, plan, out, False, untested)
    written = {"path": str(out), "engine": name, "version": ready.version, "device": ready.device}
    print(json.dumps(written) if as_json else f"wrote {out}: {name} {ready.version}")


@engine.command("measure")
def measure(  # noqa: PLR0913
    name: Name,
    model: Model,
    out: Annotated[Path, typer.Option(help="The cost file; its rows stay in OUT.rows.jsonl.")],
    recording: Recording = SMOLLM2,
    drafter: Draft = "ngram:1,3",
    depth: Annotated[
        int, typer.Option("--depth", callback=at_most(LONGEST), help="Longest draft priced.")
    ] = 8,
    prompts: Count = 12,
    part: Part = "1/2",
    budget: Budget = 64,
    repeats: Repeats = 3,
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
    """
    from real.engines.measure import engine_cost
    from real.engines.rows import read_rows
    from real.engines.run import Plan
    from simspec.output.files import check_output

    check_output(out)
    rows = out.with_name(f"{out.name}.rows.jsonl")
    plan = Plan(tuple(range(depth + 1)), repeats, 2, 1, False, seed)
    settings = engine_settings(model, drafter, depth, threads, dtype, not fast, 1)
    start(
        name, settings, recording, prompt_choice(prompts, part, budget), plan, rows, None, untested
    )
    cost = engine_cost(*read_rows(rows), seed=seed)
    cost.to_json(out)
    if as_json:
        print(json.dumps(cost.to_dict()))
        return
    from simspec.output.table import print_table
    from simspec.output.terminal import print_note

    for warning in cost.warnings:
        print_note(warning)
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
    rows: Annotated[Path, typer.Argument(help="Rows of `simspec engine run`.")],
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
    as_json: Json = False,
    markdown: Markdown = False,
) -> None:
    """Compare every pass of a run with its replay, and predicted with measured speedups.

    The exit code is 1 where a pass differs and no near-tie explains it.

    Example: simspec engine compare vllm.rows.jsonl --cost vllm.cost.json
    """
    from real.engines.compare import compare_rows
    from real.engines.measure import speedup_table
    from real.engines.rows import read_rows
    from simspec import CostModel, load_trace
    from simspec.output.table import markdown_table, print_table
    from simspec.output.terminal import print_text
    from simspec.trace.recordings import locate

    trace = None
    if recording is not None:
        (path,) = locate([recording]).values()
        trace = load_trace(path)
    about, held = read_rows(rows)
    result = compare_rows(about, held, trace)
    table = None
    if cost is not None:
        table = speedup_table(about, held, CostModel.from_json(cost), trace)
    if as_json:
        speedups = None if table is None else table.to_dict()
        print(json.dumps({"about": about, "passes": result.to_dict(), "speedups": speedups}))
        raise typer.Exit(0 if result.equal else 1)
    counted = [
        (str(k), *(f"{a}" if a == b else f"{a}, predicted {b}" for a, b in counters.values()))
        for k, counters in result.counters.items()
    ]
    headings = ("K", "passes", "with a draft", "drafted", "accepted")
    title = (
        f"{about['engine']} {about['version']}: {result.requests} requests, {result.passes} "
        f"passes; {len(result.exceptions)} exceptions, "
        f"{len(result.differences) - len(result.exceptions)} near-ties, {result.left_out} left out"
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
            f"{difference.id} K = {difference.k}: {difference.kind} {difference.place}, engine "
            f"{difference.engine}, predicted {difference.predicted}"
        )
    raise typer.Exit(0 if result.equal else 1)


def speedups_shown(table: "SpeedupTable") -> tuple[str, Sequence[str], Sequence[Sequence[str]]]:
    """(title, headings, cells) of predicted and measured speedups."""

    def figure(value: float, interval: Any) -> str:
        return f"{value:.3f}" + (f" [{interval.low:.3f}, {interval.high:.3f}]" if interval else "")

    cells = [
        (
            str(row.k),
            figure(row.predicted, row.predicted_interval),
            figure(row.measured, row.measured_interval),
            f"{row.error:+.1%}",
        )
        for row in table.rows
    ]
    advice = f"K = {table.recommended}" if table.recommended else "do not draft"
    state = "confirmed" if table.confirmed else f"not confirmed: K = {table.best} is faster"
    title = f"recommended: {advice}, {state}; {table.prompts} prompts, {table.repeats} repeats"
    return title, ("K", "predicted [95%]", "measured [95%]", "error"), cells


def engine_settings(
    model: Path, drafter: str, k: int, threads: int, dtype: str, exact: bool, batch: int
) -> "EngineSettings":
    """The settings of these options; ValueError for an invalid drafter."""
    from real.engines import EngineSettings, ModelDraft, NgramDraft

    method, _, rest = drafter.partition(":")
    draft: NgramDraft | ModelDraft | None = None
    sizes = rest.split(",") if rest else ["1", "3"]
    if method == "ngram" and len(sizes) <= 2 and all(s.isdecimal() for s in sizes):
        draft = NgramDraft(max(k, 1), int(sizes[0]), int(sizes[-1]))
    elif method == "model" and rest:
        draft = ModelDraft(max(k, 1), Path(rest))
    elif drafter != "none":
        raise ValueError(f"--drafter is {drafter!r}, expected ngram:1,3, model:PATH or none")
    return EngineSettings(model, draft, threads, dtype, batch=batch, exact=exact)


def prompt_choice(count: int, part: str, budget: int) -> "Prompts":
    """The prompts of these options; ValueError for an invalid part."""
    from real.engines.run import Prompts

    found = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?/(\d{1,3})", part, re.ASCII)
    if not found:
        raise ValueError(f"--part is {part!r}, expected PART/PARTS such as 1/2 or 1-3/4")
    last = None if found[2] is None else int(found[2])
    return Prompts(count, int(found[1]), int(found[3]), budget, last)


def start(  # noqa: PLR0913
    name: str,
    settings: "EngineSettings",
    recording: str,
    chosen: "Prompts",
    plan: "Plan",
    out: Path,
    force: bool | None,
    untested: bool,
) -> Any:
    """Runs the plan in the engine's environment; the errors of its parts, one line each."""
    from dataclasses import replace

    from real.engines import RELEASED, Worker, find_environment
    from real.engines.run import run_on_engine
    from simspec import load_trace
    from simspec.output.files import check_output
    from simspec.trace.recordings import locate

    if name not in RELEASED:
        raise ValueError(f"engine {name!r} is unknown, expected one of {', '.join(RELEASED)}")
    check_output(out)
    adapter = RELEASED[name]
    adapter.start(settings)
    environment = find_environment(adapter, untested)
    (path,) = locate([recording]).values()
    requests = chosen.of(load_trace(path))
    longest = max(len(request.prompt) + request.max_tokens for request in requests)
    settings = replace(settings, longest=longest + 2 * max(plan.ks) + 2)
    with show_progress() as progress:
        return run_on_engine(
            lambda: Worker(adapter, environment), settings, requests, plan, out, force, progress
        )
