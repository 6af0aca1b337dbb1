"""Files of measurements that a killed command continues from."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from simspec.output.names import one_note

T = TypeVar("T")


def load_saved(path: Path, settings: Mapping, kind: str, parse: Callable[[Any], T]) -> T | None:
    """parse(the JSON object in the file), whose "settings" must be these; None without a file.

    ValueError, one line, for a damaged file, which names the `kind` expected, or other settings.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        value = parse(data)
        saved = dict(data["settings"])
    except FileNotFoundError:
        return None
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} holds no {kind}: {reason}; name another file") from error
    for name in sorted(saved.keys() | settings.keys()):
        if saved.get(name) != settings.get(name):
            was, now = (one_note(of.get(name)) for of in (saved, settings))
            raise ValueError(
                f"{path} was made with {one_note(name):.60} {was:.60}, this is {now:.60}; "
                "name another file to save to"
            )
    return value
