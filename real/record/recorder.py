"""Recording: what a drafter would propose from every position of the target's own text, K deep.

Three ways to the same rows. `chains` is the definition: through the drafter's protocol, position by position, for any
drafter that is history-free. `one_bit` (real/record/parallel.py) is for drafters that see the token prefix alone: one pass over
the text gives the pick at every true prefix, and only behind the misses are there K - 1 more steps, all misses at once.
`forked` takes the other drafters' drafts from all positions at once through K steps.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from real.decode.along import along
from real.decode.feature_reader import FeatureReader
from real.decode.features import feature_grids, required_predictors
from real.draft import Drafter
from real.drafters import parallel_form
from real.drafters.prompt_lookup import PromptLookupDrafter
from real.files import replace_json
from real.model.target import Target
from real.progress import Progress, quiet
from real.prompts import Prompt
from real.record.idle_target import IdleTarget
from real.record.parallel import forked, one_bit, states  # noqa: F401  (states is known by this address)
from real.record.rejection import alone, ratios
from real.record.rows import MOST, RecordError, Rows, Settings, rank_of, runs
from real.record.text_cache import Texts
from real.record.tree_order import ordered, orders
from real.sampling import margin
from simspec import Trace, TraceError, TraceMeta, load_trace
from simspec.quantization import encode_margin


def target_text(
    target: Target, settings: Settings, prompt: list[int], sequence: int
) -> tuple[np.ndarray, np.ndarray]:
    """The target's own text, one token a pass with no drafter: int32 `[n]`, and its margin codes uint8 `[n]`."""
    gaps: list[float] = []
    text = alone(
        target,
        settings,
        prompt,
        sequence,
        lambda r: gaps.extend(margin(r.verified.scores).tolist()),
    )
    return text, encode_margin(np.array(gaps))


def chains(
    target: Target,
    drafter: Drafter,
    settings: Settings,
    prompt: list[int],
    text: np.ndarray,
    sequence: int,
) -> Rows:
    """Rows of `text` through the protocol: at each position one free chain, then one along the text for the ranks.

    Of a drafter without logits a token of its chain has rank 0 if it is the text's and 255 if not, and no
    near-tie (the largest margin). What a drafter does not offer has rank 255. RecordError for one that is not history-free,
    ValueError for features of one without logits.
    """
    if not drafter.history_free:
        raise RecordError(
            f"drafter {drafter.name!r} depends on earlier rounds; a recording of it would not replay exactly"
        )
    n, K, names, rule = len(text), settings.K, settings.features, settings.rule
    chain = np.zeros((n, K), np.int64)
    feature = np.zeros((n, K, len(names)), np.uint8)
    gap, edge = np.zeros((n, K), np.uint8), np.zeros((n, K), np.uint8)
    rank = np.zeros((n, K), np.uint8)
    depth = np.zeros(n, np.uint8)
    t, forced, quiet = 0, None, not drafter.has_logits

    def pick(logits, slot: int, hidden=None) -> int:
        scores = rule.scores(logits[None], sequence, [t + slot])
        if forced is not None:
            rank[t, slot] = min(int(rank_of(scores, forced[slot : slot + 1])), MOST)
            return int(forced[slot])
        gap[t, slot] = encode_margin(margin(scores).cpu().numpy())[0]
        return int(scores.argmax())

    reader = FeatureReader(names, rule.temperature, drafter)
    for t, _, output in along(target, drafter, prompt, text, pick):
        reader.begin(output)
        limit = min(K, settings.budget - t)
        depth[t] = K
        rank[t, : n - t] = MOST
        for slot in range(limit):
            step = drafter.next()
            if step is None:
                depth[t] = slot
                break
            chain[t, slot] = step.token
            if quiet:
                gap[t, slot] = MOST
                if t + slot < n and step.token == text[t + slot]:
                    rank[t, slot] = 0
            if names:
                feature[t, slot], distance = reader.read(step, slot)
                edge[t, slot] = encode_margin(distance.min())
            if step.token in settings.end_tokens:
                depth[t] = slot + 1
                break
        drafter.rollback(0)
        forced = torch.from_numpy(text[t:].astype(np.int64)).to(target.decoder.device)
        for _ in range(0 if quiet else min(limit, n - t)):
            if drafter.next() is None:
                break
        drafter.rollback(0)
        forced = None
    run = runs(chain, text, depth)
    return Rows(text, depth, run, feature, rank, np.zeros(n, np.uint8), gap, edge)


