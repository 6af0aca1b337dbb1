"""From prompts to a setting that the engine has confirmed: `simspec advise`.

The engine writes texts, drafts are recorded along them without a target, passes are timed, replay
chooses drafter and draft length for every batch size, and the engine runs the choice on other
prompts. Every request is kept once it has finished; the same call continues.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from real.engines.adapter import (
    Engine,
    EngineSettings,
    ModelDraft,
    NgramDraft,
    PolicyDraft,
    draft_description,
    start_options,
)
from real.engines.compare import compare_rows, end_tokens, rule_of, written_text
from real.engines.measure import (
    SpeedupTable,
    cost_table,
    engine_cost,
    predicted_speedups,
    speedup_table,
)
from real.engines.rows import Row, read_rows
from real.engines.run import Plan
from real.engines.summary import MEASURED, PREDICTED, advised, drafter_text
from real.engines.worker import Finished, Request
from simspec.cost.model import CostModel
from simspec.cost.table import CostTable
from simspec.engines import Export
from simspec.engines.choice import TIE, Choice, Schedule, gather
from simspec.engines.exports import EXPORTS, write_choice
from simspec.engines.text import WrittenText, record_texts, text_budgets
from simspec.numerics.stats import Estimate
from simspec.output.files import replacing, write_json
from simspec.output.frames import frame
from simspec.policy.policy import PolicyError
from simspec.reports.comparison import DEFAULTS, compare
from simspec.reports.page import all_figures, page_of
from simspec.trace.trace import Trace, TraceError

if TYPE_CHECKING:
    from pandas import DataFrame

Draft = NgramDraft | ModelDraft
RunPlan = Callable[[EngineSettings, Sequence[Request], Plan, Path, bool | None], Any]
"""Runs a plan into a file of rows, or what the file lacks of it."""
RecordModel = Callable[[ModelDraft, Sequence[Any], int, Sequence[int]], Trace]
"""(draft model, texts, K, end tokens) -> recording."""
COST_PROMPTS, COST_REPEATS, COST_BUDGET = 4, 2, 24
"""Of the costs' runs: prompts, or one batch of them; repeats; new tokens."""
NEIGHBORS = 2
"""Draft lengths this far from the advised one are verified too."""
AGREES = 1.1
"""Largest ratio of the speedups of one length in two runs of the same prompts that is noise."""
SETTINGS = {"llamacpp": "setting.txt"}
"""Files of engines whose settings are no JSON."""


@dataclass(frozen=True)
class AdvicePlan:
    """A run of `simspec advise` into a folder, for numbers of requests in flight, growing.

    settings: of the engine, without a draft; depth: the longest draft; policies: tried where the
    engine runs simspec's proposer.
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
    """A drafter along the engine's texts, with its costs and the lengths that the engine takes."""

    name: str
    draft: Draft
    recording: Trace
    cost: CostModel | CostTable
    lengths: tuple[int, ...]

    def cost_at(self, batch: int) -> CostModel:
        """The costs at that batch size."""
        return self.cost.at(batch) if isinstance(self.cost, CostTable) else self.cost


@dataclass(frozen=True)
class Advice:
    """The best draft length, or policy, of one drafter at one batch size, by replay.

    k: 0 for "do not draft"; drafting: the best length above 0, or a policy's longest; speedup: of
    `drafting` over plain decoding; interval: None for too few prompts.
    """

    candidate: str
    batch: int
    k: int
    drafting: int
    speedup: float
    interval: Estimate | None
    policy: str = ""


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
        finished = Finished(text.id, tokens, passes, (0.0,) * len(tokens), 0.0, 0.0, "length")
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
) -> Advice | None:
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
    return Advice(candidate.name, batch, k, k, speedup, interval, policy)


def steered(candidate: Candidate, batch: int) -> PolicyDraft:
    """The candidate's drafts by simspec's proposer, at its costs of that batch size."""
    draft = candidate.draft
    given = replace(candidate.cost_at(batch), precision=None).to_dict()
    made = PolicyDraft(max(candidate.lengths), cost=given)
    if isinstance(draft, ModelDraft):
        return replace(made, model=draft.model)
    return replace(made, ngram_min=draft.ngram_min, ngram_max=draft.ngram_max)


