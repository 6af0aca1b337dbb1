"""`simspec engine`: list, run, measure and compare, with an engine in this process."""

import json
import lzma
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_engine import FakeRunner, prompts
from shell import command, simspec
from test_engine_batches import PLAIN, clock
from test_engine_measure import stepped

import real.engines
from real.engines.rows import read_rows
from simspec import CostModel
from simspec.cost.table import CostTable
from simspec.engines.ngram import ngram_rule
from simspec.engines.text import WrittenText, record_texts

RUN = ("engine", "run", "vllm", "--model", "m", "--recording", "t.parquet", "--drafter",
       "ngram:1,2", "-k", 0, "-k", 1, "-k", 4, "--repeats", 2, "--prompts", 0)  # fmt: skip
SCHEDULED = ("engine", "run", "vllm", "--model", "m", "--recording", "t.parquet", "--drafter",
             "ngram:1,2", "--prompts", 0, "--concurrent", 4, "--schedule", "v.json")  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A recording of prompts, and vLLM replaced by the fake one."""
    import numpy as np

    world = prompts(24)
    texts = [
        WrittenText(r.id, "t", np.array(r.prompt, np.int32), np.array(future[:24], np.int32), 24)
        for r, future in world
    ]
    for text, (request, future) in zip(texts, world):
        cut = future.index(3) + 1 if 3 in future[:24] else 24
        object.__setattr__(text, "output", np.array(future[:cut], np.int32))
        assert request.max_tokens == 24
    record_texts(texts, ngram_rule("vllm:1,2"), 4, (3,)).save(tmp_path / "t.parquet")
    (tmp_path / "m").mkdir()
    environment = SimpleNamespace(version="0.32.0", python=Path("python"), package="vllm")
    monkeypatch.setattr(real.engines, "find_environment", lambda *_: environment)
    fake = {"seconds": stepped, "step_seconds": clock, "jitter": 1e-4}
    monkeypatch.setattr(real.engines, "Worker", lambda *_: FakeRunner(world, **fake))
    return tmp_path


def test_measure_run_and_compare_confirm_the_recommendation(folder):
    out, _ = simspec(
        "engine", "measure", "vllm", "--model", "m", "--recording", "t.parquet", "--drafter",
        "ngram:1,2", "--depth", 4, "--out", "v.cost.json", cwd=folder,
    )  # fmt: skip
    assert "vllm 1.0: a plain pass takes 999.98 ms; wrote v.cost.json" in out
    assert "2.400" in out
    assert CostModel.from_json(folder / "v.cost.json").K == 4
    simspec(*RUN, "--out", "r.jsonl", cwd=folder)
    out, _ = simspec("engine", "compare", "r.jsonl", "--cost", "v.cost.json", cwd=folder)
    assert "0 exceptions" in out
    assert "recommended: K = " in out
    assert ", confirmed; " in out
    out, _ = simspec("engine", "compare", "r.jsonl", "--cost", "v.cost.json", "--json", cwd=folder)
    report = json.loads(out)
    assert report["passes"]["equal"]
    assert report["speedups"]["median_error"] < 0.01
    page, _ = simspec(
        "engine", "compare", "r.jsonl", "--cost", "v.cost.json", "--markdown", cwd=folder
    )
    assert "| K | predicted [95%] | measured [95%] | error |" in page
    assert "costs of fake, vllm 1.0, V1 runner" in page
    other = (folder / "v.cost.json").read_text().replace("1.0, V1 runner", "1.0, V2 runner")
    (folder / "v2.cost.json").write_text(other)
    _, note = simspec("engine", "compare", "r.jsonl", "--cost", "v2.cost.json", cwd=folder)
    assert note.startswith("simspec: priced on vLLM's V2 runner, and the run is on V1, whose")
    before = (folder / "r.jsonl").read_bytes()
    simspec(*RUN, "--out", "r.jsonl", cwd=folder)  # nothing is left to run
    assert (folder / "r.jsonl").read_bytes() == before


def test_costs_below_a_plain_pass_are_refused(folder, monkeypatch):
    fake = FakeRunner(prompts(24), seconds=lambda drafted, k: 0.5 if drafted else 1.0)
    monkeypatch.setattr(real.engines, "Worker", lambda *_: fake)
    code, _, error = command(
        folder, "engine", "measure", "vllm", "--model", "m", "--recording", "t.parquet",
        "--depth", 2, "--out", "v.cost.json",
    )  # fmt: skip
    assert code == 2
    assert "a round of 1 drafts at 0.50 of a plain step; measure the costs again" in error
    assert "remove v.cost.json.rows.jsonl, which the command continues" in error
    assert not (folder / "v.cost.json").exists()


def test_batches_are_measured_run_exported_and_run_again_by_the_schedule(folder):
    out, _ = simspec(
        "engine", "measure", "vllm", "--model", "m", "--recording", "t.parquet", "--drafter",
        "ngram:1,2", "--depth", 4, "--concurrent", 2, "--concurrent", 4, "--concurrent", 1,
        "--prompts", 5, "--out", "v.cost.json", cwd=folder,
    )  # fmt: skip
    for size, seconds in PLAIN.items():
        batch = f" batch {size}" if size > 1 else ""
        (found,) = re.findall(rf"vllm 1.0{batch}: a plain pass takes ([\d.]+) ms", out)
        assert float(found) == pytest.approx(1000 * seconds, rel=1e-3)
        assert (folder / f"v.cost.json.b{size}.rows.jsonl").exists()
    assert CostTable.from_json(folder / "v.cost.json").batch == (1, 2, 4)
    simspec(*RUN, "--concurrent", 4, "--out", "r.jsonl", cwd=folder)
    out, _ = simspec("engine", "compare", "r.jsonl", "--cost", "v.cost.json", cwd=folder)
    assert "0 exceptions" in out
    assert "batch 4, recommended: K = " in out
    simspec(
        "export", "vllm", "t.parquet", "--cost", "v.cost.json", "--method", "ngram",
        "--out", "v.json", cwd=folder,
    )  # fmt: skip
    exported = json.loads((folder / "v.json").read_text())
    ranges = [[1, 1, 4], [2, 3, 2], [4, 4, 0]]
    changed = exported | {
        "num_speculative_tokens": 4, "num_speculative_tokens_per_batch_size": ranges,
        "prompt_lookup_min": 1, "prompt_lookup_max": 2,
    }  # fmt: skip
    (folder / "v.json").write_text(json.dumps(changed))
    simspec(*SCHEDULED, "--out", "s.jsonl", cwd=folder)
    out, _ = simspec("engine", "compare", "s.jsonl", "--cost", "v.cost.json", "--json", cwd=folder)
    report = json.loads(out)
    assert report["about"]["schedule"] == ranges
    assert report["passes"]["equal"]
    assert report["speedups"]["batch"] == 4
    assert report["speedups"]["worst_error"] < 0.1
    out, _ = simspec("engine", "compare", "s.jsonl", "--cost", "v.cost.json", cwd=folder)
    assert "batch 4, recommended: the schedule, confirmed" in out
    assert out.count("│ schedule │") == 2  # passes and speedups
    (folder / "s.rows.jsonl").write_bytes((folder / "s.jsonl").read_bytes())
    (folder / "s.cost.json").write_bytes((folder / "v.cost.json").read_bytes())
    out, _ = simspec("engine", "compare", *["s.rows.jsonl"] * 2, "--markdown", cwd=folder)
    assert "| vllm 1.0, batch 4 | n-gram 1 to 2 | 12 | 1500.0 ms | schedule | " in out
    assert "| the schedule, confirmed | " in out


@pytest.mark.parametrize("change,reason", [
    ({}, "drafts by ngram of 1 to 3 tokens, --drafter is ngram of 1 to 2 tokens: give the same"),
    ({"method": "draft_model", "model": "d"}, "drafts by draft_model, --drafter is ngram of 1 to"),
    ({"num_speculative_tokens_per_batch_size": [[1, 2, 3], [4, 8, 1]]}, "a range from 3 on"),
    ({"num_speculative_tokens_per_batch_size": [[1, 4, 0], [5, 8, 3]], "prompt_lookup_max": 2},
     "v.json drafts nothing at up to 4 requests: run with -k 0"),
    ({"num_speculative_tokens": "3"}, "got `str`"),
    (None, "v.json: not JSON"),
])  # fmt: skip
def test_invalid_schedules_are_one_line(folder, change, reason):
    config = {"method": "ngram", "num_speculative_tokens": 3}
    if change is not None and "model" not in change:
        config |= {"prompt_lookup_min": 1, "prompt_lookup_max": 3}
    (folder / "v.json").write_text("{" if change is None else json.dumps(config | change))
    _, error = simspec(*SCHEDULED, "--out", "r.jsonl", cwd=folder, code=2)
    assert reason in error
    assert error.count("\n") == 1
    assert not (folder / "r.jsonl").exists()


def test_several_runs_are_a_line_each_with_the_costs_beside_them(folder):
    measure = ("engine", "measure", "vllm", "--model", "m", "--recording", "t.parquet")
    simspec(*measure, "--drafter", "ngram:1,2", "--depth", 4, "--out", "a.cost.json", cwd=folder)
    simspec(*RUN, "--out", "a.rows.jsonl", cwd=folder)
    packed = lzma.compress((folder / "a.rows.jsonl").read_bytes())
    (folder / "b.rows.jsonl.xz").write_bytes(packed)
    both = ("engine", "compare", "a.rows.jsonl", "b.rows.jsonl.xz")
    _, error = simspec(*both, cwd=folder, code=2)
    assert "b.cost.json" in error
    (folder / "b.cost.json").write_bytes((folder / "a.cost.json").read_bytes())
    out, _ = simspec(*both, "--json", cwd=folder)
    one, other = json.loads(out)["runs"]
    assert one == other
    whole = json.loads(simspec(*both[:3], "--cost", "a.cost.json", "--json", cwd=folder)[0])
    assert one["table"] == whole["speedups"]
    assert one["passes"] == whole["passes"]["passes"]
    best = max((row for row in one["table"]["rows"] if row["k"]), key=lambda row: row["predicted"])
    assert one["drafting"]["k"] == best["k"]
    page, _ = simspec(*both, "--markdown", "--plot", "runs.png", cwd=folder)
    assert (folder / "runs.png").read_bytes().startswith(b"\x89PNG")
    head, line, *rest = page.splitlines()
    assert head.startswith("| engine | drafter | prompts | plain pass | K | predicted [95%] |")
    assert len(rest) == 2
    assert rest[0] == rest[1]
    assert rest[0].startswith(f"| vllm 1.0 | n-gram 1 to 2 | {whole['speedups']['prompts']} | ")
    assert ", confirmed |" in rest[0]


def test_several_runs_without_costs_are_compared_in_passes_alone(folder):
    simspec(*RUN, "--out", "a.rows.jsonl", cwd=folder)
    (folder / "b.rows.jsonl").write_text(with_a_wrong_pass((folder / "a.rows.jsonl").read_text()))
    (folder / "c.rows.jsonl").write_bytes((folder / "a.rows.jsonl").read_bytes())
    whole = json.loads(simspec("engine", "compare", "a.rows.jsonl", "--json", cwd=folder)[0])
    right = ("engine", "compare", "a.rows.jsonl", "c.rows.jsonl")
    one, other = json.loads(simspec(*right, "--json", cwd=folder)[0])["passes"]
    assert one == other == whole["passes"]
    page, _ = simspec(*right, "--markdown", cwd=folder)
    assert "| vllm 1.0 | n-gram 1 to 2 | 1 | 0, 1, 4 | 12 | 72 | " in page
    wrong = ("engine", "compare", "a.rows.jsonl", "b.rows.jsonl")
    page, _ = simspec(*wrong, "--markdown", cwd=folder, code=1)
    assert page.splitlines()[-2 if page.endswith("\n\n") else -1].endswith("| 1 | 0 | 0 |")


def with_a_wrong_pass(text):
    """The rows, one of K = 4 with a draft in the prompt's pass."""
    lines = text.splitlines()
    place = next(i for i, line in enumerate(lines) if '"k":4' in line and i)
    row = json.loads(lines[place])
    row["finished"]["passes"][0] = [1, 4, 0]
    lines[place] = json.dumps(row)
    return "\n".join(lines) + "\n"


