"""EESD (arXiv 2406.03853): Tables 1 to 5, Figures 3 to 5, and 10 claims."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from simspec.numerics.stats import Estimate
from simspec.output.frames import DataFrame, frame
from simspec.papers.recorded import (
    FLAT,
    LAYERS,
    PRICES,
    TRAINED,
    Array,
    Claim,
    Effect,
    Recorded,
    Recordings,
    by_prompt,
    crossed,
    each,
    excess,
    figure,
    learned,
    longer,
    slower,
    speedup,
    tasks_of,
)  # fmt: skip
from simspec.policies.calibrated import cali_ts
from simspec.policies.fixed import fixed
from simspec.policies.thompson import beta_ts
from simspec.policies.trees import optimal_tree
from simspec.policy.policy import Policy
from simspec.policy.predictor import fit_predictor
from simspec.policy_kind import DeferredPolicy
from simspec.replay.evaluation import Sequences, halves
from simspec.reports.trees import fit_tree, priced_seconds
from simspec.trace.trace import Trace, committed
from simspec.tree.tree import TreePolicy

K = 10
"""EESD's draft length (its Table 4 and section 4.1)."""
RECORDING = "tiny-early_exit-coupled"
METHODS = {
    "model": "Vanilla SD", "self_skip": "Self SD", "early_exit": "EESD", "eagle": "EAGLE",
    "glide": "GLIDE", "medusa": "Medusa", "hydra": "Hydra", "prompt_lookup": "Prompt lookup",
}  # fmt: skip
"""Drafters by their names in the papers."""
TASKS = {"math": ("math",), "summary": ("summary", "summarization"), "all": ()}
"""Columns of EESD's tables: its Gsm8k and XSum, and all tasks."""
TASK_NOTE = (
    "math: GSM8K; summary: QMSum and MTS-Dialog in place of XSum. HM: harmonic mean of v_d and "
    "r_d, per cent. Speedups over plain decoding, replayed."
)
LAYERS_NOTE = (
    "Draft steps of ablations are priced by their layers, from the measured early exit of one "
    "layer after the first."
)
Named = tuple[dict[str, str | None], Recorded | None, Policy]
"""Names of a table's row, and the policy that it replays."""


def policy_table(
    title: str, rows: Iterable[Named], *notes: str, tasks: Mapping[str, Sequence[str]] = TASKS
) -> DataFrame:
    """HM and speedup of each policy by task at measured costs, and of all prompts at flat ones."""
    found, names = [], 1
    for named, recorded, policy in rows:
        row: dict[str, Any] = dict(named)
        names = len(row)
        for task, of in tasks.items():
            if recorded is None:
                continue
            measured, chosen = recorded.at(None), tasks_of(recorded, of)
            some = bool(chosen.any())
            row[f"{task}: HM"] = harmonic_mean(measured, policy, chosen) if some else None
            seconds = measured.seconds(policy)
            row[task] = speedup(measured, seconds, chosen) if some else None
        if recorded:
            flat = recorded.at(FLAT)
            row[f"all, {flat.regime}"] = speedup(flat, flat.seconds(policy))
        found.append(row)
    formats = {f"{task}: HM": ".1f" for task in tasks}
    return frame(found, names=names, title=title, formats=formats, notes=(TASK_NOTE, *notes))


def harmonic_mean(recorded: Recorded, policy: Policy, chosen: Any = slice(None)) -> Estimate:
    """HM of v_d and r_d in per cent, 2 accepted / (computed + output tokens), on some prompts."""
    accepted, paid = np.zeros_like(recorded.tokens), np.zeros_like(recorded.tokens)
    for rounds in recorded.all_rounds(policy):
        accepted += by_prompt(rounds.accepted.astype(np.float64), rounds)
        paid += by_prompt(rounds.computed.astype(np.float64), rounds) + recorded.tokens
    return figure(200 * accepted[chosen], paid[chosen], seed=recorded.seed)


def thompson(recorded: Recorded) -> list[tuple[str, Policy]]:
    """Beta-TS, and Cali-TS where theta is recorded."""
    longest = min(K, recorded.trace.K)
    policies = [("Beta-TS", beta_ts(K=longest))]
    if recorded.has("theta"):
        policies.append(("Cali-TS", cali_ts(predictor="theta", K=longest)))
    return policies


