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
# # 1. Reading a trace
#
# A recording (`Trace`) holds one row for every position of the target's own output. The row says
# what would happen if a draft began there: how long it could be, and how many of its first tokens
# the target would accept. Speculative decoding does not change the output, so rows of **all**
# positions are enough to replay any draft-length policy.
#
# This notebook looks at one recording from the bottom up: a row, a sequence, a replay by hand, then
# the whole.

# %%
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

import simspec
from simspec import recordings
from simspec.policy import brier, examples, fit_predictor, reliability, split_by_task
from simspec.trace import decode, depth_acceptance, table

plt.rcParams |= {
    "figure.dpi": 80,
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
GREEN, RED, GREY, DARK = "#2a9d8f", "#e76f51", "#cccccc", "#264653"

paths = recordings()
name = next((n for n in paths if n.startswith("tiny-early_exit-coupled")), next(iter(paths)))
trace = simspec.load_trace(paths[name])
print(f"{name}: {trace.sequences} sequences, {trace.rows} rows, drafts to depth K = {trace.K}")
print(
    f"target {trace.meta.target}, drafter {trace.meta.drafter}, rule {trace.meta.rule}, "
    f"temperature {trace.meta.temperature}"
)
print(
    "the drafter exposes, after each slot:",
    ", ".join(feature for feature, _ in trace.meta.features),
)

# %% [markdown]
# ## One row after another
#
# We take a sequence of about the mean acceptance. `token` is the target's next token, `depth` how
# far a draft from here can go (K, or an end token that the drafter proposes), `run` how many of its
# first tokens would be accepted. `rank` says where the drafter ranks the target's own token in each
# slot: 0 is its first choice.


# %%
def words(tokens):
    """Each token decoded, if the tokenizer of the embedded models is installed; else its number."""
    try:
        import tokenizers

        import real
    except ImportError:
        return [str(token) for token in tokens]
    file = Path(next(iter(real.__path__))) / "tiny" / "target" / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    return [repr(tokenizer.decode([int(token)], skip_special_tokens=False)) for token in tokens]


length = np.diff(trace.offset)
means = np.add.reduceat(trace.run.astype(float), trace.offset[:-1]) / length
long = np.flatnonzero(length >= min(48, length.max()))
s = int(long[np.argmin(abs(means[long] - trace.run.mean()))])
sequence = trace.select([s])
confidence = decode(
    sequence.feature[:, :, int(sequence.features(["confidence"])[0])],
    table(dict(sequence.meta.features)["confidence"]),
)

print(
    f"sequence {sequence.meta.ids[0]} ({sequence.task[0]}), {sequence.rows} rows, budget "
    f"{sequence.budget[0]}"
)
header = f"{'row':>4} {'next token':>14} {'depth':>5} {'run':>4}   confidence of the first 4 slots"
print(header + ("   ranks" if sequence.rank is not None else ""))
for t, word in enumerate(words(sequence.token[:14])):
    shown = "  ".join(f"{value:.2f}" for value in confidence[t, :4])
    ranks = (
        ""
        if sequence.rank is None
        else "      " + " ".join(f"{rank:>3}" for rank in sequence.rank[t, :4])
    )
    print(f"{t:>4} {word:>14} {sequence.depth[t]:>5} {sequence.run[t]:>4}   {shown}{ranks}")

# %% [markdown]
# Now the same rows as a picture. Each column is a row of the recording; upwards goes the draft that
# would begin there.
#
# **Look for:** green columns that lose one cell from each position to the next. They are one long
# agreement, seen from each of its positions. Behind the first red cell a drafter continues from a
# wrong token. Those slots are recorded too, because a policy may compute them. See also whether
# confidence falls where the red cell is: a stopping policy depends on that.


# %%
def status(trace):
    """int[N, K]: 0 not recorded, 1 accepted, 2 the first miss, 3 behind it."""
    slot = np.arange(trace.K)
    left = np.repeat(trace.offset[1:], np.diff(trace.offset)) - np.arange(trace.rows)
    reach = np.minimum(trace.depth, left)[:, None]
    run = trace.run.astype(int)[:, None]
    return np.where(slot >= reach, 0, np.where(slot < run, 1, np.where(slot == run, 2, 3)))


shown = min(sequence.rows, 48)
grid = status(sequence)[:shown]
panels = [("outcome", None), ("confidence", confidence[:shown])]
if sequence.rank is not None:
    panels.append(("rank of the target's token (log scale)", np.log10(1.0 + sequence.rank[:shown])))
figure, axes = plt.subplots(len(panels), 1, figsize=(9, 2.1 * len(panels)), sharex=True)
for axis, (title, values) in zip(axes, panels):
    if values is None:
        colours = ListedColormap(["white", GREEN, RED, GREY])
        axis.imshow(
            grid.T,
            origin="lower",
            cmap=colours,
            vmin=0,
            vmax=3,
            aspect="auto",
            interpolation="none",
        )
    else:
        hidden = np.ma.masked_where(grid == 0, values)
        drawn = axis.imshow(
            hidden.T, origin="lower", cmap="viridis", aspect="auto", interpolation="none"
        )
        figure.colorbar(drawn, ax=axis, pad=0.01)
    axis.set(ylabel="slot", title=title)
axes[-1].set_xlabel("row (position in the sequence)")
for label, colour in (("accepted", GREEN), ("first miss", RED), ("behind the miss", GREY)):
    axes[0].bar(0, 0, color=colour, label=label)
axes[0].legend(loc="upper right", ncols=3, fontsize="small", framealpha=0.9)
# %% [markdown]
# ## A replay by hand
#
# A round drafts k tokens, at most what budget and `depth` allow. The target accepts `a = min(k,
# run)` of them and adds a token of its own, so the next round begins a + 1 rows later. Nothing else
# happens in a replay. Here with k = 3:

# %%
t, steps = 0, []
while t < sequence.rows:
    cap = min(3, sequence.budget[0] - t - 1, sequence.depth[t])
    accepted = min(cap, sequence.run[t])
    steps.append((t, cap, accepted))
    t += accepted + 1

for number, (t, cap, accepted) in enumerate(steps[:8]):
    print(
        f"round {number}: row {t:>2}, run {sequence.run[t]:>2}: draft {cap}, {accepted} "
        f"accepted, 1 own token -> row {t + accepted + 1}"
    )

rounds = simspec.replay(sequence, simspec.policies.fixed(3))
assert [
    (int(row), int(k), int(a)) for row, k, a in zip(rounds.row, rounds.drafted, rounds.accepted)
] == [tuple(map(int, x)) for x in steps]
print(
    f"... {len(steps)} rounds for {sequence.rows} tokens, the same as simspec.replay(sequence, "
    "fixed(3))"
)

# %% [markdown]
# The rounds of several policies on the same sequence. A bar is a round: green the accepted tokens,
# dark the target's own; the red column above it is as high as the number of tokens that were
# computed but wasted.
#
# **Look for:** longer bars are fewer target passes; less red is less waste. The oracle knows the
# rows beforehand. It shows the best possible result for a draft step of a tenth of a target step.

# %%
cost = simspec.CostModel.from_ratio(0.1, sequence.K)
lanes = ["fixed:0", "fixed:3", "fixed:8", "beta_ts", "confidence:0.5", "oracle"]
figure, axis = plt.subplots(figsize=(9, 3.4))
for lane, policy in enumerate(lanes):
    played = simspec.replay(sequence, simspec.policies.make(policy, sequence, cost), cost=cost)
    for row, k, a in zip(played.row, played.drafted, played.accepted):
        own = row + a < sequence.rows
        axis.broken_barh([(row, a)], (lane + 0.1, 0.35), color=GREEN)
        axis.broken_barh([(row + a, 0.85)] if own else [], (lane + 0.1, 0.35), color=DARK)
        wasted = 0.45 * (k - a) / 8
        axis.broken_barh(
            [(row + a, 0.85)] if k > a else [], (lane + 0.08 - wasted, wasted), color=RED
        )
        axis.plot([row, row], [lane + 0.1, lane + 0.5], color="black", lw=0.6)
    result = simspec.summary(played, sequence, cost)
    axis.text(
        shown + 0.5,
        lane + 0.3,
        f"{result.rounds} passes, {result.drafted - result.accepted} wasted",
        va="center",
        fontsize=9,
    )
axis.set(xlim=(0, shown), yticks=np.arange(len(lanes)) + 0.3, yticklabels=lanes, xlabel="row")
axis.invert_yaxis()
# %% [markdown]
# ## Acceptance by depth depends on K
#
# The probability that slot n is accepted, given that all slots before it were, is what serving
# engines log while they run at one K. But which rows a round begins at depends on K: long drafts
# skip the easy tokens, and their rounds begin at the hard ones.
#
# **Look for:** lines of the same recording that differ by K alone. A table measured at one K does
# not hold for another. The dotted line covers all rows, as a recording does. (Few rounds reach the
# last slots: their points scatter.)

# %%
both = {
    n: simspec.load_trace(path)
    for n, path in paths.items()
    if n.rsplit("-", 1)[0] == name.rsplit("-", 1)[0]
}
figure, axes = plt.subplots(
    1, len(both), figsize=(4.5 * len(both), 3.2), sharey=True, squeeze=False
)
for axis, (label, each) in zip(axes[0], both.items()):
    for k, colour in ((1, GREEN), (4, DARK), (each.K, RED)):
        result = simspec.summary(
            simspec.replay(each, simspec.policies.fixed(k)),
            each,
            simspec.CostModel.from_ratio(0.1, each.K),
        )
        axis.plot(
            range(1, k + 1),
            result.accept_by_depth[:k],
            "o-",
            ms=4,
            color=colour,
            label=f"rounds of K = {k}",
        )
        print(f"{label}: first slot accepted at K = {k}: {result.accept_by_depth[0]:.3f}")
    axis.plot(range(1, each.K + 1), depth_acceptance(each)[1], ":", color="black", label="all rows")
    axis.set(xlabel="slot n", title=label, ylim=(0, 1))
axes[0, 0].set_ylabel("accepted, given n - 1 were")
axes[0, 0].legend(fontsize="small")

# %% [markdown]
# ## Where acceptance comes from
#
# Greedy outputs of small models loop, and repetitive text inflates acceptance. A row counts as
# repeated here if the eight tokens that end with it occurred earlier in the same sequence.
#
# **Look for:** how much larger the accepted length of repeated rows is, and how many rows are
# repeated, by rule and task. Headline figures should come from recordings with few of them.


# %%
def repeated(trace, n=8):
    """bool[N]: the n tokens that end at this row occurred before in the same sequence."""
    result = np.zeros(trace.rows, bool)
    for start, end in zip(trace.offset[:-1], trace.offset[1:]):
        seen = set()
        for t in range(start + n - 1, end):
            gram = tuple(trace.token[t - n + 1 : t + 1].tolist())
            result[t] = gram in seen
            seen.add(gram)
    return result


figure, axes = plt.subplots(
    1, len(both), figsize=(4.5 * len(both), 3.2), sharey=True, squeeze=False
)
for axis, (label, each) in zip(axes[0], both.items()):
    task, loops = np.repeat(each.task, np.diff(each.offset)), repeated(each)
    tasks = sorted(set(each.task))
    for shift, of, colour, what in ((-0.2, ~loops, GREEN, "new"), (0.2, loops, GREY, "repeated")):
        runs = [each.run[of & (task == one)] for one in tasks]
        axis.bar(
            np.arange(len(tasks)) + shift,
            [r.mean() if len(r) else 0 for r in runs],
            0.4,
            color=colour,
            label=f"{what} rows",
        )
    axis.set_xticks(
        range(len(tasks)),
        [f"{one}\n{loops[task == one].mean():.0%}" for one in tasks],
        rotation=45,
        fontsize=8,
    )
    axis.set_title(f"{label}: {loops.mean():.0%} repeated", fontsize=10)
    print(
        f"{label}: mean accepted length {each.run[~loops].mean():.2f} on new rows, "
        f"{each.run[loops].mean():.2f} on repeated ones"
    )
axes[0, 0].set_ylabel("mean accepted length")
axes[0, 0].legend(fontsize="small")
# %% [markdown]
# ## Is the drafter's confidence calibrated?
#
# Every slot up to the first miss is an example: what the drafter exposed there, and whether the
# token was accepted. If a confidence of 0.7 meant an acceptance of 0.7, the points would lie on the
# diagonal.
#
# **Look for:** points off the diagonal (below it the drafter is overconfident, above it
# underconfident), and whether slot and confidence together predict more than confidence alone. The
# fitted line uses confidence, entropy and slot. It is fitted on one half of each task's sequences
# and evaluated on the other. Brier's score is the mean squared error of a probability: 0 is
# perfect.

# %%
first, second = split_by_task(trace)
held_out = trace.select(second)
probability_features = [
    feature for feature, on in trace.meta.features if on in ("confidence", "identity")
]
values, slot, label, _ = examples(held_out, probability_features)
forecasts = {
    f"{feature}, all slots": values[:, i] for i, feature in enumerate(probability_features)
}
if {"confidence", "entropy"} <= set(dict(trace.meta.features)):
    (conf, entropy), at = examples(held_out)[0].T, examples(held_out)[1]
    forecasts["fitted on the other half"] = fit_predictor(trace, first).probability(
        conf, entropy, at
    )

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
for what, probability in forecasts.items():
    count, mean, share = reliability(probability, label).T
    axes[0].plot(
        mean[count >= 40],
        share[count >= 40],
        "o-",
        ms=4,
        label=f"{what}: Brier {brier(probability, label):.3f}",
    )
    print(
        f"{what}: mean {probability.mean():.3f} where {label.mean():.3f} were accepted, Brier "
        f"{brier(probability, label):.4f}"
    )
own = values[:, probability_features.index("confidence")]
for low, high, colour in ((0, 1, GREEN), (1, 4, DARK), (4, trace.K, RED)):
    of = (slot >= low) & (slot < high)
    count, mean, share = reliability(own[of], label[of]).T
    axes[1].plot(
        mean[count >= 40],
        share[count >= 40],
        "o-",
        ms=4,
        color=colour,
        label=f"confidence, slots {low}..{high - 1}",
    )
for axis in axes:
    axis.plot([0, 1], [0, 1], ":", color="black")
    axis.set_xlabel("stated probability")
    axis.legend(fontsize=8)
axes[0].set_ylabel("share accepted")
# %% [markdown]
# ## What a data card holds
#
# Each recording has a data card: its origin, the machine, the versions, and figures that can be
# recomputed from the file, which we do here. It also says what a row means.

# %%
file = paths[name].with_suffix(".json")
card = json.loads(file.read_text()) if file.exists() else {}
fields = (
    "row rule temperature seed target drafter K texts rows "
    "mean_accepted_length repeated_8grams ended_by_end_token"
)
for key in fields.split():
    if key in card:
        print(f"{key:>20}  {card[key]}")

ended = float(np.isin(trace.token[trace.offset[1:] - 1], trace.meta.end_tokens).mean())
again = {
    "texts": trace.sequences,
    "rows": trace.rows,
    "mean_accepted_length": trace.run.mean(),
    "ended_by_end_token": ended,
}
again["repeated_8grams"] = repeated(trace).sum() / np.maximum(np.diff(trace.offset) - 7, 0).sum()
assert all(abs(card[key] - value) < 1e-4 for key, value in again.items() if key in card)
print("recomputed from the file:", ", ".join(f"{key} {value:.4g}" for key, value in again.items()))
