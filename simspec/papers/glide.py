"""GLIDE with a CAPE (arXiv 2402.02082): Tables 1 and 2, Figures 4 and 7, and claims 11 and 13."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np

from simspec.numerics.formulas import expected_speedup
from simspec.numerics.stats import difference, quotient
from simspec.output.frames import DataFrame, frame
from simspec.papers.claims import EAGLE_NOTE, Claim, Effect, each, longer, slower
from simspec.papers.recorded import (
    PRICES,
    Array,
    Recorded,
    Recordings,
    crossed,
    figure,
    learned,
    speedup,
    tasks_of,
)  # fmt: skip
from simspec.policies.fixed import fixed
from simspec.policies.trees import cape, dynamic_tree
from simspec.policy.policy import Policy
from simspec.replay.sweep import ROUNDS, TOKENS, priced_seconds, prompt_figures
from simspec.trace.acceptance import by_depth
from simspec.tree.tree import TreePolicy

GAMMA = 5
"""GLIDE's draft length (section 5)."""
PRINTED = {"model": "7.7; 51.6, 1.46; 34.8, 1.11", "glide": "6.7; 64.8, 1.97; 67.0, 2.06"}
"""Vicuna-7B in Table 1: cost; GSM8K; Code-Python. The vanilla drafter is LLAMA-68m."""
RATE_NOTE = (
    "Share of drafted tokens accepted, of those whose predecessors were; drafts of 5 from every "
    "position of sampled outputs."
)


def table_1(recordings: Recordings) -> DataFrame:
    """Cost coefficient, acceptance rate and expected speedup, under speculative sampling."""
    rows = []
    for recorded in recordings.sampled("model", "glide", "eagle", "early_exit"):
        recorded = recorded.at(None)
        accepted, tried = (x[:, 0] for x in by_depth(recorded.trace))
        c = float(recorded.cost.draft[1] / recorded.cost.baseline)

        def expected(totals: Array, c: float = c) -> Array:
            speed: Array = expected_speedup(quotient(totals), GAMMA, c)
            return speed

        row: dict[str, Any] = {"recording": recorded.name, "cost": 100 * c}
        for task, names in {"math": ("math",), "code": ("code",), "all": ()}.items():
            chosen = tasks_of(recorded, names)
            row[f"{task}: acc."] = figure(100 * accepted[chosen], tried[chosen])
            row[f"{task}: E(spd.)"] = figure(accepted[chosen], tried[chosen], of=expected)
        row["all: replayed"] = speedup(recorded, recorded.seconds(fixed(GAMMA)))
        rows.append(row | {"paper, Vicuna-7B": PRINTED.get(recorded.drafter)})
    return frame(
        rows, title="GLIDE Table 1: cost, acceptance rate and expected speedup, 5 tokens",
        formats={"cost": ".1f"} | {f"{task}: acc.": ".1f" for task in ("math", "code", "all")},
        notes=(
            "Per cent, rejection rule at temperature 1: the mean of min(1, q/p) over the target's "
            "tokens, which is the sum of min(p, q). E(spd.): section 5.1's formula at that rate, "
            "flat verification. Replayed: one draw, measured costs, where wide passes cost more. "
            "eagle is of an earlier training. The paper also has Finance-Alpaca and Spider.",
            EAGLE_NOTE,
        ),
    )  # fmt: skip


def rates(title: str, names: Sequence[str], note: str, recordings: Recordings) -> DataFrame:
    """Table 2, Figures 4 and 7: acceptance rates of ablations by task, the last less the first."""
    rows, tasks = [], {"all": np.full(1, True)}
    for recorded in recordings.of("model"):
        if recorded.name == "tiny-model-coupled":  # whose outputs the ablations were evaluated on
            tasks = {
                task: tasks_of(recorded, (task,)) for task in dict.fromkeys(recorded.trace.task)
            }
            tasks["all"] = tasks_of(recorded)
    for cards in recordings.cards(*names)[:1]:
        for task, chosen in tasks.items():
            each = [card.sums[chosen][:, [0, 2]].T for card in cards]
            gain = figure(*each[-1], *each[0], of=difference)
            rows.append(
                {"task": task} | {n: figure(*x) for n, x in zip(names, each)} | {"gain": gain}
            )
    formats = dict.fromkeys(names, ".3f") | {"gain": "+.3f"}
    notes = RATE_NOTE, note, learned(recordings, *names)
    return frame(rows, title=title, formats=formats, notes=notes)


