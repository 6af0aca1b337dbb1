"""SpecDecode-Bench: accepted lengths from every position, which make an exact recording."""

from itertools import product
from typing import Any

import numpy as np

from simspec.engines import LONGEST_DRAFT, Import
from simspec.engines.documents import Fields, Source, json_rows
from simspec.engines.import_report import Imported
from simspec.engines.ngram import MATCHES, NgramRule, drafted_text
from simspec.trace.meta import TraceMeta
from simspec.trace.trace import Trace

UNKNOWN = -1
"""The token of a row whose text is not in the file."""
MOST_LEAST, MOST_NGRAM = 5, 8
"""Longest shortest and longest suffix of the n-gram rules that are tried."""
MOST_OTHER = 1e-3
"""Largest share of rows in which a rule may give another accepted length than the file."""

Part = dict[str, Any]
"""A request: id, prompt and token, right (drafts accepted), left (tokens), ended, known (text)."""


def read_positions(source: Source, settings: Import) -> Imported:
    """One recording a drafter, of `acc_NAME` with `acc_len`, or of `acc` alone.

    | in the file             | in the recording                                                |
    | ----------------------- | --------------------------------------------------------------- |
    | acc_len[i]              | run = min(acc_len[i] - 1, rows left): emitted if a round starts |
    |                         | after i generated tokens, bonus included                        |
    | length of acc_len       | rows of the sequence, whatever the length of the text           |
    | generated_token_ids     | tokens, if as many as acc_len; else unknown, -1                 |
    | largest acc_len - 1     | K: some draft was that deep, so min(run, K) is the outcome      |
    | tokens of acc_ngram     | depth: 0 where its rule has no match, see `matching_rule`        |

    The budget is the sequence's length, except where it ends with one of `end_token`.
    """
    rows = json_rows(source.text)
    names = {_drafter(key): key for row in rows for key in row.values if _drafter(key)}
    if not names:
        raise ValueError(
            "no object has acc_NAME with acc_len (such as acc_eagle): expected SpecDecode-Bench's "
            "JSON lines"
        )
    if settings.drafter not in (None, *names):
        raise ValueError(
            f"drafter {settings.drafter!r} is not in the file, which has {', '.join(sorted(names))}"
        )
    traces, notes = {}, []
    for name in sorted(names):
        if settings.drafter in (None, name):
            traces[name], remarks = _trace(source, settings, rows, names[name])
            notes += [f"{name}: {note}" for note in remarks]
    return Imported(source, "exact", traces, notes=tuple(notes))


def _drafter(key: str) -> str:
    return "drafter" if key == "acc" else key.removeprefix("acc_") if key[:4] == "acc_" else ""


def _trace(
    source: Source, settings: Import, rows: list[Fields], key: str
) -> tuple[Trace, list[str]]:
    parts = list[Part]()
    empty = past = 0
    for row in rows:
        emitted = _emitted(row, key)
        if not len(emitted):
            empty += 1
            continue
        text = row.wholes("generated_token_ids")
        known = len(text) == len(emitted)
        left = np.arange(len(emitted), 0, -1)
        past += int((emitted > left + 1).sum())
        part: Part = {
            "id": row.name("id"), "prompt": row.wholes("prompt_token_ids"), "known": known,
            "token": text if known else np.full(len(emitted), UNKNOWN), "right": emitted - 1,
            "left": left, "ended": known and int(text[-1]) in settings.end_token,
        }  # fmt: skip
        if part["ended"] and np.isin(text[:-1], settings.end_token).any():
            raise ValueError(f"{row.place}: an end token comes before the last one, expected none")
        if max(part["token"].max(), part["prompt"].max(initial=0)) >= 1 << 31:
            raise ValueError(f"request {part['id'][:40]}: a token is over {(1 << 31) - 1}")
        parts.append(part)
    if not parts:
        raise ValueError(f"{key} is empty in every object: there is nothing to replay")
    rule, notes = None, []
    if key == "acc_ngram":
        rule = matching_rule(parts)
        notes = [
            f"its drafts: suffixes of {rule.most} to {rule.least} tokens, the {rule.match} match"
            if rule
            else "no n-gram rule gives the accepted lengths: offers taken as K deep everywhere"
        ]
    foreign = sum(not part["known"] for part in parts)
    return _assembled(source, settings, _drafter(key), parts, rule), notes + [
        f"{note}: {count}"
        for count, note in (
            (empty, "requests left out, without positions"),
            (foreign, "requests whose list and text differ in length (tokens unknown, -1)"),
            (past, "accepted lengths cut, for they reach past the end of their list"),
        )
        if count
    ]


