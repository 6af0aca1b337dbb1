"""A target and its drafters from text, in stages that each leave a file and are skipped when it is there.

tokenizer -> tokens -> target -> distilled text -> drafter `model` -> drafter `early_exit` -> predictors of both -> card.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from real.block import Decoder, Shape
from real.corpus import END, documents, encode, train_tokenizer, windows
from real.drafters.early_exit import Exit
from real.examples import train_predictors
from real.files import replace_json, replacing
from real.losses import next_token, towards
from real.part import load_part, save_part
from real.predictor import NAMES
from real.provenance import device_name, revision, versions
from real.train import Plan, curve, fit, initialise
from real.weights import load_decoder, load_tokenizer, made_for, save_decoder, sha256

Tell = Callable[[str, int, int, str], None]
"""(stage, done, of, remark): how progress is told."""


@dataclass(frozen=True)
class Lab:
    """Everything that decides what comes out.

    | field | meaning |
    | --- | --- |
    | text | files or folders to train on; heldout: the same, kept apart, loss is reported by file |
    | vocab, sample | tokens of the BPE, and documents that it is fitted on |
    | target, model | sizes of the target and of the vanilla drafter |
    | depth, own_head | early exit after so many target layers; with a head of its own or the target's |
    | target_plan, model_plan, exit_plan | how long and how fast each learns |
    | distil_tokens | tokens the target writes itself, half of the texts greedily, half sampled at temperature 1 |
    | blend | share of drafters' training rows that are target-written; the rest is corpus text |
    | soft | drafters whose loss is the target's distribution, and not the text's next token |
    | predictor_texts, rank | texts under each rule that predictors of acceptance learn from, and rank of the low-rank form |
    | mixed | train in bf16 autocast; device, seed: as named |
    """

    text: tuple[str, ...]
    heldout: tuple[str, ...] = ()
    vocab: int = 4096
    sample: int = 8000
    target: Shape = Shape(4096, 160, 10, 5, 5, 32, 400)
    model: Shape = Shape(4096, 64, 2, 2, 2, 32, 160)
    depth: int = 1
    own_head: bool = False
    target_plan: Plan = field(default_factory=lambda: Plan(minutes=62, rows=8, length=512))
    model_plan: Plan = field(default_factory=lambda: Plan(minutes=6, rows=16, length=192))
    exit_plan: Plan = field(default_factory=lambda: Plan(minutes=6, rows=16, length=192, rate=2e-3))
    distil_tokens: int = 1_000_000
    blend: float = 0.5
    soft: tuple[str, ...] = ("model",)
    predictor_texts: int = 400
    rank: int = 8
    mixed: bool = True
    device: str = "cpu"
    seed: int = 0


def timed(lab: Lab, target: float, drafter: float, rows: int) -> Lab:
    """The lab with so many minutes for the target and for each drafter, and `rows` windows in a target's step."""
    return replace(
        lab,
        target_plan=replace(lab.target_plan, minutes=target, rows=rows, seed=lab.seed),
        model_plan=replace(lab.model_plan, minutes=drafter, rows=2 * rows, seed=lab.seed),
        exit_plan=replace(lab.exit_plan, minutes=drafter, rows=2 * rows, seed=lab.seed),
    )


def stepped(lab: Lab, target: int, model: int, early_exit: int) -> Lab:
    """The lab with exactly so many steps for each: what repeats a training that was planned by minutes."""
    return replace(
        lab,
        target_plan=replace(lab.target_plan, steps=target, minutes=0),
        model_plan=replace(lab.model_plan, steps=model, minutes=0),
        exit_plan=replace(lab.exit_plan, steps=early_exit, minutes=0),
    )


def toy(lab: Lab) -> Lab:
    """The lab at sizes that take seconds: to try the pipeline, not to draft well."""
    plan = Plan(steps=4, rows=2, length=16, seed=lab.seed)
    target, model = Shape(300, 16, 3, 2, 2, 8, 24), Shape(300, 8, 1, 1, 1, 8, 16)
    sizes = {"vocab": 300, "sample": 100, "target": target, "model": model, "distil_tokens": 256, "predictor_texts": 3, "rank": 2}
    return replace(lab, target_plan=plan, model_plan=plan, exit_plan=plan, **sizes)


