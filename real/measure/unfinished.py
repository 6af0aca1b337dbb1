"""The file of an unfinished sitting: its rounds so far, so that a killed measurement continues."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from real.measure.pace import Pace
from real.measure.samples import Samples
from real.measure.sitting import Sitting
from simspec.output.files import write_json


class UnfinishedSitting:
    """Rounds at `path`, of a measurement that `key` describes; another key starts anew.

    `pace` holds the timing blocks that its rounds ran in.
    """

    def __init__(
        self, path: Path, key: Mapping[str, Any], samples: Mapping[str, Samples], pace: Pace
    ):
        self.path, self.samples, self.pace = path, samples, pace
        self.key = json.loads(json.dumps(dict(key)))

    def load(self) -> Sitting:
        """Fills the samples and returns the sitting; a new one where there is none of this key.

        ValueError for a damaged file.
        """
        if not self.path.exists():
            return Sitting()
        try:
            held = json.loads(self.path.read_text(encoding="utf-8"))
            if held["key"] != self.key:
                return Sitting()
            rows = {name: held["samples"][name] for name in self.samples}
            sitting = Sitting(int(held["repeats"]), float(held["wall"]), float(held["processor"]))
            self.pace.extend(held["blocks"])
            for name, samples in self.samples.items():
                samples.extend(rows[name])
        except (
            OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError,
            RecursionError,
        ) as error:  # fmt: skip
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"{self.path} holds no unfinished measurement ({reason}): delete it to start anew"
            ) from None
        return sitting

    def save(self, sitting: Sitting) -> None:
        """Replaces the file."""
        write_json(
            self.path,
            {
                "key": self.key,
                "repeats": sitting.repeats,
                "wall": sitting.wall,
                "processor": sitting.processor,
                "blocks": self.pace.to_list(),
                "samples": {name: samples.to_list() for name, samples in self.samples.items()},
            },
        )

    def remove(self) -> None:
        """Removes the file of a measurement that is complete."""
        self.path.unlink(missing_ok=True)
