"""Measuring what drafting and verification cost on a device."""

from pathlib import Path

from real.decode.engine import engines_of
from real.jobs.models import ModelSettings
from real.measure.loop import longest_run, measure_table
from real.progress import Progress, quiet, relabel
from real.sampling import Rule
from simspec.cost_table import CostTable
from simspec.files import check_output


def measure_costs(
    out: Path,
    models: ModelSettings,
    drafter: str,
    rule: Rule,
    K: int,
    sizes: tuple[list[int], list[int]] = ([1], [128]),
    repeats: int = 4,
    rows: int = 0,
    seed: int = 0,
    progress: Progress = quiet,
) -> tuple[CostTable, dict[str, str]]:
    """Measures drafts of up to K tokens at these batches and contexts, and writes the costs to `out`."""
    check_output(out)
    if not 1 <= K <= 255 or repeats < 1:
        raise ValueError(
            f"depth is {K} and repeats {repeats}; expected 1 <= depth <= 255 and at least one repeat"
        )
    pair = models.load(drafter, max(K, rows) + 1, max(*sizes[1], 1) + longest_run(K))
    table = measure_table(
        pair.target,
        pair.drafter,
        rule,
        K,
        *sizes,
        repeats=repeats,
        seed=seed,
        progress=relabel(progress, f"measuring {out.stem}"),
        rows=rows,
    )
    table.simplest().to_json(out)
    return table, engines_of(pair.target, pair.drafter)
