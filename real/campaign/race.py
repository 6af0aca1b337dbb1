"""A race against transformers on the same prompts, checkpoints and device."""

from dataclasses import asdict

from real.bench.contestants import Checkpoints, HfModels, load_pairs, our_contestants, requests_of
from real.bench.race import race
from real.bench.race_figure import draw_race
from real.bench.race_rows import race_rows
from real.bench.ranking import race_summary
from real.bench.tuning import other_prompts, resolve, tune, with_plain
from real.campaign.config import REQUIRED
from real.campaign.selection import best_fixed, select_prompts
from real.campaign.workspace import Workspace
from real.files import replace_json
from real.progress import relabel
from real.provenance import device_name
from simspec import CostModel, policies


def race_transformers(workspace: Workspace) -> dict:
    """Bf16, greedy: our loop with every required drafter against transformers."""
    config = workspace.config
    wanted: list[str] = []
    costs: dict[str, CostModel] = {}
    for drafter in (*REQUIRED, "prompt_lookup"):
        trace, cost = workspace.open_recording(drafter, "greedy")
        features, costs[drafter] = {name for name, _ in trace.meta.features}, cost
        texts = [
            text for text in config.policies.chains if set(policies.parse(text).reads) <= features
        ]
        fixed = f"fixed:{max(1, best_fixed(trace, cost, workspace.seed))}"
        wanted += [
            f"{drafter}={text}"
            for text in (
                (fixed, *texts, config.policies.tree) if drafter == "model" else (fixed, "beta_ts")
            )
        ]
    whole, _ = workspace.open_recording("model", "greedy")
    trace = select_prompts(whole, config.race.prompts)
    others = other_prompts(whole, trace, config.race.tune_prompts)
    checkpoints = Checkpoints(workspace.models, workspace.device, "bfloat16")
    pairs = load_pairs(checkpoints, trace, wanted, config.engine)
    contestants = our_contestants(trace, pairs, wanted, costs, workspace.seed)
    rivals = with_plain(config.race.rivals)
    models = HfModels.load(checkpoints, rivals)
    tuning = tune(
        rivals,
        lambda names: models.contestants(others, names),
        requests_of(others, config.race.budget),
        others.meta.ids,
        workspace.seed,
        relabel(workspace.progress, "tuning transformers"),
    )
    contestants += models.contestants(trace, resolve(rivals, tuning))
    requests = requests_of(trace, config.race.budget)
    progress = relabel(workspace.progress, "racing")
    runs = race(
        contestants, requests, config.race.repeats, workspace.seed, workspace.device, progress
    )
    rows = race_rows(runs, trace.meta.tasks)
    about = {
        "recording": workspace.trace("model", "greedy").stem,
        "device": device_name(workspace.device),
        "dtype": "bfloat16",
    }
    result = race_summary(
        runs,
        rows,
        trace.meta.tasks,
        about
        | {
            "engine": config.engine,
            "prompts": trace.sequences,
            "repeats": config.race.repeats,
            "tuning": {method: asdict(found) for method, found in tuning.items()},
        },
    )
    replace_json(workspace.out / "race.json", result)
    (workspace.out / "figures").mkdir(exist_ok=True)
    draw_race(rows, about["device"], workspace.out / "figures" / "race.png")
    return {name: value for name, value in result.items() if name != "raw"}
