"""An engine's adapter: its package, its worker script, and settings that the worker starts with."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

import simspec

WORKERS = Path(__file__).parent / "workers"
"""Folder of the worker scripts; each imports the standard library and its engine only."""
MOST_DRAFT = 64
"""Draft lengths beyond it are refused, whatever the engine would take."""
DTYPES = "float32", "bfloat16", "float16"
NGRAM_PROPOSER = "simspec.engines.vllm_proposer.PolicyProposer"
MODEL_PROPOSER = "real.engines.hosted_proposer.ModelProposer"
EAGLE_PROPOSER = "real.engines.hosted_proposer.EagleProposer"
"""Classes that vLLM loads by name."""
DRAFT_MODEL = "draft_model"


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


@dataclass(frozen=True)
class NgramDraft:
    """N-gram drafts: the longest suffix of ngram_min to ngram_max tokens that occurs earlier.

    | field | meaning |
    | --- | --- |
    | k | most tokens a draft holds |
    | ngram_min, ngram_max | lengths of suffixes tried, longest first |
    | match | the "first" or the "last" earlier occurrence; None: the engine's own |
    """

    k: int
    ngram_min: int = 1
    ngram_max: int = 3
    match: str | None = None

    method = "ngram"


@dataclass(frozen=True)
class ModelDraft:
    """Drafts of a small model or a head: k tokens, each the likeliest, up to one below p_min."""

    k: int
    model: Path
    p_min: float = 0.0

    method = "model"


@dataclass(frozen=True)
class PolicyDraft:
    """Drafts of up to k tokens whose length a policy decides, by simspec's proposer in the engine.

    | field | meaning |
    | --- | --- |
    | k | most tokens a draft holds |
    | ngram_min, ngram_max | lengths of suffixes tried, longest first |
    | cost | costs that policies plan with, as `CostModel.to_dict`; None: those of `served_policy` |
    | model, eagle | folder of a draft model, or EAGLE head, in the same process; None: n-grams |
    | suffix | settings of suffix decoding in place of n-grams, {} for vLLM's; None: n-grams |
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

    | field | meaning |
    | --- | --- |
    | model | the target's folder or file, in the engine's format |
    | draft | how it drafts; None: plain decoding only |
    | threads | threads of the CPU |
    | dtype | of weights and arithmetic: float32, bfloat16 or float16 |
    | longest | most tokens of a prompt with its output |
    | batch | most requests of one pass |
    | exact | settings that keep the text equal to plain decoding, also where slower |
    | seed | of the engine's random numbers |
    | temperature | 0: greedy |
    | schedule | (first, last, K): requests in a pass and their draft length; (): the draft's k |
    """

    model: Path
    draft: Draft | None = None
    threads: int = 1
    dtype: str = "float32"
    longest: int = 1024
    batch: int = 1
    exact: bool = True
    seed: int = 0
    temperature: float = 0.0
    schedule: tuple[tuple[int, int, int], ...] = ()


def start_options(settings: EngineSettings) -> dict[str, Any]:
    """The line's "start" object of these settings; "schedule" is left out where there is none."""
    draft: dict[str, Any] | None = None
    if isinstance(settings.draft, NgramDraft):
        draft = {
            "method": "ngram",
            "k": settings.draft.k,
            "min": settings.draft.ngram_min,
            "max": settings.draft.ngram_max,
            "match": settings.draft.match,
        }
    elif isinstance(settings.draft, PolicyDraft):
        own, sizes = settings.draft, (settings.draft.ngram_min, settings.draft.ngram_max)
        given: dict[str, Any] = {} if own.suffix is None else {"suffix": dict(own.suffix)}
        made_by = NGRAM_PROPOSER
        if own.model is not None:
            made_by, given = MODEL_PROPOSER, {"model": str(own.model.resolve())}
        elif own.eagle is not None:
            made_by, given = EAGLE_PROPOSER, {"eagle": str(own.eagle.resolve())}
        draft = {
            "method": "policy",
            "k": own.k,
            "path": str(Path(simspec.__file__).resolve().parents[1]),
            "class": made_by,
            "proposer": {"ngram": sizes, "cost": own.cost, "seed": settings.seed} | given,
        }
    elif settings.draft is not None:
        draft = {
            "method": "model",
            "k": settings.draft.k,
            "model": str(settings.draft.model.resolve()),
            "p_min": settings.draft.p_min,
        }
    schedule = {"schedule": [*map(list, settings.schedule)]} if settings.schedule else {}
    return schedule | {
        "model": str(settings.model.resolve()),
        "draft": draft,
        "threads": settings.threads,
        "dtype": settings.dtype,
        "longest": settings.longest,
        "batch": settings.batch,
        "exact": settings.exact,
        "seed": settings.seed,
        "temperature": settings.temperature,
    }


def draft_description(draft: Draft | None) -> dict[str, Any] | None:
    """The draft of a run's description, without its length; None for plain decoding."""
    if draft is None:
        return None
    return {"method": draft.method} | {
        name: str(value) if isinstance(value, Path) else value
        for name, value in asdict(draft).items()
        if name != "k" and not (name in ("eagle", "suffix") and value is None)
    }


def no_variables(python: Path) -> Mapping[str, str]:
    """No environment variables."""
    return {}


