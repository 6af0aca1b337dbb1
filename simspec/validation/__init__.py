"""Validation of the simulator against closed forms and printed tables."""
