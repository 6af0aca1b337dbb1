"""Settings of a campaign by stage: FULL for a GPU, TOY for a CPU, each for a given target too."""

from dataclasses import dataclass, replace

from real.bench.hf_generate import HF_METHODS
from real.measure.latency_grid import BATCHES, CONTEXTS, WIDTHS
from real.model.config import DecoderConfig
from real.train.config import TrainConfig, drafter_training, recipe_of
from real.train.optimizers import TrainSchedule

REQUIRED = ("eagle", "early_exit", "model", "medusa")
"""Drafters that a campaign trains and records before all others, in this order."""
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
    | plans | by drafter, what it changes of `drafter_plan`: minutes, rows |
    | rate_factor | drafters learn at this multiple of their recipe's rate |
    | distil_tokens, batch, judged, predictor_texts, rank, trials | as in `TrainConfig` |
    | draft_vocab | tokens that drafters' heads score; 0: all |
    | distil_seconds | a given target stops writing after them, short of distil_tokens; 0: never |
    | ablations | name, drafter and changed settings of drafters that are trained and not recorded |
    | text_tokens | tokens of the text that drafters of a given target learn as they are |
    | soft | learn the target's distribution; None: as each recipe says |
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
    text_tokens: int = 0
    soft: bool | None = None
    plans: tuple[tuple[str, Settings], ...] = ()
    distil_seconds: float = 0.0
    ablations: tuple[tuple[str, str, Settings], ...] = ()


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
    """Policies that run: chains and the best fixed length, one tree, and recorded trees."""

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
    """Scored prompts per drafter (as many others give the costs), and runs of each policy.

    Of recordings under `rules`, cut to `budget` new tokens; 0: as recorded.
    """

    prompts: int
    repeats: int
    rules: tuple[str, ...] = ("coupled",)
    budget: int = 0


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


# 191.5 M parameters in 20 layers, 7.3 M of the embedding. 64 windows of 512 are 33 thousand tokens
# a step; 31 million tokens of text (three shards at 3.4 bytes a token) pass about two and a half
# times at 300 thousand a second in the time given. A save is 1.6 GB: few of them.
FULL = CampaignConfig(
    name="full",
    pace=1.0,
    engine="fast",
    archive_bytes=2_400_000,  # what is kept free for it, see tests/test_size.py
    training=TrainingStage(
        vocab=8192,
        sample=8000,
        target=DecoderConfig(8192, 896, 20, 14, 14, 64, 2368),
        drafter_settings=(
            (
                "model",
                (("width", 384), ("layers", 4), ("heads", 6), ("head_dim", 64), ("hidden", 1024)),
            ),
            ("early_exit", (("depth", 3),)),
        ),
        target_plan=TrainSchedule(minutes=3.9, rows=64, length=512, rate=1.5e-3, save_every=1000),
        drafter_plan=TrainSchedule(
            minutes=0.4, rows=128, length=192, save_every=1000, every=1 << 30
        ),
        rate_factor=0.42,  # sqrt(160 / 896): recipes were found at the tiny target's width
        distil_tokens=2_000_000,
        batch=512,
        judged=24,
        exam=12,
        predictor_texts=96,
        rank=8,
        trials=60,
        compiled=True,
    ),
    recording=RecordingStage(per_task=24, longest=400, budget=160, K=16, tree_size=(8, 6)),
    costs=CostStage(context=256, rounds=12, repeats=1, tree_nodes=48),
    policies=PolicyChoice(
        chains=("beta_ts", "cali_ts", "confidence:0.5"),
        tree="static:2x1x1",
        trees=("static:2x1x1", "dynamic_tree:8", "cape"),
    ),
    checks=CheckStage(equal=3, forced=24, audited=12, min_tokens=20_000),
    scoring=ScoringStage(prompts=3, repeats=3),
    latency=LatencyStage(
        models=(("8b", "llama-3-8b"), ("7b", "llama-2-7b")),
        widths=WIDTHS,
        batches=BATCHES,
        contexts=CONTEXTS,
        repeats=10,
        drafters=("early_exit:4", "eagle", "medusa"),
    ),
    race=RaceStage(rivals=HF_METHODS, prompts=9, budget=64, repeats=1, tune_prompts=3),
    emulation=EmulationStage(
        model="llama-3-8b",
        drafters=(
            ("model", "model:llama-3.2-1b"),
            ("early_exit", "early_exit:4"),
            ("eagle", "eagle"),
            ("medusa", "medusa"),
        ),
        prompts=6,
    ),
)

