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
# # 3. Thompson sampling
#
# EESD decides after every drafted token whether to continue, by a Bernoulli draw whose probability
# comes from a posterior. Beta-TS (its Algorithm 2) keeps a Beta posterior; Cali-TS (Algorithm 3)
# corrects a learned prediction by observed outcomes. The paper leaves open what a round adds to the
# posterior, so the package offers readings by name. This notebook shows what each of them does.

# %%
import json
import os

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import beta as beta_distribution

import simspec
from simspec import CostModel, formulas, recordings, replay, summary, synthetic
from simspec.cost import CostTable
from simspec.policies import beta_ts, cali_ts, calibrated, cost_ts, fixed, thompson
from simspec.policy import examples, fit_predictor, split_by_task
from simspec.reports import score
from simspec.trace import CHECKOUT, cost_beside

FAST = os.environ.get("SIMSPEC_FAST") == "1"  # fewer draws; the suite runs it so
plt.rcParams |= {
    "figure.dpi": 80,
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
BETA, CALI = thompson.READINGS, calibrated.READINGS
COLOURS = dict(zip((*BETA, *CALI), plt.get_cmap("tab10").colors))
K = 16

paths = recordings()
names = [name for name in paths if name.startswith("tiny-early_exit")] or list(paths)
traces = {name: simspec.load_trace(paths[name]) for name in names}
tables = {name: CostTable.from_json(cost_beside(paths[name])) for name in names}
measured = {name: table.at(1, table.context[0]) for name, table in tables.items()}

# %% [markdown]
# ## The continuation draw
#
# Algorithm 2 draws theta ~ Beta(a, b) anew after every token and continues with probability theta.
# So each draw is Bernoulli of the posterior's mean, a / (a + b), whatever its width: a posterior of
# 3 : 1 and one of 300 : 100 draft alike. The width only decides how fast the mean still moves.

# %%
random = np.random.default_rng(0)
for a, b in ((3, 1), (300, 100)):
    draws = random.random(1_000_000) < random.beta(a, b, 1_000_000)
    print(
        f"Beta({a}, {b}): mean {a / (a + b):.4f}, share of draws that continue {draws.mean():.4f}"
    )

# %% [markdown]
# ## The posterior, round by round
#
# We replay one sequence and pass every round to the policy's own compiled `observe`, as the kernel
# did. Left: the mean of Beta-TS with its central 90%, for each reading of a round with k drafted
# and a accepted tokens:
#
# - `acceptance`: every verified token is a trial of acceptance;
# - `censored`: continuing after token j was right if j + 1 was accepted; the policy's own stop is
#   not counted;
# - `printed`: as Algorithm 2 prints it, with |Q_v| = a: the policy's own stop counts as a failure;
# - `printed_with_correction`: the same with the target's own token counted in.
#
# Right: the probability that Cali-TS continues after an average token, with the band of theta ~
# N(mu, sigma), for each reading of what theta-hat counts. Each reading makes its own drafts, so the
# numbers of rounds differ.
#
# **Look for:** bands that converge to different values on the same sequence. The readings do not
# learn the same quantity.


# %%
def states(policy, trace, rounds, cost):
    """The policy's state before each round and after the last, float64[R + 1, len(state)]."""
    _, observe = policy.compiled()
    params, state = policy.start()
    features, result = np.full((trace.K, len(policy.reads)), np.nan), [state.copy()]
    for computed, drafted, accepted, seconds in zip(
        rounds.computed, rounds.drafted, rounds.accepted, cost.seconds(rounds)
    ):
        observe(params, state, computed, drafted, accepted, features, seconds)
        result.append(state.copy())
    return np.array(result)


name = names[-1]
fitted = {each: fit_predictor(trace, split_by_task(trace)[0]) for each, trace in traces.items()}
length = np.diff(traces[name].offset)
runs = np.add.reduceat(traces[name].run.astype(float), traces[name].offset[:-1]) / length
long = np.flatnonzero(length == length.max())
s = int(long[np.argmin(abs(runs[long] - np.median(runs[long])))])
sequence = traces[name].select([s])
(confidence, entropy), slot = examples(sequence)[0].T, examples(sequence)[1]
usual = float(
    fitted[name].probability(confidence, entropy, slot).mean()
)  # theta_M of an average token

figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.6), sharey=True)
for reading in BETA:
    policy = beta_ts(reading)
    a, b = states(
        policy, sequence, replay(sequence, policy), CostModel.from_ratio(0.1, sequence.K)
    ).T
    axes[0].plot(a / (a + b), color=COLOURS[reading], label=reading)
    axes[0].fill_between(
        range(len(a)), *beta_distribution.interval(0.9, a, b), color=COLOURS[reading], alpha=0.12
    )
    low, high = beta_distribution.interval(0.9, a[-1], b[-1])
    print(
        f"{reading}: after {len(a) - 1} rounds mean {a[-1] / (a[-1] + b[-1]):.3f}, 90% in "
        f"[{low:.3f}, {high:.3f}]"
    )
