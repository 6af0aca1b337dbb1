"""EESD (arXiv 2406.03853): Tables 1 to 5, Figures 3 to 5, and 10 claims."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations, product
from typing import Any

import numpy as np

from simspec.cost.model import CostModel
from simspec.numerics.stats import Estimate
from simspec.output.frames import DataFrame, frame
from simspec.papers.claims import (
    EAGLE_NOTE,
    Claim,
    Effect,
    each,
    longer,
    on_prompts,
    slower,
)  # fmt: skip
from simspec.papers.recorded import (
    FLAT,
    FLATS,
    LAYERS,
    PRICES,
    TRAINED,
    Array,
    Price,
    Recorded,
    Recordings,
    crossed,
    figure,
    learned,
    speedup,
    tasks_of,
)  # fmt: skip
from simspec.policies.calibrated import cali_ts
from simspec.policies.fixed import fixed
from simspec.policies.thompson import beta_ts
from simspec.policy.policy import Policy
from simspec.policy.predictor import fit_predictor
from simspec.policy_kind import DeferredPolicy
from simspec.replay.evaluation import Sequences, halves
from simspec.replay.metrics import by_prompt
from simspec.replay.sweep import priced_seconds
from simspec.reports.trees import fit_tree
from simspec.trace.acceptance import by_depth
from simspec.trace.synthetic import iid
from simspec.trace.trace import Trace, committed
from simspec.tree.search import fastest_tree, rank_acceptance, sequoia_trees
from simspec.tree.tree import MAX_NODES, TreePolicy, tree_of_widths

READ, CENSORED = "acceptance", "censored"
"""Readings of Beta-TS's update: the default, and the one nearer to EESD's Table 10, which has 4.1
drafted tokens a round where ideal acceptance of .816 gives 5.3 and 4.8 (`beta_ts`)."""
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
Named = tuple[dict[str, str | None], Recorded | None, Policy | None]
"""Names of a table's row, and the policy that it replays; None: the best fixed length, chosen on
the other prompts."""


def policy_table(
    title: str, rows: Iterable[Named], *notes: str, tasks: Mapping[str, Sequence[str]] = TASKS
) -> DataFrame:
    """HM and speedup of each policy by task at measured costs, and of all prompts at flat ones."""

    def seconds(recorded: Recorded, policy: Policy | None) -> Array:
        return recorded.seconds(policy) if policy else best_chain(recorded)

    found, names, slow = [], 1, []
    for named, recorded, policy in rows:
        row: dict[str, Any] = dict(named)
        names = len(row)
        if recorded:
            at, flat = recorded.at(None), recorded.at(FLAT)
            spent = seconds(at, policy)
            for task, of in tasks.items():
                chosen = tasks_of(at, of)
                some = bool(chosen.any())
                row[f"{task}: HM"] = harmonic_mean(at, policy, chosen) if some and policy else None
                row[task] = speedup(at, spent, chosen) if some and at.measured else None
            row[f"all, {flat.regime}"] = speedup(flat, seconds(flat, policy))
        if any(isinstance(row.get(task), Estimate) and row[task].high < 1 for task in tasks):
            slow.append(" ".join(str(name) for key, name in named.items() if "paper" not in key))
        found.append(row)
    formats = {f"{task}: HM": ".1f" for task in tasks}
    note = f"Slower than plain decoding on some task, at measured costs: {', '.join(slow)}."
    notes = (TASK_NOTE, *notes, *([note] if slow else []))
    return frame(found, names=names, title=title, formats=formats, notes=notes)


def harmonic_mean(recorded: Recorded, policy: Policy, chosen: Any = slice(None)) -> Estimate:
    """HM of v_d and r_d in per cent, 2 accepted / (computed + output tokens), on some prompts."""
    accepted, paid = _hm_parts(recorded, policy)
    return figure(200 * accepted[chosen], paid[chosen], seed=recorded.seed)


def _hm_parts(recorded: Recorded, policy: Policy) -> Array:
    """float64[2, S]: accepted, and computed and output, tokens of each prompt over all draws."""
    parts = np.zeros((2, recorded.trace.sequences))
    for rounds in recorded.all_rounds(policy):
        parts[0] += by_prompt(rounds.accepted, rounds)
        parts[1] += by_prompt(rounds.computed, rounds) + recorded.tokens
    return parts


def thompson(recorded: Recorded) -> list[tuple[str, Policy]]:
    """Beta-TS, and Cali-TS where theta is recorded."""
    longest = min(K, recorded.trace.K)
    both = {"Beta-TS": READ, f"Beta-TS, {CENSORED}": CENSORED}
    policies = [(name, beta_ts(reading, K=longest)) for name, reading in both.items()]
    if recorded.has("theta"):
        policies.append(("Cali-TS", cali_ts(predictor="theta", K=longest)))
    return policies


def _at_ten(recordings: Recordings) -> Iterator[tuple[Recorded, str, tuple[str, Policy]]]:
    """Every recording with its method's name, and its policy of 10 tokens, or as many as it has."""
    for drafter, method in METHODS.items():
        for recorded in recordings.deep(drafter, K):
            longest = min(K, recorded.trace.K)
            yield recorded, method, (f"{method}, K = {longest}", fixed(longest))


