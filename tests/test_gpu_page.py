"""docs/gpu.md: its table is what kernel times and the stated constants give today."""

import re
from pathlib import Path

import pytest

from simspec.cost.kernel_files import shipped_times
from simspec.cost.kernels import EngineConstants, KernelPrices, kernel_cost
from simspec.cost.shapes import SHAPES, draft_head
from simspec.validation.gpu_exam import WAYS, exam

PAGE = Path("docs/gpu.md")
GPUS = {
    "llama-3.1-8b": (("h100", 1), ("h200", 1), ("a100", 1), ("l40s", 1)),
    "llama-3.1-70b": (("h100", 4), ("h200", 2), ("a100", 4)),
}
LENGTHS, CONTEXT = (1, 3, 5, 7), 1024
pytestmark = pytest.mark.docs


def stated_constants(text):
    """Of the page's command, in seconds."""
    values = re.search(r"--constants step=([\d.]+),row=([\d.]+),draft=([\d.]+)", text)
    return EngineConstants(*(float(value) / 1000 for value in values.groups()))


def lines(text):
    """Rows of the page's table: round costs in plain steps of EAGLE-3 by K, and of n-grams at 3."""
    constants = stated_constants(text)
    for model, gpus in GPUS.items():
        target = SHAPES[model]
        for device, tp in gpus:
            prices = KernelPrices(shipped_times(device, "vllm"), constants, tp)
            for batch in (1, 8, 64):
                cells = [
                    kernel_cost(prices, target, drafter, LENGTHS[-1], batch, CONTEXT)
                    for drafter in (draft_head(target, "eagle3"), None)
                ]
                costs = [
                    [float(c.overhead + c.draft[k] + c.verify[k]) / c.baseline for k in LENGTHS]
                    for c in cells
                ]
                names = model.removeprefix("llama-3.1-"), f"{tp} x {device.upper()}", str(batch)
                figures = f"{1e3 * cells[0].baseline:.1f}", *(f"{c:.2f}" for c in costs[0])
                yield f"| {' | '.join((*names, *figures, f'{costs[1][1]:.2f}'))} |"


def test_table_is_of_today():
    text = PAGE.read_text(encoding="utf-8")
    shown = [line for line in text.splitlines() if re.match(r"\| (8b|70b) ", line)]
    assert shown == list(lines(text))


def test_constants_and_errors_are_those_of_the_exam():
    """Constants are SpecDecode-Bench's, as the exam fits them; errors its medians, in percent."""
    text, found = PAGE.read_text(encoding="utf-8"), exam()
    held, fitted = stated_constants(text), found.constants["vLLM 0.10.1"]
    for term, digits in (("step", 3), ("row", 4), ("draft", 2)):
        assert getattr(held, term) * 1e3 == pytest.approx(fitted[term] / 1e3, abs=0.6 * 10**-digits)
    for name in ("batch 1", "batch 2 to 128"):
        errors = [found.errors(way, found.groups()[name]) for way in WAYS]
        medians = [f"{100 * sorted(map(abs, e))[len(e) // 2]:.1f}%" for e in errors]
        line = next(line for line in text.splitlines() if line.startswith(f"| {name} "))
        assert [cell.strip() for cell in line.split("|")[2:-1]] == medians
