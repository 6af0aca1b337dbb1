"""Settings of drafters without weights: one JSON file in the drafter's folder."""

import json
from pathlib import Path
from typing import TypeVar

from real.draft.protocol import Drafter
from real.model.hf_config import WeightsError

D = TypeVar("D", bound=Drafter)


def load_configured(folder: Path, drafter: type[D]) -> D:
    """A drafter with the "settings" of <name>.json in `folder`, or its defaults without that file.

    WeightsError for a file that holds none, or wrong ones.
    """
    file = Path(folder) / f"{drafter.name}.json"
    if not file.exists():
        return drafter()
    try:
        return drafter(**json.loads(file.read_text(encoding="utf-8"))["settings"])
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise WeightsError(
            f"{file} holds no settings of {drafter.name}: {' '.join(str(error).split())[:300]}"
        ) from error
