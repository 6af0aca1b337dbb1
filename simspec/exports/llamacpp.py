"""llama.cpp: flags of a drafter, with p_min where the policy is a confidence threshold.

Reference: common/arg.cpp of llama.cpp.
"""

from simspec.exports.documents import (
    check_option,
    check_text,
    confidence_threshold,
    flag_integer,
    flag_line,
    number_of,
    read_flags,
)
from simspec.exports.request import Format, Request, Settings

KIND = "llama.cpp flags"
TYPE, MODEL = "--spec-type", "--model-draft"
LONGEST, SHORTEST, P_MIN = "--spec-draft-n-max", "--spec-draft-n-min", "--spec-draft-p-min"
DRAFTERS = {"model": "draft-simple"}
WITH_MODEL = ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark")
TYPES = (*WITH_MODEL, "draft-mtp")
RENAMED = {"--draft-max": LONGEST, "--draft-min": SHORTEST, "--draft-p-min": P_MIN, "-md": MODEL}


def export(request: Request) -> str:
    """The flags, on one line.

    p_min drops the token below it, so the policy is confidence:P,inclusive=false. ValueError for
    a policy that llama.cpp has no flag for.
    """
    threshold = confidence_threshold(request, inclusive=False, engine="llama.cpp")
    p_min, length = (0.0, request.length) if threshold is None else threshold
    kind = request.method(DRAFTERS, "llama.cpp")
    flags: dict[str, object] = {TYPE: kind}
    if kind in WITH_MODEL:
        flags[MODEL] = request.model(kind)
    return flag_line(flags | {LONGEST: length, SHORTEST: 0, P_MIN: p_min})


def validate(text: str, settings: Settings) -> None:
    """ValueError, one line, for what llama.cpp refuses, or changes without a word.

    | llama.cpp would | refused here |
    | --- | --- |
    | refuse | unknown flags and types, lengths that are no integers |
    | load a draft model and never use it | no --spec-type |
    | use its default, which changed between versions | no n-max, n-min or p-min |
    | throw short drafts away | an n-min above 0 |
    | never draft | an n-max of 0, a p-min above 1 |
    | keep the last | a flag that comes twice |
    """
    read(text)


def read(text: str) -> tuple[str, int, float]:
    """(type, longest draft, p_min); ValueError as `validate`."""
    required = (TYPE, LONGEST, SHORTEST, P_MIN)
    flags = read_flags(text, KIND, required, (MODEL,), RENAMED)
    kind = check_option(flags[TYPE], TYPE, TYPES)
    if kind in WITH_MODEL:
        check_text(flags.get(MODEL), MODEL)
    elif MODEL in flags:
        raise ValueError(f"{MODEL} is {flags[MODEL]!r}, but {kind} is part of the target: drop it")
    longest = flag_integer(flags, LONGEST, 1)
    shortest = flag_integer(flags, SHORTEST, 0)
    if shortest:
        raise ValueError(
            f"{SHORTEST} is {shortest}, expected 0: shorter drafts would be thrown away, which "
            "no replay did"
        )
    return kind, longest, number_of(flags[P_MIN], P_MIN, 0, 1)


FORMATS = (
    Format(
        "llamacpp", export, validate, ("several slots: llama.cpp drafts for each slot by itself",)
    ),
)
