"""Measuring latency: draft and verification passes, by length, batch and context."""

from real.measure.loop import measure, measure_table

__all__ = ["measure", "measure_table"]
