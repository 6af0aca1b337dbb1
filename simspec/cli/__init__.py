"""The simspec command: `sweep` and `show`; an installed extra adds its own commands through entry points."""

import json
import sys
from functools import lru_cache
from importlib.metadata import entry_points
from itertools import chain, groupby
from pathlib import Path
from typing import Annotated

import typer

from simspec.cli.trees import trees

GROUP = "simspec.commands"
DEFAULT_POLICIES = (
    "fixed:0", "fixed:1", "fixed:2", "fixed:3", "fixed:4", "fixed:6", "fixed:8", "hf_heuristic", "beta_ts", "cost_ts", "cali_ts",
    "confidence:0.5", "entropy", "product", "oracle",
)  # fmt: skip

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Replay speculative-decoding policies exactly, on recordings of real drafters.\n\n"
    "Example: simspec sweep traces/prose.parquet --policy fixed:3 --policy beta_ts --cost 0.1",
)

Traces = Annotated[
    list[str] | None,
    typer.Argument(
        help="Recordings: files, or names of bundled ones; default: all bundled ones.",
        show_default=False,
    ),
]
Policies = Annotated[
    list[str] | None,
    typer.Option("--policy", help="name[:arg,...], repeatable; default: a range of all families."),
]
Cost = Annotated[
    str | None,
    typer.Option(
        help="A cost file, or the ratio draft step / target step; default: NAME.cost.json beside each recording, else 0.1."
    ),
]
Batch = Annotated[int | None, typer.Option(help="Of a cost table: sequences decoded together.")]
Context = Annotated[int | None, typer.Option(help="Of a cost table: tokens before the round.")]


