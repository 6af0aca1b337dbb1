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
# # How many tokens to draft?
#
# A recording holds what the drafter proposes from every position of the target's own text. So any rule for when to
# stop drafting can be replayed on it exactly, and priced with the latencies of any machine.

# %%
from pathlib import Path

import simspec

here = Path.cwd()
traces = next(p / "traces" for p in (here, *here.parents) if (p / "traces").is_dir())
trace = simspec.load_trace(traces / "tiny-early_exit-greedy.parquet")
cost = simspec.CostModel.from_json(traces / "tiny-early_exit-greedy.cost.json")
print(f"{trace.sequences} texts, {trace.rows} rows, drafts to depth {trace.K}, costs from {cost.device}")

# %% [markdown]
# ## Fixed draft lengths, and what a clairvoyant would gain
#
# The oracle knows every acceptance beforehand and minimises the total time: nothing can be faster on this text.

# %%
lengths = [f"fixed:{k}" for k in range(9)]
table = simspec.sweep(trace, [*lengths, "beta_ts", "confidence:0.5", "oracle"], cost, replicates=2, progress=False)
print(table.groupby("policy", sort=False)[["committed_per_round", "v_d", "r_d", "speedup"]].mean().round(3))

# %% [markdown]
# ## The best length differs between tasks

# %%
by_task = simspec.sweep(trace, lengths, cost, by="task", progress=False)
best = by_task.loc[by_task.groupby("group").speedup.idxmax(), ["group", "policy", "speedup"]]
print(best.to_string(index=False))


# %% [markdown]
# ## A policy of one's own
#
# Two plain functions that numba can compile. This one drafts as many tokens as the last round accepted, and one more.


# %%
def draft_more(params, state, slot, features, u):
    return slot < state[0], True


def observe(params, state, computed, drafted, accepted, features, cost):
    state[0] = accepted + params[0]


echo = simspec.Policy("echo", draft_more, observe, params=(1.0,), state0=(2.0,))
mine = simspec.sweep(trace, [echo, "beta_ts"], cost, replicates=2, progress=False)
print(mine.groupby("policy").speedup.mean().round(3))

# %% [markdown]
# ## A picture

# %%
from matplotlib.figure import Figure

figure = Figure(figsize=(6, 3.5), layout="constrained")
axes = figure.add_subplot()
mean = table.groupby("policy", sort=False).speedup.mean()
axes.plot(range(9), mean[lengths], "o-", label="fixed K")
for name, style in (("beta_ts:acceptance", "--"), ("oracle", ":")):
    axes.axhline(mean[name], ls=style, color="grey", label=name)
axes.set(xlabel="draft length K", ylabel="modelled speedup")
axes.legend()
figure
