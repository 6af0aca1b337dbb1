"""Results of `simspec advise`: sentences, tables, the engine's setting and one HTML page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from real.engines.adapter import NgramDraft, draft_description, start_options
from real.engines.advise import (
    Advice,
    AdvicePlan,
    Candidate,
    PolicyAdvice,
    Verified,
    choose_length,
    steered,
)
from real.engines.rows import Row
from real.engines.summary import advised, drafter_text
from simspec.cost.model import CostModel
from simspec.cost.table import CostTable
from simspec.engines import Export
from simspec.engines.choice import Choice, Schedule, gather
from simspec.engines.exports import EXPORTS, write_choice
from simspec.numerics.stats import Estimate
from simspec.output.files import replacing, write_json
from simspec.output.table import Table
from simspec.page import layout
from simspec.page.report import all_figures, page_of
from simspec.reports.comparison import DEFAULTS, compare

AGREES = 1.1
"""Largest ratio of the speedups of one length in two runs of the same prompts that is noise."""
SETTINGS = {"llamacpp": "setting.txt"}
"""Files of engines whose settings are no JSON."""


@dataclass(frozen=True)
class Found:
    """The advice on a drafter by batch size, what else was tried, and the engine's own figures.

    | field | meaning |
    | --- | --- |
    | plan, winner | what ran; the drafter predicted fastest at the smallest batch |
    | best, verified | its length at each batch size, and that on held-out prompts |
    | tried | every drafter at every batch size |
    | by_task | the best length of each task's texts, at the smallest batch |
    | policies | the best policy at each batch size, and how it ran next to the length |
    """

    plan: AdvicePlan
    winner: Candidate
    best: Sequence[Advice]
    tried: Sequence[Advice]
    verified: Sequence[Verified]
    by_task: Mapping[str, Advice]
    policies: Sequence[tuple[PolicyAdvice, Verified]] = ()

    @property
    def confirmed(self) -> bool | None:
        """Whether every batch size is confirmed, and every pass is the replay's; None: not run."""
        if not self.verified:
            return None
        exact = not any(v.exceptions for _, v in self.policies)
        return exact and all(v.table.confirmed and not v.exceptions for v in self.verified)

    @property
    def faster_policies(self) -> list[PolicyAdvice]:
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
        policies, cost = [f"fixed:{advice.drafting}"], cost_at(self.winner, advice.batch)
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

    def _policy_sentence(self, i: int, advice: PolicyAdvice, checked: Verified) -> str:
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

    def tables(self) -> list[Table]:
        """Drafters compared, lengths verified, and lengths by task."""
        drafters = [
            (a.candidate, str(a.batch), str(a.drafting), figure(a.speedup, a.interval))
            for a in self.tried
        ]
        runs = (
            ("Verified on held-out prompts", self.verified),
            ("Policies next to the choice, in runs of their own", [c for _, c in self.policies]),
        )
        tasks = [
            (task, str(a.drafting), figure(a.speedup, a.interval))
            for task, a in self.by_task.items()
        ]
        predicted = "predicted [95%]"
        return [
            Table(
                ("drafter", "in flight", "best K", predicted), drafters,
                title="Drafters, by replay of the engine's texts",
            ),
            *(
                Table(("in flight", "K or policy", predicted, "measured [95%]"), rows, title=title)
                for title, held in runs
                if (rows := [row for checked in held for row in _verified_rows(checked)])
            ),
            Table(
                ("task", "best K", predicted), tasks,
                title=f"By task, requests in flight: {self.best[0].batch}",
            ),
        ]  # fmt: skip


def _verified_rows(checked: Verified) -> list[tuple[str, ...]]:
    return [
        (
            str(checked.batch), str(row.name), figure(row.predicted, row.predicted_interval),
            figure(row.measured, row.measured_interval),
        )
        for row in checked.table.rows
    ]  # fmt: skip


def in_flight(batch: int) -> str:
    """'4 requests in flight'."""
    return f"{batch} request{'s' * (batch > 1)} in flight"


def figure(value: float, interval: Estimate | None) -> str:
    """'1.51 [1.39, 1.66]'."""
    return f"{value:.2f}" + (f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else "")


def cost_at(candidate: Candidate, batch: int) -> CostModel:
    """The candidate's costs at that batch size."""
    cost = candidate.cost
    return cost.at(batch) if isinstance(cost, CostTable) else cost


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
    if isinstance(draft, NgramDraft):
        settings = replace(settings, ngram=draft.ngram_max, least_ngram=draft.ngram_min)
    else:
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
    costs = {c.name: cost_at(c, plan.batches[0]) for c in candidates}
    about = f"{plan.engine.name}, {plan.settings.model.name}"
    first = [layout.advice(about, sentence) for sentence in found.sentences()]
    for table in found.tables():
        first += [layout.heading(table.title, 3), table.html()]
    if setting is not None:
        text = setting.read_text(encoding="utf-8")
        first += [layout.heading("The engine's setting", 3), layout.code(text)]
    first += [
        layout.heading("What replay says of each recording"),
        layout.paragraph(
            "Whole texts at the same costs. The engine drafts nothing in its first pass, which "
            "the figures above leave out, and these count.",
            quiet=True,
        ),
    ]
    figures = list(all_figures({c.name: c.recording for c in candidates}, costs))
    html = page_of(figures, DEFAULTS, (), first)
    with replacing(plan.folder / "report.html") as temporary:
        temporary.write_text(html, encoding="utf-8")
