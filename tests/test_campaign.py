"""The toy campaign on the CPU: stopped, killed and resumed, bound to one target, and reported."""

import json
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from toy_lm import toy_decoder
from typer.testing import CliRunner

from real.campaign import archive as bundle
from real.campaign import report, thresholds
from real.campaign.__main__ import campaign
from real.campaign.config import REQUIRED
from real.campaign.presets import FULL, TOY, training_of
from real.campaign.scheduler import MIN_SECONDS, advance, complete, state_table
from real.campaign.stage import RANKS, Stage
from real.campaign.stages import stages
from real.campaign.workspace import Workspace, WorkspaceError
from real.drafters import BUILTIN
from real.jobs import RULES
from real.model.target import Target
from real.record import Settings
from real.sampling import Rule
from real.train.compilation import compile_layers
from real.train.generate import generate_together
from real.train.predictor_examples import generate_one_by_one
from real.train.schedule import TrainSchedule
from real.train.trainer import Paused, fit
from simspec import CostModel, load_trace

ROOT = Path(__file__).parent.parent
APP = typer.Typer(pretty_exceptions_enable=False)
APP.command()(campaign)
KILLED = """
import sys
from pathlib import Path
from real.campaign.presets import TOY
from real.campaign.scheduler import advance
from real.campaign.stages import stages
from real.campaign.workspace import Workspace
import torch
torch.set_num_threads(1)
out, text, heldout, prompts = map(Path, sys.argv[1:])
folder = Workspace(out, TOY, (text,), (heldout,), (prompts,), "cpu")
folder.open()
advance(folder, stages(), 3600)
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("campaign")
    words = [
        "the", "drafter", "proposes", "and", "the", "target", "disposes", "of", "every", "token",
        "it", "is", "shown",
    ]  # fmt: skip
    for name, count in (("text.txt", 4000), ("held.txt", 400)):
        (folder / name).write_text(" ".join(words[i * i % len(words)] for i in range(count)))
    rows = [
        {
            "id": f"p{i}",
            "task": "ab"[i % 2],
            "text": f"the target {words[i]} the target {words[i]} the",
        }
        for i in range(8)
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def begun(inputs, out, size=TOY, seed=0):
    folder = Workspace(
        out,
        size,
        (inputs / "text.txt",),
        (inputs / "held.txt",),
        (inputs / "prompts.jsonl",),
        "cpu",
        seed,
    )
    folder.open()
    return folder


@pytest.fixture(scope="module")
def whole(inputs):
    """A campaign in one call, and what it printed."""
    paths = {
        "text": "text.txt",
        "heldout": "held.txt",
        "prompts": "prompts.jsonl",
        "out": "out",
        "results": "home",
    }
    given = [
        "--toy",
        "--device",
        "cpu",
        *(word for name, path in paths.items() for word in (f"--{name}", str(inputs / path))),
    ]
    return CliRunner().invoke(APP, [*given, "--limit", "60"])


def state_of(folder):
    return {
        p.relative_to(folder.out): p.read_bytes()
        for p in sorted(folder.out.rglob("*"))
        if p.is_file()
    }


def test_every_part_runs_in_one_call(inputs, whole):
    assert whole.exit_code == 0, whole.output
    assert "complete: yes" in whole.output
    assert "next call" not in whole.output
    assert "failed" not in whole.output
    folder = begun(inputs, inputs / "out")
    for part in stages():
        assert folder.result(part.name) is not None
    for drafter in BUILTIN:
        for rule in RULES:
            trace = load_trace(folder.trace(drafter, rule))
            assert trace.meta.rule == rule
            assert trace.meta.dtype == "float32"
        equal = folder.result(f"equal-{drafter}")
        assert equal["failures"] == 0
        assert equal["rounds"] > 0
        assert not equal["tf32"]
        for each in folder.result(f"forced-{drafter}")["rules"].values():
            assert each["rounds"] > 0
            assert each["failures"] == 0
    assert all(folder.result(f"drive-{d}")["replay_equal"] for d in REQUIRED)
    assert begun(inputs, inputs / "out").target == folder.target
    assert {(s.state, s.seconds) for s in advance(folder, stages(), 0.0)} == {
        ("done", 0.0)
    }  # nothing is done twice, however little time


def test_results_are_few_flat_files_and_a_bundle_that_replays(inputs, whole, tmp_path):
    home = sorted(p.name for p in (inputs / "home").iterdir())
    assert home == [
        "REPORT.md",
        "bundle.tar",
        "race.png",
        "recordings.tar",
        "report.json",
        "scorecard.png",
        "speedup.png",
    ]
    with tarfile.open(inputs / "home" / "bundle.tar") as tar:
        names = tar.getnames()
        assert not any(name.endswith(".safetensors") for name in names)
        assert {"race.json", "ladders/8b.json", "ladders/7b.json", "ladders/lab.json"} <= set(names)
        tar.extractall(tmp_path, filter="data")
    for drafter in REQUIRED:
        trace = load_trace(tmp_path / "traces" / f"toy-{drafter}-greedy.parquet")
        CostModel.from_json(tmp_path / "traces" / f"toy-{drafter}-greedy.cost.json")
        assert trace.meta.drafter == drafter
    said = json.loads((tmp_path / "report.json").read_text())
    manifest = json.loads((tmp_path / "campaign.json").read_text())
    assert said["target"] == manifest["target"]
    assert said["device"].startswith("cpu")
    assert said["complete"] is True
    assert {v["name"] for v in said["verdicts"]} >= {
        "complete",
        "float32 runs equal their replays",
        "scorecard on held-out prompts",
    }
    assert {
        p["target"]
        for p in map(json.loads, (q.read_text() for q in (tmp_path / "parts").iterdir()))
    } == {None, said["target"]}


def test_killed_between_parts_it_goes_on_and_comes_to_the_same(inputs, whole, tmp_path):
    out, names = tmp_path / "out", [part.name for part in stages()]
    arguments = [
        sys.executable,
        "-c",
        KILLED,
        out,
        *(inputs / name for name in ("text.txt", "held.txt", "prompts.jsonl")),
    ]
    run = subprocess.Popen(list(map(str, arguments)), cwd=ROOT, stdout=subprocess.DEVNULL)
    while run.poll() is None and not (out / "parts" / "drafter-early_exit.json").exists():
        time.sleep(0.02)
    run.send_signal(signal.SIGKILL)
    run.wait()
    there = {p.stem: (p.read_bytes(), p.stat().st_mtime_ns) for p in (out / "parts").glob("*.json")}
    assert set(there) >= {"text", "target", "distil", "drafter-model", "drafter-early_exit"}
    assert len(there) < len(names)
    folder = begun(inputs, out)
    states = advance(folder, stages()[: names.index("record-model-coupled") + 1], 3600)
    assert all(each.state == "done" for each in states)
    assert {s.stage.name for s in states if not s.seconds} == set(there)
    assert {
        p.stem: (p.read_bytes(), p.stat().st_mtime_ns)
        for p in (out / "parts").glob("*.json")
        if p.stem in there
    } == there
    for path in [*(out / "models").rglob("*.safetensors"), *(out / "traces").glob("*.parquet")]:
        unbroken = inputs / "out" / path.relative_to(out)
        if path.suffix == ".parquet":
            a, b = load_trace(path), load_trace(unbroken)
            assert a.token.tolist() == b.token.tolist()
            assert a.run.tolist() == b.run.tolist()
            assert (a.feature == b.feature).all()
        else:
            assert path.read_bytes() == unbroken.read_bytes(), path


def test_another_campaigns_folder_is_refused(inputs, whole, tmp_path):
    before = state_of(begun(inputs, inputs / "out"))
    for size, seed, key in (
        (replace(TOY, recording=replace(TOY.recording, budget=9)), 0, "size"),
        (TOY, 1, "seed"),
    ):
        with pytest.raises(WorkspaceError, match=f"started with {key}"):
            begun(inputs, inputs / "out", size, seed)
    assert state_of(begun(inputs, inputs / "out")) == before
    other = tmp_path / "out"
    folder = begun(inputs, other)
    folder.save_result("text", 0.0, {})
    (other / "models" / "target").mkdir(parents=True)
    (other / "models" / "target" / "model.safetensors").write_bytes(b"one")
    folder.save_target_hash()
    folder.save_result("target", 0.0, {"sha256": folder.target})
    assert begun(inputs, other).result("target") == {"sha256": folder.target}
    assert begun(inputs, other).result("text") == {}
    (other / "models" / "target" / "model.safetensors").write_bytes(b"two")
    with pytest.raises(WorkspaceError, match="not the one there now"):
        begun(inputs, other)
    (other / "models" / "target" / "model.safetensors").write_bytes(b"one")
    path = other / "parts" / "target.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"target": "ab" * 32}))
    with pytest.raises(WorkspaceError, match="campaigns are not merged"):
        advance(begun(inputs, other), stages(), 0.0)


class PhaseTimer:
    """Time that parts move."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def part(
        self, name, seconds, rank="required", needs=(), takes=None, resumes=False, fails=False
    ):
        """A stage of `takes` or `seconds`; one that resumes advances in steps of a second."""
        left = [takes or seconds]

        def make(folder):
            while left[0] > 0:
                left[0] -= 1
                self.now += 1
                folder.progress("working", 0, 1)
            if fails:
                raise RuntimeError("no luck\nat all")
            return {"ran": name}

        return Stage(name, rank, seconds, make, needs, resumes)


