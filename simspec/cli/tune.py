"""simspec tune: a policy's arguments, chosen on half of the prompts and reported on the rest."""

from dataclasses import dataclass
from typing import Annotated, Any

from simspec.cli.replayed import Cost, Json, Seed, Traces
from simspec.output.frames import show
from simspec.output.terminal import progress_bar
from simspec.settings import Settings, argument, command, option

PANEL = "Decide"


@dataclass(frozen=True)
class Tune(Settings):
    """Settings of a search for arguments, see its options."""

    policy: Annotated[str, argument("name[:arg,...]; arguments that are given are kept.")]
    traces: Traces = ()
    cost: Cost = None
    trials: Annotated[int, option("Settings to replay, about.", ge=16, le=100_000)] = 256
    seed: Seed = 0
    as_json: Json = False


@command
def tune(settings: Tune) -> None:
    """Tune a policy's arguments on every second prompt, and report what is left on the others.

    One setting for all recordings that are named together.

    Example: simspec tune cost_ts tiny-model-greedy

    Example: simspec tune product:predictor=theta mine.parquet --cost cost.json --trials 1000
    """
    from simspec.cli.replayed import print_notes, servable_groups
    from simspec.replay.evaluation import covers, covers_text
    from simspec.reports.tuning import Search, default_text, tuning_frame
    from simspec.reports.tuning import tune as tune_policy
    from simspec.trace.recordings import check_priced, comparable_costs, cost_notes, locate

    search = Search(settings.trials, seed=settings.seed)
    start = default_text(settings.policy)
    paths = locate(settings.traces or None)
    costs, notes = comparable_costs(paths, settings.cost)
    check_priced(costs)
    print_notes(notes)
    groups = servable_groups(paths, [start], costs)
    served = {name: trace for _, group in groups for name, trace in group.items()}
    with progress_bar("tuning", search.trials) as advance:
        tuning = tune_policy(served, settings.policy, costs, search, advance)
    table = tuning_frame(tuning, covers_text(costs.values(), search.level))
    table.attrs["notes"] += cost_notes(paths, costs, settings.cost)
    about: dict[str, Any] = {"seed": search.seed, "level": search.level}
    about |= {
        "covers": covers(costs.values()),
        "default": tuning.default,
        "tuned": tuning.tuned,
        "settings": tuning.settings,
    }
    show(table, settings.as_json, **about)
