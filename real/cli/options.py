"""Options that several commands share, and what they mean."""

from pathlib import Path
from typing import Annotated

import typer

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
Recording = Annotated[str, typer.Argument(help="A recording's file or bundled name.")]
Policies = Annotated[
    list[str] | None,
    typer.Option("--policy", help="name[:arg,...], as in `simspec sweep`, repeatable."),
]
Prompts = Annotated[
    int, typer.Option(help="Only so many of its prompts, spread over the tasks; 0 for all.")
]
Cost = Annotated[
    Path | None,
    typer.Option(
        help="What policies are told; default: NAME.cost.json beside it, else a ratio of 0.1."
    ),
]


def rule_of_options(name: str, temperature: float, seed: int, top_k: int = 0, top_p: float = 1.0):
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


def read_tree_size(tree: str | None) -> tuple:
    if tree is None:
        return ()
    width, x, levels = tree.partition("x")
    if not (x and width.isdecimal() and levels.isdecimal()):
        raise ValueError(f"--tree is {tree!r}; expected WIDTHxLEVELS such as 4x6")
    return int(width), int(levels)


def load_models(models, drafter, device, dtype, target, weights, passes=None):
    from real.model.runner import EAGER
    from real.pair import TINY, load_pair

    return load_pair(models or TINY, drafter, device, dtype, target, weights, passes or EAGER)


def open_recording(name: str, prompts: int = 0):
    """(its file, the recording or some of its prompts)."""
    from real.pair import spread
    from simspec import load_trace
    from simspec.recordings import locate

    (path,) = locate([name]).values()
    trace = load_trace(path)
    if prompts < 0:
        raise ValueError(f"--prompts is {prompts}, expected a number of prompts, or 0 for all")
    return path, trace.select(spread(trace.sequences, prompts)) if prompts else trace


def cost_of(path: Path, cost: Path | None, K: int):
    from simspec import CostModel
    from simspec.recordings import costs_of

    told = costs_of({"": path}, None if cost is None else str(cost))[""]
    return told if isinstance(told, CostModel) else CostModel.from_ratio(told, K)
