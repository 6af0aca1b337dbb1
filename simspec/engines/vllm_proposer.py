"""vLLM's custom proposer: a policy decides the length of each request's draft, pass by pass.

It needs numpy, scipy and numba, and nothing of vLLM. Drafts are n-grams by vLLM's own rule, or
suffix decoding. With the arguments of vLLM below, `additional_config` holds the SETTINGS. PROPOSER
is "simspec.engines.vllm_proposer.PolicyProposer".

| argument | value |
| --- | --- |
| speculative_config | method "custom_class", num_speculative_tokens, and as model PROPOSER |
| additional_config | {"simspec": {"policy": "cost_ts", "cost": "vllm.cost.json"}} |
"""

import json
import sys
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from simspec.cost.model import CostModel
from simspec.engines.ngram import FEATURES, RULES, NgramRule, SuffixRule, drafts, suffix_draft
from simspec.engines.text import WrittenText, record_texts
from simspec.policies import CLAIRVOYANT, TREES, make
from simspec.policy.policy import Policy, PolicyError, Stepper

SETTINGS = {
    "policy": "the policy's text, as in `simspec sweep`; default fixed:K",
    "ngram": "[least, most] tokens of the suffixes tried, longest first; default [1, 3]",
    "suffix": "suffix decoding in place of n-grams: depth, factor, least of `SuffixRule`, or {}",
    "cost": "file, or contents, of `simspec engine measure`, for policies that plan with costs",
    "seed": "of the policy's draws; default 0",
    "rounds": "file that gets a JSON line for each finished request",
}
DEFAULT_RATIO = 0.1
"""Cost of a draft token in target passes without a `cost`, as in `replay`."""
Step = tuple[int, Any]
"""A draft token, and its feature codes; None where the policy reads none."""
Going = tuple[str, np.ndarray, Collection[int]]
"""A request after a pass: its id, all its tokens, and the tokens that would end its text."""


def served_policy(text: str, K: int, cost: CostModel | None = None) -> tuple[Policy, CostModel]:
    """(the policy as an engine runs it with drafts up to K tokens, the costs that it observes).

    PolicyError for a tree, a policy that knows the recorded tokens, and what it cannot be made of.
    """
    cost = CostModel.from_ratio(DEFAULT_RATIO, K) if cost is None else cost
    name = text.partition(":")[0]
    if name in CLAIRVOYANT or name in TREES:
        reason = "reads tokens not yet decoded" if name in CLAIRVOYANT else "drafts trees"
        raise PolicyError(f"policy {text!r} {reason}: an engine's proposer takes another")
    token = np.zeros(1, np.int32)
    nothing = record_texts([WrittenText("", "", token, token, 1)], RULES["vllm"], K)
    policy = make(text, nothing, cost)
    assert isinstance(policy, Policy)  # trees are refused above
    policy.longest(K)
    return policy, cost


def draw_address(prompt: Sequence[int] | np.ndarray) -> int:
    """Address of a request's random draws: the CRC-32 of its prompt, in any order of requests."""
    return zlib.crc32(np.ascontiguousarray(prompt, "<i4").tobytes())


@dataclass
class Served:
    """A request in the engine, its open round and the closed ones."""

    stepper: Stepper  # its policy's state
    row: int  # output tokens before the open round
    draft: list[int] = field(default_factory=list)  # tokens of the open round so far
    keep: bool = True  # whether the last of them is submitted
    computed: int = 0  # draft tokens of the open round
    # (row, computed, drafted, accepted) of closed rounds; the prompt's pass is none
    rounds: list[tuple[int, int, int, int]] = field(default_factory=list)


