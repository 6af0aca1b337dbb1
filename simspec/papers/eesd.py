"""Tables 4 to 8 and Figures 4 and 5 of EESD (arXiv 2406.03853)."""

from functools import partial

import numpy as np

from simspec.output.table import Table
from simspec.papers.card import Card
from simspec.papers.claim import Inputs
from simspec.papers.recorded import MEASURED, Recorded, crossed, target_of
from simspec.papers.table import (
    MISSING,
    AtPrice,
    Cell,
    Mask,
    at,
    bundled,
    card_of,
    cells,
    learned,
    of_card,
    speed_cells,
    speed_headings,
    speedup,
)
from simspec.policies.calibrated import cali_ts
from simspec.policies.fixed import fixed
from simspec.policies.thompson import beta_ts
from simspec.policies.trees import optimal_tree
from simspec.policy.policy import Policy
from simspec.reports.tree_rows import fit_tree, priced_seconds

K = 10
"""EESD's drafting step."""
RECORDING = "tiny-early_exit-coupled"
METHODS = {
    "model": "Vanilla SD", "self_skip": "Self SD", "early_exit": "EESD", "eagle": "EAGLE",
    "glide": "GLIDE", "medusa": "Medusa", "hydra": "Hydra", "prompt_lookup": "Prompt lookup",
}  # fmt: skip
"""Drafters by their names in the papers."""
TASK_NOTE = (
    "math: GSM8K; summary: QMSum and MTS-Dialog in place of XSum. HM in per cent. "
    "Speedups over plain decoding, replayed."
)
LAYERS_NOTE = (
    "Draft steps of ablations are priced by their layers, from the measured early exit "
    "of one layer after the first."
)


def table_4(inputs: Inputs) -> Table:
    """Ablations of EESD's components at K = 10."""
    recorded = bundled(inputs, "early_exit", RECORDING)
    vanilla = bundled(inputs, "model", "tiny-model-coupled")
    full, bare, text = (
        of_card(inputs, f"early_exit-{name}") for name in ("n1-x1", "n1-x0", "text")
    )
    beta = beta_ts(K=K)
    methods: list[tuple[str, str, AtPrice, Policy]] = [
        ("Vanilla SD", "tiny-model-coupled", vanilla, fixed(K)),
        ("EESD (Beta-TS)", "early_exit-n1-x1", full, beta),
        ("w/o Early-exiting Layer", "early_exit-n1-x0", bare, beta),
        ("w/o Self-Distillation", "early_exit-text", text, beta),
        ("w/o TS", "early_exit-n1-x1", full, fixed(K)),
        ("EESD (Beta-TS)", RECORDING, recorded, beta),
        ("EESD (Cali-TS)", RECORDING, recorded, cali_ts(predictor="theta", K=K)),
        ("w/o Sampling-Prediction", RECORDING, recorded, cali_ts(K=K, side="model")),
        ("w/o Model-Prediction", RECORDING, recorded, cali_ts(K=K, side="sampling")),
        ("w/o TS", RECORDING, recorded, fixed(K)),
    ]
    rows = [
        (method, name, *speed_cells(source, policy, inputs))
        for method, name, source, policy in methods
    ]
    return Table(
        title="EESD Table 4: components, K = 10",
        headings=("method", "drafter", *speed_headings()),
        rows=tuple(rows),
        notes=(
            TASK_NOTE,
            "Rows of early_exit-* are ablations of one budget; Cali-TS needs the predictor of the "
            "bundled early exit, which learned more, as did the vanilla drafter.",
            *learned(inputs, *(f"early_exit-{name}" for name in ("n1-x1", "n1-x0", "text"))),
            LAYERS_NOTE,
        ),
        names=2,
    )


