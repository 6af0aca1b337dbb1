"""Errors of kernel prices against published speeds, without a fit and with cells left out.

    python tools/kernel_errors.py [curves.csv]

Plain steps of Llama-3.1-8B on an H100 are SpecDecode-Bench's terms; rounds at batch 1 those of the
draft-length audit; H200 rounds and plain steps SpecBundle's. curves.csv is the audit's
results/eagle3_batch/curves.csv (pramodjella/speculative-decoding-draft-length-audit at 0c0fa77),
for batches of 8 to 64; it is not part of this repository.
"""

import csv
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from simspec.cost.batch import TokenCost
from simspec.cost.kernel_files import shipped_times
from simspec.cost.kernel_fit import SpeedCell, cell_errors, fit_constants
from simspec.cost.kernels import KernelPrices
from simspec.cost.shapes import SHAPES, draft_head
from simspec.published import FOLDER, speed_tables

LLAMA = SHAPES["llama-3.1-8b"]
EAGLE3 = draft_head(LLAMA, "eagle3")
TERMS = TokenCost(fixed=5.886e-3, token=2.101e-5, kv=3.926e-8)
"""SpecDecode-Bench's terms of a forward pass, fitted by its authors."""
TARGETS = {"specbundle/Llama-3.1-8B-Instruct-SpecForge": "llama-3.1-8b",
           "specbundle/Qwen3-30B-A3B-Instruct-2507-SpecForge": "qwen3-30b-a3b"}  # fmt: skip


def plain_cells(context: int = 256) -> list[SpeedCell]:
    """Plain steps of SpecDecode-Bench's terms, without its constant overhead."""
    return [
        SpeedCell(
            LLAMA, None, 0, b, context, TERMS.plain(b, context), name=f"plain step, batch {b}"
        )
        for b in (1, 8, 16, 32, 64, 128)
    ]


def audit_cells(path: str | None = None, context: int = 256) -> list[SpeedCell]:
    """Rounds of the audit in plain steps: at batch 1, or all of curves.csv."""
    if path is None:
        rows = speed_tables()["draft-length-audit"].rows
        found = [(r.task, r.K, 1, r.accepted_length / r.speedup) for r in rows]
    else:
        with open(path, newline="", encoding="utf-8") as file:
            found = [
                (r["workload"], int(r["K"]), int(r["batch"]),
                 float(r["accept_len"]) / float(r["net_speedup"]))
                for r in csv.DictReader(file)
            ]  # fmt: skip
    return [
        SpeedCell(LLAMA, EAGLE3, K, b, context, ratio=ratio, name=f"batch {b}, K {K}, {task}")
        for task, K, b, ratio in found
    ]


def bundle_cells(name: str, context: int = 512) -> tuple[list[SpeedCell], list[SpeedCell]]:
    """(plain steps, rounds in plain steps) of a SpecBundle table."""
    table, target = speed_tables()[name], SHAPES[TARGETS[name]]
    head = draft_head(target, "eagle3")
    published = json.loads((FOLDER / "specbundle.json").read_text(encoding="utf-8"))
    rows = next(entry["rows"] for entry in published if entry["name"] == name)
    steps = {row[0]: table.batch / row[4] for row in rows}
    plain = [SpeedCell(target, None, 0, table.batch, context, s, name=t) for t, s in steps.items()]
    rounds = [
        SpeedCell(target, head, r.K, table.batch, context, name=f"{r.task}, K {r.K}",
                  ratio=r.accepted_length / r.speedup)
        for r in table.rows
    ]  # fmt: skip
    return plain, rounds


def report(title: str, prices: KernelPrices, cells: Iterable[SpeedCell]) -> None:
    """One line: the median and largest size of the error, and its mean with the sign."""
    errors = cell_errors(prices, cells)
    sizes = [abs(error) for error in errors]
    print(f"{title:58} {len(sizes):3} cells, median {median(sizes):6.1%}, worst {max(sizes):6.1%}, "
          f"mean {sum(errors) / len(errors):+.1%}")  # fmt: skip


def main() -> None:
    """Prints the errors."""
    h100 = KernelPrices(shipped_times("h100", "vllm"))
    plain, one = plain_cells(), audit_cells()
    for cell, error in zip(plain, cell_errors(h100, plain)):
        print(f"  {cell.name}: {error:+.1%}")
    report("H100 plain steps, no fit", h100, plain)
    small = [cell for cell in plain if cell.batch <= 64]
    held = fit_constants(h100, small, ("row",))
    print(" ", held)
    report("H100 plain step 128, fit on batch <= 64", replace(h100, constants=held), plain[-1:])
    report("H100 rounds at batch 1, no fit", h100, one)
    drafting = fit_constants(h100, [c for c in one if "gsm8k" in c.name], ("draft",))
    print(" ", drafting)
    others = [c for c in one if "gsm8k" not in c.name]
    report(
        "H100 rounds at batch 1, draft fitted on gsm8k", replace(h100, constants=drafting), others
    )
    if len(sys.argv) > 1:
        cells = audit_cells(sys.argv[1])
        tasks = "gsm8k", "humaneval", "mt_bench"
        for terms in ((), ("step", "row"), ("step", "row", "draft"), ("row", "draft")):
            for batch in (1, 8, 16, 32, 64):
                errors: list[float] = []
                for task in tasks:
                    train = [c for c in cells if task not in c.name]
                    held = fit_constants(h100, train, terms) if terms else None
                    test = [c for c in cells if task in c.name and c.batch == batch]
                    errors += cell_errors(replace(h100, constants=held), test)
                sizes = [abs(e) for e in errors]
                print(f"audit, batch {batch:2}, {'+'.join(terms) or 'no fit':14} (task left out): "
                      f"{len(sizes)} cells, median {median(sizes):.1%}, worst {max(sizes):.1%}, "
                      f"mean {sum(errors) / len(errors):+.1%}")  # fmt: skip
            if terms:
                print(" ", held)
    h200 = KernelPrices(shipped_times("h200", "sglang"))
    for name in TARGETS:
        steps, rounds = bundle_cells(name)
        report(f"H200 {TARGETS[name]} plain, no fit", h200, steps)
        report(f"H200 {TARGETS[name]} rounds, no fit", h200, rounds)
        tasks = sorted({cell.name.split(",")[0] for cell in rounds})
        first = [c for c in (*steps, *rounds) if c.name.split(",")[0] == tasks[0]]
        for terms in (("step",), ("step", "draft")):
            fitted = fit_constants(h200, first, terms)
            print(" ", fitted)
            fit = replace(h200, constants=fitted)
            label = f"H200 {TARGETS[name]}, {'+'.join(terms)} fitted on {tasks[0]}"
            report(f"{label}, plain", fit, [c for c in steps if c not in first])
            report(f"{label}, rounds", fit, [c for c in rounds if c not in first])


if __name__ == "__main__":
    main()
