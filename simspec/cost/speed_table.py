"""SpeedTable: accepted length and speed by draft length, as engines report them."""

import csv
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

UNITS = {"speedup": "", "tokens_per_second": "plain_tokens_per_second", "tpot_ms": "plain_tpot_ms"}
"""Column of the speed: the column of plain decoding's speed that it needs."""

COLUMNS = (
    "task",
    "K",
    "accepted_length",
    "batch",
    "context",
    *UNITS,
    *filter(None, UNITS.values()),
)
TEXTS = ("name", "source", "target", "drafter", "device", "setting", "caution")
MOST_BYTES, MOST_ROWS, LONGEST = 4_000_000, 20_000, 255


@dataclass(frozen=True)
class SpeedRow:
    """One measurement at a fixed draft length; `round_cost` is in plain steps.

    | field | meaning |
    | --- | --- |
    | task | what was decoded, or '' |
    | K | drafted tokens a round, 1 to 255 |
    | accepted_length | tokens emitted a round, with the target's own: 1 to K + 1 |
    | speedup | speed over plain decoding of the same task |
    | plain_step | seconds of a plain step; 0: unknown |
    | context | cached tokens of each sequence; 0: unknown |
    """

    task: str
    K: int
    accepted_length: float
    speedup: float
    plain_step: float
    context: int = 0

    @property
    def round_cost(self) -> float:
        """Accepted length / speedup: a round's time in plain steps."""
        return self.accepted_length / self.speedup


