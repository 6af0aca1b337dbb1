"""Speculative decoding: one loop, with drafting, verification and timing as arguments."""

from real.decode.loop import decode
from real.decode.plan import Plan
from real.decode.result import DecodeResult, Round

__all__ = ["DecodeResult", "Plan", "Round", "decode"]
