"""Options of `simspec engine run` and `measure`, and the runs that they ask for."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from real.commands.options import MOST_TOKENS, show_progress
from simspec.cli.options import MOST_PROMPTS, MOST_REPEATS, MOST_THREADS, at_most

if TYPE_CHECKING:
    from real.engines import Engine, EngineSettings, Request
    from real.engines.run import Plan, Prompts

Name = Annotated[str, typer.Argument(help="An engine of `simspec engine list`.")]
Model = Annotated[
    Path, typer.Option(help="The target: a folder of safetensors, or a GGUF file for llama.cpp.")
]
Recording = Annotated[
    str, typer.Option(help="Recording whose prompts run; its texts are the target's own.")
]
Draft = Annotated[
    str,
    typer.Option(
        "--drafter",
        help="ngram:LEAST,MOST, none for plain decoding, or the path of a draft model; for vLLM "
        "also of a head of `simspec export drafter`, or in simspec's proposer suffix or "
        "eagle:FOLDER.",
    ),
]
Count = Annotated[
    int,
    typer.Option(
        "--prompts", callback=at_most(MOST_PROMPTS), help="Prompts to run, evenly spaced; 0: all."
    ),
]
Budget = Annotated[
    int, typer.Option(callback=at_most(MOST_TOKENS), help="New tokens; 0: as the recording allows.")
]
Part = Annotated[
    str,
    typer.Option(
        help="PART/PARTS: every PARTS-th prompt; 1-3/4: three of four parts. Costs and speedups "
        "need different parts."
    ),
]
Repeats = Annotated[
    int, typer.Option(callback=at_most(MOST_REPEATS), help="Runs of every prompt and length.")
]
Threads = Annotated[
    int, typer.Option(callback=at_most(MOST_THREADS), help="Threads of the engine.")
]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
Fast = Annotated[
    bool,
    typer.Option("--fast", help="The engine's fast settings, where its texts depend on K or not."),
]
Untested = Annotated[
    bool, typer.Option("--untested", help="Accept a version of the engine that was not tested.")
]
SMOLLM2 = "traces/smollm2/greedy/prompt_lookup.parquet"


def engine_settings(
    model: Path, drafter: str, k: int, threads: int, dtype: str, exact: bool, batch: int
) -> "EngineSettings":
    """The settings of these options; ValueError for an invalid drafter, or no model."""
    from real.engines import EngineSettings, ModelDraft, NgramDraft, PolicyDraft

    if not model.exists():
        raise ValueError(f"--model {model} is not here, expected a folder of safetensors or a GGUF")
    method, _, rest = drafter.partition(":")
    draft: NgramDraft | ModelDraft | PolicyDraft | None = None
    sizes = rest.split(",") if rest else ["1", "3"]
    if method == "ngram" and len(sizes) <= 2 and all(s.isdecimal() for s in sizes):
        draft = NgramDraft(max(k, 1), int(sizes[0]), int(sizes[-1]))
    elif (method == "model" and rest) or Path(drafter).exists():
        draft = ModelDraft(max(k, 1), Path(rest if method == "model" and rest else drafter))
    elif method == "eagle" and rest:
        draft = PolicyDraft(max(k, 1), eagle=Path(rest))
    elif drafter == "suffix":
        draft = PolicyDraft(max(k, 1), suffix={})
    elif drafter != "none":
        raise ValueError(
            f"--drafter is {drafter!r}, expected ngram:1,3, a path, eagle:FOLDER, suffix or none"
        )
    return EngineSettings(model, draft, threads, dtype, batch=batch, exact=exact)


def with_policies(
    settings: "EngineSettings",
    policies: Sequence[str],
    cost: Path | None,
    schedule: Path | None,
    seed: int,
) -> "EngineSettings":
    """The settings with simspec's proposer; ValueError for what it cannot run."""
    from dataclasses import replace

    from real.decode.features import feature_grids
    from real.engines import ModelDraft, NgramDraft, PolicyDraft
    from simspec import CostModel, Stepper
    from simspec.engines.suffix import FEATURES
    from simspec.engines.vllm_proposer import served_policy

    draft = settings.draft
    if schedule is not None or draft is None:
        raise ValueError("--policy decides draft lengths: leave --schedule out, and name a drafter")
    given = None if cost is None else CostModel.from_json(cost)
    held = None if given is None else replace(given, precision=None).to_dict()
    if isinstance(draft, NgramDraft):
        steered = PolicyDraft(draft.k, draft.ngram_min, draft.ngram_max)
    elif isinstance(draft, ModelDraft):
        steered = PolicyDraft(draft.k, model=draft.model)
    else:
        steered = draft
    for text in policies:  # refused here, not in the engine
        policy, planned = served_policy(text, draft.k, given)
        shown: tuple[tuple[str, str], ...] = ()
        if steered.suffix is not None and policy.reads:
            shown = FEATURES
        if steered.model is not None or steered.eagle is not None:
            shown = feature_grids(policy.reads)
        Stepper(policy, draft.k, seed, planned, shown)
    steered = replace(steered, cost=held)
    return replace(settings, draft=steered, seed=seed)


def prompt_choice(count: int, part: str, budget: int, batch: int) -> "Prompts":
    """The prompts of these options; ValueError for an invalid part."""
    from real.engines.run import Prompts

    found = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?/(\d{1,3})", part, re.ASCII)
    if not found:
        raise ValueError(f"--part is {part!r}, expected PART/PARTS such as 1/2 or 1-3/4")
    last = None if found[2] is None else int(found[2])
    return Prompts(count, int(found[1]), int(found[3]), budget, last, batch)


def adapter_of(name: str, settings: "EngineSettings") -> "Engine":
    """The engine of that name; ValueError for an unknown one, and settings that it cannot have."""
    from real.engines import RELEASED

    if name not in RELEASED:
        raise ValueError(f"engine {name!r} is unknown, expected one of {', '.join(RELEASED)}")
    RELEASED[name].start(settings)
    return RELEASED[name]


def start(
    name: str,
    settings: "EngineSettings",
    recording: str,
    chosen: "Prompts",
    plan: "Plan",
    out: Path,
    force: bool | None,
    untested: bool,
) -> Any:
    """Runs the plan in the engine's environment; the errors of its parts, one line each."""
    from simspec import load_trace
    from simspec.output.files import check_output
    from simspec.trace.recordings import locate

    check_output(out)
    adapter_of(name, settings)
    (path,) = locate([recording]).values()
    requests = chosen.of(load_trace(path))
    return run_requests(name, settings, requests, plan, out, force, untested)


def run_requests(
    name: str,
    settings: "EngineSettings",
    requests: "Sequence[Request]",
    plan: "Plan",
    out: Path,
    force: bool | None,
    untested: bool,
) -> Any:
    """Runs the plan on these requests in the engine's environment, with a bar of progress."""
    from dataclasses import replace

    from real.engines import Worker, find_environment
    from real.engines.run import run_on_engine

    adapter = adapter_of(name, settings)
    environment = find_environment(adapter, untested)
    longest = max(len(request.prompt) + request.max_tokens for request in requests)
    settings = replace(settings, longest=longest + 2 * max(plan.ks) + 2)
    with show_progress() as progress:
        return run_on_engine(
            lambda: Worker(adapter, environment), settings, requests, plan, out, force, progress
        )
