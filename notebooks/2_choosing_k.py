# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 2. Choosing K
#
# How many tokens to draft? That depends on the prompts, through acceptance, and on the machine,
# through costs. A recording holds the first, a cost model the second. Rounds at a fixed K do not
# depend on costs, so one replay serves every machine.
#
# K is the draft length, c = draft step / target step, alpha the probability that a drafted token is
# accepted given those before it, v_d = accepted / drafted tokens, r_d = accepted / output tokens.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np

import simspec
from simspec import CostModel, formulas, recordings, replay, summary
from simspec.cost import CostTable, load_cost
from simspec.numerics import stats
from simspec.policies import fixed, make
from simspec.policy import split_by_task
from simspec.reports import score
from simspec.trace import CHECKOUT, cost_beside, depth_acceptance

FAST = os.environ.get("SIMSPEC_FAST") == "1"  # fewer draws; the suite runs it so
plt.rcParams |= {
    "figure.dpi": 80,
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
COLOURS = plt.get_cmap("tab10").colors

paths = recordings()
names = [name for name in paths if name.startswith("tiny-early_exit")] or list(paths)
traces = {name: simspec.load_trace(paths[name]) for name in names}
tables = {name: CostTable.from_json(cost_beside(paths[name])) for name in names}
measured = {name: table.at(1, table.context[0]) for name, table in tables.items()}
name = names[-1]
trace, cost = traces[name], measured[name]
for each, one in traces.items():
    print(
        f"{each}: {one.sequences} sequences, {one.rows} tokens, K up to {one.K}, costs from "
        f"{measured[each].device}"
    )

# %% [markdown]
# ## What a round costs
#
# Two kinds of cost model: measured on a machine, and a ratio c, as papers have it, where every
# target pass costs 1.
#
# **Look for:** whether verification costs more for longer drafts (the papers charge every pass
# alike), and how much drafting K tokens costs beside a target step. vLLM 0.26 on an H200 was
# measured with another, far larger pair of models, as a question: what if this acceptance were
# theirs? A round was timed as a whole there, so its drafting is part of `verify`.

# %%
served = load_cost("h200-vllm-0.26")
costs = {
    "measured": cost,
    "c = 0.05": CostModel.from_ratio(0.05, trace.K),
    "c = 0.3": CostModel.from_ratio(0.3, trace.K),
}
costs["vLLM on an H200"] = served.at(1, 1024)

figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
for colour, (label, one) in zip(COLOURS, costs.items()):
    axes[0].plot(one.draft / one.baseline, "o-", ms=3, color=colour, label=label)
    axes[1].plot(one.verify / one.baseline, "o-", ms=3, color=colour)
    print(
        f"{label}: plain step {one.baseline * 1e3:.3g} ms"
        if one.device
        else f"{label}: plain step 1",
        end="; ",
    )
    print(
        f"draft step {one.draft[1] / one.baseline:.3f}, verifying 7 drafts "
        f"{one.verify[min(7, one.K)] / one.baseline:.2f} plain steps"
    )
axes[0].set(xlabel="tokens drafted", ylabel="in plain target steps", title="drafting")
axes[1].set(xlabel="tokens drafted", title="verifying")
axes[0].legend(fontsize=8)
# %% [markdown]
# ## Fixed K under each of them
#
# The same rounds, priced four times.
#
# **Look for:** the top of each curve. It moves with costs alone; where the curve stays under 1, do
# not draft at all.

# %%
rounds = {each: [replay(one, fixed(k)) for k in range(one.K + 1)] for each, one in traces.items()}


def speedups(trace, rounds, cost):
    """Modeled speedup of each fixed K that is priced over plain decoding, float64[K + 1]."""
    priced = rounds[: cost.K + 1]
    return np.array([trace.rows * cost.baseline / cost.seconds(run).sum() for run in priced])


figure, axes = plt.subplots(
    1, len(traces), figsize=(4.5 * len(traces), 3.4), sharey=True, squeeze=False
)
for axis, (each, one) in zip(axes[0], traces.items()):
    for colour, (label, price) in zip(COLOURS, {**costs, "measured": measured[each]}.items()):
        values = speedups(one, rounds[each], price)
        best = int(values.argmax())
        axis.plot(values, color=colour, label=label)
        axis.plot(best, values[best], "o", color=colour)
        print(f"{each}, {label}: best K {best}, speedup {values[best]:.3f}")
    axis.axhline(1, color="grey", lw=0.8)
    axis.set(xlabel="K", title=each)
axes[0, 0].set_ylabel("modeled speedup")
axes[0, 0].legend(fontsize=8)
# %% [markdown]
# ## Does the best K differ between tasks?
#
# In hindsight it nearly always does: a K that is chosen and evaluated on the same prompts looks too
# good. So each task's K, and one K for all, are chosen on one half of the sequences, and compared
# on the other. The figure is the time that one K for all takes over the time of the task's own;
# above 1 the task's own is better. Intervals resample prompts.
#
# **Look for:** intervals that lie above 1. Where they contain 1 (or where both are the same K), a K
# per task gains nothing here.

# %%
resamples = 500 if FAST else 4000


def by_prompt(rounds, cost):
    """Modeled seconds of each sequence, float64[S]."""
    return np.add.reduceat(cost.seconds(rounds), rounds.offset[:-1])


first, second = split_by_task(trace)
tasks = sorted(set(trace.task))
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
for shift, (label, price) in enumerate((("measured", cost), ("c = 0.05", costs["c = 0.05"]))):
    seconds = np.array([by_prompt(run, price) for run in rounds[name]])
    one_k = int(seconds[:, first].sum(axis=1).argmin())
    print(f"{label}: one K for all, chosen on the first half: {one_k}")
    for number, task in enumerate(tasks):
        of = np.array([kind == task for kind in trace.task])
        if not shift:
            tokens = np.diff(trace.offset)[of].sum()
            axes[0].plot(
                tokens * price.baseline / seconds[:, of].sum(axis=1),
                color=COLOURS[number],
                label=task,
            )
        own = int(seconds[:, first[of[first]]].sum(axis=1).argmin())
        there = second[of[second]]
        if len(there) < stats.MIN_PROMPTS:
            print(
                f"  {task}: own K {own}; {len(there)} held-out sequences are too few for an "
                "interval"
            )
            continue
        gain = stats.ratio(seconds[one_k, there], seconds[own, there], resamples=resamples)
        error = [[gain.value - gain.low], [gain.high - gain.value]]
        mark, lane = "os"[shift], number + 0.25 * shift
        axes[1].errorbar(
            gain.value,
            lane,
            xerr=error,
            fmt=mark,
            ms=4,
            color=COLOURS[number],
            capsize=3,
            label=None if number else label,
        )
        print(
            f"  {task}: own K {own}, time ratio on the other half {gain.value:.3f} "
            f"[{gain.low:.3f}, {gain.high:.3f}]"
        )
axes[0].axhline(1, color="grey", lw=0.8)
axes[0].xaxis.get_major_locator().set_params(integer=True)
axes[0].set(xlabel="K", ylabel="modeled speedup", title=f"{name}, measured")
axes[0].legend(fontsize=8)
axes[1].axvline(1, color="grey", lw=0.8)
axes[1].set(
    yticks=range(len(tasks)), yticklabels=tasks, xlabel="time of one K for all / of the task's own"
)
axes[1].legend(fontsize=8)

# %% [markdown]
# ## The best K by cost ratio, and where drafting stops paying off
#
# Left: the best fixed K at each c, replayed, beside the K that formula 1 chooses from the average
# alpha alone. Right: the c up to which a fixed K beats plain decoding. In unit costs that is
# exactly v_d, the share of drafted tokens that are accepted (EESD Eq. 14: a speedup above 1 iff c <
# v_d), and formula 1 puts it at (E[committed] - 1) / K.
#
# **Look for:** where formula 1 is wrong about the best K, and which break-even line lies higher.
# The formula's alpha is an average over all rows, but rounds begin behind a miss, where tokens are
# harder to draft. So it promises more than rounds achieve.

# %%
ratios = np.geomspace(0.01, 1, 15 if FAST else 60)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
for colour, (each, one) in zip(COLOURS, traces.items()):
    alpha, _ = depth_acceptance(one)
    passes = np.array([len(run) for run in rounds[each]])
    drafted = np.array([run.drafted.sum() for run in rounds[each]])
    accepted = np.array([run.accepted.sum() for run in rounds[each]])
    best = [(passes + c * drafted).argmin() for c in ratios]
    lengths = np.arange(1, one.K + 1)
    axes[0].semilogx(ratios, best, color=colour, label=f"{each}, replayed")
    axes[0].semilogx(
        ratios,
        formulas.optimal_k(alpha, ratios, one.K),
        ":",
        color=colour,
        label=f"formula 1, alpha = {alpha:.2f}",
    )
    paid = (one.rows - passes[1:]) / drafted[1:]
    axes[1].plot(lengths, paid, color=colour, label=f"{each}, replayed")
    axes[1].plot(
        lengths,
        (formulas.expected_committed(alpha, lengths) - 1) / lengths,
        ":",
        color=colour,
        label="formula 1",
    )
    apart = abs(paid - accepted[1:] / drafted[1:]).max()
    print(
        f"{each}: break-even c is {paid[0]:.3f} at K = 1, {paid[-1]:.3f} at K = {one.K}; v_d "
        f"differs by {apart:.1e} at most"
    )
axes[0].set(xlabel="c", ylabel="best K")
axes[1].set(xlabel="K", ylabel="break-even c", ylim=(0, None))
for axis in axes:
    axis.legend(fontsize=8)

# %% [markdown]
# (v_d and the break-even differ slightly, because an accepted end token ends a sequence without a
# token of the target's own.)
#
# ## The simulator against the formulas
#
# Formula 1 assumes independent acceptances with one alpha; formula 2 gives each depth its own. On
# synthetic sequences of that distribution they must agree with the replay, up to its noise. On a
# recording they may not. Rows are neither independent nor identically distributed, and the end of a
# sequence cuts its last drafts.
#
# **Look for:** the synthetic lines at 0, and by how much the formulas miss on real recordings,
# which is what replay is for. (`simspec check` makes hundreds of such comparisons at a stated
# risk.)

# %%
synthetic = simspec.synthetic.iid(0.7, 20 if FAST else 200, 5000, trace.K, seed=1)
everything = {
    "synthetic, alpha = 0.7": (
        synthetic,
        [replay(synthetic, fixed(k)) for k in range(synthetic.K + 1)],
    )
}
everything |= {each: (one, rounds[each]) for each, one in traces.items()}
figure, axis = plt.subplots(figsize=(7, 3.4))
for colour, (each, (one, runs)) in zip(COLOURS, everything.items()):
    alpha, alphas = depth_acceptance(one)
    lengths = np.arange(1, one.K + 1)
    replayed = np.array([one.rows / len(runs[k]) for k in lengths])
    first_formula = formulas.expected_committed(alpha, lengths)
    second_formula = np.array(
        [formulas.depthwise_committed(np.nan_to_num(alphas[:k])) for k in lengths]
    )
    axis.plot(
        lengths, 100 * (first_formula / replayed - 1), color=colour, label=f"{each}: formula 1"
    )
    axis.plot(lengths, 100 * (second_formula / replayed - 1), ":", color=colour, label="formula 2")
    for k in (1, 4, 8):
        print(
            f"{each}, K = {k}: {replayed[k - 1]:.3f} tokens a round, formulas "
            f"{first_formula[k - 1]:.3f} and {second_formula[k - 1]:.3f}"
        )
axis.axhline(0, color="grey", lw=0.8)
axis.set(xlabel="K", ylabel="formula / replay - 1, %")
axis.legend(fontsize=8)
# %% [markdown]
# ## Eq. 13 holds exactly, under its own assumptions
#
# EESD's Eq. 13 gives the time of a run from v_d and r_d: T = (r_d L / v_d) T_d + (1 - r_d) L T_t.
# It charges every target pass alike. Priced so, replayed rounds must take exactly that long, for
# **any** policy. Sequences that end with an accepted end token have no token of the target's own in
# their last round and cost one step more. The table shows its speedup, Eq. 14, beside that of the
# same rounds at measured costs.

# %%
unit = CostModel.from_ratio(0.1, trace.K)
print(
    f"{'policy':>20} {'Eq. 13':>10} {'replayed':>10} {'closed by an accepted end':>26} "
    f"{'left over':>10} {'Eq. 14':>7} {'measured':>9}"
)
for label in (
    "fixed:1",
    "fixed:3",
    "fixed:8",
    "beta_ts",
    "confidence:0.5",
    "cost_ts",
    "hf_heuristic",
):
    policy = make(label, trace, unit)
    run = replay(trace, policy, cost=unit)
    metrics = summary(run, trace, unit)
    expected = formulas.eesd_time(metrics.v_d, metrics.r_d, metrics.tokens, 0.1, 1.0)
    last = run.offset[1:] - 1
    closed = int((run.row[last] + run.accepted[last] >= trace.offset[1:]).sum())
    left = metrics.seconds - expected - closed
    assert abs(left) <= 1e-9 * expected
    real = trace.rows * cost.baseline / cost.reading(policy.reads).seconds(run).sum()
    ratio = cost.draft[1] / cost.baseline
    print(
        f"{policy.name:>20} {expected:>10.1f} {metrics.seconds:>10.1f} {closed:>26} {left:>10.0e}",
        end=" ",
    )
    print(f"{formulas.eesd_speedup(metrics.v_d, metrics.r_d, ratio):>7.3f} {real:>9.3f}")
print(f"Eq. 14 here with c = {ratio:.3f}, the measured draft step over the measured plain step")

# %% [markdown]
# ## The batch axis
#
# A pass with more sequences computes more rows for the same weights read. From some size on compute
# is the limit, and verifying k + 1 rows of each is no longer free. Each sequence keeps its own
# rounds; a table prices them by batch and context.
#
# **Look for:** the best K falling as the batch grows, in steps: that is the table which serving
# engines ask their users for.

# %%
shown = [(f"{each}, vLLM on an H200", each, served, served.context[0]) for each in names]
shown += [
    (f"{each}, measured", each, table, table.context[0])
    for each, table in tables.items()
    if len(table.batch) > 1
]
print(f"an H200: {served.name}, measured after {served.context[0]} tokens")
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
for colour, (label, each, table, context) in zip(COLOURS, shown):
    grid = [speedups(traces[each], rounds[each], table.at(size, context)) for size in table.batch]
    best = [int(line.argmax()) for line in grid]
    axes[0].semilogx(table.batch, best, "o-", base=2, ms=4, color=colour, label=label)
    axes[1].semilogx(table.batch, [line.max() for line in grid], "o-", base=2, ms=4, color=colour)
    axes[1].semilogx(table.batch, [line[4] for line in grid], ":", base=2, color=colour)
    print(f"{label}:", ", ".join(f"batch {size} K = {k}" for size, k in zip(table.batch, best)))
axes[1].axhline(1, color="grey", lw=0.8)
for axis in axes:
    axis.set_xticks(served.batch, served.batch)
axes[0].yaxis.get_major_locator().set_params(integer=True)
axes[0].set(xlabel="batch", ylabel="best fixed K")
axes[0].legend(fontsize=7)
axes[1].set(
    xlabel="batch", ylabel="modeled speedup", title="at the best K; dotted: K = 4 at every size"
)

# %% [markdown]
# ## A custom policy, and the score
#
# A policy is two plain functions that numba can compile. `echo` drafts as many tokens as the last
# round accepted, and one more. The score says how much of the gap between the best fixed K (chosen
# in hindsight) and the clairvoyant oracle a policy closes: 0 is as good as the best fixed K, 1 is
# the most that any policy can reach.
#
# **Look for:** which intervals lie right of 0. A policy left of 0 loses to a constant.


# %%
def draft_more(params, state, slot, features, u):
    return slot < state[0], True


def observe(params, state, computed, drafted, accepted, features, cost):
    state[0] = accepted + params[0]


echo = simspec.Policy("echo", draft_more, observe, params=(1.0,), state0=(2.0,))
contestants = [
    echo,
    "hf_heuristic",
    "beta_ts",
    "cost_ts",
    "confidence:0.5",
    "confidence:0.7",
    "product",
]
scores = score(traces, measured, contestants, replicates=1 if FAST else 4, resamples=resamples)

figure, axes = plt.subplots(
    1, len(scores), figsize=(4.7 * len(scores), 3.2), sharey=True, squeeze=False
)
for axis, each in zip(axes[0], scores):
    print(
        f"{each['recording']}: best fixed K is {each['best_fixed']} at "
        f"{each['speedup_fixed']:.3f}, oracle {each['speedup_oracle']:.3f}"
    )
    for lane, row in enumerate(each["policies"]):
        low, high = row["low"], row["high"]
        axis.errorbar(
            row["share"],
            lane,
            xerr=[[row["share"] - low], [high - row["share"]]],
            fmt="o",
            color=COLOURS[0],
            capsize=3,
        )
        print(
            f"  {row['policy']:>20}: speedup {row['speedup']:.3f}, share {row['share']:+.2f} "
            f"[{low:+.2f}, {high:+.2f}]"
        )
    axis.axvline(0, color="grey", lw=0.8)
    axis.axvline(1, color="grey", lw=0.8, ls=":")
    axis.set(xlabel="share of the gap to the oracle", title=each["recording"])
    axis.set_yticks(range(len(each["policies"])), [row["policy"] for row in each["policies"]])
axes[0, 0].invert_yaxis()

# %% [markdown]
# ## A real model
#
# SmolLM2-135M with six drafters, at costs measured on two CPU cores (docs/smollm2.md).
#
# **Look for:** how little most curves rise above 1, and where their top is: K = 2, but for prompt
# lookup on greedy outputs, whose drafts are free.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
for axis, rule in zip(axes, ("greedy", "coupled")):
    for colour, path in zip(COLOURS, sorted((CHECKOUT / "smollm2" / rule).glob("*.parquet"))):
        one, price = simspec.load_trace(path), CostModel.from_json(cost_beside(path))
        lengths = range(min(one.K, 8) + 1)
        curve = speedups(one, [replay(one, fixed(k)) for k in lengths], price)
        axis.plot(lengths, curve, "o-", ms=3, color=colour, label=path.stem)
        print(f"{rule} {path.stem}: best K {curve.argmax()}, {curve.max():.2f} times plain")
    axis.axhline(1, color="grey", lw=0.8)
    axis.set(xlabel="K", title=rule)
axes[0].set_ylabel("modeled speedup")
axes[0].legend(fontsize=7)
