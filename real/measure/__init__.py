"""Measuring latency: draft and verification passes, by length, batch and context."""
