"""The exam of GPU engines: its split, its errors recomputed, controls, and files of a user."""

from dataclasses import replace
from itertools import product
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simspec.cost.kernel_files import shipped_times
from simspec.cost.kernels import EngineConstants, KernelPrices, kernel_cost
from simspec.cost.shapes import SHAPES, draft_head
from simspec.cost.table import CostTable
from simspec.numerics.formulas import expected_committed
from simspec.policies.fixed import fixed
from simspec.replay.lock_step import BatchRules, policy_steps
from simspec.replay.replay import replay
from simspec.trace.synthetic import iid
from simspec.validation import gpu_exam
from simspec.validation.gpu_cells import (
    TERMS,
    Copies,
    GpuCell,
    Spent,
    Waves,
    draining,
    separate,
    spent,
    survival,
)
from simspec.validation.gpu_exam import ENGINES, GOALS, WAYS, exam, examine, fit_cells
from simspec.validation.gpu_report import exam_tables, plot_exam, signs, worst_cells

H100 = ("h100", "vllm")


@pytest.fixture(scope="module")
def result():
    return exam()


def test_goals_are_reached_on_shipped_figures(result):
    assert result.ok
    groups = result.groups()
    for name, goals in GOALS.items():
        for way, goal in goals.items():
            assert median(map(abs, result.errors(way, groups[name]))) <= goal


def test_fitted_cells_count_in_no_error(result):
    fitted = {i for i, held in enumerate(result.fitted) if held}
    assert fitted == {i for name in ENGINES for i in fit_cells(result.cells, name)}
    assert len(fitted) == 10
    for held in result.groups().values():
        assert not fitted & set(held)
    groups = result.groups()
    both = groups["batch 1"] + groups["batch 2 to 128"]
    assert sorted(both) == sorted(set(range(len(result.cells))) - fitted)


def test_cells_that_fit_are_those_of_the_stated_rule(result):
    """gsm8k or the only task, smallest and largest batch, smallest and largest K of each."""
    for name, engine in ENGINES.items():
        found = {
            (result.cells[i].task, result.cells[i].batch, result.cells[i].K)
            for i in fit_cells(result.cells, name)
        }
        assert (
            found
            == {
                "vLLM 0.10.1": {("gsm8k", 1, 3), ("gsm8k", 128, 3)},
                "vLLM 0.23": {("gsm8k", 1, 1), ("gsm8k", 1, 7)},
                "vLLM #20780, EAGLE-1": {("", 1, 2), ("", 1, 7)},
                "vLLM #20780, EAGLE-3": {("", 1, 2), ("", 1, 7)},
                "SGLang": {("gsm8k", 1, 3), ("gsm8k", 1, 7)},
            }[name]
        ), engine


def test_errors_are_those_of_a_slow_twin(result):
    data = result.to_dict()
    for group in data["groups"]:
        if group["group"] not in ENGINES:
            continue
        for way in WAYS:
            sizes = sorted(
                abs(cell["predicted"][way] / cell["measured"] - 1)
                for cell in data["cells"]
                if cell["engine"] == group["group"] and not cell["fitted"]
            )
            place = 0.9 * (len(sizes) - 1)
            low = int(place)
            high = sizes[min(low + 1, len(sizes) - 1)]
            assert group[way]["count"] == len(sizes)
            assert group[way]["median"] == pytest.approx(median(sizes))
            assert group[way]["worst"] == pytest.approx(sizes[-1])
            assert group[way]["p90"] == pytest.approx(
                sizes[low] + (high - sizes[low]) * (place - low)
            )


def priced(drafter, batch, context, K, constants):
    target = SHAPES["llama-3.1-8b"]
    head = None if drafter == "ngram" else draft_head(target, drafter)
    held = EngineConstants(constants["step"], constants["row"], constants["draft"])
    return kernel_cost(KernelPrices(shipped_times(*H100), held), target, head, K, batch, context)


def test_a_steady_cell_equals_the_costs_with_constants(result):
    """accepted length x plain step / round, by `kernel_cost` with EngineConstants."""
    seconds = {t: v / 1e6 for t, v in result.constants["vLLM 0.23"].items()}
    checked = 0
    for i, cell in enumerate(result.cells):
        if cell.table == "draft-length-audit":
            cost = priced("eagle3", cell.batch, cell.context, cell.K, seconds)
            whole = cost.overhead + cost.draft[cell.K] + cost.verify[cell.K] + seconds["round"]
            expected = cell.accepted_length * cost.baseline / whole
            assert result.speedups["fitted"][i] == pytest.approx(expected, rel=1e-9)
            checked += 1
    assert checked == 15


