"""The recommended draft length as engines read it, where they have the drafter."""

from dataclasses import dataclass, replace

from simspec.exports.choice import choose
from simspec.exports.evidence import Evidence
from simspec.exports.formats import FORMATS
from simspec.exports.request import Request, Settings
from simspec.page.figures import RecordingFigures

ENGINES = ("vllm", "sglang", "tensorrt-llm", "llamacpp", "transformers")
SETTINGS = Settings(model="DRAFT_MODEL", engine_version="1.3.0")
"""A recording does not name the files of its draft model."""


@dataclass(frozen=True)
class EngineLine:
    """What an engine reads, as `simspec export` writes it."""

    engine: str
    text: str


def engine_lines(figures: RecordingFigures) -> list[EngineLine]:
    """Lines of the engines that have a counterpart of the drafter; none where drafts do not pay."""
    if not figures.pays:
        return []
    evidence = Evidence({figures.name: figures.trace}, (1,), {figures.name: (figures.cost,)})
    lines = []
    for engine in ENGINES:
        form = FORMATS[engine]
        try:
            choice = choose(evidence, figures.best.policy, replace(form.limits, captured=0))
            text = form.export(Request(evidence, choice, SETTINGS))
            form.validate(text, SETTINGS)
        except ValueError:  # the engine has no such drafter
            continue
        lines.append(EngineLine(engine, text.strip()))
    return lines
