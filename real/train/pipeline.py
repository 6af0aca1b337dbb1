"""A target and its drafters from text, in stages that each leave a file and are skipped when it is there.

tokenizer -> tokens -> target -> distilled text -> every drafter with a training recipe -> self_skip's search -> predictors -> card.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from real.decode.acceptance_predictor import PREDICTOR_NAMES
from real.drafters import BUILTIN, trainable
from real.files import replace_json, replacing
from real.model.checkpoint import load_decoder, load_tokenizer, made_for, save_decoder, sha256
from real.model.config import DecoderConfig
from real.model.decoder import Decoder
from real.model.initialization import initialize
from real.model.losses import next_token_loss
from real.progress import Progress, quiet, relabel
from real.train import skip_search as skips
from real.train.accepted_length import Text
from real.train.corpus import END, documents, encode, train_tokenizer, windows
from real.train.generate import together, write
from real.train.recipes import DrafterTraining, check_folder, training
from real.train.train_drafter import K, Material, against, judged, made_by, read_card, same, teach
from real.train.train_predictor import train_predictors
from real.train.train_predictor import write as one_by_one
from real.train.trainer import Plan, compiled, curve, fit


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what comes out.

    | field | meaning |
    | --- | --- |
    | text | files or folders to train on; heldout: the same, kept apart, loss is reported by file |
    | vocab, sample | tokens of the BPE, and documents that it is fitted on |
    | target, target_plan | its sizes, and how long and how fast it learns |
    | lessons | the drafters to train |
    | distil_tokens | tokens the target writes itself, half of the texts greedily, half sampled at temperature 1 |
    | blend | share of drafters' training rows that are target-written; the rest is corpus text |
    | judged | tokens that the target writes after each prompt that drafters are judged on |
    | trials | settings that self_skip's search tries; 0 leaves it out |
    | predictor_texts, rank | texts under each rule that predictors of acceptance learn from, and rank of the low-rank form |
    | mixed | train in bf16 autocast; device, seed: as named |
    | batch, together | texts that the target writes at once, and whether those for predictors are, too (not to the last bit the same) |
    | compiled | compile the target's layers for training, where that works |
    """

    text: tuple[str, ...]
    heldout: tuple[str, ...] = ()
    vocab: int = 4096
    sample: int = 8000
    target: DecoderConfig = DecoderConfig(4096, 160, 10, 5, 5, 32, 400)
    target_plan: Plan = field(default_factory=lambda: Plan(minutes=62, rows=8, length=512))
    lessons: tuple[DrafterTraining, ...] = field(
        default_factory=lambda: tuple(map(training, trainable()))
    )
    distil_tokens: int = 1_000_000
    blend: float = 0.5
    judged: int = 48
    trials: int = 200
    predictor_texts: int = 400
    rank: int = 8
    mixed: bool = True
    device: str = "cpu"
    seed: int = 0
    batch: int = 64
    together: bool = False
    compiled: bool = False


def timed(lab: TrainConfig, target: float, drafter: float, rows: int) -> TrainConfig:
    """The lab with so many minutes for the target and for each drafter, and `rows` windows in a target's step."""
    lessons = (
        replace(each, plan=replace(each.plan, minutes=drafter, rows=2 * rows, seed=lab.seed))
        for each in lab.lessons
    )
    return replace(
        lab,
        target_plan=replace(lab.target_plan, minutes=target, rows=rows, seed=lab.seed),
        lessons=tuple(lessons),
    )


def stepped(lab: TrainConfig, target: int, *drafters: int) -> TrainConfig:
    """The lab with exactly so many steps for each, the last number for all lessons behind: repeats what was planned by minutes."""
    counts = [*drafters, *[drafters[-1]] * len(lab.lessons)]
    lessons = (
        replace(each, plan=replace(each.plan, steps=steps, minutes=0))
        for each, steps in zip(lab.lessons, counts)
    )
    return replace(
        lab, target_plan=replace(lab.target_plan, steps=target, minutes=0), lessons=tuple(lessons)
    )


def varied(lab: TrainConfig, soft: bool | None, patience: int) -> TrainConfig:
    """The lab with all drafters learning so, and stopping after so many validations without a better one."""
    lessons = (
        replace(e, soft=e.soft if soft is None else soft, plan=replace(e.plan, patience=patience))
        for e in lab.lessons
    )
    return replace(lab, lessons=tuple(lessons))