def test_copies_equal_a_sum_over_rounds():
    """Each request by itself: its prompt, then every round of the batch at its price."""
    rng = np.random.default_rng(0)
    constants = {"step": 1e-3, "row": 5e-6, "draft": 4e-4}
    for drafter, batch in product(("eagle3", "ngram"), (1, 16)):
        prompt, output = rng.integers(50, 300, 4).astype(float), rng.integers(40, 90, 4)
        counts = np.zeros((4, 4))
        counts[:, 3] = rng.integers(10, 30, 4)
        counts[:, 0] = 0 if drafter == "eagle3" else rng.integers(1, 30, 4)
        run_ = Copies(prompt, output.astype(float), counts)
        cell = GpuCell(
            "vLLM 0.10.1", "t", "", batch, 3, "llama-3.1-8b", drafter, 2.0, 1.0, 200, run=run_
        )
        work = spent(cell, H100)
        cost = priced(drafter, batch, 200, 3, constants)
        values = np.array([1, *(constants.get(term, 0.0) for term in TERMS[1:])])
        for n in range(4):
            further = batch * (prompt[n] + output[n] / 2 - 200)
            plain = drafted = 0.0
            for _ in range(output[n] - 1):
                plain += cost.baseline + cost.kv_verify * further
            for d, count in enumerate(counts[n].astype(int)):
                for _ in range(count):
                    drafted += cost.overhead + cost.draft[d] + cost.verify[d]
                    drafted += (cost.kv_verify + d * cost.kv_draft) * further
            prefill = work.plain[n] @ values - plain
            assert prefill > cost.baseline
            assert work.drafted[n] @ values - drafted == pytest.approx(prefill, rel=1e-6)
        rates = [(run_.output / (part @ values)).mean() for part in (work.drafted, work.plain)]
        assert work.speedup(values) == pytest.approx(rates[0] / rates[1])


@given(st.floats(1.01, 3.9), st.integers(1, 3), st.integers(1, 6))
def test_survival_equals_enumeration(length, K, tokens):
    length = min(length, K + 0.99)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_committed(middle, K) < length else (low, middle)
    shares = [high**i * (1 - high) for i in range(K)] + [high**K]
    left = survival(length, K, tokens)
    for t in range(len(left)):
        chance = 0.0
        for path in product(range(K + 1), repeat=t):
            if sum(i + 1 for i in path) < tokens:
                chance += np.prod([shares[i] for i in path])
        assert left[t] == pytest.approx(chance, abs=1e-9)
    assert len(left) <= tokens


@given(st.lists(st.floats(1e-9, 1), min_size=1, max_size=4), st.integers(1, 4))
def test_draining_equals_enumeration_of_who_is_left(chances, size):
    """Every subset of sequences in every round, at prices of all sizes."""
    left = np.minimum.accumulate(np.array([1.0, *chances]))
    step = {b: np.array([b + 0.5, 1, 1, 3, 4.0 * b]) for b in range(1, size + 1)}
    expected = np.zeros(5)
    for share in left:
        for inside in product((0, 1), repeat=size):
            active = sum(inside)
            chance = share**active * (1 - share) ** (size - active)
            expected += chance * (step[active] if active else 0)
    assert draining(left, size, step) == pytest.approx(expected, abs=1e-9)


def test_draining_is_what_a_batch_that_shrinks_takes():
    """The lock step of --ends shrink on i.i.d. recordings, within 5 standard errors."""
    K, size, tokens, length = 3, 8, 63, 1.7
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_committed(middle, K) < length else (low, middle)
    sizes = (1, 2, 4, 8)
    held = {"step": 1e-3, "row": 1e-5, "draft": 1e-4}
    cells = tuple((priced("eagle3", b, 132, K, held),) for b in sizes)
    table = CostTable(sizes, (132,), cells)
    found = []
    for seed in range(30):
        trace = iid(high, 10 * size, tokens, K, seed)
        steps = policy_steps(trace, replay(trace, fixed(K)), table, size, 132, BatchRules("shrink"))
        found.append(steps.seconds.sum() / 10)
    cell = GpuCell(
        "vLLM 0.23", "t", "", size, K, "llama-3.1-8b", "eagle3", length, 1.0, 132,
        run=Waves((size,), 100, tokens + 1),
    )  # fmt: skip
    work = spent(cell, H100)
    bare = spent(replace(cell, run=Waves((size,), 100, 2), accepted_length=1.0), H100)
    prefill = bare.plain[0] - spent(replace(cell, run=None), H100).plain[0]
    # rows of a padded step: the table counts its size, the exam the sequences in it
    values = np.array([1, 1e-3, 0, 1e-4, 1e-5])
    expected = float((work.drafted[0] - prefill) @ values)
    error = np.std(found, ddof=1) / np.sqrt(len(found))
    assert abs(np.mean(found) - expected) < 5 * error + 0.01 * expected
    full = (
        tokens / length * float(spent(replace(cell, run=None), H100).drafted[0] @ values) * length
    )
    assert np.mean(found) - full > 20 * error  # control: without draining it is far off


@given(st.lists(st.tuples(st.floats(1, 4), st.integers(1, 90)), min_size=1, max_size=4))
def test_own_lengths_come_out_of_counters_that_go_on(runs):
    tokens = rounds = 0.0
    counters = []
    for length, weight in runs:
        tokens, rounds = tokens + weight, rounds + weight / length
        counters.append(tokens / rounds)
    found = separate(counters, [weight for _, weight in runs])
    assert found == pytest.approx([length for length, _ in runs], rel=1e-6)


