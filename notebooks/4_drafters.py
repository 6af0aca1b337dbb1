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
# # 4. Drafters
#
# Which drafter should propose the tokens? Its choice changes speed and never the output. So
# recordings of several drafters of one target hold the same rows, and can be compared row by row.
#
# The target here is SmolLM2-135M-Instruct, a real chat model of 30 layers. Six drafters are
# recorded under three verification rules: `greedy`, `coupled` (sampled, with noise that target and
# drafter share) and `rejection` (speculative sampling). All times are of a CPU; no figure is of a
# GPU.

# %%
import os
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np

import simspec
from simspec.numerics import stats
from simspec.policies import fixed
from simspec.replay.evaluation import evaluate
from simspec.trace.acceptance import by_depth, expected_accepted_length
from simspec.trace.recordings import CHECKOUT, costs_of

FAST = os.environ.get("SIMSPEC_FAST") == "1"  # fewer draws; the suite runs it so
plt.rcParams |= {
    "figure.dpi": 80,
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
RULES = ("greedy", "coupled", "rejection")

paths = {
    (rule, path.stem): path
    for rule in RULES
    for path in sorted((CHECKOUT / "smollm2" / rule).glob("*.parquet"))
}
traces = {key: simspec.load_trace(path) for key, path in paths.items()}
costs = costs_of(paths)
drafters = sorted({drafter for _, drafter in paths})
COLOURS = dict(zip(drafters, plt.get_cmap("tab10").colors))
for rule in RULES:
    first = traces[rule, drafters[0]]
    print(
        f"{rule}, temperature {first.meta.temperature:g}: {first.sequences} sequences, "
        f"{first.rows} rows; accepted of 4 drafted tokens, mean of all rows:"
    )
    means = {d: expected_accepted_length(traces[rule, d], 4).mean() for d in drafters}
    print("   ", ", ".join(f"{drafter} {mean:.2f}" for drafter, mean in means.items()))

# %% [markdown]
# ## One output
#
# Under one rule all six files hold the same tokens, whoever drafted. We check it, because all that
# follows depends on it.

# %%
for rule in RULES:
    tokens = [traces[rule, drafter].token for drafter in drafters]
    assert all(np.array_equal(tokens[0], other) for other in tokens[1:])
    print(f"{rule}: {len(tokens)} recordings, one output of {len(tokens[0])} tokens")

# %% [markdown]
# ## Acceptance by depth
#
# The probability that a drafted token is accepted, given that all before it were, over all rows
# (depths with fewer than 40 tries are left out).
#
# **Look for:** lines that rise. A drafter that was right once is in an easy passage, where it is
# right again. A formula with one alpha draws a horizontal line. See also how the lines move from
# `greedy` to the sampled rules, and that their order may change.

# %%
figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True)
for axis, rule in zip(axes, RULES):
    for drafter in drafters:
        accepted, tried = (counts.sum(axis=0)[:8] for counts in by_depth(traces[rule, drafter]))
        alphas = (accepted / np.maximum(tried, 1))[tried >= 40]
        axis.plot(
            range(1, len(alphas) + 1), alphas, "o-", ms=3, color=COLOURS[drafter], label=drafter
        )
        shown = " ".join(f"{alpha:.2f}" for alpha in alphas[:4])
        print(f"{rule:>9}, {drafter:>13}: {shown}")
    axis.set(xlabel="depth", title=rule, ylim=(0, 1))
axes[0].set_ylabel("accepted, given those before")
axes[0].legend(fontsize=7, loc="lower right")

# %% [markdown]
# ## What they cost
#
# Left: seconds to draft K tokens, in plain steps of the target. Right: seconds of the target's pass
# over K drafted tokens.
#
# **Look for:** drafters that cost per draft and not per token (flat lines), and one that costs next
# to nothing. On the right, lines should lie on each other: verification is the target's own work,
# whoever drafted. Only `early_exit` shares layers with the target, and so part of its passes.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
for drafter in drafters:
    cost = costs["greedy", drafter]
    lengths = np.arange(min(cost.K, 8) + 1)
    axes[0].plot(lengths, cost.draft[lengths] / cost.baseline, "o-", ms=3, color=COLOURS[drafter])
    axes[1].plot(
        lengths,
        cost.verify[lengths] / cost.baseline,
        "o-",
        ms=3,
        color=COLOURS[drafter],
        label=drafter,
    )
    print(
        f"{drafter:>13}: first token {cost.draft[1] / cost.baseline:.3f} plain steps, 4 tokens "
        f"{cost.draft[4] / cost.baseline:.3f}; verifying 4 {cost.verify[4] / cost.baseline:.2f}"
    )
axes[0].set(xlabel="drafted tokens", ylabel="plain steps", title="drafting")
axes[1].set(xlabel="drafted tokens", title="verifying", ylim=(0, None))
axes[1].legend(fontsize=8)

# %% [markdown]
# ## Speedup by draft length
#
# Every fixed K, replayed and priced. A recording of `rejection` holds probabilities, so its replays
# draw what is accepted; curves are means over draws.
#
# **Look for:** the top of each curve (the dot), and curves that never rise above 1: such a drafter
# is best left alone. The best K is short where a further verified row is dear, whoever drafts.