@app.command()
def sweep(
    traces: Traces = None,
    policy: Policies = None,
    cost: Cost = None,
    batch: Batch = None,
    context: Context = None,
    replicates: Annotated[int, typer.Option(help="Draws of each policy that draws.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the first replicate.")] = 0,
    by: Annotated[str, typer.Option(help="trace, task or prompt.")] = "trace",
    jobs: Annotated[int, typer.Option(help="Threads.")] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
    stream: Annotated[
        bool, typer.Option(help="Print each row as one line of JSON as soon as it is known.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "--csv", help="Write every row to this CSV file.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG of the speedups.")] = None,
    curve: Annotated[
        Path | None,
        typer.Option(help="Write a PNG of speedup against K, adaptive policies as lines."),
    ] = None,
):
    """Replay policies on recordings and print what each would have gained.

    Example: simspec sweep traces/prose.parquet --policy fixed:3 --policy confidence:0.4 --policy oracle --cost 0.08

    Many settings: simspec sweep --policy=fixed:{0..8} --policy=beta_ts:alpha0={1,2,4,8} (the shell expands the braces)
    """
    from simspec.files import check_output, replacing
    from simspec.recordings import costs_of, locate
    from simspec.sweep import rows

    paths = locate(traces)
    if out is not None:
        check_output(out, *paths.values(), cost or "")
    for i, picture in enumerate(pictures := [each for each in (plot, curve) if each is not None]):
        check_output(
            picture, *paths.values(), cost or "", *([out] if out is not None else []), *pictures[:i]
        )
    costs, options = (
        costs_of(paths, cost, batch, context),
        {"seed": seed, "by": by, "jobs": jobs, "progress": sys.stderr.isatty()},
    )
    groups = list(_servable(paths, policy or DEFAULT_POLICIES, costs, quiet=not policy))
    # Unpacked at once: what is wrong is said before anything runs.
    found = chain(
        *[
            rows(group, listed, {name: costs[name] for name in group}, replicates, **options)
            for listed, group in groups
        ]
    )
    kept = []
    for row in found:
        kept.append(
            {key: None if value != value else value for key, value in row.items()}
            if stream or as_json
            else row
        )  # JSON has no NaN
        if stream:
            print(json.dumps(kept[-1]), flush=True)
    if as_json:
        print(json.dumps({"seed": seed, "replicates": replicates, "by": by, "rows": kept}))
    if curve is not None:
        from simspec.reports.speedup_curve import curve as against
        from simspec.reports.speedup_curve import draw, told

        served = [
            (name, trace, listed) for listed, group in groups for name, trace in group.items()
        ]
        drawn = {
            name: against(trace, listed, costs[name], replicates, seed, jobs=jobs)
            for name, trace, listed in served
        }
        draw(drawn, curve, {name: told(trace, costs[name]) for name, trace, _ in served})
    if (stream or as_json) and out is None and plot is None:
        return
    import pandas

    table = pandas.DataFrame(kept)
    if out is not None:
        with replacing(out) as temporary:
            table.to_csv(temporary, index=False)
    if plot is not None:
        with replacing(plot) as temporary:
            _plot(table, temporary)
    if not (stream or as_json):
        _print(table)


@app.command()
def show(
    trace: Annotated[str, typer.Argument(help="A recording's file, or the name of a bundled one.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.")
    ] = False,
):
    """Describe a recording: where it comes from, its size, its acceptance by depth.

    Example: simspec show traces/prose.parquet
    """
    from simspec.recordings import locate
    from simspec.trace import load_trace

    (path,) = locate([trace]).values()
    card = _card(load_trace(path))
    if as_json:
        print(json.dumps(card))
    else:
        for key, value in card.items():
            print(f"{key:>16}  {', '.join(map(str, value)) if isinstance(value, list) else value}")


def _card(trace) -> dict:
    from dataclasses import asdict

    from simspec.cost import CostModel
    from simspec.metrics import summary
    from simspec.policies import fixed
    from simspec.simulate import expected_run, replay
    from simspec.trace import OPTIONAL

    meta = {key: value for key, value in asdict(trace.meta).items() if key not in ("tasks", "ids")}
    # Depth statistics at K, from rounds at K: such tables hold for that K only, which is why recordings exist.
    full = summary(replay(trace, fixed(trace.K)), trace, CostModel.from_ratio(0.1, trace.K))
    by_depth = [None if rate != rate else round(rate, 4) for rate in full.accept_by_depth]
    end = [int(token) for token in trace.token[trace.offset[1:] - 1]]
    return json.loads(
        json.dumps(
            meta
            | {
                "sequences": trace.sequences,
                "rows": trace.rows,
                "prompt_tokens": len(trace.prompt),
                "tasks": {task: trace.task.count(task) for task in sorted(set(trace.task))},
                "ended_by_token": sum(token in trace.meta.end_tokens for token in end),
                "mean_accepted_length": round(float(expected_run(trace).mean()), 4),
                "committed_at_K": round(full.committed_per_round, 4),
                "accept_by_depth_at_K": by_depth,
                "recorded": [name for name in OPTIONAL if getattr(trace, name) is not None],
            }
        )
    )


def _servable(paths, policies, costs, quiet=False):
    """(policies, {recording: trace}) of neighbours that the same policies can serve; a note on stderr for each left out."""
    from simspec.sweep import servable
    from simspec.trace import load_trace

    traces = {name: load_trace(path) for name, path in paths.items()}
    kept, notes = servable(traces, policies, costs, all_used=not quiet)
    for note in [] if quiet else notes:
        print(f"simspec: {note}", file=sys.stderr)
    for listed, names in groupby(kept, key=kept.get):
        yield listed, {name: traces[name] for name in names}


def _means(table):
    keys = ["trace", "group", "cost", "policy"]
    return table.groupby(keys, sort=False)[
        ["committed_per_round", "v_d", "r_d", "hm", "speedup", "cut_share"]
    ].mean()


def _print(table):
    from rich.console import Console
    from rich.table import Table

    means = _means(table).reset_index()
    shown = Table(
        "trace", "group", "cost", "policy", "tokens/round", "v_d", "r_d", "HM", "speedup", "cut"
    )
    for row in means.itertuples(index=False):
        figures = row.committed_per_round, row.v_d, row.r_d, row.hm, row.speedup, row.cut_share
        shown.add_row(
            Path(row.trace).name,
            row.group,
            row.cost,
            row.policy,
            *(f"{figure:.3f}" for figure in figures),
        )
    Console(width=None if sys.stdout.isatty() else 160).print(shown)


def _plot(table, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    means = _means(table).reset_index()
    means["label"] = [
        f"{Path(row.trace).name} {row.group} {row.cost}" for row in means.itertuples()
    ]
    figure, axes = pyplot.subplots(
        figsize=(9, 4.5 + 0.2 * means["label"].nunique()), layout="constrained"
    )
    for label, part in means.groupby("label", sort=False):
        axes.plot(part["policy"], part["speedup"], marker="o", label=label)
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set_ylabel("modelled speedup over plain decoding")
    pyplot.setp(axes.get_xticklabels(), rotation=40, ha="right", rotation_mode="anchor")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(path, format="png", dpi=150)
    pyplot.close(figure)


@app.command()
def roofline(
    out: Annotated[
        Path,
        typer.Option(
            help="The cost model, .json; a table where several batch sizes or contexts are given."
        ),
    ],
    target: Annotated[
        str, typer.Option(help="A model's name, such as llama-3-8b; a wrong one lists all.")
    ],
    drafter: Annotated[
        str,
        typer.Option(
            help="A model's name, or the share of the target's layers before an early exit."
        ),
    ],
    card: Annotated[str, typer.Option(help="A card's name, such as h100.")] = "h100",
    k: Annotated[int, typer.Option("--depth", "-k", help="Longest draft to price.")] = 16,
    nodes: Annotated[
        int,
        typer.Option(min=0, max=255, help="Most submitted tokens of a tree to price; 0: no trees."),
    ] = 0,
    batch: Annotated[
        list[int] | None, typer.Option(help="Sequences decoded together, repeatable; default 1.")
    ] = None,
    context: Annotated[
        list[int] | None, typer.Option(help="Tokens before the round, repeatable; default 1024.")
    ] = None,
    weight_bytes: Annotated[float, typer.Option(help="Bytes of a weight of either model.")] = 2.0,
    launch: Annotated[
        float, typer.Option(help="Seconds to launch a layer, which no data sheet says.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the cost model too.")] = False,
):
    """Price drafts and verifications from published figures of a model and a card: a bound from below, to plan with.

    Example: simspec roofline --target llama-3-8b --drafter llama-3.2-1b --card h100 --batch 1 --batch 16 --out cost.json
    """
    from dataclasses import replace

    from simspec.files import check_output
    from simspec.roofline import CARDS, SHAPES, known, roofline_table

    big = replace(known(SHAPES, "model", target), weight_bytes=weight_bytes)
    try:
        small = float(drafter)
    except ValueError:
        small = replace(known(SHAPES, "model", drafter), weight_bytes=weight_bytes)
    device = replace(known(CARDS, "card", card), launch=launch)
    check_output(out)
    table = roofline_table(big, small, device, k, batch or [1], context or [1024], nodes)
    made = table.simplest()
    made.to_json(out)
    print(
        json.dumps(made.to_dict())
        if as_json
        else "\n".join((*table.describe(), f"wrote {out}, {device.name}"))
    )


@app.command()
def check(
    traces: Traces = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of tables.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic texts and of every draw.")] = 0,
):
    """Check the simulator against closed forms and exact laws, and recordings against Eq. 13; exit code 1 if anything disagrees.

    Example: simspec check traces/prose.parquet --json
    """
    from simspec.recordings import locate
    from simspec.validation.check import check as run
    from simspec.validation.check import show as show_report

    report = run(locate(traces), seed)
    if as_json:
        print(json.dumps(report))
    else:
        show_report(report, _console())
    if not report["ok"]:
        raise typer.Exit(1)


@app.command()
def score(
    traces: Traces = None,
    policy: Policies = None,
    cost: Cost = None,
    replicates: Annotated[int, typer.Option(help="Draws of each policy that draws.")] = 4,
    seed: Annotated[
        int, typer.Option(help="Seed of the first replicate and of the bootstrap.")
    ] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the shares as a Markdown table.")
    ] = False,
):
    """Score policies by the share they get of the gap between the best fixed K in hindsight and the oracle, with 95% intervals.

    Example: simspec score traces/prose.parquet --policy beta_ts --policy confidence:0.5 --markdown
    """
    from simspec.recordings import costs_of, locate
    from simspec.reports.oracle_gap import markdown, show
    from simspec.reports.oracle_gap import score as run

    paths = locate(traces)
    costs = costs_of(paths, cost)
    groups = list(_servable(paths, policy, costs)) if policy else [(None, paths)]
    scores = [
        each
        for listed, group in groups
        for each in run(group, listed, costs, replicates=replicates, seed=seed)
    ]
    if as_json:
        print(
            json.dumps(
                {"seed": seed, "replicates": replicates, "level": 0.95, "recordings": scores}
            )
        )
    elif as_markdown:
        print(markdown(scores))
    else:
        show(scores, _console())


@app.command()
def drafters(
    traces: Traces = None,
    cost: Cost = None,
    by_task: Annotated[
        bool,
        typer.Option(
            "--by-task", help="A line for every domain; --json and --csv have them anyway."
        ),
    ] = False,
    longest: Annotated[
        int | None,
        typer.Option("--K", "-k", help="Longest draft to look at; default: each recording's."),
    ] = None,
    depth: Annotated[
        int, typer.Option(help="Depths of acceptance to show; --json and --csv have them all.")
    ] = 4,
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a Markdown table.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "--csv", help="Write every row to this CSV file.")
    ] = None,
):
    """Compare drafters from their recordings: acceptance by depth, price of a step, best fixed K, speedup; intervals over prompts.

    Example: simspec drafters tiny-model-coupled tiny-early_exit-coupled --by-task
    """
    from simspec.files import check_output, replacing
    from simspec.recordings import costs_of, locate
    from simspec.reports.drafters import ALL, lineup, markdown, table
    from simspec.reports.drafters import show as show_rows

    if depth < 1:
        raise ValueError(f"--depth is {depth}, expected at least 1")
    paths = locate(traces)
    if out is not None:
        check_output(out, *paths.values(), cost or "")
    rows = lineup(paths, costs_of(paths, cost), longest, level, seed=seed)
    for row in rows:
        if row.task == ALL and row.note:
            print(f"simspec: {row.recording}: {row.note}", file=sys.stderr)
    shown = [row for row in rows if by_task or row.task == ALL]
    if out is not None:
        with replacing(out) as temporary:
            table(rows).to_csv(temporary, index=False)
    if as_json:
        print(
            json.dumps({"seed": seed, "level": level, "drafters": [row.to_dict() for row in rows]})
        )
    elif as_markdown:
        print(markdown(shown, depth))
    else:
        show_rows(shown, _console(), depth)


