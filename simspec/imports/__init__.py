"""Imports: what other tools recorded of speculative decoding, and what may be concluded from it."""
