"""The commands `simspec engine list`, `measure`, `run` and `compare`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from real.commands.options import MOST_TOKENS, show_progress
from simspec.cli.options import MOST_BATCH, MOST_PROMPTS, MOST_REPEATS, MOST_THREADS
from simspec.output.files import check_output, write_json
from simspec.output.frames import frame, show
from simspec.output.terminal import print_note, print_text
from simspec.settings import Settings, argument, command, option

if TYPE_CHECKING:
    from real.engines import Engine, EngineSettings, Request
    from real.engines.rows import Plan
    from real.engines.shapes import Shape
    from simspec import CostModel
    from simspec.cost.table import CostTable

PANEL = "Engines"
LONGEST, GROUP = 64, 4
LENGTHS = 0, 1, 2, 3, 5, 8
BLOCKS_A_REPEAT, REPEATS_A_START = 4, 4
"""Timing blocks of a shape for each of --repeats; repeats for each engine start."""
SHOWN = 20
"""Exceptions that `compare` lists."""
SMOLLM2 = "traces/smollm2/greedy/prompt_lookup.parquet"
Length = Annotated[int, option("", ge=0, le=LONGEST)]
InFlight = Annotated[int, option("", ge=1, le=MOST_BATCH)]
Json = Annotated[bool, option("Print one JSON object on stdout.", "--json")]
Markdown = Annotated[bool, option("Print Markdown instead of a table.", "--markdown")]
Name = Annotated[str, argument("An engine of `simspec engine list`.")]
Model = Annotated[
    Path, option("The target: a folder of safetensors, or a GGUF file for llama.cpp.")
]
ShapeModel = Annotated[
    Path,
    option(
        "The target: a folder of safetensors, or a GGUF file for llama.cpp. For vLLM also a "
        "config.json without weights, or llama-3.1-8b and other names."
    ),
]
Recording = Annotated[str, option("Recording whose prompts run; its texts are the target's own.")]
Drafter = Annotated[
    str,
    option(
        "ngram:LEAST,MOST, none for plain decoding, or the path of a draft model; for vLLM also of "
        "a head of `simspec export drafter`, or in simspec's proposer suffix or eagle:FOLDER."
    ),
]
Repeats = Annotated[int, option("Runs of every prompt and length.", ge=1, le=MOST_REPEATS)]
Prompts = Annotated[
    int, option("Prompts to run, evenly spaced; 0: all.", "--prompts", ge=0, le=MOST_PROMPTS)
]
Part = Annotated[
    str,
    option(
        "PART/PARTS: every PARTS-th prompt; 1-3/4: three of four parts. Costs and speedups need "
        "different parts."
    ),
]
Budget = Annotated[int, option("New tokens; 0: as the recording allows.", ge=0, le=MOST_TOKENS)]

engine = typer.Typer(
    no_args_is_help=True,
    help="Run released engines (vLLM, llama.cpp, transformers), measure what their "
    "passes cost, and compare their rounds with the replay.\n\n"
    "Each engine runs in a separate environment, which `make engines` builds.\n\n"
    "Example: simspec engine measure vllm --model models/smollm2/target --out vllm.cost.json; "
    "simspec engine run vllm --model models/smollm2/target --out vllm.rows.jsonl; "
    "simspec engine compare vllm.rows.jsonl --cost vllm.cost.json",
)


@dataclass(frozen=True)
class EngineOptions(Settings):
    """How an engine runs, as `measure`, `run` and `advise` share it."""

    threads: Annotated[int, option("Threads of the engine.", ge=1, le=MOST_THREADS)] = 1
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], option("Of weights.")] = "float32"
    fast: Annotated[
        bool,
        option(
            "The engine's fast settings, where its texts depend on K or not; of a shape in vLLM "
            "asynchronous scheduling.",
            "--fast",
        ),
    ] = False
    as_json: Json = False

    def engine_settings(self, model: Path, drafter: str, k: int, batch: int) -> "EngineSettings":
        """The engine's settings; ValueError for an invalid drafter, or no model."""
        from real.engines.adapter import EngineSettings, draft_of

        if not model.exists():
            raise ValueError(
                f"--model {model} is not here, expected a folder of safetensors or a GGUF"
            )
        draft = draft_of(drafter, k)
        return EngineSettings(
            model, draft, self.threads, self.dtype, batch=batch, exact=not self.fast
        )


