"""Cells of the exam: published tables of this package, and files that a user fetches."""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simspec.cost.speed_table import SpeedTable, speed_tables
from simspec.output.files import read_at_most
from simspec.policies.fixed import fixed
from simspec.published import FOLDER, published_table
from simspec.published import speed_tables as published_tables
from simspec.replay.replay import replay
from simspec.trace.trace import Trace
from simspec.validation.gpu_cells import Copies, GpuCell, Waves, separate


@dataclass(frozen=True)
class DataFile:
    """A file that a user fetches: its repository, commit, path, and a task of recordings."""

    repository: str
    commit: str
    path: str
    task: str = ""

    def under(self, folder: Path) -> Path | None:
        """The file in a checkout, in a folder of checkouts, or by its name alone."""
        checkout = folder / self.repository.partition("/")[2] / self.path
        found = (checkout, folder / self.path, folder / Path(self.path).name)
        return next((p for p in found[: 3 if self.task else 2] if p.is_file()), None)

    @property
    def missing(self) -> str:
        """One line: what to fetch, and from where."""
        return (
            f"{self.path} is missing, its cells are left out: fetch it from "
            f"https://github.com/{self.repository} at {self.commit}"
        )


TASKS = ("gsm8k", "cnn", "sharegpt", "instructcoder")
POSITIONS = tuple(
    DataFile("SpecDecode-Bench/simulator", "2fdccbd",
             f"data/llama3.1-8B/combined_{task}.jsonl", task)
    for task in TASKS
)  # fmt: skip
AUDIT, LONG = (
    DataFile("pramodjella/speculative-decoding-draft-length-audit", "0c0fa77",
             f"results/{name}/curves.csv")
    for name in ("eagle3_batch", "eagle3_longctx_full")
)  # fmt: skip

MOST_BYTES = 1 << 20
"""Bytes of a table of the audit."""

STOPPED = 8192
"""max_tokens of SpecDecode-Bench's runs; requests that reach it are not in its figure."""


def specdecode_bench(recordings: Mapping[str, Mapping[str, Trace]] | None = None) -> list[GpuCell]:
    """Figure 1's cells of Llama-3.1-8B; recordings: {task: {eagle, ngram: Trace}}, of its files.

    A task without recordings has one request, of the package's means.
    """
    cells = []
    replayed: dict[tuple[str, str, int], Copies] = {}
    for data in json.loads((FOLDER / "gpu.json").read_bytes()):
        drafter = "ngram" if data["drafter"] == "n-gram" else "eagle3"
        for row in (dict(zip(data["columns"], cells)) for cells in data["rows"]):
            K, rounds = data["K"], np.zeros((1, data["K"] + 1))
            count = row["output"] / row["accepted_length"]
            rounds[0, [0, K]] = count * np.array([1 - row["drafted"] / K, row["drafted"] / K])
            run = Copies(np.array([row["prompt"]]), np.array([row["output"]]), rounds)
            key = row["task"], drafter.rstrip("3"), K
            trace = (recordings or {}).get(key[0], {}).get(key[1])
            if trace is not None:
                replayed[key] = run = replayed.get(key) or copies(trace, K)
            context = round(float((run.prompt + run.output / 2).mean()))
            cells.append(
                GpuCell(
                    "vLLM 0.10.1", data["name"], row["task"], row["batch"], K, "llama-3.1-8b",
                    drafter, float(run.output.sum() / run.rounds.sum()), row["speedup"], context,
                    run=run,
                )
            )  # fmt: skip
    return cells


def copies(trace: Trace, K: int) -> Copies:
    """The run of a recording's requests, without those that reached the token limit."""
    rounds = replay(trace, fixed(K))
    sequence = np.repeat(np.arange(trace.sequences), np.diff(rounds.offset))
    counts = np.zeros((trace.sequences, K + 1))
    np.add.at(counts, (sequence, rounds.drafted), 1)
    prompt, output = np.diff(trace.prompt_offset), np.diff(trace.offset)
    kept = output < STOPPED
    return Copies(prompt[kept].astype(float), output[kept].astype(float), counts[kept])


