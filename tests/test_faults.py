"""Bad input through the real command line: one line on stderr, exit code 2, and nothing written."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from contextlib import chdir
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numba
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, load_file, save_file
from shell import command, refused

import simspec.trace_file
from real.demo import TRACES
from real.drafters.eagle import EagleHead
from real.drafters.glide import GlideModel
from real.drafters.hydra import HydraHeads
from real.drafters.medusa import MedusaHeads
from real.files import replace_json
from real.model.checkpoint import load_decoder, load_tokenizer, made_for
from real.model.compressed import content
from real.model.draft_head import SAID, save_draft_head
from real.pair import TINY
from simspec import (
    CostModel,
    Policy,
    PolicyError,
    Trace,
    TraceError,
    load_trace,
    replay,
    sweep,
    synthetic,
)
from simspec.trace_meta import SCHEMA

HELD = settings(
    deadline=None, max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
PARTS = {"eagle": EagleHead, "medusa": MedusaHeads, "hydra": HydraHeads, "glide": GlideModel}
RECORDED, PRICED = TRACES / "tiny-model-greedy.parquet", TRACES / "tiny-model-greedy.cost.json"


def changed(trace, **parts):
    return Trace(**({name: getattr(trace, name) for name in trace.__dataclass_fields__} | parts))


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A folder with a recording, a cost model, prompts and text; tests leave it as it was."""
    folder = tmp_path_factory.mktemp("lab")
    load_trace(RECORDED).select([0, 1]).save(folder / "t.parquet")
    CostModel.from_ratio(0.3, 16).to_json(folder / "c.json")
    CostModel.from_ratio(0.3, 3).to_json(folder / "short.json")
    rows = [
        {"id": f"p{i}", "task": "ab"[i % 2], "text": f"The target, number {i},"} for i in range(4)
    ]
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "text.txt").write_text("a drafter proposes and the target disposes. " * 60)
    (folder / "empty").write_bytes(b"")
    (folder / "folder").mkdir()
    return folder


# ---- traces that are none, or no longer


@lru_cache(maxsize=1)
def whole():
    return load_trace(RECORDED).select([0, 1, 2])


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """The bytes of a real recording of three texts."""
    path = tmp_path_factory.mktemp("raw") / "t.parquet"
    whole().save(path)
    return path.read_bytes()


def regions(raw):
    """Where a Parquet file's parts begin and end: head, pages, footer, tail."""
    footer = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    assert raw[:4] == raw[-4:] == b"PAR1"
    assert 4 < footer < len(raw) - 8
    return (0, 4), (4, footer), (footer, len(raw) - 8), (len(raw) - 8, len(raw))


def loads_equal_or_is_refused(path, damaged):
    path.write_bytes(damaged)
    try:
        assert load_trace(path) == whole()
        return False
    except TraceError as error:
        assert str(error).startswith(str(path))
        assert "\n" not in str(error)
        assert len(str(error)) < 600
        return True


@HELD
@given(st.data())
def test_a_flipped_bit_never_gives_another_trace(tmp_path, raw, data):
    first, last = data.draw(st.sampled_from(regions(raw)))
    at = data.draw(st.integers(first, last - 1))
    damaged = bytearray(raw)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    loads_equal_or_is_refused(tmp_path / "t.parquet", bytes(damaged))


@HELD
@given(st.data())
def test_no_damage_gives_another_trace(tmp_path, raw, data):
    """Bytes cut out, zeroed, doubled or overwritten, anywhere."""
    first, last = data.draw(st.sampled_from(regions(raw)))
    at, many = data.draw(st.integers(first, last - 1)), data.draw(st.integers(1, 64))
    middle = data.draw(
        st.sampled_from([b"", bytes(many), b"\xff" * many, raw[at : at + many] * 2])
        | st.binary(min_size=1, max_size=64)
    )
    loads_equal_or_is_refused(tmp_path / "t.parquet", raw[:at] + middle + raw[at + many :])


@HELD
@given(st.data())
def test_a_truncated_file_is_always_refused(tmp_path, raw, data):
    length = data.draw(
        st.integers(0, len(raw) - 1) | st.integers(max(len(raw) - 40, 0), len(raw) - 1)
    )
    assert loads_equal_or_is_refused(tmp_path / "t.parquet", raw[:length])


