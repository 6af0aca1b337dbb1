"""The commands `simspec engine list`, `run` and `measure`; the others have own files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from real.commands.engine_compare import compare
from real.commands.engine_options import (
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
from real.commands.options import Json, Seed
from simspec.cli.options import MOST_BATCH, MOST_PROMPTS, at_most

if TYPE_CHECKING:
    from simspec import CostModel

PANEL = "Exchange with engines"
LONGEST = 64
LENGTHS = 0, 1, 2, 3, 5, 8
GROUP = 4

engine = typer.Typer(
    no_args_is_help=True,
    help="Run released engines (vLLM, llama.cpp, transformers), measure what their "
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
def run(
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


@engine.command("measure")
def measure(
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


engine.command("compare")(compare)
