"""How the recordings and cards of the papers' tables were made, and how to make them again.

Usage: python tools/papers.py TEXT... --out models/ablations [--seed 1]   prints the commands
       python tools/papers.py --along models/ablations --cards traces/ablations

The first prints a `simspec train` for each ablation: drafters of the embedded target that differ in
one setting. The cards of traces/ablations are of 300 steps of 16 windows of 192 tokens, half of
them by the target except where that varies, by tools of the tag before-the-cut; today the target
writes all of it, so that those without its text are left out. The second records each along the
outputs of traces/tiny-model-coupled, adds its accepted lengths by sequence to its card, and keeps
the recordings that tables replay. traces/papers is `along` with K = 10; traces/s2d was made by
tools/several_targets.py of the tag before-the-cut.
"""

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from real.draft import Drafter
from real.drafters import BUILTIN
from real.files import replace_json
from real.model.checkpoint import load_decoder, load_tokenizer
from real.model.decoder import Decoder
from real.model.stored_weights import made_for
from real.model.target import Target
from real.pair import TINY
from real.prompts import repeated_ngrams
from real.provenance import device_name, revision, versions
from real.record import Settings
from real.record.exits import record_exits
from real.record.recorder import record_sequence
from real.record.sequences import SequenceCache
from real.rerun import prompts_of, rule_of
from real.train.evaluation import AcceptedLengths, summary
from simspec.trace.exits import ExitDrafts, exits_path, write_exits
from simspec.trace.trace import Trace, load_trace

SOURCE = Path(__file__).parents[1] / "traces" / "tiny-model-coupled.parquet"
EXIT, EAGLE, GLIDE, SORTED = "early_exit", "eagle", "glide", "sorted"
NEVER = "thresholds=[1.0,1.0]"
ABLATIONS: dict[str, tuple[str, tuple[str, ...], float]] = {
    # EESD Table 4 and Figures 4 and 5: all train a head of their own
    **{
        f"early_exit-n{n}-x{x}": (EXIT, (f"depth={n}", f"layers={x}", "own_head=true"), 0.5)
        for n, x in ((1, 0), (1, 1), (1, 2), (2, 1), (3, 1))
    },
    "early_exit-text": (EXIT, ("depth=1", "layers=1", "own_head=true"), 0.0),
    # EAGLE Figure 10 and Table 6; S2D Table 3
    "eagle-shifted": (EAGLE, ("inputs=feature&shifted_token",), 0.5),
    "eagle-unshifted": (EAGLE, ("inputs=feature&unshifted_token",), 0.5),
    "eagle-token": (EAGLE, ("inputs=token",), 0.5),
    "eagle-feature": (EAGLE, ("inputs=feature",), 0.5),
    "eagle-text": (EAGLE, (), 0.0),
    "eagle-loss-features": (EAGLE, ("weight=0",), 0.5),
    "eagle-loss-tokens": (EAGLE, ("regression=0",), 0.5),
    "eagle-loss-printed": (EAGLE, ("weight=0.1",), 0.5),
    # GLIDE Figures 4 and 7, Table 2
    "glide-blind": (GLIDE, ("cross=false",), 0.5),
    **{f"glide-layer{n}": (GLIDE, (f"reads={n}",), 0.5) for n in (0, 5, 9)},
    "glide-text": (GLIDE, ("reads=9",), 0.0),
    # S2D: exits trained together, and the last one alone, which then drafts alone
    "sorted-together": (SORTED, ("exits=[2,3,4]", "together=true"), 0.5),
    "sorted-single": (SORTED, ("exits=[2,3,4]", "together=false", NEVER), 0.5),
}  # fmt: skip
"""{name: (drafter, settings, share of the text that the target wrote)}."""
KEPT = {EXIT: (10, 1), SORTED: (6, 3)}
"""Drafters whose recording is kept: its K, and every how many sequences, as files are large."""


def commands(text: Sequence[str], out: Path, seed: int = 0) -> list[str]:
    """The `simspec train` of each ablation."""
    shared = ["--out", str(out), "--steps", "300", "--seed", str(seed), "--distil-tokens", "500000"]
    return [
        shlex.join(
            ["simspec", "train", drafter, *text, *shared, "--name", name]
            + [word for setting in settings for word in ("--set", setting)]
        )
        for name, (drafter, settings, written) in ABLATIONS.items()
        if written
    ]


@dataclass(frozen=True)
class _Written:
    """The tokens of a recording, in place of a cache of sequences that the target wrote."""

    tokens: np.ndarray

    def find(self, sequence: int, prompt: list[int]) -> tuple[np.ndarray, np.ndarray]:
        return self.tokens, np.zeros(len(self.tokens), np.uint8)


