"""An engine's passes against the replay under its convention, pass by pass.

Requests of a wave start together and share every pass until they end.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from real.engines.convention import (
    CONVENTIONS,
    Convention,
    Sequenced,
    clipped,
    engine_passes,
    scheduled_passes,
)
from real.engines.rows import Arm, Row
from simspec.cost.model import CostModel
from simspec.engines.exports import lengths_by_batch
from simspec.engines.ngram import NgramRule, SuffixRule, ngram_rule
from simspec.engines.text import WrittenText, record_texts
from simspec.engines.vllm_proposer import draw_address, served_policy, suffix_rule
from simspec.policies.fixed import fixed
from simspec.trace.quantization import decode_margin
from simspec.trace.trace import Trace

COUNTERS = "passes", "num_drafts", "num_draft_tokens", "num_accepted_tokens"


def convention_of(about: Mapping[str, Any]) -> Convention:
    """The convention of a run's engine and drafting method; ValueError for an unknown engine."""
    draft = about["draft"] or {}
    name = about["engine"]
    if f"{name}_{draft.get('method')}" in CONVENTIONS:
        name = f"{name}_{draft['method']}"
    if name not in CONVENTIONS:
        raise ValueError(
            f"engine {about['engine']!r} has no convention, expected one of "
            f"{', '.join(CONVENTIONS)}"
        )
    return CONVENTIONS[name]


def rule_of(about: Mapping[str, Any]) -> NgramRule | SuffixRule | None:
    """The rule by which a run drafts a text's own tokens; None for a model, a head or no draft."""
    draft = about["draft"] or {}
    weights = draft.get("model"), draft.get("eagle")
    if draft.get("method") not in ("ngram", "policy") or weights != (None, None):
        return None
    if draft.get("suffix") is not None:
        return suffix_rule(draft["suffix"], max(about["plan"]["ks"]))
    return ngram_rule(f"{about['engine']}:{draft['ngram_min']},{draft['ngram_max']}")


@dataclass(frozen=True)
class Difference:
    """A request whose text or passes differ from what was predicted.

    kind: "text" where its tokens differ from plain decoding's, or the recording's, else "passes";
    place: the token or pass that differs first, from 0; margin: the target's recorded one there,
    None where unknown; near_tie: it is below the tolerance that audits have for the run's dtype,
    so that rounding decides.
    """

    id: str
    k: int | str
    block: int
    kind: str
    place: int
    engine: Any
    predicted: Any
    margin: float | None = None
    near_tie: bool = False


@dataclass(frozen=True)
class RunCheck:
    """Rows of a run against the replay: how many requests and passes were compared."""

    requests: int
    passes: int
    # {k or policy: {counter: [engine, predicted]}}, counts within the text
    counters: dict[int | str, dict[str, list[int]]]
    differences: tuple[Difference, ...]
    # requests that no recording covers, or whose draft lengths hang on missing ones
    left_out: int = 0
    # the settings keep texts equal to plain ones; else other texts are no exceptions
    exact: bool = True

    @property
    def exceptions(self) -> list[Difference]:
        """Differences that neither a near-tie nor an engine's fast settings explain."""
        return [
            difference
            for difference in self.differences
            if not difference.near_tie and (self.exact or difference.kind != "text")
        ]

    @property
    def explained(self) -> str:
        """The differences that are no exceptions, in words."""
        near = sum(difference.near_tie for difference in self.differences)
        other = len(self.differences) - len(self.exceptions) - near
        return f"{near} near-ties" + (f", {other} texts that differ under --fast" if other else "")

    @property
    def equal(self) -> bool:
        """Whether everything was compared and only near-ties differ."""
        return self.requests > 0 and not self.exceptions

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"equal": self.equal, "exceptions": len(self.exceptions)}


def compare_rows(
    about: Mapping[str, Any], rows: Sequence[Row], recording: Trace | None = None
) -> RunCheck:
    """Every row with drafts of the engine's own against the replay of its text.

    Drafts of a text's own tokens follow from it. Drafts of a model or a head need the drafter's
    recording of the same prompts; rows of other prompts are left out. Under a schedule the passes
    follow from all texts of a wave, in lock step. ValueError without a recording that is needed,
    and for no rows.
    """
    rows = [row for row in rows if row.force is None and row.finished.tokens]
    if not rows:
        raise ValueError("the run holds no request that the engine drafted for: run it first")
    differences = text_differences(rows, recording, about["dtype"])
    apart = {(d.id, d.k, d.block) for d in differences}
    compared = passes = left_out = 0
    arms = {arm: arm[1] or arm[0] for arm in sorted({row.arm for row in rows})}
    counters = {name: {counter: [0, 0] for counter in COUNTERS} for name in arms.values()}
    for arm, arm_name in arms.items():
        k, held = arm[0], counters[arm_name]
        own = [row for row in rows if row.arm == arm]
        follows = [row for row in own if (row.request.id, arm_name, row.block) not in apart]
        candidates = own if rule_of(about) is not None or k == 0 else follows
        if k and about.get("schedule"):
            candidates = [row for wave in whole_waves(about, candidates).values() for row in wave]
        if not candidates:
            left_out += len(own)
            continue
        kept, predicted = predicted_passes(about, candidates, arm, recording)
        left_out += len(own) - len(kept)
        for s, row in enumerate(kept):
            length = len(row.finished.tokens)
            engine, expected = clipped(row.finished.passes, length), predicted[s]
            compared, passes = compared + 1, passes + len(engine)
            differences += _pass_difference(row, engine, expected)
            for name, both in held.items():
                both[0] += _count(engine, name)
                both[1] += _count(expected, name)
    exact = about.get("exact", True) is not False
    return RunCheck(compared, passes, counters, tuple(differences), left_out, exact)


