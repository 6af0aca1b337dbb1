"""Responses of servers: the last object of each, since streams repeat it."""

from collections.abc import Iterable

from simspec.imports.fields import Fields


def responses(rows: Iterable[Fields], key: str) -> list[Fields]:
    """The object that holds `key`, one a response and choice; of a stream's chunks the last.

    Chunks of one response share an `id`, in the object or in the row; rows without one are
    responses each.
    """
    last: dict[tuple[str, str], Fields] = {}
    for row in rows:
        choices = row.values.get("choices")
        parts = row.inners("choices") if type(choices) is list and choices else []
        holders = [
            (str(part.values.get("index", i)), next(part.holding(key), None))
            for i, part in enumerate(parts)
        ]
        if not any(holder for _, holder in holders):
            holders = [("", next(row.holding(key), None))]
        for index, holder in holders:
            if holder is not None:
                name = holder.values.get("id") or row.values.get("id") or row.place
                last[str(name), index] = holder
    return list(last.values())
