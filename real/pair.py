"""A target with one drafter, loaded and ready to decode."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from real.decode.engine import attach_engine
from real.decode.features import load_predictors, required_predictors
from real.draft import Drafter
from real.drafters import BUILTIN
from real.files import TINY as TINY
from real.model.checkpoint import WeightsError, end_tokens, load_decoder, load_tokenizer
from real.model.passes import EAGER, EagerPasses
from real.model.stored_weights import made_for, sha256, weight_files
from real.model.target import Target
from real.provenance import check_device
from simspec import Policy, Trace
from simspec.output.names import expected_one
from simspec.tree.tree import TreePolicy

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Pair:
    """A target and its drafter, ready for `decode`, with the target's tokenizer."""

    target: Target
    drafter: Drafter
    name: str  # the target's folder and 12 digits of its weights' hash, or its hub name
    tokenizer: Any
    tokenizer_sha256: str  # of its canonical JSON
    end_tokens: tuple[int, ...]
    drafter_sha256: str = ""  # of the drafter's weights, unpacked; "": no folder of weights

    def check_length(self, tokens: int) -> None:
        """ValueError for a sequence of `tokens` tokens beyond the window of one of the models."""
        for decoder in (self.target.decoder, self.drafter.lm):
            if decoder is not None:
                decoder.check_length(tokens)


def load_pair(
    models: Path,
    drafter: str,
    device: str = "cpu",
    dtype: str = "float32",
    target: str | Path | None = None,
    weights: str | Path | None = None,
    passes: EagerPasses = EAGER,
) -> Pair:
    """Loads `<models>/target` (or the checkpoint `target`) with the drafter in `<models>/<drafter>`
    (or `weights`).

    Predictors in the drafter's folder are loaded too. `passes` is the engine
    (`real.decode.engine.make_passes`). WeightsError for unknown names, and for files that are
    damaged or made for other weights.
    """
    folders = {drafter: weights or models / drafter}
    return load_pairs(models, folders, device, dtype, target, lambda: passes)[0]


def load_pairs(
    models: Path,
    drafters: Mapping[str, str | Path],
    device: str = "cpu",
    dtype: str = "float32",
    target: str | Path | None = None,
    make_passes: Callable[[], EagerPasses] = lambda: EAGER,
) -> list[Pair]:
    """Loads several drafters (name -> folder) on one target, which is loaded once.

    Each drafter has separate passes, since its target keeps other taps.
    """
    for drafter in drafters:
        if drafter not in BUILTIN:
            raise WeightsError(f"drafter {drafter!r} is unknown: {expected_one(drafter, BUILTIN)}")
    in_dtype = dtype_of(dtype)
    check_device(device)
    path = target or models / "target"
    decoder = load_decoder(path, in_dtype, device)
    tokenizer = load_tokenizer(path)
    hashes = made_for(path, decoder, tokenizer)
    name = hashes["weights"]
    if Path(path).is_dir():
        name = f"{Path(path).parent.name}/{name[:12]}"
    pairs = []
    for drafter, folder in drafters.items():
        # a hub name remains text, which the drafter `model` accepts
        loaded = BUILTIN[drafter].load(cast(Path, folder), decoder, hashes)
        loaded.predictors = load_predictors(folder, hashes["weights"], device)
        _check_tokenizer(Path(folder), tokenizer, path)
        passes = make_passes()
        attach_engine(passes, decoder, loaded)
        pairs.append(
            Pair(
                target=Target(decoder, loaded.taps, passes=passes),
                drafter=loaded,
                name=name,
                tokenizer=tokenizer,
                tokenizer_sha256=hashes["tokenizer"],
                end_tokens=end_tokens(path, decoder.config.vocab),
                drafter_sha256=sha256(Path(folder)) if weight_files(folder) else "",
            )
        )
    return pairs


def dtype_of(name: str) -> torch.dtype:
    """The dtype of that name; WeightsError where it is none of `DTYPES`."""
    if name not in DTYPES:
        raise WeightsError(f"dtype {name!r} is unknown; expected one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _check_tokenizer(folder: Path, tokenizer, path: str | Path) -> None:
    """WeightsError where the drafter's folder has a tokenizer that differs from the target's."""
    if not (folder / "tokenizer.json").exists():
        return
    # padding, templates and decoding change neither the tokens nor their meaning
    parts = ("model", "added_tokens", "normalizer", "pre_tokenizer")
    drafters, targets = (json.loads(t.to_str()) for t in (load_tokenizer(folder), tokenizer))
    different = [part for part in parts if drafters.get(part) != targets.get(part)]
    if different:
        raise WeightsError(
            f"{folder} has another tokenizer than {path} (its {different[0]} differs); "
            "use a drafter made for this target"
        )


def check_predictors(
    drafter: Drafter, trace: Trace, policies_: Sequence[Policy | TreePolicy]
) -> None:
    """ValueError where a policy reads a feature by another predictor than the recording's."""
    for policy in policies_:
        for name, predictor in required_predictors(policy.reads, drafter).items():
            recorded = trace.meta.predictors.get(name, "none")
            if predictor.sha256 != recorded:
                raise ValueError(
                    f"policy {policy.name!r} reads {name!r} "
                    f"by predictor {predictor.sha256[:12]} here, "
                    f"the recording by {recorded[:12]}; "
                    "record again, or use the recording's models"
                )


def check_tokens(trace: Trace, pair: Pair) -> None:
    """ValueError where a prompt is empty, or has a token outside the vocabulary (a GPU would crash
    on it)."""
    vocab = pair.target.decoder.config.vocab
    if (trace.prompt_offset[1:] == trace.prompt_offset[:-1]).any():
        raise ValueError(
            "the recording has a sequence without a prompt; expected at least one token"
        )
    if trace.prompt.min() < 0 or trace.prompt.max() >= vocab:
        raise ValueError(
            f"the recording's prompts have tokens {trace.prompt.min()}..{trace.prompt.max()}, "
            f"the target knows 0..{vocab - 1}; record again with this target"
        )
    pair.check_length(int((np.diff(trace.prompt_offset) + trace.budget).max()))


def check_pair(trace: Trace, pair: Pair, name: str) -> None:
    """ValueError where the recording `name` was made with another target or tokenizer than the
    pair's."""
    if pair.name.split("/")[-1] != trace.meta.target.split("/")[-1]:
        raise ValueError(
            f"{name} was recorded with target {trace.meta.target}, this is {pair.name}; "
            "select that one by --models or --target"
        )
    if trace.meta.tokenizer_sha256 not in ("", pair.tokenizer_sha256):
        raise ValueError(
            f"{name} was recorded with another tokenizer than that of {pair.name}; "
            "use the checkpoint that it was recorded with"
        )
    check_tokens(trace, pair)


def check_drafter(trace: Trace, pair: Pair, name: str) -> None:
    """ValueError where the pair's drafter is that of the recording `name`, with other weights."""
    recorded = trace.meta.drafter_sha256, trace.meta.drafter
    if recorded[0] and recorded[1] == pair.drafter.name and recorded[0] != pair.drafter_sha256:
        raise ValueError(
            f"{name} was recorded with weights {recorded[0][:12]} of {recorded[1]}, these are "
            f"{pair.drafter_sha256[:12] or 'none'}; name their folder by --weights or --models"
        )