@pytest.fixture
def clocked(inputs, tmp_path):
    return PhaseTimer(), begun(inputs, tmp_path / "out", replace(TOY, pace=1.0))


def run(folder, todo, limit, clock):
    return {
        each.stage.name: each.state
        for each in advance(folder, todo, limit, clock, lambda line: None)
    }


def test_no_part_is_begun_that_does_not_fit(clocked):
    clock, folder = clocked
    todo = [
        clock.part("a", 30),
        clock.part("b", 50),
        clock.part("c", 20),
        clock.part("d", 5, "recommended"),
        clock.part("e", 5, needs=("b",)),
    ]
    assert run(folder, todo, 60, clock) == {
        "a": "done",
        "b": "left",
        "c": "done",
        "d": "left",
        "e": "left",
    }  # c fits; d is no must
    assert clock.now == 50
    assert run(folder, todo, 60, clock) == dict.fromkeys("abcde", "done")
    assert clock.now == 110


def test_a_part_that_resumes_is_begun_with_less_and_stopped(clocked):
    clock, folder = clocked
    long = clock.part("long", 200, resumes=True)
    todo = [long, clock.part("next", 10, needs=("long",)), clock.part("extra", 1, "recommended")]
    assert run(folder, todo, 100, clock) == {"long": "stopped", "next": "left", "extra": "left"}
    assert clock.now == 101
    assert run(folder, todo, MIN_SECONDS - 1, clock)["long"] == "left"
    assert run(folder, todo, 200, clock) == dict.fromkeys(("long", "next", "extra"), "done")
    late = clock.part(
        "late", 10, takes=500
    )  # one that does not resume is given up only far beyond the limit
    before = clock.now
    assert run(folder, [late], 20, clock) == {"late": "stopped"}
    assert clock.now - before == 51