class RequestRounds:
    """A policy's rounds for requests that an engine decodes together, each known by its id.

    With scope "stream" a request takes over the state of the one that ended longest ago, and
    starts with state0 where none is free: one request at a time is a replay in order.
    """

    def __init__(self, make: Callable[[], Stepper]):
        self._make = make
        self._free = deque([make()])  # an invalid policy is refused now
        self._held: dict[str, Served] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._held

    def begin(self, id: str, address: int, row: int = 1) -> None:
        """A request after its prompt's pass, which emitted `row` tokens."""
        stepper = self._free.popleft() if self._free else self._make()
        stepper.begin(address)
        self._held[id] = Served(stepper, row)

    def asks(self, id: str) -> bool:
        """Whether the policy asks for one more token of the request's open round."""
        request = self._held[id]
        go, request.keep = request.stepper.ask(len(request.draft))
        return go and len(request.draft) < request.stepper.K

    def take(self, id: str, step: Step) -> None:
        """One more token of the open round, which the policy asked for."""
        request, (token, codes) = self._held[id], step
        if codes is not None:
            request.stepper.see(len(request.draft), codes)
        request.draft.append(token)

    def submit(self, id: str) -> list[int]:
        """The tokens of the open round that the policy submits; drafting ends."""
        request = self._held[id]
        tokens, request.draft = request.draft, []
        request.computed = len(tokens)
        return tokens if request.keep else tokens[:-1]

    def draft(self, id: str, steps: Iterator[Step]) -> list[int]:
        """Opens a round: the tokens of `steps` that the policy submits."""
        while self.asks(id) and (step := next(steps, None)) is not None:
            self.take(id, step)
        return self.submit(id)

    def close(self, id: str, drafted: int, accepted: int, emitted: int) -> None:
        """Closes the open round; drafted tokens are those that the engine verified."""
        request = self._held[id]
        request.rounds.append((request.row, request.computed, drafted, accepted))
        request.stepper.end(request.computed, drafted, accepted)
        request.row += emitted

    def end(self, id: str) -> Served | None:
        """Forgets a request, whose state is then free; None for an unknown one."""
        request = self._held.pop(id, None)
        if request is not None:
            self._free.append(request.stepper)
        return request


class PolicyProposer:
    """The class that vLLM loads; ValueError, one line, for invalid settings.

    `seconds` and `proposals` count the time inside `propose` and the requests drafted for. A class
    with another drafter overrides the methods before `propose`, and `known`, the settings.
    """

    known: ClassVar[Mapping[str, str]] = SETTINGS

    def __init__(self, vllm_config: Any):
        self.K = int(vllm_config.speculative_config.num_speculative_tokens)
        given = vllm_config.additional_config
        given = given.get("simspec", {}) if isinstance(given, Mapping) else {}
        if not isinstance(given, Mapping) or (unknown := sorted(set(given) - set(self.known))):
            wrong = unknown if isinstance(given, Mapping) else type(given).__name__
            raise ValueError(
                f'additional_config["simspec"] has {wrong}, expected an object of '
                f"{', '.join(self.known)}"
            )
        self.given = given
        self.rule = _rule(given.get("ngram", [1, 3]))
        self.suffix = suffix_rule(given["suffix"], self.K) if "suffix" in given else None
        self.cost = _cost(given.get("cost"))
        self.seed = given.get("seed", 0)
        if type(self.seed) is not int:
            raise ValueError(f"seed is {self.seed!r}, expected a whole number of at least 0")
        self.log = Path(given["rounds"]) if "rounds" in given else None
        self.use(given.get("policy", f"fixed:{self.K}"))

    def use(self, policy: str) -> None:
        """Drafts by this policy from now on, for requests that have not begun."""
        self.policy, cost = served_policy(policy, self.K, self.cost)
        given = self.policy, self.K, self.seed, cost, self.features()
        self.rounds = RequestRounds(partial(Stepper, *given))
        self.seconds, self.proposals = 0.0, 0

    def features(self) -> tuple[tuple[str, str], ...]:
        """The (name, grid) pairs of the features that drafts come with: none of n-grams."""
        return FEATURES if self.suffix is not None and self.policy.reads else ()

    def load_model(self, target_model: Any) -> None:
        """Nothing: drafts of a request's own tokens need no model."""

    def steps(self, id: str, tokens: np.ndarray, ends: Collection[int]) -> Iterator[Step]:
        """The draft after these tokens, at most K long."""
        if self.suffix is None:
            return ((int(token), None) for token in drafts(tokens, len(tokens), self.K, self.rule))
        draft = suffix_draft(tokens, self.suffix)
        codes = draft.codes if self.policy.reads else [None] * len(draft.token)
        return zip(draft.token.tolist(), codes)

    def look(self, variables: Mapping[str, Any]) -> None:
        """The variables of the caller, vLLM's model runner, before the requests of a pass."""

    def learn(self, id: str, prompt: np.ndarray, accepted: int, tokens: Sequence[int]) -> None:
        """The number of draft tokens that a pass of this request accepted, and what it emitted."""

    def forget(self, id: str) -> None:
        """A request has ended."""

    def draft_all(self, requests: Sequence[Going]) -> list[list[int]]:
        """A draft for each request of a pass, here one after another."""
        return [self.rounds.draft(going[0], self.steps(*going)) for going in requests]

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Drafts of all requests of the pass, after its outcome went to their policies."""
        began = perf_counter()
        variables = sys._getframe(1).f_locals
        runner, scheduled = _caller(variables)
        for id in scheduled.finished_req_ids:
            self.finish(id)
        self.look(variables)
        proposed, going = [list[int]() for _ in sampled_token_ids], dict[int, Going]()
        for i, sampled in enumerate(sampled_token_ids):
            if not sampled:  # a part of a prompt
                continue
            id = runner.input_batch.req_ids[i]
            request = runner.requests[id]
            tokens = token_ids_cpu[i, : int(num_tokens_no_spec[i])]
            drafted = len(scheduled.scheduled_spec_decode_tokens.get(id, ()))
            if self._observe(id, request, tokens, sampled, drafted):
                going[i] = id, tokens, _ends(request.sampling_params)
        for i, draft in zip(going, self.draft_all(list(going.values()))):
            proposed[i] = draft
        self.proposals += len(going)
        self.seconds += perf_counter() - began
        return proposed

    def finish(self, id: str) -> None:
        """A request that has ended; its rounds go to the file."""
        served = self.rounds.end(id)
        self.forget(id)
        if served is not None and self.log is not None:
            with open(self.log, "a", encoding="utf-8") as file:
                line = {"id": id, "tokens": served.row, "rounds": served.rounds}
                file.write(json.dumps(line) + "\n")

    def _observe(
        self, id: str, request: Any, tokens: np.ndarray, sampled: list[int], drafted: int
    ) -> bool:
        """Closes the request's round, or begins it; whether it goes on."""
        prompt, asked = int(request.num_prompt_tokens), request.sampling_params
        row = len(tokens) - prompt - len(sampled)
        emitted, ended = _within_text(sampled, row, asked)
        if id in self.rounds:
            self.rounds.close(id, drafted, min(len(sampled) - 1, emitted), emitted)
        elif not ended:  # a policy that is set while a request runs meets it in the middle
            self.rounds.begin(id, draw_address(tokens[:prompt]), row + emitted)
        if ended:
            self.finish(id)
        else:
            self.learn(id, tokens[:prompt], len(sampled) - 1, sampled)
        return not ended


