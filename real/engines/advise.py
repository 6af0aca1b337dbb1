"""From prompts to a setting that the engine has confirmed: `simspec advise`.

The engine writes texts, drafts are recorded along them without a target, passes are timed, replay
chooses drafter and draft length for every batch size, and the engine runs the choice on other
prompts. Every request is kept once it has finished; the same call continues.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
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
from real.engines.compare import compare_rows, end_tokens, rule_of, written_text
from real.engines.measure import (
    SpeedupTable,
    cost_table,
    engine_cost,
    predicted_speedups,
    speedup_table,
)
from real.engines.messages import Finished, Request
from real.engines.rows import Row, read_rows
from real.engines.run import Plan
from simspec.cost.model import CostModel
from simspec.cost.table import CostTable
from simspec.engines.choice import TIE
from simspec.engines.text import WrittenText, record_texts, text_budgets
from simspec.numerics.stats import Estimate
from simspec.policy.policy import PolicyError
from simspec.trace.trace import Trace, TraceError

Draft = NgramDraft | ModelDraft
RunPlan = Callable[[EngineSettings, Sequence[Request], Plan, Path, bool | None], Any]
"""Runs a plan into a file of rows, or what the file lacks of it."""
RecordModel = Callable[[ModelDraft, Sequence[Any], int, Sequence[int]], Trace]
"""(draft model, texts, K, end tokens) -> recording."""
COST_PROMPTS, COST_REPEATS, COST_BUDGET = 4, 2, 24
"""Of the costs' runs: prompts, or one batch of them; repeats; new tokens."""
NEIGHBORS = 2
"""Draft lengths this far from the advised one are verified too."""


