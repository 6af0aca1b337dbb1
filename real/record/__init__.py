"""Recording acceptance traces: what a drafter proposes from every position."""

from real.record.recorder import record
from real.record.settings import RecordError, Settings
from real.record.shards import RecordingFiles

__all__ = ["RecordError", "RecordingFiles", "Settings", "record"]