TOY = replace(
    FULL,
    name="toy",
    pace=0.01,
    engine="eager",
    training=replace(
        FULL.training,
        vocab=300,
        sample=100,
        target=DecoderConfig(300, 16, 3, 2, 2, 8, 24),
        drafter_settings=(
            ("model", (("width", 8), ("layers", 1), ("heads", 1), ("head_dim", 8), ("hidden", 16))),
        ),
        target_plan=TrainSchedule(steps=4, rows=2, length=16, save_every=2),
        drafter_plan=TrainSchedule(steps=4, rows=2, length=16, save_every=2, every=1 << 30),
        rate_factor=1.0,
        distil_tokens=1024,
        batch=8,
        judged=8,
        exam=8,
        predictor_texts=2,
        rank=2,
        trials=4,
        compiled=False,
    ),
    recording=RecordingStage(per_task=2, longest=4000, budget=8, K=3, tree_size=(2, 2)),
    costs=CostStage(context=8, rounds=1, repeats=1, tree_nodes=6),
    policies=replace(FULL.policies, trees=("static:2x1x1", "dynamic_tree:4")),
    checks=CheckStage(equal=2, forced=2, audited=2, min_tokens=100),
    scoring=ScoringStage(prompts=2, repeats=2),
    latency=LatencyStage(
        models=(("8b", "2x16x2x300"), ("7b", "2x16x2x300")),
        widths=(1, 2, 5),
        batches=(1, 2),
        contexts=(8, 16),
        repeats=2,
        drafters=("early_exit:1", "eagle"),
    ),
    race=RaceStage(rivals=HF_METHODS, prompts=2, budget=6, repeats=1, tune_prompts=1),
    emulation=EmulationStage(
        model="2x16x2x300",
        drafters=(
            ("model", "model:1x8x2x300"),
            ("early_exit", "early_exit:1"),
            ("eagle", "eagle"),
            ("medusa", "medusa"),
        ),
        prompts=2,
    ),
)


def with_checkpoint(config: CampaignConfig, drafter_settings: tuple) -> CampaignConfig:
    """The same campaign for a target that exists: it is not trained, and writes the text."""
    training = replace(config.training, drafter_settings=drafter_settings)
    return replace(config, name=f"{config.name}-checkpoint", training=training)


LONGER = ("minutes", 1.4)
CONFIDENT = ("cali_ts:predictor=confidence", "confidence:0.4")

# For a chat model of about 135 M parameters with 49,152 tokens, such as SmolLM2-135M-Instruct. Its
# head is a fifth of a step: drafters score the 8,192 most frequent tokens. Sizes are those whose
# costs traces/smollm2 has.
FULL_CHECKPOINT = with_checkpoint(
    replace(
        FULL,
        training=replace(
            FULL.training,
            drafter_plan=TrainSchedule(minutes=0.7, rows=64, length=792, save_every=1 << 30),
            plans=(("eagle", (LONGER, ("rows", 128))), ("eagle-free", (LONGER,))),
            distil_seconds=60,
            # EAGLE-3 (arXiv 2503.01840 §3) drops the regression for the sake of more text; a
            # million tokens on a CPU showed no gain: 1.26 accepted of 5 without, 1.28 with it
            ablations=(
                ("eagle-free", "eagle", (("regression", 0.0),)),
                ("glide-last", "glide", (("reads", (29,)),)),
            ),
            rate_factor=0.28,  # 160 / 576, as `scaled_rate`
            distil_tokens=4_500_000,
            draft_vocab=8192,
            text_tokens=1_500_000,
            soft=True,
            judged=48,
            exam=64,
        ),
        recording=replace(FULL.recording, longest=600, budget=128),
        policies=replace(FULL.policies, chains=(*FULL.policies.chains[:2], *CONFIDENT, "cost_ts")),
        scoring=ScoringStage(prompts=20, repeats=5, rules=("greedy", "coupled"), budget=32),
    ),
    (
        ("model", (("width", 256), ("layers", 2), ("heads", 4), ("head_dim", 64), ("hidden", 704))),
        ("early_exit", (("depth", 3), ("own_head", True))),
        ("eagle", (("bias", False), ("unroll", 3))),
        ("medusa", (("blocks", 1),)),
        ("glide", (("reads", (15,)),)),
    ),
)

TOY_CHECKPOINT = with_checkpoint(
    replace(
        TOY,
        training=replace(
            TOY.training,
            draft_vocab=32,
            ablations=(("eagle-token", "eagle", (("inputs", "token"),)),),
        ),
        scoring=replace(TOY.scoring, rules=("greedy", "coupled"), budget=6),
    ),
    TOY.training.drafter_settings,
)


def training_of(
    config: CampaignConfig, text: tuple[str, ...], heldout: tuple[str, ...], device: str, seed: int
) -> TrainConfig:
    """The training of a campaign, optional drafters included."""
    t = config.training
    settings = {name: dict(values) for name, values in t.drafter_settings}
    plan, plans = replace(t.drafter_plan, seed=seed), dict(t.plans)
    trained = [(name, name, settings.get(name, {})) for name in (*REQUIRED, *RECOMMENDED)]
    trained += [
        (name, drafter, settings.get(drafter, {}) | dict(changed))
        for name, drafter, changed in t.ablations
    ]
    drafters = tuple(
        replace(
            drafter_training(
                drafter,
                replace(plan, **dict(plans.get(name, ()))),  # type: ignore[arg-type]
                t.soft,
                settings=given,
                folder=name if name != drafter else "",
                rate=t.rate_factor * recipe_of(drafter).rate,
            ),
            draft_vocab=t.draft_vocab,
        )
        for name, drafter, given in trained
    )
    return TrainConfig(
        text,
        heldout,
        t.vocab,
        t.sample,
        t.target,
        replace(t.target_plan, seed=seed),
        drafters,
        t.distil_tokens,
        0.5,
        t.judged,
        t.trials,
        t.predictor_texts,
        t.rank,
        device=device,
        seed=seed,
        batch=t.batch,
        together=True,
        compiled=t.compiled and device.startswith("cuda"),
        text_tokens=t.text_tokens,
        distil_seconds=t.distil_seconds,
    )
