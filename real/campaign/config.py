"""How large a campaign is: all that decides what comes out of it, for a card and, minute, for a test."""

from dataclasses import dataclass, replace

from real.bench.hf_generate import HF_METHODS
from real.measure.grid_settings import BATCHES, CONTEXTS, WIDTHS
from real.model.config import DecoderConfig
from real.train.config import TrainConfig
from real.train.drafter_training import drafter_training, recipe_of
from real.train.schedule import TrainSchedule

MUST = ("model", "early_exit", "eagle", "medusa")
"""Drafters that a campaign trains before all others."""
MORE = ("glide", "hydra")
OFFERS = {"medusa": 4, "hydra": 4}
"""Tokens that a drafter has to offer in a round, where that is fewer than any K: Medusa's and Hydra's heads."""
GROWN = ("early_exit", "eagle", "medusa")
"""Drafters whose recordings hold the order of dynamic trees and beams, and whose costs price trees."""


@dataclass(frozen=True)
class CampaignConfig:
    """The sizes of a campaign.

    | field | meaning |
    | --- | --- |
    | name, pace | what it is called; estimates of parts, in seconds on a card, are multiplied by pace |
    | vocab, sample, target | tokens, documents that the BPE is fitted on, and the target's sizes |
    | settings | of drafters, as `DrafterTraining.settings` |
    | plan, lesson, slow | how the target learns, and each drafter, at `slow` times its recipe's rate |
    | distil_tokens, batch, judged, predictor_texts, rank, trials | as in `TrainConfig` |
    | exam | texts that drafters are judged on when they have learnt, and a third as many to choose weights by |
    | per_task, longest, budget, K | prompts of each task, tokens of the longest, new tokens, draft depth |
    | grown, rows | width and levels of dynamic trees, and tokens of trees that costs price |
    | context, rounds, repeats | of costs |
    | policies, tree, trees | chains that are run, the tree, and trees that recordings of their order are run with |
    | equal, forced, audited, scored, driven | prompts of each drafter in the parts of these names; scored has as many for its costs |
    | times | repeats of what is scored |
    | ladders, widths, batches, contexts, climbs, steps | shapes timed pass by pass, at what sizes and how often, and drafters' steps |
    | rivals, raced, race_budget, laps | transformers' ways of generating, prompts and new tokens of the race against them, its repeats |
    | shape, shape_drafters | the large model that recordings drive, and its drafters by the recording's |
    | least, bytes | tokens compared in float32, and the largest bundle |
    | engine | of all that is recorded, measured and run (`real.decode.engine`), but trees, which are eager |
    """

    name: str
    pace: float
    vocab: int
    sample: int
    target: DecoderConfig
    settings: tuple[tuple[str, tuple[tuple[str, object], ...]], ...]
    plan: TrainSchedule
    training: TrainSchedule
    slow: float
    distil_tokens: int
    batch: int
    judged: int
    exam: int
    predictor_texts: int
    rank: int
    trials: int
    per_task: int
    longest: int
    budget: int
    K: int
    grown: tuple[int, int]
    rows: int
    context: int
    rounds: int
    repeats: int
    policies: tuple[str, ...]
    tree: str
    trees: tuple[str, ...]
    equal: int
    forced: int
    audited: int
    scored: int
    driven: int
    times: int
    ladders: tuple[tuple[str, str], ...]
    widths: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    climbs: int
    steps: tuple[str, ...]
    rivals: tuple[str, ...]
    raced: int
    race_budget: int
    laps: int
    shape: str
    shape_drafters: tuple[tuple[str, str], ...]
    least: int
    bytes: int
    engine: str
    compiled: bool