def _count(passes: Sequenced, counter: str) -> int:
    return {
        "passes": len(passes),
        "num_drafts": sum(drafted > 0 for _, drafted, _ in passes),
        "num_draft_tokens": sum(drafted for _, drafted, _ in passes),
        "num_accepted_tokens": sum(accepted for _, _, accepted in passes),
    }[counter]


def written_text(row: Row) -> WrittenText:
    """The row's prompt and output, as a text to record drafts along."""
    tokens = np.array(row.finished.tokens, np.int32)
    prompt = np.array(row.request.prompt, np.int32)
    return WrittenText(row.request.id, "text", prompt, tokens, row.request.max_tokens)


def end_tokens(rows: Sequence[Row]) -> list[int]:
    """The tokens that ended a text."""
    return sorted({r.finished.tokens[-1] for r in rows if r.finished.stopped == "end"})


def wave_sizes(about: Mapping[str, Any]) -> list[int]:
    """Requests of each group of prompts, which is a wave; ValueError where requests take turns."""
    concurrent, group = about["plan"]["concurrent"], about["plan"]["group"]
    if group > concurrent:
        raise ValueError(
            f"blocks of {group} requests run {concurrent} together, so that some start later: run "
            "again with --concurrent 2 or more, where all of a block start together"
        )
    return [min(group, about["count"] - first) for first in range(0, about["count"], group)]


def batch_size(about: Mapping[str, Any]) -> int:
    """Requests of a wave; ValueError where they take turns, or no wave has all in flight."""
    size, concurrent = max(wave_sizes(about)), int(about["plan"]["concurrent"])
    if size != concurrent:
        raise ValueError(
            f"{concurrent} requests may be in flight, and waves have {size}: run again with "
            f"--prompts {concurrent} or more"
        )
    return size


def whole_waves(about: Mapping[str, Any], rows: Sequence[Row]) -> dict[tuple[int, Arm], list[Row]]:
    """{(block, arm): rows} of the waves all of whose requests are among the rows.

    ValueError where requests take turns, or did not start in one pass.
    """
    sizes = wave_sizes(about)
    found = defaultdict(list)
    for row in rows:
        found[row.block, row.arm].append(row)
    held = {key: wave for key, wave in found.items() if len(wave) == sizes[key[0] % len(sizes)]}
    for wave in held.values():
        for session in {row.session for row in wave}:  # a wave that was killed ran twice
            lock_step([row for row in wave if row.session == session])
    return held


def lock_step(wave: Sequence[Row]) -> tuple[float, ...]:
    """Seconds of the wave's passes, the prompts' first; ValueError where they are not shared."""
    clocks = [row.finished.pass_seconds for row in wave]
    longest = max(clocks, key=len)
    if any(clock != longest[: len(clock)] for clock in clocks):
        raise ValueError(
            f"the {len(wave)} requests of block {wave[0].block} did not start in one pass: give "
            "shorter prompts, or a smaller --concurrent"
        )
    return longest


def lengths_of(about: Mapping[str, Any]) -> list[int]:
    """Draft length of a pass by its number of requests, from 0; empty without a schedule."""
    if not about.get("schedule"):
        return []
    return lengths_by_batch(about["schedule"], max(about["plan"]["ks"]), max(wave_sizes(about)))


