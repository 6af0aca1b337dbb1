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
# The papers are EESD (Thompson sampling decides how much to draft), GLIDE with a CAPE (a drafter
# that reads its target's cache, and siblings beside its drafts), EAGLE (a head that drafts
# features) and S2D (one drafter with several exits). First the arithmetic, then a picture of each.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np

import simspec
from simspec.numerics.stats import quotient
from simspec.papers import CLAIMS, TABLES, Recordings, eagle, eesd
from simspec.papers.claims import HELD, NOT_HELD, UNDECIDED, verdict_of
from simspec.papers.printed import (
    EESD,
    eesd_cells,
    glide_cells,
    implied_costs,
    shared_cost,
    table_rows,
)
from simspec.papers.recorded import FLAT, TRAINED
from simspec.papers.recorded import figure as estimate
from simspec.policies import fixed
from simspec.replay.evaluation import evaluate
from simspec.trace.acceptance import by_depth, depth_acceptance
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
# ## EESD: Beta-TS is at least as good as the best fixed K
#
# **The paper** (section 5.2) says so, of a K chosen for all samples. **The recordings** say no, at
# a draft step of 0.1 plain steps: no point lies clearly above 0. **Why:** Beta-TS stops at random,
# which costs up to a tenth where prompts are alike, and learns each prompt's acceptance, which pays
# where they differ. The line is made up: half of the prompts are accepted less often than .55, half
# more.
#
# **Look for:** how far to the right the line crosses 0, and where the recordings are.

# %%
found = Recordings(draws=1 if FAST else 4)
figure, axis = plt.subplots(figsize=(7.2, 3.8))
apart = np.linspace(0, 0.4, 3 if FAST else 9)
made_up = [eesd.gain_on_mix((0.55 - x, 0.55 + x), FLAT) for x in apart]
axis.plot(apart, made_up, "o-", color="black", ms=3, lw=0.8, label="made up")
for colour, target in zip(COLOURS, ("coder", "smollm2", "tiny")):
    for recorded in found.counted(*TRAINED[:1] if FAST else TRAINED):
        if recorded.target == target:
            gain = eesd.beta_against_best_fixed(recorded.at(FLAT)).interval
            spread = eesd.spread_of(recorded)
            axis.plot([spread, spread], [gain.low, gain.high], color=colour, lw=1)
            axis.plot(spread, gain.value, "o", ms=4, color=colour)
            print(f"{recorded.name}: spread {spread:.2f}, gain {gain.text('+.3f')}")
    axis.plot([], [], "o", color=colour, label=target)
axis.axhline(0, color="grey", lw=0.8)
axis.set(xlabel="spread of the first token's acceptance between prompts", ylabel="gain of Beta-TS")
axis.legend(fontsize=8)

# %% [markdown]
# ## GLIDE with a CAPE: siblings pay, beams do not
#
# **The paper** adds the next best tokens beside each draft (CAPE), more of them where the drafter
# is unsure; it is faster than the chain alone, and than beams, which double the time of a draft
# step. **The recordings** agree on siblings where verification is flat: at an H200's prices,
# beyond 7 tokens extrapolated, and for coder on its CPU. That sizes by confidence beat one size
# for all only coder's measured prices show, and beams pay on both pairs. **Why:** flat prices
# charge a step of beams as one of a chain. At twice its price beams would lose.
#
# **Look for:** points right of 0, where the first of each pair is the faster one.

# %%
effects = {claim: claim.effects(found) for claim in (*CLAIMS["glide"], *CLAIMS["eagle"])}
shown = {"13a": "CAPE over a chain", "13b": "a chain over beams", "13c": "CAPE over equal sets"}
figure, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True)
regimes = ["measured", "H200", "flat, c = 0.05", "flat, c = 0.10"]
drawn = dict.fromkeys(
    e.on for claim, of in effects.items() if claim.number in shown for e in of
    if e.pair in ("smollm2/greedy", "coder/greedy")
)  # fmt: skip
for axis, (number, title) in zip(axes, shown.items()):
    for effect in (e for claim, of in effects.items() if claim.number == number for e in of):
        if effect.on in drawn:
            place = list(drawn).index(effect.on)
            lane, at = regimes.index(effect.regime) + 0.12 * place, effect.interval
            axis.plot([at.low, at.high], [lane, lane], color=COLOURS[place], lw=1)
            axis.plot(at.value, lane, "o", ms=4, color=COLOURS[place])
            print(f"{title}, {effect.on}, {effect.regime}: {at.text('+.3f')}")
    axis.axvline(0, color="grey", lw=0.8)
    axis.set(title=title, xlabel="gain")
axes[0].set_yticks(range(len(regimes)), regimes)
for place, name in enumerate(drawn):
    axes[1].plot([], [], "o", color=COLOURS[place], label=name)
axes[1].legend(fontsize=7)

