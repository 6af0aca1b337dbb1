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
# # 6. Claims of the papers
#
# What of a paper can be checked without its GPUs? Its arithmetic: each printed figure that follows
# from others in its row. And its claims, on recordings of other models: a claim about policies is
# either true of these rounds, or it is not, or these prompts do not tell.
#
# The tables are of EESD and of GLIDE with a CAPE. The recordings are of SmolLM2-135M-Instruct.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np

import simspec
from simspec import CostModel, formulas
from simspec.numerics import stats
from simspec.papers import CLAIMS, Recordings
from simspec.papers.claims import summary
from simspec.papers.printed import (
    EESD,
    eesd_cells,
    glide_cells,
    implied_costs,
    shared_cost,
    table_rows,
)
from simspec.policies import beta_ts, confidence, cost_ts, fixed, oracle, product
from simspec.policy.predictor import split_by_task
from simspec.replay.evaluation import evaluate
from simspec.trace.acceptance import depth_acceptance
from simspec.trace.recordings import CHECKOUT, costs_of
from simspec.trace.synthetic import iid

FAST = os.environ.get("SIMSPEC_FAST") == "1"  # fewer draws and recordings; the suite runs it so
plt.rcParams |= {
    "figure.dpi": 80,
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
COLOURS = plt.get_cmap("tab10").colors

paths = {
    f"{drafter}, {rule}": CHECKOUT / "smollm2" / rule / f"{drafter}.parquet"
    for rule in ("greedy", "coupled")
    for drafter in ("eagle", "glide")
}
traces = {name: simspec.load_trace(path) for name, path in paths.items()}
costs = costs_of(paths)
for name, trace in traces.items():
    print(f"{name}: {trace.sequences} sequences, {trace.rows} tokens, K up to {trace.K}")

# %% [markdown]
# ## GLIDE's table, by its formula
#
# Table 1 prints, for a draft of five tokens, acceptance, cost and the expected speedup, which
# should follow by (1 - alpha^6) / ((1 - alpha)(5 c + 1)). Printed digits are rounded, so each row
# allows an interval: a thick bar below. A dot is the printed speedup, its thin bar the rounding.
#
# **Look for:** thin bars that do not touch the thick one (red). No acceptance and cost that print
# as in that row give a speedup that prints like that.

# %%
cells = glide_cells()
figure, axis = plt.subplots(figsize=(10, 3))
for at, cell in enumerate(cells):
    middle = (cell.low + cell.high) / 2
    colour = COLOURS[0] if cell.ok else COLOURS[3]
    axis.plot([at, at], [cell.low - middle, cell.high - middle], color=colour, lw=3, alpha=0.4)
    axis.errorbar(at, float(cell.printed) - middle, 0.005, fmt="o", ms=4, lw=0.8, color=colour)
    if not cell.ok:
        print(f"{cell.name}: printed {cell.printed}, allowed {cell.low:.3f} to {cell.high:.3f}")
print(f"{sum(cell.ok for cell in cells)} of {len(cells)} cells follow from their row")
axis.set(xlabel="cell of GLIDE's Table 1", ylabel="speedup, less its interval's middle")

# %% [markdown]
# ## The price that EESD's speedups imply
#
# EESD's Eq. 14 has the speedup follow from v_d (accepted / drafted tokens), r_d (accepted / output
# tokens) and c, the draft step in target steps. So each printed row implies its c. A pair of target
# and drafter has one c on one machine: its intervals from different tables should overlap.
#
# **Look for:** lanes whose bars do not share a vertical line. There the rounds of one task cost
# more than those of another, which Eq. 14 does not have: it charges every target pass alike. And a
# bar below 0 leaves no c at all.

# %%
several = {pair: found for pair, found in implied_costs().items() if len(found) > 2}
tables = sorted({table for found in several.values() for table in found})
figure, axis = plt.subplots(figsize=(9, 4.2))
for lane, (pair, found) in enumerate(several.items()):
    for shift, table in enumerate(tables):
        if table in found:
            y = lane + 0.17 * (shift - 1.5)
            axis.plot(found[table], [y, y], color=COLOURS[shift], lw=3)
    shared = shared_cost(found)
    verdict = f"{shared[0]:.3f} to {shared[1]:.3f}" if shared else "none"
    spans = (f"{low:.3f} to {high:.3f}" for low, high in found.values())
    print(f"{' '.join(pair)}: c shared by {len(found)} tables: {verdict} ({'; '.join(spans)})")
for shift, table in enumerate(tables):
    axis.plot([], [], color=COLOURS[shift], lw=3, label=table)
axis.axvline(0, color="grey", lw=0.8)
labels = [" ".join(pair) for pair in several]
axis.set_yticks(range(len(labels)), labels, fontsize=8)
axis.set_xlabel("c that Eq. 14 implies")
axis.legend(fontsize=7)
axis.invert_yaxis()

# %% [markdown]
# ## Does a higher HM mean a higher speedup?
#
# EESD scores drafts by HM, the harmonic mean of v_d and r_d, and says that a higher HM need not
# mean a higher speedup. In its own tables: every pair of methods on the same target and table.
#
# **Look for:** crossing lines. Each line joins the methods of one target in one table; where it
# falls to the right, the method of the higher HM is the slower one.

# %%
figure, axis = plt.subplots(figsize=(6.4, 3.8))
methods = {}
pairs = turned = 0
groups = {}
for table, target, method, _, _, _, hm, _, _, speedup in table_rows(EESD):
    if method != "plain":
        groups.setdefault((table, target), []).append((float(hm), float(speedup), method))
for points in groups.values():
    points.sort()
    axis.plot(*zip(*((hm, speedup) for hm, speedup, _ in points)), color="0.85", lw=0.8)
    for hm, speedup, method in points:
        methods.setdefault(method, []).append((hm, speedup))
    for i, (hm, speedup, _) in enumerate(points):
        pairs += sum(other > hm for other, _, _ in points[i + 1 :])
        turned += sum(other > hm and faster < speedup for other, faster, _ in points[i + 1 :])
for colour, (method, found) in zip(COLOURS, methods.items()):
    axis.plot(*zip(*found), "o", ms=4, color=colour, label=method)
axis.set(xlabel="HM, per cent", ylabel="printed speedup")
axis.legend(fontsize=8)
misfits = [cell for cell in eesd_cells() if not cell.ok]
print(f"the method of the higher HM is the slower one in {turned} of {pairs} pairs")
print(f"{len(eesd_cells())} cells of these tables have a formula, {len(misfits)} do not fit it:")
for cell in misfits:
    print(f"  {cell.name}: printed {cell.printed}, allowed {cell.low:.3f} to {cell.high:.3f}")

# %% [markdown]
# ## Does the best K differ between prompts?
#
# EESD's Figure 1 shows that it does, in hindsight. But a K that is chosen on a prompt's own rounds
# also fits its noise. So beside each recording stands a synthetic one in which all prompts are
# alike: the same lengths and one acceptance, at the same costs. Its spread is noise and nothing
# else.
#
# **Look for:** solid bars that spread wider than the outlines. Only that part of the spread is a
# difference between prompts.

# %%


def best_by_prompt(trace, cost):
    """The fixed K of least time on each prompt, int64[S]."""
    lengths = [fixed(k) for k in range(9)]
    times = evaluate(trace, lengths, cost, 1).times
    return np.array([times[policy.name] for policy in lengths]).argmin(axis=0)


figure, axes = plt.subplots(1, len(traces), figsize=(10, 2.8), sharey=True)
for axis, (name, trace) in zip(axes, traces.items()):
    own = best_by_prompt(trace, costs[name])
    alpha = depth_acceptance(trace)[0]
    rows = round(trace.rows / trace.sequences)
    alike = iid(alpha, 10 * trace.sequences, rows, trace.K, seed=1)
    noise = best_by_prompt(alike, costs[name])
    lengths = np.arange(9)
    axis.bar(lengths, [(own == k).mean() for k in lengths], color=COLOURS[0], label="recorded")
    outline = [(noise == k).mean() for k in lengths]
    axis.bar(lengths, outline, fill=False, edgecolor="black", label="all prompts alike")
    axis.set(xlabel="best K of a prompt", title=name)
    print(
        f"{name}: best K {own.mean():.2f}, standard deviation {own.std():.2f}; of prompts that are "
        f"all alike {noise.mean():.2f} and {noise.std():.2f}"
    )
axes[0].set_ylabel("share of prompts")
axes[0].legend(fontsize=7)

# %% [markdown]
# ## Is Beta-TS at least as good as the best fixed K?
#
# EESD §5.2 says so, of a K chosen for all samples. Beta-TS does not know what a draft costs: it
# drafts the same at every c. `cost_ts` keeps the same posterior and drafts the K that is best for
# the sampled acceptance at these costs. The figure is the time of the best fixed K over the
# policy's, at flat prices; above 1 the claim holds. The fixed K is chosen on one half of each
# task's prompts, and all are counted on the other. Bands: 95% intervals over prompts.
#
# **Look for:** how far the verdict depends on c. At a price where long drafts are wasted, a policy
# that is blind to the price cannot hold.

# %%
ratios = (0.02, 0.1, 0.4) if FAST else (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6)
contestants = {"beta_ts": beta_ts(), "cost_ts": cost_ts()}
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
for axis, name in zip(axes, ("eagle, greedy", "eagle, coupled")):
    fit, rest = split_by_task(traces[name])
    lines = {label: [] for label in contestants}
    for c in ratios:
        unit = CostModel.from_ratio(c, traces[name].K)
        lengths = [fixed(k) for k in range(traces[name].K + 1)]
        policies = [policy.resolve(traces[name], unit) for policy in contestants.values()]
        times = evaluate(traces[name], [*lengths, *policies], unit, 1 if FAST else 4).times
        best = min(lengths, key=lambda policy: times[policy.name][fit].sum())
        for label, policy in zip(contestants, policies):
            over = stats.ratio(
                times[best.name][rest], times[policy.name][rest], resamples=500 if FAST else 4000
            )
            lines[label].append(over)
            holds = "holds" if over.low >= 1 else "does not hold" if over.high < 1 else "undecided"
            print(
                f"{name}, c = {c:g}: {label} against {best.name} {over.value:.3f} "
                f"[{over.low:.3f}, {over.high:.3f}]: {holds}"
            )
    for colour, (label, found) in zip(COLOURS, lines.items()):
        axis.plot(ratios, [over.value for over in found], "o-", ms=3, color=colour, label=label)
        limits = [over.low for over in found], [over.high for over in found]
        axis.fill_between(ratios, *limits, color=colour, alpha=0.15)
    axis.axhline(1, color="grey", lw=0.8)
    axis.set(xlabel="c", title=name, xscale="log")
axes[0].set_ylabel("speed over that of the best fixed K")
axes[0].legend(fontsize=8)

# %% [markdown]
# ## Do the drafter's signals tell when to stop?
#
# S2D and others stop where the drafter's confidence falls below a threshold. Here every threshold
# is replayed at measured costs: on the last token's confidence, and on the product of all. Beside
# them: the best fixed K and the oracle.
#
# **Look for:** how much of the way from the best fixed K to the oracle any threshold goes, even the
# one chosen in hindsight.

# %%
thresholds = np.linspace(0.1, 0.9, 5 if FAST else 17)
shown = ("eagle, greedy", "eagle, coupled")
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
for axis, name in zip(axes, shown):
    trace, cost = traces[name], costs[name]
    plain = trace.rows * cost.baseline

    def speed(policy, trace=trace, cost=cost, plain=plain):
        rounds = simspec.replay(trace, policy, cost=cost)
        return plain / cost.reading(policy.reads).seconds(rounds).sum()

    best = max(speed(fixed(k)) for k in range(trace.K + 1))
    most = speed(oracle.resolve(trace, cost))
    for colour, maker in zip(COLOURS, (confidence, product)):
        curve = [speed(maker(float(threshold))) for threshold in thresholds]
        axis.plot(thresholds, curve, "o-", ms=3, color=colour, label=maker.__name__)
        share = (max(curve) - best) / (most - best)
        print(f"{name}: best {maker.__name__} {max(curve):.3f}, {share:+.2f} of the gap")
    axis.axhline(best, color="black", lw=1, label="best fixed K")
    axis.axhline(most, color=COLOURS[3], lw=1, label="oracle")
    axis.set(xlabel="threshold", title=name)
    print(f"{name}: best fixed K {best:.3f}, oracle {most:.3f}")
axes[0].set_ylabel("modeled speedup")
axes[0].legend(fontsize=7)

# %% [markdown]
# ## What a draft that stops in time is worth, by price
#
# The gap between the best fixed K and the oracle is what all policies of all papers compete for. It
# depends on c alone, once the rounds are recorded: with free drafts nothing is lost by drafting too
# much, and where a draft costs as much as a pass there is nothing to gain.
#
# **Look for:** the price at which the gap is widest, and how high it is there.

# %%
prices = np.geomspace(0.01, 1, 7 if FAST else 25)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
for colour, (name, trace) in zip(COLOURS, traces.items()):
    rounds = [simspec.replay(trace, fixed(k)) for k in range(trace.K + 1)]
    best, most = [], []
    for c in prices:
        unit = CostModel.from_ratio(float(c), trace.K)
        best.append(trace.rows / min(unit.seconds(run).sum() for run in rounds))
        ideal = simspec.replay(trace, oracle.resolve(trace, unit), cost=unit)
        most.append(trace.rows / unit.seconds(ideal).sum())
    axes[0].semilogx(prices, best, color=colour)
    axes[0].semilogx(prices, most, ":", color=colour)
    gap = np.array(most) / best - 1
    axes[1].semilogx(prices, 100 * gap, color=colour, label=name)
    widest = float(prices[gap.argmax()])
    own = formulas.optimal_k(depth_acceptance(trace)[0], widest, trace.K)
    print(
        f"{name}: the gap is widest at c = {widest:.2f}, {gap.max():.0%}, where formula 1 has the "
        f"best K at {own}"
    )
axes[0].set(xlabel="c", ylabel="speedup", title="best fixed K, and the oracle (dotted)")
axes[1].set(xlabel="c", ylabel="oracle over best fixed K, %", title="the gap")
axes[1].legend(fontsize=8)

# %% [markdown]
# ## The claims, as verdicts
#
# `simspec.papers` holds one file a paper: its claims are functions that return an effect with its
# interval on each recording. A verdict is of one pair of target and text at one price: measured on
# a CPU with the recording, an H200's, and flat ones. Where it is undecided, the number in brackets
# says how many prompts would decide it. Here are EAGLE's and GLIDE's.
#
# **Look for:** claims that hold at flat prices and not at measured ones, and the two readings of
# claim 15: as printed, and over all rows.

# %%
found = summary([*CLAIMS["eagle"], *CLAIMS["glide"]], Recordings())
for row in found.itertuples(index=False):
    claim, sentence, before, verdict, *pairs, _ = row
    if claim:
        print(f"{claim}: {sentence} Before: {before}.")
    for price, names in zip(found.columns[4:], pairs):
        if names is not None:
            print(f"    {verdict}, {price}: {names}")
