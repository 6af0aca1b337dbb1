"""Costs of drafting and verification: measured, fitted, or from published figures."""