# %%
draws = 2 if FAST else 8
seconds, tokens = {}, {}
for key, trace in traces.items():
    lengths = [fixed(k) for k in range(min(trace.K, 8) + 1)]
    found = evaluate(trace, lengths, costs[key], 1 if trace.ratio is None else draws)
    tokens[key] = found.tokens
    seconds[key] = np.array([found.times[policy.name] for policy in lengths])
best_k = {key: int(times.sum(axis=1).argmin()) for key, times in seconds.items()}
speedup = {
    key: tokens[key].sum() * costs[key].baseline / times.sum(axis=1)
    for key, times in seconds.items()
}

figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), sharey=True)
for axis, rule in zip(axes, RULES):
    for drafter in drafters:
        curve, best = speedup[rule, drafter], best_k[rule, drafter]
        axis.plot(curve, color=COLOURS[drafter], label=drafter)
        axis.plot(best, curve[best], "o", color=COLOURS[drafter])
    ranked = sorted(drafters, key=lambda d: -speedup[rule, d].max())
    named = (f"{d} {speedup[rule, d].max():.2f} at K = {best_k[rule, d]}" for d in ranked)
    print(f"{rule}:", ", ".join(named))
    axis.axhline(1, color="grey", lw=0.8)
    axis.set(xlabel="K", title=rule)
axes[0].set_ylabel("modeled speedup")
axes[-1].legend(fontsize=7)

# %% [markdown]
# ## A longer accepted length is not faster
#
# Each point is a drafter at a fixed K from 1 on: tokens a round against speedup. Were a round as
# cheap as a plain step, speedup would be the tokens a round (the dashed line). The distance below
# it is the price of the round.
#
# **Look for:** lines that go on to the right, with K, and turn down. And points that lie higher
# than another drafter's further right.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
for axis, rule in zip(axes, ("greedy", "coupled")):
    for drafter in drafters:
        trace = traces[rule, drafter]
        lengths = range(1, len(speedup[rule, drafter]))
        per_round = [trace.rows / len(simspec.replay(trace, fixed(k))) for k in lengths]
        axis.plot(
            per_round, speedup[rule, drafter][1:], "o-", ms=3, color=COLOURS[drafter], label=drafter
        )
        print(
            f"{rule:>7}, {drafter:>13}: {per_round[0]:.2f} tokens a round at K = 1, "
            f"{per_round[-1]:.2f} at K = {lengths[-1]}; speedup {speedup[rule, drafter][1]:.2f} "
            f"and {speedup[rule, drafter][-1]:.2f}"
        )
    low, high = axis.get_xlim()
    axis.plot([1, high], [1, high], "--", color="black", lw=0.8)
    for price in (1.5, 2.0):
        axis.plot([1, high], [1 / price, high / price], ":", color="grey", lw=0.8)
        axis.annotate(f"a round costs {price:g}", (1, 1.04 / price), fontsize=7)
    axis.axhline(1, color="grey", lw=0.8)
    axis.set(xlabel="tokens a round", title=rule, ylim=(0.4, 1.7))
axes[0].set_ylabel("modeled speedup")
axes[1].legend(fontsize=7)

# %% [markdown]
# ## By task
#
# Each drafter at its best K for all prompts, counted on each task's prompts.
#
# **Look for:** columns whose fastest drafter (framed) is another one than in the next column. See
# also the row of prompt lookup: it can only copy from the context, which some tasks invite.

# %%
tasks = list(dict.fromkeys(traces["greedy", drafters[0]].task))
figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), sharey=True)
for axis, rule in zip(axes, ("greedy", "coupled")):
    grid = np.empty((len(drafters), len(tasks)))
    for i, drafter in enumerate(drafters):
        key = rule, drafter
        of_task = np.array(traces[key].task)
        times = seconds[key][max(best_k[key], 1)]
        for j, task in enumerate(tasks):
            chosen = of_task == task
            grid[i, j] = tokens[key][chosen].sum() * costs[key].baseline / times[chosen].sum()
    axis.imshow(grid, cmap="PiYG", vmin=0.4, vmax=1.6, aspect="auto")
    for (i, j), value in np.ndenumerate(grid):
        axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8)
    for j, i in enumerate(grid.argmax(axis=0)):
        axis.add_patch(plt.Rectangle((j - 0.48, i - 0.48), 0.96, 0.96, fill=False, lw=1.5))
    axis.set_xticks(range(len(tasks)), tasks, fontsize=8)
    axis.set_yticks(range(len(drafters)), drafters, fontsize=8)
    axis.set_title(f"{rule}: modeled speedup", fontsize=10)
    fastest = (f"{task} {drafters[i]}" for task, i in zip(tasks, grid.argmax(axis=0)))
    print(f"{rule}, the fastest that drafts:", ", ".join(fastest))

