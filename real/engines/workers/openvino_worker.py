"""Worker of OpenVINO GenAI: a pipeline that drafts and, where asked for, one that does not."""

import os
import tempfile
import time
from importlib.metadata import version

EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
}


def looked_up(sequence, k, longest):
    """Prompt lookup's draft: what follows the first occurrence of the longest suffix."""
    for n in range(min(longest, len(sequence) - 1), 0, -1):
        suffix = sequence[-n:]
        for start in range(len(sequence) - n):
            if sequence[start : start + n] == suffix:
                return sequence[start + n : start + n + k]
    return []


def passes_of(emitted, output, most, draft):
    """[[emitted, drafted, accepted], ..] of the passes that start inside the output.

    OpenVINO GenAI lists what each pass emits, and not what it has drafted. `draft(row, most)` is
    the number of tokens drafted at a row, at most the tokens left but one. ValueError where a pass
    emits more than such a draft allows.
    """
    passes, row = [], 0
    for count in emitted:
        if row >= output:
            break
        drafted = draft(row, most - row - 1) if row else 0
        if count > drafted + 1:
            raise ValueError(
                f"a pass emits {count} tokens at row {row}, its draft has {drafted}: this version "
                "of OpenVINO GenAI drafts by another rule"
            )
        passes.append([count, drafted, count - 1])
        row += count
    return passes


def agreed(sequence, row, draft):
    """Length of the draft's prefix that the sequence goes on with at `row`."""
    count = 0
    while count < len(draft) and sequence[row + count : row + count + 1] == [draft[count]]:
        count += 1
    return count


def check_lookups(prompt, tokens, passes, k, longest):
    """ValueError unless each pass but the last has accepted what prompt lookup predicts."""
    sequence, row = prompt + tokens, len(prompt)
    for i, (emitted, drafted, accepted) in enumerate(passes):
        draft = looked_up(sequence[:row], k, longest)[:drafted]
        if i < len(passes) - 1 and agreed(sequence, row, draft) != accepted:
            raise ValueError(
                f"pass {i} has accepted {accepted} tokens, not those of the first occurrence of "
                "the longest suffix: this version of OpenVINO GenAI drafts by another rule"
            )
        row += emitted


class OpenVINO:
    """A target with separate pipelines for drafting and for plain decoding."""

    def __init__(self, options):
        self.options = options
        self.properties = {"INFERENCE_NUM_THREADS": options["threads"]}
        if options["exact"]:
            self.properties |= EXACT
        self.pipelines, self.folder = {}, None
        self._pipeline(drafts=options["draft"] is not None)

    def ready(self):
        """Engine, version and capabilities of this worker."""
        draft, notes = self.options["draft"], []
        if draft:
            notes.append("drafted lengths are derived by the rule: the engine does not list them")
        if draft and draft["method"] == "model":
            notes.append("drafts go on after an end token, and decoding stops at the target's")
        return {
            "engine": "openvino",
            "version": version("openvino-genai"),
            "device": "CPU",
            "sets_k": draft is not None,
            "forces_drafts": False,
            "notes": notes,
        }

    def run(self, requests, concurrent, k, force):
        """Decodes the requests one by one."""
        if concurrent != 1:
            raise ValueError(f"OpenVINO GenAI serves one request at a time here, not {concurrent}")
        if force is not None:
            raise ValueError("OpenVINO GenAI cannot be made to draft a number of junk tokens")
        draft = self.options["draft"]
        if k is None:
            k = draft["k"] if draft else 0
        if k and not draft:
            raise ValueError("the worker was started without a drafter")
        pipeline = self._pipeline(drafts=bool(k))
        for request in requests:
            yield self._decode(pipeline, request, k)

    def _pipeline(self, drafts):
        """The pipeline; both stay, since a draft length of 0 cannot be asked for."""
        import openvino_genai as genai

        if drafts not in self.pipelines:
            draft, extra = self.options["draft"], {}
            if drafts and draft["method"] == "ngram":
                extra = {"prompt_lookup": True}
            elif drafts:
                extra = {"draft_model": self._draft_model(draft["model"])}
            model = self.options["model"]
            self.pipelines[drafts] = genai.LLMPipeline(model, "CPU", **extra, **self.properties)
        return self.pipelines[drafts]

    def _draft_model(self, model):
        """The draft model as IR, which alone is taken, in a folder that goes with this process."""
        import openvino_genai as genai

        self.folder = tempfile.TemporaryDirectory(prefix="openvino-draft-")
        link = os.path.join(self.folder.name, "model.gguf")
        os.symlink(model, link)
        genai.LLMPipeline(link, "CPU", enable_save_ov_model=True, **self.properties)
        return genai.draft_model(self.folder.name, "CPU", **self.properties)

    def _decode(self, pipeline, request, k):
        import numpy
        import openvino
        import openvino_genai as genai

        draft, prompt, most = self.options["draft"], request["prompt"], request["max_tokens"]
        ends = {pipeline.get_tokenizer().get_eos_token_id()}
        config = pipeline.get_generation_config()
        config.max_new_tokens, config.do_sample = most, False
        by_model = bool(k) and draft["method"] == "model"
        streamer = None
        if k:
            config.num_assistant_tokens = k
            if by_model:
                # a drafter's own end token would end its draft, and nothing would tell where
                config.ignore_eos = True
                streamer = _until(ends, genai)
            else:
                config.max_ngram_size = draft["max"]
        ids = openvino.Tensor(numpy.array([prompt], dtype=numpy.int64))
        began = time.monotonic()
        result = pipeline.generate(ids, config, streamer)
        seconds = time.monotonic() - began
        raw = result.perf_metrics.raw_metrics
        emitted = list(raw.m_batch_sizes)
        times = [raw.m_times_to_first_token[0] / 1e6]
        stamps = list(raw.m_new_token_times)
        times += [(after - before) / 1e3 for before, after in zip(stamps, stamps[1:])]
        tokens = [int(token) for token in result.tokens[0]][:most]
        tokens = tokens[: next((i + 1 for i, t in enumerate(tokens) if t in ends), most)]

        def drafted(row, left):
            if not k:
                return 0
            if by_model:
                return max(0, min(k, left))
            return len(looked_up(prompt + tokens[:row], k, draft["max"])[: max(0, left)])

        passes = passes_of(emitted, len(tokens), most, drafted)
        if k and not by_model:
            check_lookups(prompt, tokens, passes, k, draft["max"])
        clock = times[: len(passes)]
        return {
            "id": request["id"],
            "tokens": tokens,
            "passes": passes,
            "pass_seconds": clock,
            "first_seconds": clock[0],
            "seconds": min(seconds, sum(clock)),
            "text": None,
            "stopped": "end" if tokens and tokens[-1] in ends else "length",
        }


def _until(ends, genai):
    """A streamer that stops at an end token of the target."""

    def write(self, token):
        found = ends.intersection(token if isinstance(token, list) else [token])
        return genai.StreamingStatus.STOP if found else genai.StreamingStatus.RUNNING

    # its base class is known only where the engine is installed
    return type("Until", (genai.StreamerBase,), {"write": write, "end": lambda self: None})()


if __name__ == "__main__":
    from worker_protocol import serve

    serve(OpenVINO)
