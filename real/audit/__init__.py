"""Auditing emitted runs against the target."""

from real.audit.auditor import audit

__all__ = ["audit"]
