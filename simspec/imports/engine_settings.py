"""Settings of engines: how long they draft at each batch size, and the policy that does the same.

They are read by the rules of `simspec.exports`: what an engine would alter is refused.
"""

from collections.abc import Mapping
from typing import Any

from simspec.exports import hf_transformers, llamacpp, sglang, sglang_adaptive, tensorrt_llm, vllm
from simspec.imports.kinds import BatchTier, EngineSettings
from simspec.imports.options import ImportFormat, ImportOptions
from simspec.imports.source import Source
from simspec.imports.totals import origin_of
from simspec.policies.adaptive import hf_heuristic
from simspec.policies.confidence import confidence
from simspec.policies.ema_tiers import ema_tiers
from simspec.policies.fixed import fixed
from simspec.policies.kill_switch import kill_switch

LONGEST_WINDOW = 10_000
"""Rounds of a `kill_switch` policy."""

START = (
    "--speculative-num-steps is not in the file: ema_tiers starts at the middle candidate, where "
    "SGLang does unless that flag names another"
)


def read_vllm(source: Source, options: ImportOptions) -> EngineSettings:
    """The draft length of `--speculative-config`, by batch size where it has a list."""
    config = vllm.read(source.text, captured=0)
    ranges = config.get(vllm.BY_BATCH)
    if ranges is None:
        return _single(source, config["method"], config[vllm.LENGTH])
    tiers = tuple(_fixed(low, high, length) for low, high, length in ranges)
    note = "vLLM keeps the last range's length at larger batch sizes"
    return EngineSettings(origin_of(source), config["method"], tiers, (note,))


def read_sglang_flags(source: Source, options: ImportOptions) -> EngineSettings:
    """Steps of a chain; of a tree, the steps, and no policy."""
    if options.drafted is not None:
        raise ValueError(f"--drafted is {options.drafted}, but flags say their steps: leave it out")
    algorithm, steps, topk, tokens = sglang.read(source.text)
    if topk == 1:
        return _single(source, algorithm, steps)
    note = f"a tree of {tokens - 1} nodes, {topk} wide: simspec trees compares trees"
    return EngineSettings(origin_of(source), algorithm, (BatchTier(1, None, (steps,)),), (note,))


def read_sglang_adaptive(source: Source, options: ImportOptions) -> EngineSettings:
    """Candidate steps by batch size; several of them are the policy `ema_tiers`."""
    config = sglang_adaptive.read(source.text)
    firsts = sorted(int(key) for key in config if key.isdecimal())
    tiers = tuple(
        _slot(first, last, config | config[str(first)])
        for first, last in zip(firsts, [*(first - 1 for first in firsts[1:]), None])
    )
    notes = ["batch sizes are padded to the next captured graph size before the slot is chosen"]
    if any(len(tier.lengths) > 1 for tier in tiers):
        notes.append(START)
    if any(not tier.policy for tier in tiers):
        notes.append("ceiling_coeff is on: no policy here has that limit")
    return EngineSettings(origin_of(source), "", tiers, tuple(notes))


def read_tensorrt_config(source: Source, options: ImportOptions) -> EngineSettings:
    """Draft lengths of `speculative_config`, whose bounds `options.engine_version` explains."""
    version = options.engine_version
    config = tensorrt_llm.read(source.text, version)
    length, method = config[tensorrt_llm.LENGTH], config["decoding_type"]
    schedule = config.get(tensorrt_llm.SCHEDULE)
    gate: list[Any] = [config.get(name) for name in tensorrt_llm.GATE]
    window, threshold = gate
    if schedule is None and "max_concurrency" in config:
        schedule, upper = {config["max_concurrency"]: length}, True
    else:
        upper = schedule is not None and tensorrt_llm.upper_bounds(version)
    tiers = (_fixed(1, None, length),) if schedule is None else _bounds(schedule, upper)
    if window is None and threshold is None:
        return EngineSettings(origin_of(source), method, tiers)
    if schedule is None and window in range(1, LONGEST_WINDOW + 1) and threshold is not None:
        policy = kill_switch(length, window, threshold).name
        tiers = (BatchTier(1, None, (length,), policy),)
        return EngineSettings(origin_of(source), method, tiers)
    note = "drafting also ends for good at a low acceptance rate, which the policies leave out"
    return EngineSettings(origin_of(source), method, tiers, (note,))


