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
# # 5. Trees and CAPE
#
# A chain bets on one continuation. A draft tree also submits the drafter's further choices, and one
# target pass verifies all of its nodes. A recording holds, in `rank`, where the target's token
# stands on the drafter's list at each depth. That is enough to replay any tree of a fixed shape,
# node by node. Trees that grow with the drafter's scores need more, and some recordings hold that
# too.
#
# A node is a submitted token. A round commits the nodes on the accepted path and one token of the
# target's own.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np

import simspec
from simspec import CostModel, replay
from simspec.policies import cape, dynamic_tree, fixed, optimal_tree
from simspec.policies.trees import static
from simspec.policy.predictor import split_by_task
from simspec.reports.trees import compare_trees
from simspec.trace.recordings import costs_of, recordings
from simspec.tree.replay import replay_tree, tree_rounds
from simspec.tree.search import rank_acceptance
from simspec.tree.tree import MAX_NODES

FAST = os.environ.get("SIMSPEC_FAST") == "1"  # fewer policies; the suite runs it so
plt.rcParams |= {
    "figure.dpi": 80,
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
COLOURS = plt.get_cmap("tab10").colors

bundled = recordings()
names = [name for name in ("tiny-eagle-coupled", "tiny-eagle-greedy") if name in bundled]
names += [name for name in ("tiny-medusa-coupled",) if name in bundled]
paths = {name: bundled[name] for name in names or list(bundled)[:1]}
traces = {name: simspec.load_trace(path) for name, path in paths.items()}
costs = {name: cost.widen(MAX_NODES) for name, cost in costs_of(paths).items()}
name = next(iter(traces))
trace, cost = traces[name], costs[name]
first, second = split_by_task(trace)
for each, one in traces.items():
    print(
        f"{each}: {one.sequences} sequences, {one.rows} rows, K = {one.K}; dynamic trees of width "
        f"and levels {one.meta.tree}"
    )

# %% [markdown]
# ## Where the target's token was
#
# A chain's round ends at its first miss. The bars show which of the drafter's further choices would
# have been right there.
#
# **Look for:** how much the second choice (rank 1) alone would save, and how slowly the rest adds
# up. A tree buys these bars, at the price of more nodes.


# %%
def first_misses(trace):
    """The rank of the target's token at the first miss, of the rows whose draft misses."""
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    missed = trace.run < np.minimum(trace.depth, left)
    return trace.rank[missed, trace.run[missed]]


figure, axis = plt.subplots(figsize=(7, 3.2))
ranks = np.arange(1, 16)
for shift, (each, one) in zip(np.linspace(-0.27, 0.27, len(traces)), traces.items()):
    missed = first_misses(one)
    shares = np.array([(missed == rank).mean() for rank in ranks])
    axis.bar(ranks + shift, shares, 0.27, label=each)
    print(
        f"{each}: at a miss rank 1 is right on {shares[0]:.2f}, ranks 1 to 3 on "
        f"{shares[:3].sum():.2f}, 1 to 15 on {shares.sum():.2f}"
    )
axis.set(xlabel="rank of the target's token at the first miss", ylabel="share of misses")
axis.legend(fontsize=8)

# %% [markdown]
# ## A tree's rounds by hand
#
# The tree 4x2x1 has four nodes on its first level, two below each of them, and one below each of
# those. The ranks of a row spell the target's path. As far as that path is in the tree, it is
# accepted.

# %%
policy = static("4x2x1")
tree, own = policy.tree, trace.select([int(second[0])])
t, steps = 0, []
while t < own.rows:
    cap = min(own.K, own.budget[0] - t - 1) if own.depth[t] else 0
    longest = min(cap, own.rows - t)
    target_path = tuple(map(int, own.rank[t, :longest]))
    accepted = max(d for d in range(longest + 1) if not d or target_path[:d] in tree.paths)
    steps.append((t, accepted))
    t += accepted + 1

chain = replay(own, fixed(tree.levels))
for row, accepted in steps[:6]:
    run = min(int(own.run[row]), tree.levels)
    ranks = " ".join(f"{rank:>3}" for rank in own.rank[row, : tree.levels])
    print(
        f"row {row:>2}: ranks {ranks}: the tree commits {accepted + 1}, a chain as deep {run + 1}"
    )
rounds = replay_tree(own, policy)
assert [(int(row), int(a)) for row, a in zip(rounds.row, rounds.accepted)] == steps
print(
    f"... {len(steps)} rounds of {len(tree)} nodes, the same as replay_tree; a chain of "
    f"{tree.levels} needs {len(chain)}"
)

# %% [markdown]
# ## Shapes
#
# Three ways to spend 16 nodes, each fitted to the first half of the prompts: the best full tree
# (every node of a level has as many children), Medusa's (the likeliest paths, were ranks
# independent) and Sequoia's optimum by dynamic programming. A node's colour is the probability that
# it is accepted; to the left is rank 0.
#
# **Look for:** how narrow the fitted trees get below the first level, and how deep they go along
# the drafter's first choices.


# %%
def draw(axis, tree, reached):
    """The tree from its root down, coloured by log10 of the probability of each node."""
    children = {}
    for row, parent in enumerate(tree.parent, 1):
        children.setdefault(parent, []).append(row)
    x, leaves = {}, iter(range(MAX_NODES))

    def place(row):
        for child in children.get(row, ()):
            place(child)
        below = [x[child] for child in children.get(row, ())]
        x[row] = below[0] if below else next(leaves)

    place(0)
    depth = (0, *tree.depth)
    for row, parent in enumerate(tree.parent, 1):
        axis.plot([x[parent], x[row]], [-depth[parent], -depth[row]], color="grey", lw=0.7)
    xs, ys = [x[row] for row in range(len(tree) + 1)], [-d for d in depth]
    axis.scatter(xs, ys, c=np.log10(reached), cmap="viridis", vmin=-2.5, vmax=0, s=34, zorder=2)
    axis.axis("off")


acceptance = rank_acceptance(trace, indices=first)
figure, axes = plt.subplots(1, 3, figsize=(10, 3))
for axis, rule in zip(axes, ("full", "medusa", "sequoia")):
    tree = optimal_tree(16, rule, first).resolve(trace, cost).tree
    reached = [1.0]
    for parent, rank, depth in zip(tree.parent, tree.rank, tree.depth):
        reached.append(max(reached[parent] * acceptance[depth - 1, rank], 1e-4))
    draw(axis, tree, reached)
    axis.set_title(f"{rule}: {tree.levels} levels, expected {sum(reached):.2f}")
    print(
        f"{rule}: {len(tree)} nodes, {tree.levels} levels, expected tokens a round "
        f"{sum(reached):.3f}"
    )

# %% [markdown]
# ## Tokens a round, by nodes
#
# At equal numbers of submitted nodes, counted on the other half of the prompts. The dynamic tree
# (EAGLE-2) chooses its nodes anew in each round, by the drafter's own scores; it is replayed where
# it was recorded.
#
# **Look for:** where the chain bends. Its later nodes are seldom reached, and a tree spends them on
# second choices instead. See also on which side of the fixed shapes the dynamic tree lies. Under
# `coupled` it orders nodes by the drafter's probabilities, without the noise that decides which
# token comes, and so may start below a chain.

# %%
budgets = (1, 2, 4, 8, 16, 32) if FAST else (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
rules = {"full": "full", "Medusa's": "medusa", "optimal": "sequoia"}
flat = {each: CostModel.from_ratio(0.0, one.K, MAX_NODES) for each, one in traces.items()}
figure, axes = plt.subplots(1, len(traces), figsize=(3.6 * len(traces), 3.4), squeeze=False)
for axis, (each, one) in zip(axes[0], traces.items()):
    fit, rest = split_by_task(one)
    held = one.select(rest)
    chains = [held.rows / len(replay(held, fixed(k))) for k in range(1, one.K + 1)]
    axis.plot(range(1, one.K + 1), chains, "o-", ms=3, color="black", label="chain")
    lines = {"chain": dict(zip(range(1, one.K + 1), chains))}
    for colour, (label, rule) in zip(COLOURS, rules.items()):
        policies = {n: optimal_tree(n, rule, fit).resolve(one, flat[each]) for n in budgets}
        lines[label] = {n: held.rows / len(replay_tree(held, p)) for n, p in policies.items()}
        axis.plot(*zip(*lines[label].items()), "o-", ms=3, color=colour, label=label)
    if one.order is not None:
        grown = {n: held.rows / len(replay_tree(held, dynamic_tree(n))) for n in budgets}
        lines["dynamic"] = grown
        axis.plot(*zip(*grown.items()), "o:", ms=3, color=COLOURS[4], label="dynamic")
    for n in (4, 8, 32):
        shown = (f"{label} {line[n]:.2f}" for label, line in lines.items() if n in line)
        print(f"{each}, {n} nodes:", ", ".join(shown))
    axis.set_xscale("log", base=2)
    axis.set_xticks([1, 2, 4, 8, 16, 32], [1, 2, 4, 8, 16, 32])
    axis.set(xlabel="submitted nodes", title=each)
axes[0, 0].set_ylabel("tokens a round")
axes[0, 0].legend(fontsize=7)

# %% [markdown]
# ## What nodes cost
#
# A tree asks the target to verify more rows, and the drafter to read several nodes in each pass.
# Left: the target's pass over n nodes, in plain steps. Right: the speedup of the best chain
# (dashed) and of the optimal tree of n nodes, at two prices: measured on this machine, and every
# pass at the price of a plain step.
#
# **Look for:** whether a tree ever rises above the dashed line of its own colour. Where rows are
# dear, it loses; where a pass costs the same for one row and for forty, nodes are free.

# %%
prices = {"measured": cost, "c = 0.05, flat": CostModel.from_ratio(0.05, trace.K, MAX_NODES)}
held = trace.select(second)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
for colour, (label, price) in zip(COLOURS, prices.items()):
    axes[0].plot(price.verify[:49] / price.baseline, color=colour, label=label)
    plain = held.rows * price.baseline
    chains = [plain / price.seconds(replay(held, fixed(k))).sum() for k in range(trace.K + 1)]
    curve = []
    for n in budgets:
        policy = optimal_tree(n, fit=first).resolve(trace, price)
        rounds = replay_tree(held, policy, price)
        curve.append(plain / price.seconds_tree(*tree_rounds(held, policy)).sum())
    axes[1].plot(budgets, curve, "o-", ms=3, color=colour, label=label)
    axes[1].axhline(max(chains), color=colour, ls="--", lw=0.9)
    best = int(np.argmax(curve))
    print(
        f"{label}: best chain K = {np.argmax(chains)} at {max(chains):.3f}, best tree of these "
        f"{budgets[best]} nodes at {curve[best]:.3f}"
    )
axes[0].set(xlabel="submitted nodes", ylabel="plain steps", title="verifying", ylim=(0, None))
axes[0].legend(fontsize=7)
axes[1].set_xscale("log", base=2)
axes[1].set_xticks([1, 2, 4, 8, 16, 32], [1, 2, 4, 8, 16, 32])
axes[1].axhline(1, color="grey", lw=0.8)
axes[1].set(xlabel="submitted nodes", ylabel="modeled speedup", title=name)

# %% [markdown]
# ## CAPE
#
# CAPE keeps the chain and gives each of its tokens siblings, more where the drafter is less
# confident: 7, 5, 3 or 1. The control gives every token equally many. Both have the same chain, so
# nodes and tokens a round can be compared.
#
# **Look for:** CAPE's point above the line of equal widths. That height is what confidence adds;
# on the line it adds nothing.


# %%
def nodes_and_tokens(trace, policy):
    """(submitted nodes, committed tokens) a round."""
    rounds = replay_tree(trace, policy)
    return rounds.drafted.mean(), trace.rows / len(rounds)


figure, axes = plt.subplots(1, len(traces), figsize=(3.6 * len(traces), 3.2), squeeze=False)
for axis, (each, one) in zip(axes[0], traces.items()):
    k = min(4, one.K)
    line = np.array([nodes_and_tokens(one, cape(width, k)) for width in (0, 1, 2, 3, 5, 7)])
    axis.plot(*line.T, "o-", ms=4, color="black", label="equal widths")
    x, y = nodes_and_tokens(one, cape(k=k))
    axis.plot(x, y, "D", color=COLOURS[3], label="CAPE")
    print(
        f"{each}, chain of {k}, CAPE: {x:.1f} nodes, {y:.3f} tokens a round; equal widths of as "
        f"many nodes {np.interp(x, *line.T):.3f}"
    )
    axis.set(xlabel="submitted nodes", title=each)
axes[0, 0].set_ylabel("tokens a round")
axes[0, 0].legend(fontsize=7)

# %% [markdown]
# ## Is any of it faster than the best chain?
#
# The speedup of each policy less that of the best chain in hindsight, at measured costs, paired by
# prompt. Shapes and chain lengths are chosen on one half of the prompts and counted on the other.
# The oracles know the text: one draws up the best schedule of chains, the other may take trees too.
#
# **Look for:** intervals right of 0, and how far the two oracles are from each other: that is all
# that trees could add here.

# %%
chosen = {each: traces[each] for each in list(traces)[: 1 if FAST else None]}
budget = 16
rows, notes = compare_trees(
    chosen, {each: costs[each] for each in chosen}, (budget,), resamples=500 if FAST else 2000
)
labels = ["cape:1", "cape:section", f"optimal_tree:{budget},full", f"optimal_tree:{budget},medusa"]
labels += [f"optimal_tree:{budget}", f"dynamic_tree:{budget}", "optimal_tree"]
labels += ["oracle", "tree_oracle"]
found = {(row.recording, row.policy): row for row in rows}
figure, axes = plt.subplots(
    1, len(chosen), figsize=(3.6 * len(chosen) + 1, 3.4), sharey=True, squeeze=False
)
for axis, each in zip(axes[0], chosen):
    print(f"{each}: best chain {found[each, 'best chain'].speedup.value:.3f}")
    for lane, label in enumerate(labels):
        row = found.get((each, label))
        if row is None:
            continue
        gain = row.gain
        error = [[gain.value - gain.low], [gain.high - gain.value]]
        colour = COLOURS[1] if row.clairvoyant else COLOURS[0]
        axis.errorbar(gain.value, lane, xerr=error, fmt="o", ms=4, color=colour, capsize=2)
        print(
            f"  {label:>15}: speedup {row.speedup.value:.3f}, over the best chain "
            f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
        )
    axis.axvline(0, color="grey", lw=0.8)
    axis.set(xlabel="speedup over the best chain", title=each)
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
axes[0, 0].invert_yaxis()
for note in notes:
    print(note)
