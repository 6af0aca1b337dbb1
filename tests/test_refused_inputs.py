"""Options that do not fit each other or their files, invalid and absurd inputs: one line, at once.

`test_refusals` derives a value out of its range for each option of a settings model.
"""

import json
import lzma
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_engine import FakeRunner, do_run, prompts
from inputs import COSTS, HEADS, PROMPT_LINE, RECORD_COMMAND, with_fields
from shell import refused, simspec

from real.audit.runs import load_run
from real.engines import rows
from real.files import read_card
from real.model.decoder import MOST, DecoderConfig
from real.model.draft_head import check_settings
from real.model.stored_weights import MAX_RATIO as WEIGHTS_RATIO
from real.model.stored_weights import read_bytes
from real.prompts import read_rows
from real.sampling import Rule
from real.train.text import MAX_RATIO, CorpusError, documents
from simspec import CostModel, TraceError, TraceMeta, load_trace, synthetic
from simspec.cost.model import LEAST_SECONDS, MOST_SECONDS
from simspec.cost.table import load_cost
from simspec.engines.documents import json_rows, read_source
from simspec.engines.exports import read_vllm
from simspec.engines.text import read_texts
from simspec.policies import BUILTIN, make
from simspec.tree.tree import load_tree

SWEEP, RUN = "sweep t.parquet --policy fixed:1", "run t.parquet --policy fixed:4 --cost c.json"
MEASURE, RECORD = "measure --out x.json -k 1", " ".join(map(str, RECORD_COMMAND))
COMPARE, FORCE = "run t.parquet --compare --cost c.json", "run t.parquet --teacher-force"
REFUSED = {
    f"{SWEEP} --nodes 8": "--nodes goes with --report trees, not with gains",
    f"{SWEEP} --report oracle --keep x": "--keep goes with --report gains",
    f"{SWEEP} --report differences --against fastest --cost 0.1": "fastest",
    f"{SWEEP} --report batch --context 9 --cost 0.1": "no seconds for cached tokens",
    f"{SWEEP} --batch 1 --batch 2": "--batch is given 2 times",
    f"{SWEEP} --batch 4 --cost 0.1": "is a ratio, the same for every batch",
    f"{SWEEP} --policy fixed:1": "share a name",
    f"{SWEEP} --policy fixed:17": "drafts up to 17",
    f"{SWEEP} --policy fixd:3": "did you mean fixed?",
    f"{SWEEP} --cost=-1": "cost ratio is -1",
    f"{SWEEP} --cost 1e308": "expected 0 to 1e+09",
    f"{SWEEP} --cost absent.json": "absent.json: not a cost model",
    f"{SWEEP} --cost t.parquet": "t.parquet: not a cost model",
    f"{SWEEP} --cost short.json --policy fixed:4": "prices drafts up to 3",
    f"{SWEEP} --out nowhere/o.csv": "no folder nowhere",
    f"{SWEEP} --out folder/../t.parquet": "would overwrite t.parquet",
    f"{SWEEP} --out c.json --cost c.json": "c.json would overwrite c.json",
    "sweep absent.parquet": "no such file",
    "check absent.parquet": "no such file",
    "sweep tiny-modl-greedy": "did you mean tiny-model-greedy?",
    "tune oracle t.parquet": "policy 'oracle' has nothing to tune",
    "tune fixed:2 t.parquet": "gives every argument that is tuned",
    "report --paper nothing": "there is no table 'nothing'",
    f"{RECORD} --temperature=0 --rule coupled": "temperature 0.0",
    "record missing.jsonl --out x.parquet": "missing.jsonl cannot be read",
    "record text.txt --out x.parquet": "expected a JSON object",
    "record p.jsonl --out x.parquet --tree 4y6": "--tree is '4y6'",
    "record p.jsonl --out x.parquet -k 4 --tree 4x6": "levels from 1 to K, here 4",
    "record p.jsonl --out x.parquet --drafter prompt_lookup --tree 4x6": "it grows no trees",
    "run tiny-glide-greedy --policy dynamic_tree:8": "records no order of dynamic trees",
    "run text.txt": "text.txt",
    "record --out x.parquet": "no prompts are given: name a file of them, or --from-text FILE",
    "record --from-text a.jsonl b.jsonl --out x.parquet": "both given: give one of them",
    "record --from-text none.jsonl --out x.parquet": "cannot be read",
    f"{RECORD} --device cuda:99": "device 'cuda:99' asked for",
    f"{RECORD} --drafter eagel": "drafter 'eagel' is unknown: did you mean eagle?",
    f"{RECORD} --models nowhere": "nowhere/target holds no config.json",
    **{f"{RECORD} --weights {folder} --drafter {name}": f"{folder} holds no drafter '{name}'"
       for name in (*HEADS, "self_skip") for folder in ("nowhere", "empty")},
    f"{RECORD} --out p.jsonl": "expected one that ends in .parquet",
    f"{RECORD} --out folder/../t.parquet t.parquet": "would overwrite t.parquet",
    f"{MEASURE} --drafter eagle9": "drafter 'eagle9' is unknown",
    f"{MEASURE} --out .": ". is a folder",
    f"{RUN} --dtype half": "dtype 'half' is unknown",
    f"{RUN} --cost short.json": "prices drafts up to 3",
    f"{RUN} --cost t.parquet": "t.parquet: not a cost model",
    "record folder --out x.parquet": "cannot be read as prompts",
    f"{RUN} --seed=-1": "seed is -1, expected",
    f"{RUN} --policy fixed:2": "2 policies given",
    f"{FORCE} --policy static:2x1": "takes trees, as do simspec sweep and run",
    f"{COMPARE} --save t.parquet": "would overwrite t.parquet",
    f"{COMPARE} --rival generat": "--rival is 'generat', expected one of generate, none",
    f"{COMPARE} --rival none --teacher-force": "two kinds of run",
    f"{COMPARE} --rival none --policy oracle": "no replay to predict its run by",
    f"{COMPARE} --rival none --policy fixed:99": "policy 'fixed:99' drafts up to 99",
    f"{RECORD} --budget {10**6} --engine fast": "leaves no room for a prompt in the models'",
    **{f"{asked} --engine quick": "engine 'quick' is unknown; expected one of eager, fast, strict"
       for asked in (RECORD, MEASURE, RUN, FORCE, f"{COMPARE} --rival none")},
    f"train eagle --out m --seed={10**30}": f"seed is {10**30}, expected",
    f"demo --prompts {10**30}": f"--prompts is {10**30}",
}  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
def test_options_that_do_not_fit_are_refused(input_folder, line):
    refused(input_folder, *line.split(" "), words=REFUSED[line])