def test_what_fails_stops_only_what_needs_it(clocked):
    clock, folder = clocked
    todo = [
        clock.part("a", 1),
        clock.part("s", 1, "recommended", fails=True),
        clock.part("t", 1, "recommended", ("s",)),
        clock.part("u", 1, "optional"),
    ]
    states = advance(folder, todo, 60, clock, lambda line: None)
    assert [each.state for each in states] == ["done", "failed", "left", "done"]
    assert complete(states)
    assert "RuntimeError: no luck at all" in states[1].why
    assert "Traceback" in (folder.out / "log" / "s.txt").read_text()
    assert "needs s" in state_table(states)
    assert state_table(states).count("\n") == 3
    assert not complete(
        advance(folder, [clock.part("m", 1, fails=True)], 60, clock, lambda line: None)
    )
    assert run(folder, [clock.part("s", 1, "recommended")], 60, clock) == {
        "s": "done"
    }  # tried anew


def test_parts_are_whole_and_in_order():
    names, ranks = [part.name for part in stages()], [part.rank for part in stages()]
    assert len(set(names)) == len(names)
    assert ranks == sorted(ranks, key=RANKS.index)
    for at, part in enumerate(stages()):
        assert set(part.needs) <= set(names[:at]), part.name
    must = sum(part.seconds for part in stages() if part.rank == "required")
    assert must <= 22 * 60
    assert max(part.seconds for part in stages()) < 9 * 60
    shape, lab = FULL.training.target, training_of(FULL, (), (), "cuda", 0)
    layer = (
        2 * shape.width * shape.head_dim * (shape.heads + shape.kv_heads)
        + 3 * shape.width * shape.hidden
    )
    assert 100e6 <= shape.layers * layer + shape.vocab * shape.width <= 200e6
    assert 20 <= shape.layers <= 28
    assert lab.compiled
    assert not training_of(FULL, (), (), "cpu", 0).compiled
    assert FULL.recording.per_task >= 24
    assert FULL.recording.budget >= 160
    assert FULL.recording.K == 16
    assert FULL.checks.min_tokens >= 20_000
    assert FULL.archive_bytes <= 6_000_000


