"""The exam of GPU engines as tables and a picture."""

from pathlib import Path
from typing import Any

from simspec.cost.fit import PredictionErrors
from simspec.output.files import replacing
from simspec.output.names import label_text
from simspec.output.table import Table
from simspec.validation.gpu_cells import Copies, GpuCell, Waves, cost_of
from simspec.validation.gpu_exam import ENGINES, GOALS, WAYS, Exam

UNKNOWN = {
    "vllm#52362": "adaptive verification 691 to 556 tok/s at 4: target, device and how many tokens "
    "it verifies are not in the figures",
    "vllm#52992": "+184% at 64 with blocks of 16: target, device and verified tokens are not in "
    "the figures",
    "eugr/spark-vllm-docker#343": "210 tok/s at K = 4, 304 at 2: no kernel times of that device, "
    "no accepted length",
    "MiaAI-Lab GLM#139": "K = 3 faster than 7 at 1, 4 and 8: no accepted length, no kernel times "
    "of that target",
}
"""Published signs that cannot be computed, and why."""

MLX_763 = (8.47, 28.13)
"""Milliseconds to verify 1 and 8 rows of a sparse target (waybarrios/vllm-mlx#763)."""


def signs(result: Exam) -> list[dict[str, Any]]:
    """One dict a published direction: {source, published, predicted}; None: not computable."""
    kept = [i for i, fitted in enumerate(result.fitted) if not fitted]
    pairs = [(result.cells[i].speedup, result.speedups["fitted"][i]) for i in kept]
    same = sum((measured >= 1) == (found >= 1) for measured, found in pairs)
    best: dict[tuple[str, str, int], list[int]] = {}
    for i, cell in enumerate(result.cells):
        best.setdefault((cell.table, cell.task, cell.batch), []).append(i)
    several = [held for held in best.values() if len({result.cells[i].K for i in held}) > 1]
    equal = 0
    for held in several:
        measured = max(held, key=lambda i: result.cells[i].speedup)
        equal += measured == max(held, key=lambda i: result.speedups["fitted"][i])
    sparse = cost_of("qwen3-30b-a3b", "ngram", 7, ("h200", "sglang"), 1, 512)
    ratio = float(sparse.verify[7] / sparse.verify[0])
    rows = [
        ("cells that were not fitted", "pays, or does not",
         f"the same side of 1 in {same} of {len(pairs)}"),
        ("tables with several K", "the best K of a task and batch",
         f"the same in {equal} of {len(several)}"),
        ("waybarrios/vllm-mlx#763",
         f"8 rows of a sparse target take {MLX_763[1] / MLX_763[0]:.1f} times one row",
         f"{ratio:.1f} times (Qwen3-30B-A3B on an H200)"),
    ]  # fmt: skip
    known = [dict(zip(("source", "published", "predicted"), row)) for row in rows]
    return known + [
        {"source": name, "published": text.partition(": ")[0], "predicted": None,
         "reason": text.partition(": ")[2]}
        for name, text in UNKNOWN.items()
    ]  # fmt: skip


def reason(cell: GpuCell) -> str:
    """The known cause of a cell's error, or a dash."""
    if cell.target == "qwen3-30b-a3b":
        return "kernel times spread rows over experts: plain steps too are 0.7 of their kernels"
    if cell.fixed > 0.1 * cell.plain_step > 0:
        return "its longer plain step is taken as prompts, but drafting shortens waiting too"
    if cell.table == "draft-length-audit, 8192 tokens" and cell.task == "deepseek":
        return "published: K = 4 faster than K = 3, a single run of 2 seconds"
    if cell.table == "vllm-16035":
        return "another version than #20780, whose constants price it"
    if cell.table == "draft-length-audit" and cell.batch == 8:
        return "K <= 2 and K >= 3 are two runs, whose plain decoding differs by 14%"
    if isinstance(cell.run, Waves):
        return "prompts of one acceptance assumed: uneven ones drain longer"
    if isinstance(cell.run, Copies) and cell.batch >= 64:
        return "one constant a row: sampling and attention are not linear in rows"
    return "constants of another target" if cell.engine == "SGLang" else "-"