JSON, SECOND = "expected a JSON object", "x.jsonl line 2: expected a JSON object"
PROMPTS = {
    "missing": (None, "cannot be read as prompts"),
    "empty": (b"", "holds no prompt"),
    "blank": (b"\n \n\n", "holds no prompt"),
    "too long": (PROMPT_LINE.replace(b"some", b"word " * 1000), "holds no prompt of 1 to 510"),
    "not UTF-8": (PROMPT_LINE + b"caf\xe9", "x.jsonl cannot be read as prompts: 'utf-8'"),
    "bad JSON": (PROMPT_LINE * 2 + b"{broken\n" + PROMPT_LINE, f"x.jsonl line 3: {JSON}"),
    **{name: (PROMPT_LINE + line, SECOND) for name, line in {
        "deep JSON": b"[" * 200_000, "a list": b"[]", "no text": b'{"task": "t"}', "a NUL": b"\0",
        "no task": b'{"text": "t"}', "half a character": b'{"task": "t", "text": "\\ud800"}',
        "many digits": b'{"task": "t", "text": "x", "id": ' + b"1" * 5000 + b"}",
    }.items()},
    **{rest: (PROMPT_LINE + b'{"task": "t", ' + rest + b"}", SECOND) for rest in (
        b'"turns": []', b'"turns": "a"', b'"turns": [5]', b'"turns": ["fine", 5]', b'"text": 5',
        b'"text": null',
    )},
}  # fmt: skip


@pytest.mark.parametrize("kind", PROMPTS)
def test_invalid_prompts_are_refused(tmp_path, kind):
    content, words = PROMPTS[kind]
    if content is not None:
        (tmp_path / "x.jsonl").write_bytes(content)
    asked = "record", "x.jsonl", "--out", "x.parquet", "-k", 2, "--budget", 2
    refused(tmp_path, *asked, words=words)


def with_meta(**changes):
    return {"meta": lambda trace: replace(trace.meta, **changes)}


@pytest.mark.parametrize("parts, words", [
    (with_meta(tokenizer_sha256="0" * 64), "another tokenizer"),
    (with_meta(target="other/0123456789ab"), "was recorded with target other/0123456789ab"),
    (with_meta(drafter_sha256="0" * 64), "was recorded with weights 000000000000 of"),
    (with_meta(drafter="eagle9"), "drafter 'eagle9' is unknown"),
    (with_meta(rule="synthetic"), "rule 'synthetic' cannot be run"),
    (with_meta(rule="coupled", temperature=0.0), "temperature 0.0"),
    ({"prompt": lambda trace: trace.prompt + 100_000}, "the target knows 0..4095"),
    ({"prompt": lambda trace: trace.prompt - 100_000}, "the target knows 0..4095"),
    ({"prompt": lambda t: t.prompt[:0], "prompt_offset": lambda t: t.prompt_offset * 0},
     "without a prompt"),
])  # fmt: skip
def test_recording_that_cannot_run_is_refused(input_folder, tmp_path, parts, words):
    trace = load_trace(input_folder / "t.parquet")
    changed = with_fields(trace, **{name: made(trace) for name, made in parts.items()})
    changed.save(tmp_path / "x.parquet")
    refused(tmp_path, "run", "x.parquet", "--policy", "fixed:1", "--cost", COSTS, words=words)


