"""Recording acceptance traces: what a drafter proposes from every position."""

from real.record.recorder import record
from real.record.rows import RecordError, Settings

__all__ = ["RecordError", "Settings", "record"]
