"""EAGLE (arXiv 2401.15077): Tables 1 to 3 and 5 to 7, Figure 10, claims 14 to 16 and 19."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from simspec.cost.table import CostTable, bundled_costs, load_cost
from simspec.numerics.stats import difference
from simspec.output.frames import DataFrame, frame
from simspec.papers.claims import (
    EAGLE_NOTE,
    PRICE_NOTE,
    Claim,
    Effect,
    each,
    longer,
    on_cards,
    on_prompts,
)  # fmt: skip
from simspec.papers.eesd import best_chain
from simspec.papers.glide import prompt_seconds, tokens_and_rounds
from simspec.papers.recorded import (
    FLAT,
    H200,
    PRICES,
    Array,
    Recorded,
    Recordings,
    ablations,
    crossed,
    figure,
    speedup,
)  # fmt: skip
from simspec.policies.fixed import fixed
from simspec.trace.acceptance import by_depth
from simspec.tree.tree import TreePolicy, published_tree

ALPHAS = range(5)
EAGLE_TREE = published_tree("eagle-25")
TREE = TreePolicy("eagle_tree", "static", tree=EAGLE_TREE)
INPUTS = ("eagle-shifted", "eagle-unshifted", "eagle-feature", "eagle-token")
"""Ablations of the draft head's inputs."""
CODE = ("code", "functions")
"""Tasks that are code: HumanEval and MBPP."""
VLLM_BATCHES = "smollm2/engines/vllm-batch.cost.json"
"""Measured steps of vLLM on a CPU, batches of 1, 4 and 16, proposals by n-grams."""
TABLE_7 = {1: "2.90x", 4: "2.76x"}


def table_1(recordings: Recordings) -> DataFrame:
    """Speedup, tau and n-alpha: Tables 1 to 3."""
    rows = []
    for recorded in recordings.of("eagle"):
        accepted, tried = by_depth(recorded.trace)
        depths = [n for n in ALPHAS if n < recorded.trace.K]
        alphas = {f"{n}-alpha": figure(accepted[:, n], tried[:, n]) for n in depths}
        rates = {n: figure(*drafted_features(recorded, (n,))) for n in depths}
        alphas |= {f"{n}-alpha, all rows": rate for n, rate in rates.items()}
        priced = [recorded.at(c) for c in filter(recorded.has_price, (None, H200))]
        speeds = {
            f"speedup, {of.regime}": speedup(of, prompt_seconds(of, TREE)[0]) for of in priced
        }
        sums = _tree_and_chain(recorded)
        taus = {"tau, tree": figure(*sums[:2]), "tau, chain": figure(*sums[2:])}
        taus["tree adds"] = figure(*sums, of=difference)
        named: dict[str, Any] = {
            "recording": recorded.name,
            "T": f"{recorded.trace.meta.temperature:g}",
        }
        rows.append(named | speeds | taus | alphas)
    return frame(
        rows, names=2, title="EAGLE Tables 1 to 3 and 5: speedup, accepted length and rates",
        formats={"tree adds": "+.2f"},
        notes=(
            "tau: tokens committed a round, by EAGLE's tree of 25 nodes and by a chain as deep; "
            "the paper's trees add 0.6 to 0.8. "
            "Speedup: of that tree; the paper has 2.1 to 3.8. "
            "n-alpha: along a chain, given that the n tokens before were accepted, as the released "
            "code counts; all rows: given that n tokens were drafted, accepted or not. In coupled "
            "recordings both models share their noise.", EAGLE_NOTE, PRICE_NOTE,
        ),
    )  # fmt: skip


def _tree_and_chain(recorded: Recorded) -> list[Array]:
    """float64[S] each: tokens and rounds of EAGLE's tree, then those of a chain as deep."""
    chain = fixed(min(EAGLE_TREE.levels, recorded.trace.K))
    return [column for p in (TREE, chain) for column in tokens_and_rounds(recorded, p).T]


def table_7(recordings: Recordings) -> DataFrame:
    """Speedup by batch, each request drafting the best chain of the other half of the prompts."""
    path = recordings.folder and recordings.folder / VLLM_BATCHES
    sources = {("vLLM on an H200, EAGLE-3", "eagle"): bundled_costs()[H200]}
    if path and path.is_file():
        sources["vLLM on a CPU, n-grams", "prompt_lookup"] = path
    rows: list[dict[str, Any]] = []
    for (name, drafter), file in sources.items():
        table = load_cost(file)
        assert isinstance(table, CostTable)
        for recorded, batch in product(recordings.counted(drafter), table.batch):
            cost = table.at(batch)
            of = replace(recorded, cost=cost.extend(max(cost.K, recorded.trace.K)))
            row: dict[str, Any] = {"steps": name, "recording": recorded.name, "batch": batch}
            for longest in (3, cost.K):
                best = crossed(of.fixed_seconds(longest, 0), recorded.trace)[0]
                row[f"best K to {longest}"] = speedup(of, best)
            rows.append(row | {"paper, Vicuna 7B, EAGLE": TABLE_7.get(batch)})
    return frame(
        rows, names=3, title="EAGLE Table 7: speedup by batch",
        notes=(
            "Steps of these batches were measured in vLLM; K up to what was measured, 0 among it. "
            "Requests of a batch draft as many tokens, and a step's time is that of all.",
            EAGLE_NOTE,
        ),
    )  # fmt: skip


