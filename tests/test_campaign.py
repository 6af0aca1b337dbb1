"""The toy campaign on the CPU: one call, kills, its folder, its report and its archive."""

import json
import signal
import tarfile
from dataclasses import replace

import pytest
from toy_campaign import APP, open_workspace, write_inputs
from typer.testing import CliRunner

from real.campaign import report
from real.campaign import requirements as thresholds
from real.campaign.config import REQUIRED, TOY
from real.campaign.scheduler import advance
from real.campaign.stages import stages
from real.campaign.workspace import Workspace, WorkspaceError
from real.drafters import BUILTIN
from real.jobs import RULES
from real.measure import device_limits
from simspec import CostModel, load_trace

pytestmark = pytest.mark.usefixtures("few_replicates", "short_predictors", "bare_axes")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("campaign"))


def options_of(inputs, out, results):
    """The command's options for those inputs, with time for all stages."""
    paths = {
        "text": inputs / "text.txt",
        "heldout": inputs / "held.txt",
        "prompts": inputs / "prompts.jsonl",
        "out": out,
        "results": results,
    }
    words = [word for name, path in paths.items() for word in (f"--{name}", str(path))]
    return ["--toy", "--device", "cpu", *words, "--limit", "60"]


@pytest.fixture(scope="module")
def whole(inputs, few_replicates, short_predictors, bare_axes):
    """A campaign in one call, and what it printed."""
    with pytest.MonkeyPatch.context() as patch:
        for sizes in (device_limits.COPY_BYTES, device_limits.MATRIX_SIDE):
            patch.setitem(sizes, "cpu", 64)  # how fast this machine is does not matter here
        return CliRunner().invoke(APP, options_of(inputs, inputs / "out", inputs / "home"))


def state_of(folder):
    return {
        p.relative_to(folder.out): p.read_bytes()
        for p in sorted(folder.out.rglob("*"))
        if p.is_file()
    }


def test_every_stage_runs_in_one_call(inputs, whole):
    assert whole.exit_code == 0, whole.output
    assert "complete: yes" in whole.output
    assert "next call" not in whole.output
    assert "failed" not in whole.output
    folder = open_workspace(inputs, inputs / "out")
    for part in stages():
        assert folder.result(part.name) is not None
    # lookahead depends on earlier rounds, a sorted drafter has a report of its own, and suffix
    # decoding is recorded without a campaign
    for drafter in set(BUILTIN) - {"lookahead", "sorted", "suffix"}:
        for rule in RULES:
            trace = load_trace(folder.trace(drafter, rule))
            assert trace.meta.rule == rule
            assert trace.meta.dtype == "float32"
        equal = folder.result(f"equal-{drafter}")
        assert equal["failures"] == 0
        assert equal["rounds"] > 0
        assert not equal["tf32"]
        for rule_result in folder.result(f"forced-{drafter}")["rules"].values():
            assert rule_result["rounds"] > 0
            assert rule_result["failures"] == 0
    assert all(folder.result(f"drive-{d}")["replay_equal"] for d in REQUIRED)
    assert open_workspace(inputs, inputs / "out").target == folder.target
    assert {(s.state, s.seconds) for s in advance(folder, stages(), 0.0)} == {
        ("done", 0.0)
    }  # nothing is done twice, however little time


def test_results_hold_a_report_and_an_archive_that_replays(inputs, whole, tmp_path):
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
    saved_report = json.loads((tmp_path / "report.json").read_text())
    manifest = json.loads((tmp_path / "campaign.json").read_text())
    assert saved_report["target"] == manifest["target"]
    assert saved_report["device"].startswith("cpu")
    assert saved_report["complete"] is True
    assert {v["name"] for v in saved_report["verdicts"]} >= {
        "complete",
        "float32 runs equal their replays",
        "scorecard on held-out prompts",
    }
    assert {
        p["target"]
        for p in map(json.loads, (q.read_text() for q in (tmp_path / "parts").iterdir()))
    } == {None, saved_report["target"]}


def test_killed_campaign_resumes_to_the_same_results(server, inputs, whole, tmp_path):
    out, names = tmp_path / "out", [part.name for part in stages()]
    last = out / "parts" / "drafter-eagle.json"
    options = options_of(inputs, out, tmp_path / "home")
    code, _ = server(tmp_path, options, program="campaign", once=str(last))
    assert code == -signal.SIGKILL, server.error
    there = {p.stem: (p.read_bytes(), p.stat().st_mtime_ns) for p in (out / "parts").glob("*.json")}
    assert set(there) >= {"text", "target", "distil", "drafter-eagle"}
    assert len(there) < len(names)
    folder = open_workspace(inputs, out)
    states = advance(folder, stages()[: names.index("record-eagle-coupled") + 1], 3600)
    assert all(status.state == "done" for status in states)
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


