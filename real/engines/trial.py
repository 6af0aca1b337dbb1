"""A version of an engine that was not tested is tried: its passes on fixed prompts must equal the
replay under the engine's convention. The outcome is kept in the engine's environment."""

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import simspec
from real.engines.adapter import Engine, EngineSettings, Environment, NgramDraft
from real.engines.compare import compare_rows
from real.engines.rows import Plan, Row
from real.engines.run import about_run
from real.engines.worker import Request
from simspec.output.files import read_json, write_json

PASSES, K, TOKENS = 20, 3, 24
"""Passes with a draft that a trial compares, at least; its draft length; new tokens of a prompt."""
# four tokens again and again, so that n-grams match at once; ordinary ids of every vocabulary
PROMPTS = tuple(
    Request(f"trial {i}", tuple(range(100 + 10 * i, 104 + 10 * i)) * 4, TOKENS) for i in range(12)
)
KEPT = "simspec-trial.json"
"""File of the last trial in an engine's environment."""


def try_version(
    engine: Engine, environment: Environment, settings: EngineSettings, make: Callable[[], Any]
) -> str:
    """A note on a version that was not tested, after a trial with n-grams on the settings' model.

    make: gives a Worker that has not started. The trial runs once for each version, Python and
    simspec. ValueError, one line, where a pass differs from the replay, and where the texts end
    before PASSES of them.
    """
    version, folder = f"{environment.package} {environment.version}", environment.python.parents[1]
    known = f"{version} was not tested with simspec, which knows {' up to '.join(engine.tested)}"
    tried = f"{version}, {environment.python.resolve()}, simspec {simspec.__version__}"
    held: Any = {}
    with suppress(ValueError):  # the first trial here
        held = read_json(folder / KEPT, dict, "trial")
    if held.get("tried") != tried:
        held = _compare(engine, settings, make, known) | {"tried": tried}
        with suppress(ValueError):  # an environment that cannot be written is tried each time
            write_json(folder / KEPT, held)
    if not held.get("equal"):
        raise ValueError(f"{known}, and {held['found']}: give {folder} a version that was tested")
    return f"{known}: {held['found']}"


def _compare(
    engine: Engine, settings: EngineSettings, make: Callable[[], Any], known: str
) -> dict[str, Any]:
    """Whether passes equal the replay, and what was found: prompt after prompt, until enough had a
    draft, or one differs."""
    longest = len(PROMPTS[0].prompt) + TOKENS + 2 * K + 2
    draft, rows = NgramDraft(K, *engine.ngrams[0]), list[Row]()
    settings = replace(settings, draft=draft, batch=1, schedule=(), longest=longest)
    with closing(make()) as worker:
        ready = worker.start(settings)
        about = about_run(ready, settings, PROMPTS, Plan((0, K), 1, 1))
        for request in PROMPTS:
            texts = list[Any]()
            worker.run([request], texts.append, k=K if ready.sets_k else None)
            rows.append(Row(0, 0, K, None, request, texts[0]))
            check = compare_rows(about, rows)
            for first in check.differences:
                return {"equal": False, "found": (
                    f"pass {first.place} of {first.id} has {first.engine} tokens emitted, drafted "
                    f"and accepted, where the replay has {first.predicted}"
                )}  # fmt: skip
            if sum(row[1] > 0 for r in rows for row in r.finished.passes) >= PASSES:
                return {
                    "equal": True,
                    "found": f"{check.passes} passes of a trial equal the replay",
                }
    raise ValueError(f"{known}, and all texts of its trial end before {PASSES} passes with a draft")
