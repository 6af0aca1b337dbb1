"""vLLM's worker: runs requests in one engine of this process and records every pass of the target.

| key of `Finished` | here |
| --- | --- |
| passes | from the scheduler, plain ones included; chunks of a prompt emit nothing: left out |
| pass_seconds | clock around the engine's step: scheduling, target, sampling, next draft |
| first_seconds, seconds | from the moment that the request joined |

The V1 runner is used on a GPU too, since V2's n-gram rule is another one.
"""

import os
import random
import sys
import time

from vllm_base import BY_BATCH, Vllm, set_threads
from worker_protocol import serve

os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; unset, a share of all memory


def start(options):
    """Loads the models; ValueError for what this device cannot run."""
    set_threads(options)
    return VllmEngine(options)


class VllmEngine(Vllm):
    """One engine of vLLM; its draft length is set for each run, up to the start's.

    A schedule is started with its longest length: vLLM then reads K by the requests in a pass.
    """

    def __init__(self, options):
        super().__init__(options)
        self.lengths = self.scheduler.dynamic_sd_lookup  # by requests in a pass; None: plain
        if self.engine.vllm_config.use_v2_model_runner:
            raise ValueError("vLLM uses its V2 runner although VLLM_USE_V2_MODEL_RUNNER is 0")
        if self.draft:
            runner = self.runner
            self.drafter, used = runner.drafter, runner.speculative_config.method
            if self.draft["method"] == "model" and used != self.form:
                raise ValueError(f"vLLM drafts by {used}, expected {self.form}: rename the drafter")
            if runner.effective_drafter_max_model_len < self.length:
                raise ValueError(
                    f"the draft model reads {runner.effective_drafter_max_model_len} tokens, "
                    f"{self.length} are needed: lower longest"
                )

    def _settings(self):
        additional = {}
        if self.form == "policy":  # simspec's package is looked for after the engine's
            sys.path.append(self.draft["path"])
            additional = {"simspec": self.draft["proposer"]}
        return {
            "load_format": "safetensors",  # no pickles
            "async_scheduling": False,
            "scheduler_cls": _recorder(),
            "additional_config": additional,
        }

    def _speculation(self):
        if not self.draft:
            return None
        if self.form == "policy":
            return {
                "method": "custom_class",
                "model": self.draft["class"],
                "num_speculative_tokens": self.draft["k"],
            }
        if self.form == "medusa":  # drafts one length: as many heads are loaded
            return self._method()
        # a schedule, so that the scheduler reads K before each pass
        own = [(1, self.options["batch"], self.draft["k"])]
        return self._method() | {BY_BATCH: self.options.get("schedule", own)}

    def ready(self):
        """The fields of `Ready`."""
        return self._named() | {
            "sets_k": bool(self.draft) and self.form != "medusa",
            "forces_drafts": bool(self.draft) and self.form not in ("policy", "medusa"),
        }

    def run(self, requests, concurrent, k, force, policy=None):
        """Yields each request as it finishes; `concurrent` of them are in the engine together."""
        self._check(requests, concurrent, k, force)
        if self.draft and self.draft["method"] == "policy":
            self.drafter.use(policy or f"fixed:{self.most if k is None else k}")
        elif self.draft and self.form != "medusa":
            self._set_draft_length(self.most if k is None else k, force)
        waiting = list(reversed(requests))
        going: dict[str, Going] = {}
        self.scheduler.passes.clear()
        try:
            while waiting or going:
                while waiting and len(going) < concurrent:
                    request = Going(waiting.pop())
                    going[str(request.number)] = request
                    self.engine.add_request(
                        str(request.number), request.prompt, self._sampling(request.max_tokens)
                    )
                clock = time.perf_counter()
                outputs = self.engine.step()
                now = time.perf_counter()
                for number, row, drafted, emitted in self.scheduler.passes:
                    going[number].add_pass(row, drafted, emitted, now - clock, now)
                self.scheduler.passes.clear()
                for output in outputs:
                    if output.finished:
                        yield going.pop(output.request_id).finished(output.outputs[0], now)
        finally:
            if going:
                self.engine.abort_request(list(going))

    def _check(self, requests, concurrent, k, force):
        if not 1 <= concurrent <= self.options["batch"]:
            raise ValueError(f"concurrent is {concurrent}; expected 1 to {self.options['batch']}")
        for name, value in (("k", k), ("force", force)):
            if value is not None and not 0 <= value <= self.most:
                raise ValueError(f"{name} is {value}; expected 0 to {self.most}, as at the start")
        if self.form == "medusa" and k not in (None, self.most):
            raise ValueError(f"k is {k}; Medusa was started with {self.most} heads: start it anew")
        for request in requests:
            tokens = len(request["prompt"]) + request["max_tokens"]
            if not request["prompt"] or tokens > self.options["longest"]:
                raise ValueError(
                    f"request {request['id']} may have {tokens} tokens; expected a prompt and at "
                    f"most {self.options['longest']}: start with a larger `longest`"
                )

    def _sampling(self, max_tokens):
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _set_draft_length(self, k, force):
        """K of the next passes; `force` replaces the drafter by one that drafts junk."""
        k = k if force is None else force
        scheduled = "schedule" in self.options and force is None and k == self.most
        self.scheduler.dynamic_sd_lookup = self.lengths if scheduled else [k] * len(self.lengths)
        self.drafter.__dict__.pop("propose", None)
        by_model = self.draft["method"] == "model"  # or by an EAGLE head, with the same arguments
        if force is not None or (by_model and k == 0):  # at K = 0 a draft model reads on
            draws = random.Random(self.options["seed"])
            self.drafter.propose = lambda *args, **given: self._junk(k, draws, args, given)