def test_workspace_of_another_campaign_is_refused(inputs, whole, tmp_path):
    before = state_of(open_workspace(inputs, inputs / "out"))
    for size, seed, key in (
        (replace(TOY, recording=replace(TOY.recording, budget=9)), 0, "size"),
        (TOY, 1, "seed"),
    ):
        with pytest.raises(WorkspaceError, match=f"started with {key}"):
            open_workspace(inputs, inputs / "out", size, seed)
    assert state_of(open_workspace(inputs, inputs / "out")) == before
    other = tmp_path / "out"
    folder = open_workspace(inputs, other)
    folder.save_result("text", 0.0, {})
    (other / "models" / "target").mkdir(parents=True)
    (other / "models" / "target" / "model.safetensors").write_bytes(b"one")
    folder.save_target_hash()
    folder.save_result("target", 0.0, {"sha256": folder.target})
    assert open_workspace(inputs, other).result("target") == {"sha256": folder.target}
    assert open_workspace(inputs, other).result("text") == {}
    (other / "models" / "target" / "model.safetensors").write_bytes(b"two")
    with pytest.raises(WorkspaceError, match="not the one there now"):
        open_workspace(inputs, other)
    (other / "models" / "target" / "model.safetensors").write_bytes(b"one")
    path = other / "parts" / "target.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"target": "ab" * 32}))
    with pytest.raises(WorkspaceError, match="campaigns are not merged"):
        advance(open_workspace(inputs, other), stages(), 0.0)


def test_requirements_follow_from_results(inputs, whole, tmp_path):
    folder = open_workspace(inputs, inputs / "out")
    states = [("a", "required", "done", ""), ("b", "recommended", "left", "")]

    def lines(**doctored):
        workspace = Workspace(
            **{
                n: getattr(folder, n)
                for n in ("out", "config", "text", "heldout", "prompts", "device", "seed")
            }
        )
        honest = workspace.result
        workspace.result = lambda part: (
            doctored[part.replace("-", "_")](honest(part))
            if part.replace("-", "_") in doctored
            else honest(part)
        )
        return {v.name: v.passed for v in report.requirements(workspace, states)}

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
        return lambda result: result | {name: value}

    def ruled(**changes):
        return lambda result: (
            result | {"rules": {rule: entry | changes for rule, entry in result["rules"].items()}}
        )

    def stepped(distance):
        return lambda result: (
            result
            | {
                "plain": {
                    key: cell | {"distance": distance} for key, cell in result["plain"].items()
                }
            }
        )

    def over(ratio):
        return lambda result: (
            result
            | {"over_assisted": [entry | {"ratio": ratio} for entry in result["over_assisted"]]}
        )

    def driven(all_, task):
        groups = {"all": all_, "task:a": task}
        return lambda result: (
            result | {"rows": [row | {"speedup": all_, "groups": groups} for row in result["rows"]]}
        )

    cases = (
        ("float32 runs equal their replays", "equal_model", turned("exceptions", 1000)),
        ("float32 runs equal their replays", "equal_model", turned("tf32", True)),
        ("float32 runs equal their replays", "equal_model", turned("tokens", -10_000)),
        ("bf16 on the recordings' texts", "forced_eagle", ruled(equal=0)),
        ("bf16 free runs audited", "audit_medusa", ruled(clean=False)),
        ("recordings", "record_eagle_greedy", lambda result: None),
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
            lambda result: stepped(1.5)(result) | {"graphed": False},
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
        return lambda result: (
            result | {"rows": [row | {"error": error, "noise": 0.01} for row in result["rows"]]}
        )

    drafters = [f"score_{drafter}" for drafter in thresholds.DRAFTERS]
    scorecard = "scorecard on held-out prompts"
    assert lines(**{d: rated(0.02) for d in drafters})[scorecard] is True
    assert lines(**{d: rated(0.2) for d in drafters})[scorecard] is False
    assert lines(**{d: lambda result: None for d in drafters})[scorecard] is None
    slow = {
        d: lambda result: (
            result | {"rows": [row | {"speedup_measured": 0.9} for row in result["rows"]]}
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


def test_oversized_archive_drops_features_or_is_refused(inputs, whole, tmp_path, monkeypatch):
    folder = open_workspace(inputs, inputs / "out")
    report.pack(folder, tmp_path / "a")
    report.pack(folder, tmp_path / "b")
    assert (tmp_path / "a" / "bundle.tar").read_bytes() == (
        tmp_path / "b" / "bundle.tar"
    ).read_bytes()
    sizes = iter(
        (folder.config.archive_bytes + 1, folder.config.archive_bytes)
    )  # of the full archive, then without entropy
    honest = report._write_archive
    monkeypatch.setattr(
        report,
        "_write_archive",
        lambda *arguments: honest(*arguments) or _padded(arguments[1], next(sizes)),
    )
    report.pack(folder, tmp_path / "c")
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
        report.pack(
            replace(folder, config=replace(folder.config, archive_bytes=10), _loaded={}),
            tmp_path / "d",
        )
    assert (tmp_path / "d" / "report.json").exists()
    with pytest.raises(ValueError, match="files to keep; expected 1 at most"):
        report.pack(folder, tmp_path / "e", report.ResultLimits(files=1))
    with pytest.raises(ValueError, match="larger than 1e-06 MB"):
        report.pack(folder, tmp_path / "e", report.ResultLimits(file_bytes=1))
    assert (tmp_path / "d" / "recordings.tar").exists()
