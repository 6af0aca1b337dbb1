"""Auditing emitted runs against the target."""
