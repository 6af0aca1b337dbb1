"""JSON files of training: read with a remedy, and compared with what is asked for."""

import json
from pathlib import Path


def read_card(path: Path) -> dict:
    """The content of a JSON file of ours; ValueError, naming the remedy, where it is damaged."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it, and it is made anew") from error


def check_same_settings(stored: dict, requested: dict, folder: Path) -> None:
    """ValueError naming the first setting that differs from the stored ones."""
    flat = [
        {
            (key, name): value
            for key in settings
            for name, value in (
                settings[key].items() if isinstance(settings[key], dict) else [("", settings[key])]
            )
        }
        for settings in (stored, requested)
    ]
    for key in flat[0] | flat[1]:
        was, now = (settings.get(key) for settings in flat)
        if was != now:
            name = f"{key[0]} {key[1]}".strip()
            raise ValueError(
                f"{folder} was made with {name:.60} {was!r:.60}, now {now!r:.60} is asked for; "
                "choose another --name, or delete it"
            )
