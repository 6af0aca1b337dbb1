"""Costs of a shape: steps of an engine that loads no weights, timed in blocks of draft lengths.

A pass takes the same seconds whatever its weights are, so a config.json prices a model, and every
draft is rejected, so that a step of K drafts makes one token. A file of steps holds the blocks;
`step_table` makes the cost table of them. shapes.json has the fields of ten public config.json.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from real.engines.adapter import (
    RELEASED,
    Draft,
    Engine,
    EngineSettings,
    ModelDraft,
    NgramDraft,
    draft_of,
    start_options,
)
from real.engines.measure import block_mean, ratio_cost
from real.engines.worker import Finished, Ready, Request, Worker
from real.measure.estimate import Estimate, drift_warning
from real.measure.timing import Timed
from simspec import CostModel
from simspec.cost.gate import SECONDS
from simspec.cost.provenance import CostOrigin
from simspec.cost.table import CostTable
from simspec.output.files import converted, read_json, reraised

DRAWS = 100
"""Bootstrap replicates of a cell, over its blocks."""
BLOCK, CONTEXT = 4, 1024
"""Steps of a block, and tokens before the first one where nothing is said."""
LADDER = 0, 1, 2, 3, 5, 8
"""Draft lengths that are timed where each one needs an engine of its own; and the longest."""
TOGETHER = "engines together"
"""Setting of `Ready`: engines of this shape that fit next to each other."""
RANDOM = "random:"
DRAFT_ROWS = 32_000
"""Logits of a trained EAGLE-3 head."""
EAGLE3_LAYERS = 7
"""Fewest layers N of which 2, N / 2 and N - 3, which vLLM feeds to such a head, are different."""
LIMITS = {
    "hidden_size": 1 << 16, "intermediate_size": 1 << 20, "num_hidden_layers": 1 << 10,
    "num_attention_heads": 1 << 10, "num_key_value_heads": 1 << 10, "vocab_size": 1 << 22,
}  # fmt: skip
"""Largest sizes of a shape that an engine is started for; the least is 1."""
OPTIONAL = "head_dim", "num_experts", "num_local_experts", "moe_intermediate_size"
"""Sizes that some shapes have."""
Size = Annotated[int, Meta(ge=1, le=1 << 20)]
Length = Annotated[int, Meta(ge=0, le=64)]
Second = Annotated[float, Meta(ge=SECONDS[0], le=SECONDS[1])]
Text = Annotated[str, Meta(max_length=1000)]


@dataclass(frozen=True)
class StepCell:
    """Steps of one batch size, context and draft length."""

    batch: Size  # sequences that decode together
    context: Size  # their tokens before the first step
    k: Length  # drafts of each sequence in a step; 0: a plain step
    rate: Annotated[float, Meta(ge=0, le=1)]  # of drafts accepted after an accepted one
    tokens: Annotated[float, Meta(ge=1, le=65)]  # emitted in a step, of each sequence
    # mean seconds of a step, of each block of consecutive steps
    seconds: Annotated[tuple[Second, ...], Meta(min_length=1, max_length=1000)]


@dataclass(frozen=True)
class StepRun:
    """The steps of one engine, drafter and shape.

    alternating: blocks of all lengths took turns, so that block i of one belongs to block i of
    another, and `starts` engines timed as many of them each, one after another; otherwise every
    length had an engine of its own. settings: of the engine, in words.
    """

    engine: Text
    version: Text
    runner: Text
    device: Text
    threads: Annotated[int, Meta(ge=0)]
    dtype: Text
    shape: Text
    drafter: Text
    block: Size
    alternating: bool
    created: Text
    cells: Annotated[tuple[StepCell, ...], Meta(max_length=100_000)]
    settings: Mapping[str, Text] = field(default_factory=dict)
    warnings: tuple[Text, ...] = ()
    starts: Annotated[int, Meta(ge=1, le=100)] = 1

    @property
    def origin(self) -> CostOrigin:
        """Where the costs come from."""
        engine = f"{self.engine} {self.version}, {self.runner} runner"
        return CostOrigin(
            device=self.device, threads=self.threads, dtype=self.dtype,
            engines={"target": engine, "drafter": f"{engine}, {self.drafter}"},
            versions={self.engine: self.version}, created=self.created,
            settings={"shape": self.shape, "steps in a block": str(self.block), **self.settings},
        )  # fmt: skip


def read_steps(path: str | PathLike[str]) -> StepRun:
    """The steps of a file; ValueError, one line with the path, for anything else."""
    run: StepRun = read_json(path, partial(converted, "steps", kind=StepRun), "file of steps")
    return run


def step_table(run: StepRun, seed: int = 0) -> CostTable:
    """Costs by batch and context of the steps in which every draft was rejected.

    verify[K] is the trimmed mean of the blocks of K drafts, all of the drafting within it; `draft`
    is 0. Lengths between measured ones are linear, without samples. Replicates draw blocks with
    replacement: alternating ones together, and their engines before; those of a length that has its
    own engines apart. ValueError where a batch and context has no plain step, or another longest
    draft than the first.
    """
    found: dict[tuple[int, int], dict[int, np.ndarray]] = defaultdict(dict)
    for cell in run.cells:
        if cell.rate == 0:
            found[cell.batch, cell.context][cell.k] = np.array(cell.seconds)
    if not found:
        raise ValueError("no step rejects all of its drafts, expected cells of rate 0")
    K = max(next(iter(found.values())))
    for (batch, context), blocks in found.items():
        if 0 not in blocks or max(blocks) != K:
            raise ValueError(
                f"batch {batch}, context {context} has steps of {sorted(blocks)} drafts, expected "
                f"plain ones, and the longest draft {K} of the other cells"
            )
        counts = {len(held) for held in blocks.values()}
        if run.alternating and (len(counts) > 1 or max(counts) % run.starts):
            raise ValueError(
                f"batch {batch}, context {context}: alternating blocks differ in number, {counts} "
                f"of {run.starts} engines"
            )
    batches, contexts = (tuple(sorted(set(axis))) for axis in zip(*found))
    rng = np.random.default_rng(seed)
    rows = []
    for batch in batches:
        cells = []
        for context in contexts:
            held = found.get((batch, context))
            cells.append(None if held is None else _cost(run, held, K, batch, rng))
        rows.append(tuple(cells))
    return CostTable(batches, contexts, tuple(rows), _name(run))


def _name(run: StepRun) -> str:
    return f"{run.engine} {run.version} {run.runner}, {run.shape}, {run.drafter}"


def _cost(
    run: StepRun, blocks: Mapping[int, np.ndarray], K: int, batch: int, rng: np.random.Generator
) -> CostModel:
    """The costs of one batch and context."""

    def ratios(drawn: Mapping[int, np.ndarray]) -> dict[int, Estimate]:
        plain = block_mean(drawn[0]).seconds
        if run.alternating:
            return {k: block_mean(held / drawn[0]) for k, held in drawn.items()}
        return {k: _over(block_mean(held), plain) for k, held in drawn.items()}

    baseline = block_mean(blocks[0])
    drawn = []
    for _ in range(DRAWS):
        same = _alternating_draw(len(blocks[0]), run.starts, rng)
        drawn.append(
            ratios(
                {
                    k: held[same if run.alternating else rng.integers(0, len(held), len(held))]
                    for k, held in blocks.items()
                }
            )
        )
    first, last = (
        Timed(half, np.arange(len(half)), np.ones(len(half)))
        for half in np.array_split(blocks[0], 2)
    )
    drift = () if run.alternating else drift_warning(first, last, "its start and its end")
    whole = ratios(blocks)
    if run.starts > 1:
        spread = {k: np.std([each[k].seconds for each in drawn], ddof=1) for k in whole}
        whole = {
            k: Estimate(e.seconds, max(e.half_width, 1.96 * float(spread[k])), e.samples)
            for k, e in whole.items()
        }
    return ratio_cost(
        K, baseline.seconds,
        whole | {0: _over(baseline, baseline.seconds)}, drawn,
        {"baseline": baseline.samples},
        name=f"{_name(run)}, batch {batch}",
        origin=run.origin,
        seconds=float(run.block * sum(held.sum() for held in blocks.values())),
        warnings=(*run.warnings, *drift),
        blocks=min(map(len, blocks.values())),
    )  # fmt: skip


def _alternating_draw(count: int, starts: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers of as many blocks: engine starts drawn with replacement, then blocks within each.

    Passes of 3 draft tokens or more differ by 2 to 4% of a plain one between starts of one engine.
    """
    each = np.array_split(np.arange(count), starts)
    chosen = rng.integers(0, starts, starts) if starts > 1 else [0]
    return np.concatenate([rng.choice(each[start], len(each[start])) for start in chosen])


