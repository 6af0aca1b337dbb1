"""Released engines: each decodes in a worker process, in the environment of that engine."""

from real.engines.adapter import Engine, EngineSettings, ModelDraft, NgramDraft, PolicyDraft
from real.engines.conversation import EngineError, Patience, Worker
from real.engines.environment import find_environment, is_installed
from real.engines.messages import Finished, Ready, Request
from simspec.plugins import plugins

LATER = (
    "advise",
    "compare",
    "hosted_proposer",
    "measure",
    "rows",
    "run",
    "summary",
    "timing",
    "waves",
)
"""Files that use the engines."""

RELEASED: dict[str, Engine] = {
    name: file.ENGINE for name, file in plugins(__name__, "ENGINE", besides=LATER).items()
}
"""Every released engine, by the name of its file."""

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
    "is_installed",
]
