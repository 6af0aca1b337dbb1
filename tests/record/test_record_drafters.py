"""Several drafters recorded on sequences written once equal those recorded one by one."""

import json
from dataclasses import replace

import pytest
import torch
from shell import command, refused
from toy_lm import DRAFTERS, END, RULES, TOYS, toy_prompts, toy_target

from real.decode.features import drafter_features
from real.model import passes as full_pass
from real.model.target import Target
from real.prompts import Prompt
from real.record import Recording, RecordingFiles, Settings, record_all, recorder
from real.record.settings import describe
from real.sampling import Rule
from simspec import load_trace

PROMPTS = [Prompt(str(i), "toy", "random", p) for i, p in enumerate(toy_prompts(5, 2))]
REJECTION = Rule("rejection", 0.9, 4)


def recording(folder, name, rule, batch=2):
    """The part of one drafter; all share the decoder."""
    decoder = toy_target()
    drafter = TOYS[name](decoder, 0)
    features = () if rule.sampled else drafter_features(drafter)
    settings = Settings(3, 8, rule, END, features, (), batch)
    meta = replace(describe("toy", drafter, settings, PROMPTS, "", "cpu", torch.float64), argv=())
    target = Target(decoder, drafter.taps, capacity=32)
    files = RecordingFiles(folder / f"{name}.parquet", shard_size=2)
    return Recording(target, drafter, settings, files, meta)


@pytest.mark.parametrize("rule", [*RULES.values(), REJECTION], ids=lambda rule: rule.name)
@pytest.mark.parametrize("batch", [1, 2])
def test_recordings_equal_those_made_one_by_one(tmp_path, rule, batch):
    prompts = PROMPTS[:3]  # a whole shard and a part of one, as many batches
    together = record_all(
        [recording(tmp_path / "all", name, rule, batch) for name in DRAFTERS], prompts
    )
    for name, trace in zip(DRAFTERS, together):
        (alone,) = record_all([recording(tmp_path / "one", name, rule, batch)], prompts)
        assert trace == alone, name
        files = [tmp_path / folder / f"{name}.parquet" for folder in ("all", "one")]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert sorted(p.name for p in (tmp_path / "all").iterdir()) == sorted(
        f"{name}.parquet" for name in DRAFTERS
    )


@pytest.mark.parametrize("rule", [*RULES.values(), REJECTION], ids=lambda rule: rule.name)
def test_prompt_lookup_is_recorded_without_passes_of_the_target(tmp_path, monkeypatch, rule):
    traces = []
    for folder in ("first", "again"):
        part = recording(tmp_path / folder, "prompt_lookup", rule)
        kept = RecordingFiles(part.files.trace, sequence_cache=tmp_path / "sequences.json")
        traces += record_all([replace(part, files=kept)], PROMPTS)
        monkeypatch.setattr(Target, "verify", lambda *_: pytest.fail("a pass of the target"))
    assert traces[0] == traces[1]


def test_target_passes_over_each_sequence_once(tmp_path, monkeypatch):
    passed = []
    run = full_pass.full_pass

    def counted(lm, token):
        if lm is toy_target():
            passed.append(len(token))
        return run(lm, token)

    monkeypatch.setattr(full_pass, "full_pass", counted)
    names = ("eagle", "medusa", "hydra", "glide")
    record_all([recording(tmp_path, name, RULES["coupled"]) for name in names], PROMPTS)
    assert len(passed) == len(PROMPTS)
    passed.clear()
    for name in names:
        record_all([recording(tmp_path, name, RULES["coupled"])], PROMPTS)
    assert len(passed) >= 3 * len(PROMPTS)  # GLIDE reads it only where a draft goes on


