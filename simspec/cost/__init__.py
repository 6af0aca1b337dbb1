"""Costs of drafting and verification: measured, fitted, or from published figures."""

from simspec.cost.gate import PriceError
from simspec.cost.model import CostModel
from simspec.cost.roofline import DEVICES, SHAPES, roofline_cost, roofline_table
from simspec.cost.table import CostTable, load_cost

__all__ = [
    "CostModel", "CostTable", "DEVICES", "PriceError", "SHAPES", "load_cost", "roofline_cost",
    "roofline_table",
]  # fmt: skip
