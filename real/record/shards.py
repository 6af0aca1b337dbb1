"""Shards of an unfinished recording: one process at a time, and safe to kill."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from real.draft import Drafter
from real.files import replace_json
from real.model.target import Target
from real.processes import ALONE, Processes
from real.prompts import Prompt
from real.record.settings import RecordError, Settings
from simspec import Trace, TraceError, TraceMeta, load_trace

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]


class FolderClaim:
    """Claims a folder, which is made where it is missing, until `release` or the process ends.

    RecordError where another process has it. File systems without locks are used without.
    """

    def __init__(self, folder: Path):
        self.folder, self._handle = folder, -1
        while self._handle < 0:
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # removed by a recording that has just finished
                self._open()

    def _open(self) -> None:
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            _lock(handle, self.folder)
            if os.path.samestat(os.fstat(handle), os.stat(self.folder)):
                self._handle, handle = handle, -1
        finally:
            if handle >= 0:
                os.close(handle)

    def release(self) -> None:
        """Lets others have the folder; once more does nothing."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _lock(handle: int, folder: Path) -> None:
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RecordError(
            f"{folder} is in use by another process that makes this recording: "
            "wait for it, or name another --out"
        ) from None
    except OSError:
        return


@dataclass(frozen=True)
class RecordingFiles:
    """The files of a recording.

    | field | meaning |
    | --- | --- |
    | trace | the recording |
    | shard_size | sequences per shard |
    | sequence_cache | the target's sequences, shared by recordings of several drafters, or None |
    """

    trace: Path
    shard_size: int = 8
    sequence_cache: Path | None = None

    @property
    def shards(self) -> Path:
        """The folder of the shards while the recording is unfinished."""
        return self.trace.with_name(self.trace.name + ".parts")


class Shards:
    """Shards of a recording, each a valid trace written atomically, next to its settings.

    A folder with other settings is refused, and one that another job uses: RecordError. The first
    of several processes makes the folder for all, and removes it.
    """

    def __init__(
        self,
        files: RecordingFiles,
        settings: Settings,
        meta: TraceMeta,
        prompts: Sequence[Prompt],
        processes: Processes = ALONE,
    ):
        self.files, self.settings, self.folder = files, settings, files.shards
        manifest = {
            "settings": asdict(settings),
            "meta": asdict(meta),
            "prompts": [p.token for p in prompts],
            "shard": files.shard_size,
        }
        manifest = json.loads(json.dumps(manifest))
        for key in ("argv", "git", "notes"):
            manifest["meta"].pop(key)
        self._claim = FolderClaim(self.folder) if processes.first else None
        try:
            self._begin(manifest)
        except BaseException:
            self.release()
            raise

    def _begin(self, manifest: dict) -> None:
        path = self.folder / "settings.json"
        if path.exists() and _read(path) != manifest:
            raise RecordError(
                f"{self.folder} holds a recording with other settings; "
                "finish it with those, or delete the folder"
            )
        if self._claim is None:
            if not path.exists():
                raise RecordError(
                    f"{self.folder}, which the first process makes, is not seen by another: "
                    "name an --out that all machines see"
                )
            return
        if not path.exists():  # killed while it was cleared: nothing vouches for these shards
            self._clear()
        replace_json(path, manifest)

    def release(self) -> None:
        """Lets another job go on with this recording."""
        if self._claim is not None:
            self._claim.release()

    @property
    def sequences(self) -> Path:
        """The cache of the target's sequences, where several are written at a time."""
        return self.folder / "sequences.json"

    def path(self, first: int) -> Path:
        """The shard whose first sequence is `first`."""
        return self.folder / f"{first:06d}.parquet"

    def load(self, first: int, group: Sequence[Prompt]) -> Trace:
        """The shard of `group`; RecordError if it is damaged or holds other sequences."""
        path = self.path(first)
        try:
            trace = load_trace(path)
        except TraceError as error:
            raise RecordError(
                f"{error}; delete this file and its sequences are recorded again"
            ) from None
        cuts = zip(trace.prompt_offset, trace.prompt_offset[1:])
        prompts = [trace.prompt[a:b].tolist() for a, b in cuts]
        if (
            trace.K != self.settings.K
            or prompts != [p.token for p in group]
            or trace.sequence.tolist() != list(range(first, first + len(group)))
        ):
            raise RecordError(
                f"{path} holds other sequences than expected; "
                "delete this file and they are recorded again"
            )
        return trace

    def finish(self, trace: Trace) -> None:
        """Writes the whole recording and removes the shards."""
        whole = self.folder / "whole"  # among the shards: a killed write is cleared with them
        trace.save(whole)
        whole.replace(self.files.trace)
        self._remove()

    def remove_if_empty(self) -> None:
        """Removes the folder of a recording that failed before anything was done."""
        kept = any(self.folder.glob("*.parquet")) or any(self.folder.glob("sequences.json*"))
        if self._claim is not None and not kept:
            self._remove()

    def _remove(self) -> None:
        self._clear()
        self.folder.rmdir()

    def _clear(self) -> None:
        """Deletes all files, the settings last: shards without settings must not be resumed."""
        for path in sorted(self.folder.iterdir(), key=lambda path: path.name == "settings.json"):
            path.unlink()


def _read(manifest: Path) -> dict:
    try:
        return json.loads(manifest.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"{manifest} is damaged ({error}); delete its folder to record again"
        ) from None


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
