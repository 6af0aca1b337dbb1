"""SGLang: flags of a chain of drafts.

Reference: python/sglang/srt/server_args.py of SGLang.
"""

from simspec.exports.documents import check_option, check_text, flag_integer, flag_line, read_flags
from simspec.exports.request import Format, Request, Settings

KIND = "SGLang flags"
ALGORITHM = "--speculative-algorithm"
MODEL = "--speculative-draft-model-path"
STEPS, TOPK, TOKENS = (
    "--speculative-num-steps",
    "--speculative-eagle-topk",
    "--speculative-num-draft-tokens",
)
DRAFTERS = {"eagle": "EAGLE", "model": "STANDALONE"}
WITH_MODEL = ("EAGLE", "EAGLE3", "STANDALONE")
ALGORITHMS = (*WITH_MODEL, "NEXTN")


def export(request: Request) -> str:
    """The flags, on one line; ValueError for a drafter that SGLang has no algorithm for."""
    return flag_line(chain_flags(request, request.length))


def chain_flags(request: Request, steps: int) -> dict[str, object]:
    """{flag: value} of a chain of `steps` drafted tokens; SGLang counts the root as a token."""
    algorithm = request.method(DRAFTERS, "SGLang")
    flags: dict[str, object] = {ALGORITHM: algorithm}
    if algorithm in WITH_MODEL:
        flags[MODEL] = request.model(algorithm)
    return flags | {STEPS: steps, TOPK: 1, TOKENS: steps + 1}


def validate(text: str, settings: Settings) -> None:
    """ValueError, one line, for what SGLang refuses, or changes without a word.

    | SGLang would | refused here |
    | --- | --- |
    | refuse | unknown flags and algorithms, values that are no integers, no draft model |
    | overwrite | draft tokens of a chain other than steps + 1 |
    | cut | a tree's tokens above topk + (steps - 1) topk^2 + 1 |
    | keep the last | a flag that comes twice |
    | choose its own | one of steps, topk and draft tokens left out |
    """
    read(text)


def read(text: str) -> tuple[str, int, int, int]:
    """(algorithm, steps, topk, draft tokens); ValueError as `validate`."""
    flags = read_flags(text, KIND, (ALGORITHM, STEPS, TOPK, TOKENS), (MODEL,))
    algorithm = check_option(flags[ALGORITHM], ALGORITHM, ALGORITHMS)
    if algorithm in WITH_MODEL:
        check_text(flags.get(MODEL), MODEL)
    steps, topk, tokens = (flag_integer(flags, name, 1) for name in (STEPS, TOPK, TOKENS))
    if topk == 1 and tokens != steps + 1:
        raise ValueError(
            f"{TOKENS} is {tokens} and {STEPS} {steps}, expected {steps + 1}: the root counts, "
            "and SGLang would overwrite it"
        )
    most = topk + (steps - 1) * topk**2 + 1
    if tokens > most:
        raise ValueError(
            f"{TOKENS} is {tokens}, expected at most {most}: topk {topk} and {steps} steps have "
            "no more nodes"
        )
    return algorithm, steps, topk, tokens


FORMATS = (Format("sglang", export, validate),)
