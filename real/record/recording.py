"""One drafter's part of a recording job, and what the parts of a job have in common."""

from collections.abc import Sequence
from dataclasses import dataclass

from real.draft import Drafter
from real.model.target import Target
from real.record.settings import RecordError, Settings
from real.record.shards import RecordingFiles
from simspec import TraceMeta


@dataclass(frozen=True)
class Recording:
    """A drafter with the target that it drafts for, and the files that its recording goes to.

    `target` has the taps of this drafter; several recordings share its decoder.
    """

    target: Target
    drafter: Drafter
    settings: Settings
    files: RecordingFiles
    meta: TraceMeta


SHARED = ("rule", "budget", "end_tokens", "batch")
"""Settings that decide the target's sequences."""


def check_shared(recordings: Sequence[Recording]) -> None:
    """RecordError for recordings whose sequences differ, or that share a file."""
    first = recordings[0]
    for other in recordings[1:]:
        for name in SHARED:
            values = [getattr(r.settings, name) for r in (first, other)]
            if values[0] != values[1]:
                raise RecordError(
                    f"drafters {first.drafter.name!r} and {other.drafter.name!r} have {name} "
                    f"{values[0]!r} and {values[1]!r}; expected one for all"
                )
        if other.target.decoder is not first.target.decoder:
            raise RecordError("the drafters have different targets; expected one for all")
        if other.files.shard_size != first.files.shard_size:
            raise RecordError("the recordings have different shard sizes; expected one for all")
    names = [r.files.trace for r in recordings]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise RecordError(f"{twice[0]} is named for two drafters; name each drafter once")
