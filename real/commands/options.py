"""Options that several commands share, their progress display, and the text on engines."""

import sys
import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated

import typer

from real.progress import quiet
from simspec.cli.options import MOST_PROMPTS, MOST_THREADS, at_most, check_seed
from simspec.output.names import printable

if TYPE_CHECKING:
    from rich.progress import TaskID


DRAFTERS = ", ".join(file.name for file in iter_modules([f"{Path(__file__).parents[1]}/drafters"]))
"""Names of the drafters, which are those of their files: help imports none of them."""
MOST_TOKENS = 1 << 20
"""Most tokens of a sequence: caches are allocated for all of them."""
MOST_WIDTH = 4096
"""Rows that a sequence passes at once."""
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")]
Dtype = Annotated[str, typer.Option(help="float32, float64 or bfloat16.")]


def use_threads(count: int) -> int:
    """Sets torch's threads, unless 0; ValueError for a number of threads that nobody has."""
    if not 0 <= count <= MOST_THREADS:
        raise ValueError(f"--threads is {count}, expected at most {MOST_THREADS}, or 0")
    if count:
        import torch

        torch.set_num_threads(count)
    return count


def check_recordings(*names: str) -> None:
    """TraceError or ValueError for recordings that cannot be opened, before torch is imported."""
    from simspec.trace.file import stored_meta
    from simspec.trace.recordings import locate

    for path in locate(names).values() if names else ():
        stored_meta(path)


Threads = Annotated[
    int,
    typer.Option(
        callback=use_threads,
        help="Threads of torch, part of what was measured; 0: torch's own choice.",
    ),
]
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
DrafterName = Annotated[str, typer.Option("--drafter", help=f"{DRAFTERS}.")]
DrafterNames = Annotated[
    list[str] | None, typer.Option("--drafter", help=f"{DRAFTERS}; repeatable; default: model.")
]
RuleName = Annotated[
    str,
    typer.Option(
        "--rule",
        help="greedy; coupled (noise keyed by position: replays exactly); "
        "rejection (accept draws: replays in distribution).",
    ),
]
Temperature = Annotated[
    float,
    typer.Option(
        help="Divides the logits, where the rule is not greedy; 1 is the model's own distribution."
    ),
]
TopK = Annotated[
    int, typer.Option("--top-k", help="Number of best tokens that can be picked; 0: all.")
]
TopP = Annotated[
    float,
    typer.Option("--top-p", help="Only the fewest best tokens that hold this share can be picked."),
]
Engine = Annotated[
    str,
    typer.Option(
        help="eager; fast: padded passes, captured once (for a GPU); "
        "strict: one width, so that bfloat16 output is equal under every policy."
    ),
]
Seed = Annotated[int, typer.Option(callback=check_seed, help="Of all draws.")]
ChatTemplate = Annotated[
    str,
    typer.Option(
        "--chat-template",
        help='How "turns" become a prompt. auto: by the tokenizer\'s chat template, else in plain '
        "styles for base models; none: those styles; or a Jinja file.",
    ),
]
Turns = Annotated[
    str,
    typer.Option(
        help='Which of "turns": first; or all, later ones after the target\'s own answers.'
    ),
]
System = Annotated[str, typer.Option(help="System prompt; needs a chat template.")]
Recording = Annotated[str, typer.Argument(help="A recording's file or bundled name.")]
Policies = Annotated[
    list[str] | None,
    typer.Option("--policy", help="name[:arg,...], as in `simspec sweep`, repeatable."),
]
Prompts = Annotated[
    int,
    typer.Option(
        callback=at_most(MOST_PROMPTS),
        help="Number of its prompts, spread over the tasks; 0 for all.",
    ),
]
Budget = Annotated[
    int,
    typer.Option(
        callback=at_most(MOST_TOKENS), help="Most new tokens of a prompt; 0: as recorded."
    ),
]
Cost = Annotated[
    Path | None,
    typer.Option(
        help="Costs that policies observe; default: NAME.cost.json next to it, else a ratio of 0.1."
    ),
]


def parse_rule(name: str, temperature: float, seed: int, top_k: int = 0, top_p: float = 1.0):
    """The rule of these options; greedy ignores the temperature and the seed."""
    from real.sampling import Rule
    from simspec.numerics.rng import check_seed

    check_seed(seed)
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature is {temperature}, expected a finite number >= 0")
    if name == "greedy":
        return Rule(name, top_k=top_k, top_p=top_p)
    return Rule(name, temperature, seed, top_k, top_p)


def parse_tree_size(text: str | None) -> tuple:
    """(width, levels) of WIDTHxLEVELS; () where none is given."""
    if text is None:
        return ()
    width, x, levels = text.partition("x")
    if not (x and width.isdecimal() and levels.isdecimal()):
        raise ValueError(f"--tree is {text!r}; expected WIDTHxLEVELS such as 4x6")
    return int(width), int(levels)


LOG_SECONDS = 60
"""Without a terminal, time between two lines of a label that is not finished."""


@contextmanager
def show_progress(shown: bool = True):
    """Gives a progress callback: bars on stderr; without a terminal, a line a minute and at the end
    of a label.

    Nothing of it where it is not `shown`.
    """
    if not shown:
        yield quiet
        return

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    bars: dict[str, TaskID] = {}
    finished: set[str] = set()
    said = time.monotonic()
    note = TextColumn("{task.fields[note]}", markup=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        note,
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as display:

        def progress(label: str, done: int, total: int, note: str = "") -> None:
            nonlocal said
            label, note = printable(label), printable(note)
            if label not in bars:
                bars[label] = display.add_task(label, total=total, note=note)
            display.update(bars[label], completed=done, total=total, note=note)
            due = time.monotonic() - said >= LOG_SECONDS
            news = due if done < total else label not in finished
            if news and not console.is_terminal:
                print(f"{label}: {done}/{total} {note}".rstrip(), file=sys.stderr, flush=True)
                said = time.monotonic()
            (finished.add if done == total else finished.discard)(label)

        yield progress


def describe_engines(engines: Mapping[str, str]) -> str:
    """The engines that ran, such as "target engine fast, drafter engine eager"."""
    return ", ".join(f"{model} engine {engine}" for model, engine in engines.items())
