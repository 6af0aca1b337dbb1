"""The commands that need models: record, measure, run, audit, and what all of them share. `register` is simspec's entry point."""

import json
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from real.progress import relabel

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")]
Dtype = Annotated[str, typer.Option(help="float32, float64 or bfloat16.")]
Models = Annotated[
    Path | None,
    typer.Option(
        help="Folder with target/ and the drafters' folders; default: the embedded models."
    ),
]
TargetPath = Annotated[
    str | None,
    typer.Option("--target", help="A transformers checkpoint in place of <models>/target."),
]
Weights = Annotated[
    Path | None, typer.Option(help="The drafter's folder, in place of <models>/<drafter>.")
]
DrafterName = Annotated[
    str,
    typer.Option(
        "--drafter",
        help="model, early_exit, eagle, medusa, hydra, glide, self_skip or prompt_lookup.",
    ),
]
RuleName = Annotated[
    str,
    typer.Option(
        "--rule",
        help="greedy; coupled (noise shared by text position: replays exactly); rejection (coins: replays in law).",
    ),
]
Temperature = Annotated[
    float,
    typer.Option(
        help="Divides the logits, where the rule is not greedy; 1 is the model's own distribution."
    ),
]
TopK = Annotated[
    int, typer.Option("--top-k", help="Only so many best tokens can be picked; 0: all.")
]
TopP = Annotated[
    float,
    typer.Option("--top-p", help="Only the fewest best tokens that hold this share can be picked."),
]
Engine = Annotated[
    str,
    typer.Option(
        help="eager; fast: padded passes, captured once (for a card); strict: of one width, for equal bfloat16 texts."
    ),
]
Seed = Annotated[int, typer.Option(help="Of all draws.")]


def register(app: typer.Typer) -> None:
    """Adds the commands to simspec's application; ImportError where torch or transformers is missing."""
    for name in ("torch", "transformers", "safetensors"):
        if find_spec(name) is None:
            raise ImportError(f"{name} is not installed")
    from real.cli.latency import latency
    from real.cli.race import race
    from real.cli.runs import demo, emulate, scorecard, teacher_force
    from real.cli.train import train

    for command in (
        demo,
        train,
        record,
        measure,
        run,
        audit,
        teacher_force,
        emulate,
        scorecard,
        latency,
        race,
    ):
        app.command()(command)


