"""Transformers' generation methods as contestants, and the tuning of their draft lengths."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from real.bench.race import Contestant, ContestantError, Generate, Request
from real.model.checkpoint import WeightsError, load_config
from real.model_settings import evenly_spaced
from real.pair import DTYPES
from real.progress import Progress, quiet
from real.sampling import Rule
from simspec import Trace

SCHEDULES = ("constant", "heuristic", "heuristic_transient")
HF_PLAIN = "generate"
HF_METHODS = (
    HF_PLAIN,
    "generate_static",
    "prompt_lookup:tuned",
    "assisted:constant,tuned,0",
    "assisted:constant,tuned",
    "assisted:heuristic",
)
"""Methods that race by default; `real.bench.hf_generate` replaces "tuned" by a number of tokens."""

GREEDY = Rule()


def parse_hf_method(text: str) -> tuple[str, dict]:
    """(kind, generation options) of a method; ContestantError for anything else.

    | method | options |
    | --- | --- |
    | generate, generate_static | none |
    | assisted:SCHEDULE[,TOKENS[,THRESHOLD]] | num_assistant_tokens, confidence threshold |
    | prompt_lookup:TOKENS[,NGRAM] | prompt_lookup_num_tokens, max_matching_ngram_size |
    | early_exit:LAYERS[,TOKENS[,THRESHOLD]] | assistant_early_exit, as assisted:constant |

    Options that are left out keep transformers' defaults: 20 tokens and a threshold of 0.4 for
    assistants, n-grams of 2. A threshold of 0 is none.
    """
    kind, colon, rest = text.partition(":")
    values = rest.split(",") if colon else []
    if kind in (HF_PLAIN, "generate_static") and not colon:
        return kind, {}
    try:
        if kind == "prompt_lookup" and len(values) in (1, 2):
            sizes = [_positive(value) for value in values]
            names = "prompt_lookup_num_tokens", "max_matching_ngram_size"
            return kind, dict(zip(names, sizes))
        if kind == "assisted" and values and values[0] in SCHEDULES and len(values) < 4:
            return kind, _assistant_options(*values)
        if kind == "early_exit" and values and len(values) < 4:
            options = _assistant_options("constant", *values[1:])
            return kind, options | {"assistant_early_exit": _positive(values[0])}
    except ValueError:
        pass
    raise ContestantError(
        f"method {text!r} is unknown; expected generate, generate_static, "
        f"assisted:{{{'|'.join(SCHEDULES)}}}[,tokens[,threshold]], prompt_lookup:tokens[,ngram] "
        "or early_exit:layers[,tokens[,threshold]]"
    )


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _assistant_options(
    schedule: str, tokens: str | None = None, threshold: str | None = None
) -> dict:
    options: dict[str, Any] = {"num_assistant_tokens_schedule": schedule}
    if tokens is not None:
        options["num_assistant_tokens"] = _positive(tokens)
    if threshold is not None:
        options["assistant_confidence_threshold"] = float(threshold)
        if not 0 <= float(threshold) <= 1:
            raise ValueError
    return options


def load_hf_model(path: str | Path, dtype: str, device: str):
    """A checkpoint as transformers' own model, with empty generation settings.

    A chat model's settings would change greedy output. WeightsError where it cannot be loaded.
    """
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    logging.getLogger("transformers.generation.utils").addFilter(_is_relevant)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            path,
            config=load_config(path),
            dtype=DTYPES[dtype],
            use_safetensors=True,
            trust_remote_code=False,
            attn_implementation="sdpa",
        )
        model = model.to(device).eval()
    except Exception as error:  # as in load_decoder: transformers raises whatever it meets first
        reason = " ".join(str(error).split())[:300]
        raise WeightsError(f"{path} cannot be loaded by transformers: {reason}") from error
    model.generation_config = GenerationConfig()
    return model.requires_grad_(False)


def _is_relevant(record: logging.LogRecord) -> bool:
    """False for a warning about calls that assisted generation makes itself."""
    return "Passing `generation_config` together with" not in record.getMessage()


def hf_contestant(
    method: str, model, assistant=None, end_tokens: Sequence[int] = (), rule: Rule = GREEDY
) -> Contestant:
    """`model.generate` with that method; ContestantError where it lacks an assistant model.

    Under a sampled rule it draws by transformers' own sampling at the rule's settings, seeded by
    the rule's seed and the request's address, so its sequences are not those of plain decoding.
    """
    kind, options = parse_hf_method(method)
    if kind == "assisted" and assistant is None:
        raise ContestantError(
            f"method {method!r} needs a small model; "
            "expected one in <models>/model, or leave the method out"
        )
    drafts = kind in ("assisted", "prompt_lookup", "early_exit")
    arguments: dict[str, Any] = {
        **sampling_options(rule),
        "use_cache": True,
        "eos_token_id": list(end_tokens) or None,
        "pad_token_id": end_tokens[0] if end_tokens else None,
    }
    if kind == "generate_static":
        arguments["cache_implementation"] = "static"
    elif kind == "prompt_lookup":
        arguments |= options
    elif kind == "assisted":
        arguments["assistant_model"] = assistant
    elif kind == "early_exit":
        arguments["assistant_early_exit"] = options["assistant_early_exit"]
        options = {name: v for name, v in options.items() if name != "assistant_early_exit"}
    drafter: Any = {"assisted": assistant, "early_exit": model}.get(kind)
    if _adapts(kind, options):
        with suppress(ImportError):  # the first import takes a second, which no call should pay
            import_module("sklearn.metrics")

    def begin() -> Generate:
        from transformers import GenerationConfig

        # a heuristic schedule carries over between sequences in here, of this contestant only
        settings = None if drafter is None else GenerationConfig(**options)

        def generate(request: Request) -> tuple[list[int], int]:
            model.generation_config = GenerationConfig()  # an early exit leaves its settings there
            if settings is not None:
                drafter.generation_config = settings
            arguments_now = arguments | {"max_new_tokens": request.budget}
            ids = torch.tensor([list(request.prompt)], device=model.device)
            if rule.name != "greedy":
                torch.manual_seed(_seed(rule, request))
            if not drafts:  # a compiled forward gets no hook
                token = _generate(model, ids, arguments_now)
                return token, len(token)
            return _generate_counting(model, ids, arguments_now)

        return generate

    remark = partial(_remark, kind, options, model)
    greedy = rule.name == "greedy"
    own = HF_PLAIN if drafts else method
    return Contestant(method, begin, drafts, remark, writes_plain=greedy, own_plain=own)


def _seed(rule: Rule, request: Request) -> int:
    return int(np.random.SeedSequence((rule.seed, request.address)).generate_state(1, np.uint64)[0])


def sampling_options(rule: Rule) -> dict[str, Any]:
    """Arguments of `generate` that draw from the rule's distribution; top_k 0 is all tokens."""
    if rule.name == "greedy":
        return {"do_sample": False}
    cut = {"top_k": rule.top_k, "top_p": rule.top_p}
    return {"do_sample": True, "temperature": rule.temperature} | cut