@dataclass(frozen=True)
class AdvicePlan:
    """A run of `simspec advise`: engine, model, prompts and limits.

    | field | meaning |
    | --- | --- |
    | engine | its adapter |
    | settings | of the engine, without a draft |
    | folder | gets all files |
    | batches | requests in flight together, growing |
    | depth | longest draft |
    | seed | of all draws |
    | policies | tried where the engine runs simspec's proposer |
    """

    engine: Engine
    settings: EngineSettings
    folder: Path
    batches: tuple[int, ...] = (1,)
    depth: int = 8
    seed: int = 0
    policies: tuple[str, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A drafter along the engine's texts, with its costs on the engine.

    | field | meaning |
    | --- | --- |
    | name | of its files |
    | draft | its settings |
    | recording | its drafts along the texts |
    | cost | of passes that verify them |
    | lengths | that the engine takes, growing, without 0 |
    """

    name: str
    draft: Draft
    recording: Trace
    cost: CostModel | CostTable
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Advice:
    """The best draft length of one drafter at one batch size, by replay.

    | field | meaning |
    | --- | --- |
    | candidate, batch | the drafter, and requests in flight |
    | k | draft length; 0: do not draft |
    | drafting | the best length above 0 |
    | speedup, interval | of `drafting` over plain decoding; None: too few prompts |
    """

    candidate: str
    batch: int
    k: int
    drafting: int
    speedup: float
    interval: Estimate | None


@dataclass(frozen=True)
class PolicyAdvice:
    """The best policy over one drafter at one batch size, by replay; `k`: its longest draft."""

    candidate: str
    batch: int
    k: int
    policy: str
    speedup: float
    interval: Estimate | None


@dataclass(frozen=True)
class Verified:
    """Held-out prompts on the engine at the advised length, its neighbors and plain decoding."""

    batch: int
    table: SpeedupTable
    passes: int
    exceptions: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"table": self.table.to_dict()}


def draft_name(draft: Draft) -> str:
    """Name of a drafter's files."""
    if isinstance(draft, NgramDraft):
        return f"ngram-{draft.ngram_min}-{draft.ngram_max}"
    return f"model-{draft.model.stem if draft.model.is_file() else draft.model.name}"


def halves(requests: Sequence[Request], seed: int) -> tuple[list[Request], list[Request]]:
    """(prompts to choose on, prompts to verify on), drawn by the seed: files may have a pattern."""
    order = np.random.default_rng(seed).permutation(len(requests)).tolist()
    half = len(order) - len(order) // 2
    first, second = sorted(order[:half]), sorted(order[half:])
    return [requests[i] for i in first], [requests[i] for i in second]


def write_plain_texts(plan: AdvicePlan, requests: Sequence[Request], run: RunPlan) -> list[Row]:
    """The engine's own greedy texts, kept in texts.rows.jsonl."""
    path = plan.folder / "texts.rows.jsonl"
    run(replace(plan.settings, batch=1), requests, Plan((0,), 1, seed=plan.seed), path, False)
    return read_rows(path)[1]


def log_rows(texts: Sequence[WrittenText]) -> tuple[list[Row], dict[str, str]]:
    """(the texts of a log as plain rows, {id: task}), for replays.

    ValueError for sampled texts, and for ids given twice.
    """
    text_budgets(texts, 1, (), sampled=False)
    tasks = {text.id: text.task for text in texts}
    if len(tasks) < len(texts):
        raise ValueError(f"the log has {len(texts) - len(tasks)} ids twice: name each once")
    rows = []
    for text in texts:
        tokens = tuple(text.output.tolist())
        request = Request(text.id, tuple(text.prompt.tolist()), len(tokens))
        passes = ((1, 0, 0),) * len(tokens)
        finished = Finished(text.id, tokens, passes, None, 0.0, 0.0, None, "length")
        rows.append(Row(0, 0, 0, None, request, finished))
    return rows, tasks


def measure_costs(
    plan: AdvicePlan, draft: Draft, requests: Sequence[Request], run: RunPlan
) -> CostModel | CostTable:
    """Costs of the drafter's passes at every batch size, kept with their rows.

    n-gram drafters share one file: their drafts cost nothing, and junk tokens are verified where
    the engine can force them.
    """
    shared = isinstance(draft, NgramDraft)
    name, runs = "ngram" if shared else draft_name(draft), []
    if shared:
        least, most = plan.engine.ngrams[0]
        draft = NgramDraft(plan.depth, least, most)
    for batch in plan.batches:
        count = max(COST_PROMPTS, batch)
        chosen = [requests[i * len(requests) // count] for i in range(min(count, len(requests)))]
        short = [replace(r, max_tokens=min(r.max_tokens, COST_BUDGET)) for r in chosen]
        settings = replace(plan.settings, draft=replace(draft, k=plan.depth), batch=batch)
        group = 2 if batch == 1 else batch
        ks = (0, *lengths_taken(plan, draft))
        passes = Plan(ks, COST_REPEATS, group, batch, False, plan.seed)
        path = plan.folder / f"{name}.b{batch}.cost.rows.jsonl"
        run(settings, short, passes, path, None)
        runs.append(read_rows(path))
    if plan.batches == (1,):
        return engine_cost(*runs[0], seed=plan.seed)
    return cost_table(runs, plan.seed)


def lengths_taken(plan: AdvicePlan, draft: Draft) -> tuple[int, ...]:
    """Draft lengths from 1 to the depth that the engine takes with this drafter."""
    taken = []
    for k in range(1, plan.depth + 1):
        try:
            plan.engine.start(replace(plan.settings, draft=replace(draft, k=k)))
        except ValueError:
            continue
        taken.append(k)
    return tuple(taken)


def record_drafts(
    plan: AdvicePlan, draft: Draft, rows: Sequence[Row], tasks: Mapping[str, str],
    record_model: RecordModel,
) -> Trace:  # fmt: skip
    """The drafter's recording along these rows' texts; its target is the engine's model."""
    texts = [
        replace(written_text(row), task=tasks.get(row.request.id, "text"))
        for row in rows
        if row.finished.tokens
    ]
    ends = end_tokens(rows)
    if isinstance(draft, ModelDraft):
        trace = record_model(draft, texts, plan.depth, ends)
    else:
        rule = rule_of(_about(plan, draft, 1))
        assert rule is not None
        trace = record_texts(texts, rule, plan.depth, ends)
    name = plan.settings.model.name if plan.settings.model.is_dir() else plan.settings.model.stem
    return replace(trace, meta=replace(trace.meta, target=f"{plan.engine.name} {name}"))


def _about(plan: AdvicePlan, draft: Draft | PolicyDraft | None, batch: int) -> dict[str, Any]:
    """Description of a run that has not been made, for its replay."""
    return {
        "engine": plan.engine.name,
        "draft": draft_description(draft),
        "plan": {"ks": list(range(plan.depth + 1)), "concurrent": batch, "group": batch},
    }


def choose_length(
    plan: AdvicePlan, candidate: Candidate, rows: Sequence[Row], batch: int
) -> Advice:
    """The smallest length within TIE of the best by replay of these texts, at its costs."""
    recording = candidate.recording if isinstance(candidate.draft, ModelDraft) else None
    about, arms = _about(plan, candidate.draft, batch), [(k, "") for k in candidate.lengths]
    found = predicted_speedups(about, rows, candidate.cost, arms, recording)
    best = max(speedup for _, speedup, _ in found)
    (k, _), speedup, interval = next(row for row in found if row[1] >= (1 - TIE) * best)
    return Advice(candidate.name, batch, k if speedup > 1 else 0, k, speedup, interval)


def choose_policy(
    plan: AdvicePlan, candidate: Candidate, rows: Sequence[Row], batch: int
) -> PolicyAdvice | None:
    """The policy of the best replay; None for an engine without policies, or where none is tried.

    A policy that reads what the drafter does not show is left out.
    """
    if "policy" not in plan.engine.methods or not plan.policies:
        return None
    draft, k = steered(candidate, batch), max(candidate.lengths)
    recording = candidate.recording if isinstance(candidate.draft, ModelDraft) else None
    about = _about(plan, draft, batch) | {"seed": plan.seed}
    arms = [(k, text) for text in plan.policies]
    found = []
    for arm in arms:
        with suppress(PolicyError, TraceError):
            found += predicted_speedups(about, rows, candidate.cost, [arm], recording)
    if not found:
        return None
    (k, policy), speedup, interval = max(found, key=lambda row: row[1])
    return PolicyAdvice(candidate.name, batch, k, policy, speedup, interval)


def steered(candidate: Candidate, batch: int) -> PolicyDraft:
    """The candidate's drafts by simspec's proposer, at its costs of that batch size."""
    cost, draft = candidate.cost, candidate.draft
    cost = cost.at(batch) if isinstance(cost, CostTable) else cost
    given = replace(cost, precision=None).to_dict()
    made = PolicyDraft(max(candidate.lengths), cost=given)
    if isinstance(draft, ModelDraft):
        return replace(made, model=draft.model)
    return replace(made, ngram_min=draft.ngram_min, ngram_max=draft.ngram_max)


def verify_policy(
    plan: AdvicePlan,
    candidate: Candidate,
    length: Advice,
    advice: PolicyAdvice,
    requests: Sequence[Request],
    run: RunPlan,
    record_model: RecordModel,
) -> Verified:  # fmt: skip
    """Runs the policy, the advised length and plain decoding by simspec's proposer on the engine.

    `table.confirmed` says whether no policy is faster than the length, beyond noise.
    """
    ks = tuple(sorted({0, length.drafting, advice.k}))
    return _verified(
        plan, candidate, (length, ks, (advice.policy,)), steered(candidate, length.batch), requests,
        run, record_model,
    )  # fmt: skip


def verify(
    plan: AdvicePlan,
    candidate: Candidate,
    advice: Advice,
    requests: Sequence[Request],
    run: RunPlan,
    record_model: RecordModel,
) -> Verified:
    """Runs the advice, its neighbors and plain decoding on these prompts, which were not seen."""
    near = {advice.drafting + step for step in (-NEIGHBORS, 0, NEIGHBORS)}
    ks = (0, *(k for k in candidate.lengths if k in near))
    return _verified(
        plan, candidate, (advice, ks, ()), replace(candidate.draft, k=max(ks)), requests, run,
        record_model,
    )  # fmt: skip


def _verified(
    plan: AdvicePlan,
    candidate: Candidate,
    arms: tuple[Advice, tuple[int, ...], tuple[str, ...]],
    draft: Draft | PolicyDraft,
    requests: Sequence[Request],
    run: RunPlan,
    record_model: RecordModel,
) -> Verified:  # fmt: skip
    """Runs the arms, (advice, draft lengths, policies), and compares passes and speedups."""
    advice, ks, policies = arms
    batch = advice.batch
    count = len(requests) // batch * batch
    settings = replace(plan.settings, draft=draft, batch=batch, seed=plan.seed)
    group = 4 if batch == 1 else batch
    passes = Plan(ks, 1, group, batch, False, plan.seed, policies)
    kind = "policy" if policies else "verify"
    path = plan.folder / f"{candidate.name}.b{batch}.{kind}.rows.jsonl"
    run(settings, requests[:count], passes, path, False)
    about, rows = read_rows(path)
    recording = None
    if isinstance(candidate.draft, ModelDraft):
        plain = {row.request.id: row for row in rows if row.k == 0}
        recording = record_drafts(plan, candidate.draft, list(plain.values()), {}, record_model)
    table = speedup_table(about, rows, candidate.cost, recording, advice.k)
    result = compare_rows(about, rows, recording)
    return Verified(batch, table, result.passes, len(result.exceptions))