def read_llamacpp(source: Source, options: ImportOptions) -> EngineSettings:
    """The longest draft and p_min, which drops the token below it."""
    kind, longest, p_min = llamacpp.read(source.text)
    if not p_min:
        return _single(source, kind, longest)
    policy = confidence(p_min, inclusive=False, K=longest).name
    return EngineSettings(origin_of(source), kind, (_adaptive(longest, policy),))


def read_transformers(source: Source, options: ImportOptions) -> EngineSettings:
    """Keys of a GenerationConfig: a fixed length, a threshold, or the heuristic."""
    config = hf_transformers.read(source.text)
    if hf_transformers.LOOKUP in config:
        return _single(source, "prompt_lookup", config[hf_transformers.LOOKUP])
    length, threshold = config[hf_transformers.TOKENS], config[hf_transformers.THRESHOLD]
    schedule, policy = config[hf_transformers.SCHEDULE], ""
    notes: tuple[str, ...] = ()
    if schedule == "constant":
        if not threshold:
            return _single(source, "assistant", length)
        policy = confidence(threshold, K=length).name
    elif not threshold:
        policy = hf_heuristic(length, transient=schedule == "heuristic_transient").name
    else:
        notes = (f"{schedule} and a threshold at once: no policy here does both",)
    tier = _adaptive(length, policy) if policy else BatchTier(1, None, (length,))
    return EngineSettings(origin_of(source), "assistant", (tier,), notes)


def _single(source: Source, method: str, length: int) -> EngineSettings:
    return EngineSettings(origin_of(source), method, (_fixed(1, None, length),))


def _fixed(first: int, last: int | None, length: int) -> BatchTier:
    return BatchTier(first, last, (length,), fixed(length).name)


def _adaptive(longest: int, policy: str) -> BatchTier:
    """All batch sizes under a policy that starts from, or drafts at most, this length."""
    return BatchTier(1, None, (longest,), policy)


def _slot(first: int, last: int | None, slot: Mapping[str, Any]) -> BatchTier:
    steps = slot[sglang_adaptive.STEPS]
    if len(steps) == 1:
        return _fixed(first, last, steps[0])
    policy = ""
    if not slot.get("ceiling_coeff"):
        policy = ema_tiers(
            "/".join(map(str, steps)),
            weight=slot.get("ema_alpha", 0.2),
            interval=slot.get("update_interval", 5),
            warmup=slot.get("warmup_batches", 10),
            down=slot.get("down_hysteresis", -0.25),
            up=slot.get("up_hysteresis", 0.0),
        ).name
    return BatchTier(first, last, tuple(steps), policy)


def _bounds(schedule: Mapping[int, int], upper: bool) -> tuple[BatchTier, ...]:
    """The tiers of upper bounds, above which nothing is drafted, or of lower bounds."""
    keys: list[Any] = sorted(schedule)
    lengths = [schedule[key] for key in keys]
    if upper:
        firsts = [1, *(key + 1 for key in keys)]
        return tuple(map(_fixed, firsts, [*keys, None], [*lengths, 0]))
    return tuple(map(_fixed, keys, [*(key - 1 for key in keys[1:]), None], lengths))


FORMATS = (
    ImportFormat("vllm", read_vllm),
    ImportFormat("sglang-adaptive", read_sglang_adaptive),
    ImportFormat("llamacpp", read_llamacpp),
    ImportFormat("transformers", read_transformers),
)