TABLES: dict[str, Callable[[Recordings], DataFrame]] = {
    "eagle-1": table_1,
    "eagle-7": table_7,
    "eagle-6": lambda recordings: ablations(
        "EAGLE Table 6: accepted length by what it learned from", recordings,
        {"eagle-text": {"learned": "text"}, INPUTS[0]: {"learned": "half by the target"}},
        "The paper, tokens a round by trees: 3.62 learned from a fixed data set and 3.75 from the "
        "target's answers (speedups 2.78, 2.88).",
    ),
    "eagle-figure-10": lambda recordings: ablations(
        "EAGLE Figure 10: inputs of the draft head", recordings, {name: {} for name in INPUTS},
        "All learned the same windows. The paper shows speedups.",
    ),
}  # fmt: skip


def shifted_tokens(recordings: Recordings) -> list[Effect]:
    """Claim 14b: what shifting the token gains less what adding it unshifted gains."""

    def gain(totals: Array) -> Array:
        shifted, unshifted, feature = (totals[..., i] / totals[..., i + 1] for i in (0, 2, 4))
        second: Array = shifted - 2 * unshifted + feature
        return second

    what = "accepted length gained by shifting the token less that gained by adding it"
    return on_cards(what, recordings, *INPUTS[:3], of=gain)


def drafted_features(recorded: Recorded, depths: Sequence[int]) -> list[Array]:
    """Accepted and tried rows of each prompt, float64[S] each, with n of the drafter's features in
    the input, by depth n.

    Of all rows: the drafter's rank of the target's token is recorded past rejections too, so no
    accepted token selects the easy positions.
    """
    rank = recorded.trace.rank
    if rank is None:
        raise ValueError(f"{recorded.name} holds no rank: record it again")
    left = np.repeat(recorded.trace.offset[1:], np.diff(recorded.trace.offset))
    room = np.minimum(recorded.trace.depth, left - np.arange(recorded.trace.rows))
    start = recorded.trace.offset[:-1]
    return [
        np.add.reduceat(values.astype(np.float64), start)
        for n in depths
        for values in ((rank[:, n] == 0) & (room > n), room > n)
    ]


def alpha_gaps(
    recorded: Recorded, one: int, others: Sequence[int], all_rows: bool = False
) -> list[Effect]:
    """Claim 15: one n-alpha less others, as printed: given that the tokens before are accepted; or,
    of all rows, acceptance with n of the drafter's features in the input."""
    if all_rows and recorded.trace.rank is None:
        return []
    found, counts = [], by_depth(recorded.trace)
    for other in others:
        if other < recorded.trace.K:
            columns = [x[:, i] for i in (one, other) for x in counts]
            columns = drafted_features(recorded, (one, other)) if all_rows else columns
            what = f"{one}-alpha less {other}-alpha{', all rows' * all_rows}"
            found.append(on_prompts(what, recorded, *columns, of=difference, regime=""))
    return found


def tree_adds(recorded: Recorded) -> Effect | None:
    """Claim 16: tau of EAGLE's tree less that of the chain of its depth."""
    if EAGLE_TREE.levels > recorded.trace.K:
        return None
    what, sums = "tau of the tree less that of a chain", _tree_and_chain(recorded)
    return on_prompts(what, recorded, *sums, of=difference, regime="", unit="tokens")


def code_is_fastest(recorded: Recorded) -> list[Effect]:
    """Claim 19: the speedup of code less that of each other task, at one length for all."""
    tasks = np.array(recorded.trace.task)
    code = np.isin(tasks, CODE)
    columns = recorded.tokens * recorded.cost.baseline, best_chain(recorded, 255)[:, 0]
    found = []
    for task in dict.fromkeys(tasks[~code].tolist()) if code.any() else ():
        flags = code, tasks == task
        both = [(flag * x)[flags[0] | flags[1]] for flag in flags for x in columns]
        what = f"speedup of code less that of {task}"
        found.append(on_prompts(what, recorded, *both, of=difference, unit="speedup"))
    return found


CLAIMS = (
    Claim(
        "14a", "Features are easier to extrapolate than tokens.", "Figure 10",
        partial(longer, "eagle-feature", "eagle-token"),
    ),
    Claim("14b", "Shifted tokens gain most.", "Figure 10", shifted_tokens),
    Claim(
        "15a", "0-alpha exceeds 1-alpha, as printed.", "Tables 1 and 2",
        each(partial(alpha_gaps, one=0, others=(1,)), "eagle", prices=(FLAT,)),
    ),
    Claim(
        "15a, all rows", "A drafted feature in the input costs acceptance.", "section 5",
        each(partial(alpha_gaps, one=0, others=(1,), all_rows=True), "eagle", prices=(FLAT,)),
    ),
    Claim(
        "15b", "1-alpha to 4-alpha are nearly equal, as printed.", "Tables 1 and 2",
        each(partial(alpha_gaps, one=1, others=(2, 3, 4)), "eagle", prices=(FLAT,)), (-0.1, 0.1),
    ),
    Claim(
        "15b, all rows", "One to four drafted features cost nearly the same.", "section 5",
        each(partial(alpha_gaps, one=1, others=(2, 3, 4), all_rows=True), "eagle", prices=(FLAT,)),
        (-0.1, 0.1),
    ),
    Claim(
        "16", "Tree drafts add 0.6 to 0.8 to tau.", "section 5.3.1, Table 5",
        each(tree_adds, "eagle", prices=(FLAT,)), (0.6, 0.8),
    ),
    Claim(
        "19", "Code is accelerated most.", "section 5.1, Figure 8",
        each(code_is_fastest, "eagle", "model", prices=PRICES),
    ),
)  # fmt: skip
