"""A campaign's folder: what it was begun with, what each part found, and the models that parts share while they run."""

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

from real.campaign.config import OFFERS, CampaignConfig, lab_of
from real.decode.engine import make_passes
from real.files import replace_json
from real.model.fingerprint import sha256
from real.pair import Pair, load_pair
from real.progress import Progress, quiet
from real.prompts import Prompt, draw, read_prompts
from real.provenance import device_name, versions
from real.train.config import TrainConfig
from real.train.corpus import CorpusError
from real.train.drafter_card import read_card
from real.train.drafter_data import TrainedTarget, load_trained_target
from real.train.training_text import EncodedText, read_training_text
from simspec import CostModel, Trace, load_trace, policies

HELD = 3
"""Pairs that are kept in memory: one drafter in float32, in bf16, and in bf16 at one width; their captured passes go with them."""


class FolderError(ValueError):
    """A folder that is not this campaign's."""


@dataclass
class Folder:
    """A campaign in `out`: text, held-out text and prompts as files, its size, the device and the seed.

    | below `out` | what |
    | --- | --- |
    | campaign.json | the manifest: size, inputs by hash, device, seed, and the target's hash once there is one |
    | models/, work/ | as `real.train.pipeline.build` leaves them |
    | traces/ | recordings with cards and costs |
    | parts/ | what each part found, written when it was done, with the target's hash |
    | log/ | tracebacks |
    """

    out: Path
    size: CampaignConfig
    text: tuple[Path, ...]
    heldout: tuple[Path, ...]
    prompts: tuple[Path, ...]
    device: str = "cuda"
    seed: int = 0
    progress: Progress = quiet
    _held: dict = field(default_factory=dict)

    @property
    def models(self) -> Path:
        return self.out / "models"

    @property
    def work(self) -> Path:
        return self.out / "work"

    @cached_property
    def lab(self) -> TrainConfig:
        """What is trained."""
        return lab_of(
            self.size,
            tuple(map(str, self.text)),
            tuple(map(str, self.heldout)),
            self.device,
            self.seed,
        )

    def open(self) -> None:
        """Begins the campaign or goes on with it; FolderError where the folder holds another one, or its target is not the one it had."""
        asked = json.loads(json.dumps(self._asked()))
        manifest = self.out / "campaign.json"
        if not manifest.exists():
            replace_json(manifest, asked | {"target": None})
            return
        there = read_card(manifest)
        for key in asked:
            if there.get(key) != asked[key]:
                was, now = _short(there.get(key)), _short(asked[key])
                raise FolderError(
                    f"{self.out} was begun with {key} {was}, now it is {now}; take another --out"
                )
        weights = self.models / "target" / "model.safetensors"
        if there.get("target") and (not weights.exists() or sha256(weights) != there["target"]):
            raise FolderError(
                f"{self.out} was made with target {there['target'][:12]}, which is not the one there now; take another --out"
            )
        self.__dict__["target"] = there.get("target")

    def _asked(self) -> dict:
        files = {
            name: _hashes(paths)
            for name, paths in (
                ("text", self.text),
                ("heldout", self.heldout),
                ("prompts", self.prompts),
            )
        }
        where = {"device": device_name(self.device), "seed": self.seed, "versions": versions()}
        return {"size": asdict(self.size), **files, **where}

    @cached_property
    def target(self) -> str | None:
        """Hex SHA-256 of the target's weights; None before it has learnt."""
        weights = self.models / "target" / "model.safetensors"
        return sha256(weights) if weights.exists() else None

    def named(self) -> None:
        """Writes the target's hash into the manifest, once it has learnt."""
        self.__dict__.pop("target", None)
        replace_json(
            self.out / "campaign.json",
            read_card(self.out / "campaign.json") | {"target": self.target},
        )

    def found(self, part: str) -> dict | None:
        """What a part found; None where it is not done. FolderError for one that another target was measured in."""
        path = self.out / "parts" / f"{part}.json"
        if not path.exists():
            return None
        there = read_card(path)
        if there.get("target") not in (None, self.target):
            raise FolderError(
                f"{path} is of target {there['target'][:12]}, this is {str(self.target)[:12]}; bundles are not merged"
            )
        if not isinstance(there.get("found"), dict):
            raise FolderError(
                f"{path} does not say what the part found; delete it, and it is made anew"
            )
        return there["found"]

    def done(self, part: str, seconds: float, found: dict) -> None:
        """Writes what a part found: from now on it is done."""
        device = device_name(self.device)
        said = {
            "part": part,
            "target": self.target,
            "device": device,
            "seconds": round(seconds, 1),
            "found": found,
        }
        replace_json(self.out / "parts" / f"{part}.json", said)

    def trace(self, drafter: str, rule: str) -> Path:
        """Where the recording of a drafter lies; its costs are beside it."""
        return (
            self.out
            / "traces"
            / f"{'lab' if self.size.name == 'full' else self.size.name}-{drafter}-{rule}.parquet"
        )

    def opened(self, drafter: str, rule: str) -> tuple[Trace, CostModel]:
        """A recording and the costs beside it."""
        path = self.trace(drafter, rule)
        return load_trace(path), CostModel.from_json(path.with_suffix(".cost.json"))

    @cached_property
    def read(self) -> EncodedText:
        """The text, encoded."""
        return read_training_text(self.lab, self.models, self.work, self.progress)

    @cached_property
    def known(self) -> TrainedTarget:
        """The target and its generated sequences, for the training of drafters.

        Evaluation goes token by token: few sequences are enough beside a recording.
        """
        text = self.read
        trained = load_trained_target(
            self.lab, text.tokenizer, text.tokens, self.models, self.work, self.progress
        )
        data, count = trained.data, self.size.exam
        validation = data.validation[: max(1, count // 3)]
        data = replace(data, validation=validation, evaluation=data.evaluation[:count])
        return replace(trained, data=data)

    def forget(self) -> None:
        """Drops the models that are held."""
        self._held.clear()
        self.__dict__.pop("known", None)

    def pair(self, drafter: str, dtype: str, engine: str | None = None) -> Pair:
        """The target with a drafter, in a dtype, on the size's engine or another; the last HELD of them stay loaded."""
        size = self.size
        key = drafter, dtype, engine or size.engine
        if key not in self._held:
            while len(self._held) >= HELD:
                self._held.pop(next(iter(self._held)))
            rows = 1 + policies.parse(size.tree).submitted(min(size.K, OFFERS.get(drafter, size.K)))
            compiled = (
                None if dtype == "bfloat16" else False
            )  # what float32 is for needs no speed, and compiling takes a minute
            passes = make_passes(
                key[2], rows, max(size.longest, size.context) + size.budget, compiled
            )
            self._held[key] = load_pair(self.models, drafter, self.device, dtype, passes=passes)
        return self._held[key]

    def tasks(self) -> dict[str, int]:
        """How many prompts there are of each task, whatever their length; PromptError for files that cannot be read."""
        return Counter(p.task for path in self.prompts for p in read_prompts(path, _Unread(), 1))

    def drawn(self, tokenizer) -> list[Prompt]:
        """The campaign's prompts: so many of each task, none longer than its size allows."""
        read_ = [
            p for path in self.prompts for p in read_prompts(path, tokenizer, self.size.longest)
        ]
        return draw(read_, self.size.per_task, self.seed)


class _Unread:
    """In a tokenizer's place before there is one: every text is one token."""

    ids = (0,)

    def encode(self, text: str, **_) -> "_Unread":
        if not isinstance(text, str):
            raise TypeError("no text")
        return self


def _hashes(paths: tuple[Path, ...]) -> dict[str, str]:
    files = [
        f
        for path in paths
        for f in (sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path])
    ]
    if missing := [f for f in files if not f.exists()]:
        raise CorpusError(f"{missing[0]} does not exist; expected a file, or a folder of them")
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def _short(value) -> str:
    text = json.dumps(value, sort_keys=True)
    return (
        text
        if len(text) <= 60
        else f"{text[:40]}.. ({hashlib.sha256(text.encode()).hexdigest()[:8]})"
    )