def test_hash_of_weights_round_trips_and_is_checked(input_folder):
    meta = load_trace(input_folder / "t.parquet").meta
    hashed = replace(meta, drafter_sha256="0" * 64)
    assert TraceMeta.from_json(hashed.to_json()) == hashed
    with pytest.raises(TraceError, match="drafter_sha256 is 'ab', expected"):
        replace(meta, drafter_sha256="ab")


def test_missing_recording_is_refused_before_torch_is_imported(tmp_path):
    """All in one process, where torch cannot be imported."""
    lines = [
        "run no.parquet", "run no.parquet --compare", "measure --for no.parquet",
        "audit no.parquet",
    ]  # fmt: skip
    code = (
        "import sys; from simspec.cli import _load_extras, main; _load_extras(); "
        "sys.modules['torch'] = None\n"
        "for line in sys.argv[1:]:\n"
        "    try: main(line.split())\n"
        "    except SystemExit as end: print(end.code)"
    )
    call = [sys.executable, "-c", code, *lines]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["2"] * len(lines), done.stderr
    assert done.stderr == len(lines) * "simspec: no.parquet: no such file\n"


@pytest.mark.parametrize("shape", ["1000000000", "63x1", "1x1000000000", "64"])
def test_static_tree_over_budget_is_refused_before_it_is_built(shape):
    with pytest.raises(ValueError, match="over budget: expected at most 63"):
        make(f"static:{shape}", None, None)
    assert len(make("static:1" + "x1" * 62, None, None).tree.parent) == 63  # control


def test_every_policy_is_bounded():
    """A parameter of a billion is refused, or costs no more than a parameter of one."""
    import inspect

    for name, factory in BUILTIN.items():
        for parameter in inspect.signature(factory).parameters:
            try:
                policy = factory(**{parameter: 10**9})
                state = policy.start()[1] if hasattr(policy, "start") else ()
            except (TypeError, ValueError):
                continue
            assert getattr(state, "size", 0) < 100_000, (name, parameter)


def test_control_costs_at_the_limits_give_finite_tables(tmp_path):
    synthetic.iid(0.5, 8, 40, 3).save(tmp_path / "t.parquet")
    for baseline, rest in ((MOST_SECONDS, 1.0), (LEAST_SECONDS, MOST_SECONDS)):
        passes = {"baseline": baseline, "verify": [baseline] * 4}
        cost = replace(CostModel.from_ratio(0.1, 3), **passes, overhead=rest)
        cost.to_json(tmp_path / "c.json")
        out, _ = simspec(*f"{SWEEP} --cost c.json --json".split(), cwd=tmp_path)
        for row in json.loads(out)["rows"]:
            assert 0 < row["speedup"] < float("inf")


@pytest.mark.parametrize("temperature", [1e-320, 1e-7, 0.0, float("nan")])
def test_temperature_too_small_for_logits_is_refused(temperature):
    with pytest.raises(ValueError, match="expected at least 1e-06"):
        Rule("coupled", temperature)
    assert Rule("coupled", 1e-6).temperature == 1e-6


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.5, 1.5])
def test_ratio_outside_names_its_place_and_value(value):
    trace = synthetic.iid(0.5, 2, 5, 3)
    ratio = np.full((10, 3), 0.5, np.float32)
    ratio[4, 1] = value
    meta = replace(trace.meta, rule="rejection", temperature=1.0)
    with pytest.raises(TraceError, match=r"ratio, row 4, slot 1: \S+, expected a number in"):
        replace(trace, meta=meta, run=np.zeros(10, np.uint8), rank=None, ratio=ratio)


def test_text_and_weights_that_unpack_to_gigabytes_are_not_read_whole(tmp_path):
    """Of many lines or of one; half of the memory is the decoder's dictionary."""
    bomb, line = tmp_path / "bomb.jsonl.xz", json.dumps({"text": "a" * (1 << 16)}).encode() + b"\n"
    weights = tmp_path / "w.safetensors.xz"
    weights.write_bytes(lzma.compress(bytes(1 << 26)))
    for content, reader, words in (
        (line * 200, lambda: list(documents([bomb])), MAX_RATIO),
        (b"a" * (1 << 25), lambda: list(documents([bomb])), MAX_RATIO),
        (b"", lambda: read_bytes(weights.with_suffix("")), WEIGHTS_RATIO),
    ):
        bomb.write_bytes(lzma.compress(content))
        tracemalloc.start()
        with pytest.raises((CorpusError, ValueError), match=f"more than {words} times its size"):
            reader()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 1 << 25 if words == WEIGHTS_RATIO else most < 1 << 24


