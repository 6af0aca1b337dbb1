"""Prompts on an engine at several draft lengths, plain decoding among them, in shuffled blocks."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from real.engines.adapter import (
    Engine,
    EngineSettings,
    ModelDraft,
    NgramDraft,
    PolicyDraft,
    draft_description,
)
from real.engines.rows import Arm, Plan, Row, RowFile, open_rows
from real.engines.worker import MOST_TOKENS, Finished, Ready, Request, Worker
from real.progress import Progress, quiet
from simspec import CostModel, Stepper
from simspec.engines.exports import own_threshold
from simspec.engines.ngram import FEATURES
from simspec.engines.vllm_proposer import served_policy
from simspec.trace.trace import Trace

WARM_UP = 2
"""Requests of each draft length that run uncounted when a worker starts; a batch, if larger."""
WARM_TOKENS = 8
"""Tokens of each request of a warm-up batch."""


def choose_prompts(
    trace: Trace, count: int = 0, part: str = "1/1", budget: int = 0, batch: int = 1
) -> list[Request]:
    """The requests of a recording's prompts: count of them, evenly spaced; 0: all.

    part: "1/2" is every second prompt, "1-3/4" three of four parts, which share none. budget: new
    tokens of each; 0: as the recording allows. The number is a multiple of batch: count rounded up,
    or down where prompts are few. ValueError for an invalid part, and where none is left.
    """
    found = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?/(\d{1,3})", part, re.ASCII)
    first, last, parts = (int(found[1]), int(found[2] or found[1]), int(found[3])) if found else (
        0, 0, 0
    )  # fmt: skip
    if not 1 <= first <= last <= parts <= 100:
        raise ValueError(f"--part is {part!r}, expected PART/PARTS such as 1/2 or 1-3/4")
    chosen = [s for s in range(trace.sequences) if first - 1 <= s % parts < last]
    most = len(chosen) - len(chosen) % batch
    if chosen and not most:
        raise ValueError(
            f"the part has {len(chosen)} prompts, a batch {batch}: give a larger --part"
        )
    if not chosen:
        raise ValueError(f"part {part} of {trace.sequences} prompts is empty: give fewer parts")
    wanted = min(-(-count // batch) * batch, most) if count else most
    requests = []
    for s in (chosen[i * len(chosen) // wanted] for i in range(wanted)):
        prompt = trace.prompt[trace.prompt_offset[s] : trace.prompt_offset[s + 1]]
        allowed = int(trace.budget[s])
        tokens = min(allowed, budget) if budget else allowed
        requests.append(Request(trace.meta.ids[s], tuple(prompt.tolist()), tokens))
    return requests


def with_policies(
    engine: Engine, settings: EngineSettings, policies: Sequence[str], cost: CostModel | None
) -> EngineSettings:
    """The settings where policies decide up to the draft's k tokens.

    An engine with a threshold of its own runs confidence policies by it, others simspec's proposer.
    cost: what policies plan with. ValueError for policies that the engine cannot run.
    """
    from real.decode.features import feature_grids

    draft = settings.draft
    if settings.schedule or draft is None:
        raise ValueError("--policy decides draft lengths: leave --schedule out, and name a drafter")
    if engine.inclusive is not None:
        if not isinstance(draft, ModelDraft):
            raise ValueError(f"{engine.name} has a threshold for draft models alone: name one")
        for text in policies:
            _, policy = own_threshold(text, engine.inclusive, engine.name)
            if policy.longest(draft.k) < draft.k:
                raise ValueError(f"{text} ends drafts below the longest -k, {draft.k}: leave K out")
        return settings
    if isinstance(draft, NgramDraft):
        draft = PolicyDraft(draft.k, draft.ngram_min, draft.ngram_max)
    elif isinstance(draft, ModelDraft):
        draft = PolicyDraft(draft.k, model=draft.model)
    for text in policies:  # refused here, not in the engine
        policy, planned = served_policy(text, draft.k, cost)
        shown: tuple[tuple[str, str], ...] = ()
        if draft.suffix is not None and policy.reads:
            shown = FEATURES
        if draft.model is not None or draft.eagle is not None:
            shown = feature_grids(policy.reads)
        Stepper(policy, draft.k, settings.seed, planned, shown)
    held = None if cost is None else replace(cost, precision=None).to_dict()
    return replace(settings, draft=replace(draft, cost=held))


Block = tuple[int, Sequence[Request], tuple[Arm, ...]]
"""A timing block: its number, its requests, and the arms in the order of their runs."""


def blocks(requests: Sequence[Request], plan: Plan) -> list[Block]:
    """All blocks in random order, a repeat after another; a prompt keeps its group of prompts."""
    groups = [requests[i : i + plan.group] for i in range(0, len(requests), plan.group)]
    made: list[Block] = []
    for repeat in range(plan.repeats):
        rng = np.random.default_rng((plan.seed, repeat))
        for g in rng.permutation(len(groups)).tolist():
            order = tuple(plan.arms[i] for i in rng.permutation(len(plan.arms)).tolist())
            made.append((repeat * len(groups) + g, groups[g], order))
    return made


def about_run(
    ready: Ready, settings: EngineSettings, requests: Sequence[Request], plan: Plan
) -> dict[str, Any]:
    """Description of a run; one of another engine, settings or prompts does not continue it."""
    asked = json.dumps([[r.id, list(r.prompt), r.max_tokens] for r in requests]).encode()
    schedule = {"schedule": [*map(list, settings.schedule)]} if settings.schedule else {}
    held = ("threads", "dtype", "longest", "batch", "exact", "seed")
    return {
        "engine": ready.engine,
        "version": ready.version,
        "device": ready.device,
        "model": str(settings.model),
        "draft": draft_description(settings.draft),
        **schedule,
        **{name: getattr(settings, name) for name in held},
        "plan": {k: v for k, v in asdict(plan).items() if k != "policies" or v},
        "prompts": hashlib.sha256(asked).hexdigest(),
        "count": len(requests),
    }


class Workers:
    """Workers of one engine: one, or one a draft length where a run cannot set it.

    `make` gives a worker that has not started. Each is warmed once, outside the blocks.
    """

    def __init__(self, make: Callable[[], Worker], settings: EngineSettings, plan: Plan):
        self.make, self.settings, self.plan = make, settings, plan
        self.held: dict[int, Worker] = {}
        self.first, longest = make(), max(plan.ks)
        self.ready = self.first.start(self._at_length(longest))
        self.held[longest] = self.first

    def run(self, requests: Sequence[Request], arm: Arm, keep: Callable[[Finished], None]) -> None:
        """Runs requests at this length, or under this policy."""
        (k, policy), worker, given = arm, self.first, arm[0] if self.ready.sets_k else None
        if not self.ready.sets_k:
            if k not in self.held:
                self.held[k] = self.make()
                self.held[k].start(self._at_length(k))
            worker = self.held[k]
        force = k if self.plan.force else None
        worker.run(requests, keep, self.plan.concurrent, given, force, policy or None)

    def _at_length(self, k: int) -> EngineSettings:
        """The settings with drafts of k tokens; without drafting at 0."""
        if self.settings.draft is None or k == 0:
            return replace(self.settings, draft=None, schedule=())
        return replace(self.settings, draft=replace(self.settings.draft, k=k))

    def close(self) -> None:
        """Ends all workers."""
        for worker in self.held.values():
            worker.close()


def run_blocks(
    workers: Workers,
    requests: Sequence[Request],
    plan: Plan,
    rows: RowFile,
    progress: Progress = quiet,
) -> None:
    """Runs what the file does not hold yet, and keeps every request when it has finished."""

    def keep(
        block: int, arm: Arm, force: int | None, asked: dict[str, Request], finished: Finished
    ) -> None:
        row = Row(rows.session, block, arm[0], force, asked[finished.id], finished, arm[1])
        if row.key not in rows.done:
            rows.append(row)

    warm: set[Arm] = set()
    total, done = len(requests) * plan.repeats * len(plan.arms), len(rows.rows)
    progress("requests", done, total)
    for number, of_block, arms in blocks(requests, plan):
        for arm in arms:
            force = arm[0] if plan.force else None
            todo = [r for r in of_block if (number, arm, force, r.id) not in rows.done]
            if not todo:
                continue
            if arm not in warm:
                workers.run(_warm_up(requests, plan), arm, lambda finished: None)
                warm.add(arm)
            # what a request shares its passes with decides them: a wave runs whole again
            asked = {r.id: r for r in (of_block if plan.in_waves else todo)}
            workers.run(list(asked.values()), arm, partial(keep, number, arm, force, asked))
            done += len(todo)
            progress("requests", done, total)


def _warm_up(requests: Sequence[Request], plan: Plan) -> list[Request]:
    """Requests under names that no counted one has."""
    most = WARM_TOKENS if plan.concurrent > 1 else MOST_TOKENS
    chosen = requests[: max(WARM_UP, plan.concurrent)]
    return [Request(f"warm-up {r.id}", r.prompt, min(r.max_tokens, most)) for r in chosen]


def run_on_engine(
    make: Callable[[], Worker],
    settings: EngineSettings,
    requests: Sequence[Request],
    plan: Plan,
    out: str | Path,
    force: bool | None = None,
    progress: Progress = quiet,
) -> Ready:
    """Runs the plan, or what the file `out` lacks of it, and ends the workers.

    force: overrides the plan's; None: where the engine can force drafts and does not draft by a
    model, whose passes must count. ValueError for a schedule whose requests would take turns, and
    for policies where the engine's n-grams draft.
    """
    if plan.policies and not isinstance(settings.draft, PolicyDraft | ModelDraft):
        raise ValueError("policies run by simspec's proposer, or an engine's threshold of a model")
    if settings.schedule and plan.group > plan.concurrent:
        raise ValueError(
            "a schedule's passes are predicted for requests that start together: give --concurrent "
            "2 or more, or one length by -k in place of --schedule"
        )
    with closing(Workers(make, settings, plan)) as workers:
        own = isinstance(settings.draft, ModelDraft)
        forced = workers.ready.forces_drafts and not own if force is None else force
        workers.plan = plan = replace(plan, force=forced)
        with open_rows(out, about_run(workers.ready, settings, requests, plan)) as rows:
            run_blocks(workers, requests, plan, rows, progress)
    return workers.ready
