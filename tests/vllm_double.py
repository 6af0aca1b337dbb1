"""vLLM's loop around a custom proposer, on requests whose text is known: what tests run it in."""

import json
from types import SimpleNamespace

import numpy as np
import torch

from real.engines import RELEASED, Finished, Ready

LONGEST = 256


def join(parts):
    """Rows of all requests of a pass, as one array or tensor."""
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else torch.cat(parts)


class Going:
    """A request in the double, with its buffer of tokens."""

    def __init__(self, request, future, ends):
        self.request, self.future = request, future
        self.id, self.row, self.draft = f"{request.id}-0badcafe", 0, []
        self.passes, self.clock = [], []
        self.num_prompt_tokens, self.num_computed_tokens = len(request.prompt), 0
        self.sampling_params = SimpleNamespace(
            max_tokens=request.max_tokens, eos_token_id=ends[0], stop_token_ids=list(ends[1:])
        )
        self.tokens = list(request.prompt)

    @property
    def text(self):
        """The output so far, cut at its end."""
        made = self.future[: min(self.row, self.request.max_tokens)]
        ends = {self.sampling_params.eos_token_id, *self.sampling_params.stop_token_ids}
        cut = next((i + 1 for i, token in enumerate(made) if token in ends), len(made))
        return made[:cut]

    @property
    def ended(self):
        return len(self.text) < self.row or self.row >= self.request.max_tokens or (
            self.row and self.text[-1] in
            {self.sampling_params.eos_token_id, *self.sampling_params.stop_token_ids}
        )  # fmt: skip


class VllmDouble:
    """A runner of `real.engines.run` that decodes `world` by a proposer, as vLLM 0.32 does.

    world: [(request, tokens that the target writes, past the end too)]. chunked: prompts are read
    in two passes. preempted: before every preempted-th pass the scheduler drops all drafts and all
    that was computed. features: (tokens) -> the target's final features after each. A pass of n
    requests and d draft tokens takes seconds(n, d, k), where k is -1 under a policy.
    """

    def __init__(
        self, world, make, ends=(3,), chunked=False, preempted=0, seconds=None, features=None
    ):
        self.world = {request.prompt: future for request, future in world}
        self.make, self.ends, self.chunked, self.preempted = make, ends, chunked, preempted
        self.features = features or (lambda tokens: np.zeros((len(tokens), 1)))
        self.rng = np.random.default_rng(0)
        self.requests, self.input_batch = {}, SimpleNamespace(req_ids=[])
        self.steps, self.k = 0, 0
        self.seconds = seconds or (lambda active, drafted, k: 1.0 + 0.1 * drafted)

    def start(self, settings):
        """Builds the proposer from the object that the worker gets."""
        draft = RELEASED["vllm"].start(settings)["draft"]
        self.drafter = self.make(
            SimpleNamespace(
                speculative_config=SimpleNamespace(num_speculative_tokens=draft["k"]),
                additional_config={"simspec": draft["proposer"]},
            )
        )
        return Ready("vllm", "0.32.0", "double", 0.0, True, False)

    def run(self, requests, keep, concurrent=1, k=None, force=None, policy=None):
        """Requests in slots: one that ends is followed by the next."""
        self.drafter.use(policy or f"fixed:{k}")
        self.k = -1 if policy else k
        waiting, total, gone = list(reversed(requests)), 0.0, set()
        self.requests = {}
        while waiting or self.requests:
            while waiting and len(self.requests) < concurrent:
                request = waiting.pop()
                going = Going(request, self.world[request.prompt], self.ends)
                self.requests[going.id] = going
            total += self.step(gone)
            gone = set()
            for id, going in list(self.requests.items()):
                if going.ended:
                    gone.add(id)
                    del self.requests[id]
                    keep(self.finished(going))
        return total

    def step(self, gone):
        """One pass of all requests, in another order each time; its seconds."""
        self.steps += 1
        order = self.rng.permutation(list(self.requests)).tolist()
        self.input_batch.req_ids = order
        if self.preempted and self.steps % self.preempted == 0:
            for going in self.requests.values():
                going.draft, going.num_computed_tokens = [], 0
        sampled, verified, rows, computed = [], {}, {}, {}
        for id in order:
            going = self.requests[id]
            first, tokens = going.num_computed_tokens, going.tokens + going.draft
            if self.chunked and not first and len(tokens) > 1:
                sampled.append([])
                computed[id] = len(tokens) // 2
                rows[id] = self.features(tokens)[first : computed[id]]
                continue
            rows[id] = self.features(tokens)[first:]
            verified[id], accepted = going.draft, 0
            for token in going.draft:
                if token != going.future[going.row + accepted]:
                    break
                accepted += 1
            new = list(going.future[going.row : going.row + accepted + 1])
            going.passes.append((len(new), len(going.draft), accepted))
            going.row += len(new)
            computed[id] = len(going.tokens) + accepted
            going.tokens += new
            sampled.append(new)
        seconds = self.seconds(len(verified), sum(map(len, verified.values())), self.k)
        for id in verified:
            self.requests[id].clock.append(seconds)
        output = SimpleNamespace(
            finished_req_ids=gone,
            scheduled_spec_decode_tokens={id: draft for id, draft in verified.items() if draft},
            num_scheduled_tokens={id: len(part) for id, part in rows.items()},
        )
        drafts = self.propose_draft_token_ids(output, sampled, rows)
        for id, draft in zip(order, drafts, strict=True):
            self.requests[id].draft, self.requests[id].num_computed_tokens = draft, computed[id]
        return seconds

    def propose_draft_token_ids(self, scheduler_output, sampled, rows):
        """The frame that a proposer looks into."""
        hidden_states = join(list(rows.values()))  # noqa: F841
        ids = self.input_batch.req_ids
        length = np.zeros(len(ids) + 1, np.int32)
        tokens = np.zeros((len(ids) + 1, LONGEST), np.int32)
        for i, id in enumerate(ids):
            held = self.requests[id].tokens
            length[i], tokens[i, : len(held)] = len(held), held
        return self.drafter.propose(sampled, length, tokens, slot_mappings=None)

    def finished(self, going):
        """The worker's answer."""
        text = going.text
        stopped = "end" if text[-1] in self.ends else "length"
        return Finished(
            going.request.id, tuple(text), tuple(going.passes), tuple(going.clock),
            going.clock[0], sum(going.clock), stopped,
        )  # fmt: skip

    def close(self):
        pass


def read_rounds(log):
    """{id: [(row, computed, drafted, accepted), ..]} of a proposer's file; the last of an id."""
    return {held["id"]: held["rounds"] for held in map(json.loads, log.read_text().splitlines())}
