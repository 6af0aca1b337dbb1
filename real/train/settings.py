"""Settings of a training: the options of `simspec train`, its interface and what a card stores."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from real.files import TINY, check_embedded_models
from simspec.numerics.rng import check_seed
from simspec.output.names import expected_one
from simspec.settings import Settings, argument, option

PREDICTORS = "predictors"
"""In place of a drafter: the acceptance predictors of those that are there."""
SEARCHED = "self_skip"
"""The drafter whose settings are searched."""


@dataclass(frozen=True)
class Training(Settings):
    """One drafter to train for a target."""

    drafter: Annotated[
        str,
        argument(
            "A drafter's name; self_skip is searched; predictors: acceptance predictors of the "
            "drafters that are there."
        ),
    ]
    out: Annotated[Path, option("The model folder, which gets a folder for the drafter.")]
    text: Annotated[
        tuple[str, ...],
        argument(
            "Text files or folders, cut into prompts of 64 tokens that the target continues: "
            '.txt, .md, .jsonl or .jsonl.xz with a "text" field.'
        ),
    ] = ()
    target: Annotated[
        str | None,
        option("A checkpoint, folder or hub name; default: <out>/target, else the embedded one."),
    ] = None
    prompts: Annotated[
        tuple[Path, ...],
        option("Prompts that the target continues, repeatable: JSON lines as for record."),
    ] = ()
    longest: Annotated[
        int, option("Longest prompt of --prompts taken, in tokens.", ge=1, le=1 << 20)
    ] = 1024
    distil_tokens: Annotated[
        int, option("Tokens that the target writes for its drafters.", ge=1, le=1 << 40)
    ] = 1_000_000
    learn_text: Annotated[
        int,
        option(
            "Tokens of TEXT to learn as they are, chats in the template; "
            "TEXT is then not cut into prompts.",
            ge=0,
            le=1 << 40,
        ),
    ] = 0
    dtype: Annotated[
        Literal["float32", "bfloat16", "float64"],
        option(
            "In which the target writes and computes features; bfloat16 is faster where the "
            "device multiplies it. Drafters train for float32."
        ),
    ] = "float32"
    work: Annotated[
        Path | None, option("Text, features, checkpoints, losses; default <out>-work.")
    ] = None
    name: Annotated[
        str | None, option("The drafter's folder in --out; default: the drafter's name.")
    ] = None
    settings: Annotated[
        tuple[str, ...],
        option(
            "key=value for the drafter, repeatable: inputs=token; soft=true or false learns the "
            "target's distribution or its tokens.",
            "--set",
        ),
    ] = ()
    recipe: Annotated[
        Literal["ours", "paper"],
        option("ours, for minutes of training; or paper: as the drafter's authors print it."),
    ] = "ours"
    rate: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        option("Peak learning rate; default: the recipe's, which falls with the width."),
    ] = None
    draft_vocab: Annotated[
        int,
        option(
            "Number of tokens that the drafter's head scores, the most frequent in its data; "
            "0: all. The output stays the target's.",
            ge=0,
            le=1 << 22,
        ),
    ] = 0
    start: Annotated[
        str | None,
        option(
            "Start from the weights of another folder in --out; --steps 0 keeps them, as for a "
            "draft vocabulary of a drafter that is trained.",
            "--from",
        ),
    ] = None
    minutes: Annotated[float, option("How long to train.", gt=0, le=1e6)] = 6.0
    steps: Annotated[
        Annotated[int, Meta(ge=0, le=1 << 40)] | None, option("Exact steps in place of minutes.")
    ] = None
    rows: Annotated[int, option("Sequences of a step.", ge=1, le=1 << 16)] = 16
    device: Annotated[str, option("cpu, cuda or cuda:1.")] = "cpu"
    seed: Annotated[int, option("Of all draws.")] = 0
    as_json: Annotated[bool, option("Print one JSON object on stdout.", "--json")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seed(self.seed)
        if self.name is not None and (
            Path(self.name).name != self.name or self.name in ("", ".", "..", "target")
        ):
            raise ValueError(
                f"--name is {self.name!r}; expected a folder among the models, such as eagle-token"
            )
        if self.learn_text and not (self.text and self.prompts):
            raise ValueError("--learn-text takes text to learn, and --prompts to continue")
        for path in self.prompts:
            if not path.is_file():
                raise ValueError(f"{path} does not exist; expected JSON lines of prompts")
        for folder in (self.out, self.work):
            if folder is not None and folder.exists() and not folder.is_dir():
                raise ValueError(f"{folder} is a file, expected a folder")
        if self.start is not None and not (self.out / self.start).is_dir():
            raise ValueError(f"--from names {self.out / self.start}, which does not exist")
        if self.steps == 0 and self.start is None:
            raise ValueError("--steps 0 keeps the weights of another drafter: name it by --from")
        _ = self.chosen

    @property
    def place(self) -> str:
        """The drafter's folder among the models and in the work folder."""
        return self.name or self.drafter

    @property
    def work_folder(self) -> Path:
        """Text that the target wrote, features, checkpoints and losses."""
        return self.work or self.out.with_name(self.out.name + "-work")

    @property
    def target_path(self) -> str | Path:
        """The target's checkpoint."""
        own = self.out / "target"
        if not self.target and not own.is_dir():
            check_embedded_models()
        return self.target or (own if own.is_dir() else TINY / "target")

    @property
    def chosen(self) -> dict[str, Any]:
        """The key=value settings; a value is JSON if possible (4, true, [8, 9]), else text."""
        chosen: dict[str, Any] = {}
        for item in self.settings:
            key, equals, value = item.partition("=")
            if not (key and equals) or key in chosen:
                raise ValueError(
                    f"--set {item!r} is no setting; expected key=value, such as layers=2, "
                    "each key once"
                )
            try:
                chosen[key] = json.loads(value)
            except (ValueError, RecursionError):
                chosen[key] = value
        return chosen


def check_drafter(name: str, trainable: tuple[str, ...], known: tuple[str, ...]) -> None:
    """ValueError for a drafter that is unknown, or has nothing to learn."""
    choices = (*trainable, SEARCHED, PREDICTORS)
    if name in choices:
        return
    if name in known:
        raise ValueError(f"{name} has nothing to learn; expected one of {', '.join(choices)}")
    raise ValueError(f"no drafter is called {name!r}: {expected_one(name, choices)}")
