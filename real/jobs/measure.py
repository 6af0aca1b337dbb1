"""Measuring what drafting and verification cost on a device."""

from pathlib import Path

from real.jobs.models import ModelSettings
from real.measure import MeasureSettings, max_new_tokens, measure_table
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
    settings: MeasureSettings,
    progress: Progress = quiet,
) -> CostTable:
    """Measures drafts of up to K tokens, and writes `out`."""
    check_output(out)
    if not 1 <= K <= 255:
        raise ValueError(f"depth is {K}, expected 1 to 255")
    pair = models.load(
        drafter, max(K, settings.tree_nodes) + 1, settings.context[-1] + max_new_tokens(K)
    )
    table = measure_table(
        pair.target, pair.drafter, rule, K, settings, relabel(progress, f"measuring {out.stem}")
    )
    table.simplest().to_json(out)
    return table
