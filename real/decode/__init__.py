"""Speculative decoding: one loop, with drafting, verification and timing as arguments."""