def systems(
    title: str, tasks: Mapping[str, Sequence[str]], target: str, printed: Mapping[str, str],
    recordings: Recordings,
) -> DataFrame:  # fmt: skip
    """Tables 1 to 3: all systems, greedy decoding; EESD by Thompson sampling, others at K = 10."""
    rows: list[Named] = []
    for drafter, method in METHODS.items():
        for recorded in recordings.deep(drafter, K):
            longest = min(K, recorded.trace.K)
            policies = [(f"{method}, K = {longest}", fixed(longest))]
            if drafter == "early_exit":
                policies = [(f"EESD (+{name})", policy) for name, policy in thompson(recorded)]
            for name, policy in policies if recorded.trace.meta.rule == "greedy" else ():
                paper = printed.get(name.partition(",")[0])
                named = {"recording": recorded.name, "method": name, f"paper, {target}": paper}
                rows.append((named, recorded, policy))
    return policy_table(
        title, rows,
        "The paper's drafters have 0.5 to 7 B parameters: the order of systems compares, figures "
        "do not. EAGLE, GLIDE, Hydra and prompt lookup are not in its table.", tasks=tasks,
    )  # fmt: skip


LLAMA_70B = {
    "Vanilla SD": "80.35, 1.88x; 67.30, 1.46x", "Self SD": "78.64, 1.37x; 68.60, 1.23x",
    "Medusa": "33.75, 1.73x; 25.69, 1.42x", "EESD (+Beta-TS)": "58.79, 2.13x; 51.91, 1.80x",
    "EESD (+Cali-TS)": "62.25, 2.29x; 53.41, 1.86x",
}  # fmt: skip
CODELLAMA_13B = {
    "Vanilla SD": "91.12, 1.09x", "Self SD": "83.51, 1.38x", "Medusa": "49.14, 1.97x",
    "EESD (+Beta-TS)": "68.94, 2.21x", "EESD (+Cali-TS)": "70.15, 2.45x",
}  # fmt: skip
VICUNA_13B = {
    "Vanilla SD": "81.50, 0.91x", "Self SD": "86.20, 1.46x", "Medusa": "30.11, 1.71x",
    "EESD (+Beta-TS)": "52.82, 1.82x", "EESD (+Cali-TS)": "54.83, 1.89x",
}  # fmt: skip


def table_4(recordings: Recordings) -> DataFrame:
    """Ablations of EESD's components at K = 10."""
    bundled = {r.name: r for r in recordings.of("early_exit", "model")}
    names = "early_exit-n1-x1", "early_exit-n1-x0", "early_exit-text"
    full, bare, text = (recordings.exit(recordings.card(name)) for name in names)
    recorded, vanilla = bundled.get(RECORDING), bundled.get("tiny-model-coupled")
    beta = beta_ts(K=K)
    methods: list[tuple[str, str, Recorded | None, Policy]] = [
        ("Vanilla SD", "tiny-model-coupled", vanilla, fixed(K)),
        ("EESD (Beta-TS)", names[0], full, beta),
        ("w/o Early-exiting Layer", names[1], bare, beta),
        ("w/o Self-Distillation", names[2], text, beta),
        ("w/o TS", names[0], full, fixed(K)),
        ("EESD (Beta-TS)", RECORDING, recorded, beta),
        ("EESD (Cali-TS)", RECORDING, recorded, cali_ts(predictor="theta", K=K)),
        (
            "w/o Sampling-Prediction",
            RECORDING,
            recorded,
            cali_ts(predictor="theta", K=K, side="model"),
        ),
        ("w/o Model-Prediction", RECORDING, recorded, cali_ts(K=K, side="sampling")),
        ("w/o TS", RECORDING, recorded, fixed(K)),
    ]
    rows: list[Named] = [({"method": m, "drafter": name}, r, p) for m, name, r, p in methods]
    return policy_table(
        "EESD Table 4: components, K = 10", rows,
        "Rows of early_exit-* are ablations of one budget; Cali-TS needs the predictor of the "
        "bundled early exit, which learned more, as did the vanilla drafter.",
        learned(recordings, *names), LAYERS_NOTE,
    )  # fmt: skip


def table_5(recordings: Recordings) -> DataFrame:
    """Thompson sampling on all drafters, against drafts of 10 tokens."""
    rows: list[Named] = []
    for drafter, method in METHODS.items():
        for recorded in recordings.deep(drafter, K):
            longest = min(K, recorded.trace.K)
            policies = [(f"{method}, K = {longest}", fixed(longest))]
            policies += [(f"+ {name}", policy) for name, policy in thompson(recorded)]
            for name, policy in policies:
                rows.append(({"recording": recorded.name, "method": name}, recorded, policy))
    return policy_table(
        "EESD Table 5: Thompson sampling on other drafters", rows,
        "The paper has the first two. Cali-TS reads the recorded predictor where there is one, and "
        "is charged for it. Medusa and Hydra have 4 heads, and sampled recordings of the real "
        "model are 8 deep. papers/: along the outputs of the bundled recordings, priced by these; "
        "their costs to 8 tokens are continued by the last step.",
    )  # fmt: skip