def toy(lab: TrainConfig) -> TrainConfig:
    """The lab at sizes that take seconds: to try the pipeline, not to draft well."""
    plan = Plan(steps=4, rows=2, length=16, seed=lab.seed)
    small = {"model": {"width": 8, "layers": 1, "heads": 1, "head_dim": 8, "hidden": 16}}
    tiny = [{**each.settings, **small.get(each.drafter, {})} for each in lab.lessons]
    lessons = (
        replace(each, plan=replace(plan, rate=each.plan.rate), settings=sizes)
        for each, sizes in zip(lab.lessons, tiny)
    )
    sizes = {
        "vocab": 300,
        "sample": 100,
        "target": DecoderConfig(300, 16, 3, 2, 2, 8, 24),
        "distil_tokens": 256,
        "judged": 8,
        "trials": 4,
    }
    return replace(
        lab, target_plan=plan, lessons=tuple(lessons), predictor_texts=3, rank=2, **sizes
    )


def build(lab: TrainConfig, out: Path, work: Path, progress: Progress = quiet) -> None:
    """Runs all stages: models to `out`, tokens, checkpoints and curves to `work`. Killed, it continues where it was."""
    text = read(lab, out, work, progress)
    learn_target(lab, text, out, work, progress)
    known = known_target(lab, text, out, work, progress)
    for each in lab.lessons:
        teach(each, known.material, out, work, progress)
    if lab.trials:
        search(Search(lab.trials, lab.seed), known.material, known.own, out, progress)
    learn_predictors(lab, text, known, out, progress)
    describe(lab, text, known, out, work, progress)


@dataclass(frozen=True)
class Read:
    """The text of a lab: its tokenizer, the tokens to train on, and those of each held-out file."""

    tokenizer: object
    tokens: np.ndarray
    heldout: dict[str, np.ndarray]


@dataclass(frozen=True)
class Known:
    """A target that has learnt: what it wrote itself, and the material of all lessons on it."""

    own: np.ndarray
    material: Material


def read(lab: TrainConfig, out: Path, work: Path, progress: Progress = quiet) -> Read:
    """Fits the tokenizer and encodes the text, once; text that cannot be used is refused and leaves nothing behind."""
    made = [_missing(folder) for folder in (out, work) if not folder.exists()]
    try:
        tokenizer = _tokenizer(lab, out, progress)
        tokens = _tokens(lab, tokenizer, work, progress)
        heldout = {
            Path(p).name.split(".")[0]: encode(tokenizer, (d["text"] for d in documents([p])))
            for p in lab.heldout
        }
        windows(
            tokens, 1, lab.target_plan.length, 0, 0
        )  # text that is too short is refused now, not after hours
        for part in heldout.values():
            _whole_windows(part, lab.target_plan.length)
    except (ValueError, OSError):
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return Read(tokenizer, tokens, heldout)


def learn_target(
    lab: TrainConfig, text: Read, out: Path, work: Path, progress: Progress = quiet
) -> None:
    """Trains the target into `<out>/target`, unless it is there."""
    _target(lab, text.tokens, text.heldout, out, work, text.tokenizer.token_to_id(END), progress)


def known_target(
    lab: TrainConfig, text: Read, out: Path, work: Path, progress: Progress = quiet
) -> Known:
    """Loads the target, and has it write what drafters learn from, where it has not yet."""
    target = load_decoder(out / "target", device=lab.device)
    own = _distil(lab, target, text.tokens, work, progress)
    return Known(own, _material(lab, target, text.tokenizer, text.tokens, own, out))


def learn_predictors(
    lab: TrainConfig, text: Read, known: Known, out: Path, progress: Progress = quiet
) -> None:
    """Trains the predictors of acceptance that are not there."""
    material = known.material
    drafters = _drafters(lab, material, out)
    writer = together if lab.together else one_by_one
    train_predictors(
        material.target,
        drafters,
        text.tokens,
        out,
        material.end[0],
        lab.predictor_texts,
        lab.rank,
        lab.seed,
        progress,
        writer,
    )


def describe(
    lab: TrainConfig, text: Read, known: Known, out: Path, work: Path, progress: Progress = quiet
) -> None:
    """Writes `<out>/card.json`: settings, sizes, steps, held-out losses, and the cards of all drafters that are there."""
    places = [each.place for each in lab.lessons] + ["self_skip"] * bool(lab.trials)
    cards = {place: read_card(out / place / "card.json") for place in places}
    _card(lab, known.material, text.tokens, known.own, text.heldout, cards, out, work, progress)


