"""simspec: replay speculative-decoding policies exactly, on recordings of real drafters."""

from simspec import policies
from simspec.cost import CostModel
from simspec.policy import Policy, PolicyError, Stepper
from simspec.simulate import Rounds, committed, replay
from simspec.trace import Trace, TraceError, TraceMeta, load_trace
