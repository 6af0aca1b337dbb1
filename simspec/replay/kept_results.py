"""KeptResults: results of replays in a file, from which an interrupted sweep goes on."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import Any

from simspec.numerics.compile import fingerprint
from simspec.output.files import locked, naming
from simspec.replay.metrics import Metrics
from simspec.replay.replay import ReplayJob
from simspec.trace.file import digest

FORMAT = 1
"""Version of a line: a new one where the same job gives another result. No other is read."""
BEGIN = b'{"format": '
"""Of every line."""
_FIELDS = {field.name for field in fields(Metrics)}


class KeptResults:
    """{key of a job: its metrics by group} in a file of one line of JSON for each job.

    A line is added as soon as its job has run. The last line may be torn where a process was
    killed or the disk was full: it is cut off, and its job runs again. Several processes may add
    to one file. ValueError for any other line that is not of this format, OSError where the file
    cannot be written.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._known: dict[str, dict[Any, Metrics]] = {}
        # unbuffered: a line is in the file, or an error was raised
        self._file = self.path.open("a+b", buffering=0)
        try:
            with locked(self._file):
                *lines, torn = self._content().split(b"\n")
            self._read(lines, torn)
        except BaseException:
            self._file.close()
            raise

    def _content(self) -> bytes:
        self._file.seek(0)
        return self._file.readall()

    def _cut_torn_line(self) -> None:
        """Cuts after the last line end; whole lines are never rewritten."""
        end = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, end - 1))
        if self._file.read(1) not in (b"\n", b""):
            self._file.truncate(self._content().rfind(b"\n") + 1)

    def _read(self, lines: list[bytes], torn: bytes) -> None:
        if not (torn.startswith(BEGIN) or BEGIN.startswith(torn)):
            lines = [*lines, torn]  # a file of somebody else
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                valid = row["format"] == FORMAT and isinstance(row["key"], str)
                groups = {str(name): _metrics(values) for name, values in row["groups"]}
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                valid = False
            if not valid:
                raise ValueError(
                    f"{self.path}, line {number}: no result of this version of simspec: name "
                    "another file, or remove it"
                )
            self._known[row["key"]] = groups

    def __enter__(self) -> "KeptResults":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def completed(
        self, keys: list[str], fresh: Iterable[dict[Any, Metrics]]
    ) -> Iterator[dict[Any, Metrics]]:
        """The results of all keys in order; those not kept are the next of `fresh`, and kept."""
        results = iter(fresh)
        for key in keys:
            if key not in self._known:
                groups = next(results)
                self._add(key, groups)
            yield self._known[key]

    def _add(self, key: str, groups: dict[Any, Metrics]) -> None:
        values = [[name, asdict(metrics)] for name, metrics in groups.items()]
        line = json.dumps({"format": FORMAT, "key": key, "groups": values}) + "\n"
        left = memoryview(line.encode())
        try:
            with locked(self._file):
                self._cut_torn_line()
                while left:
                    left = left[self._file.write(left) :]
        except OSError as error:
            raise naming(self.path, error) from error
        self._known[key] = groups


def _metrics(values: Any) -> Metrics:
    if set(values) != _FIELDS:
        raise ValueError("other fields")
    metrics = Metrics(**values | {"accept_by_depth": tuple(values["accept_by_depth"])})
    numbers = *metrics.accept_by_depth, *(values[name] for name in _FIELDS - {"accept_by_depth"})
    if not all(type(number) in (int, float) for number in numbers):
        raise ValueError("a metric is no number")
    _ = [float(number) for number in numbers]  # OverflowError for an integer beyond all floats
    return metrics


def job_keys(todo: Iterable[ReplayJob], by: str) -> list[str]:
    """A hash of all that each job's result depends on: recording, policy and its code, cost, seed,
    groups.

    ValueError for a policy whose functions use what has no fingerprint.
    """
    from joblib import hash as hash_of

    digests: dict[int, str] = {}
    prints: dict[int, str | None] = {}
    keys = []
    for job in todo:
        if id(job.trace) not in digests:
            digests[id(job.trace)] = digest(job.trace)
        parts = [type(job.policy).__name__]
        for field in fields(job.policy):
            value = getattr(job.policy, field.name)
            if callable(value):
                if id(value) not in prints:
                    prints[id(value)] = fingerprint(value)
                value = prints[id(value)]
                if value is None:
                    raise ValueError(
                        f"policy {job.policy.name!r}: {field.name} uses objects whose changes "
                        "cannot be detected: sweep it without kept results"
                    )
            parts.append(value)
        keys.append(str(hash_of((digests[id(job.trace)], parts, job.cost.to_dict(), job.seed, by))))
    return keys
