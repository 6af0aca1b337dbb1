"""Transformers' `generate` as a contestant."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from real.contest import Contestant, Request
from real.model.checkpoint import WeightsError, load_config, pretrained
from real.pair import DTYPES
from real.sampling import Rule
from simspec.output.files import reraised


def load_hf_model(path: str | Path, dtype: str, device: str):
    """A checkpoint as transformers' own model, with empty generation settings.

    A chat model's settings would change greedy output. WeightsError where it cannot be loaded.
    """
    from transformers import GenerationConfig
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    # as in load_decoder: transformers raises whatever it meets first
    with reraised(WeightsError, f"{path} cannot be loaded by transformers", raised=Exception):
        options = {"dtype": DTYPES[dtype], "attn_implementation": "sdpa"}
        model: Any = pretrained(path, load_config(path), **options).to(device).eval()
    model.generation_config = GenerationConfig()
    return model.requires_grad_(False)


def hf_contestant(model, end_tokens: Sequence[int], rule: Rule) -> Contestant:
    """`model.generate`.

    Under a sampled rule it draws by transformers' own sampling at the rule's settings, seeded by
    the rule's seed and the request's address, so its sequences are not those of plain decoding.
    """
    arguments: dict[str, Any] = {
        **sampling_options(rule),
        "use_cache": True,
        "eos_token_id": list(end_tokens) or None,
        "pad_token_id": end_tokens[0] if end_tokens else None,
    }

    def generate(request: Request) -> tuple[list[int], int]:
        passes = 0

        def count(*_) -> None:
            nonlocal passes
            passes += 1

        if rule.name != "greedy":
            seed = np.random.SeedSequence((rule.seed, request.address))
            torch.manual_seed(int(seed.generate_state(1, np.uint64)[0]))
        ids = torch.tensor([list(request.prompt)], device=model.device)
        limit = {"attention_mask": torch.ones_like(ids), "max_new_tokens": request.budget}
        hook = model.register_forward_pre_hook(count)
        try:
            out = model.generate(ids, **limit, **arguments)
        finally:
            hook.remove()
        return out[0, ids.shape[1] :].tolist(), passes

    return Contestant("generate", lambda: generate, own_draws=rule.name != "greedy")


def sampling_options(rule: Rule) -> dict[str, Any]:
    """Arguments of `generate` that draw from the rule's distribution; top_k 0 is all tokens."""
    if rule.name == "greedy":
        return {"do_sample": False}
    cut = {"top_k": rule.top_k, "top_p": rule.top_p}
    return {"do_sample": True, "temperature": rule.temperature} | cut