def test_killed_job_continues_each_drafter_at_its_own_shard(tmp_path, monkeypatch):
    names = ("eagle", "prompt_lookup")
    whole = record_all(
        [recording(tmp_path / "whole", name, RULES["greedy"]) for name in names], PROMPTS
    )
    rows, recorded = recorder.record_sequence, []

    def until_the_sixth(target, drafter, *rest):
        if len(recorded) == 5:
            raise KeyboardInterrupt
        recorded.append(drafter.name)
        return rows(target, drafter, *rest)

    folder = tmp_path / "killed"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(recorder, "record_sequence", until_the_sixth)
        record_all([recording(folder, name, RULES["greedy"]) for name in names], PROMPTS)
    (folder / "eagle.parquet.parts" / "000000.parquet").unlink()
    recorded.clear()

    def counted(target, drafter, *rest):
        recorded.append(drafter.name)
        return rows(target, drafter, *rest)

    monkeypatch.setattr(recorder, "record_sequence", counted)
    resumed = record_all([recording(folder, name, RULES["greedy"]) for name in names], PROMPTS)
    assert resumed == whole
    assert recorded.count("eagle") == 5
    assert recorded.count("prompt_lookup") == 3


# ---- the command

COMMAND = ("-k", 2, "--budget", 4, "--per-task", 3)


@pytest.fixture
def folder(tmp_path):
    lines = [json.dumps({"task": "a", "text": f"one two {i} three"}) for i in range(3)]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    return tmp_path


def test_command_records_drafters_into_a_folder(folder, monkeypatch):
    names = ("model", "eagle", "prompt_lookup")
    chosen = [word for name in names for word in ("--drafter", name)]
    code, out, error = command(folder, "record", "p.jsonl", *chosen, "--out", "all", *COMMAND)
    assert code == 0, error
    assert out.count("wrote all/") == 3
    for name in names:
        alone = ("record", "p.jsonl", "--drafter", name, "--out", f"{name}.parquet", *COMMAND)
        assert command(folder, *alone)[0] == 0
        together = load_trace(folder / "all" / f"{name}.parquet")
        one = load_trace(folder / f"{name}.parquet")
        assert together == replace(one, meta=replace(one.meta, argv=together.meta.argv))
        assert json.loads((folder / "all" / f"{name}.json").read_text())["texts"] == 3
    # a further drafter reads the sequences; whole recordings are kept
    kept = (folder / "all" / "model.parquet").read_bytes()
    monkeypatch.setattr(
        "real.record.sequences.target_sequences", lambda *_: pytest.fail("written again")
    )
    more = ("record", "p.jsonl", "--drafter", "model", "--drafter", "medusa", "--out", "all")
    assert command(folder, *more, *COMMAND)[0] == 0
    assert (folder / "all" / "model.parquet").read_bytes() == kept
    assert (folder / "all" / "medusa.parquet").exists()
    deeper = ("record", "p.jsonl", "--drafter", "glide", "--out", "all", *COMMAND, "-k", 3)
    assert command(folder, *deeper)[0] == 0
    assert load_trace(folder / "all" / "glide.parquet").K == 3
    assert not list((folder / "all").glob("*.parts"))


@pytest.mark.parametrize(
    "options, words",
    [
        (("--drafter", "model", "--weights", "w"), "--weights names the folder of one drafter"),
        (("--drafter", "model", "--engine", "fast"), "recorded on engine eager"),
        (("--drafter", "eagle"), "expected each once"),
        (("--drafter", "egle"), "did you mean eagle"),
    ],
)
def test_unfit_options_are_refused(folder, options, words):
    refused(
        folder, "record", "p.jsonl", "--drafter", "eagle", *options, "--out", "all", *COMMAND,
        words=words,
    )  # fmt: skip


def test_sequences_are_reused_across_rules_only_where_equal(folder):
    """Control: sequences of another rule are refused, not used."""
    both = ("record", "p.jsonl", "--drafter", "model", "--drafter", "prompt_lookup", "--out", "all")
    assert command(folder, *both, *COMMAND)[0] == 0
    refused(
        folder, *both, "--rule", "coupled", *COMMAND, words="made with another rule", progress=True
    )