def test_control_another_device_is_far_off(result, monkeypatch):
    """An A100 has a third of the arithmetic. A faster memory is no control: speedups are ratios."""
    cells = [cell for cell in result.cells if cell.engine == "vLLM 0.10.1"]
    engine = replace(ENGINES["vLLM 0.10.1"], kernels=("a100", "vllm"))
    monkeypatch.setattr(gpu_exam, "ENGINES", {"vLLM 0.10.1": engine})
    wrong = examine(cells)
    held, here = (e.groups()["vLLM 0.10.1"] for e in (wrong, result))
    for way in ("kernels alone", "fitted"):
        factor = 2 if way == "fitted" else 1.1
        right = median(map(abs, result.errors(way, here)))
        assert median(map(abs, wrong.errors(way, held))) > factor * right


def test_kernels_take_less_than_a_published_plain_step_and_those_of_another_device_do_not(result):
    other = {"h200": "h100", "h100": "a100"}
    checked = 0
    for cell in result.cells:
        if cell.plain_step and cell.target != "qwen3-30b-a3b":
            device, engine = ENGINES[cell.engine].kernels
            assert spent(cell, (device, engine)).plain[0, 0] < cell.plain_step
            if cell.target == "llama-3.1-8b":
                assert spent(cell, (other[device], engine)).plain[0, 0] > cell.plain_step
                checked += 1
    assert checked > 50


def test_control_shuffled_speeds_fail(result):
    rng = np.random.default_rng(0)
    speeds = rng.permutation([cell.speedup for cell in result.cells])
    cells = [replace(cell, speedup=float(s)) for cell, s in zip(result.cells, speeds)]
    wrong = examine(cells)
    assert not wrong.ok
    assert median(map(abs, wrong.errors("fitted", wrong.groups()["batch 1"]))) > 0.1


def test_true_constants_are_recovered(result):
    """Speeds made by constants give these back, and no error."""
    steps = {name: gpu_exam._step(engine) for name, engine in ENGINES.items()}
    truth = {
        "vLLM 0.10.1": [0, 3e-4, 9e-6], "vLLM 0.23": [0, 2e-4, 1e-5],
        "vLLM #20780, EAGLE-1": [5e-4, 1e-4, 0], "vLLM #20780, EAGLE-3": [6e-4, 7e-4, 0],
        "SGLang": [9e-4, 2e-4, 0],
    }  # fmt: skip
    works = [spent(cell, ENGINES[cell.engine].kernels) for cell in result.cells]
    cells = [
        replace(c, speedup=gpu_exam.predicted(c, w, np.array(truth[c.engine]), steps))
        for c, w in zip(result.cells, works)
    ]
    again = examine(cells)
    for name, values in truth.items():
        found = [again.constants[name][term] for term in TERMS[2:]]
        assert found == pytest.approx([1e6 * v for v in values], rel=1e-3, abs=0.5), name
    errors = again.errors("fitted", range(len(cells)))
    assert np.abs(errors).max() < 1e-4


def test_an_engines_own_speeds_move_no_prediction_from_other_engines(result):
    """Nor does the speed of a cell that is not fitted move any prediction."""
    spoiled = [
        replace(cell, speedup=1.5 * cell.speedup) if cell.engine == "SGLang" else cell
        for cell in result.cells
    ]
    again = examine(spoiled)
    for i, cell in enumerate(result.cells):
        for way in ("kernels alone", "no fit", "other engines"):
            if cell.engine == "SGLang":
                assert again.speedups[way][i] == result.speedups[way][i]
    unfitted = [
        cell if fitted else replace(cell, speedup=0.7 * cell.speedup)
        for cell, fitted in zip(result.cells, result.fitted)
    ]
    assert examine(unfitted).speedups == result.speedups


def test_scaled_kernels_give_the_published_plain_step():
    work = Spent(np.ones(1), np.array([[8e-3, 1, 0, 0, 8]]), np.array([[1e-2, 1, 1, 3, 32]]))
    cell = GpuCell("SGLang", "t", "", 8, 3, "x", "eagle3", 2.0, 1.0, plain_step=6e-3)
    for fitted in (np.zeros(3), np.array([1e-3, 1e-4, 1e-5]), None):
        for plain in (6e-3, 9e-3):
            values = gpu_exam.held_constants(replace(cell, plain_step=plain), work, fitted, 0.5)
            assert (work.plain @ values)[0] == pytest.approx(plain)
            assert values.min() >= 0


def test_tables_and_picture(result, tmp_path):
    first, worst, *_, directions = exam_tables(result)
    assert first.rows[0][0] == "batch 1"
    assert len(worst.rows) == len(worst_cells(result))
    assert {row[0] for row in worst.rows}.isdisjoint({"draft-length-audit"})
    known = [sign for sign in signs(result) if sign["predicted"]]
    assert len(known) == 3
    assert sum("not computable" in row[2] for row in directions.rows) == 4
    plot_exam(result, tmp_path / "exam.png")
    assert (tmp_path / "exam.png").read_bytes()[:4] == b"\x89PNG"
