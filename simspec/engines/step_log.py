"""A file of a server's steps: written without ever blocking or failing the server.

The first line of each start says what is served and by which runner, every other line is a step:

| key | value |
| --- | --- |
| t | seconds of a clock, when the step's tokens arrived |
| running, waiting | requests after the step |
| kv | share of the KV cache in use |
| prompt, new | tokens of prompts that were read, and tokens that were emitted |
| drafts, drafted, accepted | requests that verified a draft; tokens of them by position |

FILE goes on as FILE.1 once it has half of the bytes allowed, in place of an older FILE.1.
"""

import atexit
import fcntl
import json
import logging
import os
import queue
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from threading import Thread
from typing import Any

VARIABLE, BYTES_VARIABLE = "SIMSPEC_STEPS", "SIMSPEC_STEPS_BYTES"
"""Names of the environment's variables: the file, without which nothing is written; its bytes."""
MOST_BYTES = 64 << 20
WAITING_ROWS = 1 << 14
"""Steps that wait for the disk; further ones are dropped and counted."""
FORM = "simspec-steps-1"

logger = logging.getLogger("vllm.simspec")


def is_step_log(path: Path) -> bool:
    """Whether a file begins as `StepWriter` writes it."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(100).startswith(f'{{"form":"{FORM}"'.encode())


class StepWriter:
    """Writes rows of steps in a thread of its own; a failing disk is logged once."""

    def __init__(self, path: Path, about: Mapping[str, Any], most_bytes: int = MOST_BYTES) -> None:
        self.path, self.half = path, most_bytes // 2
        self.about = {"form": FORM, **about}
        self.waiting: queue.Queue[Any] = queue.Queue(WAITING_ROWS)
        self.dropped = 0
        self.thread = Thread(target=self._write, name="simspec-steps", daemon=True)
        self.thread.start()
        atexit.register(self.close)

    def put(self, row: Mapping[str, Any]) -> None:
        """Takes a step; returns at once."""
        try:
            self.waiting.put_nowait(row)
        except queue.Full:
            self.dropped += 1

    def close(self, seconds: float = 2.0) -> None:
        """Writes what waits, for at most these seconds."""
        atexit.unregister(self.close)
        if self.thread.is_alive():
            with suppress(queue.Full):
                self.waiting.put({}, timeout=seconds)
            self.thread.join(seconds)

    def _write(self) -> None:
        try:
            while self._write_file():
                os.replace(self.path, f"{self.path}.1")
        except OSError as error:
            logger.warning("no steps are written to %s any more: %s", self.path, error.strerror)

    def _write_file(self) -> bool:
        """Writes rows until the file has half of the bytes: True; False where no more come."""
        # not buffered: a killed server loses the line that it writes
        with FileIO(self.path, "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                told = f"another server writes it: give each its own {VARIABLE}"
                raise OSError(0, told) from None
            if end := file.seek(0, os.SEEK_END):
                file.seek(end - 1)
                if file.read(1) != b"\n":  # a line that a kill cut short
                    file.write(b"\n")
            file.write(_line(self.about))
            while file.tell() < self.half:
                if not (row := self.waiting.get()):
                    return False
                if self.dropped:
                    row, self.dropped = {**row, "dropped": self.dropped}, 0
                file.write(_line(row))
        return True


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"