for reading in CALI:
    policy = cali_ts(reading, fitted[name])
    params, _ = policy.start()
    seen = states(policy, sequence, replay(sequence, policy), CostModel.from_ratio(0.1, sequence.K))
    var_m, var_s = params[1], params[2]
    n = seen[:, 2]
    mean = (
        var_s * usual + n * var_m * np.array([calibrated.observed(params, state) for state in seen])
    ) / (n * var_m + var_s)  # Eq. 6
    sigma = np.sqrt(var_m * var_s / (n * var_m + var_s))  # Eq. 7
    probability = [calibrated.clipped_mean(m, d) for m, d in zip(mean, sigma)]
    axes[1].plot(probability, color=COLOURS[reading], label=reading)
    band = (np.clip(mean + side * 1.645 * sigma, 0, 1) for side in (-1, 1))
    axes[1].fill_between(range(len(mean)), *band, color=COLOURS[reading], alpha=0.12)
    print(
        f"cali_ts {reading}: after {len(mean) - 1} rounds mu {mean[-1]:.3f}, sigma {sigma[-1]:.3f}"
    )
axes[0].set(
    xlabel="round",
    ylabel="probability to continue",
    title=f"Beta-TS on {sequence.meta.ids[0]}",
    ylim=(0, 1),
)
axes[1].set(xlabel="round", title="Cali-TS")
for axis in axes:
    axis.legend(fontsize=8)

# %% [markdown]
# ## How far each reading drafts, by acceptance
#
# Synthetic sequences of one acceptance alpha (K = 16), after the readings have converged. The
# dashed line is the draft length of a posterior that knows alpha: it continues with probability
# alpha, so the length is geometric.
#
# **Look for:** `acceptance` on the dashed line, and `printed` far below it, even where every token
# would be accepted: its own stops make it stop earlier. On the right, `literal` theta-hat tends to
# 1 whatever happens and drafts long where nothing is accepted. `draft_share` is a share of output
# tokens, not a probability of acceptance, and stays below `validated`.

# %%
alphas = (
    np.array([0.2, 0.5, 0.8, 0.95, 1.0])
    if FAST
    else np.array([0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0])
)
sequences, rows = (10, 2000) if FAST else (40, 6000)


def settled(policy, trace):
    """Mean draft length over the second half of every sequence."""
    rounds = replay(trace, policy)
    late = rounds.row - np.repeat(trace.offset[:-1], np.diff(rounds.offset)) >= rows // 2
    return float(rounds.drafted[late].mean())


worlds = {
    alpha: synthetic.iid(alpha, sequences, rows, K, seed=3, confidence=0 < alpha < 1)
    for alpha in alphas
}
figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.6), sharey=True)
drafted = {}
for reading in BETA:
    drafted[reading] = [settled(beta_ts(reading), worlds[alpha]) for alpha in alphas]
    axes[0].plot(alphas, drafted[reading], "o-", ms=4, color=COLOURS[reading], label=reading)
for reading in CALI:
    policy = cali_ts(reading, side="sampling")
    drafted[reading] = [settled(policy, worlds[alpha]) for alpha in alphas]
    axes[1].plot(
        alphas,
        drafted[reading],
        "o-",
        ms=4,
        color=COLOURS[reading],
        label=f"{reading}, sampling only",
    )
    inside = alphas[alphas < 1]
    given = [settled(cali_ts(reading, "confidence"), worlds[alpha]) for alpha in inside]
    axes[1].plot(
        inside, given, ":", color=COLOURS[reading], label=f"{reading}, a calibrated predictor too"
    )