def test_control_without_hash_and_page_checksums_another_trace_is_read(tmp_path, raw, monkeypatch):
    """The two guards that the tests above rely on: with both off, some bit of the pages gives another valid trace."""
    stored = simspec.trace_file.digest(whole())
    opened = pq.ParquetFile
    monkeypatch.setattr(simspec.trace_file, "digest", lambda trace: stored)
    monkeypatch.setattr(pq, "ParquetFile", lambda path, **_: opened(path))
    other, path = 0, tmp_path / "t.parquet"
    for at in range(4, len(raw), max(1, len(raw) // 400)):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        try:
            other += load_trace(path) != whole()
        except TraceError:
            pass
    assert other > 0


def rewritten(path, extra=None, table=None):
    """A Parquet file with the recording's table and metadata, either replaced; metadata may be text or a change of keys."""
    whole().save(path)
    with pq.ParquetFile(path) as file:
        kept, held = file.read(), json.loads(file.metadata.metadata[b"simspec"])
    table = kept if table is None else table(kept)
    text = extra if isinstance(extra, str) else json.dumps(held | (extra(held) if extra else {}))
    with pq.ParquetWriter(path, table.schema.remove_metadata(), store_schema=False) as writer:
        writer.write_table(table.replace_schema_metadata(None))
        writer.add_key_value_metadata({"simspec": text})


def meta(**changes):
    return lambda held: {"meta": json.dumps(json.loads(held["meta"]) | changes)}


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def write_pickle(path):
    path.write_bytes(pickle.dumps(Bomb()))


def swapped(name, column):
    return lambda t: t.set_column(t.schema.names.index(name), name, column(t.num_rows))


FOREIGN = {
    "missing": (lambda path: None, "no such file"),
    "empty": (lambda path: path.write_bytes(b""), "not a readable trace"),
    "a folder": (lambda path: path.mkdir(), "is a directory"),
    "text": (lambda path: path.write_text("hello"), "not a readable trace"),
    "a pickle": (write_pickle, "not a readable trace"),
    "another Parquet file": (
        lambda path: pq.write_table(pa.table({"token": [1, 2]}), path),
        "simspec did not write",
    ),
    "a later schema": (
        lambda path: rewritten(path, meta(schema=SCHEMA + 1)),
        f"this version reads {SCHEMA}",
    ),
    "no schema": (lambda path: rewritten(path, lambda held: {"meta": "{}"}), "meta.schema is None"),
    "metadata that nests deep": (lambda path: rewritten(path, "[" * 300_000), "recursion depth"),
    "meta that nests deep": (
        lambda path: rewritten(path, lambda held: {"meta": '{"a":' * 100_000}),
        "recursion depth",
    ),
    "notes that nest": (lambda path: rewritten(path, meta(notes=[[[]]])), "meta.notes is"),
    "huge notes": (
        lambda path: rewritten(path, meta(notes="x" * 20_000_000)),
        "does not match its hash",
    ),
    "huge numbers": (
        lambda path: rewritten(path, '{"meta": ' + "1" * 5000 + "}"),
        "not a readable trace",
    ),
    "a huge K": (lambda path: rewritten(path, meta(K=10**400)), "meta.K is 1000"),
    "metadata of another kind": (lambda path: rewritten(path, "[]"), "not a readable trace"),
    "metadata that misses all": (lambda path: rewritten(path, "{}"), "'meta' is missing"),
    "a table of 2**40 entries": (
        lambda path: rewritten(path, lambda held: {"budget": [1 << 40, held["budget"][1]]}),
        "not a readable",
    ),
    "a table of 2**70 entries": (
        lambda path: rewritten(path, lambda held: {"budget": [1 << 70, held["budget"][1]]}),
        "not a readable",
    ),
    "a table of -1 entries": (
        lambda path: rewritten(path, lambda held: {"budget": [-1, held["budget"][1]]}),
        "length is -1",
    ),
    "other numbers": (
        lambda path: rewritten(path, lambda held: {"sha256": "0"}),
        "does not match its hash",
    ),
    "a column of NaN": (
        lambda path: rewritten(path, table=swapped("token", lambda n: pa.array([np.nan] * n))),
        "token is double",
    ),
    "a column of nulls": (
        lambda path: rewritten(
            path, table=swapped("token", lambda n: pa.array([None] * n, pa.int32()))
        ),
        "nulls",
    ),
    "a column of lists": (
        lambda path: rewritten(path, table=swapped("token", lambda n: pa.array([[1]] * n))),
        "token is list",
    ),
    "an unknown column": (
        lambda path: rewritten(path, table=lambda t: t.append_column("more", t["token"])),
        "'more' is missing",
    ),
    "fewer rows": (lambda path: rewritten(path, table=lambda t: t.slice(0, 5)), "to 5 rows"),
    "no columns": (
        lambda path: rewritten(path, table=lambda t: pa.table({})),
        "not a readable trace",
    ),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_trace_is_refused_by_every_reader(tmp_path, kind):
    make, words = FOREIGN[kind]
    make(tmp_path / "x.parquet")
    for reader in (["sweep", "--out", "o.csv", "--plot", "o.png"], ["show"], ["run"]):
        refused(tmp_path, reader[0], "x.parquet", *reader[1:], words=words)
    assert not (tmp_path / "exploded").exists()


def test_control_a_rewritten_file_is_read_and_a_pickle_would_explode(tmp_path):
    rewritten(tmp_path / "x.parquet")
    assert load_trace(tmp_path / "x.parquet") == whole()
    with chdir(tmp_path):
        pickle.loads(pickle.dumps(Bomb()))
    assert (tmp_path / "exploded").is_dir()


def test_a_trace_that_breaks_its_own_rules_names_field_and_row(tmp_path, monkeypatch):
    deep = whole().depth.copy()
    deep[7], run = 1, np.minimum(whole().run, 1)
    run[7] = 2
    for parts, words in (
        (dict(run=run, depth=deep, rank=None), "run, row 7: 2"),
        (dict(depth=deep + 250), "depth, row"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Trace, "validate", lambda self: self)
            kept = changed(whole(), **parts)
            kept.save(tmp_path / "x.parquet")
        for reader in ("sweep", "show", "run"):
            refused(tmp_path, reader, "x.parquet", words=words)


def test_in_a_process_of_its_own(tmp_path, raw):
    """Two of the above as a shell sees them: nothing of this process hides a traceback."""
    (tmp_path / "cut.parquet").write_bytes(raw[: len(raw) // 2])
    for arguments, words in (
        (["sweep", "cut.parquet"], "not a readable trace"),
        (["show", "absent.parquet"], "no such file"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "simspec.cli", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert done.stdout == ""
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
        assert os.listdir(tmp_path) == ["cut.parquet"]


# ---- policies, costs and options


@pytest.mark.parametrize(
    "policy, words",
    [
        ("fixd:3", "'fixd'"),
        ("", "''"),
        ("fixed:17", "drafts up to 17"),
        ("fixed:-1", "k is -1"),
        ("fixed:x", "k is 'x'"),
        ("fixed", "missing 1 required"),
        ("fixed:1,2", "positional argument"),
        ("fixed:1e400", "k is inf"),
        ("fixed:" + "9" * 5000, "k is inf"),
        ("confidence:2", "threshold is 2"),
        ("confidence:nan", "threshold is nan"),
        ("confidence:0.5,K=17", "drafts up to 17"),
        ("confidence:0.5,K=256", "K is 256"),
        ("confidence:0.5,K=-1", "K is -1"),
        ("beta_ts:acceptence", "reading is 'acceptence'"),
        ("beta_ts:alpha0=0", "alpha0 is 0"),
        ("beta_ts:more=1", "unexpected keyword"),
        ("beta_ts:scope=prompt", "scope is 'prompt'"),
        ("oracle:3", "oracle"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(lab, policy, words):
    refused(
        lab,
        "sweep",
        "t.parquet",
        "--policy",
        "fixed:1",
        "--policy",
        policy,
        "--out",
        "o.csv",
        words=words,
    )
    refused(lab, "run", "t.parquet", "--policy", policy, "--cost", "c.json", words=words)


@pytest.mark.parametrize(
    "options, words",
    [
        (["--by", "token"], "by is 'token'"),
        (["--replicates", 0], "replicates is 0"),
        (["--jobs", 0], "jobs 0"),
        (["--seed=-1"], "seed is -1"),
        (["--seed", 1 << 64], "seed is 18446744073709551616"),
        (["--policy", "fixed:1"], "share a name"),
        (["--cost=-1"], "cost ratio is -1"),
        (["--cost", "inf"], "cost ratio is inf"),
        (["--cost", "absent.json"], "absent.json: not a cost model"),
        (["--cost", "folder"], "folder: not a cost model"),
        (["--cost", "empty"], "empty: not a cost model"),
        (["--cost", "t.parquet"], "t.parquet: not a cost model"),
        (["--cost", "short.json", "--policy", "fixed:4"], "prices drafts up to 3"),
        (["--out", "nowhere/o.csv"], "no folder nowhere"),
        (["--plot", "nowhere/o.png"], "no folder nowhere"),
        (["--out", "o.csv", "--plot", "nowhere/o.png"], "no folder nowhere"),
        (["--out", "folder"], "folder is a folder"),
        (["--plot", "."], ". is a folder"),
        (["--out", "t.parquet"], "t.parquet would overwrite t.parquet"),
        (["--plot", "folder/../t.parquet"], "would overwrite t.parquet"),
        (["--out", "c.json", "--cost", "c.json"], "c.json would overwrite c.json"),
        (["--out", "o", "--plot", "o"], "o would overwrite o"),
        (["--out", "empty/o.csv"], "no folder empty"),
    ],
)
def test_options_of_sweep(lab, options, words):
    refused(lab, "sweep", "t.parquet", "--policy", "fixed:1", *options, words=words)


GOOD = {
    "draft": [0, 1],
    "verify": [1, 1],
    "catch_up": [0],
    "overhead": 0,
    "baseline": 1,
    "name": "x",
    "device": "",
    "feature": 0,
}
ODD_COSTS = {
    "deep": "[" * 200_000,
    "a list": "[]",
    "huge number": json.dumps(GOOD | {"draft": [0, 10**400]}),
    "many digits": "1" * 5000,
    "NaN": json.dumps(GOOD | {"draft": [0, float("nan")]}),
    "infinite": json.dumps(GOOD | {"baseline": float("inf")}),
    "negative": json.dumps(GOOD | {"verify": [1, -1]}),
    "nested": json.dumps(GOOD | {"verify": [[1], 1]}),
    "text": json.dumps(GOOD | {"overhead": "0"}),
    "lengths": json.dumps(GOOD | {"verify": [1]}),
    "a start": json.dumps(GOOD | {"draft": [1, 1]}),
    "no key": json.dumps({k: v for k, v in GOOD.items() if k != "verify"}),
    "another key": json.dumps(GOOD | {"more": 1}),
    "not UTF-8": None,
}


@pytest.mark.parametrize("kind", ODD_COSTS)
def test_cost_files_that_are_wrong(tmp_path, kind):
    synthetic.iid(0.7, 2, 10, 1).save(tmp_path / "t.parquet")
    text = ODD_COSTS[kind]
    (tmp_path / "c.json").write_bytes(b'{"name": "caf\xe9"}' if text is None else text.encode())
    refused(
        tmp_path,
        "sweep",
        "t.parquet",
        "--cost",
        "c.json",
        "--policy",
        "fixed:1",
        words="c.json: not a cost model",
    )
    refused(
        tmp_path,
        "run",
        "t.parquet",
        "--cost",
        "c.json",
        "--policy",
        "fixed:1",
        words="c.json: not a cost model",
    )
    (tmp_path / "c.json").write_text(json.dumps(GOOD))  # control: the good one is taken
    assert (
        command(tmp_path, "sweep", "t.parquet", "--cost", "c.json", "--policy", "fixed:1")[0] == 0
    )


def _more(params, state, slot, features, u):
    return slot < 2, True


def _quiet(params, state, computed, drafted, accepted, features, cost):
    pass


def _few(params, state, slot):
    return True, True


def _many(params, state, slot, features, u, seed):
    return True, True


def _one(params, state, slot, features, u):
    return slot < 2


def _three(params, state, slot, features, u):
    return True, True, True


def _number(params, state, slot, features, u):
    return 0.5


def _nothing(params, state, slot, features, u):
    pass


def _words(params, state, slot, features, u):
    return "go", True


def _unknown(params, state, slot, features, u):
    return nowhere(slot), True  # noqa: F821


def _opens(params, state, slot, features, u):
    return open("x") == slot, True


def _told_little(params, state, computed):
    pass


def _tells(params, state, computed, drafted, accepted, features, cost):
    return cost


def _returns_state(params, state, computed, drafted, accepted, features, cost):
    return state


def _yields(params, state, slot, features, u):
    yield True, True


async def _waits(params, state, slot, features, u):
    return True, True


def _takes_all(*everything):
    return True, True


FORMS = [("draft_more", f) for f in (_few, _many, _yields, _waits, _takes_all)] + [
    ("observe", _told_little)
]
VALUES = [
    ("draft_more", f) for f in (_one, _three, _number, _nothing, _words, _unknown, _opens, len)
]
VALUES += [("observe", f) for f in (_tells, _returns_state)]
MALFORMED = FORMS + (
    [] if numba.config.DISABLE_JIT else VALUES
)  # what a function does is known only where it is compiled


@pytest.mark.parametrize(
    "part, function", MALFORMED, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_policy_of_the_wrong_form_is_refused_by_name(part, function, monkeypatch):
    policy = Policy(
        "mine", **({"draft_more": _more, "observe": _quiet} | {part: function}), state0=(0.0,)
    )
    trace = synthetic.iid(0.7, 2, 20, 4)
    for use in (
        policy.compiled,
        lambda: replay(trace, policy),
        lambda: sweep(trace, policy, progress=False),
    ):
        with pytest.raises(PolicyError, match=f"^policy 'mine': {part} ") as caught:
            use()
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 700


def test_control_a_policy_of_the_right_form_is_taken():
    assert replay(synthetic.iid(0.7, 2, 20, 4), Policy("mine", _more, _quiet)).computed.max() == 2


THEIRS = """
def more(params, state, slot, features, u):
    return slot < {k}, True

def observe(params, state, computed, drafted, accepted, features, cost):
    pass
"""
ASKED = """
import numpy as np
import simspec
more, _ = simspec.Policy("p", {name}.more, {name}.observe).compiled()
print(more(np.zeros(1), np.zeros(1), 2, np.zeros((1, 1)), 0.5)[0])
"""


def test_compiled_policies_of_a_module_that_is_gone_break_nobody(tmp_path):
    """The disk cache of one user's policies is read by the next user's process, which cannot import the first one's module."""
    environment = os.environ | {
        "NUMBA_DISABLE_JIT": "0",
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
    }
    for name, k in (("first", 2), ("second", 3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text(THEIRS.format(k=k))
        code = f"import {name}" + ASKED.format(name=name)
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path / name,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.stdout == f"{k > 2}\n", done.stderr


# ---- recording, measuring, running


RECORD = ["record", "p.jsonl", "--out", "x.parquet", "-k", 2, "--budget", 4, "--per-task", 1]


@pytest.mark.parametrize(
    "options, words",
    [
        (["-k", 0], "K is 0"),
        (["-k", -1], "K is -1"),
        (["-k", 256], "K is 256"),
        (["--budget", 0], "budget 0"),
        (["--budget", -3], "budget -3"),
        (["--per-task", 0], "0 prompts of every task"),
        (["--per-task", -1], "-1 prompts of every task"),
        (["--longest", 0], "no prompt of 1 to 0 tokens"),
        (["--rule", "beam"], "rule 'beam' is unknown"),
        (["--temperature=-1"], "temperature is -1"),
        (["--temperature=nan"], "temperature is nan"),
        (["--temperature=-1", "--rule", "coupled"], "temperature is -1"),
        (["--temperature=0", "--rule", "coupled"], "temperature 0.0"),
        (["--seed=-1"], "seed is -1"),
        (["--seed", 1 << 64], "seed is 18446744073709551616"),
        (["--dtype", "int8"], "dtype 'int8' is unknown"),
        (["--device", "gpu"], "device 'gpu' is unknown"),
        (["--device", "meta"], "device 'meta' is unknown"),
        (["--device", "cuda:x"], "device 'cuda:x' is unknown"),
        (["--device", "cuda:99"], "device 'cuda:99' asked for"),
        (["--drafter", "eagle9"], "drafter 'eagle9' is unknown"),
        (["--models", "nowhere"], "nowhere/target holds no config.json"),
        (["--models", "empty"], "empty/target holds no config.json"),
        (["--target", "no/such/folder"], "no/such/folder holds no config.json"),
        (["--weights", "nowhere"], "nowhere holds no config.json"),
        (["--drafter", "eagel"], "drafter 'eagel' is unknown: did you mean eagle?"),
        (["--drafter", "prompt-lookup"], "did you mean prompt_lookup?"),
        (
            ["--drafter", "transformer"],
            "'transformer' is unknown: expected one of model, early_exit",
        ),
        (["--weights", "nowhere", "--drafter", "early_exit"], "nowhere holds no drafter 'exit'"),
        *(
            (["--weights", "nowhere", "--drafter", name], f"nowhere holds no drafter '{name}'")
            for name in (*PARTS, "self_skip")
        ),
        *(
            (["--weights", "empty", "--drafter", name], f"empty holds no drafter '{name}'")
            for name in (*PARTS, "self_skip")
        ),
        (["--out", "nowhere/x.parquet"], "no folder nowhere"),
        (["--out", "folder"], "expected one that ends in .parquet"),
        (["--out", "x.json"], "expected one that ends in .parquet"),
        (["--out", "p.jsonl"], "expected one that ends in .parquet"),
        (["--out", "folder/../t.parquet", "t.parquet"], "would overwrite t.parquet"),
        (["--out", "c.parquet", "c.json"], "c.json would overwrite c.json"),
    ],
)
def test_options_of_record(lab, options, words):
    refused(lab, *RECORD, *options, words=words)


ROW = b'{"task": "t", "text": "some words"}\n'
ODD_PROMPTS = {
    "missing": (None, "cannot be read as prompts"),
    "empty": (b"", "holds no prompt"),
    "blank": (b"\n \n\n", "holds no prompt"),
    "too long": (
        json.dumps({"task": "t", "text": "word " * 1000}).encode(),
        "holds no prompt of 1 to 400",
    ),
    "not UTF-8": (
        ROW + b'{"task": "t", "text": "caf\xe9"}',
        "x.jsonl cannot be read as prompts: 'utf-8'",
    ),
    "bad JSON": (ROW * 2 + b"{broken\n" + ROW, "x.jsonl line 3: expected a JSON object"),
    "deep JSON": (ROW + b"[" * 200_000, "x.jsonl line 2: expected a JSON object"),
    "many digits": (
        ROW + b'{"task": "t", "text": "x", "id": ' + b"1" * 5000 + b"}",
        "x.jsonl line 2: expected a JSON object",
    ),
    "a list": (ROW + b"[]", "x.jsonl line 2: expected a JSON object"),
    "no text": (ROW + b'{"task": "t"}', "x.jsonl line 2: expected a JSON object"),
    "no task": (ROW + b'{"text": "t"}', "x.jsonl line 2: expected a JSON object"),
    "half a character": (
        ROW + b'{"task": "t", "text": "\\ud800"}',
        "x.jsonl line 2: expected a JSON object",
    ),
    "a NUL": (ROW + b"\0", "x.jsonl line 2: expected a JSON object"),
}


@pytest.mark.parametrize("kind", ODD_PROMPTS)
def test_prompts_that_cannot_be_read(tmp_path, kind):
    held, words = ODD_PROMPTS[kind]
    if held is not None:
        (tmp_path / "x.jsonl").write_bytes(held)
    refused(
        tmp_path, "record", "x.jsonl", "--out", "x.parquet", "-k", 2, "--budget", 2, words=words
    )


@pytest.mark.parametrize(
    "options, words",
    [
        (["-k", 0], "depth is 0"),
        (["-k", -1], "depth is -1"),
        (["-k", 256], "depth is 256"),
        (["--repeats", 0], "repeats 0"),
        (["--context", 0], "expected sizes of at least 1"),
        (["--context=-1"], "expected sizes of at least 1"),
        (["--rule", "beam"], "rule 'beam' is unknown"),
        (["--temperature=-1"], "temperature is -1"),
        (["--seed=-1"], "seed is -1"),
        (["--drafter", "eagle9"], "drafter 'eagle9' is unknown"),
        (["--models", "nowhere"], "nowhere/target holds no config.json"),
        (["--out", "nowhere/c.json"], "no folder nowhere"),
        (["--out", "."], ". is a folder"),
    ],
)
def test_options_of_measure(lab, options, words):
    refused(lab, "measure", "--out", "x.json", "-k", 1, "--repeats", 1, *options, words=words)


def recording(lab, **parts):
    trace = load_trace(lab / "t.parquet")
    return changed(trace, **{k: v(trace) for k, v in parts.items()})


def told(**changes):
    return {"meta": lambda trace: replace(trace.meta, **changes)}


@pytest.mark.parametrize(
    "parts, words",
    [
        (told(tokenizer_sha256="0" * 64), "another tokenizer"),
        (told(target="other/0123456789ab"), "was recorded with target other/0123456789ab"),
        (told(drafter="eagle9"), "drafter 'eagle9' is unknown"),
        (told(rule="synthetic"), "rule 'synthetic' cannot be run"),
        (told(rule="coupled", temperature=0.0), "temperature 0.0"),
        (dict(prompt=lambda trace: trace.prompt + 100_000), "the target knows 0..4095"),
        (dict(prompt=lambda trace: trace.prompt - 100_000), "the target knows 0..4095"),
        (
            dict(
                prompt=lambda trace: trace.prompt[:0],
                prompt_offset=lambda trace: trace.prompt_offset * 0,
            ),
            "without a prompt",
        ),
    ],
)
def test_a_recording_that_cannot_be_run(lab, tmp_path, parts, words):
    recording(lab, **parts).save(tmp_path / "x.parquet")
    refused(tmp_path, "run", "x.parquet", "--policy", "fixed:1", "--cost", PRICED, words=words)


@pytest.mark.parametrize(
    "options, words",
    [
        (["--prompts", -1], "select"),
        (["--seed=-1"], "seed is -1"),
        (["--dtype", "half"], "dtype 'half' is unknown"),
        (["--device", "tpu"], "device 'tpu' is unknown"),
        (["--models", "nowhere"], "nowhere/target holds no config.json"),
        (["--weights", "nowhere"], "nowhere holds no config.json"),
        (["--cost", "p.jsonl"], "p.jsonl: not a cost model"),
        (["--cost", "short.json"], "prices drafts up to 3"),
    ],
)
def test_options_of_run(lab, options, words):
    refused(
        lab, "run", "t.parquet", "--policy", "fixed:4", "--cost", "c.json", *options, words=words
    )


def bundle(folder):
    """A copy of the embedded models' folder that may be spoilt."""
    for name in ("target", "model", "early_exit"):
        shutil.copytree(TINY / name, folder / "models" / name)
    shutil.copy(TINY / "target" / "tokenizer.json", folder / "models" / "model")
    (folder / "p.jsonl").write_bytes(ROW)
    return folder / "models"


def edited(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def swap_words(tokenizer):
    vocab = tokenizer["model"]["vocab"]
    first, second = list(vocab)[300:302]
    vocab[first], vocab[second] = vocab[second], vocab[first]


@pytest.mark.parametrize("drafter", ["model", "early_exit"])
def test_a_drafter_that_belongs_to_another_target_is_refused(tmp_path, drafter):
    models = bundle(tmp_path)
    asked = ["record", "p.jsonl", "--models", models, "--drafter", drafter, "-k", 2, "--budget", 2]
    assert (
        command(tmp_path, *asked, "--out", "good.parquet")[0] == 0
    )  # control: the same tokenizer, the right target
    tokenizer = models / "model" / "tokenizer.json"
    if drafter == "model":
        edited(tokenizer, lambda value: value.update(padding=None, decoder=None))
        assert (
            command(tmp_path, *asked, "--out", "good.parquet")[0] == 0
        )  # what decides no token is not compared
        edited(tokenizer, swap_words)
        refused(tmp_path, *asked, "--out", "x.parquet", words="has another tokenizer than")
        tokenizer.write_text("{}")
        refused(tmp_path, *asked, "--out", "x.parquet", words="is not a tokenizer")
        tokenizer.unlink()
        edited(models / "model" / "config.json", lambda value: value.update(vocab_size=4000))
        refused(tmp_path, *asked, "--out", "x.parquet", words="model cannot be loaded")
    else:
        for odd, words in (
            ("0" * 64, "holds no drafter 'exit'"),
            (5, "holds no drafter 'exit'"),
            ([], "a target with tokenizer None"),
        ):
            edited(models / "early_exit" / "exit.json", lambda value: value.update(target=odd))
            refused(tmp_path, *asked, "--out", "x.parquet", words=words)
        (models / "early_exit" / "exit.json").write_text("[" * 200_000)
        refused(tmp_path, *asked, "--out", "x.parquet", words="holds no drafter 'exit'")


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """Folders of parts for the embedded target, as training would save them."""
    folder, target = tmp_path_factory.mktemp("parts"), load_decoder(TINY / "target")
    hashes = made_for(TINY / "target", target, load_tokenizer(TINY / "target"))
    for name, part in PARTS.items():
        (folder / name).mkdir()
        save_draft_head(part(target), folder / name, name, hashes)
    (folder / "self_skip").mkdir()
    replace_json(
        folder / "self_skip" / "self_skip.json",
        {"settings": {"attention": [2], "mlp": [1, 2]}, "target": hashes},
    )
    return folder


def asked_of(folder, name, untrained):
    """The command that records with a copy of that part in `folder`, and the copy."""
    shutil.copytree(untrained / name, folder / name)
    (folder / "p.jsonl").write_bytes(ROW)
    return [
        "record",
        "p.jsonl",
        "--drafter",
        name,
        "--weights",
        name,
        "-k",
        3,
        "--budget",
        3,
    ], folder / name


def respelt(file, change):
    held = load_file(file)
    change(held)
    save_file(held, file)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_with_a_wrong_tensor_is_refused(tmp_path, untrained, name):
    asked, folder = asked_of(tmp_path, name, untrained)
    assert command(tmp_path, *asked, "--out", "good.parquet")[0] == 0  # control
    file = folder / f"{name}.safetensors"
    whole_part, first = file.read_bytes(), sorted(load_file(file))[0]
    spoilt = {
        f"lacks the tensor {first}": lambda held: held.pop(first),
        f"does not fit this target: {first} is [3]": lambda held: held.update(
            {first: held[first].flatten()[:3].clone()}
        ),
        "a tensor another.one": lambda held: held.update({"another.one": held[first].clone()}),
        f"{first} that is not of finite numbers": lambda held: (
            held[first].view(-1)[:1].fill_(float("nan"))
        ),
    }
    for words, change in spoilt.items():
        file.write_bytes(whole_part)
        respelt(file, change)
        refused(tmp_path, *asked, "--out", "x.parquet", words=words)
    for damage, words in (
        (whole_part[:-9], "damaged"),
        (pickle.dumps(Bomb()), "damaged"),
        (None, f"{name}.safetensors cannot be read"),
    ):
        file.write_bytes(damage) if damage else file.unlink()
        refused(tmp_path, *asked, "--out", "x.parquet", words=words)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", [*PARTS, "self_skip"])
def test_a_part_of_another_target_is_refused(tmp_path, untrained, name):
    asked, folder = asked_of(tmp_path, name, untrained)
    assert command(tmp_path, *asked, "--out", "good.parquet")[0] == 0  # control
    for what in SAID:
        shutil.copy(untrained / name / f"{name}.json", folder)
        edited(folder / f"{name}.json", lambda value: value["target"].update({what: "0" * 64}))
        refused(
            tmp_path,
            *asked,
            "--out",
            "x.parquet",
            words=f"was made for a target with {what} 000000000000",
        )
    shutil.copy(untrained / name / f"{name}.json", folder)
    edited(folder / f"{name}.json", lambda value: value["settings"].update(nonsense=1))
    refused(tmp_path, *asked, "--out", "x.parquet", words="cannot have")


def test_a_policy_that_reads_what_a_lookup_does_not_show_is_refused(tmp_path):
    (tmp_path / "p.jsonl").write_bytes(ROW)
    assert (
        command(
            tmp_path,
            "record",
            "p.jsonl",
            "--drafter",
            "prompt_lookup",
            "-k",
            3,
            "--budget",
            4,
            "--out",
            "t.parquet",
        )[0]
        == 0
    )
    CostModel.from_ratio(0.1, 3).to_json(tmp_path / "c.json")
    told = ["t.parquet", "--cost", "c.json", "--policy"]
    for reader in ("run", "sweep"):
        assert command(tmp_path, reader, *told, "fixed:2")[0] == 0  # control
        refused(tmp_path, reader, *told, "confidence:0.5", words="'confidence'")


@pytest.mark.parametrize("kind", ["tokenizer", "tokenizer is text", "config", "weights"])
def test_a_target_that_is_damaged_is_refused(tmp_path, kind):
    models = bundle(tmp_path)
    path = (
        models
        / "target"
        / {"config": "config.json", "weights": "model.safetensors"}.get(kind, "tokenizer.json")
    )
    path.write_bytes(b"hello" if kind == "tokenizer is text" else path.read_bytes()[:-100])
    words = {"config": "cannot be loaded", "weights": "cannot be loaded"}.get(
        kind, "is not a tokenizer"
    )
    for asked in (["record", "p.jsonl", "--out", "x.parquet"], ["measure", "--out", "x.json"]):
        refused(tmp_path, *asked, "--models", models, words=words)


def poisoned(path):
    """Makes one number of a checkpoint's last norm NaN."""
    held = load(content(path))
    name = next(name for name in held if name.endswith("norm.weight") and "layer" not in name)
    held[name][3] = float("nan")
    save_file(held, path, {"format": "pt"})


@pytest.mark.parametrize("who", ["model", "early_exit", "target"])
def test_a_model_that_shows_nan_is_refused_by_text(tmp_path, who):
    models = bundle(tmp_path)
    asked = ["--models", models, "--drafter", "model" if who == "target" else who]
    (tmp_path / "t").mkdir()
    load_trace(TRACES / f"tiny-{asked[-1]}-greedy.parquet").select([0]).save(
        tmp_path / "t" / "t.parquet"
    )
    poisoned(models / who / ("exit.safetensors" if who == "early_exit" else "model.safetensors"))
    for path in models.rglob("theta*"):
        path.unlink()  # they would notice that the weights are not theirs
    record = ["record", "p.jsonl", *asked, "-k", 3, "--budget", 4, "--out", "x.parquet"]
    if who == "early_exit":
        refused(tmp_path, *record, words="norm.weight that is not of finite numbers")
        return
    refused(tmp_path, *record, words="text 0 (prompt '1') cannot be recorded: ")
    assert "NaN" in command(tmp_path, *record)[2]
    if who == "model":
        trace = load_trace(tmp_path / "t" / "t.parquet")
        trace = changed(
            trace, meta=replace(trace.meta, target=f"models/{trace.meta.target.split('/')[-1]}")
        )
        trace.save(tmp_path / "t" / "t.parquet")
        refused(
            tmp_path,
            "run",
            "t/t.parquet",
            "--models",
            models,
            "--policy",
            "confidence:0.5",
            "--cost",
            PRICED,
            words="NaN",
        )


# ---- training


@pytest.mark.parametrize(
    "options, words",
    [
        (["absent.txt"], "absent.txt does not exist"),
        (["t.parquet"], "is not .txt"),
        (["folder"], "folder holds no"),
        (["latin.txt"], "is not UTF-8 text"),
        (["deep.jsonl"], "deep.jsonl line 1: expected a JSON object"),
        (["number.jsonl"], 'number.jsonl line 2: "text" is int'),
        (["nothing.txt"], "the text has 1 tokens"),
        (["text.txt", "--heldout", "absent.txt"], "absent.txt does not exist"),
        (["text.txt", "--heldout", "nothing.txt"], "held-out text has 1 tokens"),
        (["text.txt", "--steps", "1,2"], "--steps is '1,2'"),
        (["text.txt", "--minutes", -1], "minutes -1"),
        (["text.txt", "--minutes", "nan"], "minutes nan"),
        (["text.txt", "--rows", 0], "rows 0"),
        (["text.txt", "--distil-tokens", -1], "distil-tokens -1"),
        (["text.txt", "--threads", -1], "threads -1"),
        (["text.txt", "--seed", -1], "seed is -1"),
        (["text.txt", "--device", "gpu"], "device 'gpu' is unknown"),
        (["text.txt", "--device", "cuda:99"], "device 'cuda:99' asked for"),
        (["text.txt", "--work", "text.txt"], "text.txt is a file"),
        (["text.txt", "--out", "text.txt"], "text.txt is a file"),
        (["nothing.txt", "--out", "deep/down/m"], "the text has 1 tokens"),
    ],
)
def test_training_that_cannot_begin_leaves_nothing(lab, options, words):
    (lab / "latin.txt").write_bytes(b"caf\xe9")
    (lab / "deep.jsonl").write_text("[" * 200_000)
    (lab / "number.jsonl").write_text('{"text": "a"}\n{"text": 3}\n')
    (lab / "nothing.txt").write_text("")
    refused(lab, "train", "--toy", "--out", "m", *options, words=words, progress=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only(lab):
    (lab / "folder").chmod(0o500)
    try:
        refused(lab, "sweep", "t.parquet", "--out", "folder/o.csv", words="read-only")
        refused(lab, *RECORD, "--out", "folder/x.parquet", words="read-only")
    finally:
        (lab / "folder").chmod(0o700)


def test_outputs_are_whole_or_not_there(lab, monkeypatch):
    """A disk that fills while the table is written leaves the old file and no half of the new one."""
    import pandas

    def fails(self, path, **_):
        Path(path).write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pandas.DataFrame, "to_csv", fails)
    refused(
        lab, "sweep", "t.parquet", "--policy", "fixed:1", "--out", "empty", words="No space left"
    )
