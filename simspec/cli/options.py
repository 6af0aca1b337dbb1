"""Limits of options, checked before anything is read or allocated."""

LONGEST_DRAFT = 255
"""Tokens of a draft: recordings hold lengths in a byte."""
MOST_THREADS = 256
MOST_BATCH = 1 << 16
MOST_CONTEXT = 1 << 24
MOST_PROMPTS = 1_000_000
MOST_REPEATS = 10_000
