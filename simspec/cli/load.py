"""simspec load: what draft-length policies do to a server at a request rate."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from simspec.cli.options import (
    MOST_CONTEXT,
    MOST_THREADS,
    Json,
    Level,
    Markdown,
    Replicates,
    Seed,
    at_most,
    print_result,
)

PANEL = "Simulate"
MOST_RATES = 1000


def load(
    recording: Annotated[str, typer.Argument(help="A recording: a file, or a bundled one's name.")],
    rate: Annotated[
        list[float] | None,
        typer.Option(
            help="Requests a second, repeatable; default: from 0.1 to 1.2 of what plain decoding "
            "serves."
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="name[:arg,...], plain, or schedule:1=5/9=0 by the requests held; repeatable; "
            "default: plain and each fixed length."
        ),
    ] = None,
    cost: Annotated[
        str | None, typer.Option(help="A cost file; default: the recording's own.")
    ] = None,
    terms: Annotated[
        str | None,
        typer.Option(help="Costs in terms instead, as `simspec cost --from-terms` takes them."),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            callback=at_most(MOST_CONTEXT),
            help="Cached tokens of every request; default: its prompt and output.",
        ),
    ] = None,
    slots: Annotated[int, typer.Option(help="Requests that run together at most.")] = 256,
    tokens: Annotated[
        int, typer.Option(help="Tokens of a step at most, those of prompts included.")
    ] = 8192,
    cached_prompts: Annotated[
        bool, typer.Option("--cached-prompts", help="Prompts take no time.")
    ] = False,
    requests: Annotated[int, typer.Option(help="Requests of a run.")] = 5000,
    burst: Annotated[float, typer.Option(help="Requests that arrive at once, on average.")] = 1.0,
    arrivals: Annotated[
        Path | None,
        typer.Option(help="Arrival times instead, seconds, one a line; --rate scales them."),
    ] = None,
    warm_up: Annotated[
        float, typer.Option(help="Share of the first and of the last requests that do not count.")
    ] = 0.2,
    ttft: Annotated[
        float | None, typer.Option(help="Seconds to the first token of a good request.")
    ] = None,
    tpot: Annotated[
        float | None, typer.Option(help="Seconds for each later token of a good request.")
    ] = None,
    by: Annotated[
        str, typer.Option(help="Policies are compared by latency, ttft, tpot or goodput.")
    ] = "latency",
    replicates: Replicates = 4,
    seed: Seed = 0,
    level: Level = 0.95,
    jobs: Annotated[int, typer.Option(callback=at_most(MOST_THREADS), help="Threads.")] = 1,
    cluster: Annotated[
        str | None, typer.Option(help="Run on this Dask scheduler's workers, tcp://HOST:PORT.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write a PNG or SVG of latency, goodput and best policy.")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Print the best policy by rate alone.")
    ] = False,
    as_json: Json = False,
    markdown: Markdown = False,
) -> None:
    """Simulate a server under load: throughput, latency and goodput of policies by request rate.

    Requests arrive, wait and share steps; each decodes a sequence of the recording. Steps are
    priced by their tokens, as in `simspec batch`.

    Example: simspec load tiny-eagle-greedy --rate 5 --rate 20 --policy plain --policy fixed:3
    """
    from simspec.cost.batch import parse_terms
    from simspec.output.files import check_output
    from simspec.replay.arrivals import read_arrivals
    from simspec.replay.cluster import check_cluster
    from simspec.replay.load import Server
    from simspec.replay.load_metrics import Counting
    from simspec.replay.sweep import cost_model
    from simspec.reports.load import OBJECTIVES, LoadPlan, LoadRuns, load_tables, plot_load
    from simspec.trace.recordings import locate, whole_cost
    from simspec.trace.trace import load_trace

    if by not in OBJECTIVES:
        raise ValueError(f"--by is {by!r}, expected one of {', '.join(OBJECTIVES)}")
    if cost is not None and terms is not None:
        raise ValueError("--cost and --terms both state costs: give one")
    if jobs < 1 or (cluster is not None and jobs > 1):
        raise ValueError(f"--jobs is {jobs}, expected at least 1, and 1 with a cluster")
    if len(rate or ()) > MOST_RATES or len(set(rate or ())) < len(rate or ()):
        raise ValueError(f"expected at most {MOST_RATES} rates, and each once")
    ((name, path),) = locate([recording]).items()
    if plot is not None:
        check_output(plot, path, *([cost] if cost else []), *([arrivals] if arrivals else []))
        if plot.suffix.lower() not in (".png", ".svg"):
            raise ValueError(f"{plot} is no picture's name, expected one that ends in .png or .svg")
    plan = LoadPlan(
        policy or (), tuple(rate or ()), Server(slots, tokens, not cached_prompts), context,
        requests, burst, read_arrivals(arrivals) if arrivals else (),
        Counting(warm_up, inf if ttft is None else ttft, inf if tpot is None else tpot),
        replicates, seed, level,
    )  # fmt: skip
    if cluster is not None:
        check_cluster(cluster)
    trace = load_trace(path)
    priced: Any
    if terms is not None:
        priced = parse_terms(terms).cost(trace.K, 0 if context is None else context, "stated")
    else:
        priced = whole_cost(path, cost)
        priced = cost_model(priced, trace) if isinstance(priced, float) else priced
    runs = LoadRuns(trace, priced, plan, jobs, cluster)
    with _progress(runs.count) as done:
        rows = runs.rows(done)
        crossing = runs.crossing(rows, by, done)
    tables = load_tables(name, rows, crossing, runs, by)
    data = {
        "recording": name, "seed": seed, "level": level, "covers": ["replications"], "by": by,
        "replicates": replicates, "slots": slots, "tokens": tokens, "capacity": runs.capacity,
        "crossing": crossing, "rows": rows,
    }  # fmt: skip
    print_result(data, tables[:1] if best else tables, as_json, markdown)
    if plot is not None:
        plot_load(rows, plot, by, name)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar of runs on a terminal."""
    if not sys.stderr.isatty():
        yield lambda policy: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("serving"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda policy: bar.advance(task)