def record_text(
    target: Target,
    drafter: Drafter,
    settings: Settings,
    prompt: list[int],
    sequence: int,
    slow=False,
    texts: Texts | None = None,
) -> Rows:
    """The target's text after `prompt` and its rows: of all positions at once where the drafter allows it, else (or `slow`) by `chains`.

    A text that is in `texts` is taken from there, one that is not is added.
    """
    if settings.rule.sampled:
        return ratios(target, drafter, settings, prompt, sequence)
    found = texts.find(sequence, prompt) if texts else None
    text, gaps = found or target_text(target, settings, prompt, sequence)
    if texts and not found:
        texts.add(sequence, prompt, (text, gaps))
    wide = parallel_form(drafter) is not None and not slow
    if drafter.prefix_only and drafter.lm is not None and not slow:
        rows = one_bit(target, drafter, settings, prompt, text, sequence)
    elif wide and drafter.history_free:
        rows = forked(target, drafter, settings, prompt, text, sequence)
    else:
        still = type(drafter) is PromptLookupDrafter and not slow  # it reads tokens alone
        rows = chains(
            IdleTarget(target.decoder) if still else target,
            drafter,
            settings,
            prompt,
            text,
            sequence,
        )
    place = ordered if wide else orders
    order, beam = (
        place(target, drafter, settings, prompt, text, sequence) if settings.tree else (None, None)
    )
    return replace(rows, margin=gaps, order=order, beam=beam)


def assemble(
    rows: Sequence[Rows], prompts: Sequence[Prompt], first: int, settings: Settings, meta: TraceMeta
) -> Trace:
    """One trace of recorded texts, whose draw addresses are `first`, `first + 1`, ..."""

    def offsets(lengths):
        return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)

    return Trace(
        offset=offsets([len(r.token) for r in rows]),
        budget=np.full(len(rows), settings.budget, np.int64),
        sequence=np.arange(first, first + len(rows), dtype=np.int64),
        prompt_offset=offsets([len(p.token) for p in prompts]),
        prompt=np.concatenate([np.array(p.token, np.int32) for p in prompts]),
        **_joined(rows),
        meta=replace(meta, tasks=tuple(p.task for p in prompts), ids=tuple(p.id for p in prompts)),
    )


def _joined(rows: Sequence) -> dict:
    """The columns of several texts' rows, or of several traces; None where there is none."""
    parts = {name: [getattr(r, name) for r in rows] for name in Rows.__dataclass_fields__}
    return {name: None if part[0] is None else np.concatenate(part) for name, part in parts.items()}


def record(
    target: Target,
    drafter: Drafter,
    settings: Settings,
    prompts: Sequence[Prompt],
    out: Path,
    meta: TraceMeta,
    shard: int = 8,
    progress: Progress = quiet,
    texts: Path | None = None,
) -> Trace:
    """Records all prompts into the trace file `out`; a killed recording continues at its last whole shard.

    Shards of `shard` texts lie in `<out>.parts/`, each a valid trace written atomically, beside the settings they
    were made with: a call with other settings is refused, not mixed in, and so is a shard that is damaged or of other
    texts. They go when `out` is written, and when a recording fails before its first shard. RecordError, naming the text,
    for one that cannot be recorded, as where the drafter's logits are NaN. The file `texts` (`real.record.text_cache.Texts`) keeps what the
    target writes: recordings of other drafters under the same rule read it there.
    """
    kept = None if texts is None else Texts(texts, settings, meta, target)
    more = {} if kept is None else {"texts": kept}
    parts = out.with_name(out.name + ".parts")
    parts.mkdir(parents=True, exist_ok=True)
    same = {
        "settings": asdict(settings),
        "meta": asdict(meta),
        "prompts": [p.token for p in prompts],
        "shard": shard,
    }
    same = json.loads(json.dumps(same))
    for key in ("argv", "git", "notes"):
        same["meta"].pop(key)
    manifest = parts / "settings.json"
    if manifest.exists() and _read(manifest) != same:
        raise RecordError(
            f"{parts} holds a recording with other settings; finish it with those, or delete the folder"
        )
    if not manifest.exists():  # killed while it cleared up: shards that nothing vouches for
        _clear(parts)
    replace_json(manifest, same)
    shards = []
    try:
        for first in range(0, len(prompts), shard):
            path = parts / f"{first:06d}.parquet"
            group = prompts[first : first + shard]
            if not path.exists():
                rows = []
                for i, p in enumerate(group):
                    try:
                        rows.append(
                            record_text(target, drafter, settings, p.token, first + i, **more)
                        )
                    except ValueError as error:
                        raise RecordError(
                            f"text {first + i} (prompt {p.id!r}) cannot be recorded: {error}"
                        ) from error
                    progress("recording", first + i + 1, len(prompts))
                if kept:
                    kept.save()
                assemble(rows, group, first, settings, meta).save(path)
            shards.append(_shard(path, settings, group, first))
            progress("recording", first + len(group), len(prompts))
        trace = join(shards, meta)
    except BaseException:
        if not any(parts.glob("*.parquet")):
            _clear(parts)
            parts.rmdir()
        raise
    whole = (
        parts / "whole"
    )  # written among the shards: what a kill leaves half done is cleared with them
    trace.save(whole)
    whole.replace(out)
    _clear(parts)
    parts.rmdir()
    return trace