def best_chain(recorded: Recorded, longest: int = K, shortest: int = 1) -> Array:
    """float64[S, 1 + R]: seconds of the best fixed length, chosen on the other prompts."""
    return crossed(recorded.fixed_seconds(longest, shortest), recorded.trace)[0]


def best_tree(recorded: Recorded) -> Array:
    """float64[S, 1 + R]: seconds of Sequoia's tree of the best size, fitted to the other prompts.

    A tree of no nodes is plain decoding.
    """
    figures, *_ = fit_tree(recorded.trace, recorded.cost, tree_or_chain)
    return priced_seconds(figures, recorded.cost)


def tree_or_chain(fit: Sequences) -> DeferredPolicy:
    """Sequoia's tree of the best size; a chain where it has no siblings.

    A tree drafts all of its levels even where the output ends before them. A chain stops there, so
    a tree of one branch would lose to itself.
    """
    fitted = optimal_tree(fit=fit)

    def make(trace: Trace, cost: Any) -> Policy | TreePolicy:
        policy = fitted.resolve(trace, cost)
        assert isinstance(policy, TreePolicy)
        return policy if any(policy.tree.rank) else fixed(len(policy.tree))

    return replace(fitted, make=make)


def figure_3(recordings: Recordings) -> DataFrame:
    """Speedup by fixed draft length, and of Thompson sampling."""
    rows: list[Named] = []
    for recorded in recordings.of("early_exit"):
        lengths = range(1, min(K, recorded.trace.K) + 1)
        policies: list[tuple[str, Policy]] = [(f"K = {k}", fixed(k)) for k in lengths]
        for name, policy in (*policies, *thompson(recorded)):
            rows.append(({"recording": recorded.name, "draft length": name}, recorded, policy))
    return policy_table(
        "EESD Figure 3: speedup by draft length, and of Thompson sampling", rows,
        "In the paper Beta-TS is slightly faster than the best K, and Cali-TS than Beta-TS.",
    )  # fmt: skip


def exits(title: str, names: Mapping[str, str], recordings: Recordings) -> DataFrame:
    """Figures 4 and 5: early exits that differ in one setting, under Beta-TS."""
    found = {shown: recordings.exit(recordings.card(name)) for shown, name in names.items()}
    rows: list[Named] = [({"exit": shown}, of, beta_ts(K=K)) for shown, of in found.items()]
    return policy_table(title, rows, LAYERS_NOTE, learned(recordings, *names.values()))


TABLES: dict[str, Callable[[Recordings], DataFrame]] = {
    "eesd-1": partial(
        systems, "EESD Table 1: math and summary", {t: TASKS[t] for t in ("math", "summary")},
        "LLaMA-2-70B", LLAMA_70B,
    ),
    "eesd-2": partial(
        systems, "EESD Table 2: code", {"code": ("code",)}, "CodeLLaMA-2-13B", CODELLAMA_13B
    ),
    "eesd-3": partial(
        systems, "EESD Table 3: MT-bench", {"chat": ("chat", "dialogue")}, "Vicuna-13B", VICUNA_13B
    ),
    "eesd-4": table_4,
    "eesd-5": table_5,
    "eesd-figure-3": figure_3,
    "eesd-figure-4": partial(
        exits, "EESD Figure 4: the first N layers, Beta-TS",
        {f"N = {n}, {n / LAYERS:.0%} of the layers": f"early_exit-n{n}-x1" for n in (1, 2, 3)},
    ),
    "eesd-figure-5": partial(
        exits, "EESD Figure 5: layers after the first, Beta-TS",
        {f"{x} new layers": f"early_exit-n1-x{x}" for x in (0, 1, 2)},
    ),
}  # fmt: skip


def beta_against_best_fixed(recorded: Recorded) -> Effect:
    """Claims 1 and 5b: how much slower the best of K = 1 to 10 is than Beta-TS."""
    beta = recorded.seconds(beta_ts(K=min(K, recorded.trace.K)))
    return slower("the best fixed K over Beta-TS's", recorded, best_chain(recorded), beta)


def beta_against_ten(recorded: Recorded) -> Effect:
    """Claim 5a: how much slower a fixed length of 10, or the deepest, is than Beta-TS."""
    longest = min(K, recorded.trace.K)
    seconds = recorded.seconds(fixed(longest)), recorded.seconds(beta_ts(K=longest))
    return slower(f"fixed:{longest} over Beta-TS's", recorded, *seconds)


