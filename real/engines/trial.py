"""A version of an engine that was not tested is tried: its passes on fixed prompts must equal the
replay under the engine's convention. The outcome is kept in the engine's environment."""

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import simspec
from real.engines.adapter import Engine, EngineSettings, Environment, NgramDraft
from real.engines.compare import compare_rows
from real.engines.rows import Plan, Row
from real.engines.run import about_run
from real.engines.worker import Request
from simspec.cost.provenance import converted
from simspec.output.files import read_json, write_json

PASSES = 20
"""Passes with a draft that a trial compares, at least."""
K, TOKENS = 3, 24
"""Draft length of a trial, and new tokens of a prompt."""
# four tokens again and again, so that n-grams match at once; ordinary ids of every vocabulary
PROMPTS = tuple(
    Request(f"trial {i}", tuple(range(100 + 10 * i, 104 + 10 * i)) * 4, TOKENS) for i in range(12)
)
KEPT = "simspec-trial.json"
"""File of the last trial in an engine's environment."""
_held: dict[str, "Trial"] = {}
"""Trials of this process, for environments that cannot be written."""


@dataclass(frozen=True)
class Trial:
    """A trial's outcome.

    tried: the version, its Python and simspec's version; passes: compared, at least PASSES with a
    draft unless one differs; difference: the first that differs, "" where all are equal.
    """

    tried: str
    passes: int
    difference: str = ""


def try_version(
    engine: Engine, environment: Environment, settings: EngineSettings, make: Callable[[], Any]
) -> str:
    """A note on a version that was not tested, after a trial with n-grams on the settings' model.

    make: gives a Worker that has not started. The trial runs once for each version, Python and
    simspec. ValueError, one line, where a pass differs from the replay, and where the texts end
    before PASSES of them.
    """
    version = f"{environment.package} {environment.version}"
    python, folder = environment.python.resolve(), environment.python.parent.parent
    tried = f"{version}, {python}, simspec {simspec.__version__}"
    trial = _kept(folder / KEPT) or _held.get(tried)
    if trial is None or trial.tried != tried:
        trial = _run(engine, settings, make, tried)
        _held[tried] = trial
        with suppress(OSError, ValueError):
            write_json(folder / KEPT, asdict(trial))
    known = f"was not tested with simspec, which knows {' up to '.join(engine.tested)}"
    if trial.difference:
        raise ValueError(
            f"{version} {known}, and {trial.difference}: give {folder} a version that was tested"
        )
    return f"{version} {known}: {trial.passes} passes of a trial equal the replay"


def _kept(path: Path) -> Trial | None:
    """The trial of a file; None where it holds none."""
    with suppress(ValueError):
        trial: Trial = read_json(path, partial(converted, "a trial", kind=Trial), "trial")
        return trial
    return None


def _run(
    engine: Engine, settings: EngineSettings, make: Callable[[], Any], tried: str
) -> Trial:  # fmt: skip
    """Prompts one after another, until enough passes had a draft, or one differs."""
    longest = len(PROMPTS[0].prompt) + TOKENS + 2 * K + 2
    settings = replace(
        settings, draft=NgramDraft(K, *engine.ngrams[0]), batch=1, schedule=(), longest=longest
    )
    rows = list[Row]()
    with closing(make()) as worker:
        ready = worker.start(settings)
        about = about_run(ready, settings, PROMPTS, Plan((0, K), 1, 1))
        for request in PROMPTS:

            def keep(finished: Any, request: Request = request) -> None:
                rows.append(Row(0, 0, K, None, request, finished))

            worker.run([request], keep, k=K if ready.sets_k else None)
            check = compare_rows(about, rows)
            if check.differences:
                first = check.differences[0]
                wrong = (
                    f"pass {first.place} of {first.id} has {first.engine} tokens emitted, drafted "
                    f"and accepted, where the replay has {first.predicted}"
                )
                return Trial(tried, check.passes, wrong)
            if sum(row[1] > 0 for r in rows for row in r.finished.passes) >= PASSES:
                return Trial(tried, check.passes)
    raise ValueError(
        f"{engine.name} {ready.version} was not tested with simspec, and {len(rows)} texts of its "
        f"trial end before {PASSES} passes with a draft: use a version that was tested"
    )
