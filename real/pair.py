"""A target with one drafter, loaded and ready for the loop."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch

from real.decode.beam_search import BeamSearch
from real.decode.engine import attach_engine
from real.decode.features import required_predictors
from real.decode.loop import decode
from real.decode.plan import chain_plan, make_plan
from real.decode.predictor_files import load_predictors
from real.decode.result import DecodeResult
from real.draft import Drafter, Silent
from real.drafters import BUILTIN
from real.model.checkpoint import WeightsError, load_decoder, load_tokenizer, made_for
from real.model.runner import EAGER, EagerPasses
from real.model.target import Target
from real.progress import Progress, quiet
from real.provenance import check_device
from real.sampling import Rule, forget_noise
from simspec import CostModel, Policy, Trace, policies
from simspec.tree_policy import TreePolicy

TINY = Path(__file__).parent / "tiny"
WARM = 24
"""New tokens of a text that is run before others are timed."""
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Pair:
    """What a recording, a measurement or a run needs.

    | field | meaning |
    | --- | --- |
    | target, drafter | ready for `decode` |
    | name | the target's: folder name and the first 12 digits of its weights' hash, or its hub name |
    | tokenizer | of the target |
    | tokenizer_sha256 | of its canonical JSON |
    | end_tokens | that end a text |
    """

    target: Target
    drafter: Drafter
    name: str
    tokenizer: object
    tokenizer_sha256: str
    end_tokens: tuple[int, ...]


def load_pair(
    models: Path,
    drafter: str,
    device: str = "cpu",
    dtype: str = "float32",
    target=None,
    weights=None,
    passes: EagerPasses = EAGER,
) -> Pair:
    """Loads `<models>/target` (or the checkpoint `target`) with the drafter of `<models>/<drafter>` (or `weights`).

    Predictors that lie in the drafter's folder come with it; WeightsError for one of other weights. `passes` as `real.decode.engine.passes_of`
    makes them.
    """
    if drafter not in BUILTIN:
        near = get_close_matches(drafter, BUILTIN, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise WeightsError(
            f"drafter {drafter!r} is unknown: {hint}expected one of {', '.join(BUILTIN)}"
        )
    if dtype not in DTYPES:
        raise WeightsError(f"dtype {dtype!r} is unknown; expected one of {', '.join(DTYPES)}")
    check_device(device)
    path = target or models / "target"
    decoder = load_decoder(path, DTYPES[dtype], device)
    tokenizer = load_tokenizer(path)
    hashes = made_for(path, decoder, tokenizer)
    known = hashes["weights"]
    folder = weights or models / drafter
    made = BUILTIN[drafter].load(folder, decoder, hashes)
    made.predictors = load_predictors(folder, known, device)
    _check_tokenizer(Path(folder), tokenizer, path)
    attach_engine(passes, decoder, made)
    name = f"{Path(path).parent.name}/{known[:12]}" if Path(path).is_dir() else known
    return Pair(
        Target(decoder, made.taps, passes=passes),
        made,
        name,
        tokenizer,
        hashes["tokenizer"],
        end_tokens(path, decoder),
    )


def _check_tokenizer(folder: Path, tokenizer, path) -> None:
    """WeightsError where the drafter's folder brings a tokenizer that cuts text otherwise than the target's."""
    if not (folder / "tokenizer.json").exists():
        return
    # What is not compared (padding, templates, decoding) changes neither the tokens nor what they mean.
    parts = ("model", "added_tokens", "normalizer", "pre_tokenizer")
    own, wanted = (json.loads(each.to_str()) for each in (load_tokenizer(folder), tokenizer))
    odd = [part for part in parts if own.get(part) != wanted.get(part)]
    if odd:
        raise WeightsError(
            f"{folder} has another tokenizer than {path} (its {odd[0]} differs); use a drafter made for this target"
        )


def end_tokens(path, decoder) -> tuple[int, ...]:
    """The end tokens of a checkpoint's config, those within the vocabulary."""
    from transformers import AutoConfig

    ends = AutoConfig.from_pretrained(path).eos_token_id
    ends = [ends] if isinstance(ends, int) else list(ends or [])
    return tuple(e for e in ends if 0 <= e < decoder.config.vocab)


def same_predictors(
    drafter: Drafter, trace: Trace, policies_: Sequence[Policy | TreePolicy | BeamSearch]
) -> None:
    """ValueError where a policy reads a feature through another predictor than the recording's."""
    for policy in policies_:
        for name, predictor in required_predictors(policy.reads, drafter).items():
            recorded = trace.meta.predictors.get(name, "none")
            if predictor.sha256 != recorded:
                raise ValueError(
                    f"policy {policy.name!r} reads {name!r} by predictor {predictor.sha256[:12]} here, the recording by {recorded[:12]}: "
                    "record again, or take the recording's models"
                )


