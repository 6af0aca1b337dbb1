"""Files that a user fetches for the exam of GPU engines: found, read, missing and damaged."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from import_files import positions, written
from shell import refused, run

from simspec.policies.fixed import fixed
from simspec.replay.replay import replay
from simspec.trace.synthetic import iid
from simspec.validation import gpu_tables


def batch_csv(path, speedup=1.2, tasks=("gsm8k", "humaneval", "mt_bench")):
    lines = ["workload,K,batch,net_speedup,accept_len"]
    lines += [
        f"{task},{K},{batch},{speedup},{1.4 + 0.1 * K}"
        for task, K, batch in product(tasks, (1, 2), (1, 8, 16))
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


LONG_HEADER = "approach,model,batch,ctx_len,workload,method,K,tok_per_s,net_speedup,aps"


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, 30, 60) for _ in range(5)]
    requests = [(text, text[:50], np.minimum(rng.geometric(0.5, 50), 6)) for text in texts]
    path = tmp_path / gpu_tables.POSITIONS[0].path
    path.parent.mkdir(parents=True)
    written(path, positions(requests))
    batch_csv(tmp_path / gpu_tables.AUDIT.path)
    long = tmp_path / gpu_tables.LONG.path
    long.parent.mkdir(parents=True)
    rows = [
        "v,llama8b,32,8192,quality,baseline,0,990.0,1.0,",
        "v,llama8b,32,8192,q,e,2,950.0,.96,1.1",
    ]
    long.write_text("\n".join([LONG_HEADER, *rows]) + "\n")
    return tmp_path


def test_a_folder_adds_its_cells_and_names_what_it_lacks(folder, capsys):
    code, out, err = run(capsys, "check", "--published", "--data", folder, "--json")
    assert (code == 0) == json.loads(out)["ok"]
    data = json.loads(out)["exam"]
    assert err == ""
    assert len(data["notes"]) == 3
    assert all("fetch it from https://github.com/SpecDecode-Bench" in n for n in data["notes"])
    tables = [cell["table"] for cell in data["cells"]]
    assert tables.count("draft-length-audit") == 18
    assert tables.count("draft-length-audit, 8192 tokens") == 1
    assert [cause["count"] for cause in data["causes"]] == [12, 12, 12]
    replayed = [
        cell["accepted_length"]
        for cell in data["cells"]
        if (cell["table"], cell["task"]) == ("specdecode-bench-eagle3", "gsm8k")
    ]
    assert len(set(replayed)) == 1
    assert replayed[0] != pytest.approx(2.3792, abs=1e-3)


def test_files_are_found_in_checkouts_and_by_name(folder, tmp_path_factory):
    flat = tmp_path_factory.mktemp("flat")
    name = Path(gpu_tables.POSITIONS[0].path).name
    (flat / name).write_bytes((folder / gpu_tables.POSITIONS[0].path).read_bytes())
    assert gpu_tables.POSITIONS[0].under(flat) == flat / name
    (flat / "curves.csv").write_text("two files have this name")
    assert gpu_tables.AUDIT.under(flat) is None
    checkout = flat / "speculative-decoding-draft-length-audit" / gpu_tables.AUDIT.path
    batch_csv(checkout)
    assert gpu_tables.AUDIT.under(flat) == checkout


DAMAGE = {
    "empty": "",
    "no table": "hello",
    "no number": "workload,K,batch,net_speedup,accept_len\ngsm8k,1,8,fast,1.4\n",
    "a task missing": "workload,K,batch,net_speedup,accept_len\ngsm8k,1,8,1.2,1.4\n",
    "too long for K": "workload,K,batch,net_speedup,accept_len\ngsm8k,1,8,1.2,4\n",
    "a short row": "workload,K,batch,net_speedup,accept_len\ngsm8k,1,8\n",
    "too large": "#" * ((1 << 20) + 1),
    "quotes": 'workload,K,batch,net_speedup,accept_len\n"gsm8k,1,8\n',
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_table_is_one_line(folder, damage):
    path = folder / gpu_tables.AUDIT.path
    path.write_text(DAMAGE[damage])
    with pytest.raises(ValueError, match="not a table of the audit") as caught:
        gpu_tables.all_cells(folder)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line, words", [("v,gpt,1,8192,q,e,1,1,1,1", "gpt"), ("v,1", "cells")])
def test_a_damaged_table_of_long_contexts_is_one_line(folder, line, words):
    (folder / gpu_tables.LONG.path).write_text(f"{LONG_HEADER}\n{line}\n")
    with pytest.raises(ValueError, match=f"curves.csv: .*{words}|curves.csv: .*range") as caught:
        gpu_tables.all_cells(folder)
    assert "\n" not in str(caught.value)


def test_a_damaged_recording_and_wrong_options_are_one_line(folder):
    (folder / gpu_tables.POSITIONS[0].path).write_text('{"id": 1')
    refused(folder, "check", "--published", "--data", folder, words="combined_gsm8k.jsonl")
    refused(folder, "check", "--published", "--data", "nowhere", words="is no folder")
    refused(folder, "check", "--data", folder, words="add --published")
    refused(folder, "check", "--plot", "a.png", words="add --published")


def test_requests_at_the_token_limit_are_left_out():
    trace = iid(0.6, 3, 60, 3, 0)
    assert len(gpu_tables.copies(trace, 3).output) == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_tables, "STOPPED", 60)
        assert len(gpu_tables.copies(trace, 3).output) == 0


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(1, 3))
def test_copies_of_a_recording_are_its_rounds(seed, K):
    trace = iid(0.6, 4, 50, 3, seed)
    rounds = replay(trace, fixed(K))
    made = gpu_tables.copies(trace, K)
    for s in range(4):
        drafted = rounds.drafted[rounds.offset[s] : rounds.offset[s + 1]].tolist()
        assert made.rounds[s].tolist() == [drafted.count(d) for d in range(K + 1)]
    assert made.output.tolist() == [50.0] * 4


def test_waves_are_those_of_the_scripts():
    assert gpu_tables.audit_waves(8, "gsm8k").sizes == (8,) * 8
    assert gpu_tables.audit_waves(16, "gsm8k").sizes == (4,)
    assert gpu_tables.audit_waves(32, "humaneval").sizes == (32, 32)
    assert gpu_tables.audit_waves(64, "gsm8k").sizes == (64, 32)
    assert gpu_tables.audit_waves(64, "mt_bench").sizes == (64, 16)
