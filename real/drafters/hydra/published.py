"""Weights of Hydra as its authors released them."""

import json
import re
from pathlib import Path

from real.drafters.hydra.heads import HydraHeads
from real.model.decoder import Decoder
from real.model.draft_head import block_count, fill, read_state
from real.model.hf_config import WeightsError


def published(folder: Path, target: Decoder) -> HydraHeads:
    """HydraHeads from a checkpoint of zankner/Hydra with plain heads ("mlp").

    | file | content |
    | --- | --- |
    | config.json | "hydra_num_layers": the number of blocks |
    | hydra_lm_head.safetensors, or model.safetensors | the tensors below |
    | tensor hydra_mlp.H.B.linear.{weight,bias} | block B of head H |
    | tensor hydra_mlp.H.0.res_connection.{weight,bias} | its residual matrix |
    | tensor hydra_lm_head.H.{weight,bias} | the vocabulary head of head H |

    A leading "hydra_head." is dropped. WeightsError for anything else: Hydra++ ("prefix-mlp", with
    a decoder layer over the features) and heads that read no drafts are not supported.
    """
    try:
        config = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        blocks = block_count(config["hydra_num_layers"], f"{folder / 'config.json'}")
        kind = config.get("hydra_head_arch", "mlp")
    except WeightsError:
        raise
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise WeightsError(
            f"{folder} is no Hydra checkpoint: "
            f"config.json says no hydra_num_layers ({type(error).__name__})"
        ) from error
    if kind != "mlp" or config.get("grounded_heads") is False:
        raise WeightsError(
            f"{folder} holds Hydra heads of the kind {kind!r}; "
            "expected 'mlp' heads that see the drafted tokens"
        )
    file = next(
        (
            folder / name
            for name in ("hydra_lm_head.safetensors", "model.safetensors")
            if (folder / name).exists()
        ),
        None,
    )
    state = {
        _ours(name): value
        for name, value in read_state(file or folder / "hydra_lm_head.safetensors").items()
    }
    count = len([name for name in state if re.fullmatch(r"head\.\d+\.weight", name)])
    try:
        heads = HydraHeads(target, count, blocks, own_head=True, residual=True)
    except ValueError as error:
        raise WeightsError(f"{folder} is no Hydra checkpoint: {error}") from error
    fill(heads, state, str(folder))
    return heads.requires_grad_(False).eval()


def _ours(name: str) -> str:
    """Our name of a released tensor, or the name itself, which `fill` then refuses."""
    ours = name.removeprefix("hydra_head.")
    ours = re.sub(r"^hydra_lm_head\.", "head.", ours)
    return re.sub(r"^hydra_mlp\.", "stacks.", ours).replace(".res_connection.", ".residual.")
