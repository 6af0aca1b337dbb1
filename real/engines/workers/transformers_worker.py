"""Worker of transformers: generate() with prompt lookup or an assistant model."""

import os
import random
import time
from importlib.metadata import version
from types import MethodType
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"


def passes_of(emitted, drafted):
    """[[emitted, drafted, accepted], ..] from the tokens and the draft length of each pass.

    transformers counts an accepted end token as the target's own, and cuts the output before it
    counts: what a pass emits beyond one token has been accepted. An empty `drafted` is plain
    decoding. ValueError where the two do not fit.
    """
    drafted = drafted or [0] * len(emitted)
    if len(emitted) != len(drafted):
        raise ValueError(f"{len(emitted)} passes emit tokens, {len(drafted)} have a draft")
    return [[e, d, e - 1] for e, d in zip(emitted, drafted)]


class PassClock:
    """A streamer of generate(): tokens of each pass, and the time of its end."""

    def __init__(self):
        self.began = time.monotonic()
        self.tokens, self.times = [], []
        self.prompt_seen = False

    def put(self, value):
        """Takes the prompt, then the tokens of each pass."""
        if self.prompt_seen:
            self.tokens.append(value.reshape(-1).tolist())
            self.times.append(time.monotonic())
        self.prompt_seen = True

    def end(self):
        """Called after the last pass."""


class Junk:
    """Candidates drawn at random: costs of a pass by its rows, apart from acceptance."""

    requires_model_outputs = False

    def __init__(self, k, vocab, longest, seed):
        self.k, self.vocab, self.longest = k, vocab, longest
        self.draw = random.Random(seed)

    def get_candidates(self, ids, **_):
        """The sequence and k tokens, fewer before the end."""
        k = max(0, min(self.k, self.longest - ids.shape[1] - 1))
        junk = [[self.draw.randrange(self.vocab) for _ in range(k)]]
        if not k:
            return ids, None
        import torch

        return torch.cat((ids, torch.tensor(junk, device=ids.device)), 1), None

    def update_candidate_strategy(self, ids, scores, matches):
        """Nothing adapts."""


class Transformers:
    """A target, and an assistant model where drafts come from one."""

    def __init__(self, options):
        import torch
        from transformers.generation import candidate_generator

        # with scikit-learn it moves the threshold as it decodes, which no policy replays
        vars(candidate_generator)["is_sklearn_available"] = lambda: False
        torch.set_num_threads(options["threads"])
        torch.manual_seed(options["seed"])
        self.options, self.torch = options, torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        draft = options["draft"]
        self.model = self._load(options["model"])
        self.ends = self._greedy(self.model)
        self.assistant: Any = None
        self.forced: Junk | None = None
        if draft and draft["method"] == "model":
            self.assistant = self._load(draft["model"])
            self._greedy(self.assistant)
        self.drafted = []
        self.made = self.model._get_candidate_generator
        self.model._get_candidate_generator = MethodType(self._candidates, self.model)

    def ready(self):
        """Engine, version and capabilities of this worker."""
        return {
            "engine": "transformers",
            "version": version("transformers"),
            "device": self.device,
            "sets_k": self.options["draft"] is not None,
            "forces_drafts": True,
        }

    def run(self, requests, concurrent, k, force, policy=None):
        """Decodes the requests one by one: the host starts no other run."""
        from worker_protocol import threshold_of

        if k is None:
            k = self.options["draft"]["k"] if self.options["draft"] else 0
        for request in requests:
            self.forced = None
            if force is not None:
                longest = len(request["prompt"]) + request["max_tokens"]
                vocab = self.model.config.vocab_size
                self.forced = Junk(force, vocab, longest, self.options["seed"])
            yield self._decode(request, self._drafting(k, force, threshold_of(policy)))

    def _load(self, folder):
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(self.torch, self.options["dtype"]),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
        return model.to(self.device).eval()

    def _greedy(self, model):
        """Sets the model to greedy decoding without penalties; its end tokens."""
        from transformers import GenerationConfig

        ends = model.generation_config.eos_token_id
        ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
        model.generation_config = GenerationConfig(
            do_sample=False, eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0
        )
        return ends

    def _candidates(self, model, *args, **kwargs):
        """transformers' candidate generator, or a forced one, that notes each draft length."""
        generator: Any = self.forced or self.made(*args, **kwargs)
        inner = generator.get_candidates

        def get_candidates(ids, *more, **keys):
            found = inner(ids, *more, **keys)
            self.drafted.append(found[0].shape[1] - ids.shape[1])
            return found

        generator.get_candidates = get_candidates
        return generator

    def _drafting(self, k, force, threshold):
        """Arguments of generate() for draft length k, or drafts that end at this confidence."""
        if force or (k and self.assistant is None):
            most = self.options["draft"]["max"] if k and self.assistant is None else 1
            return {"prompt_lookup_num_tokens": force or k, "max_matching_ngram_size": most}
        if force == 0 or not k:
            return {}
        settings = self.assistant.generation_config
        settings.num_assistant_tokens = k
        settings.num_assistant_tokens_schedule = "constant"
        settings.assistant_confidence_threshold = threshold
        return {"assistant_model": self.assistant}

    def _decode(self, request, drafting):
        ids = self.torch.tensor([request["prompt"]], device=self.device)
        self.drafted = []
        clock = PassClock()
        with self.torch.inference_mode():
            self.model.generate(
                ids,
                attention_mask=self.torch.ones_like(ids),
                max_new_tokens=request["max_tokens"],
                streamer=clock,
                **drafting,
            )
        tokens = [token for part in clock.tokens for token in part]
        times = [clock.began, *clock.times]
        return {
            "id": request["id"],
            "tokens": tokens,
            "passes": passes_of([len(part) for part in clock.tokens], self.drafted),
            "pass_seconds": [after - before for before, after in zip(times, times[1:])],
            "first_seconds": times[1] - clock.began,
            "seconds": times[-1] - clock.began,
            "stopped": "end" if tokens[-1] in self.ends else "length",
        }


if __name__ == "__main__":
    from worker_protocol import serve

    serve(Transformers)