def _over(e: Estimate, plain: float) -> Estimate:
    return Estimate(e.seconds / plain, e.half_width / plain, e.samples)


@dataclass(frozen=True)
class Shape:
    """A model to time: the fields of its config.json, and its folder where that has weights."""

    name: str
    config: Mapping[str, Any]
    folder: Path | None = None

    def __post_init__(self) -> None:
        config, sizes = converted("config.json", self.config, dict[str, Any]), self.sizes
        if not isinstance(architectures := config.get("architectures"), list) or not architectures:
            raise ValueError(f"{self.name}: config.json names no architecture, expected one")
        if "auto_map" in config:
            raise ValueError(f"{self.name}: config.json has code of its own, which is not run here")
        for name, most in (LIMITS | {name: 1 << 20 for name in OPTIONAL if name in sizes}).items():
            if not isinstance(size := sizes.get(name), int) or not 1 <= size <= most:
                raise ValueError(f"{self.name}: {name} is {size!r}, expected 1 to {most}")
        heads, shared = sizes["num_attention_heads"], sizes["num_key_value_heads"]
        if heads % shared or (sizes["hidden_size"] % heads and "head_dim" not in sizes):
            raise ValueError(
                f"{self.name}: {heads} heads divide neither hidden_size nor {shared} key-value "
                "heads evenly: correct the shape"
            )

    @property
    def sizes(self) -> dict[str, Any]:
        """The fields of the language model."""
        inner = self.config.get("text_config")
        held = {**self.config, **(inner if isinstance(inner, dict) else {})}
        held.setdefault("num_key_value_heads", held.get("num_attention_heads"))
        return held

    @property
    def dtype(self) -> str:
        """Of the weights, as the config.json says."""
        return str(self.sizes.get("dtype") or self.sizes.get("torch_dtype") or "bfloat16")

    @property
    def head(self) -> int:
        """Values of an attention head."""
        given = self.sizes.get("head_dim")
        return int(given or self.sizes["hidden_size"] // self.sizes["num_attention_heads"])

    def weight_bytes(self, dtype: str) -> int:
        """At least the bytes of the weights: those of a quantized file are 4 bits in the MLPs."""
        of, wide = self.sizes, 4 if dtype == "float32" else 2
        hidden, layers = of["hidden_size"], of["num_hidden_layers"]
        experts = of.get("num_experts") or of.get("num_local_experts") or 1
        inner = of.get("moe_intermediate_size") or of["intermediate_size"]
        attention = 2 * hidden * self.head * (of["num_attention_heads"] + of["num_key_value_heads"])
        mlp = 3 * hidden * inner * experts * (0.5 if "quantization_config" in of else wide)
        tables = of["vocab_size"] * hidden * (1 if of.get("tie_word_embeddings") else 2)
        return int(layers * (attention * wide + mlp) + tables * wide)

    def cache_bytes(self, dtype: str, tokens: int) -> int:
        """Bytes of the keys and values of `tokens` tokens."""
        layers = self.sizes["num_hidden_layers"] + 1  # a head has one more
        values = 2 * layers * self.sizes["num_key_value_heads"] * self.head
        return values * tokens * (4 if dtype == "float32" else 2)

    def eagle3(self) -> dict[str, Any]:
        """config.json of an EAGLE-3 head of one Llama layer, as trained ones have it."""
        kept = (*LIMITS, "head_dim", "rms_norm_eps", "rope_theta", "max_position_embeddings")
        return {name: self.sizes[name] for name in kept if name in self.sizes} | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "num_hidden_layers": 1,
            "draft_vocab_size": min(DRAFT_ROWS, self.sizes["vocab_size"]),
            "tie_word_embeddings": False,
            "hidden_act": "silu",
            "torch_dtype": self.dtype,
        }