def single(
    lab: TrainConfig,
    asked: "DrafterTraining | Search",
    out: Path,
    work: Path,
    progress: Progress = quiet,
    other: str | None = None,
) -> dict:
    """Trains one drafter for the target that lies in `out`, or searches self_skip; returns its card.

    Text and what the target wrote are taken from `work` where they lie there. With `other`, another folder of the bundle, both are
    compared. ValueError where there is no target, or no text.
    """
    if not (out / "target" / "model.safetensors").exists():
        raise ValueError(
            f"{out} holds no target/ to train a drafter for; make one first: simspec train TEXT --out {out}"
        )
    if not lab.text and not (work / "text.npy").exists():
        raise ValueError(
            f"no text is given and {work} holds no text.npy; name files or folders to train on, or that folder by --work"
        )
    tokenizer = load_tokenizer(out / "target")
    if tokenizer.token_to_id(END) is None:
        raise ValueError(
            f"the tokenizer of {out / 'target'} has no {END} token; expected a target made by simspec train"
        )
    tokens = _tokens(lab, tokenizer, work, progress)
    target = load_decoder(out / "target", device=lab.device)
    own = _distil(lab, target, tokens, work, progress)
    material = _material(lab, target, tokenizer, tokens, own, out)
    card = (
        search(asked, material, own, out, progress)
        if isinstance(asked, Search)
        else teach(asked, material, out, work, progress)
    )
    return against(out / asked.place / "card.json", material, out, other) if other else card


def _missing(folder: Path) -> Path:
    """The highest folder on the way to this one that is not there yet."""
    while not folder.parent.exists():
        folder = folder.parent
    return folder


def _whole_windows(tokens: np.ndarray, length: int) -> int:
    count = (len(tokens) - 1) // length
    if count < 1:
        raise ValueError(f"held-out text has {len(tokens)} tokens; expected more than {length}")
    return count


def _tokenizer(lab: TrainConfig, out: Path, progress: Progress):
    path = out / "target" / "tokenizer.json"
    if not path.exists():
        progress("tokenizer", 0, 1, "fitting the BPE")
        texts = [d["text"] for _, d in zip(range(lab.sample), documents(lab.text))]
        with replacing(path) as temporary:
            train_tokenizer(texts, lab.vocab).save(str(temporary))
    progress("tokenizer", 1, 1)
    return load_tokenizer(out / "target")


def _tokens(lab: TrainConfig, tokenizer, work: Path, progress: Progress) -> np.ndarray:
    path = work / "text.npy"
    if not path.exists():
        progress("tokens", 0, 1, "reading the text")
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.save(file, encode(tokenizer, (d["text"] for d in documents(lab.text))))
    tokens = np.load(path, mmap_mode="r")
    progress("tokens", 1, 1, f"{len(tokens):,} tokens")
    return tokens


def _autocast(lab: TrainConfig):
    return torch.autocast(torch.device(lab.device).type, dtype=torch.bfloat16, enabled=lab.mixed)


def _batch(lab: TrainConfig, tokens, plan: Plan, step: int) -> torch.Tensor:
    return torch.from_numpy(windows(tokens, plan.rows, plan.length, plan.seed, step)).to(lab.device)


def _target(
    lab: TrainConfig, tokens, heldout, out: Path, work: Path, end: int, progress: Progress
) -> None:
    folder = out / "target"
    if (folder / "model.safetensors").exists():
        return
    decoder, plan = Decoder(replace(lab.target, vocab=lab.vocab)), lab.target_plan
    initialize(decoder, lab.seed)
    decoder.to(lab.device)

    def loss(step):
        batch = _batch(lab, tokens, plan, step)
        with _autocast(lab):
            logits = decoder(batch[:, :-1])
        return next_token_loss(logits, batch[:, 1:])

    if lab.compiled and (note := compiled(decoder.layers, lambda: loss(0))):
        progress("target", 0, 1, note)
    log = fit(work / "target", decoder, loss, plan, relabel(progress, "target"))
    curve(log, work / "target.png", "target: training loss")
    save_decoder(decoder, folder, end, plan.length)