def predicted_passes(
    about: Mapping[str, Any], rows: Sequence[Row], arm: Arm, recording: Trace | None
) -> tuple[list[Row], list[Sequenced]]:
    """(the rows that can be predicted, their passes under this arm), along the rows' own texts.

    Without a rule of n-grams or suffixes the rows' texts must be those of the recording. Under a
    schedule the rows of a block are a wave. ValueError for a policy whose state passes from request
    to request where requests take turns.
    """
    k, rule = arm[0], rule_of(about)
    if k == 0 or rule is not None:
        drafts = rule if rule is not None and k else ngram_rule("vllm")
        trace = record_texts([written_text(row) for row in rows], drafts, k or 1, end_tokens(rows))
        return list(rows), _passes(about, trace, rows, arm)
    if recording is None:
        raise ValueError(
            "drafts of a model are compared with its recording: name one with --recording"
        )
    place = {name: s for s, name in enumerate(recording.meta.ids)}
    kept = [row for row in rows if row.request.id in place]
    if about.get("schedule"):
        missing = {row.block for row in rows if row.request.id not in place}
        kept = [row for row in kept if row.block not in missing]
    if not kept:
        return [], []
    budgets = {row.request.max_tokens for row in kept}
    if len(budgets) > 1:
        raise ValueError(f"requests have {len(budgets)} budgets, expected one with a recording")
    trace = recording.select([place[row.request.id] for row in kept]).shorten(budgets.pop())
    return kept, _passes(about, trace, kept, arm)


def _passes(
    about: Mapping[str, Any], trace: Trace, rows: Sequence[Row], arm: Arm
) -> list[Sequenced]:
    """The replay's passes; sequence s of the recording is the text of row s."""
    (k, policy), rules, lengths = arm, convention_of(about), lengths_of(about)
    if policy:
        addresses = [draw_address(row.request.prompt) for row in rows]
        trace = replace(trace, sequence=np.array(addresses, np.int64))
        return _policy_passes(about, trace, rows, policy)
    if k and lengths:
        waves = defaultdict(list)
        for s, row in enumerate(rows):
            waves[row.block].append(s)
        passes = scheduled_passes(trace, list(waves.values()), lengths, rules)
    else:
        passes = engine_passes(trace, fixed(k), rules)
    return [passes.sequence(s) for s in range(len(rows))]


def _policy_passes(
    about: Mapping[str, Any], trace: Trace, rows: Sequence[Row], text: str
) -> list[Sequenced]:
    """A state that passes on does so from row to row of one block and session alone, and never
    between requests that are in flight together."""
    given, plan = about["draft"].get("cost"), about["plan"]
    cost = None if given is None else CostModel.from_dict(given)
    longest, concurrent = max(plan["ks"]), plan["concurrent"]
    policy, cost = served_policy(text, longest, cost)
    policy = replace(policy, K=policy.longest(longest))  # the recording may be deeper
    if policy.scope == "stream" and concurrent > 1:
        if plan["group"] > concurrent:
            raise ValueError(
                f"policy {text} hands its state on, and {concurrent} requests took turns: run it "
                "again, so that those of a block start together, or with scope=sequence"
            )
        policy = replace(policy, scope="sequence")
    parts = defaultdict(list)
    for s, row in enumerate(rows):
        parts[(row.block, row.session) if policy.scope == "stream" else None].append(s)
    rules, seed, found = convention_of(about), about["seed"], dict[int, Sequenced]()
    for part in parts.values():
        passes = engine_passes(trace.select(part), policy, rules, seed, cost)
        found |= {s: passes.sequence(i) for i, s in enumerate(part)}
    return [found[s] for s in range(len(rows))]


def _pass_difference(row: Row, engine: Sequenced, expected: Sequenced) -> list[Difference]:
    """The first pass that differs."""
    pairs = zip(engine, expected)
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(engine), len(expected)))
    if place == len(engine) == len(expected):
        return []
    a, b = (list(passes[place]) if place < len(passes) else None for passes in (engine, expected))
    return [Difference(row.request.id, row.name, row.block, "passes", place, a, b)]


def text_differences(rows: Sequence[Row], recording: Trace | None, dtype: str) -> list[Difference]:
    """Rows whose tokens differ from the recording's, or else from the first plain row's."""
    from real.audit.checks import tolerance_of

    near = tolerance_of("float32", dtype).nats
    texts: dict[str, tuple[int, ...]] = {}
    margins: dict[str, Any] = defaultdict(lambda: None)
    for row in rows:
        if row.k == 0:
            texts.setdefault(row.request.id, row.finished.tokens)
    for s, name in enumerate(recording.meta.ids if recording is not None else ()):
        assert recording is not None
        part = slice(recording.offset[s], recording.offset[s + 1])
        texts[name] = tuple(recording.token[part].tolist())
        margins[name] = None if recording.margin is None else recording.margin[part]
    found = []
    for row in rows:
        name, tokens = row.request.id, row.finished.tokens
        if name not in texts:
            continue
        expected = texts[name][: row.request.max_tokens]
        if tokens == expected:
            continue
        pairs = list(zip(tokens, expected))
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        held = margins[name]
        known = held is not None and place < len(held)
        margin = float(decode_margin(held[place])) if known else None
        a, b = (text[place] if place < len(text) else None for text in (tokens, expected))
        tied = margin is not None and margin < near
        found.append(Difference(name, row.name, row.block, "text", place, a, b, margin, tied))
    return found