def tokens_and_rounds(recorded: Recorded, policy: Policy | TreePolicy) -> Array:
    """float64[S, 2]: committed tokens and rounds of each prompt."""
    figures = prompt_figures(recorded.trace, policy, recorded.at(None).cost)
    return figures[:, [TOKENS, ROUNDS]]


BLIND, TEXT, *LAYERS = "glide-blind", "glide-text", *(f"glide-layer{n}" for n in (0, 5, 9))
TABLES: dict[str, Callable[[Recordings], DataFrame]] = {
    "glide-1": table_1,
    "glide-2": partial(
        rates, "GLIDE Table 2: acceptance rate without and with outputs of the target to learn",
        (TEXT, LAYERS[-1]),
        "The paper, without distillation and with: GSM8K 64.8 and 65.0%, Finance-Alpaca 63.2 and "
        "63.9, Spider 55.7 and 56.0, Code-Python 67.0 and 67.5. Here half of what the target wrote "
        "is greedy, and repeats itself.",
    ),
    "glide-figure-4": partial(
        rates, "GLIDE Figure 4: acceptance rate without and with the target's cache",
        (BLIND, LAYERS[-1]), "The paper's gain is 5.4 to 23.5 percentage points.",
    ),
    "glide-figure-7": partial(
        rates, "GLIDE Figure 7: acceptance rate by layer of the target's cache", LAYERS,
        "The target has 10 layers.",
    ),
}  # fmt: skip


def upper_layers(recordings: Recordings) -> list[Effect]:
    """Claim 11b: accepted length of GLIDE reading an upper layer less that of a lower one."""
    pairs = combinations(LAYERS, 2)
    return [effect for lower, upper in pairs for effect in longer(upper, lower, recordings)]


def prompt_seconds(recorded: Recorded, *policies: Policy | TreePolicy) -> list[Array]:
    """float64[S, 1 + R] of each policy: seconds at the recording's price and its replicates."""
    figures = (prompt_figures(recorded.trace, policy, recorded.cost) for policy in policies)
    return [priced_seconds(of) for of in figures]


def cape_over_chain(recorded: Recorded) -> Effect | None:
    """Claim 13a: how much slower a chain of 5 is than CAPE."""
    if recorded.trace.K < GAMMA or recorded.trace.rank is None:
        return None
    ways = prompt_seconds(recorded, fixed(GAMMA), cape("section", GAMMA))
    return slower("a chain of 5 over CAPE's", recorded, *ways)


def beams_over_chain(recordings: Recordings) -> list[Effect]:
    """Claim 13b: how much slower recorded beams are than a chain as deep; of greedy recordings
    alone, since beams ignore the noise of the coupled rule."""
    found, counted = [], recordings.searched("glide", "model", "eagle", "early_exit")
    for price, recorded in product(PRICES, counted):
        trace = recorded.trace
        if trace.meta.rule == "greedy" and trace.meta.tree and recorded.has_price(price):
            at, (_, levels) = recorded.at(price), trace.meta.tree
            ways = prompt_seconds(at, dynamic_tree("beams"), fixed(levels))
            found.append(slower("beams over a chain as deep", at, *ways))
    return found


def sets_by_confidence(recorded: Recorded) -> Effect | None:
    """Claim 13c: how much slower sets of one size are than CAPE's, whatever size 1 to 7 is fastest
    on the other prompts."""
    if recorded.trace.K < GAMMA or recorded.trace.rank is None:
        return None
    alike = np.stack(prompt_seconds(recorded, *(cape(size, GAMMA) for size in SIZES)))
    ways = crossed(alike, recorded.trace)[0], *prompt_seconds(recorded, cape("section", GAMMA))
    return slower("sets of one size over CAPE's", recorded, *ways)


SIZES = (1, 3, 5, 7)
"""Siblings of a chain's token, those of CAPE's sets."""
CLAIMS = (
    Claim(
        "11a", "Reading the target's cache (its top layer) raises acceptance.", "Figure 4",
        partial(longer, LAYERS[-1], BLIND),
    ),
    Claim(
        "11b", "Upper layers' caches raise acceptance more.", "Figure 7", upper_layers,
    ),
    Claim(
        "13a", "CAPE pays.", "Figure 6", each(cape_over_chain, "glide", "model"),
    ),
    Claim(
        "13b", "Beam search costs more than it pays.", "Table 3",
        beams_over_chain,
    ),
    Claim(
        "13c", "Sets sized by confidence beat sets of one size.", "section 4.2",
        each(sets_by_confidence, "glide", "model"),
    ),
)  # fmt: skip