def systems(
    title: str, tasks: Mapping[str, Sequence[str]], target: str, printed: Mapping[str, str],
    recordings: Recordings,
) -> DataFrame:  # fmt: skip
    """Tables 1 to 3: all systems, greedy decoding; EESD by Thompson sampling, others at K = 10, and
    each at its best K."""
    rows: list[Named] = []
    for recorded, method, ten in _at_ten(recordings):
        policies: list[Any] = [ten]
        if recorded.drafter == "early_exit":
            policies = [(f"EESD (+{name})", policy) for name, policy in thompson(recorded)]
        policies.append((f"{method}, best K", None))
        for name, policy in policies if recorded.trace.meta.rule == "greedy" else ():
            paper = printed.get(name.partition(",")[0])
            named = {"recording": recorded.name, "method": name, f"paper, {target}": paper}
            rows.append((named, recorded, policy))
    return policy_table(
        title, rows,
        "The paper's drafters have 0.5 to 7 B parameters: the order of systems compares, figures "
        "do not. K = 10 is the paper's, and far too long for drafters that are accepted less; best "
        "K is chosen on the other half of the prompts. EAGLE, GLIDE, Hydra and prompt lookup are "
        "not in its table.", EAGLE_NOTE, tasks=tasks,
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
        ("w/o Sampling-Prediction", RECORDING, recorded,
         cali_ts(predictor="theta", K=K, side="model")),
        ("w/o Model-Prediction", RECORDING, recorded, cali_ts(K=K, side="sampling")),
        ("w/o TS", RECORDING, recorded, fixed(K)),
    ]  # fmt: skip
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
    for recorded, _, ten in _at_ten(recordings):
        further = [(f"+ {name}", policy) for name, policy in thompson(recorded)]
        for name, policy in (ten, *further):
            rows.append(({"recording": recorded.name, "method": name}, recorded, policy))
    return policy_table(
        "EESD Table 5: Thompson sampling on other drafters", rows,
        "The paper has the first two. Cali-TS reads the recorded predictor where there is one, and "
        "is charged for it. Medusa and Hydra have 4 heads, and sampled recordings of the real "
        "model are 8 deep. papers/: along the outputs of the bundled recordings, priced by these; "
        "their costs to 8 tokens are continued by the last step.", EAGLE_NOTE,
    )  # fmt: skip


def best_chain(recorded: Recorded, longest: int = K, shortest: int = 1) -> Array:
    """float64[S, 1 + R]: seconds of the best fixed length, chosen on the other prompts."""
    return crossed(recorded.fixed_seconds(longest, shortest), recorded.trace)[0]


def best_tree(recorded: Recorded) -> Array:
    """float64[S, 1 + R]: seconds of the best tree with siblings, fitted to the other prompts."""
    return priced_seconds(fit_tree(recorded.trace, recorded.cost, with_siblings)[0])


def with_siblings(fit: Sequences) -> DeferredPolicy:
    """Of Sequoia's trees of every size and depth that have siblings the one of most expected tokens
    per second; two siblings where no second token is ever right."""

    def make(trace: Trace, cost: CostModel) -> TreePolicy:
        acceptance, most = rank_acceptance(trace, indices=fit), min(MAX_NODES, cost.nodes)
        depths = range(1, min(trace.K, cost.K) + 1)
        trees = [tree for d in depths for tree in sequoia_trees(acceptance[:d], most)]
        real = [tree for tree in trees if any(tree.rank)] or [tree_of_widths([2])]
        return TreePolicy("siblings", "static", tree=fastest_tree(real, acceptance, cost))

    return DeferredPolicy("siblings", make, submits=MAX_NODES)


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


MIXES = {
    "half at .2, half at .95": (0.2, 0.95), "half at .5, half at .9": (0.5, 0.9),
    "half at .6, half at .8": (0.6, 0.8), "all at .8": (0.8, 0.8),
}  # fmt: skip
"""Acceptance of prompts that are made up."""


