"""Costs of drafting and verification: measured, fitted, or a stated ratio."""

from simspec.cost.gate import PriceError
from simspec.cost.model import CostModel
from simspec.cost.table import CostTable, load_cost

__all__ = ["CostModel", "CostTable", "PriceError", "load_cost"]