def verify(
    plan: AdvicePlan,
    candidate: Candidate,
    advice: Advice,
    requests: Sequence[Request],
    run: RunPlan,
    record_model: RecordModel,
    steering: Advice | None = None,
) -> Verified:
    """Runs the advice, its neighbors and plain decoding on these prompts, which were not seen.

    steering: a policy's advice, which then runs instead of the neighbors, all by simspec's proposer
    in the engine; `table.confirmed` says whether no policy is faster, beyond noise.
    """
    batch, near = advice.batch, {advice.drafting + step for step in (-NEIGHBORS, 0, NEIGHBORS)}
    ks = (0, *(k for k in candidate.lengths if k in near))
    draft: Draft | PolicyDraft = replace(candidate.draft, k=max(ks))
    policies: tuple[str, ...] = ()
    if steering is not None:
        ks, policies = tuple(sorted({0, advice.drafting, steering.k})), (steering.policy,)
        draft = steered(candidate, batch)
    settings = replace(plan.settings, draft=draft, batch=batch, seed=plan.seed)
    passes = Plan(ks, 1, 4 if batch == 1 else batch, batch, False, plan.seed, policies)
    kind = "policy" if policies else "verify"
    path = plan.folder / f"{candidate.name}.b{batch}.{kind}.rows.jsonl"
    run(settings, requests[: len(requests) // batch * batch], passes, path, False)
    about, rows = read_rows(path)
    recording = None
    if isinstance(candidate.draft, ModelDraft):
        plain = {row.request.id: row for row in rows if row.k == 0}
        recording = record_drafts(plan, candidate.draft, list(plain.values()), {}, record_model)
    table = speedup_table(about, rows, candidate.cost, recording, advice.k)
    result = compare_rows(about, rows, recording)
    return Verified(batch, table, result.passes, len(result.exceptions))


@dataclass(frozen=True)
class Found:
    """The advice on a drafter by batch size, what else was tried, and the engine's own figures.

    best, verified: the winner's length at each batch size, and that on held-out prompts; tried:
    every drafter at every batch size; by_task: the best length of each task's texts, at the
    smallest batch; policies: the best at each batch size, and how it ran next to the length.
    """

    plan: AdvicePlan
    winner: Candidate
    best: Sequence[Advice]
    tried: Sequence[Advice]
    verified: Sequence[Verified]
    by_task: Mapping[str, Advice]
    policies: Sequence[tuple[Advice, Verified]] = ()

    @property
    def confirmed(self) -> bool | None:
        """Whether every batch size is confirmed, and every pass is the replay's; None: not run."""
        if not self.verified:
            return None
        exact = not any(v.exceptions for _, v in self.policies)
        return exact and all(v.table.confirmed and not v.exceptions for v in self.verified)

    @property
    def faster_policies(self) -> list[Advice]:
        """Policies that ran faster than the advised length, beyond noise, where both runs agree."""
        return [
            advice for i, (advice, v) in enumerate(self.policies)
            if not v.table.confirmed and v.table.best == advice.policy and not self.disturbed(i)
        ]  # fmt: skip

    def disturbed(self, i: int) -> bool:
        """Whether the advised length's speedup differs by over AGREES in the policy's run.

        Two runs of the same prompts and length differ by more where something else ran meanwhile.
        """
        pair = self.verified[i].table, self.policies[i][1].table
        length = self.best[i].drafting
        first, second = (
            next(row.measured for row in table.rows if row.name == length) for table in pair
        )
        return not 1 / AGREES <= first / second <= AGREES

    @property
    def drafts(self) -> bool:
        """Whether any batch size drafts."""
        return any(advice.k for advice in self.best)

    @property
    def prompts_needed(self) -> int | None:
        """Prompts of a live test that would tell the choice from plain decoding; None: unknown."""
        advice, name = self.best[0], self.winner.name
        policies, cost = [f"fixed:{advice.drafting}"], self.winner.cost_at(advice.batch)
        try:
            (found,) = compare({name: self.winner.recording}, policies, cost, "fixed:0")
        except ValueError:  # under 8 prompts
            return None
        return found.prompts_needed

    def sentences(self) -> list[str]:
        """The advice, a sentence a batch size, and how many prompts a live test needs."""
        drafter, told = drafter_text(draft_description(self.winner.draft)), []
        for i, advice in enumerate(self.best):
            choice = f"K = {advice.k}" if advice.k else f"do not draft; K = {advice.drafting}"
            sentence = (
                f"{in_flight(advice.batch)}: {choice} of {drafter}, predicted "
                f"{figure(advice.speedup, advice.interval)}"
            )
            if self.verified:
                table = self.verified[i].table
                row = next(r for r in table.rows if r.name == advice.drafting)
                sentence += (
                    f", measured on other prompts {figure(row.measured, row.measured_interval)}; "
                    f"{advised(table)[1]}"
                )
            told.append(sentence)
        told += [self._policy_sentence(i, *policy) for i, policy in enumerate(self.policies)]
        if (needed := self.prompts_needed) is not None:
            told.append(f"A live test against plain decoding would need {needed} prompts")
        return told

    def _policy_sentence(self, i: int, advice: Advice, checked: Verified) -> str:
        row = next(r for r in checked.table.rows if r.name == advice.policy)
        faster = "faster" if advice in self.faster_policies else "no faster"
        if self.disturbed(i):
            faster = "not settled, since two runs of K disagree (delete its rows, run again idle)"
        return (
            f"{in_flight(advice.batch)}: the policy {advice.policy} in the engine is {faster}, "
            f"predicted {figure(advice.speedup, advice.interval)}, measured "
            f"{figure(row.measured, row.measured_interval)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "engine": self.plan.engine.name,
            "drafter": self.winner.name,
            "advice": [asdict(advice) for advice in self.best],
            "verified": [checked.to_dict() for checked in self.verified],
            "confirmed": self.confirmed,
            "tried": [asdict(advice) for advice in self.tried],
            "by_task": {task: asdict(advice) for task, advice in self.by_task.items()},
            "policies": [
                asdict(advice) | {"verified": checked.to_dict()}
                for advice, checked in self.policies
            ],
            "prompts_needed": self.prompts_needed,
        }

    def tables(self) -> "list[DataFrame]":
        """Drafters compared, lengths verified, and lengths by task."""
        formats = {PREDICTED: ".2f", MEASURED: ".2f"}
        tried = [(a.candidate, a.batch, a.drafting, a.interval or a.speedup) for a in self.tried]
        tasks = [(task, a.drafting, a.interval or a.speedup) for task, a in self.by_task.items()]
        made = [
            frame(
                tried, ("drafter", "in flight", "best K", PREDICTED), formats=formats,
                title="Drafters, by replay of the engine's texts",
            )
        ]  # fmt: skip
        for title, held in (
            ("Verified on held-out prompts", self.verified),
            ("Policies next to the choice, in runs of their own", [c for _, c in self.policies]),
        ):
            rows = [
                (
                    checked.batch, str(row.name), row.predicted_interval or row.predicted,
                    row.measured_interval or row.measured,
                )
                for checked in held
                for row in checked.table.rows
            ]  # fmt: skip
            if rows:
                columns = ("in flight", "K or policy", PREDICTED, MEASURED)
                made.append(frame(rows, columns, names=2, title=title, formats=formats))
        title = f"By task, requests in flight: {self.best[0].batch}"
        return [*made, frame(tasks, ("task", "best K", PREDICTED), title=title, formats=formats)]


def in_flight(batch: int) -> str:
    """'4 requests in flight'."""
    return f"{batch} request{'s' * (batch > 1)} in flight"


def figure(value: float, interval: Estimate | None) -> str:
    """'1.51 [1.39, 1.66]'."""
    return f"{value:.2f}" + (f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else "")


def by_task(
    plan: AdvicePlan, winner: Candidate, rows: Sequence[Row], tasks: Mapping[str, str]
) -> dict[str, Advice]:
    """The best length of each task's texts at the smallest batch size that they fill."""
    size, found = plan.batches[0], {}
    for task in dict.fromkeys(tasks.values()):
        own = [row for row in rows if tasks[row.request.id] == task]
        if len(own) >= size:
            found[task] = choose_length(plan, winner, own, size)
    return found


def choose(
    plan: AdvicePlan,
    drafts: Sequence[Draft],
    rows: Sequence[Row],
    tasks: Mapping[str, str],
    record: RecordModel,
    cost_of: Callable[[Draft], CostModel | CostTable],
    tell: Callable[[str], None],
) -> tuple[Found, list[Candidate]]:
    """(the best drafter with its lengths, unverified, all candidates); their files are written."""
    candidates, costs = [], dict[str, CostModel | CostTable]()
    for draft in drafts:
        name = draft_name(draft)
        kind = "ngram" if isinstance(draft, NgramDraft) else name
        if kind not in costs:
            costs[kind] = cost_of(draft)
        trace = record_drafts(plan, draft, rows, tasks, record)
        trace.save(plan.folder / f"{name}.parquet")
        costs[kind].to_json(plan.folder / f"{name}.cost.json")
        candidates.append(Candidate(name, draft, trace, costs[kind], lengths_taken(plan, draft)))
    tell(f"3/4 replay of {len(candidates)} drafters")
    tried = [choose_length(plan, c, rows, size) for size in plan.batches for c in candidates]
    smallest = [advice for advice in tried if advice.batch == plan.batches[0]]
    name = max(smallest, key=lambda advice: advice.speedup).candidate
    winner = next(candidate for candidate in candidates if candidate.name == name)
    best = [advice for advice in tried if advice.candidate == name]
    return Found(plan, winner, best, tried, (), by_task(plan, winner, rows, tasks)), candidates


def confirm(
    found: Found,
    rows: Sequence[Row],
    held_out: Sequence[Request],
    run: RunPlan,
    record: RecordModel,
    tell: Callable[[str], None],
) -> Found:
    """The advice with what held-out prompts measure, and the best policy next to it."""
    plan, winner = found.plan, found.winner
    verified = [verify(plan, winner, advice, held_out, run, record) for advice in found.best]
    policies = []
    for advice in found.best:
        if (steering := choose_policy(plan, winner, rows, advice.batch)) is not None:
            tell(f"4/4 {plan.engine.name} runs {steering.policy}, next to the choice")
            ran = verify(plan, winner, advice, held_out, run, record, steering)
            policies.append((steering, ran))
    return replace(found, verified=verified, policies=policies)


def write_setting(found: Found) -> Path | None:
    """The engine's setting by batch size; None where none drafts, or simspec writes none."""
    name, folder, winner = found.plan.engine.name, found.plan.folder, found.winner
    out = folder / SETTINGS.get(name, "setting.json")
    if name not in EXPORTS or not found.drafts:
        out.unlink(missing_ok=True)  # of an earlier call
        return None
    recording, cost = folder / f"{winner.name}.parquet", folder / f"{winner.name}.cost.json"
    paths = {winner.name: recording}
    evidence, _ = gather(paths, str(cost))
    schedule = Schedule(tuple(a.batch for a in found.best), tuple(a.k for a in found.best))
    nan, prompts = float("nan"), winner.recording.sequences
    gains = tuple(a.interval or Estimate(a.speedup, nan, nan, 0.95, prompts) for a in found.best)
    choice = Choice(tuple(f"fixed:{a.k}" for a in found.best), schedule, gains, True)
    draft, settings = winner.draft, Export(name, (str(recording),), out, str(cost))
    if isinstance(draft, ModelDraft):
        settings = replace(settings, draft_model=str(draft.model))
    write_choice(settings, evidence, choice, paths, "simspec advise")
    return out


def write_policy(found: Found) -> Path | None:
    """vLLM's arguments for the policy that won at the smallest batch size; None: none won."""
    won = found.faster_policies
    out = found.plan.folder / "policy.json"
    if not won:
        out.unlink(missing_ok=True)  # of an earlier call
        return None
    draft = start_options(replace(found.plan.settings, draft=steered(found.winner, won[0].batch)))
    started = draft["draft"]
    write_json(
        out,
        {
            "speculative_config": {
                "method": "custom_class",
                "model": started["class"],
                "num_speculative_tokens": started["k"],
            },
            "additional_config": {"simspec": started["proposer"] | {"policy": won[0].policy}},
        },
    )
    return out


def write_report(found: Found, candidates: Sequence[Candidate], setting: Path | None) -> None:
    """report.html: the advice, what confirms it, and the page of every recording."""
    plan = found.plan
    costs = {c.name: c.cost_at(plan.batches[0]) for c in candidates}
    about = f"{plan.engine.name}, {plan.settings.model.name}"
    notes = [
        "What replay says of each recording: whole texts at the same costs. The engine drafts "
        "nothing in its first pass, which its own figures leave out, and these count."
    ]
    advice = [(about, sentence) for sentence in found.sentences()]
    code = {} if setting is None else {"The engine's setting": setting.read_text(encoding="utf-8")}
    figures = list(all_figures({c.name: c.recording for c in candidates}, costs))
    html = page_of(figures, DEFAULTS, notes, advice, found.tables(), code)
    with replacing(plan.folder / "report.html") as temporary:
        temporary.write_text(html, encoding="utf-8")
