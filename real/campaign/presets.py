"""The campaigns: FULL for a GPU, TOY for a test on the CPU, and both for a target that exists."""

from dataclasses import replace

from real.bench.hf_generate import HF_METHODS
from real.campaign.config import (
    RECOMMENDED,
    REQUIRED,
    CampaignConfig,
    CheckStage,
    CostStage,
    EmulationStage,
    LatencyStage,
    PolicyChoice,
    RaceStage,
    RecordingStage,
    ScoringStage,
    TrainingStage,
)
from real.measure.latency_grid import BATCHES, CONTEXTS, WIDTHS
from real.model.config import DecoderConfig
from real.train.config import TrainConfig
from real.train.drafter_training import drafter_training, recipe_of
from real.train.schedule import TrainSchedule

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
    recording=RecordingStage(per_task=2, longest=4000, budget=8, K=4, tree_size=(2, 2)),
    costs=CostStage(context=8, rounds=2, repeats=1, tree_nodes=8),
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


# For a chat model of about 135 M parameters with 49,152 tokens, such as SmolLM2-135M-Instruct. Its
# head is a fifth of a step: drafters score the 8,192 most frequent tokens.
FULL_CHECKPOINT = with_checkpoint(
    replace(
        FULL,
        training=replace(
            FULL.training,
            drafter_plan=TrainSchedule(
                minutes=0.6, rows=32, length=592, save_every=1000, every=1 << 30
            ),
            rate_factor=0.53,  # sqrt(160 / 576)
            draft_vocab=8192,
        ),
    ),
    (
        ("model", (("width", 256), ("layers", 4), ("heads", 4), ("head_dim", 64), ("hidden", 704))),
        ("early_exit", (("depth", 5),)),
    ),
)

TOY_CHECKPOINT = with_checkpoint(
    replace(TOY, training=replace(TOY.training, draft_vocab=32)), TOY.training.drafter_settings
)


def training_of(
    config: CampaignConfig, text: tuple[str, ...], heldout: tuple[str, ...], device: str, seed: int
) -> TrainConfig:
    """The training of a campaign, optional drafters included."""
    t = config.training
    settings = {name: dict(values) for name, values in t.drafter_settings}
    plan = replace(t.drafter_plan, seed=seed)
    drafters = tuple(
        replace(
            drafter_training(
                name, plan, settings=settings.get(name), rate=t.rate_factor * recipe_of(name).rate
            ),
            draft_vocab=t.draft_vocab,
        )
        for name in (*REQUIRED, *RECOMMENDED)
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
    )
