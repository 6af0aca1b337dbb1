"""Auditing emitted runs against the target."""

from real.audit.judge import audit

__all__ = ["audit"]
