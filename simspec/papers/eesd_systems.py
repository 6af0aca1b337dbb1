"""Tables 1 to 3 and Figures 1b and 3 of EESD (arXiv 2406.03853): all systems, greedy decoding."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from simspec.numerics.stats import quotient
from simspec.output.table import Table
from simspec.papers.claim import Inputs
from simspec.papers.eesd import METHODS, TASK_NOTE, K
from simspec.papers.recorded import MEASURED, Recorded
from simspec.papers.table import (
    FLAT,
    Cell,
    accepted_and_paid,
    at,
    figure,
    plain,
    speed_cells,
    speed_headings,
    speedup,
    tasks_of,
)
from simspec.policies.calibrated import cali_ts
from simspec.policies.fixed import fixed
from simspec.policies.thompson import beta_ts
from simspec.policy.policy import Policy

SAMPLES = 5
Printed = Mapping[str, str]
"""{method: the paper's HM and speedups}."""
LLAMA_70B = {
    "Vanilla SD": "80.35, 1.88x; 67.30, 1.46x", "Self SD": "78.64, 1.37x; 68.60, 1.23x",
    "Medusa": "33.75, 1.73x; 25.69, 1.42x", "EESD (+Beta-TS)": "58.79, 2.13x; 51.91, 1.80x",
    "EESD (+Cali-TS)": "62.25, 2.29x; 53.41, 1.86x",
}  # fmt: skip
CODELLAMA_13B = {
    "Vanilla SD": "91.12, 1.09x", "Self SD": "83.51, 1.38x", "Medusa": "49.14, 1.97x",
    "EESD (+Beta-TS)": "68.94, 2.21x", "EESD (+Cali-TS)": "70.15, 2.45x",
}  # fmt: skip
VICUNA_13B = {
    "Vanilla SD": "81.50, 0.91x", "Self SD": "86.20, 1.46x", "Medusa": "30.11, 1.71x",
    "EESD (+Beta-TS)": "52.82, 1.82x", "EESD (+Cali-TS)": "54.83, 1.89x",
}  # fmt: skip


def table_1(inputs: Inputs) -> Table:
    """Mathematics and summaries: GSM8K and XSum in the paper."""
    tasks = {"math": ("math",), "summary": ("summary", "summarization")}
    return _systems(inputs, "EESD Table 1: math and summary", tasks, "LLaMA-2-70B", LLAMA_70B)


def table_2(inputs: Inputs) -> Table:
    """Code: HumanEval, as in the paper."""
    title, tasks = "EESD Table 2: code", {"code": ("code",)}
    return _systems(inputs, title, tasks, "CodeLLaMA-2-13B", CODELLAMA_13B)


def table_3(inputs: Inputs) -> Table:
    """Dialogue: MT-bench, as in the paper."""
    title, tasks = "EESD Table 3: MT-bench", {"chat": ("chat", "dialogue")}
    return _systems(inputs, title, tasks, "Vicuna-13B", VICUNA_13B)


def _systems(
    inputs: Inputs, title: str, tasks: Mapping[str, Sequence[str]], target: str, printed: Printed
) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for recorded in _greedy(inputs):
        for method, policy in _policies(recorded):
            cells: list[Cell] = [
                cell
                for names in tasks.values()
                for cell in _hm_and_speed(recorded, policy, inputs, names)
            ]
            flat = _hm_and_speed(at(recorded, FLAT), policy, inputs, ())
            name = method.partition(",")[0]
            rows.append((recorded.name, method, *cells, flat[1], printed.get(name, "-")))
    each = [f"{task}: {metric}" for task in tasks for metric in ("HM", "speedup")]
    return Table(
        title=title,
        headings=("recording", "method", *each, speed_headings()[-1], f"paper, {target}"),
        rows=tuple(rows),
        notes=(
            TASK_NOTE,
            "The paper's drafters have 0.5 to 7 B parameters: the order of systems compares, "
            "figures do not. EAGLE, GLIDE, Hydra and prompt lookup are not in its table. Cali-TS "
            "needs a recorded theta.",
        ),
        names=2,
    )


def _greedy(inputs: Inputs) -> Iterator[Recorded]:
    """The greedy recording of each target and drafter, as deep as there is one."""
    for drafter in METHODS:
        yield from (r for r in inputs.recordings.deep(drafter, K) if r.rule == "greedy")


def _policies(recorded: Recorded) -> list[tuple[str, Policy]]:
    """[(method, policy)]: drafts of 10 tokens, or Thompson sampling for EESD."""
    longest, method = min(K, recorded.trace.K), METHODS[recorded.drafter]
    if method != "EESD":
        return [(f"{method}, K = {longest}", fixed(longest))]
    return [(f"EESD (+{name})", policy) for name, policy in _thompson(recorded, longest)]


def _thompson(recorded: Recorded, longest: int) -> list[tuple[str, Policy]]:
    """Beta-TS, and Cali-TS where theta is recorded."""
    policies = [("Beta-TS", beta_ts(K=longest))]
    if "theta" in dict(recorded.trace.meta.features):
        policies.append(("Cali-TS", cali_ts(predictor="theta", K=longest)))
    return policies


def _hm_and_speed(
    recorded: Recorded, policy: Policy, inputs: Inputs, names: Sequence[str]
) -> tuple[Cell, Cell]:
    """(harmonic mean of v_d and r_d in per cent, speedup) on the prompts of these tasks."""
    chosen = tasks_of(recorded, names)
    if not chosen.any():
        return "-", "-"
    accepted, paid = accepted_and_paid(recorded, policy, inputs)
    columns = 200 * accepted[chosen], paid[chosen]
    seconds = recorded.priced_seconds(policy, MEASURED, inputs.seed, inputs.draws)
    hm = figure(columns, quotient, ".1f", inputs.seed)
    return hm, speedup(recorded, seconds, inputs, chosen)


def figure_1b(inputs: Inputs) -> Table:
    """Milliseconds a token of five samples at each draft length."""
    rows: list[tuple[Cell, ...]] = []
    lengths = range(1, K + 1)
    for recorded in inputs.recordings.of("early_exit", "eagle"):
        if recorded.trace.K < K:
            continue
        math = np.flatnonzero(tasks_of(recorded, ("math",)))
        if not len(math):
            continue
        seconds = recorded.fixed_seconds(MEASURED, K)
        for s in dict.fromkeys(math[np.linspace(0, len(math) - 1, SAMPLES).astype(int)].tolist()):
            each = 1000 * seconds[:, s] / recorded.tokens[s]
            best = str(1 + int(each.argmin()))
            rows.append((recorded.name, f"{s}", *(plain(x, ".2f") for x in each.tolist()), best))
    return Table(
        title="EESD Figure 1b: milliseconds a token by draft length, five samples of GSM8K",
        headings=("recording", "sample", *(f"K = {k}" for k in lengths), "best K"),
        rows=tuple(rows),
        notes=(
            "Replayed at measured costs, without intervals: each row is one prompt. Samples are "
            "spread evenly over the task. `simspec claims --claim 4` tests what the figure says.",
        ),
        names=2,
    )


def figure_3(inputs: Inputs) -> Table:
    """Speedup by fixed draft length, and of Thompson sampling."""
    rows: list[tuple[Cell, ...]] = []
    for recorded in inputs.recordings.of("early_exit"):
        longest = min(K, recorded.trace.K)
        policies = [(f"K = {k}", fixed(k)) for k in range(1, longest + 1)]
        for name, policy in (*policies, *_thompson(recorded, longest)):
            rows.append((recorded.name, name, *speed_cells(partial(at, recorded), policy, inputs)))
    return Table(
        title="EESD Figure 3: speedup by draft length, and of Thompson sampling",
        headings=("recording", "draft length", *speed_headings()),
        rows=tuple(rows),
        notes=(
            TASK_NOTE,
            "In the paper Beta-TS is slightly faster than the best K, and Cali-TS than Beta-TS.",
        ),
        names=2,
    )


TABLES = {
    "eesd-1": table_1,
    "eesd-2": table_2,
    "eesd-3": table_3,
    "eesd-figure-1b": figure_1b,
    "eesd-figure-3": figure_3,
}
