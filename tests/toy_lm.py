"""Tiny random models in float64: a target, a drafter that resembles it, and an exit, with tokens that end a text."""

from functools import lru_cache

import numpy as np
import torch

from real.block import Decoder, Shape
from real.decode import decode
from real.drafters.early_exit import EarlyExitDrafter, Exit
from real.drafters.model import ModelDrafter
from real.pair import prompts_of, rule_of, stepper
from real.prompts import Prompt
from real.record import Settings, assemble, describe, record_text
from real.sampling import Rule
from real.target import Target
from simspec import CostModel, policies

VOCAB = 24
END = (3,)


def toy_decoder(seed: int, layers: int = 4, width: int = 16, vocab: int = VOCAB, spread: float = 0.25) -> Decoder:
    generator = torch.Generator().manual_seed(seed)
    shape = Shape(vocab, width, layers, heads=2, kv_heads=1, head_dim=8, hidden=24)
    decoder = Decoder(shape).double().requires_grad_(False)
    for name, p in decoder.named_parameters():
        if p.ndim == 2:
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * (0.6 if "embed" in name else spread))
    return decoder


def toy_target(seed: int = 0) -> Decoder:
    return toy_decoder(seed)


def toy_drafter(name: str, decoder: Decoder):
    """A drafter of the toy target that agrees with it often, not always."""
    if name == "model":
        small = Decoder(Shape(**{**decoder.shape.__dict__, "layers": 3})).double().requires_grad_(False)
        state = {k: v for k, v in decoder.state_dict().items() if not k.startswith("layers.3.")}
        small.load_state_dict(state)
        return ModelDrafter(small)
    exit = Exit(decoder, 2).double().requires_grad_(False)
    return EarlyExitDrafter(decoder, exit)


def toy_pair(name: str, seed: int = 0):
    decoder = toy_target(seed)
    drafter = toy_drafter(name, decoder)
    return Target(decoder, drafter.taps, capacity=32), drafter


def toy_prompts(count: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(4, VOCAB, (int(torch.randint(1, 9, (1,), generator=generator)),), generator=generator).tolist()
        for _ in range(count)
    ]


RULES = {"greedy": Rule(), "coupled": Rule("coupled", 0.8, 5)}
DRAFTERS = ("model", "early_exit")
# every built-in policy, in every reading; a test checks that no built-in is missing
POLICIES = (
    "fixed:0",
    "fixed:1",
    "fixed:3",
    "fixed:6",
    "beta_ts:acceptance",
    "beta_ts:censored",
    "beta_ts:printed",
    "beta_ts:printed_with_correction",
    "confidence:0.5",
    "confidence:0.5,inclusive=false",
    "cali_ts:draft_share,predictor=scalar/0.1/0.7/-0.2/0.1",
    "cali_ts:validated,predictor=confidence,sigma_m=0.1",
    "cali_ts:literal,predictor=scalar/0.1/0.7/-0.2/0.1",
    "model_only:confidence",
    "sampling_only",
    "cost_ts",
    "cost_ts:depth,decay=0.9",
    "entropy:1.5",
    "product:0.8,inclusive=false",
    "draft_verify:0.5",
    "adaedl:0.4",
    "hf_heuristic:3",
    "hf_heuristic:3,transient=true",
    "greedy_oracle",
    "oracle",
)


@lru_cache(maxsize=8)
def toy_recording(drafter_name: str, rule_name: str, count: int = 10, K: int = 6, budget: int = 24):
    """(trace, target, drafter): texts of the toy pair, recorded in float64."""
    target, drafter = toy_pair(drafter_name)
    settings = Settings(K, budget, RULES[rule_name], END)
    prompts = [Prompt(str(i), "toy", "random", p) for i, p in enumerate(toy_prompts(count))]
    rows = [record_text(target, drafter, settings, p.token, i) for i, p in enumerate(prompts)]
    meta = describe("toy", drafter, settings, prompts, "", "cpu", torch.float64)
    return assemble(rows, prompts, 0, settings, meta), target, drafter


def toy_cost(K: int = 6) -> CostModel:
    """Costs in which everything costs something, catching up too."""
    return CostModel(0.2 * np.arange(K + 1), 1 + 0.05 * np.arange(K + 1), np.array([0, 0.1, 0.2]), 0.1, 1.1, "toy")


def policy_from(text: str, trace, cost):
    """The Policy of a text; the oracle's for this trace and cost."""
    made = policies.parse(text)
    return made if hasattr(made, "draft_more") else made(trace, cost)


def run_all(target, drafter, trace, policy, cost, seed: int = 0):
    """Real runs of all sequences of a trace with one policy."""
    drive = stepper(policy, trace.K, seed, cost)
    rule = rule_of(trace)
    return [
        decode(target, drafter, drive, rule, p, int(trace.budget[s]), trace.meta.end_tokens, int(trace.sequence[s]))
        for s, p in enumerate(prompts_of(trace))
    ]