def calibrated(
    recorded: Recorded, theta: bool, make: Callable[..., Policy], charged: bool = True
) -> Array | None:
    """Seconds of a policy that reads EESD's recorded theta, or in its place a logistic predictor in
    confidence, entropy and depth, fitted to the other prompts; None where neither is recorded."""
    if not recorded.has("theta" if theta else "confidence"):
        return None
    longest = min(K, recorded.trace.K)
    if theta:
        return recorded.seconds(make(predictor="theta", K=longest), charged)
    found: Array | None = None
    for fit, rest in halves(recorded.trace):
        policy = make(predictor=fit_predictor(recorded.trace, fit), K=longest)
        seconds = recorded.seconds(policy, charged)
        found = seconds if found is None else found
        found[rest] = seconds[rest]
    return found


def beta_against_calibrated(recorded: Recorded, theta: bool, charged: bool = True) -> Effect | None:
    """Claims 2 and 20b: how much slower Beta-TS is than Cali-TS; charged False: theta is free."""
    ours = calibrated(recorded, theta, cali_ts, charged)
    beta = recorded.seconds(beta_ts(K=min(K, recorded.trace.K)))
    what = "Beta-TS over Cali-TS's" + ("" if charged else ", drafting and verification alone")
    return None if ours is None else slower(what, recorded, beta, ours)


def sampling_against_model(recorded: Recorded, theta: bool) -> Effect | None:
    """Claim 3: how much slower Cali-TS is without sampling-prediction than without the model's."""
    modelled = calibrated(recorded, theta, partial(cali_ts, side="model"))
    sampled = recorded.seconds(cali_ts(K=min(K, recorded.trace.K), side="sampling"))
    what = "Cali-TS without sampling-prediction over that without model-prediction"
    return None if modelled is None else slower(what, recorded, modelled, sampled)


SHORT, LONG = 1, 5
"""Lengths between which a sample prefers one; 5 is the better setting of EESD's section 5.3."""


def samples_differ(recorded: Recorded) -> Effect | None:
    """Claim 4a: correlation over prompts of what a long draft gains in both halves of an output."""
    if recorded.trace.K < LONG:
        return None
    short, long = (_by_half(recorded, k) for k in (SHORT, LONG))
    x, y = (short - long) / _by_half(recorded, 0)
    interval = figure(np.ones_like(x), x, y, x * x, y * y, x * y, of=correlation)
    what = f"correlation of what K={LONG} gains over K={SHORT} in both halves of an output"
    return Effect(what, recorded.name, recorded.regime, interval, "correlation")


def correlation(totals: Array) -> Array:
    """Of sums [..., 6] of 1, x, y, x^2, y^2 and x y."""
    n, x, y, xx, yy, xy = np.moveaxis(np.asarray(totals), -1, 0)
    found: Array = (xy - x * y / n) / np.sqrt((xx - x * x / n) * (yy - y * y / n))
    return found


def _by_half(recorded: Recorded, k: int) -> Array:
    """float64[2, S]: seconds of each half of the outputs; a round's are shared by its tokens."""
    trace, rounds = recorded.trace, recorded.rounds(fixed(k))
    tokens = committed(rounds, trace)
    pace = np.repeat(recorded.cost.seconds(rounds) / tokens, tokens)
    middle = (trace.offset[:-1] + trace.offset[1:]) // 2
    bounds = np.stack((trace.offset[:-1], middle), -1).reshape(-1)
    sums: Array = np.add.reduceat(pace, bounds).reshape(-1, 2).T
    return sums


def tasks_differ(recorded: Recorded) -> Effect:
    """Claim 4b: how much slower one length is than one for each task, on other prompts."""
    seconds, trace = recorded.fixed_seconds(), recorded.trace
    one, _ = crossed(seconds, trace)
    tasks, by_task = np.array(trace.task), np.empty_like(one)
    for fit, rest in halves(trace):
        for task in dict.fromkeys(trace.task):
            of_fit, of_rest = (half[tasks[half] == task] for half in (fit, rest))
            best = seconds[:, of_fit, 0].sum(axis=1).argmin()
            by_task[of_rest] = seconds[best, of_rest]
    return slower("one K over that of a K for each task", recorded, one, by_task)


def models_differ(recordings: Recordings) -> list[Effect]:
    """Claim 4c: how much slower the other target's best length is than one of its own."""
    found = []
    for c, drafter in ((c, d) for c in (None, FLAT) for d in TRAINED):
        for recorded, other in permutations([r.at(c) for r in recordings.counted(drafter)], 2):
            if (
                other.target != recorded.target
                and other.trace.meta.rule == recorded.trace.meta.rule
            ):
                longest = min(recorded.trace.K, other.trace.K)
                best = int(other.fixed_seconds(longest)[..., 0].sum(axis=1).argmin())
                seconds = recorded.fixed_seconds(longest)
                own, _ = crossed(seconds, recorded.trace)
                what = f"the best K of {other.name} over that of an own K"
                found.append(slower(what, recorded, seconds[best], own))
    return found


