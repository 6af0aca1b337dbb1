"""Recording acceptance traces: what a drafter proposes from every position."""

from real.record.recorder import record, record_all
from real.record.settings import RecordError, Settings
from real.record.shards import Recording, RecordingFiles

__all__ = ["RecordError", "Recording", "RecordingFiles", "Settings", "record", "record_all"]