class Going:
    """A request in the engine, and its passes so far."""

    count = 0

    def __init__(self, request):
        Going.count += 1
        self.number, self.id = Going.count, request["id"]
        self.prompt = {"prompt_token_ids": request["prompt"]}
        self.max_tokens = request["max_tokens"]
        self.joined, self.first = time.perf_counter(), 0.0
        self.passes, self.seconds, self.row = [], [], 0

    def add_pass(self, row, drafted, emitted, seconds, now):
        """A pass that began at `row` tokens of output; ValueError where one is missing."""
        if row != self.row:
            raise ValueError(f"request {self.id} has {row} tokens, its passes emitted {self.row}")
        if not self.passes:
            self.first = now - self.joined
        self.row += emitted
        self.passes.append([emitted, drafted, emitted - 1])
        self.seconds.append(seconds)

    def finished(self, output, now):
        """The fields of `Finished`."""
        return {
            "id": self.id,
            "tokens": list(output.token_ids),
            "passes": self.passes,
            "pass_seconds": self.seconds,
            "first_seconds": self.first,
            "seconds": now - self.joined,
            "stopped": "end" if output.finish_reason == "stop" else "length",
        }


def _recorder():
    """The class of a scheduler that records passes; vLLM is imported at the start alone."""
    from vllm.v1.core.sched.scheduler import Scheduler

    class Recorder(Scheduler):
        """Records (request, row, drafted, emitted) of each pass that emits tokens."""

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.passes = []

        def update_from_output(self, scheduler_output, model_runner_output):
            drafts = scheduler_output.scheduled_spec_decode_tokens
            for id in scheduler_output.num_scheduled_tokens:
                index = model_runner_output.req_id_to_index[id]
                emitted = model_runner_output.sampled_token_ids[index]
                if not emitted:
                    continue
                draft, request = drafts.get(id, ()), self.requests[id]
                _check_draft(draft, request, self.num_spec_tokens, self.max_model_len)
                row = request.num_output_tokens
                # vLLM appends "-" and eight digits to the id of a request
                self.passes.append((id.rpartition("-")[0], row, len(draft), len(emitted)))
            return super().update_from_output(scheduler_output, model_runner_output)

    return Recorder


def _check_draft(draft, request, most, length):
    """ValueError for rounds that vLLM counts but that no drafter proposed."""
    if request.num_preemptions:
        raise ValueError(
            "vLLM took a request out of a pass for want of cache: raise VLLM_CPU_KVCACHE_SPACE "
            "(GiB), or lower batch or longest"
        )
    if draft and min(draft) < 0:
        raise ValueError("vLLM scheduled a draft of placeholders, from a hit of its prefix cache")
    if draft and not any(draft) and request.num_tokens + most > length:
        raise ValueError("vLLM scheduled a draft of zeros, at the limit of its sequence length")


if __name__ == "__main__":
    serve(start)