fine = np.linspace(0, 1, 101)
for axis in axes:
    axis.plot(
        fine,
        formulas.geometric_drafted(fine, K),
        "--",
        color="black",
        lw=1,
        label="posterior mean = alpha",
    )
    axis.set(xlabel="acceptance alpha", yscale="log", ylim=(0.9, 17))
    axis.set_yticks([1, 2, 4, 8, 16], [1, 2, 4, 8, 16])
    axis.minorticks_off()
    axis.legend(fontsize=7)
axes[0].set(ylabel="mean draft length", title="Beta-TS")
axes[1].set_title("Cali-TS")
for reading, lengths in drafted.items():
    print(
        f"{reading:>24}:",
        "  ".join(f"{alpha:g}: {value:.2f}" for alpha, value in zip(alphas, lengths)),
    )

# %% [markdown]
# ## The drift, round by round
#
# The same at one acceptance, from the first round on: left how `printed` shortens its drafts, right
# how theta-hat of `literal` rises to 1 where less than a third of the tokens is accepted.

# %%
high, low = 0.8, 0.3
figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.3))
count = 100 if FAST else 400
trace = synthetic.iid(high, count, 1500, K, seed=4)
for reading in BETA:
    rounds = replay(trace, beta_ts(reading))
    number = np.arange(len(rounds)) - np.repeat(rounds.offset[:-1], np.diff(rounds.offset))
    shown = int(np.diff(rounds.offset).min())
    mean = np.bincount(number, rounds.drafted)[:shown] / count
    bins = np.unique(np.geomspace(1, shown, 25).astype(int))
    axes[0].semilogx(
        bins[:-1],
        [mean[i - 1 : j - 1].mean() for i, j in zip(bins, bins[1:])],
        color=COLOURS[reading],
        label=reading,
    )
    late = mean[shown // 2 :].mean()
    print(
        f"{reading} at alpha = {high}: {mean[0]:.2f} tokens in round 1, {late:.2f} in rounds "
        f"{shown // 2} to {shown}"
    )
axes[0].axhline(formulas.geometric_drafted(high, K), ls="--", color="black", lw=1)
axes[0].set(xlabel="round", ylabel="mean draft length", title=f"Beta-TS, alpha = {high}")
one = synthetic.iid(low, 1, 1500, K, seed=5)
for reading in CALI:
    policy = cali_ts(reading, side="sampling")
    seen = states(policy, one, replay(one, policy), CostModel.from_ratio(0.1, K))
    hat = [calibrated.observed(policy.start()[0], state) for state in seen]
    axes[1].semilogx(range(1, len(hat) + 1), hat, color=COLOURS[reading], label=reading)
    print(f"theta-hat of {reading} at alpha = {low}: {hat[-1]:.3f} after {len(hat) - 1} rounds")
axes[1].axhline(low, ls="--", color="black", lw=1)
axes[1].set(
    xlabel="round", ylabel="theta-hat", title=f"one sequence, alpha = {low}", ylim=(0, 1.02)
)
for axis in axes:
    axis.legend(fontsize=8)

# %% [markdown]
# ## A fixed posterior has a closed form
#
# With a huge prior the mean hardly moves and the draft is a geometric stop: continue with
# probability s. Then (K the cap) E[k] = (1 - s^K) / (1 - s), E[a] = alpha (1 - (s alpha)^K) / (1 -
# s alpha), and the speedup in unit costs is (1 + E[a]) / (1 + c E[k]). The simulator must give the
# same.
#
# **Look for:** dots on their lines. And the squares: probability matching sets s = alpha, whatever
# c is. The best s is often elsewhere: at c = 0.3 it lies on the other side than at 0.05.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.5))
stays = np.array([0.05, 0.3, 0.6, 0.8, 0.95])
furthest = 0.0
for axis, c in zip(axes, (0.05, 0.3)):
    unit = CostModel.from_ratio(c, K)
    for number, alpha in enumerate((0.4, 0.7, 0.9)):
        trace, colour = synthetic.iid(alpha, sequences, rows, K, seed=6), f"C{number}"
        curve = formulas.geometric_speedup(alpha, fine, K, c)
        axis.plot(fine, curve, color=colour, label=f"alpha = {alpha}")
        axis.plot(
            alpha,
            formulas.geometric_speedup(alpha, alpha, K, c),
            "s",
            color=colour,
            ms=8,
            mfc="none",
        )
        result = []
        for stay in stays:
            rounds = replay(trace, beta_ts(alpha0=stay * 1e12, beta0=(1 - stay) * 1e12))
            result.append(summary(rounds, trace, unit).speedup)
            k, a = formulas.geometric_drafted(stay, K), formulas.geometric_accepted(alpha, stay, K)
            furthest = max(
                furthest, abs(rounds.drafted.mean() / k - 1), abs(rounds.accepted.mean() / a - 1)
            )
        axis.plot(stays, result, "o", color=colour, ms=4)
        matched = formulas.geometric_speedup(alpha, alpha, K, c) / curve.max()
        print(
            f"c = {c}, alpha = {alpha}: the best s is {fine[curve.argmax()]:.2f}, matching s = "
            f"alpha gets {matched:.1%} of its speedup"
        )
    axis.axhline(1, color="grey", lw=0.8)
    axis.set(xlabel="probability s to continue", title=f"c = {c}")
    axis.legend(fontsize=8)
axes[0].set_ylabel("speedup")
print(f"mean drafted and accepted lengths differ from the closed forms by {furthest:.2%} at most")

# %% [markdown]
# ## Thompson sampling that knows the costs
#
# `cost_ts` samples an acceptance from its posterior once a round and drafts the k with the most
# tokens per second for it. EESD's policies do not know the cost of a draft: at c = 0.05 and at c =
# 0.3 they draft the same.
#
# **Look for:** left, dots near the steps of the best fixed K at every c, and one line for Beta-TS
# at all of them. Right, the share of the best fixed K's speedup that each reaches: the price of not
# knowing alpha, and of not knowing c.

# %%
ratios = (0.05, 0.1, 0.3)
figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.5))
levels = alphas[alphas < 1]
for number, c in enumerate(ratios):
    unit, colour = CostModel.from_ratio(c, K), f"C{number}"
    lengths, reached = [], {"cost_ts": [], "beta_ts": []}
    for alpha in levels:
        trace = worlds[alpha]
        best = summary(
            replay(trace, fixed(int(formulas.optimal_k(alpha, c, K)))), trace, unit
        ).speedup
        for label, policy in (("cost_ts", cost_ts()(trace, unit)), ("beta_ts", beta_ts())):
            rounds = replay(trace, policy, cost=unit)
            reached[label].append(summary(rounds, trace, unit).speedup / best)
            if label == "cost_ts":
                lengths.append(rounds.drafted.mean())
    axes[0].plot(fine, formulas.optimal_k(fine, c, K), color=colour, lw=0.8)
    axes[0].plot(levels, lengths, "o", ms=4, color=colour, label=f"cost_ts, c = {c}")
    axes[1].plot(levels, reached["cost_ts"], "o-", ms=4, color=colour, label=f"cost_ts, c = {c}")
    axes[1].plot(levels, reached["beta_ts"], ":", color=colour, label=f"beta_ts, c = {c}")
    worst = {label: min(values) for label, values in reached.items()}
    print(
        f"c = {c}: of the best fixed K's speedup at least {worst['cost_ts']:.3f} by cost_ts, "
        f"{worst['beta_ts']:.3f} by beta_ts"
    )