WORTH = 0.05
"""Errors from which the worst cell of a table is named."""


def worst_cells(result: Exam) -> list[tuple[int, float]]:
    """(index, error) of the worst cell of each table that is off by WORTH, largest first."""
    worst: dict[str, tuple[int, float]] = {}
    for held in result.groups().values():
        for i, error in zip(held, result.errors("fitted", held)):
            table = result.cells[i].table
            if abs(error) > max(abs(worst.get(table, (0, 0.0))[1]), WORTH):
                worst[table] = i, error
    return sorted(worst.values(), key=lambda pair: -abs(pair[1]))


def exam_tables(result: Exam) -> list[Table]:
    """Errors by group, the worst cells, causes and signs."""
    rows = []
    for name, held in result.groups().items():
        found = {way: PredictionErrors.of(result.errors(way, held)) for way in WAYS}
        own = found["fitted"]
        rows.append(
            (name, own.count, *(f"{found[way].median:.1%}" for way in WAYS), f"{own.p90:.1%}",
             f"{own.worst:.1%}",
             ", ".join(f"{goal:.0%} {way}" for way, goal in GOALS.get(name, {}).items()) or "-")
        )  # fmt: skip
    named = [
        (result.cells[i].name, f"{result.cells[i].speedup:.2f}",
         f"{result.speedups['fitted'][i]:.2f}", f"{error:+.1%}", reason(result.cells[i]))
        for i, error in worst_cells(result)
    ]  # fmt: skip
    notes = [
        f"{sum(result.fitted)} of {len(result.cells)} cells fit two constants an engine and are "
        "left out: gsm8k, or the only task, at the ends of batch and K",
        "kernels alone: kernel times and plain decoding's published speed; no fit: a round that "
        "drafts takes the host's share of a plain step twice; other engines: constants fitted to "
        "their cells",
        *result.notes,
    ]
    tables = [
        Table(
            ("median error of speedups", "cells", *WAYS, "90th", "worst", "goals"),
            rows, notes=notes, optional=("goals", "90th", "kernels alone"),
        ),
        Table(("worst cell of a table", "measured", "predicted", "error", "reason"), named,
              optional=("reason",)),
    ]  # fmt: skip
    if result.causes:
        causes = [
            (c["reading"], c["count"], f"{c['median']:.1%}", f"{c['worst']:.1%}")
            for c in result.causes
        ]
        tables.append(Table(("the audit's batches, read as", "cells", "median", "worst"), causes))
    return tables + [
        Table(
            ("direction", "published", "predicted"),
            [
                (s["source"], s["published"], s["predicted"] or f"not computable: {s['reason']}")
                for s in signs(result)
            ],
            names=3,
        )
    ]


def plot_exam(result: Exam, path: Path) -> None:
    """Write a PNG: predicted against published speedups, a panel for each batch size."""
    from matplotlib.figure import Figure

    batches = sorted({cell.batch for cell in result.cells})
    figure = Figure(figsize=(3.2 * len(batches), 3.8), layout="constrained")
    axes = figure.subplots(1, len(batches), squeeze=False)[0]
    engines = list(ENGINES)
    for panel, batch in zip(axes, batches):
        held = [i for i, cell in enumerate(result.cells) if cell.batch == batch]
        ends = [f(result.cells[i].speedup for i in held) for f in (min, max)]
        panel.plot(ends, ends, color="grey", lw=0.8, ls=":")
        for n, engine in enumerate(engines):
            for fitted, face in ((False, f"C{n}"), (True, "none")):
                chosen = [
                    i for i in held
                    if result.cells[i].engine == engine and result.fitted[i] == fitted
                ]  # fmt: skip
                panel.scatter(
                    [result.cells[i].speedup for i in chosen],
                    [result.speedups["fitted"][i] for i in chosen],
                    s=14, facecolors=face, edgecolors=f"C{n}",
                    label=label_text(engine) if not fitted and batch == batches[0] else None,
                )  # fmt: skip
        panel.set(xlabel="published speedup", ylabel="predicted", title=f"batch {batch}")
    figure.legend(loc="outside lower center", ncols=len(engines))
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)
