"""Every kind of file that a command reads: valid samples, and what a command does with one."""

import json
import lzma
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from fake_engine import FakeRunner, prompts
from fuzz_mutations import MEBIBYTE, Kind, mutated, mutated_value
from import_files import FIXTURES, FORMAT_OF, read
from inputs import with_fields
from toy_checkpoint import qwen2_checkpoint
from toy_gguf import write_gguf
from toy_lm import toy_target

from real.audit.runs import EmittedSequence, RunHeader, load_run, save_run
from real.contest import Kept, Runs
from real.decode.features import AcceptancePredictor, load_predictor, save_predictor
from real.drafters import BUILTIN
from real.drafters.eagle import EagleHead
from real.drafters.hydra import HydraHeads
from real.drafters.medusa import MedusaHeads
from real.engines import EngineSettings, NgramDraft
from real.engines.compare import compare_rows
from real.engines.measure import engine_cost, speedup_table
from real.engines.rows import read_rows as read_engine_rows
from real.engines.run import Plan, run_on_engine
from real.engines.shapes import forward_steps, named_shapes, read_steps, shape_of, step_table
from real.measure.sitting import Sitting, UnfinishedSitting
from real.measure.timing import Pace, Samples
from real.model.checkpoint import end_tokens, load_decoder, load_tokenizer
from real.model.draft_head import save_draft_head
from real.model.gguf import check_gguf
from real.prompts import read_rows
from real.train.text import documents
from simspec import Trace, load_trace, replay, synthetic
from simspec.cost.table import CostTable, load_cost
from simspec.engines.import_report import import_report
from simspec.engines.ngram import ngram_rule
from simspec.engines.text import read_texts, record_texts
from simspec.papers.recorded import read_card
from simspec.policies import fixed
from simspec.replay.metrics import summary
from simspec.reports.drafters import tokens_learned
from simspec.reports.summaries import trace_summary
from simspec.trace.exits import ExitDrafts, read_exits, write_exits
from simspec.trace.recordings import CHECKOUT as TRACES
from simspec.tree.tree import load_tree

MADE_FOR = {"tokenizer": "t" * 64, "config": "c" * 64, "weights": "w" * 64}
HEADS = {"eagle": EagleHead, "medusa": MedusaHeads, "hydra": HydraHeads}


GOLDENS = Path(__file__).parent / "goldens"


@cache
def known_trace() -> Trace:
    return synthetic.iid(0.6, 2, 12, 3, confidence=True)


def recordings(folder: Path) -> None:
    for path in GOLDENS.glob("recording-*.parquet"):
        (folder / path.name).write_bytes(path.read_bytes())
    known_trace().save(folder / "synthetic.parquet")


def use_recording(path: Path) -> None:
    """What `simspec show` and `simspec sweep` do."""
    trace = load_trace(path)
    trace_summary(trace)
    replay(trace, fixed(min(2, trace.K)))


@cache
def _parts(content: bytes):
    with pq.ParquetFile(pa.BufferReader(content)) as file:
        return file.read(), json.loads(file.metadata.metadata[b"simspec"])


def forged_metadata(content: bytes, draw: Random) -> bytes:
    """A valid Parquet file whose metadata, or what is packed in it, was changed."""
    table, extra = _parts(content)
    extra = json.loads(json.dumps(extra))
    if draw.random() < 0.6:
        extra["meta"] = json.dumps(mutated_value(json.loads(extra["meta"]), draw))
    else:
        extra = mutated_value(extra, draw)
    if draw.random() < 0.2:
        name = draw.choice(table.column_names)
        column = draw.choice(
            (
                pa.array([None] * len(table)),
                pa.array([[1]] * len(table)),
                pa.array(["x"] * len(table)),
                pa.array(np.full(len(table), -1)),
                pa.array([b"\x01"] * len(table), pa.binary(1)),
            )
        )
        table = table.set_column(table.column_names.index(name), name, column)
    out = pa.BufferOutputStream()
    compression = draw.choice(("zstd", "none", "gzip"))
    with pq.ParquetWriter(out, table.schema.remove_metadata(), compression=compression) as file:
        file.write_table(table.replace_schema_metadata(None))
        file.add_key_value_metadata({"simspec": json.dumps(extra)})
    return out.getvalue().to_pybytes()


