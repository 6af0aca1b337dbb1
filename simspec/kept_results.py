"""KeptResults: results of replays in a file, from which an interrupted sweep goes on."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import Any

from simspec.fingerprint import fingerprint
from simspec.metrics import Metrics
from simspec.replay_job import ReplayJob
from simspec.trace_file import digest

FORMAT = 1
"""Version of a line: a new one where the same job gives another result. No other is read."""
_FIELDS = {field.name for field in fields(Metrics)}


class KeptResults:
    """{key of a job: its metrics by group} in a file of one line of JSON for each job.

    A line is added as soon as its job has run. The last line may be torn where a process was
    killed: it is dropped, and its job runs again. ValueError for any other line that is not of this
    format.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._known: dict[str, dict[Any, Metrics]] = {}
        if self.path.exists():
            self._read()
        self._file = self.path.open("a", encoding="utf-8")

    def _read(self) -> None:
        text = self.path.read_text(encoding="utf-8")
        lines = text.split("\n")
        if lines[-1]:
            self.path.write_text(text[: len(text) - len(lines[-1])], encoding="utf-8")
        for number, line in enumerate(lines[:-1], 1):
            try:
                row = json.loads(line)
                valid = row["format"] == FORMAT and isinstance(row["key"], str)
                groups = {str(name): _metrics(values) for name, values in row["groups"]}
            except (ValueError, KeyError, TypeError, AttributeError):
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
        self._file.write(json.dumps({"format": FORMAT, "key": key, "groups": values}) + "\n")
        self._file.flush()
        self._known[key] = groups


def _metrics(values: Any) -> Metrics:
    if set(values) != _FIELDS:
        raise ValueError("other fields")
    return Metrics(**values | {"accept_by_depth": tuple(values["accept_by_depth"])})


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
