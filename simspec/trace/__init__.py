"""Recordings: what a drafter proposed at every position, and what became of it."""

from simspec.trace.acceptance import depth_acceptance
from simspec.trace.quantization import decode, table
from simspec.trace.recordings import CHECKOUT, cost_beside

__all__ = ["CHECKOUT", "cost_beside", "decode", "depth_acceptance", "table"]
