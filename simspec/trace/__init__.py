"""Recordings: what a drafter proposed at every position, and what became of it."""
