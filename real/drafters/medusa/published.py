"""Weights of Medusa as its authors released them."""

import json
import re
from pathlib import Path

from real.drafters.medusa.heads import MedusaHeads
from real.model.decoder import Decoder
from real.model.draft_head import block_count, fill, read_state
from real.model.hf_config import WeightsError


def published(folder: Path, target: Decoder) -> MedusaHeads:
    """MedusaHeads from a checkpoint of FasterDecoding/Medusa.

    | file | content |
    | --- | --- |
    | config.json | "medusa_num_layers": the number of blocks |
    | medusa_lm_head.safetensors, or model.safetensors | the tensors below |
    | tensor H.B.linear.weight, H.B.linear.bias | block B of head H |
    | tensor H.<blocks>.weight | the vocabulary head of head H |

    A leading "medusa_head." or "heads." is dropped. Heads are counted in the tensors, since
    released configs say 2 beside files of 5. WeightsError for anything else or other sizes.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        blocks = block_count(config["medusa_num_layers"], f"{folder / 'config.json'}")
    except WeightsError:
        raise
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise WeightsError(
            f"{folder} is no Medusa checkpoint: "
            f"config.json says no medusa_num_layers ({type(error).__name__})"
        ) from error
    file = next(
        (
            folder / name
            for name in ("medusa_lm_head.safetensors", "model.safetensors")
            if (folder / name).exists()
        ),
        None,
    )
    state = {}
    for name, value in read_state(file or folder / "medusa_lm_head.safetensors").items():
        ours = re.sub(r"^(medusa_head|heads)\.", "", name)
        if match := re.fullmatch(r"(\d+)\.(\d+)\.weight", ours):
            ours = f"head.{match[1]}.weight" if int(match[2]) == blocks else ours
        elif re.fullmatch(r"\d+\.\d+\.linear\.(weight|bias)", ours):
            ours = f"stacks.{ours}"
        state[ours] = value
    count = len([name for name in state if name.startswith("head.")])
    try:
        heads = MedusaHeads(target, count, blocks, own_head=True)
    except ValueError as error:
        raise WeightsError(f"{folder} is no Medusa checkpoint: {error}") from error
    fill(heads, state, str(folder))
    return heads.requires_grad_(False).eval()