# 191.5 M parameters in 20 layers and 7.3 M of the embedding. 64 windows of 512 are 33 thousand tokens a step; 31 million tokens of text
# (three shards at 3.4 bytes a token) pass about two and a half times at 300 thousand a second in the time given. A save is 1.6 GB: few of
# them.
FULL = CampaignConfig(
    name="full",
    pace=1.0,
    vocab=8192,
    sample=8000,
    target=DecoderConfig(8192, 896, 20, 14, 14, 64, 2368),
    settings=(
        (
            "model",
            (("width", 384), ("layers", 4), ("heads", 6), ("head_dim", 64), ("hidden", 1024)),
        ),
        ("early_exit", (("depth", 3),)),
    ),
    plan=TrainSchedule(minutes=3.9, rows=64, length=512, rate=1.5e-3, save_every=1000),
    training=TrainSchedule(minutes=0.4, rows=128, length=192, save_every=1000, every=1 << 30),
    slow=0.42,  # sqrt(160 / 896): recipes were found at the tiny target's width
    distil_tokens=2_000_000,
    batch=512,
    judged=24,
    exam=12,
    predictor_texts=96,
    rank=8,
    trials=60,
    per_task=24,
    longest=400,
    budget=160,
    K=16,
    grown=(8, 6),
    rows=48,
    context=256,
    rounds=12,
    repeats=1,
    policies=("beta_ts", "cali_ts", "confidence:0.5"),
    tree="static:2x1x1",
    trees=("static:2x1x1", "dynamic_tree:8", "cape"),
    equal=3,
    forced=24,
    audited=12,
    scored=3,
    driven=6,
    times=3,
    ladders=(("8b", "llama-3-8b"), ("7b", "llama-2-7b")),
    widths=WIDTHS,
    batches=BATCHES,
    contexts=CONTEXTS,
    climbs=10,
    steps=("early_exit:4", "eagle", "medusa"),
    rivals=HF_METHODS,
    raced=9,
    race_budget=64,
    laps=1,
    shape="llama-3-8b",
    shape_drafters=(
        ("model", "model:llama-3.2-1b"),
        ("early_exit", "early_exit:4"),
        ("eagle", "eagle"),
        ("medusa", "medusa"),
    ),
    least=20_000,
    bytes=4_800_000,  # what is kept free for it, see tests/test_size.py
    engine="fast",
    compiled=True,
)

TOY = replace(
    FULL,
    name="toy",
    pace=0.01,
    vocab=300,
    sample=100,
    target=DecoderConfig(300, 16, 3, 2, 2, 8, 24),
    settings=(
        ("model", (("width", 8), ("layers", 1), ("heads", 1), ("head_dim", 8), ("hidden", 16))),
    ),
    plan=TrainSchedule(steps=4, rows=2, length=16, save_every=2),
    training=TrainSchedule(steps=4, rows=2, length=16, save_every=2, every=1 << 30),
    slow=1.0,
    distil_tokens=1024,
    batch=8,
    judged=8,
    exam=8,
    predictor_texts=2,
    rank=2,
    trials=4,
    per_task=2,
    longest=4000,
    budget=8,
    K=4,
    grown=(2, 2),
    rows=8,
    trees=("static:2x1x1", "dynamic_tree:4"),
    context=8,
    rounds=8,
    equal=2,
    forced=2,
    audited=2,
    scored=2,
    driven=2,
    times=2,
    ladders=(("8b", "2x16x2x300"), ("7b", "2x16x2x300")),
    widths=(1, 2, 5),
    batches=(1, 2),
    contexts=(8, 16),
    climbs=2,
    steps=("early_exit:1", "eagle"),
    raced=2,
    race_budget=6,
    shape="2x16x2x300",
    shape_drafters=(
        ("model", "model:1x8x2x300"),
        ("early_exit", "early_exit:1"),
        ("eagle", "eagle"),
        ("medusa", "medusa"),
    ),
    least=100,
    engine="eager",
    compiled=False,
)

SIZES = {size.name: size for size in (FULL, TOY)}


def lab_of(
    size: CampaignConfig, text: tuple[str, ...], heldout: tuple[str, ...], device: str, seed: int
) -> TrainConfig:
    """The lab of a campaign of this size; drafters that it may leave out are in its lessons, too."""
    settings = {name: dict(more) for name, more in size.settings}
    plan = replace(size.training, seed=seed)
    return TrainConfig(
        text, heldout, size.vocab, size.sample, size.target, replace(size.plan, seed=seed),
        tuple(drafter_training(name, plan, settings=settings.get(name), rate=size.slow * recipe_of(name).rate) for name in (*MUST, *MORE)),
        size.distil_tokens, 0.5, size.judged, size.trials, size.predictor_texts, size.rank,
        device=device, seed=seed, batch=size.batch, together=True, compiled=size.compiled and device.startswith("cuda"),
    )  # fmt: skip