def _generate(model, ids: torch.Tensor, arguments: dict) -> list[int]:
    out = model.generate(ids, attention_mask=torch.ones_like(ids), **arguments)
    return out[0, ids.shape[1] :].tolist()


def _generate_counting(model, ids: torch.Tensor, arguments: dict) -> tuple[list[int], int]:
    """New tokens, and passes of the whole model: an early exit drafts with fewer layers."""
    passes, layers = 0, model.config.num_hidden_layers

    def count(*_) -> None:
        nonlocal passes
        passes += model.config.num_hidden_layers == layers

    hook = model.register_forward_pre_hook(count)
    try:
        token = _generate(model, ids, arguments)
    finally:
        hook.remove()
    return token, passes


def _remark(kind: str, options: dict, model) -> str:
    if kind == "generate_static":
        compiled = hasattr(model, "_compiled_call")
        return "forward compiled by transformers" if compiled else "static cache, not compiled"
    if _adapts(kind, options) and find_spec("sklearn") is None:
        return "confidence threshold does not adapt (no scikit-learn)"
    return ""


def _adapts(kind: str, options: dict) -> bool:
    """Whether transformers adapts the confidence threshold, for which it needs scikit-learn."""
    return kind == "assisted" and options.get("assistant_confidence_threshold") != 0