ORDER = ("humaneval", "gsm8k", "mt_bench")
"""Tasks of the audit in the order of its runs: its counters of accepted tokens go on."""
PROMPTS = {"mt_bench": 80}
"""Prompts of its run at batch 64, if fewer than 96: MT-bench has no more."""


def audit_waves(batch: int, task: str) -> Waves:
    """The run of a row: its script asks for 64 prompts, 96 at batch 64 and 4 at batch 16.

    64 tokens each (findings.md, and the tokens in its JSON files); the first wave is its warm-up.
    Prompts are taken as 100 tokens.
    """
    count = {16: 4, 64: PROMPTS.get(task, 96)}.get(batch, 64)
    sizes = [batch] * (count // batch) + [count % batch] * (count % batch > 0)
    return Waves(tuple(sizes), 100, 64)


def audit(table: SpeedTable, own: bool = True, waves: bool = True) -> list[GpuCell]:
    """Cells of the audit at one batch size.

    own: beyond batch 1 each task's own accepted length, else the counters' as published. waves: the
    run's waves, else steps of full batches. ValueError for a K without all tasks.
    """
    lengths = {(row.K, row.task): row.accepted_length for row in table.rows}
    if table.batch > 1 and own:
        for K in table.lengths:
            tasks = [task for task in ORDER if (K, task) in lengths]
            if tasks != list(ORDER):
                raise ValueError(
                    f"K = {K} at batch {table.batch} has the tasks {tasks}, expected "
                    f"{', '.join(ORDER)}: their accepted lengths are of counters that go on"
                )
            weights = [sum(audit_waves(table.batch, task).sizes) for task in ORDER]
            found = separate([lengths[K, task] for task in ORDER], weights)
            lengths |= {(K, task): length for task, length in zip(ORDER, found)}
    return [
        GpuCell(
            "vLLM 0.23", "draft-length-audit", row.task, table.batch, row.K, "llama-3.1-8b",
            "eagle3", lengths[row.K, row.task], row.speedup, 132,
            run=audit_waves(table.batch, row.task) if table.batch > 1 and waves else None,
        )
        for row in table.rows
    ]  # fmt: skip


LONG_TARGETS = {"llama8b": "llama-3.1-8b", "deepseek": "llama-3.1-8b", "qwen14b": "qwen3-14b"}
LONG_PROMPTS, LONG_CONTEXT = 8, 6000
"""Its script runs 8 prompts at any batch size, on articles of QuALITY, taken as 6,000 tokens."""


def read_audit(path: Path, own: bool = True, waves: bool = True) -> list[GpuCell]:
    """Cells of the audit's curves.csv; ValueError, one line with the path, for another file."""
    columns = {"workload": "task", "net_speedup": "speedup", "accept_len": "accepted_length"}
    try:
        return [c for table in _tables(path, columns) for c in audit(table, own, waves)]
    except ValueError as error:
        raise ValueError(f"{path}: not a table of the audit: {error}") from None


def read_long(path: Path) -> list[GpuCell]:
    """Cells of the audit's curves at 8,192 tokens, with plain decoding's speed as published."""
    columns = {"model": "task", "net_speedup": "speedup", "aps": "accepted_length"}
    found = []
    try:
        tables = _tables(path, columns)
    except ValueError as error:
        raise ValueError(f"{path}: not a table of the audit: {error}") from None
    for table in tables:
        sequences = min(table.batch, LONG_PROMPTS)
        for row in table.rows:
            if row.task not in LONG_TARGETS:
                raise ValueError(
                    f"{path}: the model {row.task[:40]!r} is unknown, expected one of "
                    f"{', '.join(LONG_TARGETS)}"
                )
            found.append(
                GpuCell(
                    "vLLM 0.23", "draft-length-audit, 8192 tokens", row.task, sequences, row.K,
                    LONG_TARGETS[row.task], "eagle3", row.accepted_length, row.speedup,
                    LONG_CONTEXT,
                )
            )  # fmt: skip
    return found


def _tables(path: Path, columns: Mapping[str, str]) -> list[SpeedTable]:
    """The tables of a CSV file by batch size, its columns renamed; rows of plain decoding go."""
    try:
        text = read_at_most(path, MOST_BYTES).decode("utf-8-sig")
        header, *rows = [line for line in csv.reader(text.splitlines(), strict=True) if line]
        names = [columns.get(name, name) for name in header]
        kept = [row for row in rows if "K" not in names or row[names.index("K")] != "0"]
        wanted = [i for i, name in enumerate(names) if name in (*columns.values(), "K", "batch")]
        data = {
            "columns": [names[i] for i in wanted],
            "rows": [[row[i] for i in wanted] for row in kept],
        }
        return speed_tables(data, path.name)
    except (OSError, ValueError, IndexError, csv.Error) as error:
        reason = " ".join(str(error).split())[:300] or "it is empty"
        raise ValueError(reason) from None


BUNDLE = {
    "Llama-3.1-8B-Instruct": ("llama-3.1-8b", 1),
    "Llama-3.3-70B-Instruct": ("llama-3.1-70b", 4),
    "Qwen3-30B-A3B-Instruct-2507": ("qwen3-30b-a3b", 1),
    "Qwen3-Coder-30B-A3B-Instruct": ("qwen3-30b-a3b", 1),
}
"""Targets of SpecBundle that kernel times price, and the GPUs that share a layer.

They are not published: one where the weights fit; four H200s for the 70B, for two could not read
its weights in the published 13.9 ms.
"""

ISSUES = {
    "vllm-20780-eagle1": ("vLLM #20780, EAGLE-1", "llama-3.1-8b", "eagle"),
    "vllm-20780-eagle3": ("vLLM #20780, EAGLE-3", "llama-3.1-8b", "eagle3"),
    "vllm-16035": ("vLLM #20780, EAGLE-1", "llama-3-8b", "eagle"),
}
"""No device is stated: taken as an H100, for an A100 needs 7.9 ms to read the weights."""


def shipped() -> list[GpuCell]:
    """Cells of the package's tables but SpecDecode-Bench's: steps of full batches."""
    cells = audit(published_table("draft-length-audit"))
    for name, table in published_tables().items():
        engine, target, drafter, gpus = "", "", "eagle3", 1
        if name in ISSUES:
            engine, target, drafter = ISSUES[name]
        elif table.texts.get("target") in BUNDLE and name.startswith("specbundle/"):
            engine, (target, gpus) = "SGLang", BUNDLE[table.texts["target"]]
        step = min(row.plain_step for row in table.rows)
        cells += [
            GpuCell(
                engine, name, row.task, table.batch, row.K, target, drafter, row.accepted_length,
                row.speedup, plain_step=step, fixed=row.plain_step - step, gpus=gpus,
            )
            for row in table.rows
            if engine
        ]  # fmt: skip
    return cells


def all_cells(
    folder: Path | None = None, recordings: Mapping[str, Mapping[str, Trace]] | None = None
) -> tuple[list[GpuCell], list[str]]:
    """(cells, a line for each file that the folder lacks); recordings as in `specdecode_bench`.

    ValueError, one line, for a folder that is none, and for files that are not what they say.
    """
    cells, notes = shipped(), []
    if folder is not None:
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder: name the one that holds the fetched files")
        notes = [file.missing for file in (*POSITIONS, AUDIT, LONG) if not file.under(folder)]
        if path := AUDIT.under(folder):
            cells = [cell for cell in cells if cell.table != "draft-length-audit"]
            cells += read_audit(path)
        if path := LONG.under(folder):
            cells += read_long(path)
    return specdecode_bench(recordings) + cells, notes
