"""Reports over recordings: oracle gap, drafters, trees, speedup curves."""

from simspec.reports.oracle_gap import score

__all__ = ["score"]