def table_5(inputs: Inputs) -> Table:
    """Beta-TS on all drafters, against drafts of 10 tokens."""
    rows: list[tuple[Cell, ...]] = []
    for drafter, method in METHODS.items():
        for recorded in inputs.recordings.deep(drafter, K):
            longest = min(K, recorded.trace.K)
            source = partial(at, recorded)
            policies = [
                (f"{method}, K = {longest}", fixed(longest)),
                ("+ Beta-TS", beta_ts(K=longest)),
            ]
            if "theta" in dict(recorded.trace.meta.features):
                policies.append(("+ Cali-TS", cali_ts(predictor="theta", K=longest)))
            for name, policy in policies:
                rows.append((recorded.name, name, *speed_cells(source, policy, inputs)))
    return Table(
        title="EESD Table 5: Thompson sampling on other drafters",
        headings=("recording", "method", *speed_headings()),
        rows=tuple(rows),
        notes=(
            TASK_NOTE,
            "The paper has the first two. Cali-TS reads the recorded predictor where there is one, "
            "and is charged for it. Medusa and Hydra have 4 heads, and sampled recordings of "
            "the real model are 8 deep. papers/: along the outputs of the bundled recordings, "
            "priced by these; their costs to 8 tokens are continued by the last step.",
        ),
        names=2,
    )


def table_6(inputs: Inputs) -> Table:
    """Training efficiency: what a step loads, trains and takes."""
    methods = {
        "Vanilla SD": ("model", "model"),
        "Medusa": ("medusa-paper-form", "medusa"),
        "EESD": ("early_exit-n1-x1", "early_exit"),
    }
    rows: list[tuple[Cell, ...]] = []
    for method, (ablation, drafter) in methods.items():
        rows.append(("tiny", method, *_training(card_of(inputs, ablation))))
        real = [c for c in inputs.cards if c.name.endswith(f"smollm2/drafters/{drafter}.json")]
        rows += [("smollm2", method, *_training(card)) for card in real]
    return Table(
        title="EESD Table 6: training efficiency",
        headings=(
            "target", "method", "sequence length", "loaded parameters", "trained parameters",
            "batch size", "tokens learned", "time per batch", "target's features",
        ),
        rows=tuple(sorted(rows, key=lambda row: str(row[0]))),
        notes=(
            "Seconds of one step. tiny: one thread of an AMD EPYC, nothing else running; smollm2: "
            "two threads of a Xeon, as trained. The paper's are of GPUs. "
            "stored: read from disk, so that the target's layers are neither loaded nor run.",
        ),
        names=2,
    )  # fmt: skip


def _training(card: Card | None) -> tuple[str, ...]:
    if card is None:
        return (MISSING,) * 7
    data, stored = card.data, "whole_step" not in card.data
    loaded = data["parameters"]["loaded"] if stored else data["whole_step"]["loaded"]
    seconds = data["seconds_per_batch"] if stored else data["whole_step"]["seconds"]
    plan = {name: card.asked.get(f"plan.{name}") for name in ("length", "rows")}
    return (
        str(plan["length"]),
        f"{loaded:,}",
        f"{data['parameters']['trained']:,}",
        str(plan["rows"]),
        f"{data['tokens']:,}",
        f"{seconds:.2f} s",
        "stored" if stored else "computed",
    )


def table_7(inputs: Inputs) -> Table:
    """Tree attention compared with Thompson sampling and the best fixed length."""
    rows: list[tuple[Cell, ...]] = []
    for recorded in inputs.recordings.of("early_exit"):
        source = bundled(inputs, "early_exit", recorded.name)
        longest = min(K, recorded.trace.K)
        rows.append(
            (recorded.name, "EESD (Beta-TS)", *speed_cells(source, beta_ts(K=longest), inputs))
        )

        def best(priced: Recorded, chosen: Mask) -> Cell:
            lengths = [fixed(k) for k in range(min(K, priced.trace.K) + 1)]
            each = np.stack([priced.priced_seconds(length, MEASURED) for length in lengths])
            _, setting = crossed(each[..., 0], priced.trace)
            seconds = each[setting, np.arange(len(setting))]
            return speedup(priced, seconds, inputs, chosen)

        def tree(priced: Recorded, chosen: Mask) -> Cell:
            figures, *_ = fit_tree(priced.trace, priced.cost, partial(optimal_tree, None))
            return speedup(priced, priced_seconds(figures, priced.cost), inputs, chosen)

        rows.append((recorded.name, "EESD (best fixed K)", *cells(source, best)))
        rows.append((recorded.name, "+ Tree Attention", *cells(source, tree)))
    return Table(
        title="EESD Table 7: tree attention",
        headings=("recording", "method", *speed_headings()),
        rows=tuple(rows),
        notes=(
            TASK_NOTE,
            "The fixed K, and Sequoia's tree with its size, are chosen on the other half of the "
            "prompts, plain decoding among both. A tree takes the place of Thompson sampling. The "
            "engine resumes a tree after the shared layers of the rows that drafting has passed; "
            "its leaves take one more small pass, and no gain shows on the embedded target "
            "(docs/costs.md). At these recordings' measured costs, a tree no larger than the "
            "longest chain is priced as verified after one, and a larger tree as passing all "
            "layers.",
        ),
        names=2,
    )