def test_a_wrong_pass_is_listed_and_is_exit_code_1(folder):
    simspec(*RUN, "--out", "r.jsonl", cwd=folder)
    (folder / "r.jsonl").write_text(with_a_wrong_pass((folder / "r.jsonl").read_text()))
    out, _ = simspec("engine", "compare", "r.jsonl", cwd=folder, code=1)
    assert "1 exceptions" in out
    assert "K = 4: passes 0, engine [1, 4, 0], predicted [1, 0, 0]" in out


def test_policies_run_and_are_compared(folder):
    CostModel.from_ratio(0.1, 4).to_json(folder / "c.json")
    asked = (*RUN[:7], "--drafter", "ngram:1,2", "-k", 0, "-k", 4, "--repeats", 1)
    policies = ("--policy", "cost_ts", "--policy", "beta_ts", "--cost", "c.json")
    simspec(*asked, *policies, "--out", "p.jsonl", cwd=folder)
    out, _ = simspec("engine", "compare", "p.jsonl", "--json", cwd=folder)
    found = json.loads(out)
    assert [*found["passes"]["counters"]] == ["0", "4", "beta_ts", "cost_ts"]
    assert found["passes"]["exceptions"] == 0
    about, rows = read_rows(folder / "p.jsonl")
    assert {row.policy for row in rows} == {"", "cost_ts", "beta_ts"}
    assert (about["seed"], CostModel.from_dict(about["draft"]["cost"]).K) == (0, 4)
    out, _ = simspec("engine", "compare", "p.jsonl", cwd=folder)
    assert "cost_ts" in out


