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
# # 7. Serving
#
# A server decodes many sequences at once, logs what it sees, and reads its settings from a file.
# This notebook goes that way once: what may be concluded from a log, whether a figure of one draft
# length holds for another, where drafting stops paying as the batch grows, and the line that an
# engine reads in the end.
#
# Files that servers would have written are written here, from a replay, in the published form. So
# the truth behind each log is known.

# %%
import json
import os
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import simspec
from simspec.cost.table import load_cost
from simspec.engines import Export, Import
from simspec.engines.exports import lengths_by_batch, read_vllm, write_export
from simspec.engines.import_report import depth_counts, depth_curve, length_at, not_concluded
from simspec.engines.imports import read_import
from simspec.numerics import stats
from simspec.policies import fixed
from simspec.published import FOLDER
from simspec.reports.batches import BatchPlan, batch_rows, crossings
from simspec.trace.acceptance import depth_acceptance
from simspec.trace.recordings import CHECKOUT

FAST = os.environ.get("SIMSPEC_FAST") == "1"  # fewer sizes and resamples; the suite runs it so
plt.rcParams |= {
    "figure.dpi": 80,
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
COLOURS = plt.get_cmap("tab10").colors

smollm2 = CHECKOUT / "smollm2"
paths = {
    f"{drafter}, {rule}": smollm2 / rule / f"{drafter}.parquet"
    for rule in ("greedy", "coupled")
    for drafter in ("eagle", "prompt_lookup")
}
traces = {name: simspec.load_trace(path) for name, path in paths.items()}
name = "eagle, greedy"
trace = traces[name]
folder = tempfile.TemporaryDirectory()
place = Path(folder.name)
for each, one in traces.items():
    print(f"{each}: {one.sequences} sequences, {one.rows} tokens, K up to {one.K}")

# %% [markdown]
# ## Three kinds of log
#
# SpecDecode-Bench logs the accepted length from **every** position: that is a recording, and any
# chain policy replays on it. vLLM's detailed responses log every round that was really made: its
# outcome is known up to what was drafted. llama.cpp's timings log two sums.
#
# We write all three, for a server that drafts four tokens, and ask each for the accepted length at
# several draft lengths.
#
# **Look for:** who answers, and the reason of those who do not. An answer where there is none would
# be a wrong setting.


# %%
def positions(trace):
    """SpecDecode-Bench's JSON lines: tokens emitted, bonus included, if a round starts there."""
    for s, (start, end) in enumerate(zip(trace.offset[:-1], trace.offset[1:])):
        prompt = trace.prompt[trace.prompt_offset[s] : trace.prompt_offset[s + 1]]
        yield {
            "id": trace.meta.ids[s],
            "prompt_token_ids": prompt.tolist(),
            "generated_token_ids": trace.token[start:end].tolist(),
            "acc_eagle": {"acc_len": (trace.run[start:end].astype(int) + 1).tolist()},
        }


def responses(trace, K):
    """vLLM's responses with detailed metrics: a server drafts K tokens, whatever they are."""
    rounds = simspec.replay(trace, fixed(K))
    for s, (start, end) in enumerate(zip(rounds.offset[:-1], rounds.offset[1:])):
        accepted = rounds.accepted[start:end].tolist()
        drafted = [K] * len(accepted)
        metrics = {
            "mean_acceptance_length": 1 + sum(accepted) / len(drafted),
            "draft_acceptance_rate": sum(accepted) / sum(drafted),
            "num_spec_steps": len(drafted),
            "num_accepted_draft_tokens": sum(accepted),
            "num_draft_tokens": sum(drafted),
            "num_spec_tokens": K,
            "per_step_accepted": accepted,
            "per_step_drafted": drafted,
        }
        yield {"id": trace.meta.ids[s], "metrics": {"speculative_decoding": metrics}}


def timings(trace, K):
    """llama.cpp's responses: drafted and accepted tokens of a request."""
    for response in responses(trace, K):
        metrics = response["metrics"]["speculative_decoding"]
        accepted = metrics["num_accepted_draft_tokens"]
        sums = {"draft_n": metrics["num_draft_tokens"], "draft_n_accepted": accepted}
        sums |= {"predicted_n": accepted + metrics["num_spec_steps"], "predicted_ms": 1.0}
        yield {"id": response["id"], "timings": sums}


def written(name, lines):
    file = place / name
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


logs = {
    "specdecode-bench": written("positions.jsonl", positions(trace)),
    "vllm-requests": written("responses.jsonl", responses(trace, 4)),
    "llamacpp-timings": written("timings.jsonl", timings(trace, 4)),
}
ends = {"specdecode-bench": trace.meta.end_tokens}
imports = {
    form: read_import(Import(form, (file,), end_token=ends.get(form, ())))
    for form, file in logs.items()
}
for form, found in imports.items():
    print(f"{form}: {type(found).__name__}")
    for K in (2, 4, 6):
        try:
            (length,) = length_at(found, K).values()
        except ValueError as error:
            print(f"  K = {K}: refused: {error}")
        else:
            print(f"  K = {K}: {length:.3f} tokens a round")
    for what, why in not_concluded(found).items():
        print(f"  not concluded, {what}: {why}")

# %% [markdown]
# ## The imported recording
#
# It holds no signals and no costs, but every fixed K replays on it. Left: accepted length of the
# recording itself and of its import. Right: a policy that reads no signals, at any price.
#
# **Look for:** one line in place of two.

# %%
(imported,) = imports["specdecode-bench"].traces.values()
lengths = range(1, imported.K + 1)
own, theirs = (
    [one.rows / len(simspec.replay(one, fixed(k))) for k in lengths] for one in (trace, imported)
)
apart = max(abs(a / b - 1) for a, b in zip(own, theirs))
assert apart < 0.01
figure, axes = plt.subplots(1, 2, figsize=(9, 3))
axes[0].plot(lengths, own, color=COLOURS[0], lw=4, alpha=0.4, label="recording")
axes[0].plot(lengths, theirs, "--", color="black", label="imported")
axes[0].set(xlabel="K", ylabel="tokens a round")
axes[0].legend(fontsize=8)
prices = (0.02, 0.05, 0.1, 0.2)
for colour, label in zip(COLOURS, ("cost_ts", "goodput", "oracle")):
    tables = (simspec.sweep(imported, [label], c, progress=False) for c in prices)
    speedups = [table.speedup.mean() for table in tables]
    axes[1].plot(prices, speedups, "o-", ms=4, color=colour, label=label)
    print(f"{label}:", ", ".join(f"c = {c:g} {value:.3f}" for c, value in zip(prices, speedups)))
axes[1].set(xlabel="c", ylabel="speedup", title="on the imported recording")
axes[1].legend(fontsize=8)
print(f"accepted lengths differ by {apart:.2%} at most")

# %% [markdown]
# ## What rounds of one K know
#
# The rounds of vLLM's log give acceptance by depth, where a fully accepted draft is censored: what
# would have come next is unknown (Kaplan-Meier; bars are 95% intervals over requests). Three
# servers, that draft 2, 4 and 8 tokens, log three curves of the same drafter on the same texts.
#
# **Look for:** the first depth. Longer drafts skip the easy tokens, so their rounds begin at harder
# ones, and the same drafter looks worse. The dotted line counts all rows, where no round skips any.

# %%
figure, axis = plt.subplots(figsize=(6.4, 3.4))
for shift, K in enumerate((2, 4, 8)):
    log = read_import(Import("vllm-requests", (written(f"{K}.jsonl", responses(trace, K)),)))
    (counts,) = depth_counts(log).values()
    points = depth_curve(counts)
    depth = np.array([point.depth for point in points]) + 0.08 * (shift - 1)
    marginal = np.array([point.marginal for point in points])
    error = [
        marginal - [point.low for point in points],
        [point.high for point in points] - marginal,
    ]
    axis.errorbar(
        depth,
        marginal,
        yerr=error,
        fmt="o-",
        ms=3,
        color=COLOURS[shift],
        capsize=2,
        label=f"K = {K}",
    )
    first = points[0]
    print(
        f"K = {K}: first token accepted {first.marginal:.3f} [{first.low:.3f}, {first.high:.3f}] "
        f"of {first.tried} rounds"
    )
whole = np.cumprod(depth_acceptance(trace)[1][:8])
axis.plot(range(1, 9), whole, ":", color="black", label="all rows")
print(f"all rows: {whole[0]:.3f}")
axis.set(xlabel="depth", ylabel="all accepted down to here", ylim=(0, None))
axis.legend(fontsize=8)

# %% [markdown]
# ## Does a figure of one K hold for another?
#
# The error of accepted lengths that are computed from what was measured elsewhere: a table of
# acceptance by depth measured at K = 8, one rate for all depths from K = 1 or 3, and the mean over
# all positions. Grey crosses are the same errors on accepted lengths that others published.
#
# **Look for:** the sign of the table's error (blue), here and in the published figures, and the
# size of the others. A stand-in has to be measured at the K that will run.

# %%
RATES = np.linspace(0, 1, 4001)


def counts(trace, longest=8):
    """{K: float64[S, 1 + K]}: rounds of fixed:K, and those that accept at least 1, .., K tokens.

    Rounds count where the budget allows the longest draft, so those of all K are comparable; K = 0
    holds rows, and the drafts from them, in place of rounds.
    """
    sequence = np.repeat(np.arange(trace.sequences), np.diff(trace.offset))
    counted = trace.budget[sequence] - (np.arange(trace.rows) - trace.offset[sequence]) > longest
    replays = {K: simspec.replay(trace, fixed(K)) for K in range(1, longest + 1)}
    outcomes = {K: (rounds.row, rounds.accepted) for K, rounds in replays.items()}
    outcomes[0] = np.arange(trace.rows), trace.run
    found = {}
    for K, (row, accepted) in outcomes.items():
        flags = np.column_stack((np.ones(len(row)), accepted[:, None] > np.arange(K or longest)))
        found[K] = np.zeros((trace.sequences, flags.shape[1]))
        np.add.at(found[K], sequence[row], flags * counted[row][:, None])
    return found


def same_rate(length, measured_at, K):
    """The accepted length of K where one rate for all depths gives `length` at another K."""
    by_rate = [np.power.outer(RATES, np.arange(k + 1)).sum(axis=1) for k in (measured_at, K)]
    return np.interp(length, *by_rate)


def errors(trace, K, longest=8):
    """{estimate: its accepted length at K over the replayed one, less 1}, with intervals."""
    of = counts(trace, longest)
    measured = {f"table@{longest}": (longest, K), "iid@1": (1, 1), "iid@3": (3, 3)}
    measured["teacher-forced"] = (0, K)
    found = {}
    for name, (M, depth) in measured.items():

        def error(totals, name=name, M=M):
            rounds, accepted, other, more = np.moveaxis(totals, -1, 0)
            length = 1 + more / other
            length = same_rate(length, M, K) if name.startswith("iid") else length
            return length / (1 + accepted / rounds) - 1

        parts = (
            of[K][:, 0],
            of[K][:, 1:].sum(axis=1),
            of[M][:, 0],
            of[M][:, 1 : depth + 1].sum(axis=1),
        )
        columns = np.stack(parts, axis=-1)
        found[name] = stats.estimate(columns, error, resamples=500 if FAST else 2000)
    return found


rows = {each: {K: errors(one, K) for K in range(1, 9)} for each, one in traces.items()}
published = []
for curve in json.loads((FOLDER / "lengths.json").read_text("utf-8")):
    tables = [e for e in curve.get("printed", ()) if e["stand_in"] == "table"]
    printed = [(e["K"], e["error"]) for e in tables if e.get("measured_at", 0) > e["K"]]
    marginals = {int(K): shares for K, shares in curve.get("marginals", {}).items()}
    whole = {K: 1 + sum(shares) for K, shares in marginals.items() if len(shares) == K}
    lengths = dict(zip(curve["K"], curve["accepted_length"])) | whole
    for M, shares in marginals.items():
        smaller = [K for K in lengths if K < M and len(shares) >= K]
        printed += [(K, (1 + sum(shares[:K])) / lengths[K] - 1) for K in smaller]
    published += [(K, 100 * error) for K, error in printed]
figure, axes = plt.subplots(1, 4, figsize=(10, 3.2), sharey=True)
for axis, each in zip(axes, traces):
    at = sorted(rows[each])
    for colour, stand_in in zip(COLOURS, rows[each][1]):
        held = [rows[each][K][stand_in] for K in at]
        values = np.array([100 * error.value for error in held])
        limits = [[100 * getattr(error, side) for error in held] for side in ("low", "high")]
        axis.plot(at, values, "o-", ms=3, color=colour, label=stand_in)
        axis.fill_between(at, *limits, color=colour, alpha=0.15)
        worst = int(abs(values).argmax())
        print(f"{each}: {stand_in} is furthest off at K = {at[worst]}, {values[worst]:+.1f}%")
    axis.plot(*zip(*published), "x", ms=4, color="grey", label="tables, published")
    axis.axhline(0, color="grey", lw=0.8)
    axis.set(xlabel="K", title=each, ylim=(-25, 45))
    axis.title.set_fontsize(9)
axes[0].set_ylabel("error of the accepted length, %")
axes[0].legend(fontsize=6)

# %% [markdown]
# ## The batch
#
# Sequences run in lock step: a pass verifies the tokens of all, and a step waits for the longest
# draft in it. The costs are of others: vLLM 0.26 measured on an H200, with Llama-3.1-8B's shape, an
# EAGLE-3 head and 1,024 tokens of context (docs/gpu.md). They answer a question: what if this
# acceptance were theirs?
#
# **Look for:** the gain falling as the batch grows, and the longest draft falling first.

# %%
measured = load_cost("h200-vllm-0.26")
plan = BatchPlan(batch=measured.batch, context=measured.context)
found = batch_rows(trace, measured, plan)
figure, axis = plt.subplots(figsize=(5, 3.2))
for colour, K in zip(COLOURS, (1, 3, 5, 7)):
    curve = [row.fixed(K).value for row in found]
    axis.plot(measured.batch, curve, "o-", ms=3, color=colour, label=f"K = {K}")
best = ", ".join(f"{row.batch}: {row.best}" for row in found)
(crossing,) = crossings(trace, measured, plan, found)
ends = f"up to batch {crossing.last.batch}" if crossing.last else "in no batch"
print(f"best K by batch {best}; drafting pays {ends} of those asked")
axis.axhline(1, color="grey", lw=0.8)
axis.set_xscale("log", base=2)
axis.set(xlabel="batch", ylabel="modeled speedup")
axis.legend(fontsize=8)

# %% [markdown]
# ## The line that an engine reads
#
# An export chooses the length by replay at each batch size, writes the engine's own form, and reads
# it again by the engine's own rules. The costs are the H200's, by batch. vLLM captures graphs for a
# number of rows, 512 unless told otherwise: batch x (K + 1) has to fit, or the batch runs without a
# graph.
#
# **Look for:** where the captured rows, and not the best speedup, decide the length.

# %%
sources = (str(paths[name]),)
figure, axis = plt.subplots(figsize=(6.4, 3))
for colour, captured in zip(COLOURS, (0, 128)):
    write_export(
        Export(
            "vllm",
            sources,
            place / "vllm.json",
            "h200-vllm-0.26",
            captured=captured,
            method="eagle3",
            draft_model="DRAFT",
        )  # fmt: skip
    )
    text = (place / "vllm.json").read_text()
    config = read_vllm(text)
    batches = np.arange(1, 65)
    ranges = config["num_speculative_tokens_per_batch_size"]
    label = f"{captured} captured rows" if captured else "any number of rows"
    drafted = lengths_by_batch(ranges, config["num_speculative_tokens"], 64)[1:]
    axis.step(
        batches, drafted, where="post", color=colour, lw=4 - 2.5 * bool(captured), label=label
    )
    print(f"{label}: {text.strip()}")
axis.set_xscale("log", base=2)
axis.set(xlabel="batch", ylabel="K that vLLM drafts", ylim=(0, None))
axis.legend(fontsize=8)

# %% [markdown]
# ## The same choice for other engines
#
# Their forms differ more than their meaning: SGLang counts the root of a draft as a token,
# llama.cpp takes flags of one length, and an engine that simulates reads acceptance in place of a
# length.
# Beside each file lies its provenance, with the predicted speedup and its interval.

# %%
exports = {
    "sglang": {"method": "EAGLE3", "batch_sizes": "1"},
    "llamacpp": {"method": "draft-eagle3", "batch_sizes": "1"},
    "vllm-synthetic": {"method": "eagle3", "batch_sizes": "1"},
}
origins = {}
for form, given in exports.items():
    out = place / f"{form}.txt"
    settings = Export(form, sources, out, "h200-vllm-0.26", draft_model="DRAFT", **given)
    origins[form], _ = write_export(settings)
    print(f"{form}:", " / ".join(out.read_text().split("\n")).strip(" /"))
for predicted in origins["sglang"]["predicted"]:
    gain = predicted["speedup"]
    print(
        f"predicted at batch {predicted['batch']}: {predicted['policy']}, {gain['value']:.3f} "
        f"[{gain['low']:.3f}, {gain['high']:.3f}]"
    )

# %% [markdown]
# ## What an engine would not tell
#
# Engines clamp, sort or ignore what they cannot use, often without a word. The reader refuses it.

# %%
base = {"method": "eagle3", "model": "DRAFT", "num_speculative_tokens": 3}
key = "num_speculative_tokens_per_batch_size"
wrong = {
    "a length above the longest": {key: [[1, 8, 5], [9, 64, 1]]},
    "a gap between ranges": {key: [[1, 8, 3], [16, 64, 1]]},
    "ranges out of order": {key: [[9, 64, 1], [1, 8, 3]]},
    "a number as text": {"num_speculative_tokens": "3"},
}
for what, change in wrong.items():
    try:
        read_vllm(json.dumps(base | change))
    except ValueError as error:
        print(f"{what}: {error}")
    else:
        raise AssertionError(f"{what} was accepted")
folder.cleanup()
