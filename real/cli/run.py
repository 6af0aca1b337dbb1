"""The command `simspec run`."""

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
    Seed,
    TargetPath,
    Weights,
    load_models,
)
from real.cli.progress import show_progress
from real.progress import relabel


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
    from real.audit.engine_runs import emitted_sequences, run_header
    from real.audit.run_file import save_run
    from real.decode.engine import passes_for
    from real.decode.trees import beam
    from real.jobs import run_on
    from real.measure import MeasureSettings
    from real.measure import measure as time
    from real.pair import check_pair, rule_of, spread
    from simspec import CostModel, load_trace, policies
    from simspec.files import check_output
    from simspec.recordings import locate
    from simspec.tree_outcomes import check_trace
    from simspec.tree_policy import TreePolicy

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
    pair = load_models(models, recorded.meta.drafter, device, dtype, target, weights, passes)
    check_pair(recorded, pair, trace)
    with show_progress() as progress:
        if price is None:
            said = relabel(progress, "measuring")
            settings = MeasureSettings(repeats=2, tree_nodes=meant.submitted(recorded.K))
            rule = rule_of(recorded)
            price = time(pair.target, pair.drafter, rule, recorded.K, settings, said)
        found = run_on(recorded, pair, meant, price, seed, progress)
    if save is not None:
        save_run(
            save,
            run_header(rule_of(recorded), pair, found.policy, recorded.meta.end_tokens),
            emitted_sequences(recorded, found.results),
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