def along(
    target: Decoder, drafter: Drafter, trace: Trace, K: int,
    tree: tuple[int, int] | tuple[()] = (),
) -> Trace:  # fmt: skip
    """A drafter's recording on the sequences of another's, under its rule: lengths alone.

    With `tree`, (width, levels), also order and beam of dynamic trees. It holds no prompts,
    features or ranks, so that it is small. ValueError for the rejection rule, whose acceptance is
    drawn.
    """
    rule, engine, parts = rule_of(trace), Target(target, drafter.taps), []
    for s, prompt in enumerate(prompts_of(trace)):
        tokens = trace.token[trace.offset[s] : trace.offset[s + 1]]
        settings = Settings(K, int(trace.budget[s]), rule, trace.meta.end_tokens, (), tree)
        written = cast(SequenceCache, _Written(tokens))
        parts.append(
            record_sequence(engine, drafter, settings, prompt, int(trace.sequence[s]), written)
        )
    meta = replace(
        trace.meta, K=K, drafter=drafter.name, features=(), predictors={}, tree=tree, argv=(),
        prefix_only=drafter.prefix_only, device=device_name(target.device), versions=versions(),
        git=revision(),
    )  # fmt: skip
    names = ("run", "depth", *(("order", "beam") if tree else ()))
    rows: dict[str, Any] = {n: np.concatenate([getattr(p, n) for p in parts]) for n in names}
    return Trace(
        trace.offset, trace.budget, trace.token, meta=meta, sequence=trace.sequence, **rows
    )


def exits_along(target: Decoder, drafter: Any, trace: Trace, recording: Trace) -> ExitDrafts:
    """The exits of a sorted drafter's `recording` of some sequences of `trace`.

    Margins are left out: replays do not read them.
    """
    place = {address: s for s, address in enumerate(trace.sequence.tolist())}
    chosen = trace.select(np.array([place[address] for address in recording.sequence.tolist()]))
    prompted = replace(recording, prompt=chosen.prompt, prompt_offset=chosen.prompt_offset)
    drafts = record_exits(drafter, target, prompted, rule_of(trace))
    none = np.zeros_like(drafts.draft_margin)
    return replace(drafts, draft_margin=none, feature_margin=none)


def lengths_of(recording: Trace, K: int) -> AcceptedLengths:
    """Accepted lengths of drafts of K, at most the recording's."""
    accepted, offered = [], []
    for start, stop in zip(recording.offset, recording.offset[1:]):
        n = int(stop - start)
        run, depth = (x[start:stop].astype(np.int64) for x in (recording.run, recording.depth))
        run, depth = np.minimum(run, K), np.minimum(depth, K)
        ahead = np.minimum(K, n - np.arange(n))
        accepted.append(run)
        # a draft that is accepted as far as it is offered ends there
        offered.append(np.where(run == depth, np.minimum(run, ahead), ahead))
    return AcceptedLengths(K, tuple(accepted), tuple(offered))


def recorded(recording: Trace, name: str, K: int) -> dict[str, Any]:
    """The accepted lengths of a recording `name`, by sequence too, for a card."""
    lengths = lengths_of(recording, K)
    sequences = [recording.token[a:b] for a, b in zip(recording.offset, recording.offset[1:])]
    return {
        "recording": name, "rule": recording.meta.rule, "K": K, "texts": recording.sequences,
        "temperature": recording.meta.temperature, "tokens": recording.rows,
        "repeated_8grams": round(repeated_ngrams(sequences), 4), **summary(lengths),
        "by_sequence": lengths.by_sequence(),
    }  # fmt: skip


def record_all(models: Path, cards: Path) -> None:
    """Records every ablation that is trained along SOURCE, and completes its card."""
    folder, trace = TINY / "target", load_trace(SOURCE)
    target = load_decoder(folder)
    hashes = made_for(folder, target, load_tokenizer(folder))
    cards.mkdir(parents=True, exist_ok=True)
    for name, (kind, settings, _) in ABLATIONS.items():
        path = cards / f"{name}.json"
        if path.exists() or not (models / name).exists():
            continue
        drafter = BUILTIN[kind].load(models / name, target, hashes)
        K, every = KEPT.get(kind, (5, 0))
        recording = along(target, drafter, trace, K)
        if every:
            kept = recording.select(np.arange(0, trace.sequences, every))
            kept.save(path.with_suffix(".parquet"), small=True)
            if "together=true" in settings:
                exits = exits_along(target, drafter, trace, kept)
                write_exits(exits, kept, exits_path(path.with_suffix(".parquet")), small=True)
        card = json.loads((models / name / "card.json").read_text(encoding="utf-8"))
        card["evaluation"]["recorded"] = recorded(recording, SOURCE.stem, 5)
        replace_json(path, card)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("models/ablations"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--along", type=Path, help="Folder of trained ablations.")
    parser.add_argument("--cards", type=Path, default=Path("traces/ablations"))
    options = parser.parse_args()
    if options.along:
        record_all(options.along, options.cards)
    else:
        print("\n".join(commands(options.text, options.out, options.seed)))


if __name__ == "__main__":
    main()