POLICIES_REFUSED = [
    (("--cost", "c.json"), "--cost is read by policies"),
    (("--policy", "oracle"), "reads tokens not yet decoded"),
    (("--policy", "fixed:9"), "drafts up to 9"),
    (("--policy", "confidence:0.5"), "reads 'confidence'"),
    (("--policy", "cost_ts", "--drafter", "none"), "name a drafter"),
    (("--policy", "cost_ts", "--policy", "cost_ts"), "expected different ones"),
]


REFUSED = [
    (("run", "sglang", "--model", "m", "--out", "r.jsonl"), "engine 'sglang' is unknown, expected"),
    ((*RUN[1:], "--out", "r.jsonl", "--part", "3"), "--part is '3', expected PART/PARTS"),
    ((*RUN[1:], "--out", "r.jsonl", "--drafter", "eagle"), "--drafter is 'eagle', expected ngram"),
    ((*RUN[1:], "--out", "no/r.jsonl"), "there is no folder no"),
    *(((*RUN[1:], *options, "--out", "r.jsonl"), reason) for options, reason in POLICIES_REFUSED),
    ((*SCHEDULED[1:], "--out", "r.jsonl"), "v.json cannot be read: No such file"),
    ((*SCHEDULED[1:], "-k", 0, "-k", 2, "--out", "r.jsonl"), "and plain decoding: leave -k out"),
    (("measure", "transformers", *RUN[3:5], "--concurrent", 4, "--out", "r.jsonl"), "batch is 4"),
    (
        ("measure", "vllm", "--model", "gone", "--recording", "t.parquet", "--out", "r.jsonl"),
        "--model gone is not here, expected a folder of safetensors, a GGUF",
    ),
    (("compare", "none.jsonl"), "none.jsonl cannot be read"),
    (("compare", "t.parquet"), "is no row of a run"),
    (("compare", "a.jsonl", "b.jsonl"), "a.jsonl cannot be read"),
    (("compare", "t.parquet", "--plot", "p.png"), "--plot draws two runs or more"),
    (("compare", "a.jsonl", "b.jsonl", "--cost", "c.json"), "have their costs next to them"),
]


