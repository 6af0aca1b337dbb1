"""From prompts to a setting that the engine has confirmed: `simspec advise`.

The engine writes texts, drafts are recorded along them without a target, passes are timed, replay
chooses drafter and draft length for every batch size, and the engine runs the choice on other
prompts. Every request is kept once it has finished; the same call continues.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from real.engines import measure
from real.engines.adapter import (
    Engine,
    EngineSettings,
    ModelDraft,
    NgramDraft,
    PolicyDraft,
    draft_description,
    served_form,
    start_options,
)
from real.engines.compare import compare_rows, end_tokens, rule_of, written_text
from real.engines.rows import ROWS, Plan, Row, lock, read_rows
from real.engines.summary import MEASURED, PREDICTED, advised, drafter_text
from real.engines.worker import Finished, Request
from simspec.cost.gate import PriceError, settled
from simspec.cost.model import CostModel
from simspec.cost.table import CostTable
from simspec.cost.why import Why, why_frame
from simspec.engines import Export
from simspec.engines.choice import Choice, Schedule, best_length, gather
from simspec.engines.exports import EXPORTS, vllm_notes, write_choice
from simspec.engines.steps import in_flight
from simspec.engines.text import WrittenText, record_texts, text_budgets
from simspec.numerics.stats import Estimate
from simspec.output.files import replacing, write_json
from simspec.output.frames import DataFrame, frame, json_data
from simspec.policy.policy import PolicyError
from simspec.reports.comparison import DEFAULTS
from simspec.reports.page import all_figures, page_of
from simspec.trace.recordings import measured_on
from simspec.trace.trace import Trace, TraceError

Draft = NgramDraft | ModelDraft
RunPlan = Callable[[EngineSettings, Sequence[Request], Plan, Path, bool | None], Any]
"""Runs a plan into a file of rows, or what the file lacks of it."""
RecordModel = Callable[[ModelDraft, Sequence[Any], int, Sequence[int]], Trace]
"""(draft model, texts, K, end tokens) -> recording."""
COST_PROMPTS, COST_BLOCKS, COST_BUDGET = 4, 8, 24
"""Of the costs' runs: prompts at least; timing blocks of a prompt or a batch, least; new tokens."""
NEIGHBORS = 2
"""Draft lengths this far from the advised one are verified too."""
MOST_LOSS, SURE = 0.03, 0.95
"""A setting loses at most this share of the best length's speed, in this share of what the costs'
replicates allow; otherwise nothing is settled."""
TEXTS = "texts.rows.jsonl"
SETTINGS = {"llamacpp": "setting.txt"}
"""Files of engines whose settings are no JSON."""
IDLE, MORE = "run again on an idle machine", "give more prompts"
LOCK, RESULTS = ".advise.lock", ("setting.json", "setting.txt", "policy.json")
"""The file that one process locks, and what an unsettled advice removes."""


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
    policies: tuple[str, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A drafter along the engine's texts, with its costs and the lengths that the engine takes."""

    name: str
    draft: Draft
    recording: Trace
    cost: CostModel | CostTable
    lengths: tuple[int, ...]

    @property
    def drafts(self) -> Trace | None:
        """The recording of a model's drafts; None for n-grams, which follow from the text."""
        return self.recording if isinstance(self.draft, ModelDraft) else None

    def cost_at(self, batch: int) -> CostModel:
        """The costs at that batch size."""
        return measure.cell_at(self.cost, batch)


@dataclass(frozen=True)
class Advice:
    """The best draft length, or policy, of one drafter at one batch size, by replay.

    k: 0 for "do not draft"; drafting: the best length above 0, or a policy's longest; speedup: of
    `drafting` over plain decoding; interval: None for too few prompts or timing blocks; loss: the
    share of the best length's speed that k may lose, see SURE; why: where a pass of `drafting`
    goes, None of a policy.
    """

    candidate: str
    batch: int
    k: int
    drafting: int
    speedup: float
    interval: Estimate | None
    policy: str = ""
    loss: float = 0.0
    why: Why | None = None


@dataclass(frozen=True)
class Verified:
    """Held-out prompts on the engine at the advised length, its neighbors and plain decoding.

    loss: as of `Advice`, by replay of these prompts' texts and those that it was chosen on.
    """

    batch: int
    table: measure.SpeedupTable
    passes: int
    exceptions: int
    loss: float = 0.0


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Makes the folder, which one process works in; ValueError where another does.

    After a PriceError no setting is left, and the next call times again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "wb") as file:
        lock(file, f"another advise is running in {folder}: wait for it, or give another --out")
        try:
            yield
        except PriceError:
            time_again(folder)
            raise


