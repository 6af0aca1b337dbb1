"""Speculative decoding: one loop, with drafting, verification and timing as arguments."""

from real.decode.loop import DecodeResult, Plan, Round, decode

__all__ = ["DecodeResult", "Plan", "Round", "decode"]