def test_verdicts_are_computed_from_what_was_found(inputs, whole, tmp_path):
    folder = begun(inputs, inputs / "out")
    states = [("a", "required", "done", ""), ("b", "recommended", "left", "")]

    def lines(**doctored):
        made = Workspace(
            **{
                n: getattr(folder, n)
                for n in ("out", "config", "text", "heldout", "prompts", "device", "seed")
            }
        )
        honest = made.result
        made.result = lambda part: (
            doctored[part.replace("-", "_")](honest(part))
            if part.replace("-", "_") in doctored
            else honest(part)
        )
        return {v.name: v.passed for v in report.requirements(made, states)}

    true = lines()
    assert all(
        passed
        for name, passed in true.items()
        if not name.startswith(("scorecard", "fastest", "captured", "race"))
    )
    assert not {
        v.name: v.passed for v in report.requirements(folder, [("a", "required", "failed", "")])
    }["complete"]

    def turned(name, value):
        return lambda found: found | {name: value}

    def ruled(**more):
        return lambda found: (
            found | {"rules": {rule: each | more for rule, each in found["rules"].items()}}
        )

    def stepped(distance):
        return lambda found: (
            found
            | {"plain": {at: cell | {"distance": distance} for at, cell in found["plain"].items()}}
        )

    def over(ratio):
        return lambda found: (
            found | {"over_assisted": [each | {"ratio": ratio} for each in found["over_assisted"]]}
        )

    def driven(all_, task):
        groups = {"all": all_, "task:a": task}
        return lambda found: (
            found | {"rows": [row | {"speedup": all_, "groups": groups} for row in found["rows"]]}
        )

    cases = (
        ("float32 runs equal their replays", "equal_model", turned("exceptions", 1000)),
        ("float32 runs equal their replays", "equal_model", turned("tf32", True)),
        ("float32 runs equal their replays", "equal_model", turned("tokens", -10_000)),
        ("bf16 on the recordings' texts", "forced_eagle", ruled(equal=0)),
        ("bf16 free runs audited", "audit_medusa", ruled(clean=False)),
        ("recordings", "record_eagle_greedy", lambda found: None),
        ("recordings", "record_eagle_greedy", turned("by_task", {"a": {"texts": 1}})),
        (
            f"fastest on {TOY.emulation.model}, random weights, recorded acceptances",
            "drive_model",
            turned("replay_equal", False),
        ),
        ("captured plain step, 8b", "ladder_8b", stepped(1.7)),
        (
            "captured plain step, 8b",
            "ladder_8b",
            lambda found: stepped(1.5)(found) | {"graphed": False},
        ),
        ("captured plain step, lab", "ladder_lab", stepped(5.1)),
        ("race against transformers on the lab target", "race", over(1.2)),
    )
    for name, part, change in cases:
        assert lines(**{part: change})[name] is False, (name, part)

    assert lines(ladder_8b=stepped(1.5))["captured plain step, 8b"] is True
    assert lines(race=over(1.4))[cases[-1][0]] is True
    fast = {f"drive_{d}": driven(1.9, 2.6) for d in REQUIRED}
    assert lines(**fast)[cases[7][0]] is True
    for slow in (driven(1.7, 2.6), driven(1.9, 2.4)):  # too slow over all prompts, or on every task
        assert lines(**{d: slow for d in fast})[cases[7][0]] is False

    def rated(error):
        return lambda found: (
            found | {"rows": [row | {"error": error, "noise": 0.01} for row in found["rows"]]}
        )

    drafters = [f"score_{drafter}" for drafter in thresholds.DRAFTERS]
    scorecard = "scorecard on held-out prompts"
    assert lines(**{d: rated(0.02) for d in drafters})[scorecard] is True
    assert lines(**{d: rated(0.2) for d in drafters})[scorecard] is False
    assert lines(**{d: lambda found: None for d in drafters})[scorecard] is None
    slow = {
        d: lambda found: (
            found | {"rows": [row | {"speedup_measured": 0.9} for row in found["rows"]]}
        )
        for d in drafters
    }
    requirements = lines(
        **slow,
        tree_eagle=turned("speedup_measured", 0.5),
        tree_medusa=lambda f: None,
        tree_early_exit=lambda f: None,
    )
    assert requirements["fastest drafter and policy on the lab target"] is False


