"""Runs vLLM's released adaptive verification on random batches, in the environment of vLLM.

python released_adaptive.py OUT.npz SEED STEPS FIT: writes what it was given and what it answered.
FIT 1 runs the estimator's kernels, interpreted and slow; 0 draws confidences instead.
"""

import os
import sys
from contextlib import nullcontext
from types import SimpleNamespace

os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import torch
import triton
import triton.language
import vllm.triton_utils

# vLLM's build for CPUs leaves triton out; its interpreter runs the kernels all the same.
vllm.triton_utils.triton, vllm.triton_utils.tl = triton, triton.language

from vllm.v1.worker.gpu.spec_decode import acceptance_estimator, adaptive_verification  # noqa: E402

BATCH, K, VOCAB, ROWS = 6, 4, 24, 64


class Buffer:
    """One slot of the double buffer, on the CPU alone."""

    def __init__(self):
        self.gpu = torch.ones(BATCH, K)
        self.cpu = torch.ones(BATCH, K)
        self.np = self.cpu.numpy()

    def copy_to_cpu(self):
        self.cpu.copy_(self.gpu)


def manager(tables):
    """The released manager without a device: its streams and events do nothing."""
    nothing = SimpleNamespace(synchronize=lambda: None, record=lambda: None)
    made = object.__new__(adaptive_verification.AdaptiveVerificationManager)
    made.num_speculative_steps, made.num_bonus_tokens = K, 1
    made._max_total_logits = 1 << 20
    made._confidence_probs = torch.ones(BATCH, K)
    made._stale_confidences, made._copy_events = [Buffer(), Buffer()], [nothing, nothing]
    made._pending_resets, made._stale_idx, made._batch_budget = [], 0, None
    made._copy_stream = SimpleNamespace(wait_stream=lambda other: None)
    made.cost_tables = tables
    made.req_states = SimpleNamespace(
        device="cpu",
        req_id_to_index={f"r{i}": i for i in range(BATCH)},
        num_computed_tokens_np=np.full(BATCH, 9),
        prefill_len=SimpleNamespace(np=np.full(BATCH, 9)),
    )
    torch.cuda.current_stream = lambda device=None: None
    adaptive_verification.stream = lambda *streams: nullcontext()
    adaptive_verification.gpu_sync_allowed = nullcontext
    return made


def main(path, seed, steps, fit):
    random = np.random.default_rng(seed)
    draft = np.sort(random.uniform(0.5, 3.0, BATCH + 1))
    verify = np.concatenate(([4.0], 4.0 + np.cumsum(random.exponential(0.15, ROWS))))
    estimator = acceptance_estimator.OnlineAcceptanceEstimator(BATCH, K, torch.device("cpu"))
    made = manager((draft, verify))
    temperature, mapping = torch.ones(BATCH), torch.arange(BATCH)
    kept = {name: [] for name in ("active", "new", "scheduled", "feature", "predicted", "budget",
                                  "admitted", "accepted", "slope", "bias")}  # fmt: skip
    alive = np.zeros(BATCH, bool)

    def propose(slots):
        """Drafts of these slots: released predictions, published to both sides of the buffer."""
        logits = torch.tensor(random.normal(0, 2.5, (K, len(slots), VOCAB)), dtype=torch.float32)
        found = torch.zeros(len(slots), K)
        for k in range(K if fit else 0):
            estimator.predict(logits[k], mapping[slots], torch.tensor(k), found, temperature)
        if not fit:
            found = torch.tensor(random.beta(2, 1, (len(slots), K)), dtype=torch.float32)
            estimator.predictions[mapping[slots]] = found
        made.record_confidences(
            found, SimpleNamespace(num_reqs=len(slots), idx_mapping=mapping[slots])
        )

    held = np.zeros(BATCH, bool)  # requests that had a round before
    for _ in range(steps):
        joining = np.flatnonzero(~alive & (random.random(BATCH) < 0.5))
        for slot in joining:
            made.add_request(int(slot))
        held[joining] = False
        slots = np.flatnonzero(alive)
        if not len(slots):
            alive[joining] = True
            propose(np.flatnonzero(alive))
            continue
        scheduled = np.where(
            random.random(len(slots)) < 0.2, random.integers(0, K + 1, len(slots)), K
        )
        ids = [f"r{slot}" for slot in slots]
        made.get_num_tokens(
            {name: int(count) + 1 for name, count in zip(ids, scheduled)},
            {name: [0] * int(count) for name, count in zip(ids, scheduled)},
        )
        budget = made._batch_budget[2]
        capacity = torch.tensor(scheduled, dtype=torch.int32)
        if budget == 0:
            capacity.zero_()
        elif budget < scheduled.sum():
            adaptive_verification._assign_draft_token_budget(
                made._confidence_probs, mapping[slots], capacity, budget, K
            )
        admitted = capacity.numpy().astype(np.int64)
        odds = 0.8 * estimator.features.numpy()[slots] + 0.3
        chance = 1 / (1 + np.exp(-odds))
        hits = (random.random((len(slots), K)) < chance).cumprod(axis=1).sum(axis=1)
        accepted = np.minimum(hits, admitted)
        row = {"feature": estimator.features.numpy(), "predicted": estimator.predictions.numpy(),
               "active": alive, "new": alive & ~held, "budget": budget}  # fmt: skip
        for name, values in (("scheduled", scheduled), ("admitted", admitted),
                             ("accepted", accepted)):  # fmt: skip
            row[name] = np.zeros(BATCH, np.int64)
            row[name][slots] = values
        if fit:
            estimator.step(
                mapping[slots],
                torch.tensor(accepted + 1, dtype=torch.int32),
                torch.tensor(admitted - accepted, dtype=torch.int32),
            )
        row |= {"slope": estimator.slope.item(), "bias": estimator.intercepts.numpy()}
        for name, value in row.items():
            kept[name].append(np.array(value))
        held |= alive
        alive = alive & (random.random(BATCH) < 0.95)
        alive[joining] = True
        if alive.any():
            propose(np.flatnonzero(alive))
    np.savez(path, draft=draft, verify=verify, **{k: np.array(v) for k, v in kept.items()})


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