@pytest.mark.parametrize("arguments,reason", REFUSED, ids=range(len(REFUSED)))
def test_errors_are_one_line(folder, arguments, reason):
    CostModel.from_ratio(0.1, 4).to_json(folder / "c.json")
    _, error = simspec("engine", *arguments, cwd=folder, code=2)
    assert reason in error
    assert error.count("\n") == 1
    assert not (folder / "r.jsonl").exists()


def test_list_names_every_engine(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMSPEC_ENGINES", "nowhere")
    out, _ = simspec("engine", "list", "--json", cwd=tmp_path)
    rows = {row["engine"]: row for row in json.loads(out)["rows"]}
    assert "vllm" in rows
    assert "make engines" in rows["vllm"]["installed"]


def test_an_untested_version_runs_after_a_trial_but_no_method_that_it_dropped(folder, monkeypatch):
    from test_trial import Late, runner_of

    untested = SimpleNamespace(version="0.33.0", python=folder / "bin/python", package="vllm")
    monkeypatch.setattr(real.engines, "find_environment", lambda *_: untested)

    def run(kind, **given):
        made = runner_of("vllm", kind=kind)
        made.world |= FakeRunner(prompts(24)).world
        monkeypatch.setattr(real.engines, "Worker", lambda *_: made)
        return simspec(*RUN, "--out", "r.jsonl", cwd=folder, **given)[1]

    assert "vllm 0.33.0 was not tested" in run(Late, code=2)
    assert not (folder / "r.jsonl").exists()
    untested.version = "0.34.0"
    assert "passes of a trial equal the replay" in run(FakeRunner)
    assert (folder / "r.jsonl").exists()
    (folder / "h").mkdir()
    heads = {"model_type": "medusa", "num_heads": 4, "medusa_fc_bias": True}
    (folder / "h/config.json").write_text(json.dumps(heads))
    _, error = simspec(*RUN, "--drafter", "h", "--out", "h.jsonl", cwd=folder, code=2)
    assert "vLLM 0.34.0 has no method 'medusa', which versions below 0.33 take" in error
