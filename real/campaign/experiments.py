"""What a campaign does with its recordings: runs held against replays, forced texts, audits, scorecards, trees, driven timings, figures."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from real import drafters
from real.audit import audit
from real.audit.emitted_run import EmittedRun
from real.audit.engine_runs import emitted_sequences, run_header
from real.audit.forced_comparison import compare_forced
from real.audit.forced_decoding import decode_forced
from real.bench.recorded_sequence import SequenceSettings
from real.bench.scorecard import Scorecard, ScorecardRow
from real.bench.scorecard_figure import draw_scorecard
from real.bench.scoring import ScoreSettings, score, split_prompts
from real.bench.trace_driven import emulate, emulation_passes
from real.campaign.workspace import Folder
from real.decode.features import drafter_features
from real.decode.plan import chain_plan
from real.equality import NOTHING, compare
from real.files import replacing
from real.jobs import RULES, record_to, run_on
from real.measure import MeasureSettings, measure
from real.model.random_models import check_room, random_decoder, read_shape
from real.pair import DTYPES
from real.progress import relabel
from real.provenance import device_name
from real.record import Settings
from real.rerun import evenly_spaced, rerun, rule_of
from real.sampling import Rule
from simspec import CostModel, Policy, Trace, load_trace, policies, replay
from simspec.reports.curve_plot import plot_curves
from simspec.reports.speedup_curve import speedup_curve

RULE = "coupled"
"""The rule of what is timed: sampled texts hardly loop, and a loop flatters every drafter."""


def best_fixed(trace: Trace, cost: CostModel, seed: int = 0) -> int:
    """The fixed draft length of the largest modelled speedup on `trace`; 0 where none beats plain decoding."""

    def seconds(k: int) -> float:
        policy = policies.BUILTIN["fixed"](k)
        return float(cost.seconds(replay(trace, policy, seed=seed, cost=cost)).sum())

    return min(range(min(trace.K, cost.K) + 1), key=seconds)


def chosen(folder: Folder, trace: Trace, cost: CostModel) -> list[Policy]:
    """The chains that are run on a recording: the best fixed length, and those of the size whose features it holds."""
    shown = {name for name, _ in trace.meta.features}
    parsed = [
        policies.make(text, trace, cost)
        for text in folder.size.policies
        if set(policies.parse(text).reads) <= shown
    ]
    return [policies.BUILTIN["fixed"](max(1, best_fixed(trace, cost, folder.seed))), *parsed]


def priced(folder: Folder, path: Path, drafter: str, rule: Rule, K: int, rows: int) -> CostModel:
    """The costs at `path`, measured in bf16 where they are not there; with `rows` of trees, too."""
    size, seed = folder.size, folder.seed
    if not path.exists():
        pair = folder.pair(drafter, "bfloat16", "eager" if rows > size.K else None)
        progress = relabel(folder.progress, f"measuring {path.stem}")
        settings = MeasureSettings(
            context=(size.context,),
            rounds=size.rounds,
            repeats=size.repeats,
            seed=seed,
            tree_nodes=rows,
        )
        cost = measure(pair.target, pair.drafter, rule, K, settings, progress)
        with replacing(path) as temporary:
            cost.to_json(temporary)
    return CostModel.from_json(path)


def _some(trace: Trace, wanted: int) -> Trace:
    return trace.select(evenly_spaced(trace.sequences, wanted))


def equal(folder: Folder, drafter: str) -> dict:
    """Float32: every round of every policy against its replay, plain decoding among them; under both rules."""
    pair, total, tokens, by = folder.pair(drafter, "float32"), NOTHING, 0, {}
    for rule in RULES:
        whole, cost = folder.opened(drafter, rule)
        trace = _some(whole, folder.size.equal)
        made = chosen(folder, whole, cost)
        ran = rerun(
            pair,
            trace,
            made,
            folder.seed,
            cost,
            relabel(folder.progress, f"running {drafter} {rule}"),
        )
        for policy, results in zip([*made, policies.BUILTIN["fixed"](0)], ran):
            found = compare(
                trace, policy, replay(trace, policy, seed=folder.seed, cost=cost), results
            )
            by[f"{policy.name} {rule}"] = {
                "rounds": found.rounds,
                "exceptions": len(found.exceptions),
                "failures": len(found.failures),
            }
            total, tokens = total + found, tokens + sum(len(r.token) for r in results)
    apart = [asdict(f) for f in (*total.exceptions, *total.failures)]
    counts = {
        "rounds": total.rounds,
        "exceptions": len(total.exceptions),
        "failures": len(total.failures),
        "lossless": total.lossless,
    }
    where = {"dtype": "float32", "tf32": torch.backends.cuda.matmul.allow_tf32, "tokens": tokens}
    return where | counts | {"policies": by, "apart": apart[:40]}


def forced(folder: Folder, drafter: str) -> dict:
    """Bf16 on the recordings' own texts: the share of rounds that accept as recorded, and every divergence."""
    pair, made = folder.pair(drafter, "bfloat16", "strict"), {}
    for rule in RULES:
        whole, cost = folder.opened(drafter, rule)
        trace = _some(whole, folder.size.forced)
        policy = policies.BUILTIN["fixed"](min(4, whole.K))
        drive = chain_plan(policy, trace.K, folder.seed, cost)
        ran, apart = decode_forced(
            pair.target,
            pair.drafter,
            drive,
            trace,
            relabel(folder.progress, f"forcing {drafter} {rule}"),
        )
        found = compare_forced(
            trace, replay(trace, policy, seed=folder.seed, cost=cost), ran, apart
        ).summary()
        said = {name: found.pop(name) for name in ("draft_flips", "divergences")}
        counts = {name: len(each) for name, each in said.items()}
        made[rule] = (
            found
            | counts
            | {
                "policy": policy.name,
                "largest_gap": max((d["gap"] for d in said["divergences"]), default=0.0),
            }
        )
    return {"dtype": "bfloat16", "engine": "strict", "rules": made}