def _ends(asked: Any) -> set[int]:
    """The tokens that end a request's text."""
    return {asked.eos_token_id, *(asked.stop_token_ids or ())} - {None}


def _within_text(sampled: Sequence[int], row: int, asked: Any) -> tuple[int, bool]:
    """(tokens of a pass that belong to the text, whether it ends with them)."""
    ends = _ends(asked)
    left = len(sampled) + 1 if asked.max_tokens is None else asked.max_tokens - row
    for i, token in enumerate(sampled[:left]):
        if token in ends:
            return i + 1, True
    return min(len(sampled), left), left <= len(sampled)


def _caller(variables: Mapping[str, Any]) -> tuple[Any, Any]:
    """(model runner, scheduler's output) of vLLM, which passes neither to a proposer."""
    try:
        return variables["self"], variables["scheduler_output"]
    except KeyError:
        raise RuntimeError(
            "vLLM calls its proposer otherwise than 0.32 did, where the caller has scheduler_output"
        ) from None


def _rule(sizes: Any) -> NgramRule:
    try:
        least, most = sizes
        return replace(RULES["vllm"], least=least, most=most)
    except (TypeError, ValueError):
        raise ValueError(
            f'additional_config["simspec"]["ngram"] is {sizes!r}, expected [least, most]'
        ) from None


def suffix_rule(given: Any, most: int) -> SuffixRule:
    """Suffix decoding by these settings, a draft of at most `most` tokens; ValueError for others.

    given: an object of depth, factor and least, or of some of them.
    """
    try:
        return SuffixRule(**given, most=most)
    except TypeError:
        raise ValueError(
            f"suffix decoding has the settings {given!r}, expected an object of depth, factor "
            "and least, or {}"
        ) from None


def _cost(given: Any) -> CostModel | None:
    if given is None or isinstance(given, CostModel):
        return given
    return CostModel.from_dict(given) if isinstance(given, Mapping) else CostModel.from_json(given)