@dataclass(frozen=True)
class Measure(Settings):
    """Costs of an engine's passes."""

    engine: Name
    model: ShapeModel
    out: Annotated[
        Path,
        option(
            "The cost file; its rows stay in OUT.rows.jsonl, or OUT.bB.rows.jsonl, steps of a "
            "config.json in OUT.steps.json: killed, it continues there."
        ),
    ]
    recording: Annotated[
        str,
        option(
            "Recording whose prompts run; or random:1024,4096, prompts of these lengths, which a "
            "config.json always has."
        ),
    ] = SMOLLM2
    drafter: Annotated[
        str,
        option(
            "As of `engine run`; with random prompts ngram, none, eagle3 or the drafter's own "
            "config.json."
        ),
    ] = "ngram:1,3"
    depth: Annotated[int, option("Longest draft priced.", ge=1, le=LONGEST)] = 8
    prompts: Prompts = 12
    part: Part = "1/2"
    budget: Budget = 64
    repeats: Annotated[
        int,
        option(
            "Runs of every prompt and length; of a shape four blocks of steps, and on a CPU four "
            "repeats an engine start, since starts differ by some percent.",
            ge=1,
            le=MOST_REPEATS,
        ),
    ] = 3
    concurrent: Annotated[
        tuple[InFlight, ...],
        option(
            "Requests in a pass; repeated: a cost table by batch size. Prompts are rounded up to "
            "whole batches."
        ),
    ] = (1,)
    options: EngineOptions = EngineOptions()


@dataclass(frozen=True)
class Run(Settings):
    """Prompts on an engine."""

    engine: Name
    model: Model
    out: Annotated[Path, option("File of rows, .jsonl; one that exists is continued.")]
    recording: Recording = SMOLLM2
    drafter: Drafter = "ngram:1,3"
    k: Annotated[
        tuple[Length, ...],
        option(f"Draft lengths; 0 is plain. Default: {', '.join(map(str, LENGTHS))}.", "-k", "--k"),
    ] = ()
    prompts: Prompts = 24
    part: Part = "2/2"
    budget: Budget = 96
    repeats: Repeats = 3
    concurrent: Annotated[
        int,
        option(
            "Requests in flight together: those of a block start in one pass, and prompts are "
            "rounded up to whole batches.",
            ge=1,
            le=MOST_BATCH,
        ),
    ] = 1
    schedule: Annotated[
        Path | None,
        option(
            "File of `simspec export vllm`: draft lengths by requests in a pass; runs them and "
            "plain decoding."
        ),
    ] = None
    policy: Annotated[
        tuple[str, ...],
        option(
            "Policy of `simspec policies`, repeatable: simspec's proposer runs inside vLLM, for "
            "every -k too, and drafts up to the longest of them. Of a draft model in transformers "
            "confidence:P, in llama.cpp confidence:P,inclusive=false, by their own threshold."
        ),
    ] = ()
    cost: Annotated[Path | None, option("Costs that policies plan with: `engine measure`.")] = None
    options: EngineOptions = EngineOptions()


@dataclass(frozen=True)
class Compare(Settings):
    """Runs beside their replay."""

    rows: Annotated[
        tuple[Path, ...],
        argument(
            "Rows of `simspec engine run`; several NAME.rows.jsonl: a line each, with the costs in "
            "NAME.cost.json next to it, or of passes alone where none has one."
        ),
    ]
    cost: Annotated[Path | None, option("Costs of `simspec engine measure`: speedups too.")] = None
    recording: Annotated[
        str | None,
        option(
            "Recording of the same prompts: its margins explain near-ties, and it predicts the "
            "drafts of a model."
        ),
    ] = None
    plot: Annotated[
        Path | None, option("Write a PNG of several runs: speedups by draft length.")
    ] = None
    as_json: Json = False
    markdown: Markdown = False


