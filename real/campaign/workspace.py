"""A campaign's workspace: settings, results of stages, and the models that stages share."""

import hashlib
import json
import re
import shutil
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch

from real.campaign.config import MAX_DRAFT_LENGTHS, CampaignConfig, training_of
from real.decode.engine import make_passes
from real.files import read_card, replace_json, replacing
from real.jobs.convert import import_gguf
from real.model.stored_weights import sha256
from real.pair import Pair, load_pair
from real.progress import Progress, quiet
from real.prompts import (
    LeftOut,
    Prompt,
    PromptError,
    PromptFormat,
    draw,
    load_chat_template,
    read_rows,
)
from real.prompts import read_prompts as read_prompt_file
from real.provenance import device_name, versions
from real.train.config import TrainConfig
from real.train.corpus import CorpusError, EncodedText, read_training_text
from real.train.drafter_data import (
    TargetData,
    TrainedTarget,
    load_target,
    load_trained_target,
    longest_prompt,
    target_data,
)
from real.train.pipeline import Folders
from real.train.prompt_set import PromptSources
from simspec import CostModel, Trace, load_trace, policies

FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "card.json",
    "model.safetensors",
)
"""Files of a checkpoint, the weights last: with them it is complete."""


class CheckpointError(ValueError):
    """A folder that is no checkpoint in one safetensors file."""


def check_checkpoint(folder: Path) -> None:
    """CheckpointError unless the folder has a config, a tokenizer and model.safetensors.

    A .gguf file will do as well.
    """
    if folder.suffix == ".gguf" and folder.is_file():
        return
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise CheckpointError(
                f"{folder} holds no {name}; expected a .gguf file, or a transformers checkpoint "
                "in one safetensors file"
            )


def take_checkpoint(source: Path, folder: Path, progress: Progress = quiet) -> None:
    """Copies a checkpoint's files, each whole or not at all, or imports a .gguf file."""
    check_checkpoint(source)
    if source.suffix == ".gguf":
        import_gguf(source, folder, progress=progress)
        return
    for name in FILES:
        if (source / name).is_file():
            with replacing(folder / name) as temporary:
                shutil.copyfile(source / name, temporary)


def checkpoint_name(source: Path) -> str:
    """Letters and digits of its name, for the names of its recordings: smollm2."""
    name = source.parent.name if source.name == "target" else source.stem
    return re.sub("[^a-z0-9]", "", name.lower()) or "target"


def weights_of(source: Path) -> Path:
    """The file that holds the weights."""
    return source if source.suffix == ".gguf" else source / "model.safetensors"


def prompt_format(folder: Path, tokenizer) -> PromptFormat:
    """How prompts become tokens for a given target: by its chat template, where it has one."""
    return PromptFormat(tokenizer, load_chat_template(folder))


MAX_LOADED = 3
"""Loaded pairs: one drafter in float32, in bf16, and in bf16 at one width, captures included."""


class WorkspaceError(ValueError):
    """A workspace of another campaign."""


