"""Tuning transformers' draft lengths on prompts that do not race."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from real.bench.contestant import Contestant, Request
from real.bench.hf_generate import HF_PLAIN, parse_hf_method
from real.progress import Progress, quiet
from real.rerun import evenly_spaced
from simspec import Trace

TUNED = "tuned"
"""The number of tokens in a method's name that tuning replaces."""
LENGTHS = (1, 2, 3, 5, 8)
"""Numbers of drafted tokens that are tried."""
NGRAMS = (2, 3)
"""Longest n-grams that are tried with every number of tokens of prompt lookup."""


@dataclass(frozen=True)
class Tuning:
    """The settings tried for one method.

    | field | meaning |
    | --- | --- |
    | chosen | the fastest candidate, a method without `TUNED` |
    | rates | tokens a second of every candidate |
    | prompts | ids of the prompts that it was tuned on |
    """

    chosen: str
    rates: Mapping[str, float]
    prompts: tuple[str, ...]


def candidates(method: str) -> list[str]:
    """The methods that a method with `TUNED` stands for; itself alone without."""
    kind, _, rest = method.partition(":")
    if TUNED not in rest.split(","):
        return [method]
    if method == f"prompt_lookup:{TUNED}":
        return [f"{kind}:{length},{ngram}" for length in LENGTHS for ngram in NGRAMS]
    return [f"{kind}:{rest.replace(TUNED, str(length))}" for length in LENGTHS]


def resolve(methods: Sequence[str], tuning: Mapping[str, Tuning]) -> list[str]:
    """The methods with what tuning chose for them, each once."""
    return list(dict.fromkeys(tuning[m].chosen if m in tuning else m for m in methods))


def with_plain(methods: Sequence[str]) -> list[str]:
    """The methods, each once, after transformers' plain decoding: gains of its own are over it."""
    return list(dict.fromkeys([HF_PLAIN, *methods])) if methods else []


def check_methods(methods: Sequence[str]) -> None:
    """ContestantError for a method that transformers does not have."""
    for method in methods:
        for candidate in candidates(method):
            parse_hf_method(candidate)


def other_prompts(trace: Trace, raced: Trace, prompts: int) -> Trace:
    """Up to `prompts` prompts of `trace` that do not race, evenly spread.

    ValueError where all of them race.
    """
    taken = set(raced.sequence.tolist())
    others = [s for s in range(trace.sequences) if int(trace.sequence[s]) not in taken]
    if not others:
        raise ValueError(
            f"all {trace.sequences} prompts race; expected others to tune transformers on: "
            "use fewer --prompts, or --rival without tuned"
        )
    return trace.select([others[i] for i in evenly_spaced(len(others), prompts)])


def tune(
    methods: Sequence[str],
    make: Callable[[Sequence[str]], Sequence[Contestant]],
    requests: Sequence[Request],
    ids: Sequence[str],
    seed: int = 0,
    progress: Progress = quiet,
    timer: Callable[[], float] = perf_counter,
) -> dict[str, Tuning]:
    """The fastest candidate of every method with `TUNED`; `make` builds contestants by name.

    All candidates of all methods run back to back on each prompt, in shuffled order, once. A
    candidate that fails is left out; where all fail, the first is chosen, so that its row says why.
    """
    wanted = {m: candidates(m) for m in methods if candidates(m) != [m]}
    names = list(dict.fromkeys(name for group in wanted.values() for name in group))
    if not names:
        return {}
    order = np.random.default_rng(seed)
    built = {contestant.name: contestant for contestant in make(names)}
    tokens, seconds = dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)
    failed = {name for name in names if not _run(built[name], requests[0])}  # warms it up
    generate = {name: built[name].begin() for name in names if name not in failed}
    for s, request in enumerate(requests):
        for i in order.permutation(len(names)):
            if (name := names[i]) in generate:
                begin = timer()
                token, _ = generate[name](request)
                seconds[name] += timer() - begin
                tokens[name] += len(token)
        progress("tuning", s + 1, len(requests))
    rates = {name: tokens[name] / seconds[name] for name in generate}
    return {
        method: Tuning(
            max(group, key=lambda name: rates.get(name, 0.0)),
            {name: rates[name] for name in group if name in rates},
            tuple(ids),
        )
        for method, group in wanted.items()
    }


def _run(contestant: Contestant, request: Request) -> bool:
    try:
        contestant.begin()(request)
    except Exception:  # whatever another library raises: the race runs it and reports
        return False
    return True
