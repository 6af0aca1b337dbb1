"""Emitted runs of this engine and of recordings."""

from collections.abc import Sequence

from real.audit.emitted_run import EmittedRun, EmittedSequence, RunHeader
from real.decode.result import DecodeResult
from real.pair import Pair
from real.provenance import device_name
from real.sampling import Rule
from simspec import Trace


def run_header(rule: Rule, pair: Pair, policy: str, end_tokens: Sequence[int]) -> RunHeader:
    """The header of a run of `pair` on this machine."""
    decoder = pair.target.decoder
    return RunHeader(
        rule=rule.name,
        temperature=rule.temperature,
        top_k=rule.top_k,
        top_p=rule.top_p,
        seed=rule.seed,
        dtype=str(decoder.dtype).removeprefix("torch."),
        device=device_name(decoder.device),
        target=pair.name,
        drafter=pair.drafter.name,
        policy=policy,
        end_tokens=tuple(end_tokens),
    )


def emitted_sequences(trace: Trace, results: Sequence[DecodeResult]) -> tuple[EmittedSequence, ...]:
    """The sequences, with their rounds, of runs on all prompts of a trace."""
    cuts = trace.prompt_offset
    return tuple(
        EmittedSequence(
            trace.prompt[cuts[s] : cuts[s + 1]].tolist(),
            result.token.tolist(),
            int(trace.sequence[s]),
            tuple(zip(*(column.tolist() for column in _round_columns(result)))),
        )
        for s, result in enumerate(results)
    )


def recorded_run(trace: Trace) -> EmittedRun:
    """A recording as a run without rounds; RunError for a synthetic one."""
    meta, cuts, rows = trace.meta, trace.prompt_offset, trace.offset
    header = RunHeader(
        rule=meta.rule,
        temperature=meta.temperature or 1.0,
        top_k=getattr(meta, "top_k", 0),
        top_p=getattr(meta, "top_p", 1.0),
        seed=meta.seed,
        dtype=meta.dtype,
        device=meta.device,
        target=meta.target,
        drafter=meta.drafter,
        end_tokens=meta.end_tokens,
    )
    sequences = (
        EmittedSequence(
            trace.prompt[cuts[s] : cuts[s + 1]].tolist(),
            trace.token[rows[s] : rows[s + 1]].tolist(),
            int(trace.sequence[s]),
        )
        for s in range(trace.sequences)
    )
    return EmittedRun(header, tuple(sequences))


def _round_columns(result: DecodeResult):
    return result.position, result.computed, result.drafted, result.accepted
