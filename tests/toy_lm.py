"""Tiny random models in float64: a target, drafters similar to or trained on it, end tokens."""

from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch

from real.decode.features import drafter_features
from real.decode.loop import decode
from real.decode.plans import chain_plan
from real.draft import TrainingBatch
from real.draft.losses import multi_head_loss, read_target
from real.drafters import BUILTIN
from real.drafters.eagle import EagleDrafter, EagleHead, eagle_loss
from real.drafters.early_exit import EarlyExitDrafter, EarlyExitHead
from real.drafters.glide import GlideDrafter, GlideModel, glide_loss
from real.drafters.hydra import HydraDrafter, HydraHeads
from real.drafters.lookahead import LookaheadDrafter
from real.drafters.medusa import MedusaDrafter, MedusaHeads
from real.drafters.model import ModelDrafter
from real.drafters.prompt_lookup import PromptLookupDrafter
from real.drafters.self_skip import SelfSkipDrafter, SkipConfig
from real.drafters.sorted import Cascade, SortedDrafter, sorted_loss, sorted_model
from real.model.decoder import Decoder, DecoderConfig
from real.model.target import Target
from real.prompts import Prompt
from real.record import Settings
from real.record.recorder import record_sequence
from real.record.rows import assemble
from real.record.sequences import target_sequence
from real.record.settings import describe
from real.rerun import prompts_of, rule_of
from real.sampling import Rule
from simspec import CostModel, Policy, policies

VOCAB = 24
END = (3,)


def toy_decoder(
    seed: int, layers: int = 4, width: int = 16, vocab: int = VOCAB, spread: float = 0.25
) -> Decoder:
    generator = torch.Generator().manual_seed(seed)
    shape = DecoderConfig(vocab, width, layers, heads=2, kv_heads=1, head_dim=8, hidden=24)
    decoder = Decoder(shape).double().requires_grad_(False)
    for name, p in decoder.named_parameters():
        if p.ndim == 2:
            p.copy_(
                torch.randn(p.shape, generator=generator, dtype=torch.float64)
                * (0.6 if "embed" in name else spread)
            )
    return decoder


@lru_cache
def toy_target(seed: int = 0) -> Decoder:
    return toy_decoder(seed)


