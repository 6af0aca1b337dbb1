"""vLLM's plug-in that writes the steps of a server: `vllm.stat_logger_plugins` names it.

It writes where the environment variable SIMSPEC_STEPS names a file, and never fails the server.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from simspec.engines.step_log import BYTES_VARIABLE, MOST_BYTES, VARIABLE, StepWriter, logger

Base: Any = object
with suppress(ImportError):  # read outside of vLLM
    from vllm.v1.metrics import loggers

    Base = loggers.StatLoggerBase


class StepLogger(Base):  # type: ignore[misc]
    """A line for each step of one engine."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.writer: StepWriter | None = None
        if not (path := os.environ.get(VARIABLE)):
            return
        try:
            path += f".{engine_index}" if engine_index else ""
            most = int(os.environ.get(BYTES_VARIABLE, MOST_BYTES))
            self.writer = StepWriter(Path(path), _about(vllm_config), most)
        except Exception as error:
            logger.warning("no steps are written to %s: %r", path, error)

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, *others: Any, **given: Any
    ) -> None:
        """Takes the statistics of a step."""
        if self.writer is None or scheduler_stats is None or iteration_stats is None:
            return
        try:
            self.writer.put(_row(scheduler_stats, iteration_stats))
        except Exception as error:  # statistics of another version
            logger.warning("no steps are written to %s any more: %r", self.writer.path, error)
            self.writer = None

    def log_engine_initialized(self) -> None:
        """Nothing to log."""


def _about(config: Any) -> dict[str, Any]:
    import vllm

    drafts = config.speculative_config
    return {
        "vllm": vllm.__version__,
        "runner": "V2" if getattr(config, "use_v2_model_runner", False) else "V1",
        "model": str(config.model_config.model),
        "method": str(drafts.method) if drafts else "none",
        "K": int(drafts.num_speculative_tokens) if drafts else 0,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _row(scheduled: Any, step: Any) -> dict[str, Any]:
    row = {
        "t": round(time.perf_counter(), 6),
        "running": scheduled.num_running_reqs,
        "waiting": scheduled.num_waiting_reqs,
        "kv": round(scheduled.kv_cache_usage, 4),
        "prompt": step.num_prompt_tokens,
        "new": step.num_generation_tokens,
    }
    if (drafts := scheduled.spec_decoding_stats) is not None:
        row |= {
            "drafts": drafts.num_drafts,
            "drafted": list(drafts.num_draft_tokens_per_pos),
            "accepted": list(drafts.num_accepted_tokens_per_pos),
        }
    return row
