"""Speculative decoding: one loop, with drafting, verification and timing as arguments."""

from real.decode.loop import DecodeResult, Round, decode
from real.decode.plans import Plan

__all__ = ["DecodeResult", "Plan", "Round", "decode"]