def _clear(parts: Path) -> None:
    """Empties the folder, the settings last: shards without them would be taken for those of the next recording."""
    for path in sorted(parts.iterdir(), key=lambda path: path.name == "settings.json"):
        path.unlink()


def _shard(path: Path, settings: Settings, group: Sequence[Prompt], first: int) -> Trace:
    """The shard at `path`; RecordError, saying what to delete, where it is damaged or not of these texts."""
    try:
        found = load_trace(path)
    except TraceError as error:
        raise RecordError(f"{error}; delete this file and its texts are recorded again") from None
    texts = [
        found.prompt[a:b].tolist() for a, b in zip(found.prompt_offset, found.prompt_offset[1:])
    ]
    if (
        found.K != settings.K
        or texts != [p.token for p in group]
        or found.sequence.tolist() != list(range(first, first + len(group)))
    ):
        raise RecordError(
            f"{path} holds other texts than were asked for; delete this file and they are recorded again"
        )
    return found


def _read(manifest: Path) -> dict:
    try:
        return json.loads(manifest.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"{manifest} is damaged ({error}); delete its folder to record anew"
        ) from None


def join(shards: Sequence[Trace], meta: TraceMeta) -> Trace:
    """The sequences of several traces of one recording, in order."""
    lengths = np.concatenate([np.diff(s.offset) for s in shards])
    prompts = np.concatenate([np.diff(s.prompt_offset) for s in shards])
    return Trace(
        offset=np.concatenate(([0], np.cumsum(lengths))),
        prompt_offset=np.concatenate(([0], np.cumsum(prompts))),
        prompt=np.concatenate([s.prompt for s in shards]),
        budget=np.concatenate([s.budget for s in shards]),
        sequence=np.concatenate([s.sequence for s in shards]),
        **_joined(shards),
        meta=replace(
            meta,
            tasks=sum((s.meta.tasks for s in shards), ()),
            ids=sum((s.meta.ids for s in shards), ()),
        ),
    )


def describe(
    target: str,
    drafter: Drafter,
    settings: Settings,
    prompts: Sequence[Prompt],
    tokenizer_sha256: str,
    device,
    dtype,
) -> TraceMeta:
    """The metadata of a recording made here and now."""
    from real.provenance import argv, device_name, revision, versions

    rule = settings.rule
    return TraceMeta(
        rule=rule.name,
        target=target,
        drafter=drafter.name,
        K=settings.K,
        tokenizer_sha256=tokenizer_sha256,
        features=feature_grids(settings.features),
        predictors={
            name: p.sha256 for name, p in required_predictors(settings.features, drafter).items()
        },
        temperature=0.0 if rule.name == "greedy" else rule.temperature,
        top_k=rule.top_k,
        top_p=float(rule.top_p),
        seed=rule.seed,
        end_tokens=settings.end_tokens,
        prefix_only=drafter.prefix_only,
        sources=tuple(sorted({p.source for p in prompts})),
        device=device_name(device),
        dtype=str(dtype).removeprefix("torch."),
        versions=versions(),
        git=revision(),
        argv=argv(),
        tree=settings.tree,
    )