@dataclass(frozen=True)
class SpeedTable:
    """Measurements of one target, drafter and batch size.

    | field | meaning |
    | --- | --- |
    | name | label |
    | rows | (SpeedRow,), at least one |
    | batch | sequences decoded together |
    | texts | {source, target, drafter, device, setting, caution: text}, those that are known |
    | sha256 | of the file that holds the table |
    """

    name: str
    rows: tuple[SpeedRow, ...]
    batch: int = 1
    texts: Mapping[str, str] = field(default_factory=dict)
    sha256: str = ""

    @property
    def lengths(self) -> list[int]:
        """Draft lengths, growing."""
        return sorted({row.K for row in self.rows})

    @property
    def tasks(self) -> list[str]:
        """Tasks in order of appearance."""
        return list(dict.fromkeys(row.task for row in self.rows))

    @property
    def plain_step(self) -> float:
        """Median seconds of a plain step; 1 where the table has speedups alone."""
        known = sorted(row.plain_step for row in self.rows if row.plain_step)
        return (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2 if known else 1.0


def read_speed_table(
    path: str | PathLike[str], batch: int | None = None, plain: float | None = None
) -> SpeedTable:
    """The table of a CSV file with named columns, or of a JSON object {columns, rows, ..}.

    | column | meaning |
    | --- | --- |
    | K, accepted_length | as in `SpeedRow`; both are needed |
    | speedup | the speed, or one of the next two together with plain decoding's |
    | tokens_per_second, plain_tokens_per_second | of the whole batch |
    | tpot_ms, plain_tpot_ms | milliseconds a token of one request |
    | task, batch, context | optional; batch selects the rows of one size |

    Other columns are ignored. plain replaces a missing column of plain decoding's. Keys of a
    JSON object other than columns and rows are texts, or columns that are equal in all rows.
    ValueError, one line with the path, for anything else.
    """
    return _read(path, plain, lambda data, name, sha256: speed_table(data, name, sha256, batch))


def read_speed_tables(path: str | PathLike[str], plain: float | None = None) -> list[SpeedTable]:
    """The tables of a file, one for each batch size, growing; see `read_speed_table`."""
    return _read(path, plain, speed_tables)


def _read(path: str | PathLike[str], plain: float | None, make: Callable[..., T]) -> T:
    """make(the JSON object, the file's name, its sha256)."""
    path = Path(path)
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it has over {MOST_BYTES} bytes, expected a small table")
        text = content.decode("utf-8-sig")
        if path.suffix.lower() == ".json":
            data = json.loads(text)
        else:
            lines = [line for line in csv.reader(text.splitlines(), strict=True) if line]
            if not lines:
                raise ValueError("it is empty, expected a header and rows")
            data = {"columns": lines[0], "rows": lines[1:]}
        data = data if plain is None else with_plain(data, plain)
        return make(data, path.name, hashlib.sha256(content).hexdigest())
    except (OSError, ValueError, csv.Error, RecursionError, OverflowError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{path}: not a table of speeds: {reason}") from None


def with_plain(data: Any, plain: float) -> Any:
    """The JSON object with plain decoding's speed, in the unit of the table's own."""
    columns = data.get("columns") if isinstance(data, dict) else None
    names = [*data, *columns] if isinstance(columns, list) else []
    units = [unit for unit in UNITS if unit in names and UNITS[unit]]
    if not units or UNITS[units[0]] in names:
        raise ValueError("--plain is given, but no speed of the table needs it: drop it")
    return data | {UNITS[units[0]]: plain}


def speed_table(
    data: Any, name: str = "table", sha256: str = "", batch: int | None = None
) -> SpeedTable:
    """The table of a JSON object {columns, rows, ..}, see `read_speed_table`; ValueError, too."""
    tables = {table.batch: table for table in speed_tables(data, name, sha256)}
    if batch is None and len(tables) > 1:
        raise ValueError(f"it has batch sizes {sorted(tables)}: say which with --batch")
    size = next(iter(tables)) if batch is None else batch
    if size not in tables:
        raise ValueError(f"it has batch sizes {sorted(tables)}, asked for {size}")
    return tables[size]


def speed_tables(data: Any, name: str = "table", sha256: str = "") -> list[SpeedTable]:
    """The tables of a JSON object by batch size, growing; ValueError as of `speed_table`."""
    if not isinstance(data, dict) or not {"columns", "rows"} <= set(data):
        raise ValueError("it has no columns and rows, expected an object with both, or a CSV file")
    columns, rows = data["columns"], data["rows"]
    if not isinstance(columns, list) or not all(isinstance(c, str) for c in columns):
        raise ValueError("columns is not a list of names")
    columns = [column.strip() for column in columns]
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_ROWS:
        raise ValueError(f"rows is not a list of 1 to {MOST_ROWS} rows")
    constant = {key: value for key, value in data.items() if key in COLUMNS}
    repeated = {c for c in COLUMNS if columns.count(c) + (c in constant) > 1}
    if repeated:
        raise ValueError(f"columns {sorted(repeated)} are given twice")
    unit = _unit({*columns, *constant})
    by_batch: dict[int, list[SpeedRow]] = {}
    for number, cells in enumerate(rows, 1):
        if not isinstance(cells, list) or len(cells) != len(columns):
            raise ValueError(f"row {number} has not {len(columns)} cells, as there are columns")
        try:
            size, row = _row(constant | dict(zip(columns, cells)), unit)
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from None
        by_batch.setdefault(size, []).append(row)
    texts = {key: data[key] for key in TEXTS if key in data}
    if not all(isinstance(text, str) and len(text) <= 500 for text in texts.values()):
        raise ValueError(f"one of {', '.join(texts)} is no short text")
    name = texts.pop("name", name)
    return [SpeedTable(name, tuple(by_batch[n]), n, texts, sha256) for n in sorted(by_batch)]


def _unit(columns: set[str]) -> str:
    missing = [column for column in ("K", "accepted_length") if column not in columns]
    if missing:
        raise ValueError(f"column {' and '.join(missing)} is missing, it has {sorted(columns)}")
    units = [unit for unit in UNITS if unit in columns]
    if len(units) != 1:
        raise ValueError(f"it has {units or 'no speed'}, expected one of {', '.join(UNITS)}")
    plain = UNITS[units[0]]
    if plain and plain not in columns:
        raise ValueError(f"column {plain} is missing: {units[0]} needs plain decoding's speed too")
    return units[0]


def _row(cells: Mapping[str, Any], unit: str) -> tuple[int, SpeedRow]:
    """(batch size, the row); ValueError for values out of range."""
    task = cells.get("task", "")
    if not isinstance(task, str) or len(task) > 200:
        raise ValueError("task is no short text")
    K, size = (_whole(name, cells.get(name, 1)) for name in ("K", "batch"))
    context = _whole("context", cells.get("context", 0))
    if not 1 <= K <= LONGEST:
        raise ValueError(
            f"K is {K}, expected 1 to {LONGEST} drafted tokens: plain decoding has its own column"
        )
    if size < 1:
        raise ValueError(f"batch is {size}, expected at least 1")
    accepted = _positive("accepted_length", cells["accepted_length"])
    if not 1 <= accepted <= K + 1 + 0.005:  # half a unit of a second decimal
        raise ValueError(
            f"accepted_length is {accepted:g} at K = {K}, expected 1 to {K + 1}: "
            "count the target's own token too"
        )
    speed = _positive(unit, cells[unit])
    if unit == "speedup":
        return size, SpeedRow(task, K, accepted, speed, 0.0, context)
    plain = _positive(UNITS[unit], cells[UNITS[unit]])
    if unit == "tpot_ms":
        return size, SpeedRow(task, K, accepted, plain / speed, plain / 1000, context)
    return size, SpeedRow(task, K, accepted, speed / plain, size / plain, context)


def _whole(name: str, value: Any) -> int:
    number = _number(name, value)
    if not 0 <= number <= 1e9 or number != int(number):
        raise ValueError(f"{name} is {number:g}, expected a whole number")
    return int(number)


def _positive(name: str, value: Any) -> float:
    number = _number(name, value)
    if not 1e-9 <= number <= 1e9:
        raise ValueError(f"{name} is {number:g}, expected a number > 0")
    return number


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{name} is no number")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(f"{name} is {str(value)[:40]!r}, expected a number") from None
    return number
