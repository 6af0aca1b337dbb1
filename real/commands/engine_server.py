"""The command `simspec engine server`."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from real.commands.engine_options import SMOLLM2, Budget, Count, Part, Recording, prompt_choice
from real.commands.options import Json, show_progress
from simspec.cli.options import MOST_BATCH, at_most

LONGEST = 64


def server(
    url: Annotated[str, typer.Argument(help="Address of a vLLM server: http://HOST:PORT.")],
    out: Annotated[
        Path, typer.Option(help="Folder for responses.jsonl, before.prom and after.prom.")
    ],
    k: Annotated[
        int,
        typer.Option(
            "-k", "--k", min=1, callback=at_most(LONGEST), help="num_speculative_tokens there."
        ),
    ],
    recording: Recording = SMOLLM2,
    drafter: Annotated[
        str,
        typer.Option(help="ngram:LEAST,MOST; model: --recording then holds the model's drafts."),
    ] = "ngram:1,3",
    prompts: Count = 24,
    part: Part = "1/1",
    budget: Budget = 96,
    concurrent: Annotated[
        int, typer.Option(callback=at_most(MOST_BATCH), help="Requests in flight together.")
    ] = 1,
    model: Annotated[
        str | None, typer.Option(help="The server's name for the model, where it has several.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=86_400.0, help="A request may take.")
    ] = 300.0,
    shown: Annotated[int, typer.Option(help="Exceptions listed.")] = 20,
    as_json: Json = False,
) -> None:
    """Run prompts on a running vLLM server, and compare the rounds it reports with the replay.

    The server needs --per-request-spec-decode-metrics detailed, and no other user meanwhile. A key
    is read from the variable VLLM_API_KEY. The exit code is 1 where a round differs and no near-tie
    explains it. `simspec import vllm-requests` reads the responses, `vllm-prometheus` the counters.

    Example: simspec engine server http://127.0.0.1:8000 -k 3 --out served/
    """
    from real.engines.served import compare_served
    from real.engines.vllm_server import Served, Server, run_on_server, write_responses
    from simspec import load_trace
    from simspec.engines.ngram import ngram_rule
    from simspec.output.names import printable
    from simspec.output.table import print_table
    from simspec.output.terminal import print_text
    from simspec.trace.recordings import locate

    method, _, sizes = drafter.partition(":")
    if method not in ("ngram", "model"):
        raise ValueError(f"--drafter is {drafter!r}, expected ngram:1,3 or model")
    rule = ngram_rule(f"vllm:{sizes or '1,3'}") if method == "ngram" else None
    (path,) = locate([recording]).values()
    trace = load_trace(path)
    requests = prompt_choice(prompts, part, budget, 1).of(trace)
    address = Server(url, model, os.environ.get("VLLM_API_KEY"), seconds)
    done: list[Served] = []
    with show_progress() as progress:

        def keep(served: Served) -> None:
            done.append(served)
            progress("requests", len(done), len(requests))

        try:
            run = run_on_server(address, requests, keep, concurrent)
        except BaseException:
            if done:
                out.mkdir(parents=True, exist_ok=True)
                write_responses(out, done)
            raise
    out.mkdir(parents=True, exist_ok=True)
    run.write(out)
    result = compare_served(run.served, requests, k, rule, trace)
    if as_json:
        about = {"version": run.version, "model": run.model, "seconds": run.seconds}
        print(json.dumps({"about": about, "rounds": result.to_dict()}))
        raise typer.Exit(0 if result.equal else 1)
    who = printable(f"vllm {run.version}, {run.model}")
    print_table(
        ("counter", "server", "predicted"),
        [(name, *map(str, both)) for name, both in result.counters[k].items()],
        title=f"{who}: {result.requests} requests, {result.passes} rounds with a draft, "
        f"{run.seconds:.1f} s; {len(result.exceptions)} exceptions, {result.explained}, "
        f"{result.left_out} left out; wrote {out}",
    )
    for difference in result.exceptions[: max(shown, 0)]:
        print_text(
            f"{difference.id}: {difference.kind} {difference.place}, server {difference.engine}, "
            f"predicted {difference.predicted}"
        )
    raise typer.Exit(0 if result.equal else 1)
