"""The folder of an unfinished recording belongs to one process at a time."""

import os
from contextlib import suppress
from pathlib import Path

from real.record.settings import RecordError

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
