"""Microseconds that simspec's proposer for vLLM takes a request and pass, by policy.

    python tools/bench/proposer.py

The proposer runs on the recorded texts of SmolLM2 as vLLM would call it: one request at a time, and
eight together. Policies take turns in every repeat; the least of the repeats counts.
"""

import argparse
import time
from types import SimpleNamespace

import numpy as np

from simspec import load_trace
from simspec.engines.vllm_proposer import PolicyProposer

POLICIES = ("fixed:5", "beta_ts", "cost_ts", "goodput", "ema_tiers", "ucb")
RECORDING = "traces/smollm2/greedy/prompt_lookup.parquet"


class Caller:
    """vLLM's model runner around requests whose texts are known."""

    def __init__(self, proposer, texts):
        self.proposer, self.input_batch = proposer, SimpleNamespace(req_ids=[])
        asked = SimpleNamespace(eos_token_id=None, stop_token_ids=[], max_tokens=None)
        self.texts, self.requests = texts, {}
        for i, (prompt, output) in enumerate(texts):
            self.requests[str(i)] = SimpleNamespace(
                num_prompt_tokens=len(prompt), row=0, draft=[], output=output,
                sampling_params=SimpleNamespace(**vars(asked) | {"max_tokens": len(output)}),
            )  # fmt: skip
        longest = max(len(prompt) + len(output) for prompt, output in texts)
        self.tokens = np.zeros((len(texts), longest), np.int32)
        for i, (prompt, output) in enumerate(texts):
            self.tokens[i, : len(prompt) + len(output)] = np.concatenate((prompt, output))

    def decode(self, together):
        """Decodes all texts; `together` is the size of the batch."""
        waiting, running = [*self.requests][::-1], []
        while waiting or running:
            while waiting and len(running) < together:
                running.append(waiting.pop())
            sampled, verified, rows = [], {}, [int(id) for id in running]
            length = np.zeros(len(running), np.int32)
            for i, id in enumerate(running):
                held, accepted = self.requests[id], 0
                left = held.output[held.row :]
                verified[id] = held.draft
                while accepted < min(len(held.draft), len(left) - 1) and (
                    held.draft[accepted] == left[accepted]
                ):
                    accepted += 1
                sampled.append(left[: accepted + 1].tolist())
                held.row += accepted + 1
                length[i] = held.num_prompt_tokens + held.row
            self.input_batch.req_ids = running
            drafts = self.propose(
                SimpleNamespace(finished_req_ids=(), scheduled_spec_decode_tokens=verified),
                sampled, length, self.tokens[rows],
            )  # fmt: skip
            for id, draft in zip(running, drafts):
                self.requests[id].draft = draft
            running = [i for i in running if self.requests[i].row < len(self.requests[i].output)]

    def propose(self, scheduler_output, sampled, length, tokens):
        """The frame that the proposer reads."""
        return self.proposer.propose(sampled, length, tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recording", default=RECORDING)
    parser.add_argument("--sequences", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    trace = load_trace(given.recording)
    texts = [
        (
            trace.prompt[trace.prompt_offset[s] : trace.prompt_offset[s + 1]],
            trace.token[trace.offset[s] : trace.offset[s + 1]],
        )
        for s in range(min(given.sequences, trace.sequences))
    ]
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=8), additional_config={}
    )
    proposer = PolicyProposer(config)
    least = {}
    for _ in range(given.repeats):
        for policy in POLICIES:
            for together in (1, 8):
                proposer.use(policy)
                Caller(proposer, texts).decode(together)
                spent = 1e6 * proposer.seconds / proposer.proposals
                least[policy, together] = min(spent, least.get((policy, together), np.inf))
    contexts = np.mean([len(prompt) + len(output) / 2 for prompt, output in texts])
    print(
        f"{len(texts)} texts, {contexts:.0f} tokens of context in the mean; {time.strftime('%F')}"
    )
    print("| policy | one request | eight together |\n| --- | --- | --- |")
    for policy in POLICIES:
        print(f"| `{policy}` | {least[policy, 1]:.0f} | {least[policy, 8]:.0f} |")


if __name__ == "__main__":
    main()