def named_shapes() -> dict[str, Shape]:
    """The shapes that come with the package, by name."""
    held = json.loads(Path(__file__).with_name("shapes.json").read_text(encoding="utf-8"))
    return {name: Shape(name, each["config"]) for name, each in held.items()}


def shape_of(model: Path, recording: str) -> Shape | None:
    """The shape that `engine measure --model` names; None for weights whose prompts are recorded.

    A name of shapes.json, a config.json, or a folder with one. A folder's weights are timed where
    the recording is random:TOKENS. ValueError, one line, for anything else.
    """
    if not model.exists():
        if str(model) in (shapes := named_shapes()):
            return shapes[str(model)]
        raise ValueError(
            f"--model {model} is not here, expected a folder of safetensors, a GGUF, a config.json "
            f"or one of {', '.join(shapes)}"
        )
    file = model / "config.json" if model.is_dir() else model
    if file.suffix != ".json" or not file.exists():
        return None
    weights = model.is_dir() and any(model.glob("*.safetensors"))
    if weights and not recording.startswith(RANDOM):
        return None
    return read_json(
        file,
        lambda config: Shape(file.parent.name or "shape", config, model if weights else None),
        "shape",
    )


def contexts_of(recording: str) -> tuple[int, ...]:
    """The contexts of random:TOKENS,..; CONTEXT for a recording, whose prompts a shape ignores."""
    if not recording.startswith(RANDOM):
        return (CONTEXT,)
    parts = recording.removeprefix(RANDOM).split(",")
    if not all(part.isdecimal() and 1 <= int(part) <= 1 << 20 for part in parts):
        raise ValueError(
            f"--recording is {recording!r}, expected {RANDOM}1024 or {RANDOM}1024,4096"
        )
    return tuple(sorted({int(part) for part in parts}))