def audited(folder: Folder, drafter: str) -> dict:
    """Bf16, free runs: every token held against the target, every divergence classified; under both rules."""
    pair, made = folder.pair(drafter, "bfloat16", "strict"), {}
    for rule in RULES:
        whole, cost = folder.opened(drafter, rule)
        trace = _some(whole, folder.size.audited)
        policy = policies.make("beta_ts", trace, cost)
        ran, _ = rerun(
            pair,
            trace,
            [policy],
            folder.seed,
            cost,
            relabel(folder.progress, f"running {drafter} {rule}"),
        )
        header = run_header(rule_of(trace), pair, policy.name, trace.meta.end_tokens)
        made[rule] = audit(
            pair.target, EmittedRun(header, emitted_sequences(trace, ran))
        ).summary() | {"policy": policy.name}
    return {"dtype": "bfloat16", "engine": "strict", "rules": made}


def scored(folder: Folder, drafter: str) -> dict:
    """Bf16: tokens a second predicted from other prompts' costs against the clock; the best fixed length is chosen on other prompts."""
    size, pair = folder.size, folder.pair(drafter, "bfloat16")
    trace, cost = folder.opened(drafter, RULE)
    kept, _ = split_prompts(trace, size.scored, folder.seed)
    mine = set(kept.sequence.tolist())
    others = trace.select([s for s in range(trace.sequences) if int(trace.sequence[s]) not in mine])
    name, progress = (
        folder.trace(drafter, RULE).stem,
        relabel(folder.progress, f"scoring {drafter}"),
    )
    rows = score(
        name,
        trace,
        pair,
        chosen(folder, others, cost),
        cost,
        ScoreSettings(size.scored, size.times, folder.seed),
        progress,
    )
    return {"dtype": "bfloat16", "repeats": size.times, "rows": [asdict(row) for row in rows]}


def scorecard(folder: Folder, drafters: Sequence[str]) -> Scorecard | None:
    """The scorecard of all drafters that were scored; None where none was."""
    found = [folder.found(f"score-{drafter}") for drafter in drafters]
    rows = [
        ScorecardRow(**(row | {n: tuple(row[n]) for n in ("phases", "phases_measured")}))
        for each in found
        if each
        for row in each["rows"]
    ]
    return (
        Scorecard(
            device_name(folder.device), "bfloat16", folder.size.times, folder.seed, tuple(rows)
        )
        if rows
        else None
    )


