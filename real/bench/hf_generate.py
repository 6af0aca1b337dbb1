"""Transformers' own generation methods as contestants of a race."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from real.bench.contestant import Contestant, ContestantError, Generate, Request
from real.model.checkpoint import load_config
from real.model.hf_config import WeightsError
from real.pair import DTYPES
from real.sampling import Rule

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
"""Methods that race by default; `real.bench.tuning` replaces "tuned" by a number of tokens."""

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