def _distil(
    lab: TrainConfig,
    target: Decoder,
    tokens,
    work: Path,
    progress: Progress,
    prompt: int = 64,
    length: int = 192,
):
    """Self-distillation (EESD §3.2): the target's own continuations of corpus windows, parts saved as they come."""
    path, parts, batch = work / "distilled.npy", work / "distilled", lab.batch
    if not path.exists():
        parts.mkdir(parents=True, exist_ok=True)
        count = max(1, -(-lab.distil_tokens // (batch * (prompt + length))))
        greedy = torch.arange(batch, device=lab.device) % 2 == 0
        for i in range(count):
            part = parts / f"{i:05d}.npy"
            if not part.exists():
                start = torch.from_numpy(
                    windows(tokens, batch, prompt, lab.seed + 1, i)[:, :prompt]
                ).to(lab.device)
                made = (
                    write(target, start, length, greedy, lab.seed + i)
                    .cpu()
                    .numpy()
                    .astype(tokens.dtype)
                )
                with replacing(part) as temporary, open(temporary, "wb") as file:
                    np.save(file, made)
            progress("distil", i + 1, count)
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.save(file, np.concatenate([np.load(parts / f"{i:05d}.npy") for i in range(count)]))
    return np.load(path)


def kept_out(own: np.ndarray) -> int:
    """How many of the target-written texts, the last ones, no drafter learns from: agreement is measured on them."""
    return min(64, len(own) // 4)


def blended(lab: TrainConfig, tokens, own: np.ndarray, plan: Plan) -> Callable[[int], torch.Tensor]:
    """Batches `[rows, length + 1]` by step: rows of corpus text first, then `blend` of them written by the target."""
    written = round(lab.blend * plan.rows)
    if plan.length >= own.shape[1]:
        raise ValueError(
            f"drafters learn on windows of {plan.length}; texts written by the target have {own.shape[1]} tokens"
        )

    def batch(step: int) -> torch.Tensor:
        rows = (
            [windows(tokens, plan.rows - written, plan.length, plan.seed, step)]
            if written < plan.rows
            else []
        )
        if written:
            draw = np.random.default_rng([plan.seed, step, 1])
            at, cut = (
                draw.integers(0, len(own) - kept_out(own), written),
                draw.integers(0, own.shape[1] - plan.length, written),
            )
            rows.append(
                own[at[:, None], cut[:, None] + np.arange(plan.length + 1)].astype(np.int64)
            )
        return torch.from_numpy(np.concatenate(rows)).to(lab.device)

    return batch


def _material(
    lab: TrainConfig, target: Decoder, tokenizer, tokens, own: np.ndarray, out: Path
) -> Material:
    end = (tokenizer.token_to_id(END),)
    texts = kept_texts(target, own, lab.judged, end)
    cut, short = max(1, len(texts) // 4), max(K + 1, lab.judged // 2)
    context = json.loads((out / "target" / "config.json").read_text(encoding="utf-8"))[
        "max_position_embeddings"
    ]
    hashes, batches = (
        made_for(out / "target", target, tokenizer),
        lambda plan: blended(lab, tokens, own, plan),
    )
    check = [(prompt, text[:short]) for prompt, text in texts[:cut]]
    return Material(target, hashes, end, context, batches, check, texts[cut:], lab.mixed, lab.blend)


def kept_texts(
    target: Decoder, own: np.ndarray, length: int, end: Sequence[int], prompt: int = 64
) -> list[Text]:
    """What the target writes greedily after the kept-out prompts: `length` tokens each, up to the first end token."""
    kept = torch.from_numpy(
        own[len(own) - kept_out(own) :, : min(prompt, own.shape[1] // 2)].astype(np.int64)
    ).to(target.device)
    made = (
        write(target, kept, length, torch.ones(len(kept), dtype=torch.bool, device=kept.device), 0)[
            :, kept.shape[1] :
        ]
        .cpu()
        .numpy()
    )
    stops = [np.flatnonzero(np.isin(row, end)) for row in made]
    return [
        (start, row[: stop[0] + 1] if len(stop) else row)
        for start, row, stop in zip(kept.tolist(), made, stops)
    ]


@dataclass(frozen=True)
class Search:
    """A search of self_skip's sub-layers: settings tried, their seed, texts they are tried on, and the folder in the bundle."""

    trials: int
    seed: int
    texts: int = 24
    place: str = "self_skip"


def searched(lab: TrainConfig, settings: dict, folder: str | None) -> Search:
    """The lab's search with other `settings`; ValueError for one that it does not know."""
    known = ("trials", "seed", "texts")
    for key, value in settings.items():
        if key not in known or type(value) is not int or value < (key != "seed"):
            raise ValueError(
                f"self_skip cannot be searched with {key}={value!r}; expected whole numbers for some of {', '.join(known)}"
            )
    check_folder(folder or "")
    return replace(Search(lab.trials, lab.seed, place=folder or "self_skip"), **settings)


def search(
    asked: Search, material: Material, own: np.ndarray, out: Path, progress: Progress = quiet
) -> dict:
    """Searches self_skip's sub-layers on greedy texts that the target wrote for training, judges them, and returns the card."""
    folder = out / asked.place
    said = asdict(asked) | {"target": dict(material.made_for)}
    if (folder / "card.json").exists():
        card = read_card(folder / "card.json")
        same(card.get("asked", {}), said, folder)
        return card
    if not (folder / "self_skip.json").exists():
        rows = own[: len(own) - kept_out(own)][::2][
            : asked.texts
        ].tolist()  # every other one was written greedily
        cut = min(64, own.shape[1] // 2)
        pairs = [(row[:cut], row[cut : 2 * cut]) for row in rows]
        found = skips.find(
            material.target, pairs, asked.trials, asked.seed,
            progress=relabel(progress, asked.place),
        )  # fmt: skip
        skips.save(found, folder, material.made_for, "target-written, for training")
    found = read_card(folder / "self_skip.json")
    made = {
        "drafter": "self_skip",
        "asked": said,
        "settings": found["settings"],
        "search": found["search"],
    }
    made |= {"evaluation": judged("self_skip", folder, material), **made_by(material.target.device)}
    replace_json(folder / "card.json", made)
    return made


@torch.inference_mode()
def heldout_loss(decoder: Decoder, tokens: np.ndarray, length: int, most: int = 64) -> float:
    """Mean loss in nats per token over up to `most` whole windows from the start of `tokens`, in float32."""
    count = min(most, _whole_windows(tokens, length))
    row = torch.from_numpy(tokens[: count * length + 1].astype(np.int64)).to(decoder.device)
    x, y = row[:-1].view(count, length), row[1:].view(count, length)
    parts = [
        next_token_loss(decoder(x[i : i + 8]), y[i : i + 8]).item() * len(x[i : i + 8])
        for i in range(0, count, 8)
    ]
    return sum(parts) / count


@torch.inference_mode()
def agreement(lm: Decoder, target: Decoder, own: np.ndarray) -> float:
    """Share of positions in target-written text, kept out of training, at which drafter and target have the same argmax."""
    x = torch.from_numpy(own[-kept_out(own) :].astype(np.int64)).to(target.device)
    same = [
        (lm(x[i : i + 8]).argmax(-1) == target(x[i : i + 8]).argmax(-1)).float().mean().item()
        for i in range(0, len(x), 8)
    ]
    return sum(same) / len(same)


def _drafters(lab: TrainConfig, material: Material, out: Path) -> Iterator[tuple[str, Decoder]]:
    """Those that are language models of the prefix, by folder."""
    for each in lab.lessons:
        made = BUILTIN[each.drafter].load(out / each.place, material.target, material.made_for)
        if made.prefix_only and made.lm is not None:
            yield each.place, made.lm


def _card(
    lab: TrainConfig,
    material: Material,
    tokens,
    own,
    heldout,
    cards: dict[str, dict],
    out: Path,
    work: Path,
    progress: Progress,
) -> None:
    progress("card", 0, 1, "held-out losses")
    length = lab.target_plan.length
    models = {"target": material.target, **dict(_drafters(lab, material, out))}
    card = {
        "settings": {k: v for k, v in asdict(lab).items() if k not in ("text", "heldout")},
        "text": [Path(p).name for p in lab.text],
        "text_tokens": len(tokens),
        "distilled_tokens": int(own.size),
        "steps": {
            "target": _steps(work / "target.json"),
            **{place: card["steps"] for place, card in cards.items() if "steps" in card},
        },
        "parameters": {name: sum(p.numel() for p in m.parameters()) for name, m in models.items()},
        "heldout_loss_nats": {
            name: {part: round(heldout_loss(m, t, length), 4) for part, t in heldout.items()}
            for name, m in models.items()
        },
        "predictors": {
            drafter: {name: _training(out / drafter / f"{name}.json") for name in PREDICTOR_NAMES}
            for drafter in models
            if drafter != "target"
        },
        "agreement_on_target_text": {
            n: round(agreement(m, material.target, own), 4)
            for n, m in models.items()
            if n != "target"
        },
        "drafters": cards,
        "sha256": {
            str(p.relative_to(out)): sha256(p)
            for p in sorted([*out.rglob("*.safetensors"), *out.rglob("tokenizer.json")])
        },
        **made_by(lab.device),
    }
    replace_json(out / "card.json", card)
    progress("card", 1, 1, str(out / "card.json"))


def _training(path: Path) -> dict:
    return json.loads(path.read_text()).get("training", {})


def _steps(path: Path) -> int | None:
    return json.loads(path.read_text())[-1]["step"] if path.exists() else None