axes[0].plot(
    fine, formulas.geometric_drafted(fine, K), "--", color="black", lw=1, label="beta_ts, any c"
)
axes[0].set(xlabel="acceptance alpha", ylabel="mean draft length")
axes[1].axhline(1, color="grey", lw=0.8)
axes[1].set(xlabel="acceptance alpha", ylabel="speedup / that of the best fixed K")
for axis in axes:
    axis.legend(fontsize=7)

# %% [markdown]
# ## On recordings
#
# The share of the gap between the best fixed K and the oracle that each closes, on half of the
# prompts of each task. The predictor (logistic in confidence, entropy and slot) was fitted on the
# other half. A recorded theta_M is included where a recording has one. Intervals: 95%, over
# prompts.
#
# **Look for:** the order of the readings, and whether it is the same at measured costs and at a
# cheap drafter's (c = 0.05). Real acceptance varies along a sequence, so what wins on synthetic
# sequences need not win here.

# %%
panels = []
for each, trace in traces.items():
    half = trace.select(split_by_task(trace)[1])
    contestants = [beta_ts(reading) for reading in BETA] + [
        cali_ts(reading, fitted[each]) for reading in CALI
    ]
    contestants += [
        cali_ts(predictor=fitted[each], side="model"),
        cali_ts(side="sampling"),
        cost_ts(),
        cost_ts("depth"),
        cost_ts(decay=0.9),
    ]
    labels = [f"beta_ts {reading}" for reading in BETA] + [f"cali_ts {reading}" for reading in CALI]
    labels += ["model only", "sampling only", "cost_ts", "cost_ts depth", "cost_ts decay 0.9"]
    for theta in (feature for feature, _ in trace.meta.features if feature.startswith("theta")):
        contestants += [cali_ts(predictor=theta), cali_ts(predictor=theta, side="model")]
        labels += [f"cali_ts {theta}", f"model only {theta}"]
    for what, cost in (("measured", measured[each]), ("c = 0.05", 0.05)):
        (result,) = score(
            {each: half},
            cost,
            contestants,
            replicates=1 if FAST else 4,
            resamples=500 if FAST else 4000,
        )
        panels.append((f"{each}\n{what}", labels, result))

