"""vLLM's worker for costs of a shape: times steps of a batch that decodes at one context.

A run's requests are draft lengths: `id` is K, `prompt` the context and `max_tokens` the steps. The
`concurrent` sequences decode together, and every draft is rejected: by vLLM's synthetic acceptance
on a GPU, on a CPU by junk in place of the drafter's tokens, once it has made them. A GPU's engine
has one draft length, as captured in its graphs; on a CPU blocks of all lengths take turns.

| key of `Finished` | here |
| --- | --- |
| passes, pass_seconds | of one sequence, over the steps in which all of them took K drafts |
"""

import os
import random
import time

from vllm_base import BY_BATCH, LEAST_TOKENS_A_PASS, MOST_PROMPT_TOKENS, Vllm, set_threads
from worker_protocol import serve

GIB = 1 << 30
MOST_TOGETHER = 4
"""Engines that start side by side: as many were up within 125 s on an H200 with 16 cores."""
TRIES = 8
"""Steps for each one that counts, beyond which an engine does not do what was asked."""


def start(options):
    """Starts the engine; ValueError for a shape that does not fit."""
    set_threads(options)
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(-(-options["cache_bytes"] // GIB))
    return ShapeEngine(options)


def free_bytes():
    """Free memory of the GPU, or else of this machine."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0]
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvail"))


class ShapeEngine(Vllm):
    """One engine, and the steps of its last run."""

    def __init__(self, options):
        free, weights, cache = free_bytes(), options["weight_bytes"], options["cache_bytes"]
        if weights + cache > free:
            raise ValueError(
                f"the shape needs {weights / 1e9:.1f} GB of weights and {cache / 1e9:.1f} GB of "
                f"cache, {free / 1e9:.1f} GB are free: fewer sequences, a shorter context, or "
                "another device"
            )
        self.together = max(1, min(MOST_TOGETHER, int(free / (1.1 * (weights + cache) + 4 * GIB))))
        super().__init__(options)
        self.rows, self.ids, self.grown = [], [], MOST_PROMPT_TOKENS
        self._record()
        if self.draft and (self.on_cpu or (self.form == "ngram" and self._drafter())):
            self._reject()

    def _settings(self):
        options = self.options
        if self.form == "eagle3" and options["dummy"]:
            # a trained head brings its own logits, which its weights say: without them vLLM would
            # take the target's, four times as many
            from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM

            Eagle3LlamaForCausalLM.has_own_lm_head = True
        given = {
            "skip_tokenizer_init": True,
            "load_format": "dummy" if options["dummy"] else "safetensors",
            "async_scheduling": not options["exact"],
            "disable_log_stats": True,
        }
        if self.on_cpu:
            return given
        # vLLM would refuse a GPU that is not free up to this share, whatever the cache is given
        return given | {
            "gpu_memory_utilization": 0.02,
            "kv_cache_memory_bytes": options["cache_bytes"],
            "compilation_config": self._graphs(),
        }

    def _graphs(self):
        """Captured sizes: those of the batches that are asked for, and some around them."""
        sizes = {size * (self.most + 1) for size in self.options["batches"]}
        return {"cudagraph_capture_sizes": sorted({1, 2, 4, 8, *self.options["batches"], *sizes})}

    def _speculation(self):
        if not self.draft:
            return None
        if self.on_cpu:  # a schedule, so that the scheduler reads K before each pass
            return self._method() | {BY_BATCH: [(1, self.options["batch"], self.most)]}
        synthetic = {"rejection_sample_method": "synthetic"}
        return self._method() | synthetic | {"synthetic_acceptance_rates": [0.0] * self.most}

    def _record(self):
        """Keeps (tokens of the pass, drafts, emitted) of each sequence of the last step."""
        update = self.scheduler.update_from_output

        def recorded(scheduled, output):
            drafts, taken = scheduled.scheduled_spec_decode_tokens, scheduled.num_scheduled_tokens
            emitted = output.sampled_token_ids
            self.rows = [
                (count, len(drafts.get(id, ())), len(emitted[output.req_id_to_index[id]]))
                for id, count in taken.items()
            ]
            return update(scheduled, output)

        self.scheduler.update_from_output = recorded

    def _drafter(self):
        """V1's drafter; V2 has none: its n-grams are as long as the draft without a match too."""
        return getattr(self.runner, "drafter", None)

    def _reject(self):
        """The drafter drafts, and junk takes the place of its tokens; so too where it has none."""
        drafter, draws = self._drafter(), random.Random(self.options["seed"])
        if drafter is None:
            raise ValueError("V2 on a CPU has no drafter here: set VLLM_USE_V2_MODEL_RUNNER=0")
        propose = drafter.propose

        def junk(*args, **given):
            k = given["num_speculative_tokens"] if "num_speculative_tokens" in given else args[0]
            made, tokens = propose(*args, **given) if k else None, self._junk(k, draws, args, given)
            return tokens if made is None or self.form == "ngram" else tokens.to(made.dtype)

        drafter.propose = junk

    def ready(self):
        """The fields of `Ready`."""
        import torch

        config, groups = self.engine.vllm_config, getattr(self.runner, "attn_groups", None)
        settings = {
            "runner": "V2" if config.use_v2_model_runner else "V1",
            "graphs": config.compilation_config.cudagraph_mode.name,
            "attention": groups[0][0].backend.get_name() if groups and groups[0] else "unknown",
            "weights": "dummy" if self.options["dummy"] else "real",
            "rejection": "none" if not self.draft else "junk" if self.on_cpu else "synthetic",
            "prefix caching": "off",
            "asynchronous scheduling": "off" if self.options["exact"] else "on",
            "torch": torch.__version__,
            "engines together": "1" if self.on_cpu else str(self.together),
        }
        return self._named() | {
            "sets_k": self.on_cpu,
            "forces_drafts": False,
            "settings": settings | self._head(),
        }

    def _head(self):
        """Rows of an EAGLE-3 head's own logits; ValueError where it shares the target's."""
        if self.form != "eagle3":
            return {}
        drafter = self._drafter() or self.runner.speculator
        rows = drafter.model.lm_head.weight.shape[0]
        if self.options["dummy"] and rows != self.draft["rows"]:
            raise ValueError(
                f"vLLM's EAGLE-3 head has {rows} logits, expected {self.draft['rows']}"
            )
        return {"draft vocabulary": str(rows)}

    def run(self, requests, concurrent, k, force):
        """Yields the steps of each draft length; blocks of them take turns."""
        asked, block = [int(request["id"]) for request in requests], self.options["block"]
        if not self.on_cpu and asked != [self.most]:
            raise ValueError(f"this engine drafts {self.most} tokens, asked for {asked}")
        prompt, count = requests[0]["prompt"], requests[0]["max_tokens"] // block
        draws = random.Random(concurrent)
        taken: dict[int, list[float]] = {length: [] for length in asked}
        turn = len(asked) * (block + 2)
        room = max(len(prompt) // 4, turn)  # for which the context counts as one
        try:
            for place in range(-1, count):  # the first turn warms up
                if self.grown + turn > room:
                    self._end()
                    self._add(prompt, concurrent)
                for length in draws.sample(asked, len(asked)):
                    steps = self._steps(length, concurrent, block)
                    taken[length] += steps if place >= 0 else []
        finally:
            self._end()
        for length, seconds in taken.items():
            yield {
                "id": str(length),
                "tokens": [0] * len(seconds),
                "passes": [[1, length, 0]] * len(seconds),
                "pass_seconds": seconds,
                "first_seconds": seconds[0],
                "seconds": sum(seconds),
                "stopped": "length",
            }

    def _end(self):
        """Takes the batch out of the engine."""
        if self.ids:
            self.engine.abort_request(self.ids)
        self.ids, self.grown = [], MOST_PROMPT_TOKENS
        for _ in range(TRIES):
            if self.engine.has_unfinished_requests():
                self.engine.step()

    def _add(self, prompt, concurrent):
        """A batch of prompts of one length, no two of them alike."""
        from vllm import SamplingParams

        most = self.options["longest"] - len(prompt)
        sampling = SamplingParams(
            temperature=0.0, max_tokens=most, ignore_eos=True, detokenize=False
        )
        self.grown = 0
        self.ids = [f"{time.monotonic_ns()}-{i}" for i in range(concurrent)]
        for i, id in enumerate(self.ids):
            turned = prompt[i % len(prompt) :] + prompt[: i % len(prompt)]
            self.engine.add_request(id, {"prompt_token_ids": turned}, sampling)

    def _steps(self, length, concurrent, block):
        """Seconds of a block of steps in which every sequence has `length` drafts, all rejected.

        The first one is left out: it may verify drafts of the length before.
        """
        if self.draft and self.on_cpu:
            lookup = self.scheduler.dynamic_sd_lookup
            self.scheduler.dynamic_sd_lookup = [length] * len(lookup)
        expected, seconds = [(length + 1, length, 1)] * concurrent, []
        prompts = concurrent * (1 + self.options["longest"] // LEAST_TOKENS_A_PASS)
        for _ in range(TRIES * (block + 1) + prompts):
            self.rows = []  # with asynchronous scheduling the first call ends no step
            clock = time.perf_counter()
            outputs = self.engine.step()
            spent = time.perf_counter() - clock
            if any(output.finished for output in outputs):
                raise ValueError("a sequence ended within the timed steps: drafts were accepted")
            if self.rows == expected:
                seconds.append(spent)
                self.grown += 1
            if len(seconds) > block:
                return seconds[1:]
        raise ValueError(
            f"vLLM took no step of {length} drafts for each of {concurrent} sequences; its last "
            f"had (tokens, drafts, emitted) {self.rows[:3]}"
        )


if __name__ == "__main__":
    serve(start)