def _emitted(row: Fields, key: str) -> np.ndarray:
    plain = type(row.values.get(key)) is list
    emitted = row.wholes(key) if plain else row.inner(key).wholes("acc_len")
    if (emitted < 1).any():
        raise ValueError(
            f"{row.place}: {key} holds {emitted.min()}, expected at least 1: acc_len counts the "
            "bonus token, add 1 to each if this file does not"
        )
    return emitted


def matching_rule(parts: list[Part]) -> NgramRule | None:
    """The n-gram rule that gives the accepted lengths of the requests with a text, if one does.

    Tried: suffixes of 1 to 5 tokens and more, up to 8, first or last match. The rule with the
    fewest other lengths is taken if these are at most 1 in 1,000; among equal rules
    that of the longest suffixes, which drafts least. Lengths are compared up to the file's deepest.
    """
    texts = [part for part in parts if part["known"]]
    deepest = min(max((int(part["right"].max()) for part in texts), default=0), LONGEST_DRAFT)
    if not deepest:
        return None
    found, fewest = None, MOST_OTHER * sum(len(part["token"]) for part in texts)
    sizes = [(n, m) for n in range(MOST_LEAST, 0, -1) for m in range(MOST_NGRAM, n - 1, -1)]
    for (least, most), match in product(sizes, MATCHES):
        rule, other = NgramRule("ngram", least, most, match), 0
        for part in texts:
            run = np.minimum(np.minimum(part["right"], part["left"]), deepest)
            drafted = drafted_text(part["prompt"], part["token"], rule, deepest, len(run))
            other += int((drafted.run != run).sum())
            if other > fewest or (found and other == fewest):
                break
        else:
            found, fewest = rule, other
    return found


def _assembled(
    source: Source, settings: Import, name: str, parts: list[Part], rule: NgramRule | None
) -> Trace:
    def joined(key: str) -> np.ndarray:
        return np.concatenate([part[key] for part in parts])

    right, left = joined("right"), joined("left")
    deepest = min(max(int(right.max()), 1), LONGEST_DRAFT)
    K = settings.K or deepest
    if deepest < K:
        raise ValueError(
            f"K is {K}, but {name} never has more than {deepest} drafted tokens accepted: whether "
            "deeper drafts were tried is unknown, name a smaller one"
        )
    lengths = np.array([len(part["token"]) for part in parts])
    ended = np.array([part["ended"] for part in parts])
    stops = np.repeat(ended, lengths) & (right >= left)  # the end token itself was drafted
    run = np.minimum(np.minimum(right, left), K)
    offered = [
        drafted_text(part["prompt"], part["token"], rule, K, len(part["token"])).depth
        if rule and part["known"]
        else np.full(len(part["token"]), K)
        for part in parts
    ]
    depth = np.where(stops, np.minimum(left, K), np.maximum(np.concatenate(offered), run))
    offers = "offers taken as K deep"
    if rule:
        offers = f"offers of {rule.text} by the {rule.match} match"
    return Trace(
        offset=np.concatenate(([0], np.cumsum(lengths))),
        budget=lengths + np.where(ended, K + 1, 0),
        token=joined("token").astype(np.int32),
        depth=depth.astype(np.uint8),
        run=run.astype(np.uint8),
        prompt_offset=np.concatenate(([0], np.cumsum([len(part["prompt"]) for part in parts]))),
        prompt=joined("prompt").astype(np.int32),
        meta=TraceMeta(
            rule=settings.rule,
            target=settings.target,
            drafter=name,
            K=K,
            temperature=settings.temperature,
            end_tokens=settings.end_token,
            sources=(f"{source.format} {source.file} sha256 {source.sha256}",),
            tasks=(settings.task or source.file.partition(".")[0],) * len(parts),
            ids=tuple(part["id"] for part in parts),
            device="unknown",
            dtype="unknown",
            notes=f"imported from {source.format}: no signals of the drafter, {offers}, rows as "
            "long as acc_len, tokens -1 where list and text differ in length",
        ),
    )