def _padded(path, size):
    """Zeros behind a tar's end change nothing in it."""
    path.write_bytes(path.read_bytes().ljust(size, b"\0"))


def test_a_bundle_is_thinned_until_it_fits_and_else_refused(inputs, whole, tmp_path, monkeypatch):
    folder = begun(inputs, inputs / "out")
    bundle.pack(folder, tmp_path / "a")
    bundle.pack(folder, tmp_path / "b")
    assert (tmp_path / "a" / "bundle.tar").read_bytes() == (
        tmp_path / "b" / "bundle.tar"
    ).read_bytes()
    sizes = iter(
        (folder.config.archive_bytes + 1, folder.config.archive_bytes)
    )  # of the bundle as it is, then without entropy
    honest = bundle._write_archive
    monkeypatch.setattr(
        bundle, "_write_archive", lambda *given: honest(*given) or _padded(given[1], next(sizes))
    )
    bundle.pack(folder, tmp_path / "c")
    monkeypatch.undo()
    with tarfile.open(tmp_path / "c" / "bundle.tar") as tar:
        tar.extractall(tmp_path / "held", filter="data")
    full, thin = (
        load_trace(folder.trace("model", "greedy")),
        load_trace(tmp_path / "held" / "traces" / "toy-model-greedy.parquet"),
    )
    assert [name for name, _ in full.meta.features] == ["confidence", "entropy", "theta"]
    assert [name for name, _ in thin.meta.features] == ["confidence", "theta"]
    assert thin.sequence.tolist() == full.sequence.tolist()
    assert (thin.features(("theta",)) == full.features(("theta",))).size
    with tarfile.open(tmp_path / "c" / "recordings.tar") as tar:
        assert "traces/toy-model-greedy.parquet" in tar.getnames()
    with pytest.raises(ValueError, match="bundle.tar has .* MB, expected"):
        bundle.pack(
            replace(folder, config=replace(folder.config, archive_bytes=10), _loaded={}),
            tmp_path / "d",
        )
    assert (tmp_path / "d" / "report.json").exists()
    assert (tmp_path / "d" / "recordings.tar").exists()