def table_8(inputs: Inputs) -> Table:
    """Seconds of the parts of all rounds, at measured costs."""
    rows: list[tuple[Cell, ...]] = []
    for recorded in inputs.recordings.of("early_exit"):
        if "theta" not in dict(recorded.trace.meta.features):
            continue
        for name, policy in (
            ("EESD (+Beta-TS)", beta_ts(K=K)),
            ("EESD (+Cali-TS)", cali_ts(predictor="theta", K=K)),
        ):
            parts = phases(recorded, policy, inputs)
            rows.append((recorded.name, name, *(f"{part:.3f} s" for part in (*parts, sum(parts)))))
    return Table(
        title="EESD Table 8: time by phase",
        headings=("recording", "method", "Drafting", "Verification", "Sampling", "Others", "total"),
        rows=tuple(rows),
        notes=(
            "Modelled seconds of all 120 prompts at measured costs. Sampling: reading theta; the "
            "draws themselves are not measured apart.",
        ),
        names=2,
    )


def phases(recorded: Recorded, policy: Policy, inputs: Inputs) -> tuple[float, ...]:
    """(drafting with catching up, verification, reading features, overhead), seconds."""
    cost, parts = MEASURED.of(recorded.cost), np.zeros(4)
    seeds = range(inputs.seed, inputs.seed + (inputs.draws if policy.random else 1))
    for seed in seeds:
        rounds = recorded.rounds(policy, seed)
        whole, charged = (c.seconds(rounds).sum() for c in (cost, cost.reading(policy.reads)))
        verification = cost.verify[rounds.drafted].sum()
        others = cost.overhead * len(rounds)
        parts += (whole - verification - others, verification, charged - whole, others)
    return tuple(float(part) / len(seeds) for part in parts)


def figure_4(inputs: Inputs) -> Table:
    """The first N layers, with one layer after them."""
    rows = [
        (
            f"N = {n}",
            share(inputs, n),
            *speed_cells(of_card(inputs, f"early_exit-n{n}-x1"), beta_ts(K=K), inputs),
        )
        for n in (1, 2, 3)
    ]
    return Table(
        title="EESD Figure 4: the first N layers, Beta-TS",
        headings=("N", "of the target's layers", *speed_headings()),
        rows=tuple(rows),
        notes=(
            TASK_NOTE,
            LAYERS_NOTE,
            *learned(inputs, *(f"early_exit-n{n}-x1" for n in (1, 2, 3))),
        ),
    )


def share(inputs: Inputs, n: int) -> str:
    """N over the number of the target's layers."""
    card = card_of(inputs, f"early_exit-n{n}-x1")
    target = None if card is None else target_of(card.target)
    return MISSING if target is None else f"{n / target.layers:.0%}"


def figure_5(inputs: Inputs) -> Table:
    """New layers after the first."""
    rows = [
        (str(x), *speed_cells(of_card(inputs, f"early_exit-n1-x{x}"), beta_ts(K=K), inputs))
        for x in (0, 1, 2)
    ]
    return Table(
        title="EESD Figure 5: layers after the first, Beta-TS",
        headings=("new layers", *speed_headings()),
        rows=tuple(rows),
        notes=(
            TASK_NOTE,
            LAYERS_NOTE,
            *learned(inputs, *(f"early_exit-n1-x{x}" for x in (0, 1, 2))),
            "Without a layer the head alone is trained.",
        ),
    )


TABLES = {
    "eesd-4": table_4,
    "eesd-5": table_5,
    "eesd-6": table_6,
    "eesd-7": table_7,
    "eesd-8": table_8,
    "eesd-figure-4": figure_4,
    "eesd-figure-5": figure_5,
}
