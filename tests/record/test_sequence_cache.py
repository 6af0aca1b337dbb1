"""Sequence caches: recordings from cached sequences are equal, and unfit files are refused."""

import json
from dataclasses import replace

import pytest
import torch
from toy_lm import END, RULES, VOCAB, ToyPairs, toy_prompts

from real.model.captured_passes import CapturedPasses
from real.prompts import Prompt
from real.record import RecordError, Recording, RecordingFiles, Settings, record_all, recorder
from real.record.sequences import checksum
from real.record.settings import describe
from real.sampling import Rule

OTHER_SEED = replace(RULES["coupled"], seed=RULES["coupled"].seed + 1)
PAIRS = ToyPairs()


PROMPTS = [Prompt(str(i), "toy", "random", p) for i, p in enumerate(toy_prompts(5))]


def recorded(out, name="eagle", record_settings=None, cache=None, prompts=PROMPTS, **meta):
    target, drafter = PAIRS[name]
    record_settings = record_settings or Settings(4, 8, RULES["coupled"], END)
    described = describe("toy", drafter, record_settings, prompts, "", "cpu", torch.float64)
    files = RecordingFiles(out, 2, cache)
    meta = replace(described, argv=(), **meta)
    return record_all([Recording(target, drafter, record_settings, files, meta)], prompts)[0]


def test_recording_from_the_cache_is_equal(tmp_path, monkeypatch):
    cache = tmp_path / "cache.json"
    plain = {name: recorded(tmp_path / f"{name}.parquet", name) for name in ("eagle", "medusa")}
    assert recorded(tmp_path / "a.parquet", cache=cache) == plain["eagle"]
    wrote = cache.read_bytes()
    monkeypatch.setattr(recorder, "target_sequence", lambda *_: pytest.fail("the target ran again"))
    assert recorded(tmp_path / "b.parquet", "medusa", cache=cache) == plain["medusa"]
    assert cache.read_bytes() == wrote
    assert (tmp_path / "b.parquet").read_bytes() == (tmp_path / "medusa.parquet").read_bytes()


def test_sequences_of_other_prompts_are_added(tmp_path):
    cache = tmp_path / "cache.json"
    recorded(tmp_path / "a.parquet", cache=cache, prompts=PROMPTS[:2])
    turned = PROMPTS[::-1]
    assert recorded(tmp_path / "b.parquet", cache=cache, prompts=turned) == recorded(
        tmp_path / "c.parquet", prompts=turned
    )
    assert len(json.loads(cache.read_text())["texts"]) == 7


@pytest.mark.parametrize(
    "changed, named",
    [
        ({"record_settings": Settings(4, 9, RULES["coupled"], END)}, "budget"),
        ({"record_settings": Settings(4, 8, RULES["coupled"], (4,))}, "end_tokens"),
        ({"record_settings": Settings(4, 8, RULES["greedy"], END)}, "rule"),
        ({"record_settings": Settings(4, 8, OTHER_SEED, END)}, "seed"),
        ({"record_settings": Settings(4, 8, RULES["coupled"], END, batch=2)}, "batch"),
        ({"device": "another GPU"}, "device"),
        ({"target": "toy/2"}, "target"),
    ],
)
def test_cache_of_another_recording_is_refused(tmp_path, changed, named):
    cache = tmp_path / "cache.json"
    recorded(tmp_path / "a.parquet", cache=cache)
    with pytest.raises(
        RecordError, match=f"sequences made with another .*{named if named != 'rule' else ''}"
    ):
        recorded(tmp_path / "b.parquet", cache=cache, **changed)
    assert not (tmp_path / "b.parquet").exists()


@pytest.mark.parametrize(
    "harm",
    [
        lambda held: held["texts"].popitem(),
        lambda held: next(iter(held["texts"].values()))[0].append(1),
        lambda held: held.pop("sha256"),
        lambda held: held.update(texts=7),
    ],
)
def test_damaged_cache_is_refused(tmp_path, harm):
    cache = tmp_path / "cache.json"
    recorded(tmp_path / "a.parquet", cache=cache)
    held = json.loads(cache.read_text())
    harm(held)
    cache.write_text(json.dumps(held))
    with pytest.raises(
        RecordError, match="cache.json (is damaged|holds no sequences).* delete it"
    ) as caught:
        recorded(tmp_path / "b.parquet", cache=cache)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        [[1, VOCAB], [0, 0]], [[1], [0, 0]], [[], []], [[3, 1], [0, 0]], [[1.0], [0]],
        [[True], [0]], [[1] * 9, [0] * 9], 5,
    ],
)  # fmt: skip
def test_invalid_sequence_is_refused_despite_its_checksum(tmp_path, text):
    cache = tmp_path / "cache.json"
    recorded(tmp_path / "a.parquet", cache=cache)
    held = json.loads(cache.read_text())
    held["texts"][next(iter(held["texts"]))] = text
    cache.write_text(json.dumps(held | {"sha256": checksum(held["texts"])}))
    with pytest.raises(RecordError, match="damaged|no sequences"):
        recorded(tmp_path / "b.parquet", cache=cache)


def test_cache_of_other_passes_is_refused(tmp_path, monkeypatch):
    cache = tmp_path / "cache.json"
    recorded(tmp_path / "a.parquet", cache=cache)
    passes = CapturedPasses((1, 5), 64, compiled=False)
    monkeypatch.setattr(PAIRS["eagle"][0], "passes", passes, raising=False)
    with pytest.raises(RecordError, match="made with another passes"):
        recorded(tmp_path / "b.parquet", cache=cache)


def test_probabilities_of_the_rejection_rule_are_cached(tmp_path, monkeypatch):
    rejection, cache = Settings(4, 8, Rule("rejection", 1.0, 0), END, ()), tmp_path / "cache.json"
    plain = recorded(tmp_path / "plain.parquet", "medusa", rejection)
    recorded(tmp_path / "a.parquet", "eagle", rejection, cache)
    monkeypatch.setattr(recorder, "target_sequence", lambda *_: pytest.fail("the target ran again"))
    assert recorded(tmp_path / "b.parquet", "medusa", rejection, cache) == plain
