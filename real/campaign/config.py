"""The settings of a campaign, by stage."""

from dataclasses import dataclass

from real.model.config import DecoderConfig
from real.train.schedule import TrainSchedule

REQUIRED = ("model", "early_exit", "eagle", "medusa")
"""Drafters that a campaign trains before all others."""
RECOMMENDED = ("glide", "hydra")
MAX_DRAFT_LENGTHS = {"medusa": 4, "hydra": 4}
"""Drafters whose draft length is bounded by their heads."""
TREE_DRAFTERS = ("early_exit", "eagle", "medusa")
"""Drafters whose recordings hold dynamic trees, and whose costs price trees."""

Settings = tuple[tuple[str, object], ...]


@dataclass(frozen=True)
class TrainingStage:
    """Training of the target and its drafters.

    | field | meaning |
    | --- | --- |
    | vocab, sample, target | tokens and sample documents of the BPE; sizes of the target |
    | drafter_settings | by drafter, as `DrafterTraining.settings` |
    | target_plan, drafter_plan | steps or minutes, batch and rate |
    | rate_factor | drafters learn at this multiple of their recipe's rate |
    | distil_tokens, batch, judged, predictor_texts, rank, trials | as in `TrainConfig` |
    | draft_vocab | tokens that drafters' heads score; 0: all |
    | exam | held-out sequences that drafters are evaluated on; a third as many select weights |
    | compiled | layers are compiled, on CUDA |
    """

    vocab: int
    sample: int
    target: DecoderConfig
    drafter_settings: tuple[tuple[str, Settings], ...]
    target_plan: TrainSchedule
    drafter_plan: TrainSchedule
    rate_factor: float
    distil_tokens: int
    batch: int
    judged: int
    exam: int
    predictor_texts: int
    rank: int
    trials: int
    compiled: bool
    draft_vocab: int = 0


@dataclass(frozen=True)
class RecordingStage:
    """Prompts per task, longest prompt, new tokens, draft depth; width and levels of trees."""

    per_task: int
    longest: int
    budget: int
    K: int
    tree_size: tuple[int, int]


@dataclass(frozen=True)
class CostStage:
    """Cost measurements: context, rounds and repeats; submitted tokens of the largest tree."""

    context: int
    rounds: int
    repeats: int
    tree_nodes: int


@dataclass(frozen=True)
class PolicyChoice:
    """Policies that run: chains beside the best fixed length, one tree, and recorded trees."""

    chains: tuple[str, ...]
    tree: str
    trees: tuple[str, ...]


@dataclass(frozen=True)
class CheckStage:
    """Prompts per drafter of each check, and the least number of tokens compared in float32."""

    equal: int
    forced: int
    audited: int
    min_tokens: int


@dataclass(frozen=True)
class ScoringStage:
    """Scored prompts per drafter (as many others give the costs), and runs of each policy."""

    prompts: int
    repeats: int


@dataclass(frozen=True)
class LatencyStage:
    """Pass latencies: models by name, sizes, repeats, and drafters whose step is timed."""

    models: tuple[tuple[str, str], ...]
    widths: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    repeats: int
    drafters: tuple[str, ...]


@dataclass(frozen=True)
class RaceStage:
    """The race: transformers' ways to generate, prompts, new tokens, repeats, tuning prompts."""

    rivals: tuple[str, ...]
    prompts: int
    budget: int
    repeats: int
    tune_prompts: int


@dataclass(frozen=True)
class EmulationStage:
    """The large model with random weights, its drafters by the recording's, prompts of each."""

    model: str
    drafters: tuple[tuple[str, str], ...]
    prompts: int


@dataclass(frozen=True)
class CampaignConfig:
    """All that decides the results of a campaign.

    | field | meaning |
    | --- | --- |
    | pace | factor on the estimated seconds of stages |
    | engine | of recordings, costs and runs; trees are eager |
    | archive_bytes | largest archive, bytes |
    """

    name: str
    pace: float
    engine: str
    archive_bytes: int
    training: TrainingStage
    recording: RecordingStage
    costs: CostStage
    policies: PolicyChoice
    checks: CheckStage
    scoring: ScoringStage
    latency: LatencyStage
    race: RaceStage
    emulation: EmulationStage
