"""Exchange with serving engines: what `simspec import` reads and `simspec export` writes.

An extra adds formats of its own to EXTRA_IMPORTS and EXTRA_EXPORTS when its commands register:
{name: function of the settings that returns what it wrote, as plain data}.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from simspec.settings import Settings, argument, option

IMPORT_FORMATS = (
    "vllm-requests", "vllm-log", "vllm-prometheus", "vllm-bench-serve", "sglang", "tensorrt-llm",
    "tensorrt-llm-stats", "sglang-log", "sglang-prometheus",
    "llamacpp-log", "llamacpp-timings", "llamacpp-prometheus",
    "guidellm", "aiperf", "specdecode-bench",
)  # fmt: skip
EXPORT_FORMATS = (
    "vllm", "vllm-synthetic", "sglang", "llamacpp", "transformers", "aiconfigurator", "blis",
)  # fmt: skip
LONGEST_DRAFT = 255
"""Tokens of a draft: recordings hold lengths in a byte."""
Length = Annotated[int, Meta(ge=1, le=LONGEST_DRAFT)]
Context = Annotated[int, Meta(ge=0, le=1 << 24)]
Milliseconds = Annotated[float, Meta(gt=0, le=1e6)]
Sizes = Annotated[str, Meta(pattern=r"^\d{1,9}(,\d{1,9}){0,999}$")]


@dataclass(frozen=True)
class Import(Settings):
    """Settings of `simspec import`; some are facts that only the user knows."""

    format: Annotated[
        str,
        argument(f"One of {', '.join(IMPORT_FORMATS)}; with the extra real: gguf, vllm-forward."),
    ]
    files: Annotated[
        tuple[Path, ...],
        argument(
            "The file that the other tool wrote; of several, in order: has acceptance fallen?"
        ),
    ]
    out: Annotated[
        Path | None,
        option("Write the recording, a .parquet file, or the costs; of gguf: the new folder."),
    ] = None
    at: Annotated[
        tuple[Length, ...], option("A draft length whose accepted length is asked for, repeatable.")
    ] = ()
    drafted: Annotated[
        Length | None, option("Tokens drafted in each round, where the file does not say.")
    ] = None
    temperature: Annotated[
        float, option("Of the recording: rule greedy at 0, else coupled.", ge=0, lt=1e6)
    ] = 0.0
    target: Annotated[str, option("Name of the target.")] = "unknown"
    end_token: Annotated[tuple[int, ...], option("A token that ends a sequence, repeatable.")] = ()
    before: Annotated[Path | None, option("Counters scraped earlier, to subtract.")] = None
    step_ms: Annotated[
        Milliseconds | None,
        option("Of vllm-forward: one measured plain step of the smallest batch."),
    ] = None
    as_json: Annotated[bool, option("Print one JSON object instead of tables.", "--json")] = False

    @property
    def file(self) -> Path:
        """The only file; ValueError where there are several."""
        if len(self.files) != 1:
            raise ValueError(
                f"{len(self.files)} files were given, expected one: of several only a series is "
                "read, without --out and --at"
            )
        return self.files[0]


@dataclass(frozen=True)
class Export(Settings):
    """Settings of `simspec export`."""

    format: Annotated[
        str, argument(f"One of {', '.join(EXPORT_FORMATS)}; with the extra real: drafter.")
    ]
    recordings: Annotated[
        tuple[str, ...],
        argument("Of one target and drafter: files, or bundled names; of drafter: its folder."),
    ]
    out: Annotated[Path, option("File to write; FILE.provenance.json says where it comes from.")]
    cost: Annotated[
        str | None,
        option(
            "A cost file, or the ratio draft step / target step; "
            "default: NAME.cost.json next to each recording."
        ),
    ] = None
    policy: Annotated[
        str | None, option("name[:arg,...]; default: the best fixed length at each batch size.")
    ] = None
    batch_sizes: Annotated[
        Sizes | None, option("Of a cost table, such as 1,8,64; default: all that it holds.")
    ] = None
    context: Annotated[Context | None, option("Of a cost table: tokens before the round.")] = None
    captured: Annotated[
        Context, option("Rows of the largest captured graph: batch (K + 1) at most; 0: any.")
    ] = 512
    method: Annotated[
        str | None, option("The engine's name of the mechanism; default: by the drafter.")
    ] = None
    draft_model: Annotated[
        str | None, option("Path or name of the draft model, for the engine.")
    ] = None
    engine: Annotated[str | None, option("Of format drafter: vllm, transformers or llamacpp.")] = (
        None
    )
    target: Annotated[
        Path | None,
        option("Of format drafter: the target's checkpoint; for llamacpp its GGUF file."),
    ] = None
    as_json: Annotated[bool, option("Print one JSON object instead of a table.", "--json")] = False


EXTRA_IMPORTS: dict[str, Callable[[Import], dict[str, Any]]] = {}
EXTRA_EXPORTS: dict[str, Callable[[Export], dict[str, Any]]] = {}
