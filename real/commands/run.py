"""The command `simspec run`."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from real.commands.options import check_recordings, describe_engines, show_progress
from real.model_settings import ModelSettings, open_recording, policy_cost_of
from real.progress import Progress, quiet, relabel
from simspec import CostModel, Trace, policies
from simspec.numerics.rng import check_seed
from simspec.output.files import check_output
from simspec.output.frames import DataFrame, show
from simspec.output.terminal import print_text
from simspec.reports.speedup_curve import check_plots, plot_policies
from simspec.settings import Settings, argument, command, option

if TYPE_CHECKING:
    from real.audit.forced_decoding import ForcedComparison, SampledForcedComparison
    from real.pair import Pair
    from real.rerun import Outcome, SampledOutcome

PANEL = "Run and verify"


@dataclass(frozen=True)
class Run(Settings):
    """What is run on a recording's prompts, and what it is compared with."""

    recording: Annotated[
        str, argument("A recording's file or bundled name; its prompts and rule are run again.")
    ]
    policy: Annotated[
        tuple[str, ...],
        option("name[:arg,...], as in `simspec sweep`, trees too. Repeatable with --compare."),
    ] = ("beta_ts",)
    cost: Annotated[
        Path | None,
        option(
            "Cost model's JSON; default: NAME.cost.json beside the recording, else a ratio of 0.1; "
            "with --compare measured now."
        ),
    ] = None
    prompts: Annotated[
        int, option("Number of its prompts, spread over the tasks; 0: all.", ge=0, le=1_000_000)
    ] = 0
    budget: Annotated[
        int, option("Most new tokens of a prompt; 0: as recorded.", ge=0, le=1 << 20)
    ] = 0
    drafter: Annotated[
        str,
        option(
            "Another drafter than the recording's: only its tokens are compared. The way to run "
            "lookahead, which is never recorded."
        ),
    ] = ""
    compare: Annotated[
        bool,
        option(
            "Time the policies, plain decoding and the rival in shuffled blocks on each prompt: "
            "predicted beside measured speedups.",
            "--compare",
        ),
    ] = False
    rival: Annotated[
        Literal["generate", "none"], option("With --compare: transformers' generate too; or none.")
    ] = "generate"
    repeats: Annotated[
        int, option("With --compare: runs of every contestant.", ge=1, le=10_000)
    ] = 5
    teacher_force: Annotated[
        bool,
        option(
            "Commit the recorded tokens, so that rounds compare in any dtype.", "--teacher-force"
        ),
    ] = False
    save: Annotated[
        Path | None,
        option(
            "Write texts and rounds to this .jsonl, for `simspec audit`; with --compare finished "
            "repeats to this .json, killed it continues there."
        ),
    ] = None
    plot: Annotated[
        Path | None, option("With --compare: draw predicted and measured speedups into this .png.")
    ] = None
    models: ModelSettings = ModelSettings()
    seed: Annotated[int, option("Of all draws.")] = 0
    as_json: Annotated[bool, option("Print one JSON object on stdout.", "--json")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seed(self.seed)
        if self.compare and self.teacher_force:
            raise ValueError("--compare and --teacher-force are two kinds of run; give one")
        if not self.compare and len(self.policy) != 1:
            raise ValueError(
                f"{len(self.policy)} policies given; expected one, or several with --compare"
            )
        if self.save is not None and self.teacher_force:
            raise ValueError("--teacher-force writes no texts of its own; leave --save out")
        if self.plot is not None:
            if not self.compare:
                raise ValueError("--plot draws what --compare measures; give both")
            check_plots(self.plot)

    def open(self) -> tuple[Path, Trace]:
        """(file, the recording's prompts that are run)."""
        path, trace = open_recording(self.recording, self.prompts)
        if self.save is not None:
            check_output(self.save, path, self.cost or "")
        if self.plot is not None:
            check_output(self.plot, path)
        return path, trace.shorten(self.budget) if self.budget else trace


@command
def run(settings: Run) -> None:
    """Run a policy for real on a recording's prompts and compare every round with the replay.

    Exits with code 1 if rounds differ.

    Under the rejection rule the run draws its own tokens: its rounds are compared with replays in
    distribution.

    --compare: several policies, plain decoding and transformers run back to back on each prompt, in
    shuffled order; a table shows speedups predicted by replays beside measured ones, at costs of
    this device. Exits with code 1 if they differ beyond noise. Fewer than 5 repeats or 20 prompts
    are no measurement to publish.

    --teacher-force: exits with code 1 unless 97% of rounds accept as recorded, and every token that
    is not the target's pick is within rounding of the dtype.

    Example: simspec run tiny-model-greedy --policy fixed:3 --prompts 20

    Speedups: simspec run tiny-model-greedy --compare --policy fixed:2 --policy beta_ts --prompts 20

    Lookahead decoding: simspec run tiny-model-greedy --drafter lookahead --policy fixed:4
    """
    check_recordings(settings.recording)
    settings.models.use_threads()
    with show_progress() as progress:
        if settings.compare:
            table, about = compare_recording(settings, progress)
        elif settings.teacher_force:
            said, summary, sound = force_recording(settings, progress)
        else:
            outcome = run_recording(settings, progress)
            said, summary = outcome.describe(), outcome.summary()
            sound = outcome.equal
    if settings.compare:
        if settings.plot is not None:
            from real.contest import PLAIN

            shown = table.dropna(subset=["measured"]).set_index("contestant").drop(PLAIN)
            predicted = shown.predicted.dropna().to_dict()
            plot_policies(predicted, shown.measured.to_dict(), settings.plot)
        show(table, settings.as_json, **(about if settings.as_json else {}))
        if "remark" in table and table.remark.notna().any():
            raise typer.Exit(1)
        return
    if settings.as_json:
        print(json.dumps(summary))
    else:
        print_text(f"{said}; {describe_engines(summary['engines'])}")
    if not sound:
        raise typer.Exit(1)


def load_priced(
    settings: Run, trace: Trace, cost: CostModel | None, submitted: int, progress: Progress
) -> "tuple[Pair, CostModel]":
    """The pair for drafts of `submitted` tokens, and its costs: measured now, in a few seconds and
    to the depth of the recording, where none are given."""
    from real.measure import MeasureSettings, max_new_tokens
    from real.measure.price import measure
    from real.rerun import recorded_rule

    timing = MeasureSettings(repeats=8, seconds=0, tree_nodes=submitted)
    timed = timing.context[-1] + max_new_tokens(max(trace.K, submitted)) if cost is None else 0
    name, drafter = settings.recording, settings.drafter
    pair = settings.models.load_for(trace, name, submitted, timed, drafter)
    if cost is None:
        offered = pair.drafter.longest(trace.K)
        label = relabel(progress, "measuring costs, which --cost skips")
        cost = measure(pair.target, pair.drafter, recorded_rule(trace), offered, timing, label)
        # so deep the policy may ask, and nothing is drafted
        cost = cost.extend(trace.K) if offered < trace.K else cost
    return pair, cost


def run_recording(settings: Run, progress: Progress = quiet) -> "Outcome | SampledOutcome":
    """Runs the policy on the recording's prompts."""
    from real.audit.runs import emitted_sequences, run_header, save_run
    from real.rerun import (
        chain_policy,
        check_foreign,
        parse_runnable,
        recorded_rule,
        rerun_rule,
        run_on,
        run_sampled,
    )

    path, trace = settings.open()
    policy: Any = parse_runnable(settings.policy[0], trace)
    cost = policy_cost_of(path, settings.cost, trace.K)
    if settings.drafter not in ("", trace.meta.drafter):
        check_foreign(settings.drafter, policy, trace)
    sampled, submitted = recorded_rule(trace).sampled, policy.submitted(trace.K)
    if sampled:
        policy = chain_policy(trace, policy, cost)
    name, drafter = settings.recording, settings.drafter
    pair = settings.models.load_for(trace, name, submitted, drafter=drafter)
    outcome: Outcome | SampledOutcome
    if sampled:
        outcome = run_sampled(trace, pair, policy, cost, settings.seed, progress=progress)
    else:
        outcome = run_on(trace, pair, policy, cost, settings.seed, progress)
    if settings.save is not None:
        drawn = rerun_rule(trace, settings.seed)
        header = run_header(drawn, pair, outcome.policy, trace.meta.end_tokens)
        save_run(settings.save, header, emitted_sequences(trace, outcome.results))
    return outcome


def compare_recording(
    settings: Run, progress: Progress = quiet
) -> "tuple[DataFrame, dict[str, Any]]":
    """(the table of `real.contest.compared`, what ran).

    The policies observe the costs that predict them. Costs that are measured now are kept beside
    --save, so that a killed run continues with them.
    """
    from real.contest import Kept, compared, contest, contestants_of, predictions, requests_of
    from real.decode.engine import engines_of
    from real.hf_generate import hf_contestant, load_hf_model
    from real.model.stored_weights import sha256
    from real.pair import check_predictors
    from real.provenance import device_name, revision, versions
    from real.rerun import parse_runnable, rerun_rule

    path, trace = settings.open()
    models, name = settings.models, settings.recording
    parsed = [parse_runnable(text, trace) for text in dict.fromkeys(settings.policy)]
    for policy in parsed:
        if policy.name.partition(":")[0] in policies.CLAIRVOYANT:
            raise ValueError(f"policy {policy.name!r} has no replay to predict its run by")
    kept_cost = settings.save and settings.save.with_suffix(".cost.json")
    known = settings.cost or (kept_cost if kept_cost and kept_cost.is_file() else None)
    cost = None if known is None else CostModel.from_json(known)
    submitted = max(policy.submitted(trace.K) for policy in parsed)
    pair, cost = load_priced(settings, trace, cost, submitted, progress)
    if known is None and kept_cost:
        cost.to_json(kept_cost)
    plain = pair
    if models.engine != "strict":  # there a plain pass is as wide as all others
        plain = replace(models, weights=None).load_for(trace, name, 0, 0, "prompt_lookup")
    chosen = [policies.make(policy, trace, cost) for policy in parsed]
    check_predictors(pair.drafter, trace, chosen)
    about = {
        "recording": sha256(path), "ids": list(trace.meta.ids), "drafter": pair.drafter.name,
        "rule": trace.meta.rule, "device": device_name(models.device), "versions": versions(),
        "engines": engines_of(pair.target, pair.drafter), "budget": settings.budget,
        "seed": settings.seed, "cost": cost.name, **asdict(models),
    }  # fmt: skip
    kept = Kept(settings.save, about, revision())
    contestants = contestants_of(trace, plain, pair, chosen, cost, settings.seed)
    if settings.rival == "generate":
        model = load_hf_model(models.target_path, models.dtype, models.device)
        rule = rerun_rule(trace, settings.seed)
        contestants.append(hf_contestant(model, trace.meta.end_tokens, rule))
    foreign = pair.drafter.name != trace.meta.drafter
    predicted = {} if foreign else predictions(trace, chosen, cost, settings.seed)
    runs = contest(
        contestants, requests_of(trace), settings.repeats, settings.seed, models.device, progress,
        kept=kept,
    )  # fmt: skip
    table = compared(trace, runs, predicted, cost, about["device"])
    return table, kept.saved.settings | {"git": ", ".join(kept.saved.revisions)}


def force_recording(settings: Run, progress: Progress = quiet) -> tuple[str, dict[str, Any], bool]:
    """(the printed line, the object of --json, whether all is sound).

    Runs the policy on the recorded sequences, and compares its rounds with them.
    Under the rejection rule a drafted token is accepted with its probability given the recorded
    tokens, by the replay's own draws.
    """
    from real.audit.forced_decoding import (
        compare_forced,
        compare_forced_sampled,
        decode_forced,
        decode_forced_sampled,
    )
    from real.decode.engine import engines_of
    from real.decode.plans import chain_plan
    from real.pair import check_predictors
    from real.rerun import recorded_rule
    from simspec import replay

    path, trace = settings.open()
    sampled, seed = recorded_rule(trace).sampled, settings.seed
    cost = policy_cost_of(path, settings.cost, trace.K)
    chosen: Any = policies.make(settings.policy[0], trace, cost)
    replayed = replay(trace, chosen, seed=seed, cost=cost)  # which refuses trees
    pair = settings.models.load_for(trace, settings.recording)
    check_predictors(pair.drafter, trace, [chosen])
    models, dtype = (pair.target, pair.drafter), settings.models.dtype
    plan = chain_plan(chosen, trace.K, seed, cost)
    forcing = relabel(progress, f"forcing {chosen.name}")
    comparison: ForcedComparison | SampledForcedComparison
    if sampled:
        ran, tested = decode_forced_sampled(*models, plan, trace, seed, forcing)
        comparison = compare_forced_sampled(trace, replayed, ran, tested, dtype, seed)
    else:
        ran, divergences = decode_forced(*models, plan, trace, forcing)
        comparison = compare_forced(trace, replayed, ran, divergences)
    about = {"policy": chosen.name, "dtype": dtype, "engines": engines_of(*models)}
    said = f"{chosen.name} in {dtype}: {comparison.describe()}"
    return said, about | comparison.summary(), comparison.sound