@lru_cache
def toy_texts(seed: int = 0, count: int = 192, length: int = 20) -> torch.Tensor:
    """Sequences `[count, length]`, the last three quarters sampled by the toy target at 0.8."""
    target, generator = toy_target(seed), torch.Generator().manual_seed(seed)
    text = torch.randint(0, VOCAB, (count, length), generator=generator)
    for position in range(length // 4, length):
        odds = (target(text[:, :position])[:, -1] / 0.8).softmax(-1)
        text[:, position] = torch.multinomial(odds, 1, generator=generator)[:, 0]
    return text


@lru_cache
def _toy_feature(name: str, seed: int) -> torch.Tensor:
    """The feature of all toy texts, by one pass: a teaching reads each of them ten times."""
    return read_target(toy_target(seed), toy_texts(seed)[:, :-1], [name])[name]


class ToyFeatures(dict):
    """The target's features of some of the toy texts, by name, when they are asked for."""

    def __init__(self, rows, seed: int = 0):
        super().__init__()
        self.rows, self.seed = rows, seed

    def __contains__(self, name):
        return True

    def __missing__(self, name):
        return self.setdefault(name, _toy_feature(name, self.seed)[self.rows])


def taught(make, loss, seed: int = 0, steps: int = 60, **settings):
    """The part `make(target, **settings)`, taught by `loss` for a second; deterministic."""
    target, texts = toy_target(seed), toy_texts(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        part = make(target, **settings)
    optimiser = torch.optim.Adam(part.parameters(), lr=0.02)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 0.02 * (1 - step / steps)
        rows = torch.randint(0, len(texts), (32,), generator=generator)
        optimiser.zero_grad()
        batch = TrainingBatch(texts[rows], stored=ToyFeatures(rows, seed))
        loss(part, target, batch, True, generator).backward()
        optimiser.step()
    return part.requires_grad_(False).eval()


def toy_model(decoder: Decoder, seed: int) -> ModelDrafter:
    """The target without its last layer."""
    small = (
        Decoder(DecoderConfig(**{**decoder.config.__dict__, "layers": 3}))
        .double()
        .requires_grad_(False)
    )
    small.load_state_dict(
        {k: v for k, v in decoder.state_dict().items() if not k.startswith("layers.3.")}
    )
    return ModelDrafter(small)


def _with_defaults(kind, target, seed):
    return kind.load(Path("no folder"), target, "")


# each agrees with the toy target often, not always
TOYS = {
    "model": toy_model,
    "early_exit": lambda target, seed: EarlyExitDrafter(
        target, EarlyExitHead(target, 2).requires_grad_(False)
    ),
    "self_skip": lambda target, seed: SelfSkipDrafter(target, SkipConfig(mlp=(2,))),
    "prompt_lookup": lambda target, seed: PromptLookupDrafter(),
    "eagle": lambda target, seed: EagleDrafter(target, part_of("eagle", seed)),
    "medusa": lambda target, seed: MedusaDrafter(target, part_of("medusa", seed)),
    "hydra": lambda target, seed: HydraDrafter(target, part_of("hydra", seed)),
    "glide": lambda target, seed: GlideDrafter(target, part_of("glide", seed)),
    "glide2": lambda target, seed: GlideDrafter(target, part_of("glide2", seed)),
    "sorted": lambda target, seed: toy_sorted(seed),
}
# they depend on earlier rounds: they run, and are not recorded
UNRECORDED = {"lookahead": lambda target, seed: LookaheadDrafter(4, 4, 4)}
# drafters that a newcomer adds by a file, where they need no weights: tests/test_drafters.py
NEW = {
    name: partial(_with_defaults, kind)
    for name, kind in BUILTIN.items()
    if kind.recipe is None and name not in {*TOYS, *UNRECORDED, "suffix"}
}
PARTS = {
    "eagle": (EagleHead, eagle_loss, {}),
    "medusa": (MedusaHeads, multi_head_loss, {"heads": 4}),
    "hydra": (HydraHeads, multi_head_loss, {"heads": 4}),
    "glide": (GlideModel, glide_loss, {}),
    "glide2": (GlideModel, glide_loss, {"layers": 2}),
    "sorted": (sorted_model, sorted_loss, {"exits": (1, 2, 3)}),
}


@lru_cache
def part_of(name: str, seed: int = 0):
    make, loss, settings = PARTS[name]
    return taught(make, loss, seed, **settings)


def toy_sorted(seed: int = 0, thresholds=(0.8, 0.7)) -> SortedDrafter:
    """Three exits that all draft some of the tokens."""
    return SortedDrafter(part_of("sorted", seed), Cascade((1, 2, 3), thresholds))


def toy_pair(name: str, seed: int = 0):
    decoder = toy_target(seed)
    drafter = (TOYS | UNRECORDED | NEW)[name](decoder, seed)
    return Target(decoder, drafter.taps, capacity=32), drafter


class ToyPairs(dict):
    """`toy_pair` of each name, made when it is first asked for: not while tests are collected."""

    def __missing__(self, name):
        return self.setdefault(name, toy_pair(name))


def toy_prompts(count: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(
            4, VOCAB, (int(torch.randint(1, 9, (1,), generator=generator)),), generator=generator
        ).tolist()
        for _ in range(count)
    ]


RULES = {"greedy": Rule(), "coupled": Rule("coupled", 0.8, 5)}
DRAFTERS = tuple(TOYS)
PREFIX = ("model", "early_exit")  # language models of the token prefix: `one_bit` records them


def reads(text: str) -> tuple[str, ...]:
    """Names of the features that the policy of this text reads."""
    return policies.parse(text).reads


POLICIES = tuple(
    text
    for kind in policies.KINDS.values()
    if kind.group != "trees"
    for text in kind.examples
    if "theta" not in reads(text)
)
"""Every built-in policy by its own examples; toys have no trained predictor."""


@lru_cache(maxsize=32)
def toy_recording(
    drafter_name: str, rule_name: str, count: int = 10, K: int = 6, budget: int = 24,
    tree: tuple[int, int] | tuple[()] = ()
):  # fmt: skip
    """(trace, target, drafter): texts of the toy pair, recorded in float64."""
    target, drafter = toy_pair(drafter_name)
    settings = Settings(K, budget, RULES[rule_name], END, drafter_features(drafter), tree)
    return recorded(target, drafter, settings, count), target, drafter


@lru_cache(maxsize=4096)
def _toy_sequence(rule: Rule, budget: int, ends: tuple, prompt: tuple, sequence: int):
    target = Target(toy_target(), capacity=32)
    return target_sequence(target, Settings(1, budget, rule, ends), list(prompt), sequence)


class ToySequences:
    """What the toy target writes under a greedy or coupled rule: once for all drafters."""

    def __init__(self, settings: Settings):
        self.made = settings.rule, settings.budget, settings.end_tokens

    def find(self, sequence: int, prompt: list[int]):
        return _toy_sequence(*self.made, tuple(prompt), sequence)


def recorded(target, drafter, settings: Settings, texts, written=None, tasks=("toy",), **options):
    """The recording of a number of toy prompts, or of these; `written` finds their sequences."""
    texts = toy_prompts(texts) if isinstance(texts, int) else texts
    prompts = [
        Prompt(str(i), tasks[i % len(tasks)], "random", text) for i, text in enumerate(texts)
    ]
    rows = [
        record_sequence(target, drafter, settings, text, i, written, **options)
        for i, text in enumerate(texts)
    ]
    meta = describe("toy", drafter, settings, prompts, "", "cpu", torch.float64)
    return assemble(rows, prompts, 0, settings, meta)


def toy_cost(K: int = 6) -> CostModel:
    """Costs in which everything costs something, catching up too."""
    return CostModel(
        0.2 * np.arange(K + 1), 1 + 0.05 * np.arange(K + 1), np.array([0, 0.1, 0.2]), 0.1, 1.1,
        "toy"
    )  # fmt: skip


def _go(params, state, slot, features, u):
    return u < params[0], u < params[1]


def learn_nothing(params, state, computed, drafted, accepted, features, cost):
    pass


def at_random(go: float, keep: float) -> Policy:
    """Continues, and drops what it computed, at random: it takes every branch of the loop."""
    return Policy(
        f"random:{go},{keep}", _go, learn_nothing, params=(go, go + keep * (1 - go)), random=True
    )


def policy_from(text: str, trace, cost):
    """The Policy of a text; the oracle's for this trace and cost."""
    return policies.make(text, trace, cost)


def run_all(target, drafter, trace, policy, cost, seed: int = 0):
    """Real runs of all sequences of a trace with one policy."""
    drive = chain_plan(policy, trace.K, seed, cost)
    rule = rule_of(trace)
    return [
        decode(
            target, drafter, drive, rule, p, int(trace.budget[s]), trace.meta.end_tokens,
            int(trace.sequence[s])
        )
        for s, p in enumerate(prompts_of(trace))
    ]  # fmt: skip