@dataclass(frozen=True)
class ShapePlan:
    """What is timed: a drafter up to K tokens, batch sizes, contexts, and blocks of each cell."""

    shape: Shape
    drafter: str
    K: int
    sizes: tuple[int, ...]
    contexts: tuple[int, ...]
    blocks: int
    starts: int = 1  # engines among which they are divided where K can be set in place
    dtype: str = ""
    threads: int = 1
    fast: bool = False  # asynchronous scheduling

    def prompt(self, context: int, lengths: int) -> int:
        """Prompt tokens at which the timed steps of all lengths have the context in their middle.

        As the worker has it, a batch begins anew once it has grown by a quarter.
        """
        turn = lengths * (BLOCK + 2)
        grown = min(max(context // 4, turn), (self.blocks + 1) * turn)
        return max(context - grown // 2, 1)

    def settings(self, folder: Path, k: int) -> tuple[Engine, EngineSettings]:
        """The engine of one draft length, its files in the folder; ValueError for the drafter."""
        shape, dtype = self.shape, self.dtype or self.shape.dtype
        draft, form, rows = self._draft(folder, k)
        turn, context = (self.K + 1) * (BLOCK + 2), max(self.contexts)
        longest = context + max(context // 4, turn) + 4 * (self.K + 8)
        tokens = max(self.sizes) * (longest + 512)  # whole pages, and drafts
        extra = {
            "dummy": shape.folder is None,
            "batches": list(self.sizes),
            "block": BLOCK,
            "weight_bytes": shape.weight_bytes(dtype),
            "cache_bytes": shape.cache_bytes(dtype, tokens),
        }

        def options(given: EngineSettings) -> dict[str, Any]:
            start = start_options(given) | extra
            if start["draft"] is not None:
                start["draft"] |= {"form": form, "rows": rows}
            return start

        model = shape.folder or _written(folder / "target", shape.config)
        engine = replace(
            RELEASED["vllm"], worker="vllm_shapes_worker.py", tested=("0.26.0", "0.34"),
            longest_draft=64, options=options,
        )  # fmt: skip
        batch = max(self.sizes)
        exact = not self.fast
        return engine, EngineSettings(model, draft, self.threads, dtype, longest, batch, exact)

    def _draft(self, folder: Path, k: int) -> tuple[Draft | None, str, int]:
        """(the draft of k tokens, vLLM's name of the method, logits); None, "" and 0: plain."""
        if not k or self.drafter == "none":
            return None, "", 0
        path, dummy = Path(self.drafter), self.shape.folder is None
        file = path if path.is_file() else path / "config.json"
        if self.drafter == "eagle3":
            if not dummy:
                raise ValueError("--drafter eagle3 has no weights here: give the head's folder")
            head = Shape("eagle3", self.shape.eagle3())
        elif file.is_file():
            head = read_json(file, partial(Shape, str(path)), "shape")
        else:
            draft = draft_of(self.drafter, k)
            if not isinstance(draft, NgramDraft):
                raise ValueError(
                    f"--drafter {self.drafter} has no shape: expected ngram, eagle3 or its folder"
                )
            return draft, "ngram", 0
        # without weights a copy: vLLM takes some names of folders for a method
        model = ModelDraft(k, _written(folder / "head", head.config) if dummy else file.parent)
        if "Eagle3" not in str(head.config["architectures"]):
            return model, "draft_model", 0
        if (layers := self.shape.sizes["num_hidden_layers"]) < EAGLE3_LAYERS:
            raise ValueError(
                f"an EAGLE-3 head reads three layers of {EAGLE3_LAYERS} or more, {self.shape.name} "
                f"has {layers}: give ngram"
            )
        rows = head.sizes.get("draft_vocab_size") or head.sizes["vocab_size"]
        return model, "eagle3", int(rows) if dummy else 0


def _written(folder: Path, config: Mapping[str, Any]) -> Path:
    """The folder, with this config.json in it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    return folder


def measure_shape(
    plan: ShapePlan,
    make: Callable[[Engine], Worker],
    progress: Callable[[str, int, int], None] = lambda *_: None,
    keep: Callable[[StepRun], None] = lambda _: None,
    held: StepRun | None = None,
) -> StepRun:
    """The steps of a plan: blocks of all lengths in turns where K can be set in an engine.

    Otherwise each length of LADDER has an engine, the plain one runs first and last, and its two
    halves tell whether the machine changed meanwhile. Those that fit next to each other start
    together, and each is timed once all are up. `keep` gets what is there after each engine; held:
    what an earlier call kept, which is continued. EngineError where an engine fails.
    """
    asked = plan.shape.name, plan.drafter, plan.dtype or plan.shape.dtype, plan.threads
    if held and (found := (held.shape, held.drafter, held.dtype, held.threads)) != asked:
        raise ValueError(f"the kept steps are of {found}, expected {asked}: remove them")
    cells = defaultdict[tuple[int, int, int], list[float]](list)
    for cell in held.cells if held else ():
        cells[cell.batch, cell.context, cell.k] += cell.seconds
    grid = [(size, context) for size in plan.sizes for context in plan.contexts]
    K, run, together = 0 if plan.drafter == "none" else plan.K, held, 1
    ladder = [K, 0, *(length for length in LADDER[1:] if length < K), 0] if K else [0]
    part = replace(plan, blocks=plan.blocks // plan.starts)  # of an engine with all lengths
    order = [K] * (plan.starts - (held.starts if held else 0))
    if held and not held.alternating:
        order = _left(ladder, plan, grid, cells)
    with TemporaryDirectory(prefix="shape-") as name:
        while order:
            ks, order = order[:together], order[together:]
            engines = [plan.settings(Path(name), k) for k in ks]
            with ExitStack() as stack:
                workers = [stack.enter_context(make(engine)) for engine, _ in engines]
                for worker, (_, settings) in zip(workers, engines):
                    worker.launch(settings)
                for k, worker, ready in zip(ks, workers, [each.ready() for each in workers]):
                    together = int(ready.settings.get(TOGETHER, together))
                    if run is None and not ready.sets_k:
                        order = ladder[1:]
                    for done, (size, context) in enumerate(grid, 1):
                        lengths = range(K + 1) if ready.sets_k else (k,)
                        asked_of = part if ready.sets_k else plan
                        timed = _blocks(asked_of, worker, lengths, size, context)
                        for length, seconds in timed.items():
                            cells[size, context, length] += seconds
                        progress(f"K = {k}", done, len(grid))
                    run = _step_run(plan, run, ready, cells)
                    keep(run)
    assert run is not None
    return run


def _left(
    ladder: Sequence[int],
    plan: ShapePlan,
    grid: Sequence[tuple[int, int]],
    cells: Mapping[Any, Any],
) -> list[int]:
    """The draft lengths whose engines have not timed the whole grid."""
    timed = {k: min(len(cells[(*at, k)]) for at in grid) // plan.blocks for k in ladder}
    return [k for place, k in enumerate(ladder) if ladder[:place].count(k) >= timed[k]]


def _blocks(
    plan: ShapePlan, worker: Worker, ks: Sequence[int], size: int, context: int
) -> dict[int, list[float]]:
    """{draft length: mean seconds of a step of each block}."""
    rng, most = np.random.default_rng(context), min(plan.shape.sizes["vocab_size"], 1 << 31)
    prompt = tuple(rng.integers(0, most, plan.prompt(context, len(ks))).tolist())
    found: dict[int, list[float]] = {}

    def keep(finished: Finished) -> None:
        seconds = np.array(finished.pass_seconds)
        if len(seconds) != plan.blocks * BLOCK:
            raise ValueError(f"{len(seconds)} steps were timed, expected {plan.blocks * BLOCK}")
        found[int(finished.id)] = seconds.reshape(-1, BLOCK).mean(axis=1).tolist()

    worker.run([Request(str(k), prompt, plan.blocks * BLOCK) for k in ks], keep, size)
    return found


def _step_run(
    plan: ShapePlan, held: StepRun | None, ready: Ready, cells: Mapping[Any, list[float]]
) -> StepRun:
    """The steps so far, this engine's included; the first engine says how they were timed."""
    settings = dict(ready.settings)
    settings.pop(TOGETHER, None)
    own, warnings = settings.pop("runner", "unknown"), tuple[str, ...]()
    if held is not None:
        if (ready.version, ready.device) != (held.version, held.device):
            raise ValueError(
                f"the kept steps are of {held.engine} {held.version} on {held.device}, this is "
                f"{ready.version} on {ready.device}: remove them"
            )
        settings, warnings = dict(held.settings), held.warnings
        if own != held.runner and not warnings:
            warnings = (f"plain steps ran on the {own} runner, not on {held.runner}",)
    return StepRun(
        engine=ready.engine, version=ready.version, runner=held.runner if held else own,
        device=ready.device, threads=plan.threads, dtype=plan.dtype or plan.shape.dtype,
        shape=plan.shape.name, drafter=plan.drafter, block=BLOCK, alternating=ready.sets_k,
        created=datetime.now(UTC).isoformat(timespec="seconds"), settings=settings,
        warnings=warnings, starts=held.starts + 1 if held and held.alternating else 1,
        cells=tuple(
            StepCell(size, context, k, 0.0, 1.0, tuple(seconds))
            for (size, context, k), seconds in sorted(cells.items())
            if seconds
        ),
    )  # fmt: skip


REPLAYS = 10
"""Replays of a forward's graph in a block: `vllm bench forward` times 100 a case."""
SAME_CONTEXT = 0.1
"""Contexts that differ by no more than this share count as one."""


@dataclass(frozen=True)
class ForwardCase:
    """A case of `vllm bench forward` in which every request decodes with as many drafts.

    drafter: the drafts whose passes are in the seconds too; 0: none. seconds: of blocks of replays.
    """

    name: str
    batch: int
    context: float
    k: int
    drafter: int
    seconds: np.ndarray


def _forward_case(data: Any) -> ForwardCase | None:
    """The case of one result; None for prefills and mixed batches. ValueError for other data."""
    made = converted("a result", data, dict[str, Any])
    name = str(made.get("case"))[:80]
    with reraised(ValueError, f"case {name!r} is no result of `vllm bench forward`"):
        requests, rank = made["requests"], made["ranks"][0]
        shapes = [(r["query_len"], r["kv_len"], r["num_draft_tokens"]) for r in requests]
        sizes = converted("its requests", shapes, list[tuple[Size, Size, Length]])
        latency = rank["latency_us"]
        replays = [1e-6 * us for us in latency.get("samples_us") or [latency["median"]]]
        spent = converted("its latency_us", replays, Annotated[list[Second], Meta(min_length=1)])
        drafter = converted(
            "its drafter", rank.get("drafter", {}).get("num_draft_tokens", 0), Length
        )
    k = sizes[0][2] if sizes else 0
    if not sizes or any(query != k + 1 or drafts != k for query, _, drafts in sizes):
        return None
    context = float(np.mean([length - query for query, length, _ in sizes]))
    whole = max(len(spent) // REPLAYS, 1)
    blocks = np.array([part.mean() for part in np.array_split(spent, whole)])
    return ForwardCase(name, len(sizes), context, k, drafter, blocks) if context >= 1 else None


def forward_steps(
    path: str | PathLike[str], step_ms: float | None = None, shape: str = "unknown"
) -> StepRun:
    """The steps of the JSON of `vllm bench forward` (vLLM 0.33), target and drafter, by batch.

    The file leaves out sampling, rejection and the host. step_ms: one measured plain step of the
    smallest batch, whose rest over the file's forward is added to every step. A plain case must be
    timed with --exclude-drafter, since the drafter runs in every other. ValueError, one line.
    """
    read = read_json(
        path,
        lambda data: [_forward_case(each) for each in converted("the file", data, list[Any])],
        "result of vllm bench forward",
    )
    cases = [case for case in read if case is not None]
    plain = sorted(
        (c for c in cases if not c.k and not c.drafter), key=lambda c: (c.batch, c.context)
    )
    if not plain:
        raise ValueError(
            f"{path}: no case decodes without drafts and drafter: add the results of a run with "
            "--exclude-drafter to the list"
        )
    rest, warnings = 0.0, []
    if step_ms is None:
        warnings.append(
            "sampling, rejection and the host are missing from `vllm bench forward`: rounds look "
            "dearer than they are, give one measured plain step by --step-ms"
        )
    else:
        rest = step_ms / 1000 - block_mean(plain[0].seconds).seconds
        if rest < 0:
            raise ValueError(
                f"--step-ms is {step_ms:g}, expected at least the plain forward of "
                f"{plain[0].name!r}, {1000 * block_mean(plain[0].seconds).seconds:.3f} ms"
            )
        warnings.append(
            f"sampling, rejection and the host take {1000 * rest:.3f} ms of one plain step, and "
            "are taken to cost as much at every batch, context and draft length"
        )
    cells, used = dict[tuple[int, int, int], StepCell](), 0
    for base in plain:
        for case in cases:
            near = abs(case.context / base.context - 1) <= SAME_CONTEXT
            if case.batch != base.batch or not near or (case.k and case.drafter not in (0, case.k)):
                continue
            if case is not base and not case.k:
                continue
            at = case.batch, round(base.context), case.k
            seconds = tuple((case.seconds + rest).tolist())
            cells[at] = StepCell(*at, 0.0, 1.0, seconds)
            used += 1
    if used < len(read):
        warnings.append(
            f"{len(read) - used} of {len(read)} cases are left out: prefills, a drafter of another "
            "length, or no plain case of that batch and context (--kv-len-jitter 0 keeps contexts)"
        )
    drafts = {case.drafter > 0 for case in cases if case.k}
    if drafts != {True}:
        warnings.append("some drafts are priced without the passes of their drafter")
    return StepRun(
        engine="vllm", version="0.33 or later", runner="V2", device="", threads=0, dtype="",
        shape=shape, drafter="its drafter" if True in drafts else "no drafter", block=REPLAYS,
        alternating=False, created="", cells=tuple(cells.values()), warnings=tuple(warnings),
        settings={"measured by": "vllm bench forward: one-shot CUDA graphs"},
    )  # fmt: skip