@contextmanager
def _progress():
    """Gives the progress callback: one bar a label on stderr, and a plain line at its end where there is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    bars: dict[str, int] = {}
    note = TextColumn("{task.fields[note]}")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        note,
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as display:

        def progress(label: str, done: int, total: int, note: str = "") -> None:
            if label not in bars:
                bars[label] = display.add_task(label, total=total, note=note)
            display.update(bars[label], completed=done, total=total, note=note)
            if not console.is_terminal and done == total:
                print(f"{label}: {done}/{total} {note}".rstrip(), file=sys.stderr)

        yield progress


def _rule(name: str, temperature: float, seed: int, top_k: int = 0, top_p: float = 1.0):
    from real.sampling import Rule
    from simspec.rng import check_seed

    check_seed(seed)
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}, expected a finite number >= 0")
    return (
        Rule(name, top_k=top_k, top_p=top_p)
        if name == "greedy"
        else Rule(name, temperature, seed, top_k, top_p)
    )


def _grown(tree: str | None) -> tuple:
    if tree is None:
        return ()
    width, x, levels = tree.partition("x")
    if not (x and width.isdecimal() and levels.isdecimal()):
        raise ValueError(f"--tree is {tree!r}; expected WIDTHxLEVELS such as 4x6")
    return int(width), int(levels)


def _pair(models, drafter, device, dtype, target, weights, passes=None):
    from real.model.runner import EAGER
    from real.pair import TINY, load_pair

    return load_pair(models or TINY, drafter, device, dtype, target, weights, passes or EAGER)


def record(
    prompts: Annotated[
        list[Path], typer.Argument(help='JSON lines: {"id", "task", "text" or "turns", "source"?}.')
    ],
    out: Annotated[Path, typer.Option(help="The recording, .parquet.")],
    drafter: DrafterName = "model",
    rule: RuleName = "greedy",
    temperature: Temperature = 0.8,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    k: Annotated[int, typer.Option("--depth", "-k", help="Draft depth K at every position.")] = 16,
    budget: Annotated[int, typer.Option(help="New tokens a prompt.")] = 96,
    per_task: Annotated[int, typer.Option(help="Prompts of every task.")] = 20,
    longest: Annotated[int, typer.Option(help="Longest prompt taken, in tokens.")] = 400,
    tree: Annotated[
        str | None,
        typer.Option(
            help="Dynamic trees too, WIDTHxLEVELS such as 4x6: for policies dynamic_tree:NODES."
        ),
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    engine: Engine = "eager",
    models: Models = None,
    target: TargetPath = None,
    weights: Weights = None,
    seed: Seed = 0,
    as_json: Json = False,
):
    """Record what a drafter proposes from every position of the target's text; killed, it continues at its last shard.

    Example: simspec record prompts.jsonl --drafter early_exit --rule coupled --out traces/mine.parquet
    """
    from real.decode.engine import passes_of
    from real.decode.features import offered
    from real.draft import growing
    from real.jobs import record_to
    from real.prompts import draw, read_prompts
    from real.record.recorder import Settings
    from simspec.files import check_output

    if out.suffix != ".parquet":
        raise ValueError(
            f"{out} is no name for a recording, expected one that ends in .parquet; its card gets .json"
        )
    for path in (out, out.with_suffix(".json")):
        check_output(path, *prompts)
    made_by = _rule(rule, temperature, seed, top_k, top_p)
    grown = _grown(tree)
    Settings(k, budget, made_by, (), (), grown)  # refused before the models are read
    if per_task < 1:
        raise ValueError(f"{per_task} prompts of every task asked for, expected at least 1")
    passes = passes_of(engine, k + 1, longest + budget)
    pair = _pair(models, drafter, device, dtype, target, weights, passes)
    chosen = draw(
        [p for path in prompts for p in read_prompts(path, pair.tokenizer, longest)], per_task, seed
    )
    if grown:
        growing(pair.drafter, grown[1])
    settings = Settings(
        k, budget, made_by, pair.end_tokens, () if made_by.sampled else offered(pair.drafter), grown
    )
    with _progress() as progress:
        made = record_to(out, pair, chosen, settings, progress)
    print(
        json.dumps(made)
        if as_json
        else f"wrote {out}: {made['texts']} texts, {made['rows']} rows, card {out.with_suffix('.json')}"
    )


def measure(
    out: Annotated[
        Path,
        typer.Option(
            help="The cost model, .json; a table where several batch sizes or contexts are given."
        ),
    ],
    drafter: DrafterName = "model",
    rule: RuleName = "greedy",
    temperature: Temperature = 0.8,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    k: Annotated[int, typer.Option("--depth", "-k", help="Longest draft to price.")] = 16,
    batch: Annotated[
        list[int] | None, typer.Option(help="Texts decoded together, repeatable; default 1.")
    ] = None,
    context: Annotated[
        list[int] | None, typer.Option(help="Tokens before the round, repeatable; default 128.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs at every length; medians are kept.")] = 4,
    rows: Annotated[
        int,
        typer.Option(help="Price trees too, of up to so many submitted tokens; 0: chains alone."),
    ] = 0,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    engine: Engine = "eager",
    models: Models = None,
    target: TargetPath = None,
    weights: Weights = None,
    seed: Seed = 0,
    as_json: Json = False,
):
    """Measure what drafting and verifying cost on this machine, as a cost model for `simspec sweep --cost`.

    One text is timed in the decode loop itself; a larger batch adds what bare batched passes take longer. A size that does not fit
    the card is left out. Example: simspec measure --drafter early_exit --batch 1 --batch 8 --context 128 --context 512 --out costs.json
    """
    from real.decode.engine import passes_of
    from real.measure.loop import longest_run, measure_table
    from simspec.files import check_output

    check_output(out)
    if not 1 <= k <= 255 or repeats < 1:
        raise ValueError(
            f"depth is {k} and repeats {repeats}; expected 1 <= depth <= 255 and at least one repeat"
        )
    made_by = _rule(rule, temperature, seed, top_k, top_p)
    sizes = batch or [1], context or [128]
    passes = passes_of(engine, max(k, rows) + 1, max(*sizes[1], 1) + longest_run(k))
    pair = _pair(models, drafter, device, dtype, target, weights, passes)
    with _progress() as progress:
        said = relabel(progress, f"measuring {out.stem}")
        table = measure_table(
            pair.target,
            pair.drafter,
            made_by,
            k,
            *sizes,
            repeats=repeats,
            seed=seed,
            progress=said,
            rows=rows,
        )
    made = table.simplest()
    made.to_json(out)
    lines = *table.describe(), f"wrote {out}, measured on {table.device}"
    print(json.dumps(made.to_dict()) if as_json else "\n".join(lines))


def run(
    trace: Annotated[
        str,
        typer.Argument(
            help="A recording's file or bundled name; its prompts, rule and seed are run again."
        ),
    ],
    policy: Annotated[
        str,
        typer.Option(
            help="name[:arg,...], as in `simspec sweep`, trees too; or beam:width,k=levels."
        ),
    ] = "beta_ts",
    cost: Annotated[
        Path | None, typer.Option(help="Cost model's JSON; default: measured now.")
    ] = None,
    prompts: Annotated[
        int, typer.Option(help="Only so many of its prompts, spread over the tasks; 0 for all.")
    ] = 0,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    engine: Engine = "eager",
    models: Models = None,
    target: TargetPath = None,
    weights: Weights = None,
    seed: Seed = 0,
    text: Annotated[bool, typer.Option(help="Print the texts too.")] = False,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the texts and rounds to this .jsonl, for `simspec audit`."),
    ] = None,
    as_json: Json = False,
):
    """Run a policy for real on a recording's prompts and compare every round with the replay.

    Exits with code 1 if they differ. Example: simspec run tiny-model-greedy --policy fixed:3 --prompts 20
    """
    from real.audit.run_file import header_of, save_run, texts_of
    from real.decode.engine import passes_for
    from real.decode.trees import beam
    from real.jobs import run_on
    from real.measure.loop import measure as time
    from real.pair import check_pair, rule_of, spread
    from simspec import CostModel, load_trace, policies
    from simspec.files import check_output
    from simspec.recordings import locate
    from simspec.tree_policy import TreePolicy, check_trace

    (path,) = locate([trace]).values()
    if save is not None:
        check_output(save, path, cost or "")
    recorded = load_trace(path)
    if prompts:
        recorded = recorded.select(spread(recorded.sequences, prompts))
    meant = beam(policy, recorded.K) if policy.startswith("beam") else policies.parse(policy)
    recorded.features(meant.reads)  # a slip is told before models are loaded
    if isinstance(meant, TreePolicy):
        check_trace(recorded, meant)
    elif meant is policies.tree_oracle:
        raise ValueError(
            "tree_oracle is only replayed (simspec sweep); run a tree that does not know the text, such as optimal_tree:16"
        )
    price = None if cost is None else CostModel.from_json(cost)
    rule_of(recorded)
    passes = passes_for(engine, recorded, meant.submitted(recorded.K))
    pair = _pair(models, recorded.meta.drafter, device, dtype, target, weights, passes)
    check_pair(recorded, pair, trace)
    with _progress() as progress:
        if price is None:
            said = relabel(progress, "measuring")
            rows, rule = meant.submitted(recorded.K), rule_of(recorded)
            price = time(
                pair.target, pair.drafter, rule, recorded.K, repeats=2, progress=said, rows=rows
            )
        found = run_on(recorded, pair, meant, price, seed, progress)
    if save is not None:
        save_run(
            save,
            header_of(rule_of(recorded), pair, found.policy, recorded.meta.end_tokens),
            texts_of(recorded, found.results),
        )
    if as_json:
        print(json.dumps(found.summary()))
    else:
        if text:
            for name, token in zip(recorded.meta.ids, found.texts):
                print(f"--- {name}\n{pair.tokenizer.decode(token.tolist())}")
        compared = found.comparison
        print(
            f"{found.policy}: {compared.rounds} rounds compared, {len(compared.exceptions)} exceptions, {len(compared.failures)} failures; "
            f"speedup {found.measured:.3f} measured, {found.simulated:.3f} simulated"
        )
    if not found.comparison.equal:
        raise typer.Exit(1)


def audit(
    run: Annotated[
        str,
        typer.Argument(
            help="What `simspec run --save` wrote, .jsonl; or a recording's file or bundled name."
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(help="A recording of the same prompts: tells target flips from draft flips."),
    ] = None,
    models: Models = None,
    target: TargetPath = None,
    device: Device = "cpu",
    dtype: Annotated[
        str | None, typer.Option(help="float32, float64 or bfloat16; default: the run's own.")
    ] = None,
    weights: Weights = None,
    risk: Annotated[
        float, typer.Option(help="Chance of a false alarm that the tests of sampled text may have.")
    ] = 1e-4,
    as_json: Json = False,
):
    """Force an emitted run through the target and report which of its tokens the target would not have written.

    Greedy and coupled texts: how far each token is from the target's pick, in nats and units in the last place; what rounding explains is
    excused. Sampled texts: tokens of probability 0, and tests of the law, with both error rates; whether a text leans to its drafter is
    tested where that lies in the model folder. Exits with code 1 where something is wrong.

    Example: simspec run tiny-model-greedy --prompts 20 --save run.jsonl; simspec audit run.jsonl --against tiny-model-greedy
    """
    from real.audit.judge import audit as judge
    from real.audit.report import show
    from real.audit.run_file import emitted_of, load_run
    from real.drafters import BUILTIN
    from real.pair import TINY
    from simspec import load_trace
    from simspec.recordings import locate

    def recording(name: str):
        (path,) = locate([name]).values()
        return load_trace(path)

    emitted = load_run(Path(run)) if run.endswith(".jsonl") else emitted_of(recording(run))
    reference = None if against is None else recording(against)
    name = emitted.header.drafter
    leans = (
        emitted.header.rule == "rejection"
        and name in BUILTIN
        and (weights or (models or TINY) / name).is_dir()
    )
    pair = _pair(
        models,
        name if leans else "prompt_lookup",
        device,
        dtype or emitted.header.dtype,
        target,
        weights if leans else None,
    )
    wrote = emitted.header.target
    if not 0 < risk < 1:
        raise ValueError(f"--risk is {risk}; expected a chance in (0, 1) such as 1e-4")
    if wrote and wrote.split("/")[-1] != pair.name.split("/")[-1]:
        raise ValueError(
            f"{run} was made with target {wrote}, this is {pair.name}; name that one by --models or --target"
        )
    with _progress() as progress:
        found = judge(
            pair.target,
            emitted,
            reference,
            pair.drafter if leans else None,
            risk,
            relabel(progress, "auditing"),
        )
    if as_json:
        print(json.dumps(found.summary()))
    else:
        show(run, emitted.header, found, pair.tokenizer)
    if not found.clean:
        raise typer.Exit(1)