@engine.command("list")
def list_engines(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the engines, whether they are installed here, and what they can do."""
    from real.engines import RELEASED, find_environment

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
                "batches": str(adapter.batches),
            }
        )
    show(frame(rows, names=4), as_json)


@engine.command("measure")
@command
def measure(settings: Measure) -> None:
    """Measure what the engine's passes of 0 to DEPTH draft tokens cost, as a cost file.

    Costs are in units of the plain passes timed next to them. If the engine can force drafts, junk
    tokens of every length are verified; otherwise, and with a draft model, whose passes count, its
    own drafts are timed. Every --cost reads the file.

    Example: simspec engine measure vllm --model models/smollm2/target --out vllm.cost.json

    By batch size: simspec engine measure vllm --model models/smollm2/target --concurrent 1
    --concurrent 4 --out vllm.cost.json

    Of a model on this GPU, without its weights: simspec engine measure vllm --model llama-3.1-8b
    --drafter eagle3 --concurrent 1 --concurrent 8 --concurrent 64 --out mine.cost.json
    """
    from real.engines.measure import cost_table
    from real.engines.rows import Plan, read_rows
    from real.engines.shapes import shape_of
    from simspec.cost.gate import PriceError

    given, out = settings.options, settings.out
    check_output(out)
    if (shape := shape_of(settings.model, settings.recording)) is not None:
        _show_cost(_shape_cost(settings, shape), out, given.as_json)
        return
    sizes, runs = sorted({*settings.concurrent} or {1}), []
    used = given.engine_settings(settings.model, settings.drafter, settings.depth, sizes[-1])
    adapter_of(settings.engine).start(used)
    for size in sizes:
        ending = ".rows.jsonl" if sizes == [1] else f".b{size}.rows.jsonl"
        rows, group = out.with_name(out.name + ending), 2 if sizes == [1] else size
        ks = tuple(range(settings.depth + 1))
        plan = Plan(ks, settings.repeats, group, size)
        requests = prompts_of(settings, size)
        of_size = replace(used, batch=size)
        run_requests(settings.engine, of_size, requests, plan, rows, None)
        runs.append(read_rows(rows))
    try:
        cost = cost_table(runs).simplest()
    except PriceError as error:
        raise ValueError(f"{error}; remove {rows}, which the command continues") from None
    _show_cost(cost, out, given.as_json)


def _shape_cost(settings: Measure, shape: "Shape") -> "CostTable":
    """Costs of a model by its shape, on the engine of its environment."""
    import msgspec

    import real.engines
    from real.engines.shapes import ShapePlan, contexts_of, measure_shape, read_steps, step_table

    if settings.engine != "vllm":
        raise ValueError(f"{settings.engine} times no shape: give vllm, or a folder with weights")
    given, sizes = settings.options, tuple(sorted({*settings.concurrent} or {1}))
    stated = shape.folder is not None or given.dtype != EngineOptions().dtype
    plan = ShapePlan(
        shape, settings.drafter, settings.depth, sizes, contexts_of(settings.recording),
        BLOCKS_A_REPEAT * settings.repeats, max(1, settings.repeats // REPEATS_A_START),
        given.dtype if stated else "", given.threads, given.fast,
    )  # fmt: skip

    def make(adapter: "Engine") -> Any:
        environment = real.engines.find_environment(adapter)
        if not adapter.was_tested(environment.version):  # without weights no text can be tried
            tested = " up to ".join(adapter.tested)
            print_note(f"{environment.package} {environment.version} was not tested: {tested} was")
        # a cell of a long context on a CPU says nothing for minutes
        return real.engines.Worker(adapter, environment, real.engines.Patience(1800.0, 1800.0))

    kept = settings.out.with_name(f"{settings.out.name}.steps.json")
    held = read_steps(kept) if kept.exists() and not settings.out.exists() else None
    with show_progress() as progress:
        run = measure_shape(
            plan, make, progress, lambda run: write_json(kept, msgspec.to_builtins(run)), held
        )
        return step_table(run)


def _show_cost(cost: "CostModel | CostTable", out: Path, as_json: bool) -> None:
    """Writes the costs, and prints their warnings and a table of each cell."""
    from real.engines.measure import cells_of

    cost.to_json(out)
    for warning in cost.warnings:
        print_note(warning)
    tables = []
    for cell in cells_of(cost):
        assert cell.precision is not None
        widths, samples = (
            getattr(cell.precision, part)["verify"] for part in ("half_width", "samples")
        )
        lines = [
            (j, seconds / cell.baseline, widths[j] and widths[j] / cell.baseline, samples[j])
            for j, seconds in enumerate(cell.verify.tolist())
        ]
        title = f"{cell.name}: a plain pass takes {1000 * cell.baseline:.2f} ms; wrote {out}"
        tables.append(frame(lines, ("draft tokens", "plain passes", "+-", "blocks"), title=title))
    show(tables, as_json, cost=cost)


@engine.command("run")
@command
def run(settings: Run) -> None:
    """Run prompts at several draft lengths, plain decoding among them, in shuffled blocks.

    Every finished request is kept at once; the same command goes on after a kill.

    Example: simspec engine run vllm --model models/smollm2/target -k 0 -k 2 -k 5 --out rows.jsonl

    A schedule: simspec engine run vllm --model models/smollm2/target --schedule vllm.json
    --concurrent 4 --out rows.jsonl

    Policies: simspec engine run vllm --model models/smollm2/target --policy cost_ts --policy
    beta_ts -k 0 -k 5 --cost vllm.cost.json --out rows.jsonl
    """
    from real.engines.adapter import with_schedule
    from real.engines.rows import Plan
    from real.engines.run import with_policies
    from simspec import CostModel

    given, concurrent, ks = settings.options, settings.concurrent, settings.k or LENGTHS
    used = given.engine_settings(settings.model, settings.drafter, max(ks), concurrent)
    if settings.schedule is not None:
        if settings.k:
            raise ValueError("--schedule says which lengths run, and plain decoding: leave -k out")
        used = with_schedule(used, settings.schedule)
        assert used.draft is not None
        ks = (0, used.draft.k)
    if settings.policy:
        planned = None if settings.cost is None else CostModel.from_json(settings.cost)
        used = with_policies(adapter_of(settings.engine), used, settings.policy, planned)
    elif settings.cost is not None:
        raise ValueError("--cost is read by policies: give --policy too")
    group = concurrent if concurrent > 1 else GROUP
    plan = Plan(ks, settings.repeats, group, concurrent, policies=settings.policy)
    check_output(settings.out)
    adapter_of(settings.engine).start(used)
    requests = prompts_of(settings, concurrent if group == concurrent else 1)
    name = settings.engine
    ready = run_requests(name, used, requests, plan, settings.out, False)
    about = {"path": str(settings.out), "engine": name, "version": ready.version}
    show(frame([about], names=3, title=f"wrote {settings.out}: {name} {ready.version}"),
         given.as_json, **about, device=ready.device)  # fmt: skip


@engine.command("compare")
@command
def compare(settings: Compare) -> None:
    """Compare every pass of a run with its replay, and predicted with measured speedups.

    The exit code is 1 where a pass differs and no near-tie explains it.

    Example: simspec engine compare vllm.rows.jsonl --cost vllm.cost.json

    Example: simspec engine compare vllm.rows.jsonl llamacpp.rows.jsonl
    """
    from real.engines import summary
    from real.engines.adapter import RUNNER
    from real.engines.compare import compare_rows
    from real.engines.measure import arm_text, cells_of, speedup_table
    from real.engines.rows import read_rows
    from simspec import load_trace
    from simspec.cost.table import load_cost
    from simspec.engines.exports import runner_notes
    from simspec.reports.speedup_curve import check_plots
    from simspec.trace.recordings import locate, measured_on

    paths, plot, several = settings.rows, settings.plot, len(settings.rows) > 1
    if several and settings.cost is not None:
        raise ValueError("--cost is for one file of rows; several have their costs next to them")
    if plot is not None:
        if not several or not any(map(summary.has_cost, paths)):
            raise ValueError("--plot draws two runs or more that have NAME.cost.json next to them")
        check_plots(plot)
        check_output(plot)
    trace = None
    if settings.recording is not None:
        (path,) = locate([settings.recording]).values()
        trace = load_trace(path)
    if several and any(map(summary.has_cost, paths)):
        runs = [summary.run_summary(path, trace) for path in paths]
        if plot is not None:
            summary.draw_runs(runs, plot)
        show(summary.summary_frame(runs), settings.as_json, settings.markdown, runs=runs)
        raise typer.Exit(1 if any(found.exceptions for found in runs) else 0)
    checks = [
        (about, held, compare_rows(about, held, trace)) for about, held in map(read_rows, paths)
    ]
    about, held, result = checks[0]
    if several:
        found = [check for _, _, check in checks]
        show(summary.checks_frame(checks), settings.as_json, settings.markdown, passes=found)
        raise typer.Exit(0 if all(check.equal for _, _, check in checks) else 1)
    tables, facts = [summary.passes_frame(about, result)], dict[str, Any]()
    if settings.cost is not None:
        cost = load_cost(settings.cost)
        facts["speedups"] = speedup_table(about, held, cost, trace)
        facts["costs"], origins = measured_on(cost), [c.origin for c in cells_of(cost) if c.origin]
        for note in runner_notes(origins, RUNNER.get(about["engine"], ""), "the run is"):
            print_note(note)
        if "inclusive=false" in " ".join(about["plan"].get("policies", ())):
            print_note("a token that a policy drafts and drops is not priced: it takes longer")
        tables.append(summary.speedup_frame(facts["speedups"], facts["costs"]))
    show(tables, settings.as_json, settings.markdown, about=about, passes=result, **facts)
    for difference in () if settings.as_json else result.exceptions[:SHOWN]:
        print_text(
            f"{difference.id} {arm_text(difference.k)}: {difference.kind} "
            f"{difference.place}, engine {difference.engine}, predicted {difference.predicted}"
        )
    raise typer.Exit(0 if result.equal else 1)


def adapter_of(name: str) -> "Engine":
    """The engine of that name; ValueError for an unknown one."""
    from real.engines import RELEASED

    if name not in RELEASED:
        raise ValueError(f"engine {name!r} is unknown, expected one of {', '.join(RELEASED)}")
    return RELEASED[name]


def prompts_of(settings: Measure | Run, batch: int) -> "list[Request]":
    """The requests of these settings, in whole batches."""
    from real.engines.run import choose_prompts
    from simspec import load_trace
    from simspec.trace.recordings import locate

    (path,) = locate([settings.recording]).values()
    trace = load_trace(path)
    return choose_prompts(trace, settings.prompts, settings.part, settings.budget, batch)


def run_requests(
    name: str,
    settings: "EngineSettings",
    requests: "Sequence[Request]",
    plan: "Plan",
    out: Path,
    force: bool | None,
) -> Any:
    """Runs the plan on these requests in the engine's environment, with a bar of progress."""
    import real.engines
    from real.engines.adapter import ModelDraft, served_form
    from real.engines.run import run_on_engine
    from real.engines.trial import try_version
    from simspec.engines.exports import check_method

    adapter = adapter_of(name)
    adapter.start(settings)
    environment = real.engines.find_environment(adapter)
    if isinstance(settings.draft, ModelDraft):
        check_method(served_form(settings.draft.model), environment.version)
    longest = max(len(request.prompt) + request.max_tokens for request in requests)
    settings = replace(settings, longest=longest + 2 * max(plan.ks) + 2)

    def make() -> Any:
        return real.engines.Worker(adapter, environment)

    if not adapter.was_tested(environment.version):
        print_note(try_version(adapter, environment, settings, make))
    with show_progress() as progress:
        return run_on_engine(make, settings, requests, plan, out, force, progress)