def test_training_that_is_paused_goes_on_to_the_same_weights(tmp_path):
    def trained(folder, pause):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        x = torch.randn(8, 4)

        def progress(label, done, total, note=""):
            if done == pause:
                raise Paused("time")

        return model, lambda: fit(
            folder,
            model,
            lambda step: (model(x) - x).square().mean(),
            TrainSchedule(steps=40, save_every=7),
            progress,
        )

    model, go = trained(tmp_path / "whole", None)
    go()
    _, go = trained(tmp_path / "paused", 20)
    with pytest.raises(Paused):
        go()
    again, go = trained(tmp_path / "paused", None)
    assert len(go()) == 4
    assert torch.equal(again.weight, model.weight)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_layers_are_compiled_where_that_works_and_plain_where_not():
    decoder = toy_decoder(0)
    token = torch.tensor([[1, 2, 3, 4]])
    plain = decoder(token)
    decoder.requires_grad_(True)
    assert compile_layers(decoder.layers, lambda: decoder(token).sum(), "eager") == ""
    assert all(layer._compiled_call_impl is not None for layer in decoder.layers)
    assert torch.allclose(decoder(token), plain)
    assert all(p.grad is None for p in decoder.layers.parameters())
    assert "not compiled: " in compile_layers(decoder.layers, lambda: 1 / 0)
    assert all(layer._compiled_call_impl is None for layer in decoder.layers)
    assert torch.equal(decoder(token), plain)


def test_texts_written_together_are_those_written_one_by_one():
    target = Target(toy_decoder(0))
    vocab = target.decoder.config.vocab
    asked = [Settings(3, 12, rule, (vocab - 1,)) for rule in (Rule(), Rule("coupled", 0.8, 3))]
    prompts = [[1, 2, 3], [3, 2, 1], [2, 2, 4]]
    a, b = (
        generate_one_by_one(target, asked, prompts, 7),
        generate_together(target, asked, prompts, 7),
    )
    assert [(w.sequence, w.prompt, w.new_tokens.tolist()) for w in a] == [
        (w.sequence, w.prompt, w.new_tokens.tolist()) for w in b
    ]
    assert all(torch.allclose(x.of_target, y.of_target) for x, y in zip(a, b))
    assert len({tuple(w.new_tokens.tolist()) for w in a}) > 1
    other = generate_together(
        target, asked, prompts, 8
    )  # other draw addresses: other sampled texts
    assert [w.new_tokens.tolist() for w in a[3:]] != [w.new_tokens.tolist() for w in other[3:]]


def test_the_call_refuses_what_it_cannot_use_and_says_how_to_go_on(inputs, tmp_path):
    def call(*more):
        given = [
            "--text",
            inputs / "text.txt",
            "--prompts",
            inputs / "prompts.jsonl",
            "--out",
            tmp_path / "out",
            "--toy",
            *more,
        ]
        return CliRunner().invoke(APP, list(map(str, given)))

    assert call("--device", "cpu", "--limit", "0").exit_code == 2
    assert call("--device", "tpu").exit_code == 2
    short = call("--device", "cpu", "--limit", "0.001")
    assert short.exit_code == 0
    assert "complete: no" in short.output
    assert "next call: " in short.output
    assert call("--device", "cpu", "--limit", "0.001", "--seed", "3").exit_code == 2


def test_the_module_runs_as_make_runs_it():
    result = subprocess.run(
        [sys.executable, "-m", "real.campaign", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--limit" in result.stdout
    assert "--results" in result.stdout
