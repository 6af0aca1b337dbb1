"""What both workers of vLLM share: variables of its process, its engine, drafts and name."""

import os

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the scheduler and its passes are read here
os.environ["VLLM_NO_USAGE_STATS"] = "1"
os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
LEAST_TOKENS_A_PASS, MOST_PROMPT_TOKENS = 2048, 1 << 14
"""Tokens of a pass: all prompts of a batch are read in one, up to the second number."""
JUNK = range(100, 1000)
"""Token ids drafted where a run forces drafts: ordinary ones, as every vocabulary has."""
BY_BATCH = "num_speculative_tokens_per_batch_size"


def set_threads(options):
    """Before torch is loaded."""
    os.environ["OMP_NUM_THREADS"] = str(options["threads"])
    # after each draft vLLM's n-gram proposer sets numba's threads, and OpenMP's with them
    os.environ["NUMBA_NUM_THREADS"] = str(options["threads"])


class Vllm:
    """One engine of vLLM in this process, which drafts up to `most` tokens."""

    def __init__(self, options):
        import torch

        torch.set_num_threads(options["threads"])
        from vllm import LLM
        from vllm.platforms import current_platform

        self.draft, self.options, self.on_cpu = options["draft"], options, current_platform.is_cpu()
        self.most = self.draft["k"] if self.draft else 0
        # beyond max_model_len - K drafts are K times token 0, for every request of the pass
        self.length, batch = options["longest"] + 2 * self.most + 2, options["batch"]
        self.llm = LLM(
            model=options["model"],
            dtype=options["dtype"],
            seed=options["seed"],
            trust_remote_code=False,
            max_model_len=self.length,
            max_num_seqs=batch,
            max_num_batched_tokens=max(
                LEAST_TOKENS_A_PASS,
                self.length + batch,
                batch * (self.most + 1),
                min(batch * options["longest"], MOST_PROMPT_TOKENS),
            ),
            enable_prefix_caching=False,  # a hit that leaves one token is a round of no draft
            enforce_eager=self.on_cpu,
            speculative_config=self._speculation(),
            **self._settings(),
        )
        self.engine = self.llm.llm_engine
        core = self.engine.engine_core.engine_core
        self.scheduler = core.scheduler
        self.runner = core.model_executor.driver_worker.worker.model_runner

    @property
    def form(self):
        """How vLLM drafts: ngram, policy, draft_model, eagle, eagle3 or medusa; "": it does not."""
        return self.draft.get("form", self.draft["method"]) if self.draft else ""

    def _settings(self):
        """Other arguments of vLLM's engine."""
        raise NotImplementedError

    def _speculation(self):
        """The speculative_config; None for plain decoding."""
        raise NotImplementedError

    def _method(self):
        """The drafter of a speculative_config, and its longest draft."""
        config = {"method": self.form, "num_speculative_tokens": self.draft["k"]}
        if self.form == "ngram":
            config["prompt_lookup_min"] = self.draft["min"]
            config["prompt_lookup_max"] = self.draft["max"]
            return config
        return config | {"model": self.draft["model"]}

    def _junk(self, k, draws, args, given):
        """k junk tokens for each request of a call of the drafter's propose(*args, **given)."""
        if self.form == "ngram":
            sampled = given["sampled_token_ids"] if "sampled_token_ids" in given else args[1]
            return [draws.choices(JUNK, k=k) if tokens else [] for tokens in sampled]
        import torch

        last = given["next_token_ids"]
        tokens = [draws.choices(JUNK, k=k) for _ in range(len(last))]
        return torch.tensor(tokens, dtype=torch.int64, device=last.device).view(len(last), k)

    def _named(self):
        """Engine, version and device, as `Ready` has them."""
        import vllm
        from vllm.platforms import current_platform

        threads = f" ({self.options['threads']} threads)" if self.on_cpu else ""
        return {
            "engine": "vllm",
            "version": vllm.__version__.partition("+")[0],
            "device": current_platform.get_device_name() + threads,
        }