# %% [markdown]
# ## EAGLE: what does a drafted feature in the input cost?
#
# **The paper** prints n-alpha, acceptance with n drafted features in the input: 0-alpha is
# higher, 1 to 4 are alike. **The recordings** of coder's head, which two cores trained with the
# paper's loss for 15 minutes, show the first as printed (dotted: positions whose n tokens before
# were accepted) and over all rows (full lines), those of SmolLM2's over all rows alone. **Why:**
# positions where n tokens were accepted are easier, which hides what the features cost.
#
# **Look for:** the dotted line above the full one, growing with n.

# %%
figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True)
printed = {"greedy": (0.79, 0.71, 0.70, 0.71, 0.70), "coupled": (0.72, 0.65, 0.66, 0.62, 0.62)}
for axis, pair in zip(axes, ("smollm2/greedy", "smollm2/coupled", "coder/coupled")):
    (recorded,) = (r for r in found.counted("eagle") if r.pair == pair)
    paper = printed[pair.partition("/")[2]]
    accepted, tried = by_depth(recorded.trace)
    ways = {
        "accepted before": [(accepted[:, n], tried[:, n]) for n in range(5)],
        "all rows": [eagle.drafted_features(recorded, (n,)) for n in range(5)],
    }
    for style, (name, columns) in zip((":", "-"), ways.items()):
        rates = [estimate(*both, of=quotient) for both in columns]
        axis.plot([r.value for r in rates], f"o{style}", ms=3, color=COLOURS[0], label=name)
        print(f"{pair}, {name}: {', '.join(rate.text() for rate in rates)}")
    axis.plot(paper, "x--", color="grey", lw=0.8, label="paper, Vicuna 7B, GSM8K")
    axis.set(title=pair, xlabel="n drafted features", xticks=range(5))
axes[0].set_ylabel("n-alpha")
axes[0].legend(fontsize=7)

# %% [markdown]
# ## S2D: one drafter with exits serves targets of three sizes
#
# **The paper** drafts each token at the first exit that is sure, and finds that faster on average
# than the last exit alone. **The recordings**, of targets of 5, 10 and 20 layers at the prices of
# the paper's models, agree on the small target and not on the large. **Why:** for a small target
# the drafter is dear, so a shallow exit pays; for a large one it is cheap, and acceptance is all.
#
# **Look for:** the order of the dots in each panel, beside that of the paper's crosses.

# %%
table = TABLES["s2d-2"](found)
figure, axes = plt.subplots(1, 3, figsize=(10, 2.8), sharey=True)
for axis, size in zip(axes, ("small", "middle", "large")):
    for lane, (ours, paper) in enumerate(zip(table[size], table[f"{size}: printed"])):
        axis.plot([ours.low, ours.high], [lane, lane], color=COLOURS[0], lw=1)
        axis.plot(ours.value, lane, "o", ms=4, color=COLOURS[0])
        axis.plot(float(paper.partition("/")[0]), lane, "x", color="grey")
    axis.set(title=f"{size} target", xlabel="speedup")
    print(f"{size}:", "; ".join(f"{m} {x.text()}" for m, x in zip(table["method"], table[size])))
axes[0].set_yticks(range(len(table)), table["method"], fontsize=8)
axes[0].invert_yaxis()

# %% [markdown]
# ## All verdicts
#
# A verdict is of one pair of target and text at one price. Each square is a pair: those of the
# coder, SmolLM2 and the embedded target, from left to right (18c: S2D's three targets).
#
# **Look for:** rows that change colour between prices: claims about machines. Rows of one colour
# are claims about text and models.

# %%
if not FAST:
    effects |= {claim: claim.effects(found) for paper in CLAIMS for claim in CLAIMS[paper]
                if claim not in effects}  # fmt: skip
words, columns = (HELD, NOT_HELD, UNDECIDED), [*regimes, ""]
colours = dict(zip(words, (COLOURS[2], COLOURS[3], "0.8")))
pairs = sorted({effect.pair for of in effects.values() for effect in of})
figure, axis = plt.subplots(figsize=(9, 0.24 * len(effects) + 1))
for lane, (claim, of) in enumerate(effects.items()):
    counts = dict.fromkeys(words, 0)
    for key in sorted({(effect.pair, effect.regime) for effect in of}):
        word = verdict_of(claim, [e for e in of if (e.pair, e.regime) == key]).word
        if word in counts:
            place = columns.index(key[1] if key[1] in regimes else "")
            axis.plot(place + 0.1 * pairs.index(key[0]), lane, "s", ms=6, color=colours[word])
            counts[word] += 1
    print(f"{claim.number}: {', '.join(f'{word} {n}' for word, n in counts.items() if n)}")
for word in words:
    axis.plot([], [], "s", color=colours[word], label=word)
axis.set_yticks(range(len(effects)), [claim.number for claim in effects], fontsize=8)
axis.set_xticks(0.3 + np.arange(5), [*columns[:-1], "no price"])
axis.invert_yaxis()
axis.legend(fontsize=8, loc="lower left")
