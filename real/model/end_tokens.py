"""End tokens of a checkpoint: those of its config and of its generation config."""

import json
from pathlib import Path
from typing import Any

from real.model.hf_config import WeightsError

GENERATION = "generation_config.json"


def end_tokens(path: str | Path, vocab: int) -> tuple[int, ...]:
    """Every end token that the config or the generation config of a checkpoint names.

    The config's come first, without repetitions; () where neither names one. WeightsError for what
    is no token of the vocabulary, and for a damaged file.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path, trust_remote_code=False)
    named = {
        "config.json": getattr(config, "eos_token_id", None),
        GENERATION: _generation_ends(path),
    }
    found: dict[int, None] = {}
    for file, ends in named.items():
        for token in ends if isinstance(ends, list | tuple) else [ends]:
            if token is None:
                continue
            if type(token) is not int or not 0 <= token < vocab:
                raise WeightsError(
                    f"{path}: eos_token_id in {file} is {token!r}; expected a token of the "
                    f"vocabulary, 0 to {vocab - 1}: correct the file"
                )
            found[token] = None
    return tuple(found)


def _generation_ends(path: str | Path) -> Any:
    """eos_token_id of the generation config; None where there is no such file."""
    if not Path(path).is_dir():  # a hub name
        from transformers import GenerationConfig

        try:
            return GenerationConfig.from_pretrained(path).eos_token_id
        except OSError:
            return None
    file = Path(path) / GENERATION
    if not file.exists():
        return None
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))).get("eos_token_id")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise WeightsError(
            f"{file} is no generation config: {' '.join(str(error).split())[:200]}; fetch it again"
        ) from None