@dataclass
class Workspace:
    """A campaign in `out`: its settings, text and prompt files, device and seed.

    With `checkpoint`, the folder of a target, none is trained; the target writes the drafters'
    training sequences as continuations of `training_prompts` and the text. Drafters that have a
    folder below `start` start from the weights there. `seconds_left` of the call are known when a
    stage starts.

    | below `out` | what |
    | --- | --- |
    | campaign.json | settings, hashes of inputs, device, seed; the target's hash once trained |
    | models/, work/ | as `real.train.pipeline.build` leaves them |
    | traces/ | recordings with cards and costs |
    | parts/ | the result of each stage, with the target's hash |
    | log/ | tracebacks |
    """

    out: Path
    config: CampaignConfig
    text: tuple[Path, ...]
    heldout: tuple[Path, ...]
    prompts: tuple[Path, ...]
    device: str = "cuda"
    seed: int = 0
    progress: Progress = quiet
    checkpoint: Path | None = None
    training_prompts: tuple[Path, ...] = ()
    start: Path | None = None
    seconds_left: float = float("inf")
    _loaded: dict = field(default_factory=dict)

    @property
    def models(self) -> Path:
        """The model folder."""
        return self.out / "models"

    @property
    def work(self) -> Path:
        """Tokens, checkpoints and curves."""
        return self.out / "work"

    @property
    def folders(self) -> Folders:
        """Both of them."""
        return Folders(self.models, self.work)

    @cached_property
    def train_config(self) -> TrainConfig:
        """The training of this campaign; ValueError where `start` holds none of its drafters."""
        config = training_of(
            self.config,
            tuple(map(str, self.text)),
            tuple(map(str, self.heldout)),
            self.device,
            self.seed,
        )
        if self.start is None:
            return config
        places = [each.place for each in config.drafters]
        there = {place for place in places if (self.start / place / "card.json").is_file()}
        if not there:
            raise ValueError(
                f"{self.start} holds no drafter to start from; expected a folder with card.json, "
                f"named as one of {', '.join(places)}"
            )
        return replace(
            config,
            drafters=tuple(
                replace(each, start=self.start / each.place) if each.place in there else each
                for each in config.drafters
            ),
        )

    def open(self) -> None:
        """Starts or continues the campaign.

        WorkspaceError where the folder holds another campaign, or another target.
        """
        settings = json.loads(json.dumps(self._settings()))
        manifest = self.out / "campaign.json"
        if not manifest.exists():
            replace_json(manifest, settings | {"target": None})
            return
        stored = read_card(manifest)
        for key in settings:
            if stored.get(key) != settings[key]:
                was, now = _short(stored.get(key)), _short(settings[key])
                raise WorkspaceError(
                    f"{self.out} was started with {key} {was}, now it is {now}; take another --out"
                )
        weights = self.models / "target" / "model.safetensors"
        if stored.get("target") and (not weights.exists() or sha256(weights) != stored["target"]):
            raise WorkspaceError(
                f"{self.out} was made with target {stored['target'][:12]}, "
                "which is not the one there now; take another --out"
            )
        self.__dict__["target"] = stored.get("target")

    def _settings(self) -> dict:
        files = {
            name: _hashes(paths)
            for name, paths in (
                ("text", self.text),
                ("heldout", self.heldout),
                ("prompts", self.prompts),
            )
        }
        if self.checkpoint is not None:
            files |= {
                "checkpoint": _hashes((weights_of(self.checkpoint),)),
                "training_prompts": _hashes(self.training_prompts),
            }
        starts = {
            each.place: sha256(each.start) for each in self.train_config.drafters if each.start
        }
        begun = {"start": starts or None}
        where = {"device": device_name(self.device), "seed": self.seed, "versions": versions()}
        return {"size": asdict(self.config), **files, **begun, **where}

    @cached_property
    def target(self) -> str | None:
        """Hex SHA-256 of the target's weights; None before training."""
        weights = self.models / "target" / "model.safetensors"
        return sha256(weights) if weights.exists() else None

    def save_target_hash(self) -> None:
        """Writes the trained target's hash into the manifest."""
        self.__dict__.pop("target", None)
        replace_json(
            self.out / "campaign.json",
            read_card(self.out / "campaign.json") | {"target": self.target},
        )

    def result(self, stage: str) -> dict | None:
        """The result of a stage, None where it is not done; WorkspaceError for another target's."""
        path = self.out / "parts" / f"{stage}.json"
        if not path.exists():
            return None
        stored = read_card(path)
        if stored.get("target") not in (None, self.target):
            raise WorkspaceError(
                f"{path} is of target {stored['target'][:12]}, this is {str(self.target)[:12]}; "
                "campaigns are not merged"
            )
        if not isinstance(stored.get("found"), dict):
            raise WorkspaceError(
                f"{path} holds no result of a stage; delete it, and the stage runs again"
            )
        return stored["found"]

    def save_result(self, stage: str, seconds: float, result: dict) -> None:
        """Writes the result of a stage, which is then done."""
        device = device_name(self.device)
        record = {
            "part": stage,
            "target": self.target,
            "device": device,
            "seconds": round(seconds, 1),
            "found": result,
        }
        replace_json(self.out / "parts" / f"{stage}.json", record)

    def trace(self, drafter: str, rule: str) -> Path:
        """The file of a drafter's recording; its costs are next to it."""
        prefix = "lab" if self.config.name == "full" else self.config.name
        if self.checkpoint is not None:
            prefix = checkpoint_name(self.checkpoint)
        return self.out / "traces" / f"{prefix}-{drafter}-{rule}.parquet"

    def open_recording(self, drafter: str, rule: str) -> tuple[Trace, CostModel]:
        """A recording and the costs next to it."""
        path = self.trace(drafter, rule)
        return load_trace(path), CostModel.from_json(path.with_suffix(".cost.json"))

    @cached_property
    def read(self) -> EncodedText:
        """The text, encoded."""
        return read_training_text(self.train_config, self.models, self.work, self.progress)

    @cached_property
    def known(self) -> TrainedTarget | TargetData:
        """The target and its generated sequences, for the training of drafters.

        Evaluation goes token by token: it needs far fewer sequences than a recording.
        """
        trained = self._trained_target() if self.checkpoint is None else self._given_target()
        data, count = trained.data, self.config.training.exam
        validation = data.validation[: max(1, count // 3)]
        data = replace(data, validation=validation, evaluation=data.evaluation[:count])
        return replace(trained, data=data)

    def _trained_target(self) -> TrainedTarget:
        text = self.read
        return load_trained_target(
            self.train_config, text.tokenizer, text.tokens, self.models, self.work, self.progress
        )

    def _given_target(self) -> TargetData:
        config, folder = self.train_config, self.models / "target"
        written = self.result("distil")
        if written is not None:  # as many as the time allowed
            config = replace(config, distil_tokens=written["tokens"])
        dtype = torch.bfloat16 if self.device.startswith("cuda") else torch.float32
        target = load_target(folder, self.device, dtype)
        longest = longest_prompt(target.context, config.new_tokens, self.config.recording.longest)
        form = prompt_format(folder, target.tokenizer)
        sources = PromptSources(self.training_prompts, config.text, form, longest, self.seed)
        return target_data(config, target, sources, self.work, self.progress)

    def unload_models(self) -> None:
        """Drops loaded models."""
        self._loaded.clear()
        self.__dict__.pop("known", None)

    def pair(self, drafter: str, dtype: str, engine: str | None = None) -> Pair:
        """The target with a drafter, on the campaign's engine unless named; MAX_LOADED stay."""
        config = self.config
        key = drafter, dtype, engine or config.engine
        if key not in self._loaded:
            while len(self._loaded) >= MAX_LOADED:
                self._loaded.pop(next(iter(self._loaded)))
            rows = 1 + policies.parse(config.policies.tree).submitted(
                min(config.recording.K, MAX_DRAFT_LENGTHS.get(drafter, config.recording.K))
            )
            compiled = (
                None if dtype == "bfloat16" else False
            )  # what float32 is for needs no speed, and compiling takes a minute
            passes = make_passes(
                key[2],
                rows,
                max(config.recording.longest, config.costs.context) + config.recording.budget,
                compiled,
            )
            self._loaded[key] = load_pair(self.models, drafter, self.device, dtype, passes=passes)
        return self._loaded[key]

    def tasks(self) -> dict[str, int]:
        """Prompts of each task, of any length; PromptError for unreadable and empty files."""
        files = {path: read_rows(path) for path in self.prompts}
        if empty := [path for path, rows in files.items() if not rows]:
            raise PromptError(f"{empty[0]} holds no prompt; expected a JSON object on each line")
        return Counter(row.task for rows in files.values() for row in rows)

    def read_prompts(self, tokenizer) -> list[Prompt]:
        """The campaign's prompts: the configured number of each task, up to the longest allowed."""
        config, form = self.config.recording, PromptFormat(tokenizer)
        if self.checkpoint is not None:
            form = prompt_format(self.models / "target", tokenizer)
        read = [read_prompt_file(path, form, config.longest) for path in self.prompts]
        left_out = sum((left for _, left in read), LeftOut())
        prompts = draw([p for part, _ in read for p in part], config.per_task, self.seed)
        if left_out.count:
            self.progress("reading prompts", len(prompts), len(prompts), left_out.describe())
        return prompts


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