@dataclass(frozen=True)
class Engine:
    """A released engine that decodes and drafts in a worker process.

    | field | meaning |
    | --- | --- |
    | name | as in `make engines` and in commands |
    | packages | names of its distribution, on a CPU and on a GPU; the first one found counts |
    | tested | first version that was tested, and the first one after those |
    | worker | file name of its worker script in `WORKERS` |
    | methods | how it can draft: "ngram", "model", "policy" |
    | forms | of `served_form`: what "model" may be |
    | matches | n-gram occurrences that it can take: "first", "last" |
    | ngrams | (least, most) tokens of the n-grams that `simspec advise` tries |
    | longest_draft | most tokens of a draft |
    | batches | whether one pass can serve several requests |
    | sampled | whether it can run at temperature > 0; the worker may refuse all the same |
    | convention | name of its convention of rounds, for the replay |
    | options | the "start" object of settings; ValueError for settings that it cannot have |
    | variables | environment variables that must be set before its Python starts |
    """

    name: str
    packages: tuple[str, ...]
    tested: tuple[str, str]
    worker: str
    methods: tuple[str, ...]
    convention: str
    forms: tuple[str, ...] = (DRAFT_MODEL,)
    matches: tuple[str, ...] = ("first",)
    ngrams: tuple[tuple[int, int], ...] = ((1, 3), (2, 4), (3, 5))
    longest_draft: int = 32
    batches: bool = False
    sampled: bool = False
    options: Callable[[EngineSettings], dict[str, Any]] = start_options
    variables: Callable[[Path], Mapping[str, str]] = field(default=no_variables)

    @property
    def script(self) -> Path:
        """Its worker script."""
        return WORKERS / self.worker

    def start(self, settings: EngineSettings) -> dict[str, Any]:
        """The "start" object; ValueError, one line, for settings that the engine cannot have."""
        self._check_numbers(settings)
        draft = settings.draft
        if draft is not None and draft.method not in self.methods:
            raise ValueError(
                f"{self.name} does not draft by {draft.method!r} here; expected "
                f"{' or '.join(self.methods)}"
            )
        if draft is not None and not 1 <= draft.k <= self.longest_draft:
            raise ValueError(
                f"draft length is {draft.k!r}; expected 1 to {self.longest_draft} for {self.name}"
            )
        if isinstance(draft, NgramDraft | PolicyDraft):
            self._check_ngram(draft)
        if isinstance(draft, ModelDraft):
            self._check_model(draft)
        self._check_schedule(settings)
        if settings.batch > 1 and not self.batches:
            raise ValueError(
                f"{self.name} serves one request a pass here, batch is {settings.batch}: give 1"
            )
        if settings.temperature and not self.sampled:
            raise ValueError(
                f"{self.name} runs greedily here, temperature is {settings.temperature:g}: give 0"
            )
        return self.options(settings)

    def _check_numbers(self, settings: EngineSettings) -> None:
        for name in ("threads", "longest", "batch"):
            if not 1 <= getattr(settings, name) <= 1 << 20:
                raise ValueError(f"{name} is {getattr(settings, name)!r}; expected 1 to {1 << 20}")
        if settings.dtype not in DTYPES:
            raise ValueError(f"dtype is {settings.dtype!r}; expected {', '.join(DTYPES)}")
        if not 0 <= settings.temperature <= 100:
            raise ValueError(f"temperature is {settings.temperature!r}; expected 0 to 100")

    def _check_schedule(self, settings: EngineSettings) -> None:
        if not settings.schedule:
            return
        if not self.batches:
            raise ValueError(
                f"{self.name} serves one request a pass here and takes no schedule by batch size: "
                "leave --schedule out"
            )
        longest = max(length for _, _, length in settings.schedule)
        if settings.draft is None or settings.draft.k != longest:
            drafts = 0 if settings.draft is None else settings.draft.k
            raise ValueError(
                f"the schedule drafts up to {longest} tokens and the drafter {drafts}; expected "
                "the same"
            )

    def _check_ngram(self, draft: NgramDraft | PolicyDraft) -> None:
        if not 1 <= draft.ngram_min <= draft.ngram_max <= MOST_DRAFT:
            raise ValueError(
                f"n-grams have {draft.ngram_min!r} to {draft.ngram_max!r} tokens; expected "
                f"1 <= least <= most <= {MOST_DRAFT}"
            )
        match = draft.match if isinstance(draft, NgramDraft) else None
        if match is not None and match not in self.matches:
            raise ValueError(
                f"{self.name} takes the {' or '.join(self.matches)} occurrence of an n-gram, "
                f"match is {match!r}"
            )

    def _check_model(self, draft: ModelDraft) -> None:
        if not 0 <= draft.p_min < 1:
            raise ValueError(f"p_min is {draft.p_min!r}; expected at least 0 and below 1")
        if (form := served_form(draft.model)) not in self.forms:
            raise ValueError(
                f"{draft.model} holds {form} heads, which {self.name} does not load; expected a "
                "draft model, or the engine vllm"
            )

    def was_tested(self, version: str) -> bool:
        """Whether a version is in the tested range."""
        first, after = map(version_numbers, self.tested)
        return first <= version_numbers(version) < after


def version_numbers(version: str) -> tuple[int, ...]:
    """The numbers at the start of a version: 0.32.0+cpu has (0, 32, 0); () where it has none."""
    found = re.match(r"\d{1,9}(\.\d{1,9})*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