def build(lab: Lab, out: Path, work: Path, tell: Tell = lambda *_: None) -> None:
    """Runs all stages: models to `out`, tokens, checkpoints and curves to `work`. Killed, it continues where it was."""
    made = [_missing(folder) for folder in (out, work) if not folder.exists()]
    try:
        tokenizer = _tokenizer(lab, out, tell)
        tokens = _tokens(lab, tokenizer, work, tell)
        heldout = {Path(p).name.split(".")[0]: encode(tokenizer, (d["text"] for d in documents([p]))) for p in lab.heldout}
        windows(tokens, 1, lab.target_plan.length, 0, 0)  # text that is too short is refused now, not after hours
        for part in heldout.values():
            _whole_windows(part, lab.target_plan.length)
    except (ValueError, OSError):
        for folder in made:  # text that cannot be used leaves nothing behind
            shutil.rmtree(folder, ignore_errors=True)
        raise
    _target(lab, tokens, heldout, out, work, tokenizer.token_to_id(END), tell)
    target = load_decoder(out / "target", device=lab.device)
    own = _distil(lab, target, tokens, work, tell)
    _model(lab, target, tokens, own, out, work, tokenizer.token_to_id(END), tell)
    _exit(lab, target, tokens, own, out, work, tell)
    end, sizes = tokenizer.token_to_id(END), (lab.predictor_texts, lab.rank)
    train_predictors(target, _drafters(lab, target, out), tokens, out, end, *sizes, lab.seed, tell)
    _card(lab, target, heldout, tokens, own, out, work, tell)


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


def _tokenizer(lab: Lab, out: Path, tell: Tell):
    path = out / "target" / "tokenizer.json"
    if not path.exists():
        tell("tokenizer", 0, 1, "fitting the BPE")
        texts = [d["text"] for _, d in zip(range(lab.sample), documents(lab.text))]
        with replacing(path) as temporary:
            train_tokenizer(texts, lab.vocab).save(str(temporary))
    tell("tokenizer", 1, 1, "")
    return load_tokenizer(out / "target")


def _tokens(lab: Lab, tokenizer, work: Path, tell: Tell) -> np.ndarray:
    path = work / "text.npy"
    if not path.exists():
        tell("tokens", 0, 1, "reading the text")
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.save(file, encode(tokenizer, (d["text"] for d in documents(lab.text))))
    tokens = np.load(path, mmap_mode="r")
    tell("tokens", 1, 1, f"{len(tokens):,} tokens")
    return tokens


def _told(tell: Tell, stage: str):
    return lambda step, steps, loss: tell(stage, step, steps or step + 1, f"loss {loss:.3f}")


def _autocast(lab: Lab):
    return torch.autocast(torch.device(lab.device).type, dtype=torch.bfloat16, enabled=lab.mixed)


def _batch(lab: Lab, tokens, plan: Plan, step: int) -> torch.Tensor:
    return torch.from_numpy(windows(tokens, plan.rows, plan.length, plan.seed, step)).to(lab.device)


def _target(lab: Lab, tokens, heldout, out: Path, work: Path, end: int, tell: Tell) -> None:
    folder = out / "target"
    if (folder / "model.safetensors").exists():
        return
    decoder, plan = Decoder(replace(lab.target, vocab=lab.vocab)), lab.target_plan
    initialise(decoder, lab.seed)
    decoder.to(lab.device)

    def loss(step):
        batch = _batch(lab, tokens, plan, step)
        with _autocast(lab):
            logits = decoder(batch[:, :-1])
        return next_token(logits, batch[:, 1:])

    log = fit(work / "target", decoder, loss, plan, _told(tell, "target"))
    curve(log, work / "target.png", "target: training loss")
    save_decoder(decoder, folder, end, plan.length)