def time_again(folder: Path) -> None:
    """Removes settings of an earlier call, and sets aside the rows that say seconds."""
    for name in RESULTS:
        (folder / name).unlink(missing_ok=True)
    for kind in ("cost", "verify", "policy"):
        for path in folder.glob(f"*.{kind}{ROWS}"):
            path.replace(path.with_name(path.name.removesuffix(ROWS) + f".unsettled{ROWS}"))


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
    path = plan.folder / TEXTS
    run(replace(plan.settings, batch=1), requests, Plan((0,), 1), path, False)
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
    plan: AdvicePlan, draft: Draft, texts: Sequence[Row], run: RunPlan
) -> CostModel | CostTable:
    """Costs of the drafter's passes at every batch size on the longer texts, kept with their rows.

    n-gram drafters share one file: their drafts cost nothing, and junk tokens are verified where
    the engine can force them.
    """
    shared = isinstance(draft, NgramDraft)
    name, runs = "ngram" if shared else draft_name(draft), []
    if shared:
        least, most = plan.engine.ngrams[0]
        draft = NgramDraft(plan.depth, least, most)
    lengths = sorted((len(row.finished.tokens) for row in texts), reverse=True)
    for batch in plan.batches:
        groups = max(min(-(-COST_PROMPTS // batch), len(texts) // batch), 1)
        count = min(groups * batch, len(texts))
        least = lengths[max(count, len(texts) // 2) - 1]
        long = [row.request for row in texts if len(row.finished.tokens) >= least]
        budget = COST_BUDGET if batch == 1 else COST_BUDGET // 2  # of more blocks
        chosen = [long[i * len(long) // count] for i in range(count)]
        short = [replace(r, max_tokens=min(r.max_tokens, budget)) for r in chosen]
        settings = replace(plan.settings, draft=replace(draft, k=plan.depth), batch=batch)
        ks = (0, *lengths_taken(plan, draft))
        passes = Plan(ks, -(-COST_BLOCKS // groups), batch, batch)
        path = plan.folder / f"{name}.b{batch}.cost{ROWS}"
        run(settings, short, passes, path, None)
        runs.append(read_rows(path))
    return measure.cost_table(runs).simplest()


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
    found = all_lengths(plan, candidate, rows, batch, candidate.drafts)
    row = found[best_length([1 / row.speedup for row in found])]
    k, drafting = row.arm[0] if row.speedup > 1 else 0, row.arm[0]
    loss, why = possible_loss(k, found), row.why(candidate.cost, batch)
    return Advice(candidate.name, batch, k, drafting, row.speedup, row.interval, "", loss, why)


def all_lengths(
    plan: AdvicePlan, candidate: Candidate, rows: Sequence[Row], batch: int, recording: Trace | None
) -> list[measure.Predicted]:
    """Each length of the candidate along these rows' texts."""
    about, arms = _about(plan, candidate.draft, batch), [(k, "") for k in candidate.lengths]
    return measure.predicted_speedups(about, rows, candidate.cost, arms, recording)


def possible_loss(k: int, *found: Sequence[measure.Predicted]) -> float:
    """The share of the best length's speed that k loses, at SURE of the costs' replicates.

    found: of several sets of texts, which count together.
    """
    plain = np.sum([part[0].plain for part in found], axis=0)
    spent = {0: plain} | {
        same[0].arm[0]: np.sum([row.seconds for row in same], axis=0) for same in zip(*found)
    }
    best = np.min([*spent.values()], axis=0)
    return float(np.quantile(1 - best / spent[k], SURE))


def choose_policy(
    plan: AdvicePlan, candidate: Candidate, rows: Sequence[Row], batch: int
) -> Advice | None:
    """The policy of the best replay; None for an engine without policies, or where none is tried.

    A policy that reads what the drafter does not show is left out.
    """
    if "policy" not in plan.engine.methods or not plan.policies:
        return None
    draft, k = steered(candidate, batch), max(candidate.lengths)
    about = _about(plan, draft, batch) | {"seed": plan.settings.seed}
    arms = [(k, text) for text in plan.policies]
    found = []
    for arm in arms:
        with suppress(PolicyError, TraceError):
            found += measure.predicted_speedups(
                about, rows, candidate.cost, [arm], candidate.drafts
            )
    if not found:
        return None
    best = max(found, key=lambda row: row.speedup)
    k, policy = best.arm
    return Advice(candidate.name, batch, k, k, best.speedup, best.interval, policy)


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
    texts: Sequence[Row],
    requests: Sequence[Request],
    run: RunPlan,
    record_model: RecordModel,
    steering: Advice | None = None,
) -> Verified:
    """Runs the advice, its neighbors and plain decoding on these prompts, which were not seen.

    texts: that it was chosen on; steering: a policy's advice, which then runs instead of the
    neighbors, all by simspec's proposer in the engine; `table.confirmed` says whether no policy is
    faster, beyond noise.
    """
    batch, near = advice.batch, {advice.drafting + step for step in (-NEIGHBORS, 0, NEIGHBORS)}
    ks = (0, *(k for k in candidate.lengths if k in near))
    draft: Draft | PolicyDraft = replace(candidate.draft, k=max(ks))
    policies: tuple[str, ...] = ()
    if steering is not None:
        ks, policies = tuple(sorted({0, advice.drafting, steering.k})), (steering.policy,)
        draft = steered(candidate, batch)
    settings = replace(plan.settings, draft=draft, batch=batch)
    passes = Plan(ks, 1, 4 if batch == 1 else batch, batch, policies=policies)
    kind = "policy" if policies else "verify"
    path = plan.folder / f"{candidate.name}.b{batch}.{kind}{ROWS}"
    run(settings, requests[: len(requests) // batch * batch], passes, path, False)
    about, rows = read_rows(path)
    recording, plain = None, [*{row.request.id: row for row in rows if row.k == 0}.values()]
    if isinstance(candidate.draft, ModelDraft):
        recording = record_drafts(plan, candidate.draft, plain, {}, record_model)
    table = measure.speedup_table(about, rows, candidate.cost, recording, advice.k)
    result = compare_rows(about, rows, recording)
    loss = possible_loss(
        advice.k,
        all_lengths(plan, candidate, texts, batch, candidate.drafts),
        all_lengths(plan, candidate, plain, batch, recording),
    )
    return Verified(batch, table, result.passes, len(result.exceptions), loss)


@dataclass(frozen=True)
class Found:
    """The advice on a drafter by batch size, what else was tried, and the engine's own figures.

    best, verified: the winner's length at each batch size, and that on held-out prompts; tried:
    every drafter at every batch size; by_task: the best length of each task's texts, at the
    smallest batch; policies: the best at each batch size, and how it ran next to the length;
    remarks: faults of the texts that all of it rests on.
    """

    plan: AdvicePlan
    winner: Candidate
    best: Sequence[Advice]
    tried: Sequence[Advice]
    verified: Sequence[Verified]
    by_task: Mapping[str, Advice]
    policies: Sequence[tuple[Advice, Verified]] = ()
    remarks: Sequence[str] = ()

    @property
    def confirmed(self) -> bool | None:
        """Whether all is settled, every batch size is confirmed, and every pass is the replay's.

        None: nothing ran, and the costs do not forbid an advice.
        """
        if self.doubts or not self.verified:
            return False if self.doubts else None
        exact = not any(v.exceptions for v in [*self.verified, *(v for _, v in self.policies)])
        return exact and all(v.table.confirmed for v in self.verified)

    @property
    def doubts(self) -> list[str]:
        """Why nothing is settled, so that no setting is written; empty where all is."""
        told = [f"{why}; {IDLE}"] if (why := measure.doubt_of(self.winner.cost)) else []
        for i, advice in enumerate(self.best):
            checked = self.verified[i] if self.verified else None
            again = self.policies[i][1].table if self.policies else None
            told += doubts_of(advice, checked, again)
        return told

    @property
    def faster_policies(self) -> list[Advice]:
        """Policies that ran faster than the advised length, beyond noise, where all is settled."""
        return [
            advice for advice, v in self.policies
            if not v.table.confirmed and v.table.best == advice.policy and not self.doubts
        ]  # fmt: skip

    @property
    def settled(self) -> bool:
        """Whether a setting may be written: no doubt, and no length that ran is faster."""
        return not self.doubts and all(v.table.confirmed for v in self.verified)

    @property
    def drafts(self) -> bool:
        """Whether any batch size drafts."""
        return any(advice.k for advice in self.best)

    def sentences(self) -> list[str]:
        """The advice, a sentence a batch size, and what it rests on."""
        drafter, told = drafter_text(draft_description(self.winner.draft)), []
        for i, advice in enumerate(self.best):
            choice = f"K = {advice.k}" if advice.k else f"do not draft; K = {advice.drafting}"
            sentence = (
                f"{in_flight(advice.batch)}: {choice} of {drafter}, predicted "
                f"{figure(advice.speedup, advice.interval)}"
            )
            if self.verified:
                table = self.verified[i].table
                row, state = table.row(advice.drafting), advised(table)[1]
                sentence += (
                    f", measured on other prompts {figure(row.measured, row.measured_interval)}; "
                    f"{'not settled' if table.confirmed and self.doubts else state}"
                )
            told.append(sentence)
        told.append(f"Costs are of {measured_on(self.winner.cost)}")
        if self.plan.engine.name == "vllm":
            model = getattr(self.winner.draft, "model", None)
            method = "ngram" if model is None else served_form(model)
            told += vllm_notes(method, measure.cells_of(self.winner.cost))
        told += [
            advice.why.sentence for advice in self.best
            if advice.why is not None and advice.why.disappoints and not self.doubts
        ]  # fmt: skip
        told += [f"Not settled: {why}" for why in self.doubts]
        return told + [self._policy_sentence(*policy) for policy in self.policies]

    def _policy_sentence(self, advice: Advice, checked: Verified) -> str:
        row = checked.table.row(advice.policy)
        faster = "faster" if advice in self.faster_policies else "no faster"
        faster = "not settled" if self.doubts else faster
        return (
            f"{in_flight(advice.batch)}: the policy {advice.policy} in the engine is {faster}, "
            f"predicted {figure(advice.speedup, advice.interval)}, measured "
            f"{figure(row.measured, row.measured_interval)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        found: dict[str, Any] = {
            "engine": self.plan.engine.name,
            "drafter": self.winner.name,
            "advice": [asdict(advice) for advice in self.best],
            "verified": list(self.verified),
            "confirmed": self.confirmed,
            "not_settled": self.doubts,
            "tried": [asdict(advice) for advice in self.tried],
            "by_task": {task: asdict(advice) for task, advice in self.by_task.items()},
            "policies": [asdict(advice) | {"verified": ran} for advice, ran in self.policies],
            "remarks": list(self.remarks),
        }
        return dict(json_data(found))  # NaN is no JSON

    def tables(self) -> list[DataFrame]:
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
        if not self.doubts:
            made.append(why_frame([advice.why for advice in self.best if advice.why is not None]))
            made[-1].attrs["notes"] = []  # `sentences` has those that matter
        title = f"By task, requests in flight: {self.best[0].batch}"
        return [*made, frame(tasks, ("task", "best K", PREDICTED), title=title, formats=formats)]


def doubts_of(
    advice: Advice, checked: Verified | None, again: measure.SpeedupTable | None
) -> list[str]:
    """What does not settle the advice at one batch size; again: a second run of its prompts."""
    name, told = f"K = {advice.k}" if advice.k else "plain decoding", []
    loss = max(advice.loss, 0.0 if checked is None else checked.loss)
    if loss > MOST_LOSS:
        told.append(f"{name} may lose {loss:.0%} against another length; {IDLE}, or {MORE}")
    if advice.k and advice.interval is not None and advice.interval.low <= 1:
        told.append(f"{name} may gain nothing: {figure(advice.speedup, advice.interval)}; {MORE}")
    if checked is None:
        return told
    table, drafted = checked.table, checked.table.row(advice.drafting)
    k = f"K = {advice.drafting}"
    if not settled(drafted.predicted, drafted.measured):
        told.append(
            f"{k} was predicted {drafted.predicted:.2f} and gave {drafted.measured:.2f}; {IDLE}"
        )
    if drafted.halves is not None and not settled(*drafted.halves):
        first, last = drafted.halves
        told.append(
            f"halves of the run of {k} gave {first:.2f} and {last:.2f} of its prediction; {IDLE}"
        )
    for row in () if again is None else again.rows:
        held = [one.measured for one in table.rows if row.k and one.name == row.name]
        told += [
            f"two runs of K = {row.k} gave {first:.2f} and {row.measured:.2f}; {IDLE}"
            for first in held if not settled(first, row.measured)
        ]  # fmt: skip
    own, best, found = table.row(advice.k), table.row(table.best), drafted.measured_interval
    gains = [getattr(best, f) / getattr(own, f) - 1 for f in ("measured", "predicted")]
    if table.confirmed and min(gains[0], gains[0] - gains[1]) > MOST_LOSS:
        told.append(
            f"{measure.arm_text(best.name)} measured {gains[0]:.0%} faster than {name}, predicted "
            f"{gains[1]:.0%}; {IDLE}"
        )
    if advice.k and found is not None and found.low <= 1:
        told.append(f"{name} may gain nothing: measured {figure(own.measured, found)}; {MORE}")
    return told


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
        if sum(len(row.finished.tokens) > 1 for row in own) >= size:
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
    verified = [verify(plan, winner, advice, rows, held_out, run, record) for advice in found.best]
    policies = []
    for advice in found.best:
        if (steering := choose_policy(plan, winner, rows, advice.batch)) is not None:
            tell(f"4/4 {plan.engine.name} runs {steering.policy}, next to the choice")
            ran = verify(plan, winner, advice, rows, held_out, run, record, steering)
            policies.append((steering, ran))
    return replace(found, verified=verified, policies=policies)


def write_setting(found: Found) -> Path | None:
    """The engine's setting by batch size; None where none drafts, or simspec writes none."""
    name, folder, winner = found.plan.engine.name, found.plan.folder, found.winner
    out = folder / SETTINGS.get(name, "setting.json")
    if name not in EXPORTS or not found.drafts or not found.settled:
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


def write_served(
    folder: Path, about: str, table: DataFrame, sentences: Sequence[str], setting: Any
) -> None:
    """report.html of a running server, and setting.json where lengths are settled."""
    out, code = folder / "setting.json", {}
    out.unlink(missing_ok=True)  # of an earlier call
    if setting is not None:
        write_json(out, setting)
        code["In the server's --speculative-config"] = out.read_text(encoding="utf-8")
    advice = [(about, sentence) for sentence in sentences]
    _write_page(folder, page_of([], DEFAULTS, table.attrs["notes"], advice, [table], code))


def write_report(found: Found, candidates: Sequence[Candidate], setting: Path | None) -> None:
    """report.html: the advice, what confirms it, and the page of every recording."""
    plan = found.plan
    costs = {c.name: c.cost_at(plan.batches[0]) for c in candidates}
    about = f"{plan.engine.name}, {plan.settings.model.name}"
    notes = [
        *found.remarks,
        "What replay says of each recording: whole texts at the same costs. The engine drafts "
        "nothing in its first pass, which its own figures leave out, and these count.",
    ]
    advice = [(about, sentence) for sentence in found.sentences()]
    code = {} if setting is None else {"The engine's setting": setting.read_text(encoding="utf-8")}
    figures = list(all_figures({c.name: c.recording for c in candidates}, costs))
    html = page_of(figures, DEFAULTS, notes, advice, found.tables(), code)
    _write_page(plan.folder, html)


def _write_page(folder: Path, html: str) -> None:
    with replacing(folder / "report.html") as temporary:
        temporary.write_text(html, encoding="utf-8")