def spread_of(recorded: Recorded) -> float:
    """Standard deviation between prompts of the first token's acceptance, less that of chance."""
    accepted, tried = (counts[:, 0] for counts in by_depth(recorded.trace))
    share = accepted / tried
    return float(np.sqrt(max(np.var(share) - np.mean(share * (1 - share) / tried), 0.0)))


def gain_on_mix(alphas: Sequence[float], c: float) -> float:
    """Time of the best fixed length over Beta-TS's, less 1, of made-up prompts: as many accepted
    independently at each of `alphas`, at a flat price c."""
    kinds = [Recorded("", "eagle", "", iid(a, 60, 256, K, i), CostModel.from_ratio(0, K)).at(c)
             for i, a in enumerate(alphas)]  # fmt: skip
    best = sum(kind.fixed_seconds()[..., 0].sum(axis=1) for kind in kinds).min()
    return float(best / sum(kind.seconds(beta_ts(K=K)).sum() for kind in kinds) - 1)


def claim_1(recordings: Recordings) -> DataFrame:
    """What Beta-TS gains over the best fixed length, by the spread of acceptance of prompts."""
    rows: list[dict[str, Any]] = []
    for name, alphas in MIXES.items():
        row: dict[str, Any] = {
            "recording": name, "spread": float(np.std(alphas)), "a1": np.mean(alphas)
        }  # fmt: skip
        rows.append(row | {f"flat, c = {c:.2f}": gain_on_mix(alphas, c) for c in FLATS[1:] if c})
    for recorded in recordings.counted(*TRAINED):
        accepted, tried = (counts[:, 0].sum() for counts in by_depth(recorded.trace))
        row = {"recording": recorded.name, "spread": spread_of(recorded), "a1": accepted / tried}
        for price in filter(recorded.has_price, PRICES):
            effect = beta_against_best_fixed(recorded.at(price))
            row[effect.regime] = effect.interval
        rows.append(row)
    columns = {column: "+.3f" for row in rows for column in row}
    return frame(
        rows, title="Claim 1: time of the best fixed K over Beta-TS's, less 1, by the spread of "
        "acceptance between prompts", formats=columns | {"spread": ".2f", "a1": ".2f"},
        notes=(
            "spread: standard deviation between prompts of the first draft token's acceptance a1, "
            "less that of chance. The first rows are made up: tokens are accepted independently. "
            "Where prompts are alike no random stop can beat the best K.",
        ),
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
    "eesd-claim-1": claim_1,
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


def beta_against_best_fixed(recorded: Recorded, reading: str = READ) -> Effect:
    """Claims 1 and 5b: how much slower the best of K = 1 to 10 is than Beta-TS."""
    beta = recorded.seconds(beta_ts(reading, K=min(K, recorded.trace.K)))
    return slower("the best fixed K over Beta-TS's", recorded, best_chain(recorded), beta)


def beta_against_ten(recorded: Recorded) -> Effect:
    """Claim 5a: how much slower a fixed length of 10, or the deepest, is than Beta-TS."""
    longest = min(K, recorded.trace.K)
    seconds = recorded.seconds(fixed(longest)), recorded.seconds(beta_ts(K=longest))
    return slower("a fixed length of 10, or the deepest, over Beta-TS's", recorded, *seconds)


SIGMAS = (1 / 128, 1 / 16), (1 / 64, 1 / 4), (1 / 32, 1 / 16), (1 / 16, 1 / 4), (1 / 4, 1 / 4)
"""(sigma_M, sigma_S) from which Cali-TS's are chosen: theta_M weighs .86, .96, .29, .62 and .09
after 10 rounds."""


def calibrated(
    recorded: Recorded, theta: bool, side: str = "both", charged: bool = True
) -> Array | None:
    """Seconds of Cali-TS that reads EESD's recorded theta, or in its place a logistic predictor in
    confidence, entropy and depth; predictor and constants are chosen on the other prompts at this
    price. None where neither is recorded."""
    if not recorded.has("theta" if theta else "confidence"):
        return None
    found: Array | None = None
    for fit, rest in halves(recorded.trace):
        predictor = "theta" if theta else fit_predictor(recorded.trace, fit)
        make = partial(cali_ts, predictor=predictor, side=side, K=min(K, recorded.trace.K))
        some = [make()] if side == "model" else [make(sigma_m=m, sigma_s=s) for m, s in SIGMAS]
        spent = [recorded.point(policy, charged)[fit].sum() for policy in some]
        seconds = recorded.seconds(some[int(np.argmin(spent))], charged)
        found = seconds.copy() if found is None else found
        found[rest] = seconds[rest]
    return found


def beta_against_calibrated(recorded: Recorded, theta: bool, charged: bool = True) -> Effect | None:
    """Claims 2 and 20b: how much slower Beta-TS is than Cali-TS; charged False: theta is free."""
    ours = calibrated(recorded, theta, charged=charged)
    beta = recorded.seconds(beta_ts(K=min(K, recorded.trace.K)))
    what = "Beta-TS over Cali-TS's" + ("" if charged else ", drafting and verification alone")
    return None if ours is None else slower(what, recorded, beta, ours)


def sampling_against_model(recorded: Recorded, theta: bool) -> Effect | None:
    """Claim 3: how much slower Cali-TS is without sampling-prediction than without the model's."""
    ways = [calibrated(recorded, theta, side) for side in ("model", "sampling")]
    what = "Cali-TS without sampling-prediction over that without model-prediction"
    seconds = [way for way in ways if way is not None]
    return slower(what, recorded, *seconds) if seconds else None


SHORT, LONG = 1, 5
"""Lengths between which a sample prefers one; 5 is the better setting of EESD's section 5.3."""


def samples_differ(recorded: Recorded) -> Effect | None:
    """Claim 4a: correlation over prompts of what a long draft gains in both halves of an output."""
    if recorded.trace.K < LONG:
        return None
    short, long = (_by_half(recorded, k) for k in (SHORT, LONG))
    x, y = (short - long) / _by_half(recorded, 0)
    sums = np.ones_like(x), x, y, x * x, y * y, x * y
    what = f"correlation of what K={LONG} gains over K={SHORT} in both halves of an output"
    return on_prompts(what, recorded, *sums, of=correlation, unit="correlation")


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


def _lost(
    what: str, recorded: Recorded, groups: Sequence[Array], scored: Array,
    score: Callable[[Array], Array], apart: bool = False,
) -> Effect:  # fmt: skip
    """Time lost by one length, that of the least score, over the best length of each group.

    groups: float64[L, S, 1 + R] each, seconds at each length, 0 on the prompts of others; scored
    [C, S, 1 + R]: columns of which the sums have `score` [..., L]; apart: of other prompts than the
    recording's, which are resampled with these.
    """
    own = np.sum([crossed(seconds, recorded.trace)[0] for seconds in groups], axis=0)
    columns, L = np.concatenate([own[None], *groups]), len(groups[0])
    if apart:
        rows = columns.shape[1], scored.shape[1]
        columns = np.pad(columns, ((0, 0), (0, rows[1]), (0, 0)))
        scored = np.pad(scored, ((0, 0), (rows[0], 0), (0, 0)))

    def lost(totals: Array, same: bool) -> Array:
        ours, cells, scores = np.split(totals, [1, len(columns)], axis=-1)
        each = cells.reshape(*cells.shape[:-1], len(groups), L)
        best = score(scores).argmin(axis=-1)[..., None]
        one = np.take_along_axis(each.sum(axis=-2), best, axis=-1)[..., 0]
        found: Array = one / (each.min(axis=-1).sum(axis=-1) if same else ours[..., 0]) - 1
        return found

    ends = {"of": partial(lost, same=False), "most": partial(lost, same=True)}
    return on_prompts(f"time of {what}, less 1", recorded, *columns, *scored, **ends)


def tasks_differ(recorded: Recorded) -> Effect | None:
    """Claim 4b: time lost by one length for all tasks, over a length for each."""
    seconds, tasks = recorded.fixed_seconds(), np.array(recorded.trace.task)
    groups = [seconds * (tasks == task)[:, None] for task in dict.fromkeys(tasks.tolist())]
    what = "one K over that of a K for each task"
    return _lost(what, recorded, groups, seconds, np.asarray) if len(groups) > 1 else None


def models_differ(recordings: Recordings) -> list[Effect]:
    """Claim 4c: time lost by the other target's best length, over an own one; prompts that it needs
    are of both."""
    found = []
    for c, drafter in product(PRICES, TRAINED):
        priced = [r.at(c) for r in recordings.counted(drafter) if r.has_price(c)]
        for recorded, other in permutations(priced, 2):
            rules = {r.trace.meta.rule for r in (recorded, other)}
            if other.target != recorded.target and len(rules) == 1:
                longest = min(recorded.trace.K, other.trace.K)
                ours, theirs = (r.fixed_seconds(longest) for r in (recorded, other))
                what = f"the best K of {other.name} over that of an own K"
                found.append(_lost(what, recorded, [ours], theirs, np.asarray, apart=True))
    return found


def faster(better: str, worse: str, recordings: Recordings) -> list[Effect]:
    """Claims 7b, 7c and 8: how much slower one early exit is than another under Beta-TS."""
    found = []
    for cards in recordings.cards(better, worse):
        ours, theirs = (recordings.exit(card) for card in cards)
        if ours and theirs:
            for c in FLATS:
                one, other = ours.at(c), theirs.at(c)
                policy = beta_ts(K=min(K, one.trace.K, other.trace.K))
                what = f"{worse} over that of {better} under Beta-TS"
                effect = slower(what, one, other.seconds(policy), one.seconds(policy))
                found.append(replace(effect, on=f"{cards[0].label} / {cards[1].label}"))
    return found


def higher_hm_is_slower(recorded: Recorded) -> Effect:
    """Claim 6: time lost by the length of the highest HM, over the fastest."""
    seconds = recorded.fixed_seconds(K)
    parts = [_hm_parts(recorded, fixed(k + 1)) for k in range(len(seconds))]
    columns = np.swapaxes(parts, 0, 1).reshape(2 * len(parts), -1, 1)  # accepted, then paid

    def paid_over_accepted(totals: Array) -> Array:
        accepted, paid = np.split(totals, 2, axis=-1)
        return paid / accepted

    what = "the K of the highest HM over that of the fastest"
    return _lost(what, recorded, [seconds], columns, paid_over_accepted)


def tree_over_chain(recorded: Recorded) -> Effect | None:
    """Claim 10: how much slower the best chain is than the best tree with siblings."""
    if recorded.trace.rank is None:
        return None
    chain, tree = best_chain(recorded, 255), best_tree(recorded)
    return slower("the best chain over that of the best tree with siblings", recorded, chain, tree)


MATTERS = (0.01, np.inf)
"""Time of one setting over another's, less 1, of a difference that matters."""
TOP, BARE, BEST = "early_exit-n1-x1", "early_exit-n1-x0", "The best draft length differs between "


def _by_predictor(
    number: str, sentence: str, where: str, function: Callable[..., Effect | None],
    prices: Sequence[Price] = PRICES,
) -> tuple[Claim, Claim]:  # fmt: skip
    """A claim on EESD's recorded theta, and on the logistic predictor in its place."""
    names = {True: ("", "EESD's theta"), False: (" by confidence", "logistic")}
    first, second = (
        Claim(
            number + suffix, f"{sentence} (predictor: {name}).", where,
            each(partial(function, theta=theta), *TRAINED, prices=prices),
        )
        for theta, (suffix, name) in names.items()
    )  # fmt: skip
    return first, second


def deeper(recordings: Recordings) -> list[Effect]:
    """Claim 8: N = 1 of 10 layers against 2 and 3."""
    return [e for n in (2, 3) for e in faster(TOP, f"early_exit-n{n}-x1", recordings)]


CLAIMS = (
    *(
        Claim(
            number, f"Beta-TS ({reading}) is at least as good as the best fixed draft length.",
            "section 5.2, Figure 3",
            each(partial(beta_against_best_fixed, reading=reading), *TRAINED),
            (-0.01, np.inf),  # at least as good: within 1%
        )
        for number, reading in (("1", READ), ("1 censored", CENSORED))
    ),
    *_by_predictor("2", "Cali-TS beats Beta-TS", "Tables 1 to 3", beta_against_calibrated),
    *_by_predictor(
        "3", "Sampling-prediction matters more than model-prediction", "section 5.1, Table 4",
        sampling_against_model,
    ),
    Claim(
        "4a", BEST + "samples.", "Figure 1b", each(samples_differ, *TRAINED), (0.1, np.inf), True
    ),
    Claim(
        "4b", BEST + "tasks by 1% of time.", "Figure 3", each(tasks_differ, *TRAINED),
        MATTERS, True,
    ),
    Claim("4c", BEST + "models by 1% of time.", "Figure 3", models_differ, MATTERS, True),
    Claim(
        "5a", "Thompson sampling helps vanilla and self-speculative drafters, against K = 10.",
        "Table 5", each(beta_against_ten, "model", "self_skip", K=K),
    ),
    Claim(
        "5b", "The same against the best fixed length.", "-",
        each(beta_against_best_fixed, "model", "self_skip", K=K),
    ),
    Claim(
        "6", "A higher HM need not mean a higher speedup (1% of time).", "section 5.2",
        each(higher_hm_is_slower, *TRAINED), MATTERS, True,
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
    Claim(
        "10", "Tree attention (siblings) adds speedup.", "Table 7", each(tree_over_chain, *TRAINED)
    ),
    *_by_predictor(
        "20", "Cali-TS spends less on drafting and verification than Beta-TS", "Table 8",
        partial(beta_against_calibrated, charged=False), (None,),
    ),
)  # fmt: skip
