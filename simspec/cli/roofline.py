"""simspec roofline: costs of a model on a GPU, from data sheets or from measured kernels."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from simspec.cli.options import LONGEST_DRAFT, MOST_BATCH, MOST_CONTEXT, at_most

PANEL = "Record"
EXPECTED = (
    "error to expect of kernels alone, against published speeds of Llama-3.1-8B: plain steps 1 to "
    "3% (14% too fast at batch 128), rounds at batch 1 3% (worst 7%), rounds at batch 8 to 64 17 "
    "to 26% too fast; SGLang's host adds 14% at batch 1; sparse targets 35%: docs/costs.md"
)
"""What tools/kernel_errors.py prints."""


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
            help="A model's name; with --engine also eagle, eagle3 or ngram; without, the share "
            "of the target's layers before an early exit."
        ),
    ],
    device: Annotated[str, typer.Option(help="A GPU's name, such as h100.")] = "h100",
    engine: Annotated[
        str | None,
        typer.Option(
            help="vllm or sglang: its kernels as measured, in place of the data sheet's bound."
        ),
    ] = None,
    k: Annotated[
        int,
        typer.Option(
            "--depth", "-k", callback=at_most(LONGEST_DRAFT), help="Longest draft to price."
        ),
    ] = 16,
    nodes: Annotated[
        int,
        typer.Option(min=0, max=255, help="Most submitted tokens of a tree to price; 0: no trees."),
    ] = 0,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            callback=at_most(MOST_BATCH), help="Sequences decoded together, repeatable; default 1."
        ),
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option(
            callback=at_most(MOST_CONTEXT),
            help="Tokens before the round, repeatable; default 1024.",
        ),
    ] = None,
    weight_bytes: Annotated[
        float, typer.Option(help="Bytes of a weight of either model; with --engine 2, or 1 (fp8).")
    ] = 2.0,
    launch: Annotated[
        float, typer.Option(help="Seconds to launch a layer; no data sheet gives it.")
    ] = 0.0,
    tp: Annotated[
        int, typer.Option(min=1, max=8, help="With --engine: GPUs that share each layer.")
    ] = 1,
    constants: Annotated[
        str | None,
        typer.Option(
            help="With --engine: milliseconds outside the kernels, step=MS,row=MS,draft=MS, of a "
            "target pass, a row of it and a drafter pass."
        ),
    ] = None,
    graphs: Annotated[
        bool, typer.Option("--graphs", help="With --engine: pad rows to vLLM's captured sizes.")
    ] = False,
    kernels: Annotated[
        Path | None,
        typer.Option(help="With --engine: an AIConfigurator checkout, for other devices."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the cost model too.")] = False,
) -> None:
    """Price drafts and verifications of a model on a GPU: a lower bound from its data sheet, or
    the sum of an engine's kernels, measured by AIConfigurator.

    Example: simspec roofline --target llama-3-8b --drafter llama-3.2-1b --batch 1 --batch 16
    --out cost.json

    Example: simspec roofline --engine vllm --target llama-3.1-8b --drafter eagle3 --batch 1
    --batch 8 --batch 32 -k 7 --out h100.json

    What the kernels leave out, such as sampling and the host, is 0 unless --constants states it.
    """
    from simspec.output.files import check_output
    from simspec.output.terminal import print_text

    check_output(out)
    sizes = (k, sorted(set(batch or [1])), sorted(set(context or [1024])), nodes)
    if engine is None:
        if tp != 1 or constants is not None or graphs or kernels is not None:
            raise ValueError(
                "--tp, --constants, --graphs and --kernels say nothing without --engine, expected "
                "vllm or sglang"
            )
        table, notes = _bound((target, drafter, device), (weight_bytes, launch), sizes)
    else:
        if launch:
            raise ValueError("--launch is in the kernels of --engine already: drop it")
        prices = _prices((device, engine), kernels, constants, (tp, graphs))
        table, notes = _measured(prices, (target, drafter), weight_bytes, sizes)
    cost = table.simplest()
    cost.to_json(out)
    if as_json:
        print(json.dumps(cost.to_dict()))
    else:
        print_text("\n".join((*table.describe(), *_break_even(table), *notes)))
        print_text(f"wrote {out}")


def _break_even(table: Any) -> list[str]:
    """Lines of the tokens a round above which drafts pay: its cost in plain steps."""
    lengths = [k for k in (1, 3, 5, 7) if k <= table.K] or [table.K]
    found = []
    for size, row in zip(table.batch, table.cells):
        for tokens, cell in zip(table.context, row):
            if cell is not None:
                spent = [cell.overhead + cell.draft[k] + cell.verify[k] for k in lengths]
                costs = ", ".join(f"{seconds / cell.baseline:.2f}" for seconds in spent)
                drafts = ", ".join(map(str, lengths))
                found.append(
                    f"batch {size}, context {tokens}: drafts of {drafts} pay above {costs} tokens "
                    "a round"
                )
    return found


def _bound(names: Any, priced: tuple[float, float], sizes: Any) -> tuple[Any, list[str]]:
    from dataclasses import replace

    from simspec.cost.roofline import roofline_table
    from simspec.cost.shapes import DEVICES, SHAPES, ModelShape, look_up

    (target, drafter, device), (weight_bytes, launch) = names, priced
    target_shape = replace(look_up(SHAPES, "model", target), weight_bytes=weight_bytes)
    drafter_shape: ModelShape | float
    try:
        drafter_shape = float(drafter)
    except ValueError:
        drafter_shape = replace(look_up(SHAPES, "model", drafter), weight_bytes=weight_bytes)
    figures = replace(look_up(DEVICES, "device", device), launch=launch)
    k, batches, contexts, nodes = sizes
    table = roofline_table(target_shape, drafter_shape, figures, k, batches, contexts, nodes)
    return table, [f"a lower bound from the data sheet of {figures.name}"]


def _prices(
    named: tuple[str, str], kernels: Path | None, constants: str | None, options: tuple[int, bool]
) -> Any:
    from simspec.cost.kernel_files import checkout_times, shipped_times
    from simspec.cost.kernels import CAPTURED, KernelPrices

    times = shipped_times(*named) if kernels is None else checkout_times(kernels, *named)
    held = None if constants is None else _constants(constants)
    tp, graphs = options
    return KernelPrices(times, held, tp, CAPTURED if graphs else ())


def _constants(text: str) -> Any:
    """The constants of a text such as 'step=0.8,row=0.01', in milliseconds."""
    from simspec.cost.kernels import TERMS, EngineConstants

    held: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in TERMS or name in held:
            raise ValueError(
                f"{name[:40]!r} is no constant or given twice, expected some of {', '.join(TERMS)}"
            )
        try:
            held[name] = float(value) / 1000
        except ValueError:
            raise ValueError(f"{name} is {value[:40]!r}, expected milliseconds") from None
    return EngineConstants(**held)


def _measured(
    prices: Any, names: tuple[str, str], weight_bytes: float, sizes: Any
) -> tuple[Any, list[str]]:
    from dataclasses import replace

    from simspec.cost.kernels import kernel_table, pass_parts, pass_shares
    from simspec.cost.shapes import HEADS, SHAPES, draft_head, look_up

    target = replace(look_up(SHAPES, "model", names[0]), weight_bytes=weight_bytes)
    drafter: Any = None
    if names[1] in HEADS:
        drafter = draft_head(target, names[1])
    elif names[1] != "ngram":
        known = SHAPES | dict.fromkeys((*HEADS, "ngram"), target)
        drafter = replace(look_up(known, "drafter", names[1]), weight_bytes=weight_bytes)
    k, batches, contexts, nodes = sizes
    table = kernel_table(prices, target, drafter, k, batches, contexts, nodes)
    notes = [f"kernels of {prices.times.label}, {prices.times.source}, Apache-2.0"]
    for count in sorted({batches[0], batches[-1] * (k + 1)}):
        batch = batches[0] if count == batches[0] else batches[-1]
        parts = pass_parts(prices, target, count, batch, contexts[0])
        shares = ", ".join(f"{share:.0%} {status}" for status, share in pass_shares(parts).items())
        notes.append(f"target pass of {count} rows: {shares} of its seconds")
    held = prices.held
    notes.append(
        f"constants: {1e3 * held.step:g} ms a target pass, {1e3 * held.row:g} ms a row, "
        f"{1e3 * held.draft:g} ms a drafter pass" + ("" if prices.constants else " (none stated)")
    )
    return table, [*notes, EXPECTED]
