"""A race against transformers on the same prompts, checkpoints and device."""

from real.bench import race
from real.bench.figures import draw_race
from real.bench.hf_generate import entrants, pairs
from real.bench.ranking import rows, summary
from real.campaign.config import REQUIRED
from real.campaign.selection import best_fixed
from real.campaign.workspace import Workspace
from real.files import replace_json
from real.pair import prompts_of, spread
from real.progress import relabel
from real.provenance import device_name
from simspec import policies


def race_transformers(workspace: Workspace) -> dict:
    """Bf16, greedy: our loop with every required drafter against transformers."""
    config, wanted, told = workspace.config, [], {}
    for drafter in (*REQUIRED, "prompt_lookup"):
        trace, cost = workspace.open_recording(drafter, "greedy")
        shown, told[drafter] = {name for name, _ in trace.meta.features}, cost
        texts = [
            text for text in config.policies.chains if set(policies.parse(text).reads) <= shown
        ]
        fixed = f"fixed:{max(1, best_fixed(trace, cost, workspace.seed))}"
        wanted += [
            f"{drafter}={text}"
            for text in (
                (fixed, *texts, config.policies.tree) if drafter == "model" else (fixed, "beta_ts")
            )
        ]
    trace, _ = workspace.open_recording("model", "greedy")
    trace = trace.select(spread(trace.sequences, config.race.prompts))
    made = pairs(workspace.models, trace, wanted, config.engine, workspace.device, "bfloat16")
    running = entrants(
        workspace.models,
        trace,
        made,
        wanted,
        config.race.rivals,
        told,
        workspace.seed,
        workspace.device,
        "bfloat16",
    )
    budgets = [min(int(budget), config.race.budget) for budget in trace.budget]
    progress = relabel(workspace.progress, "racing")
    ran = race.race(
        running,
        prompts_of(trace),
        budgets,
        trace.sequence.tolist(),
        config.race.repeats,
        workspace.seed,
        workspace.device,
        progress,
    )
    found = rows(ran, trace.meta.tasks)
    about = {
        "recording": workspace.trace("model", "greedy").stem,
        "device": device_name(workspace.device),
        "dtype": "bfloat16",
    }
    said = summary(
        ran,
        found,
        trace.meta.tasks,
        about
        | {"engine": config.engine, "prompts": trace.sequences, "repeats": config.race.repeats},
    )
    replace_json(workspace.out / "race.json", said)
    (workspace.out / "figures").mkdir(exist_ok=True)
    draw_race(found, about["device"], workspace.out / "figures" / "race.png")
    return {name: value for name, value in said.items() if name != "raw"}