def _console():
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160)


app.command()(trees)


def load_commands(target: typer.Typer, points) -> list[str]:
    """Let each entry point add its commands by register(target); a broken one becomes one line in the result."""
    notes = []
    for point in points:
        try:
            point.load()(target)
        except ImportError as error:
            notes.append(
                f"Commands of '{point.name}' are not available ({error}): pip install 'simspec[real]'"
            )
        except Exception as error:  # an extra's fault must not cost the commands that work
            notes.append(
                f"Commands of '{point.name}' are broken: {type(error).__name__}: {' '.join(str(error).split())}"
            )
    if not points:
        notes.append("To record real drafters and to decode with them: pip install 'simspec[real]'")
    return notes


@lru_cache(maxsize=1)
def _commands() -> tuple[str, ...]:
    return tuple(load_commands(app, entry_points(group=GROUP)))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; what a user got wrong is one line on stderr and exit code 2, an interrupt one line and 130."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        notes = _commands()
        # Typer reads the epilog as rich markup, where [real] would be a style and vanish.
        app.info.epilog = "\n\n".join(note.replace("[", "\\[") for note in notes) or None
        app(arguments)
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != 130:  # Typer's code for an interrupt
            raise
        said = "interrupted; recording, training and what is kept in a file continue where they were when the same command is given again"
        print(f"simspec: {said}", file=sys.stderr)
        sys.exit(130)
    except (ValueError, OSError) as error:
        print(f"simspec: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
