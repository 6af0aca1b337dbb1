"""Transformers' `generate` as a contestant: plain, assisted by a small model, or with n-grams."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from real.contest import Contestant, Generate, Request
from real.model.checkpoint import WeightsError, load_config, pretrained
from real.pair import DTYPES
from real.sampling import Rule
from simspec.output.files import reraised

SCHEDULES = ("constant", "heuristic", "heuristic_transient")
GREEDY = Rule()


def parse_method(text: str) -> tuple[str, dict[str, Any]]:
    """(kind, generation options) of a method; ValueError for anything else.

    | method | options |
    | --- | --- |
    | generate | none |
    | assisted:SCHEDULE[,TOKENS[,THRESHOLD]] | num_assistant_tokens, confidence threshold |
    | prompt_lookup:TOKENS[,NGRAM] | prompt_lookup_num_tokens, max_matching_ngram_size |

    Options that are left out keep transformers' defaults: 20 tokens and a threshold of 0.4 for
    assistants, n-grams of 2. A threshold of 0 is none.
    """
    kind, colon, rest = text.partition(":")
    values = rest.split(",") if colon else []
    if text == "generate":
        return text, {}
    try:
        if kind == "prompt_lookup" and len(values) in (1, 2):
            names = "prompt_lookup_num_tokens", "max_matching_ngram_size"
            return kind, dict(zip(names, map(_positive, values)))
        if kind == "assisted" and values[0] in SCHEDULES and len(values) < 4:
            options: dict[str, Any] = {"num_assistant_tokens_schedule": values[0]}
            if len(values) > 1:
                options["num_assistant_tokens"] = _positive(values[1])
            if len(values) > 2:
                options["assistant_confidence_threshold"] = threshold = float(values[2])
                if not 0 <= threshold <= 1:
                    raise ValueError
            return kind, options
    except (ValueError, IndexError):
        pass
    raise ValueError(
        f"rival {text!r} is unknown; expected generate, "
        f"assisted:{{{'|'.join(SCHEDULES)}}}[,tokens[,threshold]] or prompt_lookup:tokens[,ngram]"
    )


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def load_hf_model(path: str | Path, dtype: str, device: str):
    """A checkpoint as transformers' own model, with empty generation settings.

    A chat model's settings would change greedy output. WeightsError where it cannot be loaded.
    """
    from transformers import GenerationConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    logging.getLogger("transformers.generation.utils").addFilter(_is_relevant)
    # as in load_decoder: transformers raises whatever it meets first
    with reraised(WeightsError, f"{path} cannot be loaded by transformers", raised=Exception):
        options = {"dtype": DTYPES[dtype], "attn_implementation": "sdpa"}
        model: Any = pretrained(path, load_config(path), **options).to(device).eval()
    model.generation_config = GenerationConfig()
    return model.requires_grad_(False)


def _is_relevant(record: logging.LogRecord) -> bool:
    """False for a warning about calls that assisted generation makes itself."""
    return "Passing `generation_config` together with" not in record.getMessage()


def hf_contestants(
    methods: Sequence[str],
    target: str | Path,
    small: Path,
    dtype: str,
    device: str,
    end_tokens: Sequence[int],
    rule: Rule,
) -> list[Contestant]:
    """Transformers' contestants on its own copies of the target and of the model in `small`.

    ValueError for an unknown method, and where `assisted` lacks a small model.
    """
    methods = list(dict.fromkeys(methods))
    kinds = [parse_method(method)[0] for method in methods]
    if not methods:
        return []
    if "assisted" in kinds and not (small / "config.json").is_file():
        raise ValueError(f"{small} holds no small model for assisted generation")
    model = load_hf_model(target, dtype, device)
    assistant = load_hf_model(small, dtype, device) if "assisted" in kinds else None
    return [hf_contestant(method, model, assistant, end_tokens, rule) for method in methods]


def hf_contestant(
    method: str, model, assistant=None, end_tokens: Sequence[int] = (), rule: Rule = GREEDY
) -> Contestant:
    """`model.generate` with that method.

    Under a sampled rule it draws by transformers' own sampling at the rule's settings, seeded by
    the rule's seed and the request's address, so its sequences are not those of plain decoding.
    """
    kind, options = parse_method(method)
    arguments: dict[str, Any] = {
        **sampling_options(rule),
        "use_cache": True,
        "eos_token_id": list(end_tokens) or None,
        "pad_token_id": end_tokens[0] if end_tokens else None,
    }
    if kind == "prompt_lookup":
        arguments |= options
    elif kind == "assisted":
        arguments["assistant_model"] = assistant

    def begin() -> Generate:
        from transformers import GenerationConfig

        # a heuristic schedule carries over between sequences in here, of this contestant only
        settings = GenerationConfig(**options) if kind == "assisted" else None

        def generate(request: Request) -> tuple[list[int], int]:
            if settings is not None:
                assistant.generation_config = settings
            if rule.name != "greedy":
                torch.manual_seed(_seed(rule, request))
            ids = torch.tensor([list(request.prompt)], device=model.device)
            return _generate(model, ids, arguments | {"max_new_tokens": request.budget})

        return generate

    return Contestant(method, begin, own_draws=rule.name != "greedy")


def _seed(rule: Rule, request: Request) -> int:
    return int(np.random.SeedSequence((rule.seed, request.address)).generate_state(1, np.uint64)[0])


def sampling_options(rule: Rule) -> dict[str, Any]:
    """Arguments of `generate` that draw from the rule's distribution; top_k 0 is all tokens."""
    if rule.name == "greedy":
        return {"do_sample": False}
    cut = {"top_k": rule.top_k, "top_p": rule.top_p}
    return {"do_sample": True, "temperature": rule.temperature} | cut


def _generate(model, ids: torch.Tensor, arguments: dict[str, Any]) -> tuple[list[int], int]:
    """New tokens, and passes of the model."""
    passes = 0

    def count(*_) -> None:
        nonlocal passes
        passes += 1

    hook = model.register_forward_pre_hook(count)
    try:
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **arguments)
    finally:
        hook.remove()
    return out[0, ids.shape[1] :].tolist(), passes
