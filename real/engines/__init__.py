"""Released engines: each decodes in a worker process, in the environment of that engine."""

from real.engines.adapter import (
    RELEASED,
    Engine,
    EngineSettings,
    ModelDraft,
    NgramDraft,
    PolicyDraft,
    find_environment,
)
from real.engines.worker import EngineError, Finished, Patience, Ready, Request, Worker

__all__ = [
    "RELEASED",
    "Engine",
    "EngineError",
    "EngineSettings",
    "Finished",
    "ModelDraft",
    "NgramDraft",
    "Patience",
    "PolicyDraft",
    "Ready",
    "Request",
    "Worker",
    "find_environment",
]