figure, axes = plt.subplots(
    1, len(panels), figsize=(3.2 * len(panels), 4.4), sharey=True, squeeze=False
)
for axis, (title, labels, result) in zip(axes[0], panels):
    best, fastest = (
        f"{result['best_fixed']} at {result['speedup_fixed']:.3f}",
        f"{result['speedup_oracle']:.3f}",
    )
    print(f"{' '.join(title.split())}: best fixed K is {best}, oracle {fastest}")
    for lane, (label, row) in enumerate(zip(labels, result["policies"])):
        low, high = row["low"], row["high"]
        axis.errorbar(
            row["share"],
            lane,
            xerr=[[row["share"] - low], [high - row["share"]]],
            fmt="o",
            ms=4,
            color="C0",
            capsize=2,
        )
        print(
            f"  {label:>30}: speedup {row['speedup']:.3f}, share {row['share']:+.2f} "
            f"[{low:+.2f}, {high:+.2f}]"
        )
    axis.axvline(0, color="grey", lw=0.8)
    axis.set_title(title, fontsize=9)
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_xlabel("share of the gap", fontsize=8)
axes[0, 0].invert_yaxis()

# %% [markdown]
# ## Measured on a real model
#
# The policies decode SmolLM2-135M with its EAGLE, prompt lookup and three other drafters, 20
# prompts five times (at d1265ed8). Predictions replay those prompts at costs of 20 others.
#
# **Look for:** predicted (above, blue) and measured (below) agree within 2%, of the early exit
# within 5%. With EAGLE no policy is clearly faster than K = 2: Beta-TS and Cali-TS, which ignore
# what a draft costs, come out below it, and so does `cost_ts`, which does not, on greedy text.

# %%
cards = sorted((CHECKOUT / "smollm2" / "measured").glob("scorecard-*.json"))
figure, axes = plt.subplots(1, len(cards), figsize=(4.2 * len(cards), 2.6), sharex=True)
for axis, path in zip(axes, cards):
    runs = [row for row in json.loads(path.read_text())["rows"] if row["error"] is not None]
    print(path.stem.removeprefix("scorecard-"))
    for lane, row in enumerate(runs):
        for shift, kind, low, high in (
            (-0.12, "speedup", "speedup_low", "speedup_high"),
            (0.12, "speedup_measured", "measured_low", "measured_high"),
        ):
            colour = "C0" if kind == "speedup" else "C1"
            value, bounds = row[kind], [[row[kind] - row[low]], [row[high] - row[kind]]]
            axis.errorbar(value, lane + shift, xerr=bounds, fmt="o", ms=4, color=colour, capsize=2)
        print(
            f"  {row['policy']:>28}: predicted {row['speedup']:.3f}, measured "
            f"{row['speedup_measured']:.3f} [{row['measured_low']:.3f}, {row['measured_high']:.3f}]"
        )
    axis.axvline(1, color="grey", lw=0.8)
    axis.set_yticks(range(len(runs)), [row["policy"].split(":")[0] for row in runs], fontsize=8)
    axis.set_title(path.stem.removeprefix("scorecard-"), fontsize=9)
    axis.invert_yaxis()