def rule_of(trace: Trace) -> Rule:
    """The rule that a trace was recorded under, noise seed included."""
    meta = trace.meta
    if meta.rule == "rejection":
        raise ValueError(
            "the recording is of the rejection rule: its rounds replay in law, not one by one; use a greedy or coupled one"
        )
    if meta.rule not in ("greedy", "coupled"):
        raise ValueError(
            f"rule {meta.rule!r} cannot be run; expected a greedy or coupled recording"
        )
    return (
        Rule()
        if meta.rule == "greedy"
        else Rule("coupled", meta.temperature, meta.seed, meta.top_k, meta.top_p)
    )


def prompts_of(trace: Trace) -> list[list[int]]:
    """The prompts' tokens: a recording can be rerun from itself."""
    cuts = trace.prompt_offset
    return [trace.prompt[cuts[s] : cuts[s + 1]].tolist() for s in range(trace.sequences)]


def check_tokens(trace: Trace, pair: Pair) -> None:
    """ValueError where the trace's prompts hold no token, or one that the target does not have (a card would crash on it)."""
    vocab = pair.target.decoder.config.vocab
    if (trace.prompt_offset[1:] == trace.prompt_offset[:-1]).any():
        raise ValueError(
            "the recording has a text without a prompt; expected at least one token to start from"
        )
    if trace.prompt.min() < 0 or trace.prompt.max() >= vocab:
        raise ValueError(
            f"the recording's prompts hold tokens {trace.prompt.min()}..{trace.prompt.max()}, the target knows 0..{vocab - 1}"
        )


def check_pair(trace: Trace, pair: Pair, name: str) -> None:
    """ValueError where the recording called `name` was made with another target or tokenizer than the pair's, or holds tokens it lacks."""
    if pair.name.split("/")[-1] != trace.meta.target.split("/")[-1]:
        raise ValueError(
            f"{name} was recorded with target {trace.meta.target}, this is {pair.name}; name that one by --models or --target"
        )
    if trace.meta.tokenizer_sha256 not in ("", pair.tokenizer_sha256):
        raise ValueError(
            f"{name} was recorded with another tokenizer than that of {pair.name}; use the checkpoint that it came with"
        )
    check_tokens(trace, pair)


def rerun(
    pair: Pair,
    trace: Trace,
    policies_: Sequence[Policy | TreePolicy | BeamSearch],
    seed: int,
    cost: CostModel,
    progress: Progress = quiet,
) -> list[list[DecodeResult]]:
    """Runs every policy for real on all sequences of a trace, sequence by sequence so that a slow minute hits all.

    The last list holds plain decoding (no drafter, fixed(0)), the baseline of a speedup.
    """
    same_predictors(pair.drafter, trace, policies_)
    rule, prompts = rule_of(trace), prompts_of(trace)

    def planned():
        drives = [
            (pair.drafter, make_plan(p, trace.K, seed, cost, trace.meta.tree)) for p in policies_
        ]
        return [*drives, (Silent(), chain_plan(policies.BUILTIN["fixed"](0), trace.K, seed, cost))]

    if (
        pair.target.passes is not EAGER and prompts
    ):  # what is captured is captured before the clock runs
        for drafter, drive in planned():
            decode(
                pair.target,
                drafter,
                drive,
                rule,
                prompts[0],
                min(WARM, int(trace.budget[0])),
                trace.meta.end_tokens,
            )
        pair.target.passes.warm()
    drives = planned()
    made: list[list[DecodeResult]] = [[] for _ in drives]
    for s, prompt in enumerate(prompts):
        for results, (drafter, drive) in zip(made, drives):
            forget_noise()
            results.append(
                decode(
                    pair.target,
                    drafter,
                    drive,
                    rule,
                    prompt,
                    int(trace.budget[s]),
                    trace.meta.end_tokens,
                    int(trace.sequence[s]),
                )
            )
        progress("running", s + 1, len(prompts))
    return made


def seconds(results: Sequence[DecodeResult]) -> float:
    """Decoding time of several runs, prefill apart."""
    return float(sum(r.seconds.sum() for r in results))


def spread(count: int, wanted: int) -> list[int]:
    """Up to `wanted` of `count` prompts, evenly apart: recordings list tasks one after another."""
    wanted = min(wanted, count)
    return [i * count // wanted for i in range(wanted)]
