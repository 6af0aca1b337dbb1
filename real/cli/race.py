"""The command `simspec race`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from real.cli.options import (
    Device,
    Dtype,
    Engine,
    Json,
    Models,
    Recording,
    Seed,
    TargetPath,
    cost_of,
    open_recording,
)
from real.cli.progress import show_progress
from real.cli.tables import _table
from real.progress import relabel

OURS = ("fixed:1", "fixed:2", "fixed:4", "beta_ts", "cali_ts", "confidence:0.5", "static:2x1x1")


Costs = Annotated[
    list[str] | None,
    typer.Option(
        "--cost",
        help="drafter=COST.json that its policies are told, repeatable; default: the recording's, or 0.1.",
    ),
]


def race(
    trace: Recording,
    contestant: Annotated[
        list[str] | None,
        typer.Option(help="drafter=policy of ours, repeatable; default: some of `model`."),
    ] = None,
    rival: Annotated[
        list[str] | None,
        typer.Option(
            help="generate, generate_static, assisted:SCHEDULE[,tokens[,threshold]], prompt_lookup:tokens; none; default: all."
        ),
    ] = None,
    prompts: Annotated[
        int, typer.Option(help="Only so many of its prompts, spread over the tasks; 0 for all.")
    ] = 12,
    repeats: Annotated[
        int, typer.Option(help="Times that every contestant meets every prompt.")
    ] = 3,
    cost: Costs = None,
    engine: Engine = "eager",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the rows, the seconds of every call, device and versions as JSON."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Write a PNG: tokens a second, on all prompts and on those that loop little."
        ),
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    models: Models = None,
    target: TargetPath = None,
    seed: Seed = 0,
    as_json: Json = False,
):
    """Race our loop against transformers on a recording's prompts: greedy, one at a time, whole calls by the clock, in shuffled order.

    Never recommends a drafter and policy that is slower than what does not draft.

    Example: simspec race tiny-model-greedy --contestant model=fixed:2 --contestant model=beta_ts --prompts 6 --repeats 3 --out race.json
    """
    import torch

    from real.bench.figures import draw_race
    from real.bench.hf_generate import RIVALS, check_own, check_rival, entrants, pairs
    from real.bench.race import PLAIN
    from real.bench.race import race as run_race
    from real.bench.ranking import rows, summary
    from real.pair import DTYPES, TINY, check_pair, prompts_of
    from real.provenance import argv, check_device, device_name, revision, versions
    from simspec import CostModel
    from simspec.files import check_output, write_json
    from simspec.rng import check_seed

    check_device(device)
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is unknown; expected one of {', '.join(DTYPES)}")
    if repeats < 1:
        raise ValueError(f"--repeats is {repeats}, expected at least 1")
    check_seed(seed)
    wanted = list(dict.fromkeys(contestant or [f"model={policy}" for policy in OURS]))
    asked = list(dict.fromkeys(rival or RIVALS))
    if "none" in asked and len(asked) > 1:
        raise ValueError(
            f"rivals are {', '.join(asked)}; expected none alone, or the others without it"
        )
    asked = [] if asked == ["none"] else asked
    drafters = {check_own(text)[0] for text in wanted}
    for text in asked:
        check_rival(text)
    path, recorded = open_recording(trace, prompts)
    read = [path, *(text.partition("=")[2] for text in cost or ())]
    for i, each in enumerate(written := [each for each in (out, plot) if each is not None]):
        check_output(each, *read, *written[:i])
    told = {recorded.meta.drafter: cost_of(path, None, recorded.K)}
    for text in cost or ():
        drafter, equals, file = text.partition("=")
        if not equals or drafter not in drafters:
            raise ValueError(
                f"--cost is {text!r}; expected drafter=COST.json, of a drafter among {', '.join(sorted(drafters))}"
            )
        told[drafter] = CostModel.from_json(file)
    folder = models or TINY
    made = pairs(folder, recorded, wanted, engine, device, dtype, target)
    check_pair(recorded, made[PLAIN], trace)
    running = entrants(folder, recorded, made, wanted, asked, told, seed, device, dtype, target)
    with show_progress() as progress:
        texts = prompts_of(recorded), recorded.budget.tolist(), recorded.sequence.tolist()
        ran = run_race(
            running, *texts, repeats, seed, device, relabel(progress, f"racing on {trace}")
        )
    found = rows(ran, recorded.meta.tasks)
    about = {
        "recording": trace,
        "target": made[PLAIN].name,
        "device": device_name(device),
        "dtype": dtype,
        "engine": engine,
    }
    about |= {
        "prompts": recorded.sequences,
        "repeats": repeats,
        "seed": seed,
        "ids": list(recorded.meta.ids),
    }
    about |= {
        "matmul": torch.get_float32_matmul_precision(),
        "versions": versions(),
        "git": revision(),
        "argv": list(argv()),
    }
    said = summary(ran, found, recorded.meta.tasks, about)
    if out is not None:
        write_json(out, said)
    if plot is not None:
        draw_race(found, about["device"], plot)
    print(json.dumps(said)) if as_json else _print(said, found)


def _print(said: dict, found) -> None:
    from real.prompts import ALL, LOW_REPEAT

    for group in (ALL, LOW_REPEAT):
        here = sorted((r for r in found if r.group == group), key=lambda r: -(r.rate or 0.0))
        if not here[0].prompts:
            print(f"{group}: no prompts")
            continue
        title = f"{group}: {here[0].prompts} prompts, {said['device']}, {said['dtype']}, {said['engine']} passes of ours"
        heads = (
            "contestant",
            "tok/s",
            "spread",
            "x plain",
            "95%",
            "x generate",
            "first token",
            "tok/s after",
            "tok/pass",
        )
        table, console = _table(title, *heads, "texts as plain's")
        for r in here:
            if r.rate is None:
                table.add_row(r.contestant, *["-"] * 9)
                continue
            interval = "-" if r.low is None else f"{r.low:.2f} to {r.high:.2f}"
            told = (
                f"{r.rate:.1f}",
                _or(r.spread, ".1%"),
                f"{r.speedup:.2f}",
                interval,
                _or(r.over_generate, ".2f"),
            )
            behind = (
                f"{r.first * 1e3:.2f} ms",
                _or(r.after, ".1f"),
                f"{r.per_pass:.2f}",
                f"{r.equal} of {r.prompts}",
            )
            table.add_row(r.contestant, *told, *behind)
        console.print(table)
    tasks = [
        group for group in dict.fromkeys(r.group for r in found) if group not in (ALL, LOW_REPEAT)
    ]
    table, console = _table(
        "times plain by task", "contestant", *(group.partition(":")[2] for group in tasks)
    )
    speedups = {(r.contestant, r.group): _or(r.speedup, ".2f") for r in found}
    for r in (r for r in found if r.group == ALL and r.rate is not None):
        table.add_row(r.contestant, *(speedups[r.contestant, group] for group in tasks))
    console.print(table)
    for r in (r for r in found if r.group == ALL and (r.error or r.remark)):
        print(f"{r.contestant}: {r.error and 'could not run: '}{r.error or r.remark}")
    for each in said["over_assisted"]:
        interval = "" if each["low"] is None else f" [{each['low']:.2f}, {each['high']:.2f}]"
        print(
            f"{each['contestant']} over {each['assisted']}, {each['group']} ({each['prompts']} prompts): {each['ratio']:.2f}x{interval}"
        )
    print(said["verdict"])


def _or(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
