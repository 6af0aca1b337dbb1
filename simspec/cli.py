"""The simspec command: `sweep` and `show`; an installed extra adds its own commands through entry points."""

import json
import sys
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

GROUP = "simspec.commands"
DEFAULT_POLICIES = ["fixed:0", "fixed:1", "fixed:2", "fixed:3", "fixed:4", "fixed:6", "fixed:8", "beta_ts", "oracle"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Replay speculative-decoding policies exactly, on recordings of real drafters.\n\n"
    "Example: simspec sweep traces/prose.parquet --policy fixed:3 --policy beta_ts --cost 0.1",
)

Traces = Annotated[list[Path], typer.Argument(help="Recordings, as `simspec record` or Trace.save write them.")]


@app.command()
def sweep(
    traces: Traces,
    policy: Annotated[
        list[str] | None, typer.Option(help="name[:arg,...], repeatable; default: a range of fixed, beta_ts, oracle.")
    ] = None,
    cost: Annotated[str, typer.Option(help="A cost model's JSON file, or the ratio draft step / target step.")] = "0.1",
    replicates: Annotated[int, typer.Option(help="Draws of each policy that draws.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the first replicate.")] = 0,
    by: Annotated[str, typer.Option(help="trace, task or prompt.")] = "trace",
    jobs: Annotated[int, typer.Option(help="Threads.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "--csv", help="Write every row to this CSV file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG of the speedups.")] = None,
):
    """Replay policies on recordings and print what each would have gained.

    Example: simspec sweep traces/prose.parquet --policy fixed:3 --policy confidence:0.4 --policy oracle --cost 0.08
    """
    from simspec.sweep import sweep as run

    table = run(
        {str(path): path for path in traces},
        policy or _default_policies(traces),
        _cost(cost),
        replicates=replicates,
        seed=seed,
        by=by,
        jobs=jobs,
        progress=sys.stderr.isatty(),
    )
    if out is not None:
        table.to_csv(out, index=False)
    if plot is not None:
        _plot(table, plot)
    if as_json:
        rows = json.loads(table.to_json(orient="records"))
        print(json.dumps({"seed": seed, "replicates": replicates, "by": by, "rows": rows}))
    else:
        _print(table)


@app.command()
def show(
    trace: Annotated[Path, typer.Argument(help="A recording.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
):
    """Describe a recording: where it comes from, its size, its acceptance by depth.

    Example: simspec show traces/prose.parquet
    """
    from simspec.trace import load_trace

    card = _card(load_trace(trace))
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
    from simspec.simulate import replay

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
                "mean_run": round(float(trace.run.mean()), 4),
                "committed_at_K": round(full.committed_per_round, 4),
                "accept_by_depth_at_K": by_depth,
                "recorded": [n for n in ("rank", "margin", "draft_margin", "feature_margin") if getattr(trace, n) is not None],
            }
        )
    )


def _default_policies(paths):
    from simspec.trace import load_trace

    K = min(load_trace(path).K for path in paths)
    return [text for text in DEFAULT_POLICIES if not text.startswith("fixed:") or int(text[6:]) <= K]


def _cost(text):
    from simspec.cost import CostModel

    try:
        return float(text)
    except ValueError:
        return CostModel.from_json(text)


def _means(table):
    keys = ["trace", "group", "cost", "policy"]
    return table.groupby(keys, sort=False)[["committed_per_round", "v_d", "r_d", "hm", "speedup", "cut_share"]].mean()


def _print(table):
    from rich.console import Console
    from rich.table import Table

    means = _means(table).reset_index()
    shown = Table("trace", "group", "cost", "policy", "tokens/round", "v_d", "r_d", "HM", "speedup", "cut")
    for row in means.itertuples(index=False):
        figures = row.committed_per_round, row.v_d, row.r_d, row.hm, row.speedup, row.cut_share
        shown.add_row(Path(row.trace).name, row.group, row.cost, row.policy, *(f"{figure:.3f}" for figure in figures))
    Console(width=None if sys.stdout.isatty() else 160).print(shown)


def _plot(table, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    means = _means(table).reset_index()
    means["label"] = [f"{Path(row.trace).name} {row.group} {row.cost}" for row in means.itertuples()]
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for label, part in means.groupby("label", sort=False):
        axes.plot(part["policy"], part["speedup"], marker="o", label=label)
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set_ylabel("modelled speedup over plain decoding")
    axes.tick_params(axis="x", rotation=45)
    axes.legend(fontsize="small")
    figure.savefig(path, format="png", dpi=150)
    pyplot.close(figure)


def load_commands(target: typer.Typer, points) -> list[str]:
    """Let each entry point add its commands by register(target); a broken one becomes one line in the result."""
    notes = []
    for point in points:
        try:
            point.load()(target)
        except ImportError as error:
            notes.append(f"Commands of '{point.name}' are not available ({error}): pip install 'simspec[real]'")
        except Exception as error:  # an extra's fault must not cost the commands that work
            notes.append(f"Commands of '{point.name}' are broken: {type(error).__name__}: {' '.join(str(error).split())}")
    if not points:
        notes.append("To record real drafters and to decode with them: pip install 'simspec[real]'")
    return notes


@lru_cache(maxsize=1)
def _commands() -> tuple[str, ...]:
    return tuple(load_commands(app, entry_points(group=GROUP)))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; what a user got wrong is one line on stderr and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    notes = _commands()
    # Typer reads the epilog as rich markup, where [real] would be a style and vanish.
    app.info.epilog = "\n\n".join(note.replace("[", "\\[") for note in notes) or None
    try:
        app(arguments)
    except (ValueError, OSError) as error:
        print(f"simspec: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