def test_one_endless_line_is_refused_and_compressed_text_is_read(tmp_path, monkeypatch):
    texts = [f"text {i} é" for i in range(300)]
    text = "\n".join(json.dumps({"text": text}) for text in texts)
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(text.encode()))
    assert [row["text"] for row in documents([tmp_path / "a.jsonl.xz"])] == texts
    monkeypatch.setattr("real.train.text.LONGEST_LINE", 1 << 10)
    (tmp_path / "bomb.jsonl").write_text("x" * (1 << 12))
    with pytest.raises(CorpusError, match="line 1 has over 1,024 bytes"):
        list(documents([tmp_path / "bomb.jsonl"]))


@pytest.mark.parametrize(
    "read", [lambda path: read_source("vllm-requests", path), load_cost, read_rows, load_run]
)
def test_file_without_an_end_is_refused(monkeypatch, read):
    for limit in ("simspec.engines.documents.LARGEST", "simspec.output.files.MOST_JSON",
                  "real.prompts.MOST_LINE", "real.audit.runs.LONGEST_LINE"):  # fmt: skip
        monkeypatch.setattr(limit, 1 << 20)
    with pytest.raises(ValueError, match="^/dev/zero.*(it has over|at most) 1,048,576"):
        read(Path("/dev/zero"))


@pytest.mark.parametrize("read", [
    load_cost, load_tree, read_card, read_rows, read_texts, load_run, rows.read_rows,
    lambda path: list(documents([path])), lambda path: read_vllm(path.read_text()),
    lambda path: json_rows(path.read_text()), lambda path: TraceMeta.from_json(path.read_text()),
])  # fmt: skip
def test_key_that_an_object_has_twice_is_refused(tmp_path, read):
    path = tmp_path / "x.jsonl"
    path.write_text('{"name": {"seconds": 1, "seconds": 2}}\n')
    with pytest.raises(ValueError, match="has the key 'seconds' twice") as error:
        read(path)
    assert "\n" not in str(error.value)


def test_prompts_of_20_million_tokens_are_read_back_and_more_are_refused(tmp_path, monkeypatch):
    """Their 107 MB are more than pyarrow reads of a footer by itself."""
    small = synthetic.iid(0.5, 1, 5, 3)
    prompt = np.random.default_rng(0).integers(0, 1 << 31, 20_000_000, np.int32)
    large = replace(small, prompt=prompt, prompt_offset=np.array([0, len(prompt)]))
    large.save(tmp_path / "t.parquet")
    assert np.array_equal(load_trace(tmp_path / "t.parquet").prompt, prompt)
    monkeypatch.setattr("simspec.trace.file.MOST_FOOTER", 100)
    with pytest.raises(TraceError, match="0 prompt tokens take .* bytes, expected at most 100: s"):
        small.save(tmp_path / "u.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


@pytest.mark.parametrize("name", MOST)
def test_size_beyond_all_decoders_is_refused(name):
    sizes = dict.fromkeys(MOST, 8)
    DecoderConfig(**sizes | {name: MOST[name]})
    with pytest.raises(ValueError, match=f"{name} is .*, expected an integer of 1 to"):
        DecoderConfig(**sizes | {name: MOST[name] + 1})


def test_sizes_of_no_head_are_refused():
    for settings in ({"depth": 1.5}, {"depth": 10**6}, {"layers": 65}, {"attention": [0, 1.5]},
                     {"norm_eps": float("nan")}, {"blocks": {}}):  # fmt: skip
        with pytest.raises(ValueError, match="expected an integer of at most"):
            check_settings(settings)
    check_settings({"depth": 3, "own_head": True, "reads": [0, 5], "norm_eps": 1e-6, "kind": "a"})


def test_budget_of_an_engine_row_that_no_recording_holds_is_refused(tmp_path):
    world, path = prompts(3), tmp_path / "r.jsonl"
    do_run(path, FakeRunner(world), world)
    head, line, *_ = path.read_text().splitlines()
    row = json.loads(line)
    row["request"]["max_tokens"] = 1 << 63
    path.write_text(f"{head}\n{json.dumps(row)}\n")
    with pytest.raises(ValueError, match="line 2 is no row.* <= 2147483647"):
        rows.read_rows(path)
