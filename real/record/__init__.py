"""Recording acceptance traces: what a drafter proposes from every position."""

from real.record.recorder import Recording, RecordingFiles, record_all
from real.record.settings import RecordError, Settings

__all__ = ["RecordError", "Recording", "RecordingFiles", "Settings", "record_all"]
