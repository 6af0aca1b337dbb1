"""Latency measurements: the parts of a round in the decode loop, and single passes on a grid."""

from real.measure.blocks import max_new_tokens
from real.measure.cost_table import measure, measure_table
from real.measure.settings import MeasureSettings

__all__ = ["MeasureSettings", "max_new_tokens", "measure", "measure_table"]