TUNED = "tuned"
"""The number of tokens in a method's name that tuning replaces."""
LENGTHS = (1, 2, 3, 5, 8)
"""Numbers of drafted tokens that are tried."""
NGRAMS = (2, 3)
"""Longest n-grams that are tried with every number of tokens of prompt lookup."""


@dataclass(frozen=True)
class Tuning:
    """The settings tried for one method.

    | field | meaning |
    | --- | --- |
    | chosen | the fastest candidate, a method without `TUNED` |
    | rates | tokens a second of every candidate |
    | prompts | ids of the prompts that it was tuned on |
    """

    chosen: str
    rates: Mapping[str, float]
    prompts: tuple[str, ...]


def candidates(method: str) -> list[str]:
    """The methods that a method with `TUNED` names; only itself without `TUNED`."""
    kind, _, rest = method.partition(":")
    if TUNED not in rest.split(","):
        return [method]
    if method == f"prompt_lookup:{TUNED}":
        return [f"{kind}:{length},{ngram}" for length in LENGTHS for ngram in NGRAMS]
    return [f"{kind}:{rest.replace(TUNED, str(length))}" for length in LENGTHS]


def resolve(methods: Sequence[str], tuning: Mapping[str, Tuning]) -> list[str]:
    """The methods with what tuning chose for them, each once."""
    return list(dict.fromkeys(tuning[m].chosen if m in tuning else m for m in methods))


def with_plain(methods: Sequence[str]) -> list[str]:
    """The methods, each once, after transformers' plain decoding, the baseline of their gains."""
    return list(dict.fromkeys([HF_PLAIN, *methods])) if methods else []


def check_methods(methods: Sequence[str]) -> None:
    """ContestantError for a method that transformers does not have."""
    for method in methods:
        for candidate in candidates(method):
            parse_hf_method(candidate)


def other_prompts(trace: Trace, raced: Trace, prompts: int) -> Trace:
    """Up to `prompts` prompts of `trace` that do not race, evenly spread.

    ValueError where all of them race.
    """
    taken = set(raced.sequence.tolist())
    others = [s for s in range(trace.sequences) if int(trace.sequence[s]) not in taken]
    if not others:
        raise ValueError(
            f"all {trace.sequences} prompts race; expected others to tune transformers on: "
            "use fewer --prompts, or --rival without tuned"
        )
    return trace.select([others[i] for i in evenly_spaced(len(others), prompts)])


def tune(
    methods: Sequence[str],
    make: Callable[[Sequence[str]], Sequence[Contestant]],
    requests: Sequence[Request],
    ids: Sequence[str],
    seed: int = 0,
    progress: Progress = quiet,
    timer: Callable[[], float] = perf_counter,
) -> dict[str, Tuning]:
    """The fastest candidate of every method with `TUNED`; `make` builds contestants by name.

    All candidates of all methods run back to back on each prompt, in shuffled order, once. A
    candidate that fails is left out; where all fail, the first is chosen, so that its row says why.
    """
    wanted = {m: candidates(m) for m in methods if candidates(m) != [m]}
    names = list(dict.fromkeys(name for group in wanted.values() for name in group))
    if not names:
        return {}
    order = np.random.default_rng(seed)
    built = {contestant.name: contestant for contestant in make(names)}
    tokens, seconds = dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)
    failed = {name for name in names if not _run(built[name], requests[0])}  # warms it up
    generate = {name: built[name].begin() for name in names if name not in failed}
    for s, request in enumerate(requests):
        for i in order.permutation(len(names)):
            if (name := names[i]) in generate:
                begin = timer()
                token, _ = generate[name](request)
                seconds[name] += timer() - begin
                tokens[name] += len(token)
        progress("tuning", s + 1, len(requests))
    rates = {name: tokens[name] / seconds[name] for name in generate}
    return {
        method: Tuning(
            max(group, key=lambda name: rates.get(name, 0.0)),
            {name: rates[name] for name in group if name in rates},
            tuple(ids),
        )
        for method, group in wanted.items()
    }


def _run(contestant: Contestant, request: Request) -> bool:
    try:
        contestant.begin()(request)
    except Exception:  # whatever another library raises: the race runs it and reports
        return False
    return True