def forged_arrays(content: bytes, draw: Random) -> bytes:
    """A recording with a right hash over wrong numbers: only validation stands before them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.parquet"
        path.write_bytes(content)
        trace = load_trace(path)
        names = [n for n in trace.__dataclass_fields__ if isinstance(getattr(trace, n), np.ndarray)]
        parts = {}
        for name in draw.sample(names, draw.choice((1, 1, 2))):
            array = getattr(trace, name).copy()
            if not array.size:
                continue
            flat = array.reshape(-1)
            values = np.iinfo(array.dtype) if array.dtype.kind in "iu" else np.finfo(array.dtype)
            choices = [values.min, values.max, 0, 1, flat[0]]
            if array.dtype.kind == "f":
                choices += [np.nan, np.inf, -1.0]
            for _ in range(draw.choice((1, 1, 5))):
                flat[draw.randrange(flat.size)] = draw.choice(choices)
            parts[name] = draw.choice((array, array, array, array[:-1], array[::-1].copy()))
        validate, Trace.validate = Trace.validate, lambda self: self
        try:
            with_fields(trace, **parts).save(path)
        except (ValueError, KeyError, IndexError, OverflowError):  # no file can hold these
            return mutated(content, draw)
        finally:
            Trace.validate = validate
        return path.read_bytes()


def copies(*paths: Path) -> Callable[[Path], None]:
    """Copies these files."""

    def prepare(folder: Path) -> None:
        for path in paths:
            (folder / path.name).write_bytes(path.read_bytes())

    return prepare


def texts(**contents: str) -> Callable[[Path], None]:
    """Writes these texts; in a name __ is a dot."""

    def prepare(folder: Path) -> None:
        for name, text in contents.items():
            (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")

    return prepare


def use_cost(path: Path) -> None:
    """What `simspec sweep --cost` does."""
    cost = load_cost(path)
    assert type(cost).from_dict(json.loads(json.dumps(cost.to_dict()))) == cost
    model = cost.at() if isinstance(cost, CostTable) and len(cost.batch) == 1 else cost
    if not isinstance(model, CostTable):
        rounds = replay(known_trace(), fixed(1))
        summary(rounds, known_trace(), model)


def cards(folder: Path) -> None:
    for name, ablation in (("eagle", "eagle-token"), ("glide", "glide-layer0")):
        card = (TRACES / "ablations" / f"{ablation}.json").read_bytes()
        (folder / f"{name}.json").write_bytes(card)


def use_card(path: Path) -> None:
    read_card(path)
    tokens_learned(path.parent, f"{path.stem}.parquet", path.stem)


PROMPTS = "".join(
    json.dumps(row) + "\n"
    for row in (
        {"id": "a", "task": "t", "text": "some words", "source": "s: x"},
        {"id": 7, "task": "gsm8k", "text": "1 + 1 = é"},
        {"task": "mt_bench/writing", "turns": ["Write.", "More."]},
    )
)
TREES = {
    "paths__json": '{"paths": [[0], [1], [0, 0], [0, 1], [0, 0, 0]]}',
    "parents__json": '{"parent": [0, 0, 1, 1], "rank": [0, 1, 0, 1]}',
}
CORPUS = "".join(json.dumps({"text": f"text {i} é", "source": "s"}) + "\n" for i in range(40))


def corpora(folder: Path) -> None:
    (folder / "a.jsonl").write_text(CORPUS, encoding="utf-8")
    (folder / "b.jsonl.xz").write_bytes(lzma.compress(CORPUS.encode()))
    (folder / "c.txt").write_text("plain text é", encoding="utf-8")


def runs(folder: Path) -> None:
    sequences = [
        EmittedSequence((1, 2), (4, 5, 6, 3), i, ((0, 2, 2, 1), (2, 3, 2, 2))) for i in range(3)
    ]
    save_run(folder / "greedy.jsonl", RunHeader("greedy", end_tokens=(3,)), sequences)
    header = RunHeader("rejection", 0.8, 5, 0.9, 11, "bfloat16", "cpu", "t", "d", "fixed:2", (3,))
    save_run(folder / "sampled.jsonl", header, sequences)


def use_run(path: Path) -> None:
    load_run(path).check_vocabulary(4096)


def use_import(path: Path) -> None:
    """What `simspec import` does."""
    json.dumps(import_report(read(FORMAT_OF[path.name], path)), allow_nan=False)


def use_checkpoint(path: Path) -> None:
    """What every command does with a target, but for its tokenizer."""
    decoder = load_decoder(path.parent)
    end_tokens(path.parent, decoder.config.vocab)
    decoder(torch.tensor([[1, 2]]))


def use_tokenizer(path: Path) -> None:
    load_tokenizer(path.parent).encode("the cat").ids  # noqa: B018


def heads(name: str) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        torch.manual_seed(0)
        save_draft_head(HEADS[name](toy_target()), folder, name, MADE_FOR)

    return prepare


def use_head(path: Path) -> None:
    BUILTIN[path.stem].load(path.parent, toy_target(), MADE_FOR)


SETTINGS = {
    "lookahead__json": '{"settings": {"window": 5, "ngram": 3, "pool": 4, "seed": 1}}',
    "self_skip__json": json.dumps(
        {"settings": {"attention": [2], "mlp": [1, 2]}, "target": MADE_FOR}
    ),
    "prompt_lookup__json": '{"settings": {}}',
}


def predictors(folder: Path) -> None:
    save_predictor(AcceptancePredictor(16, 16, 2, 4), folder, "theta_low_rank", "w" * 64)


def use_predictor(path: Path) -> None:
    load_predictor(path.parent, path.stem, "w" * 64)


def exits(folder: Path) -> None:
    rows, code = known_trace().rows, np.zeros((known_trace().rows, 2), np.uint8)
    token = np.zeros((rows, 2), np.int32)
    drafts = ExitDrafts((1, 2), token, token - 1, code, code[..., None], code, code, code)
    write_exits(drafts, known_trace(), folder / "x.exits.parquet")


def sitting(samples: Samples, path: Path) -> UnfinishedSitting:
    assert samples.pace is not None
    return UnfinishedSitting(path, {"entries": ["a"]}, {"a": samples}, samples.pace)


def sittings(folder: Path) -> None:
    pace = Pace()
    pace.extend([[0.0, 0.5, 0.5], [0.01, 0.6]])
    samples = Samples(pace)
    done = SimpleNamespace(computed=2, drafted=2, accepted=1)
    from real.measure.timing import Job

    passes = [(i // 3, 0.5) for i in range(5)]
    samples.add([Job("fixed", 2)] * 4, [done] * 4, [[0.1, 0.2, 0.0, 0.0]] * 4, passes)
    sitting(samples, folder / "unfinished.json").save(Sitting(1, 2.0))


def use_sitting(path: Path) -> None:
    samples = Samples(Pace())
    sitting(samples, path).load()
    samples.drafting(2)


def contests(folder: Path) -> None:
    calls = {"token": [[[1, 2], [3]]], "passes": [[2, 1]], "seconds": [[0.5, 0.25]]}
    kept = Kept(folder / "contest.json", {"policy": "fixed:2"}, "0f")
    kept.save([Runs("plain", first=[0.1, 0.2], **calls)])


def engine_runs(folder: Path) -> None:
    world = prompts(4, budget=12)
    settings = EngineSettings(Path("target"), NgramDraft(2, 1, 2))
    asked, plan = [request for request, _ in world], Plan((0, 1, 2), repeats=1, group=2)
    make = partial(FakeRunner, world)
    run_on_engine(make, settings, asked, plan, folder / "run.jsonl", False)


def use_engine_run(path: Path) -> None:
    """What `simspec engine compare` and the end of `simspec engine measure` do."""
    about, rows = read_engine_rows(path)
    json.dumps(compare_rows(about, rows).to_dict())
    cost = engine_cost(about, rows)
    json.dumps(cost.to_dict())
    other = cost.origin and replace(cost.origin, sitting="others")
    json.dumps(speedup_table(about, rows, replace(cost, origin=other)).to_dict())


WRITTEN = "".join(
    json.dumps(row) + "\n"
    for row in (
        {"id": "a", "prompt": [5, 6, 5], "output": [6, 5, 6, 5, 9], "max_tokens": 8},
        {"prompt": [1, 2, 3, 1], "output": [2, 3, 1, 2], "temperature": 0, "task": "t"},
    )
)


def use_texts(path: Path) -> None:
    """What `simspec record --from-text` does."""
    record_texts(read_texts(path), ngram_rule("vllm:1,3"), 4, (9,))


def checkpoint(folder: Path) -> None:
    qwen2_checkpoint(folder)


def gguf(folder: Path) -> None:
    write_gguf(folder / "toy.gguf")


FORWARD = [
    {"case": name, "median_us": 6e3,
     "requests": [{"query_len": k + 1, "kv_len": 1025 + k, "num_draft_tokens": k}] * 2,
     "ranks": [{"latency_us": {"median": 6e3, "samples_us": [6e3, 6.1e3] * 10}}]}
    for name, k in (("plain", 0), ("three", 3))
]  # fmt: skip
CELL = {"batch": 1, "context": 8, "rate": 0.0, "tokens": 1.0, "seconds": [0.01, 0.012] * 3}
STEPS = dict.fromkeys(("engine", "version", "runner", "device", "dtype", "shape", "drafter"), "x")
STEPS |= {"created": "x", "threads": 1, "block": 4, "alternating": True}
STEPS |= {"settings": {"graphs": "x"}, "cells": [{**CELL, "k": k} for k in (0, 1, 3)]}


def use_shape(path: Path) -> None:
    """What `engine measure` reads of a shape, `import vllm-forward`, and who repeats a table."""
    if path.name == "config.json":
        shape = shape_of(path, "")
        assert shape is not None
        assert shape.weight_bytes("bfloat16") + shape.cache_bytes("bfloat16", 9) > 0
        json.dumps(shape.eagle3())
        return
    json.dumps(step_table(
        read_steps(path) if path.name == "steps.json" else forward_steps(path, 9.0)
    ).to_dict())  # fmt: skip


KINDS: dict[str, Kind] = {
    "shape": Kind(
        texts(
            forward__json=json.dumps(FORWARD),
            steps__json=json.dumps(STEPS),
            config__json=json.dumps(next(iter(named_shapes().values())).config),
        ),
        use_shape,
        weight=4,
    ),  # fmt: skip
    "recording": Kind(recordings, use_recording, weight=12, room=256 * MEBIBYTE),
    "recording: metadata": Kind(
        recordings, use_recording, weight=12, room=256 * MEBIBYTE, forge=forged_metadata
    ),
    "recording: numbers": Kind(
        recordings, use_recording, weight=5, room=256 * MEBIBYTE, forge=forged_arrays
    ),
    "exits": Kind(
        exits, lambda path: read_exits(path, known_trace()), weight=3, room=256 * MEBIBYTE
    ),
    "cost": Kind(
        copies(*GOLDENS.glob("cost-*.json"), TRACES / "tiny-model-greedy.cost.json"),
        use_cost,
        weight=10,
    ),
    "card": Kind(cards, use_card, weight=6),
    "prompts": Kind(texts(prompts__jsonl=PROMPTS), read_rows, weight=6),
    "corpus": Kind(corpora, lambda path: list(documents([path])), weight=3),
    "run": Kind(runs, use_run, weight=8),
    "import": Kind(copies(*(FIXTURES / name for name in FORMAT_OF)), use_import, weight=20),
    "checkpoint": Kind(
        checkpoint,
        use_checkpoint,
        ("config.json", "model.safetensors", "generation_config.json"),
        weight=3,
    ),
    "tokenizer": Kind(checkpoint, use_tokenizer, ("tokenizer.json",), weight=0.05),
    **{f"{name} head": Kind(heads(name), use_head, weight=2) for name in HEADS},
    "drafter settings": Kind(texts(**SETTINGS), use_head, weight=3),
    "predictor": Kind(predictors, use_predictor, weight=3),
    "tree": Kind(texts(**TREES), load_tree, weight=3),
    "unfinished costs": Kind(sittings, use_sitting, weight=2),
    "repeats": Kind(
        contests, lambda path: Kept(path, {"policy": "fixed:2"}).load(["plain"], 2), weight=2
    ),
    "gguf": Kind(gguf, check_gguf, weight=1),
    "engine rows": Kind(engine_runs, use_engine_run, weight=6),
    "written texts": Kind(texts(texts__jsonl=WRITTEN), use_texts, weight=4),
}