def treed(folder: Folder, drafter: str) -> dict:
    """Bf16: one static tree, run on the prompts that chains are scored on, plain decoding beside it."""
    pair = folder.pair(drafter, "bfloat16")
    whole, cost = folder.opened(drafter, RULE)
    trace, _ = split_prompts(whole, folder.size.scored, folder.seed)
    found = run_on(trace, pair, folder.size.tree, cost, folder.seed, folder.progress).summary()
    return {"dtype": "bfloat16"} | {
        name: value for name, value in found.items() if name not in ("exceptions", "failures")
    }


def driven(folder: Folder, drafter: str) -> dict:
    """Bf16: passes of the size's large shape with random weights, the acceptances of this drafter's recording."""
    size = folder.size
    whole, cost = folder.opened(drafter, RULE)
    trace, spec = _some(whole, size.driven), dict(size.shape_drafters)[drafter]
    shape = read_shape(size.shape)
    room = int(max(trace.prompt_offset[1:] - trace.prompt_offset[:-1])) + int(trace.budget.max())
    check_room(
        [shape, *drafters.drafter_shapes(spec, shape)], DTYPES["bfloat16"], room, folder.device
    )
    decoder = random_decoder(shape, DTYPES["bfloat16"], folder.device, folder.seed)
    made = drafters.random_drafter(spec, decoder, shape, int(trace.depth.max()), folder.seed)
    fixed = [policies.BUILTIN["fixed"](k) for k in (2, 4, 6) if k <= trace.K]
    asked = [*fixed, *chosen(folder, whole, cost)[1:]]
    label = {
        "text": "random",
        "acceptance": folder.trace(drafter, RULE).stem,
        "target": shape.name,
        "drafter": spec,
        "weights": "random",
    }
    label |= {"dtype": "bfloat16", "engine": size.engine}
    passes = emulation_passes(size.engine, trace)
    progress = relabel(folder.progress, f"emulating {shape.name} {drafter}")
    settings = SequenceSettings(seed=folder.seed)
    return (
        emulate(decoder, made, trace, asked, cost, settings, progress, passes)
        .labeled(label)
        .summary()
    )


def grown(folder: Folder, drafter: str) -> dict:
    """Dynamic trees and CAPE: a recording of fewer prompts that holds their order, and runs on it."""
    size, pair = folder.size, folder.pair(drafter, "float32", "eager")
    path = folder.trace(drafter, f"{RULE}-trees")
    shows = tuple(name for name in drafter_features(pair.drafter) if name == "confidence")
    plain, _ = folder.opened(drafter, RULE)
    width, levels = size.grown
    asked = Settings(
        plain.K, size.budget, RULES[RULE], pair.end_tokens, shows, (width, min(levels, plain.K))
    )
    few = folder.drawn(pair.tokenizer)
    if not path.with_suffix(".json").exists():
        record_to(
            path,
            pair,
            [few[i] for i in evenly_spaced(len(few), max(2, len(few) // 4))],
            asked,
            folder.progress,
        )
    cost = priced(folder, path.with_suffix(".cost.json"), drafter, RULES[RULE], plain.K, size.rows)
    trace, found = _some(load_trace(path), size.scored), {}
    for text in size.trees:
        told = run_on(
            trace,
            folder.pair(drafter, "float32", "eager"),
            text,
            cost,
            folder.seed,
            folder.progress,
        ).summary()
        found[text] = {
            name: value for name, value in told.items() if name not in ("exceptions", "failures")
        }
    return {"dtype": "float32", "policies": found}


def figures(folder: Folder) -> dict:
    """Speedup against K for every recording that has its costs, and predicted against measured; modelled and measured on this device."""
    made, panels = [], {}
    for path in sorted((folder.out / "traces").glob(f"*-{RULE}.parquet")):
        drafter = path.stem.split("-", 1)[1].removesuffix(f"-{RULE}")
        if path.with_suffix(".cost.json").exists():
            trace, cost = folder.opened(drafter, RULE)
            longest = min(trace.K, cost.K)
            asked = chosen(folder, trace, cost)[1:]
            panels[path.stem] = speedup_curve(
                trace, [*asked, "oracle"], cost, seed=folder.seed, longest=longest
            )
    (folder.out / "figures").mkdir(exist_ok=True)
    if panels:
        plot_curves(panels, folder.out / "figures" / "speedup.png")
        made.append("speedup.png")
    if card := scorecard(folder, [name.split("-")[1] for name in panels]):
        draw_scorecard(card, folder.out / "figures" / "scorecard.png")
        made.append("scorecard.png")
    return {"files": made, "device": device_name(folder.device)}