def faster(better: str, worse: str, recordings: Recordings) -> list[Effect]:
    """Claims 7b, 7c and 8: how much slower one early exit is than another under Beta-TS."""
    found = []
    for cards in recordings.cards(better, worse):
        ours, theirs = (recordings.exit(card) for card in cards)
        if ours and theirs:
            for c in (None, FLAT):
                one, other = ours.at(c), theirs.at(c)
                policy = beta_ts(K=min(K, one.trace.K, other.trace.K))
                interval = figure(other.seconds(policy), one.seconds(policy), of=excess)
                what = "time of the second over the first's under Beta-TS, less 1"
                on = f"{cards[0].label} / {cards[1].label}"
                found.append(Effect(what, on, one.regime, interval))
    return found


def tree_over_chain(recorded: Recorded) -> Effect:
    """Claim 10: how much slower the best chain is than Sequoia's best tree, plain decoding among
    both."""
    chain, tree = best_chain(recorded, 255, 0), best_tree(recorded)
    return slower("the best chain over that of the best tree", recorded, chain, tree)


TOP, BARE, BEST = "early_exit-n1-x1", "early_exit-n1-x0", "The best draft length differs between "


def _by_predictor(
    number: str, sentence: str, where: str, function: Callable[..., Effect | None],
    prices: Sequence[float | None] = PRICES,
) -> tuple[Claim, Claim]:  # fmt: skip
    """A claim on EESD's recorded theta, and on the logistic predictor in its place."""
    names = {True: ("", "EESD's theta"), False: (" by confidence", "confidence, entropy and depth")}
    first, second = (
        Claim(
            number + suffix, f"{sentence} (a predictor from {name}).", where,
            each(partial(function, theta=theta), *TRAINED, prices=prices),
        )
        for theta, (suffix, name) in names.items()
    )  # fmt: skip
    return first, second


def deeper(recordings: Recordings) -> list[Effect]:
    """Claim 8: N = 1 of 10 layers against 2 and 3."""
    return [e for n in (2, 3) for e in faster(TOP, f"early_exit-n{n}-x1", recordings)]


CLAIMS = (
    Claim(
        "1", "Beta-TS is at least as good as the best fixed draft length.", "section 5.2, Figure 3",
        each(beta_against_best_fixed, *TRAINED), (-0.01, np.inf),  # at least as good: within 1%
    ),
    *_by_predictor("2", "Cali-TS beats Beta-TS", "Tables 1 to 3", beta_against_calibrated),
    *_by_predictor(
        "3", "Sampling-prediction matters more than model-prediction", "section 5.1, Table 4",
        sampling_against_model,
    ),
    Claim("4a", BEST + "samples.", "Figure 1b", each(samples_differ, *TRAINED), (0.1, np.inf)),
    Claim("4b", BEST + "tasks.", "Figure 3", each(tasks_differ, *TRAINED)),
    Claim("4c", BEST + "models.", "Figure 3", models_differ),
    Claim(
        "5a", "Thompson sampling helps vanilla and self-speculative drafters, against K = 10.",
        "Table 5", each(beta_against_ten, "model", "self_skip", K=K),
    ),
    Claim(
        "5b", "The same against the best fixed length.", "-",
        each(beta_against_best_fixed, "model", "self_skip", K=K),
    ),
    Claim(
        "7a", "The layer after the early exit raises acceptance.", "Table 4",
        partial(longer, TOP, BARE),
    ),
    Claim("7b", "The layer after the early exit pays.", "Table 4", partial(faster, TOP, BARE)),
    Claim(
        "7c", "A second layer after the early exit does not pay.", "Figure 5",
        partial(faster, TOP, "early_exit-n1-x2"),
    ),
    Claim("8", "N at 5 to 10% of the target's layers is best.", "Figure 4", deeper),
    Claim("9", "Self-distillation helps.", "Table 4", partial(longer, TOP, "early_exit-text")),
    Claim("10", "Tree attention adds speedup.", "Table 7", each(tree_over_chain, *TRAINED)),
    *_by_predictor(
        "20", "Cali-TS spends less on drafting and verification than Beta-TS", "Table 8",
        partial(beta_against_calibrated, charged=False), (None,),
    ),
)  # fmt: skip