# %% [markdown]
# ## Do they miss at the same places?
#
# Rows are the same, so we can ask row by row: where one drafter's first token is rejected, or it
# has nothing to offer, how often is another one's accepted?
#
# **Look for:** rows of the picture that stay dark: where that drafter misses, all others miss too.
# Bright cells are pairs of which two know more than one.

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), sharey=True)
for axis, rule in zip(axes, ("greedy", "coupled")):
    right = np.array([traces[rule, drafter].run > 0 for drafter in drafters])
    rescued = np.array([[other[~own].mean() for other in right] for own in right])
    axis.imshow(rescued, cmap="viridis", vmin=0, vmax=0.6, aspect="auto")
    for (i, j), value in np.ndenumerate(rescued):
        if i != j:
            axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color="white")
    axis.set_xticks(range(len(drafters)), drafters, fontsize=7, rotation=30)
    axis.set_yticks(range(len(drafters)), drafters, fontsize=8)
    axis.set(xlabel="accepted of this one", title=f"{rule}: where the row's drafter misses")
    print(
        f"{rule}: first token of the best drafter accepted on {right.mean(axis=1).max():.2f} of "
        f"all rows, of at least one of them on {right.any(axis=0).mean():.2f}"
    )

# %% [markdown]
# ## Two drafters as one
#
# A hybrid takes the tokens of prompt lookup where it has any, else those of EAGLE. Both drafters
# depend on the text alone and not on earlier rounds, so the hybrid's recording is made of the rows
# of the two: nothing has to be run. It is priced twice: as if EAGLE had drafted every token, and as
# if all drafts were free, which is the most that these rows can give.
#
# **Look for:** where the hybrid's lines lie beside those of its two parts.


# %%
def hybrid(first, second):
    """The first drafter's rows where it offers a token, else the second's; no signals."""
    offers = first.depth > 0
    meta = replace(second.meta, drafter="hybrid", features=(), predictors={}, tree=())
    empty = dict.fromkeys(("rank", "draft_margin", "feature_margin", "order", "beam"))
    return replace(
        second,
        depth=np.where(offers, first.depth, second.depth),
        run=np.where(offers, first.run, second.run),
        feature=np.zeros((second.rows, second.K, 0), np.uint8),
        meta=meta,
        **empty,
    )


figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
for axis, rule in zip(axes, ("greedy", "coupled")):
    lookup, eagle = (traces[rule, drafter] for drafter in ("prompt_lookup", "eagle"))
    both, price = hybrid(lookup, eagle), costs[rule, "eagle"]
    free = replace(price, draft=0 * price.draft, catch_up=np.zeros(1), precision=None)
    lanes = {"hybrid, EAGLE's price": (both, price), "hybrid, free drafts": (both, free)}
    for drafter in ("prompt_lookup", "eagle"):
        axis.plot(speedup[rule, drafter], color=COLOURS[drafter], label=drafter)
    for style, (label, (trace, cost)) in zip(("-", ":"), lanes.items()):
        spent = [cost.seconds(simspec.replay(trace, fixed(k))).sum() for k in range(9)]
        curve = trace.rows * cost.baseline / np.array(spent)
        axis.plot(curve, style, color="black", label=label)
        print(f"{rule}, {label}: best K {curve.argmax()}, speedup {curve.max():.3f}")
    print(f"{rule}: lookup offers a draft on {(lookup.depth > 0).mean():.2f} of all rows")
    axis.axhline(1, color="grey", lw=0.8)
    axis.set(xlabel="K", title=rule)
axes[0].set_ylabel("modeled speedup")
axes[0].legend(fontsize=7)

# %% [markdown]
# ## Is the fastest really faster?
#
# The time of each drafter over that of the fastest, each at its best K, paired by prompt, with 95%
# intervals over prompts.
#
# **Look for:** intervals that contain 1: these prompts do not tell the two apart. The fastest, and
# each K, were chosen on the same prompts, so a narrow lead is narrower than it looks.

# %%
figure, axes = plt.subplots(1, 3, figsize=(10, 2.8), sharey=True)
for axis, rule in zip(axes, RULES):
    at_best = {d: seconds[rule, d][best_k[rule, d]] / costs[rule, d].baseline for d in drafters}
    fastest = min(drafters, key=lambda d: at_best[d].sum())
    for lane, drafter in enumerate(drafters):
        if drafter == fastest:
            axis.plot(1, lane, "D", color=COLOURS[drafter])
            continue
        over = stats.ratio(at_best[drafter], at_best[fastest], resamples=500 if FAST else 4000)
        error = [[over.value - over.low], [over.high - over.value]]
        axis.errorbar(over.value, lane, xerr=error, fmt="o", color=COLOURS[drafter], capsize=3)
        print(
            f"{rule}: {drafter} takes {over.value:.3f} [{over.low:.3f}, {over.high:.3f}] of the "
            f"time of {fastest}"
        )
    axis.axvline(1, color="grey", lw=0.8)
    axis.set(xlabel=f"time / time of {fastest}", title=rule)
    axis.set_yticks(range(len(drafters)), drafters)
axes[0].invert_yaxis()