@torch.inference_mode()
def write(decoder: Decoder, prompt: torch.Tensor, length: int, greedy: torch.Tensor, seed: int) -> torch.Tensor:
    """Continues all rows of `prompt [b, n]` by `length` tokens at once: argmax where `greedy [b]`, else sampled at T = 1."""
    torch.manual_seed(seed)
    batch, start = prompt.shape
    cache = decoder.cache(batch=batch, capacity=start + length)
    layers, rows, token = range(len(decoder.layers)), 0, prompt
    made = [prompt]
    for _ in range(length):
        count = token.shape[1]
        position = torch.arange(rows, rows + count, device=prompt.device)
        mask = None if count == 1 else torch.ones(count, rows + count, dtype=torch.bool, device=prompt.device).tril(rows)
        x = decoder.run(decoder.embed(token), layers, decoder.rotation(position), mask, cache, rows)
        rows += count
        logits = decoder.logits(x[:, -1]).float()
        drawn = torch.multinomial(logits.softmax(-1), 1)[:, 0]
        token = torch.where(greedy, logits.argmax(-1), drawn)[:, None]
        made.append(token)
    return torch.cat(made, 1)


def _distil(lab: Lab, target: Decoder, tokens, work: Path, tell: Tell, batch: int = 64, prompt: int = 64, length: int = 192):
    """Self-distillation (EESD §3.2): the target's own continuations of corpus windows, parts saved as they come."""
    path, parts = work / "distilled.npy", work / "distilled"
    if not path.exists():
        parts.mkdir(parents=True, exist_ok=True)
        count = max(1, -(-lab.distil_tokens // (batch * (prompt + length))))
        greedy = torch.arange(batch, device=lab.device) % 2 == 0
        for i in range(count):
            part = parts / f"{i:05d}.npy"
            if not part.exists():
                start = torch.from_numpy(windows(tokens, batch, prompt, lab.seed + 1, i)[:, :prompt]).to(lab.device)
                made = write(target, start, length, greedy, lab.seed + i).cpu().numpy().astype(tokens.dtype)
                with replacing(part) as temporary, open(temporary, "wb") as file:
                    np.save(file, made)
            tell("distil", i + 1, count, "")
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.save(file, np.concatenate([np.load(parts / f"{i:05d}.npy") for i in range(count)]))
    return np.load(path)


def kept_out(own: np.ndarray) -> int:
    """How many of the target-written texts, the last ones, no drafter learns from: agreement is measured on them."""
    return min(64, len(own) // 4)


def blended(lab: Lab, tokens, own: np.ndarray, plan: Plan) -> Callable[[int], torch.Tensor]:
    """Batches `[rows, length + 1]` by step: rows of corpus text first, then `blend` of them written by the target."""
    written = round(lab.blend * plan.rows)
    if plan.length >= own.shape[1]:
        raise ValueError(f"drafters learn on windows of {plan.length}; texts written by the target have {own.shape[1]} tokens")

    def batch(step: int) -> torch.Tensor:
        rows = [windows(tokens, plan.rows - written, plan.length, plan.seed, step)] if written < plan.rows else []
        if written:
            draw = np.random.default_rng([plan.seed, step, 1])
            at, cut = draw.integers(0, len(own) - kept_out(own), written), draw.integers(0, own.shape[1] - plan.length, written)
            rows.append(own[at[:, None], cut[:, None] + np.arange(plan.length + 1)].astype(np.int64))
        return torch.from_numpy(np.concatenate(rows)).to(lab.device)

    return batch


def _towards(lab: Lab, name: str, target: Decoder, logits: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    if name not in lab.soft:
        return next_token(logits, batch[:, 1:])
    with torch.no_grad(), _autocast(lab):
        wanted = target(batch[:, :-1])
    return towards(logits, wanted)


def _model(lab: Lab, target: Decoder, tokens, own, out: Path, work: Path, end: int, tell: Tell) -> None:
    folder = out / "model"
    if (folder / "model.safetensors").exists():
        return
    decoder, plan = Decoder(replace(lab.model, vocab=lab.vocab)), lab.model_plan
    initialise(decoder, lab.seed + 1)
    decoder.to(lab.device)
    draw = blended(lab, tokens, own, plan)

    def loss(step):
        batch = draw(step)
        with _autocast(lab):
            logits = decoder(batch[:, :-1])
        return _towards(lab, "model", target, logits, batch)

    log = fit(work / "model", decoder, loss, plan, _told(tell, "model"))
    curve(log, work / "model.png", "drafter model: training loss")
    save_decoder(decoder, folder, end, lab.target_plan.length)


def _exit(lab: Lab, target: Decoder, tokens, own, out: Path, work: Path, tell: Tell) -> None:
    folder = out / "early_exit"
    if (folder / "exit.safetensors").exists():
        return
    plan, exit = lab.exit_plan, Exit(target, lab.depth, lab.own_head).requires_grad_(True)
    lm = exit.stand_alone(target)
    draw = blended(lab, tokens, own, plan)

    def loss(step):
        batch = draw(step)
        with _autocast(lab):
            logits = lm(batch[:, :-1])
        return _towards(lab, "early_exit", target, logits, batch)

    log = fit(work / "early_exit", exit, loss, plan, _told(tell, "early_exit"))
    curve(log, work / "early_exit.png", "drafter early_exit: training loss")
    save_part(exit, folder, "exit", _made_for(target, out))


@torch.inference_mode()
def heldout_loss(decoder: Decoder, tokens: np.ndarray, length: int, most: int = 64) -> float:
    """Mean loss in nats per token over up to `most` whole windows from the start of `tokens`, in float32."""
    count = min(most, _whole_windows(tokens, length))
    row = torch.from_numpy(tokens[: count * length + 1].astype(np.int64)).to(decoder.device)
    x, y = row[:-1].view(count, length), row[1:].view(count, length)
    parts = [next_token(decoder(x[i : i + 8]), y[i : i + 8]).item() * len(x[i : i + 8]) for i in range(0, count, 8)]
    return sum(parts) / count


@torch.inference_mode()
def agreement(lm: Decoder, target: Decoder, own: np.ndarray) -> float:
    """Share of positions in target-written text, kept out of training, at which drafter and target have the same argmax."""
    x = torch.from_numpy(own[-kept_out(own) :].astype(np.int64)).to(target.device)
    same = [(lm(x[i : i + 8]).argmax(-1) == target(x[i : i + 8]).argmax(-1)).float().mean().item() for i in range(0, len(x), 8)]
    return sum(same) / len(same)


def _drafters(lab: Lab, target: Decoder, out: Path) -> Iterator[tuple[str, Decoder]]:
    yield "model", load_decoder(out / "model", device=lab.device)
    yield "early_exit", load_part(Exit, out / "early_exit", "exit", target, _made_for(target, out)).stand_alone(target)


def _made_for(target: Decoder, out: Path) -> dict[str, str]:
    return made_for(out / "target", target, load_tokenizer(out / "target"))


def _card(lab: Lab, target: Decoder, heldout, tokens, own, out: Path, work: Path, tell: Tell) -> None:
    tell("card", 0, 1, "held-out losses")
    length = lab.target_plan.length
    models = {"target": target, **dict(_drafters(lab, target, out))}
    card = {
        "settings": {k: v for k, v in asdict(lab).items() if k not in ("text", "heldout")},
        "text": [Path(p).name for p in lab.text],
        "text_tokens": len(tokens),
        "distilled_tokens": int(own.size),
        "steps": {name: _steps(work / f"{name}.json") for name in models},
        "parameters": {name: sum(p.numel() for p in m.parameters()) for name, m in models.items()},
        "heldout_loss_nats": {
            name: {part: round(heldout_loss(m, t, length), 4) for part, t in heldout.items()} for name, m in models.items()
        },
        "predictors": {
            drafter: {name: _training(out / drafter / f"{name}.json") for name in NAMES}
            for drafter in models
            if drafter != "target"
        },
        "agreement_on_target_text": {n: round(agreement(m, target, own), 4) for n, m in models.items() if n != "target"},
        "sha256": {str(p.relative_to(out)): sha256(p) for p in sorted([*out.rglob("*.safetensors"), *out.rglob("tokenizer.json")])},
        "device": device_name(lab.device),
        "versions": versions(),
        "git": revision(),
    }
    replace_json(out / "card.json", card)
    tell("card", 1, 1, str(out / "card.json"))


def _training(path: Path) -> dict:
    return json.loads(path.read_text()).get("training", {})


def _steps(path: Path) -> int | None:
    return json.loads(path.read_text())[-1]["step"] if path.exists() else None
