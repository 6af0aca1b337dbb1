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
# # 8. The simulator against hardware
#
# A replay makes the rounds of a real run, one by one. Its seconds are a model: measured parts of a
# round, added up. How far is their sum from the clock? Three tests, from near to far: a race on the
# machine whose costs were measured; the intervals of these costs; and engines that people run.
#
# The race is of SmolLM2-135M-Instruct on a CPU. It ran apart from the measurement of costs, at
# another hour: what a machine does in between is part of the error.

# %%
import json

import matplotlib.pyplot as plt
import numpy as np

import simspec
from real.engines.summary import advised, run_summary
from simspec.numerics.stats import ratio
from simspec.policies import fixed, make
from simspec.replay.evaluation import evaluate
from simspec.trace.recordings import CHECKOUT, costs_of

plt.rcParams |= {
    "figure.dpi": 80,
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
COLOURS = plt.get_cmap("tab10").colors

smollm2 = CHECKOUT / "smollm2"
race = json.loads((smollm2 / "measured" / "race.json").read_text(encoding="utf-8"))
print(f"{race['prompts']} prompts, {race['repeats']} repeats in shuffled order on {race['device']}")
for row in race["rows"]:
    if row["group"] == "all":
        print(
            f"{row['contestant']:>22}: {row['rate']:.1f} tokens/s, {row['per_pass']:.3f} tokens a "
            f"pass, {row['speedup']:.2f} [{row['low']:.2f}, {row['high']:.2f}] times plain"
        )

# %% [markdown]
# ## The rounds
#
# The contestants that run by a policy of ours have a recording and costs. So we replay the raced
# prompts and count the target's passes. The replay of a fixed K must give the passes of the race.
# `cost_ts` plans with costs, so its passes are equal only as long as the costs beside the recording
# are those that it raced with.

# %%
replayed = {}
for contestant in race["raw"]:
    drafter, _, policy = contestant.partition("=")
    if contestant == "plain":
        drafter, policy = "eagle", "fixed:0"
    if not policy:
        continue  # a contestant of another library
    path = smollm2 / "greedy" / f"{drafter}.parquet"
    trace = simspec.load_trace(path)
    place = {prompt: s for s, prompt in enumerate(trace.meta.ids)}
    trace = trace.select([place[prompt] for prompt in race["ids"]])
    trace = trace.shorten(race["budget"] or int(trace.budget.max()))
    cost = costs_of({contestant: path})[contestant]
    rounds = simspec.replay(trace, make(policy, trace, cost), race["seed"], cost)
    replayed[contestant] = trace, cost, policy, rounds
    raced = next(row for row in race["rows"] if row["contestant"] == contestant)
    passes = raced["tokens"] / raced["per_pass"]
    assert raced["tokens"] == trace.rows
    assert not policy.startswith("fixed") or len(rounds) == round(passes)
    print(f"{contestant:>22}: {len(rounds)} passes replayed, {passes:.0f} in the race")

# %% [markdown]
# ## The seconds, prompt by prompt
#
# Predicted: the measured time to the first token, and the modeled seconds of all further rounds.
# Each prompt ran in every repeat; its dots tell how well the machine repeats itself.
#
# **Look for:** the distance of a dot from the diagonal beside the distance between the dots of a
# prompt. A prediction cannot be nearer than the machine is to itself.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.8))
errors, repeats = {}, {}
for colour, (contestant, (trace, cost, policy, rounds)) in zip(COLOURS, replayed.items()):
    raw = race["raw"][contestant]
    measured = np.array(raw["seconds"])
    spent = np.add.reduceat(
        cost.reading(make(policy, trace, cost).reads).seconds(rounds), rounds.offset[:-1]
    )
    predicted = np.array(raw["first"]) + spent - cost.baseline
    errors[contestant] = predicted / measured - 1
    repeats[contestant] = measured.max(axis=0) / measured.min(axis=0) - 1
    for run in measured:
        axes[0].plot(run, predicted, "o", ms=4, color=colour)
    axes[0].plot([], [], "o", color=colour, label=contestant)
    total = predicted.sum() / measured.sum(axis=1) - 1
    print(
        f"{contestant:>22}: predicted seconds off by {np.median(abs(errors[contestant])):.1%} in "
        f"the median, all prompts together by {total[0]:+.1%} and {total[-1]:+.1%}; the repeats "
        f"differ by {np.median(repeats[contestant]):.1%} in the median"
    )
most = axes[0].get_xlim()[1]
axes[0].plot([0, most], [0, most], ":", color="black")
axes[0].set(xlabel="measured seconds of a prompt", ylabel="predicted")
axes[0].legend(fontsize=7)
names = list(errors)
axes[1].boxplot(
    [100 * abs(errors[each]).ravel() for each in names] + [100 * repeats[each] for each in names],
    tick_labels=[f"{each}\nprediction" for each in names] + [f"{each}\nrepeat" for each in names],
)
axes[1].tick_params(axis="x", labelsize=6, rotation=45)
axes[1].set_ylabel("error, and difference of repeats, %")

# %% [markdown]
# ## The speedup
#
# A machine that is slower on one day is slower for all contestants, so a ratio is predicted better
# than seconds. Measured speedups have 95% intervals over prompts; predicted ones are squares.
#
# **Look for:** squares inside their interval, and the order of contestants, which is what a
# recommendation needs.

# %%
figure, axis = plt.subplots(figsize=(6.4, 2.6))
plain = np.array(race["raw"]["plain"]["seconds"]).mean(axis=0)
base = sum(np.array(race["raw"]["plain"]["first"]))
trace, cost, *_ = replayed["plain"]
base += (trace.rows - trace.sequences) * cost.baseline
for lane, (contestant, (trace, cost, policy, rounds)) in enumerate(replayed.items()):
    measured = np.array(race["raw"][contestant]["seconds"]).mean(axis=0)
    found = ratio(plain, measured)
    charged = cost.reading(make(policy, trace, cost).reads)
    spent = sum(race["raw"][contestant]["first"]) + charged.seconds(rounds).sum()
    predicted = base / (spent - trace.sequences * cost.baseline)
    error = [[found.value - found.low], [found.high - found.value]]
    axis.errorbar(found.value, lane, xerr=error, fmt="o", ms=4, color=COLOURS[0], capsize=3)
    axis.plot(predicted, lane, "s", ms=6, color=COLOURS[1], mfc="none")
    print(
        f"{contestant:>22}: measured {found.value:.3f} [{found.low:.3f}, {found.high:.3f}], "
        f"predicted {predicted:.3f}, {predicted / found.value - 1:+.1%}"
    )
axis.axvline(1, color="grey", lw=0.8)
axis.set_yticks(range(len(replayed)), replayed)
axis.set(xlabel="times plain decoding: measured, and predicted (squares)")
axis.invert_yaxis()

# %% [markdown]
# ## How well the parts are known
#
# A cost file holds an interval for each median that was measured. Left: verification by drafted
# tokens, with these intervals. Right: what they mean for a decision. The bands are the speedup of
# every fixed K when all parts are drawn from their intervals (orange), and when the prompts are
# resampled (blue): two doubts of different kinds.
#
# **Look for:** which band is wider. More timing narrows one, more prompts the other. Where the tops
# of two K lie within one band, either of them will do.

# %%
path = smollm2 / "greedy" / "eagle.parquet"
trace, cost = simspec.load_trace(path), costs_of({"": path})[""]
widths = {part: cost.precision.half_width[part] for part in ("verify", "draft")}
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
lengths = np.arange(9)
half = np.array([widths["verify"][k] or 0.0 for k in lengths])
axes[0].errorbar(
    lengths,
    cost.verify[lengths] / cost.baseline,
    yerr=half / cost.baseline,
    fmt="o-",
    ms=4,
    color=COLOURS[1],
    capsize=3,
)
axes[0].set(xlabel="drafted tokens", ylabel="plain steps", title="verifying", ylim=(0, None))
print(
    f"verification of up to 8 drafted tokens is known to {(half / cost.verify[lengths]).max():.1%} "
    f"at worst, {np.median(half / cost.verify[lengths]):.1%} in the median"
)

policies = [fixed(int(k)) for k in lengths]
found = evaluate(trace, policies, cost, 1)
over = [ratio(found.plain, found.times[policy.name]) for policy in policies]
runs = [simspec.replay(trace, policy) for policy in policies]
random, drawn = np.random.default_rng(0), []
level = 1.96  # half widths of 95% intervals in standard deviations
for _ in range(400):
    verify, draft = (
        part[lengths]
        + random.normal(size=9) * [(width or 0.0) / level for width in half_widths[:9]]
        for part, half_widths in ((cost.verify, widths["verify"]), (cost.draft, widths["draft"]))
    )
    seconds = [
        cost.seconds(run).sum()
        + (verify - cost.verify[lengths])[run.drafted].sum()
        + (draft - cost.draft[lengths])[run.computed].sum()
        for run in runs
    ]
    drawn.append(trace.rows * cost.baseline / np.array(seconds))
low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
axes[1].fill_between(lengths, low, high, color=COLOURS[1], alpha=0.35, label="costs")
axes[1].fill_between(
    lengths,
    [each.low for each in over],
    [each.high for each in over],
    color=COLOURS[0],
    alpha=0.35,
    label="prompts",
)
axes[1].plot(lengths, [each.value for each in over], "o-", ms=3, color="black")
axes[1].set(xlabel="K", ylabel="modeled speedup", title="eagle, greedy")
axes[1].legend(fontsize=8)
best, count = np.unique(np.argmax(drawn, axis=1), return_counts=True)
print(
    "best K over draws of the costs:",
    ", ".join(f"{k} in {n / 4:.0f}%" for k, n in zip(best, count)),
)
for warning in cost.precision.warnings:
    print("the measurement said:", warning)

# %% [markdown]
# ## In engines that people run
#
# vLLM, llama.cpp and transformers ran SmolLM2 with n-gram drafts at several draft lengths. Their
# costs were timed in each of them on other prompts (`simspec engine measure`); a replay under the
# engine's convention gave the passes. Lines are predicted, with 95% bands; dots are measured.
#
# **Look for:** one model and one kind of draft, and three answers: K = 5, no drafts, K = 7.
# Costs belong to an engine. A dot outside its band would be a wrong price, a pass that is not as
# replayed a wrong convention.

# %%
runs = [
    run_summary(smollm2 / "engines" / f"{name}-ngram.rows.jsonl.xz")
    for name in ("vllm", "llamacpp", "transformers")
]
figure, axes = plt.subplots(1, len(runs), figsize=(9, 2.8), sharey=True)
for axis, run in zip(axes, runs):
    rows = run.table.rows
    ks, predicted = [row.k for row in rows], [row.predicted for row in rows]
    bounds = [row.predicted_interval for row in rows]
    axis.plot(ks, predicted, color=COLOURS[1])
    low = [each.low if each else value for each, value in zip(bounds, predicted)]
    high = [each.high if each else value for each, value in zip(bounds, predicted)]
    axis.fill_between(ks, low, high, color=COLOURS[1], alpha=0.35)
    axis.plot(ks, [row.measured for row in rows], "o", ms=4, color=COLOURS[0])
    axis.axhline(1, color="grey", lw=0.8)
    axis.set(xlabel="K", title=run.engine)
    advice, state = advised(run.table)
    print(
        f"{run.engine}, {run.drafter}: {run.passes:,} passes, {run.exceptions} not as replayed; "
        f"advice: {advice}, {state}; errors {np.median(run.errors):.1%} in the median, "
        f"{max(run.errors):.1%} at most"
    )
axes[0].set_ylabel("speedup")
