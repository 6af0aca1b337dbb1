"""A target with one drafter, loaded and ready for the loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from real.decode import DecodeResult, decode
from real.draft import Drafter, Silent
from real.drafters import BUILTIN
from real.features import shown
from real.sampling import Rule, forget_noise
from real.target import Target
from real.weights import WeightsError, identity, load_decoder, load_tokenizer
from simspec import CostModel, Policy, Stepper, Trace, policies

TINY = Path(__file__).parent / "tiny"
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


def load_pair(bundle: Path, drafter: str, device: str = "cpu", dtype: str = "float32", target=None, weights=None) -> Pair:
    """Loads `<bundle>/target` (or the checkpoint `target`) with the drafter of `<bundle>/<drafter>` (or `weights`)."""
    import hashlib

    if drafter not in BUILTIN:
        raise WeightsError(f"drafter {drafter!r} is unknown; expected one of {', '.join(BUILTIN)}")
    if dtype not in DTYPES:
        raise WeightsError(f"dtype {dtype!r} is unknown; expected one of {', '.join(DTYPES)}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise WeightsError(f"device {device!r} asked for, but torch sees no CUDA device; use --device cpu")
    path = target or bundle / "target"
    decoder = load_decoder(path, DTYPES[dtype], device)
    known = identity(path)
    made = BUILTIN[drafter](weights or bundle / drafter, decoder, known)
    tokenizer = load_tokenizer(path)
    text = tokenizer.to_str(pretty=False)
    name = f"{Path(path).parent.name}/{known[:12]}" if Path(path).is_dir() else known
    return Pair(
        Target(decoder, made.taps), made, name, tokenizer, hashlib.sha256(text.encode()).hexdigest(), end_tokens(path, decoder)
    )


def end_tokens(path, decoder) -> tuple[int, ...]:
    """The end tokens of a checkpoint's config, those within the vocabulary."""
    from transformers import AutoConfig

    ends = AutoConfig.from_pretrained(path).eos_token_id
    ends = [ends] if isinstance(ends, int) else list(ends or [])
    return tuple(e for e in ends if 0 <= e < decoder.shape.vocab)


def stepper(policy: Policy, K: int, seed: int, cost: CostModel) -> Stepper:
    """The policy ready for `decode`, with the features that it reads."""
    return Stepper(policy, K, seed, cost, shown(policy.reads))


def rule_of(trace: Trace) -> Rule:
    """The rule that a trace was recorded under, noise seed included."""
    meta = trace.meta
    if meta.rule not in ("greedy", "coupled"):
        raise ValueError(f"rule {meta.rule!r} cannot be run; expected a greedy or coupled recording")
    return Rule() if meta.rule == "greedy" else Rule("coupled", meta.temperature, meta.seed)


def prompts_of(trace: Trace) -> list[list[int]]:
    """The prompts' tokens: a recording can be rerun from itself."""
    cuts = trace.prompt_offset
    return [trace.prompt[cuts[s] : cuts[s + 1]].tolist() for s in range(trace.sequences)]


def rerun(
    pair: Pair, trace: Trace, policies_: Sequence[Policy], seed: int, cost: CostModel, tell=lambda done, of: None
) -> list[list[DecodeResult]]:
    """Runs every policy for real on all sequences of a trace, sequence by sequence so that a slow minute hits all.

    The last list holds plain decoding (no drafter, fixed(0)), the baseline of a speedup.
    """
    rule, prompts = rule_of(trace), prompts_of(trace)
    drives = [(pair.drafter, stepper(p, trace.K, seed, cost)) for p in policies_]
    drives.append((Silent(), stepper(policies.BUILTIN["fixed"](0), trace.K, seed, cost)))
    made: list[list[DecodeResult]] = [[] for _ in drives]
    for s, prompt in enumerate(prompts):
        for results, (drafter, drive) in zip(made, drives):
            forget_noise()
            results.append(
                decode(pair.target, drafter, drive, rule, prompt, int(trace.budget[s]), trace.meta.end_tokens, int(trace.sequence[s]))
            )
        tell(s + 1, len(prompts))
    return made


def seconds(results: Sequence[DecodeResult]) -> float:
    """Decoding time of several runs, prefill apart."""
    return float(sum(r.seconds.sum() for r in results))
